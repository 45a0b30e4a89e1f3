"""Many batches as one call of `commit_batches`, each column of their rows as an array.

Only that statement lives here. Invariant: its text is always the same, so that it is prepared
once. Whatever it cannot carry is committed change by change (see `changes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from threadkeep.backends.postgres.arrays import Array, array
from threadkeep.backends.postgres.changes import ARRAYS, ROWS, size
from threadkeep.backends.postgres.statement import Statement
from threadkeep.backends.postgres.text import pack_text
from threadkeep.engine.model import Batch, Change
from threadkeep.engine.thread_entry import Touch, label_prefix

_MOST_BYTES = 64 * 1024 * 1024  # of payloads in one call

_OF_BATCHES = ("segments", "drop_segments", "checkpoints", "writes")
# The columns of each kind of row, in the order of the function's parameters; all but the first
# kind, the batches themselves, begin with the number of their batch.
_KINDS: dict[str, tuple[str, ...]] = {
    "batches": ("text", *["bigint"] * 5),
    "labels": ("bigint", "text", "text"),
    "moves": ("bigint", "text", "text", "text", "boolean", "boolean"),
    **{kind: ("bigint", *[column for _, column in ARRAYS[kind]]) for kind in _OF_BATCHES},
}
_PARAMETERS = ", ".join([f"%s::{kind}[]" for kinds in _KINDS.values() for kind in kinds])
_TEXT = f"SELECT {{schema}}.commit_batches({_PARAMETERS})"


def together(changes: Sequence[Change]) -> Statement | None:
    """The statement that carries out all changes, or none of them.

    None where one of them does more than add rows, two meet, or they are too much for one call.
    """
    batches = [change for change in changes if isinstance(change, Batch) and _only_adds(change)]
    if len(batches) < len(changes) or _meet(batches) or sum(map(size, batches)) > _MOST_BYTES:
        return None
    rows = _rows(batches)
    values: list[Array] = []
    try:
        for kind, columns in _KINDS.items():
            found = rows[kind]
            given = zip(*found, strict=True) if found else [()] * len(columns)
            values += map(array, columns, given)
    except UnicodeError:  # only one of them is to be refused for it
        return None
    return Statement(_TEXT, tuple(values))


def _only_adds(change: Batch) -> bool:
    """Return True if a batch only adds rows, and drops segments that it puts others for."""
    return not (
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


def _meet(batches: Sequence[Batch]) -> bool:
    """Return True if two batches put the same checkpoint, or reach the same place of a log."""
    checkpoints = [(batch.thread, row.ns, row.id) for batch in batches for row in batch.checkpoints]
    if len(set(checkpoints)) < len(checkpoints):
        return True
    put = sorted(
        [
            (batch.thread, one.log, one.start, one.start + one.count, number)
            for number, batch in enumerate(batches)
            for one in batch.segments
        ]
    )
    for (thread, log, _, stop, _), (other, its_log, start, *_) in pairwise(put):
        if start < stop and thread == other and log == its_log:
            return True
    owners = {(thread, log, start): number for thread, log, start, _, number in put}
    return any(
        owners.get((batch.thread, log, start), number) != number
        for number, batch in enumerate(batches)
        for log, start, _ in batch.drop_segments
    )


def _rows(batches: Sequence[Batch]) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of each kind."""
    rows: dict[str, list[tuple[Any, ...]]] = {kind: [] for kind in _KINDS}
    for number, batch in enumerate(batches, 1):
        rows["batches"].append(_batch(batch))
        for kind in _OF_BATCHES:
            given = getattr(batch, kind)
            if given:
                row_of = ROWS[kind]
                rows[kind] += [(number, *row_of(one)) for one in given]
        if batch.touch is not None:
            _tell(number, batch.touch, rows)
    return rows


def _batch(batch: Batch) -> tuple[Any, ...]:
    told = (None, None) if batch.touch is None else (batch.touch.size, batch.touch.at)
    return pack_text(batch.thread), batch.born, batch.generation, batch.now, *told


def _tell(number: int, touch: Touch, rows: dict[str, list[tuple[Any, ...]]]) -> None:
    for label in touch.labels:
        rows["labels"].append((number, label_prefix(label), label))
    for sources, target, checkpoint, waits, same in touch.moves:
        states = f"|{'|'.join(sources)}|"
        rows["moves"].append((number, states, target, pack_text(checkpoint), waits, same))
