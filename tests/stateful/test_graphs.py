"""Any graph and any script show the same on ours as on LangGraph's `InMemorySaver`.

`THREADKEEP_EXAMPLES=2000` plays that many new ones.
"""

import tempfile
from pathlib import Path

from hypothesis import given
from kit.selection import settings_of

from .graphs.plan import EDITED, PLANS, Plan
from .graphs.play import compare

PROFILE = settings_of(quick=3, full=120, report_multiple_bugs=False)


@PROFILE
@given(PLANS)
def test_any_graph_shows_the_same(plan: Plan) -> None:
    with tempfile.TemporaryDirectory() as folder:
        compare(plan, Path(folder))


@PROFILE
@given(EDITED)
def test_values_that_are_edited_while_they_are_saved(plan: Plan) -> None:
    with tempfile.TemporaryDirectory() as folder:
        compare(plan, Path(folder))
