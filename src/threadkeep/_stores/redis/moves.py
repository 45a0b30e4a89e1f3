"""Moves as arguments of `move.lua`. See `_core.engine.heads`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from threadkeep._core.engine.heads import Copying, Head, Move
from threadkeep._core.engine.model import THREADS
from threadkeep._core.engine.thread_entry import label_prefix
from threadkeep._stores.redis.heads import changed_fields
from threadkeep._stores.redis.rows import (
    Word,
    pack_checkpoint,
    pack_child,
    pack_number,
    pack_place,
    pack_write,
    place,
)

_PLAIN = Move(Head(""), Head(""))[7:]
_NOTHING: tuple[Word, ...] = (0,) * 5


def move_words(move: Move, ttl: Word, copied: Sequence[Word] = _NOTHING) -> list[Word]:
    """Return the arguments of `move.lua`.

    Args:
        move: the move.
        ttl: milliseconds until the thread expires, or "" to leave its ttl as it is.
        copied: the rows of `move.copies` (see `copied_words`).
    """
    old, segments = move.old, move.segments
    names, gone = changed_fields(old, move.new)
    is_plain = move[7:] == _PLAIN
    words: list[Word] = [ttl, _expected(old), len(move.drop_segments)]
    words += [pack_place(*at) for at in move.drop_segments]
    words += (int(bool(segments)), int(not is_plain))
    if not is_plain:
        words += _changes(move, copied)
    words.append(len(segments))
    for one in segments:
        words += (pack_place(one.log, one.start, one.count), one.data)
    words.append(len(move.checkpoints))
    for row in move.checkpoints:
        words += (place(row.ns, row.id), pack_checkpoint(row), pack_child(row))
    words += (len(move.writes), *map(pack_write, move.writes))
    words += (len(names) // 2, *names, len(gone), *gone, int(move.clears_labels), len(move.labels))
    for label in move.labels:
        words += (f"l:{label_prefix(label)}", label)
    return words


def _expected(old: Head) -> Word:
    if not old.number:
        return ""
    return pack_number(old.tips[0]) if old.tips else "*"


def _changes(move: Move, copied: Sequence[Word]) -> Iterator[Word]:
    """Yield the arguments of `change_rows`."""
    yield int(move.clears)
    yield from copied
    yield from _counted([(place(*key),) for key in move.drop_checkpoints])
    yield from _counted([(_number(*key),) for key in move.drop_writes])
    yield from _counted(
        [
            (_number(row.ns, row.checkpoint_id, row.seq), pack_write(row))
            for row in move.replace_writes
        ]
    )
    yield from _counted([(place(*key),) for key in move.hide_checkpoints])
    members = [row for row in move.drop_unreadable if row.table != THREADS]
    yield from _counted([(row.table, row.key) for row in members])


def _number(ns: str, checkpoint: str, seq: int) -> bytes:
    """Return the beginning of a write's member."""
    return place(ns, checkpoint) + b"\x00" + pack_number(seq)


def _counted(rows: Sequence[Iterable[Word]]) -> Iterator[Word]:
    yield len(rows)
    yield from chain.from_iterable(rows)


def copied_words(copies: Copying, answer: Sequence[Any]) -> list[Word] | None:
    """Return the rows to copy from the answer to "whole", or None if the source has moved."""
    tip, rows, children, writes, places, data = answer
    if tip != _expected(copies.source):
        return None
    if copies.checkpoints is not None:
        wanted = {place(*key) for key in copies.checkpoints}
        rows = [one for one in rows if _joined(one.split(b"\x00", 2)[:2]) in wanted]
        children = [one for one in children if _joined(one.split(b"\x00", 3)[0:3:2]) in wanted]
    if copies.writes is not None:
        numbers = {_number(*key) for key in copies.writes}
        writes = [one for one in writes if _beginning(one) in numbers]
    words: list[Word] = []
    for members in (rows, children, writes, places):
        words += (len(members), *members)
    words += (len(data) // 2, *data)
    return words


def _joined(parts: Sequence[bytes]) -> bytes:
    return b"\x00".join(parts)


def _beginning(member: bytes) -> bytes:
    """Return the place and `seq` of a write's member."""
    *ids, rest = member.split(b"\x00", 2)
    return _joined((*ids, rest[:8]))
