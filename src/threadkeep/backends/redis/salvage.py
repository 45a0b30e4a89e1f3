"""Reading a thread some of whose members cannot be made records: these are told apart.

Only the reply to such a read lives here. Invariant: a record is made only of a member that is,
byte by byte, what would be written for it, so that the scripts find it again by its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

from threadkeep.backends.records import first_children
from threadkeep.backends.redis.packing import pack_number, place
from threadkeep.backends.redis.rows import (
    pack_checkpoint,
    pack_child,
    pack_write,
    unpack_checkpoint,
    unpack_info,
    unpack_write,
)
from threadkeep.engine.model import (
    CheckpointRow,
    SegmentInfo,
    StoredCheckpoint,
    ThreadRows,
    UnreadableRow,
    WriteRow,
)

T = TypeVar("T")

_PLACE = 24  # bytes of a segment's place


def thread_rows(thread: str, answer: Sequence[Any]) -> ThreadRows:
    """The reply to a `ReadThread` with `skip`, of what `READS.bare` gives."""
    generation, deleted_at, members, writes, children, places, sizes, stray = answer
    broken: list[UnreadableRow] = []
    rows = _made("checkpoints", members, unpack_checkpoint, pack_checkpoint, broken)
    made = _made("writes", writes, unpack_write, _packed_write, broken)
    wanted = {pack_child(row) for row in rows}
    for member in children:
        if member not in wanted:
            problem = "it makes a checkpoint that is not there a child"
            broken.append(UnreadableRow("children", member, problem, member))
    infos = []
    for member, size in zip(places, sizes, strict=True):
        info = _info(member, size)
        if info is None:
            problem = "it is no place of a segment"
            broken.append(UnreadableRow("segments", member, problem, member))
        else:
            infos.append(info)
    for field, data in zip(stray[::2], stray[1::2], strict=True):
        problem = "there is data of a segment without its place"
        broken.append(UnreadableRow("data", field, problem, data))
    by_place = {at: tuple(group) for at, group in groupby(made, attrgetter("ns", "checkpoint_id"))}
    return ThreadRows(
        int(generation),
        int(deleted_at),
        _with_writes(thread, rows, by_place),
        tuple([row for group in by_place.values() for row in group]),
        tuple(infos),
        unreadable=tuple(broken),
    )


def _made(
    table: str,
    members: Sequence[bytes],
    unpack: Callable[[bytes], T],
    pack: Callable[[T], bytes],
    broken: list[UnreadableRow],
) -> list[T]:
    rows: list[T] = []
    for member in members:
        try:
            row = unpack(member)
            is_whole = pack(row) == member
        except (ValueError, IndexError, OverflowError):
            is_whole = False
        if is_whole:
            rows.append(row)
        else:
            problem = f"one of its {table} cannot be taken apart"
            broken.append(UnreadableRow(table, member, problem, member))
    return rows


def _packed_write(row: WriteRow) -> bytes:
    return place(row.ns, row.checkpoint_id) + b"\x00" + pack_number(row.seq) + pack_write(row)


def _info(member: bytes, size: int) -> SegmentInfo | None:
    info = unpack_info(member, size)
    return info if len(member) == _PLACE and info.count > 0 else None


def _with_writes(
    thread: str, rows: Sequence[CheckpointRow], writes: dict[tuple[str, str], tuple[WriteRow, ...]]
) -> tuple[StoredCheckpoint, ...]:
    """The checkpoints with the writes on each, which are taken out of the others."""
    first = first_children(rows)
    return tuple(
        [
            StoredCheckpoint(
                thread, row, None, writes.pop((row.ns, row.id), ()), first.get((row.ns, row.id))
            )
            for row in rows
        ]
    )
