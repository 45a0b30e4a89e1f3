"""Any graph and any script show on ours what they show on LangGraph's `InMemorySaver`.

Quick by default; `THREADKEEP_GRAPHS=2000` plays so many random ones.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

from .graphs.plan import EDITED, PLANS, Plan
from .graphs.play import compare

EXAMPLES = int(os.environ.get("THREADKEEP_GRAPHS", "0"))
PROFILE = settings(
    max_examples=EXAMPLES or 60,
    derandomize=not EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
    phases=[Phase.reuse, Phase.generate] if os.environ.get("THREADKEEP_NO_SHRINK") else list(Phase),
)


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
