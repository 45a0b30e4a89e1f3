"""Heads of threads as fields of a hash, the thread's own row. See `rows` and `_core.engine.heads`.

A field with the value of an empty head may be missing. The tips are two fields: Redis keeps a hash
compact while no value has more than 64 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ormsgpack import packb

from threadkeep._core.engine.heads import Head, entry_of, problem_of
from threadkeep._core.engine.model import THREADS, UnreadableRow
from threadkeep._core.engine.thread_entry import AFTER_ALL, FIELDS, ThreadEntry, is_count
from threadkeep._stores.records import head_of, mended, pack_logs
from threadkeep._stores.redis.rows import (
    RedisRow,
    Word,
    row_fields,
    unpack_number,
    unpack_text,
)

_OTHERS = ("tips", "heap", "logs", "origin")
_FIELDS = [(Head._fields.index(name), name) for name in FIELDS if name not in _OTHERS]
_UNPACKED: dict[str, Callable[[bytes], Any]] = {
    name: int if int in field.kinds else bool if bool in field.kinds else bytes.decode
    for name, field in FIELDS.items()
    if name not in _OTHERS
}
_UNPACKED |= {"origin": bytes.decode, "origin_checkpoint": bytes.decode}
_ORIGIN = Head._fields.index("origin")
_AT_FIRST = 8  # tips of the first field
_STORED = 1  # `Head.number`: the thread's id finds its rows


def stored(head: Head) -> Head:
    """Return a head that is stored now."""
    return head if head.number else head._replace(number=_STORED)


def changed_fields(old: Head, new: Head) -> tuple[list[Word], list[Word]]:
    """Return the names and values of fields to set, alternately, and the names of those to remove.

    If `old` has a number and no tips, its fields are damaged, and all are set or removed.
    """
    words: list[Word] = ["tips", _pack_tips(new.tips[:_AT_FIRST])]
    gone: list[Word] = []
    was: Sequence[Any] = old
    if old.number and not old.tips:
        was = (_DAMAGED,) * len(old)
    if len(new.tips) > _AT_FIRST:
        words += ("older", _pack_tips(new.tips[_AT_FIRST:]))
    elif len(old.tips) > _AT_FIRST or was is not old:
        gone.append("older")
    for at, name in _FIELDS:
        value: Any = new[at]
        if value != was[at]:
            if value is None or value is False:
                gone.append(name)
            else:
                words += (name, 1 if value is True else value)
    if new.logs is not was[9] or new.lists_all is not was[10] or not old.number:
        words += ("logs", pack_logs(new))
    if new.origin != was[_ORIGIN]:
        if new.origin is None:
            gone += ("origin", "origin_checkpoint")
        else:
            words += ("origin", new.origin[0], "origin_checkpoint", new.origin[1])
    return words, gone


_DAMAGED = object()


def _pack_tips(tips: tuple[int, ...]) -> bytes:
    return struct.pack(f">{len(tips)}q", *tips)


def _tips_of(fields: dict[bytes, bytes]) -> tuple[int, ...]:
    packed = fields.get(b"tips", b"") + fields.get(b"older", b"")
    return struct.unpack_from(f">{len(packed) // 8}q", packed)


def unpack_head(thread: str, row: RedisRow) -> Head:
    """Unpack the head in a thread's own row, damaged fields as they are."""
    fields = row_fields(row)
    if not fields:
        return Head(thread)
    columns = {"thread": thread, "tips": _tips_of(fields) or b"", "logs": fields.get(b"logs")}
    for name, unpack in _UNPACKED.items():
        value = fields.get(name.encode())
        if value is not None:
            try:
                columns[name] = unpack(value)
            except ValueError:
                columns[name] = value
    return head_of(columns, _STORED)


def unpack_entry(thread: str, row: RedisRow) -> ThreadEntry | None:
    """Unpack the entry in a thread's own row, as `checked`."""
    return entry_of(unpack_head(thread, row), _labels(row))


def _labels(row: RedisRow) -> list[str]:
    """Return the labels in a thread's own row."""
    return [x.decode(errors="replace") for name, x in row_fields(row).items() if name[:2] == b"l:"]


def damaged_row(thread: str, row: RedisRow) -> tuple[UnreadableRow, ...]:
    """Return the thread's own row, if its head or its entry is damaged."""
    problem = problem_of(unpack_head(thread, row), _labels(row))
    if not problem:
        return ()
    shown = repr(row_fields(row)).encode()
    return (UnreadableRow(THREADS, key_of_row(row), problem, shown),)


def key_of_row(row: RedisRow) -> bytes:
    """Return all fields of a thread's own row, packed."""
    fields = row_fields(row)
    return packb([word for name in sorted(fields) for word in (name, fields[name])])


def mended_head(thread: str, row: RedisRow, rows: Sequence[bytes], writes: Sequence[bytes]) -> Head:
    """Return the head of a damaged row: without tips, with safe values in its fields.

    Args:
        thread: its id.
        row: the thread's own row.
        rows: the members of its checkpoints.
        writes: the members of its writes.
    """
    parts = [member.split(b"\x00", 2) for member in writes]
    seqs = [unpack_number(part[2][:8]) for part in parts if len(part[2:]) == 1]
    newest = None
    for member in rows:
        if member.startswith(b"\x00"):
            newest = AFTER_ALL
            with suppress(UnicodeDecodeError):
                newest = unpack_text(member.split(b"\x00", 2)[1])
    seq = max(filter(is_count, seqs), default=0)
    return mended(unpack_head(thread, row), 0, seq, newest)._replace(tips=())
