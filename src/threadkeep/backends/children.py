"""Which checkpoint led to which, of rows that lie together.

Only this reading of a thread's rows lives here, for backends that would otherwise have to
ask once for each. Invariant: the answer is that of `StoredCheckpoint.child`.
"""

from __future__ import annotations

from collections.abc import Iterable

from threadkeep.engine.model import CheckpointRow, Child


def first_children(rows: Iterable[CheckpointRow]) -> dict[tuple[str, str], Child]:
    """By (ns, parent): the first child of a greater id, of rows in ascending order."""
    children: dict[tuple[str, str], Child] = {}
    for row in rows:
        if row.parent is not None and row.id > row.parent:
            children.setdefault((row.ns, row.parent), Child(row.id, row.run, row.seen))
    return children
