"""Heads of threads as fields of a hash, the thread's own row. See `rows` and `_core.engine.heads`.

A field with the value of an empty head may be missing. The tips are two fields: Redis keeps a hash
compact while no value has more than 64 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ormsgpack import packb

from threadkeep._core.engine.heads import NO_GAPS, NO_LOGS, Head
from threadkeep._core.engine.model import THREADS, ThreadState, UnreadableRow
from threadkeep._core.engine.thread_entry import AFTER_ALL, is_count, is_time
from threadkeep._stores.records import new_tip, pack_logs, unpack_logs
from threadkeep._stores.redis.rows import (
    RedisRow,
    Word,
    number_of,
    row_fields,
    unpack_entry,
    unpack_number,
    unpack_text,
)

_FIELDS = tuple(
    [
        (Head._fields.index(field), name)
        for field, name in (
            *[(one, one) for one in ("generation", "life", "deleted_at", "seq", "newest", "size")],
            *[(one, one) for one in ("revision", "state", "created_at", "updated_at", "waits_at")],
            *(("pinned", "pinned"), ("ttl", "rest")),
        )
    ]
)
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
    if new.origin != was[20]:
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
    """Unpack the head in a thread's own row. Raises ValueError or TypeError if it is damaged."""
    fields = row_fields(row)
    if not fields:
        return Head(thread)
    get = fields.get
    counts = generation, life, seq, revision = [int(get(name, 0)) for name in _COUNTS]
    deleted_at, tips = int(get(b"deleted_at", 0)), _tips_of(fields)
    if not (tips and all(map(is_count, counts)) and _is_tombstone(deleted_at)):
        raise ValueError(fields)
    logs, lists_all = unpack_logs(get(b"logs"))
    newest, state, waits_at, origin, checkpoint = [
        None if (value := get(name)) is None else value.decode() for name in _TEXTS
    ]
    created_at, updated_at, rest = [
        None if (value := get(name)) is None else int(value) for name in _TIMES
    ]
    return Head(
        thread,
        tips,
        _STORED,
        0,
        generation,
        life,
        deleted_at,
        seq,
        newest,
        logs,
        lists_all,
        NO_GAPS,
        int(get(b"size", 0)),
        revision,
        state,
        created_at,
        updated_at,
        waits_at,
        b"pinned" in fields,
        rest,
        None if origin is None else (origin, checkpoint or ""),
    )


def _is_tombstone(value: Any) -> bool:
    return is_time(value) and value >= 0


_COUNTS = (b"generation", b"life", b"seq", b"revision")
_TEXTS = (b"newest", b"state", b"waits_at", b"origin", b"origin_checkpoint")
_TIMES = (b"created_at", b"updated_at", b"rest")


def state_of(row: RedisRow, *, skip: bool = False) -> ThreadState:
    """Return the state in a thread's own row, without a checkpoint.

    Raises ValueError for a damaged number; `skip`: it is 0 instead.
    """
    fields = row_fields(row)
    words = [fields.get(name, b"0") for name in (b"generation", b"deleted_at", b"life")]
    generation, deleted_at, life = [(number_of(one) or 0) if skip else int(one) for one in words]
    logs = NO_LOGS
    with suppress(ValueError, TypeError):
        logs, _ = unpack_logs(fields.get(b"logs"))
    return ThreadState(generation, deleted_at, None, _tips_of(fields), life, logs)


def damaged_row(thread: str, row: RedisRow) -> tuple[UnreadableRow, ...]:
    """Return the thread's own row, if its head or its entry is damaged."""
    entry, problem = unpack_entry(thread, row), ""
    try:
        unpack_head(thread, row)
    except (ValueError, TypeError):
        problem = "its generation, tips, sequence number or list of logs is damaged"
    if entry is not None and entry.damage:
        problem = entry.damage
    if not problem:
        return ()
    shown = repr(row_fields(row)).encode()
    return (UnreadableRow(THREADS, key_of_row(row), problem, shown),)


def key_of_row(row: RedisRow) -> bytes:
    """Return all fields of a thread's own row, packed."""
    fields = row_fields(row)
    return packb([word for name in sorted(fields) for word in (name, fields[name])])


def mended_head(thread: str, row: RedisRow, rows: Sequence[bytes], writes: Sequence[bytes]) -> Head:
    """Return the head of a damaged row: without tips and entry, with safe values in its fields.

    Args:
        thread: its id.
        row: the thread's own row.
        rows: the members of its checkpoints.
        writes: the members of its writes.
    """
    fields = row_fields(row)
    numbers: dict[str, Any] = {
        name: value
        if is_count(value := number_of(fields.get(name.encode(), b"0")))
        else new_tip() >> 1
        for name in ("generation", "life", "revision")
    }
    parts = [member.split(b"\x00", 2) for member in writes]
    seqs = [unpack_number(part[2][:8]) for part in parts if len(part[2:]) == 1]
    newest = None
    for member in rows:
        if member.startswith(b"\x00"):
            newest = AFTER_ALL
            with suppress(UnicodeDecodeError):
                newest = unpack_text(member.split(b"\x00", 2)[1])
    deleted_at = number_of(fields.get(b"deleted_at", b"0"))
    return Head(
        thread,
        (),
        _STORED,
        deleted_at=deleted_at if _is_tombstone(deleted_at) else 0,
        seq=max(filter(is_count, seqs), default=0),
        newest=newest,
        lists_all=False,
        **numbers,
    )
