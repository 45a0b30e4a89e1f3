"""Completing what is typed in a shell with what a store holds.

Invariants: it costs one small read of a local file, and whatever goes wrong, nothing is offered and
nothing is said.
"""

from __future__ import annotations

import typer

from threadkeep.backends.open import file_of
from threadkeep.cli.stores import reading, url_of
from threadkeep.saver import store_of
from threadkeep.stats import thread_names

_MOST = 50


def thread_ids(context: typer.Context, incomplete: str) -> list[str]:
    """The first ids that begin so, of a SQLite file; a server may be far, and is not asked."""
    try:
        return _ids(context.params.get("url"), incomplete)
    except Exception:  # noqa: BLE001 - whoever presses a key must never see a failure
        return []


def _ids(option: str | None, beginning: str) -> list[str]:
    url = url_of(option)
    if file_of(url) is None:
        return []
    with reading(url) as saver:
        found = store_of(saver).run(thread_names(beginning or None, _MOST))
    return [name for name in found if name.startswith(beginning)]
