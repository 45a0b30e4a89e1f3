"""Many batches as one call of `commit_batches`, each column of their rows as an array.

Only that statement lives here. Invariant: its text is always the same, so that it is prepared
once. Whatever it cannot carry is committed change by change (see `changes`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from threadkeep.backends.postgres.arrays import Array, array
from threadkeep.backends.postgres.changes import ARRAYS, ROWS
from threadkeep.backends.postgres.statement import Statement
from threadkeep.backends.postgres.text import pack_text
from threadkeep.engine.entries import Touch
from threadkeep.engine.labels import beginning_of
from threadkeep.engine.model import Batch, Change

_MOST_BYTES = 64 * 1024 * 1024  # of payloads in one call

# The columns of each kind of row, in the order of the function's parameters; all but the first
# kind, the batches themselves, begin with the number of their batch.
_KINDS: dict[str, tuple[str, ...]] = {
    "batches": ("text", *["bigint"] * 5),
    "labels": ("bigint", "text", "text"),
    "moves": ("bigint", "text", "text", "text", "boolean", "boolean"),
    **{
        kind: ("bigint", *[column for _, column in ARRAYS[kind]])
        for kind in ("segments", "drop_segments", "checkpoints", "writes")
    },
}
_PARAMETERS = ", ".join([f"%s::{kind}[]" for kinds in _KINDS.values() for kind in kinds])
_TEXT = f"SELECT {{schema}}.commit_batches({_PARAMETERS})"  # noqa: S608 - names of ours only


def together(changes: Sequence[Change]) -> Statement | None:
    """The statement that carries out all changes, or none of them.

    None where one of them is not only rows to add, or they do not fit into one call.
    """
    batches = [change for change in changes if _only_adds(change)]
    if len(batches) < len(changes):
        return None
    rows = _rows(batches)
    if rows is None:
        return None
    values: list[Array] = []
    try:
        for kind, columns in _KINDS.items():
            found = rows[kind]
            given = zip(*found, strict=True) if found else [()] * len(columns)
            values += map(array, columns, given)
    except (struct.error, UnicodeError):  # to be refused by name, each change by itself
        return None
    return Statement(_TEXT, tuple(values))


def _only_adds(change: Change) -> bool:
    """Whether a change adds rows, and removes none but segments that it puts others for."""
    return isinstance(change, Batch) and not (
        change.fences
        or change.bump
        or change.entry is not None
        or change.drop_checkpoints
        or change.drop_writes
        or change.hide_checkpoints
        or change.drop_unreadable
        or (change.drop_segments and not change.segments)
        or (change.touch is not None and change.touch.whole)
    )


def _rows(batches: Sequence[Any]) -> dict[str, list[tuple[Any, ...]]] | None:
    """The rows of each kind; None where they are too large, or a checkpoint comes twice."""
    rows: dict[str, list[tuple[Any, ...]]] = {kind: [] for kind in _KINDS}
    segment, checkpoint, write = ROWS["segments"], ROWS["checkpoints"], ROWS["writes"]
    size, seen = 0, set[tuple[str, str, str]]()
    for number, batch in enumerate(batches, 1):
        for one in batch.segments:
            size += len(one.data)
            rows["segments"].append((number, *segment(one)))
        for one in batch.checkpoints:
            seen.add((batch.thread, one.ns, one.id))
            rows["checkpoints"].append((number, *checkpoint(one)))
        for one in batch.writes:
            size += len(one.body)
            rows["writes"].append((number, *write(one)))
        for place in batch.drop_segments:
            rows["drop_segments"].append((number, *place))
        rows["batches"].append(_batch(batch))
        if batch.touch is not None:
            _tell(number, batch.touch, rows)
    return rows if size <= _MOST_BYTES and len(seen) == len(rows["checkpoints"]) else None


def _batch(batch: Batch) -> tuple[Any, ...]:
    told = (None, None) if batch.touch is None else (batch.touch.size, batch.touch.at)
    return pack_text(batch.thread), batch.born, batch.generation, batch.now, *told


def _tell(number: int, touch: Touch, rows: dict[str, list[tuple[Any, ...]]]) -> None:
    for label in touch.labels:
        rows["labels"].append((number, beginning_of(label), label))
    for sources, target, checkpoint, waits, same in touch.moves:
        states = f"|{'|'.join(sources)}|"
        rows["moves"].append((number, states, target, pack_text(checkpoint), waits, same))
