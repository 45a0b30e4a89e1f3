"""Checkpoints of a thread, put together from rows that lie together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from threadkeep.engine.model import CheckpointRow, Child, Segment, StoredCheckpoint, WriteRow


def first_children(rows: Iterable[CheckpointRow]) -> dict[tuple[str, str], Child]:
    """Return the first child of a greater id by (ns, parent), of rows in ascending order."""
    children: dict[tuple[str, str], Child] = {}
    for row in rows:
        if row.parent is not None and row.id > row.parent:
            children.setdefault((row.ns, row.parent), Child(row.id, row.run, row.seen))
    return children


def with_writes(
    thread: str,
    rows: Sequence[CheckpointRow],
    keyframes: Iterable[Segment | None],
    writes: Iterable[WriteRow],
) -> tuple[tuple[StoredCheckpoint, ...], tuple[WriteRow, ...]]:
    """Return a thread's checkpoints, and the writes on none of them; all in ascending order."""
    key = attrgetter("ns", "checkpoint_id")
    by_place = {at: tuple(group) for at, group in groupby(writes, key)}
    children = first_children(rows)
    checkpoints = [
        StoredCheckpoint(
            thread,
            row,
            keyframe,
            by_place.pop((row.ns, row.id), ()),
            children.get((row.ns, row.id)),
        )
        for row, keyframe in zip(rows, keyframes, strict=True)
    ]
    return tuple(checkpoints), tuple([row for group in by_place.values() for row in group])
