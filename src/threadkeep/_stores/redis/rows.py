r"""Converts records to keys and members of Redis, and back.

A thread of any size has these six keys. They share a hash tag, so they are on one node of a cluster
and can expire at the same time:

    t  hash         the thread's own row: generation, deleted_at, ttl (milliseconds), copy, and
                    its entry in the registry (see writing.lua)
    c  sorted set   checkpoints: ns NUL id NUL, flags run seen key_log key_pos, 0 or 1 (has exact),
                    parent, (ts, metadata, exact, manifest)
    x  sorted set   children: ns NUL parent NUL id NUL, run seen
    w  sorted set   writes: ns NUL checkpoint NUL, seq run seen, (task_id, task_path, body)
    p  sorted set   where segments are: log, start, stop
    s  hash         the segments' data, by log and start

Redis compares members byte by byte. So a packed number has 8 bytes, and numbers from 0 up sort by
value. A packed text sorts by code point and ends with a NUL; inside it, NUL is escaped as by
`records.pack_text`. The scripts do not read what follows `parent` (`common.lua`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from random import getrandbits
from typing import Any, TypeAlias
from urllib.parse import quote

from ormsgpack import packb, unpackb

from threadkeep._core.engine import model, thread_entry
from threadkeep._stores import records

Word: TypeAlias = bytes | str | int
"""A word of a command."""

# -- keys ----------------------------------------------------------------------------

_KINDS = "tcxwps"


def keys_of(prefix: str, thread: str) -> list[str]:
    """Return the keys of a thread, in the order of the scripts."""
    tag = _tag(thread)
    return [f"{prefix}:{{{tag}}}:{kind}" for kind in _KINDS]


def key_of(prefix: str, thread: str) -> str:
    """Return the key of a thread's own row."""
    return f"{prefix}:{{{_tag(thread)}}}:t"


_UNQUOTED = re.compile(r"[A-Za-z0-9_.~-]+").fullmatch  # (`quote` takes five times as long)


def _tag(thread: str) -> str:
    # (Redis ignores an empty tag)
    return thread if _UNQUOTED(thread) else quote(thread, safe="") or "%"


def beginning_of_keys(prefix: str, beginning: str) -> str:
    """Return the beginning of the keys of threads whose id begins so."""
    return f"{prefix}:{{{quote(beginning, safe='')}"


def index_of(prefix: str) -> str:
    """Return the key of the sorted set of all threads' ids."""
    return f"{prefix}:threads"


def item_key(prefix: str, kind: str) -> str:
    """Return the key of a kind of rows of items."""
    # (the braces choose the slot, so stores with other prefixes may be on other nodes)
    return f"{prefix}:items:{{{prefix}}}:{kind}"


def cache_base(prefix: str) -> str:
    """Return the prefix of a cache's keys."""
    return f"{prefix}:cache:{{entries}}:"


def identity_of(prefix: str) -> str:
    """Return the key of the store's identity, a text."""
    return f"{prefix}:identity"


def times_of(prefix: str, name: str) -> str:
    """Return the key of the sorted set of registered threads by `created_at` or `updated_at`."""
    return f"{prefix}:{{threads}}:{name}"


def term_of(prefix: str, term: str | bytes) -> bytes:
    """Return the key of the set of all threads with this label, state or origin."""
    text = term.encode() if isinstance(term, str) else term
    return f"{prefix}:{{threads}}:term:".encode() + text


# -- texts and numbers ---------------------------------------------------------------

_MASK = 2**64 - 1


def pack_text(text: str) -> bytes:
    """Encode a text; see the module's docstring."""
    return records.pack_text(text).encode()


def unpack_text(packed: bytes) -> str:
    """Return the text that `pack_text` encoded."""
    return records.unpack_text(packed.decode())


def pack_number(number: int) -> bytes:
    """Encode a signed number of 64 bits as 8 bytes."""
    return (number & _MASK).to_bytes(8, "big")


def unpack_number(packed: bytes) -> int:
    """Return the number that `pack_number` encoded."""
    return int.from_bytes(packed, "big", signed=True)


def place(*ids: str) -> bytes:
    """Pack ids so that they sort by the first, then the second and so on."""
    return b"\x00".join(map(pack_text, ids))


def pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield names and values alternately."""
    return zip(flat[::2], flat[1::2], strict=True)


# -- members -------------------------------------------------------------------------
# The end of a member, which the scripts do not read, is MessagePack.


def pack_checkpoint(row: model.CheckpointRow) -> bytes:
    """Pack a checkpoint into a member."""
    numbers = (row.flags, row.run, row.seen, row.key_log, row.key_pos)
    parent = b"\x00" if row.parent is None else b"\x01" + pack_text(row.parent) + b"\x00"
    ts = row.ts if isinstance(row.ts, int) else row.ts.encode()
    return b"".join(
        (
            place(row.ns, row.id),
            b"\x00",
            *map(pack_number, numbers),
            b"0" if row.exact is None else b"1",
            parent,
            packb((ts, row.metadata.encode(), row.exact, row.manifest)),
        )
    )


def unpack_checkpoint(member: bytes) -> model.CheckpointRow:
    """Unpack a checkpoint from its member."""
    ns, key, rest = member.split(b"\x00", 2)
    flags, run, seen, key_log, key_pos = _numbers(rest, 5)
    parent, end = None, rest[42:]
    if rest[41]:
        packed, end = end.split(b"\x00", 1)
        parent = unpack_text(packed)
    ts, metadata, exact, manifest = unpackb(end)
    if type(manifest) is not bytes:
        raise ValueError(manifest)
    return model.CheckpointRow(
        *(unpack_text(ns), unpack_text(key), parent, run, seen, flags),
        *(ts.decode() if isinstance(ts, bytes) else ts, metadata.decode(), exact),
        *(key_log, key_pos, manifest),
    )


def pack_child(row: model.CheckpointRow) -> bytes:
    """Pack a row as a child of its parent into a member; b"" without a parent."""
    if row.parent is None:
        return b""
    ids = place(row.ns, row.parent, row.id)
    return ids + b"\x00" + pack_number(row.run) + pack_number(row.seen)


def unpack_child(member: bytes) -> model.Child | None:
    """Unpack a child from its member; None if it is empty."""
    if not member:
        return None
    _, _, key, rest = member.split(b"\x00", 3)
    return model.Child(unpack_text(key), *_numbers(rest, 2))


def pack_write(row: model.WriteRow) -> bytes:
    """Pack a write into the part of its member after `seq`."""
    end = packb((row.task_id.encode(), row.task_path.encode(), row.body))
    return pack_number(row.run) + pack_number(row.seen) + end


def unpack_write(member: bytes) -> model.WriteRow:
    """Unpack a write from its member."""
    ns, key, rest = member.split(b"\x00", 2)
    seq, run, seen = _numbers(rest, 3)
    task, path, body = unpackb(rest[24:])
    if type(body) is not bytes:
        raise ValueError(body)
    ids = (unpack_text(ns), unpack_text(key))
    return model.WriteRow(*ids, run, seen, task.decode(), path.decode(), body, seq)


def _numbers(packed: bytes, count: int) -> list[int]:
    return [unpack_number(packed[at : at + 8]) for at in range(0, 8 * count, 8)]


def pack_place(log: int, start: int, count: int) -> bytes:
    """Pack a segment's place into a member."""
    return pack_number(log) + pack_number(start) + pack_number(start + count)


def unpack_place(member: bytes) -> tuple[int, int, int]:
    """Unpack the log, start and count of a segment's place."""
    log, start, stop = (int.from_bytes(member[at : at + 8], "big") for at in (0, 8, 16))
    return log, start, stop - start


def keyframes_of(flat: Sequence[bytes]) -> dict[bytes, model.Segment | None]:
    """Return the keyframes of a reply by place; None for a place without one."""
    found = {at: model.Segment(*unpack_place(at), data) for at, data in pairs(flat)}
    return {b"": None, **found}


def stored_rows(thread: str, found: Any, flat: Sequence[bytes]) -> list[model.StoredCheckpoint]:
    """Make checkpoints with what belongs to them of an answer of `read.lua`, and its keyframes."""
    keyframes = keyframes_of(flat)
    return [
        model.StoredCheckpoint(
            thread,
            unpack_checkpoint(member),
            keyframes[keyframe],
            tuple(map(unpack_write, writes)),
            unpack_child(child),
        )
        for member, keyframe, child, writes in found
    ]


# -- entries of the registry -----------------------------------------------------------
# An optional value is an empty word for None, else the value after an equals sign.

RedisRow: TypeAlias = dict[bytes, bytes] | Sequence[bytes]
"""A thread's own row: as a command gives it, or a script."""


def registry_words(batch: model.Batch) -> Iterator[Word]:
    """Yield the script's arguments for the registry's part of a batch."""
    yield int(batch.entry is not None)
    if batch.entry is not None:
        yield from entry_words(batch.entry)
    yield int(batch.touch is not None)
    if batch.touch is not None:
        yield from _touch_words(batch.touch, batch.now)


def entry_words(entry: thread_entry.ThreadEntry) -> Iterator[Word]:
    """Yield the arguments of `put_entry` for an entry."""
    origin, checkpoint = entry.origin or (None, None)
    yield from (entry.state, entry.created_at, entry.updated_at, _optional(entry.waits_at))
    yield _optional("1" if entry.pinned else None)
    yield from map(_optional, (entry.ttl, origin, checkpoint))
    yield from _label_words(entry.labels)


def _touch_words(touch: thread_entry.EntryUpdate, now: int) -> Iterator[Word]:
    yield from (now, "" if touch.at is None else touch.at, int(touch.whole), touch.size)
    yield len(touch.transitions)
    for sources, target, checkpoint, waits, same in touch.transitions:
        yield from (f"|{'|'.join(sources)}|", target, checkpoint.encode(), int(waits), int(same))
    yield from _label_words(touch.labels)


def _label_words(labels: Sequence[str]) -> Iterator[Word]:
    yield len(labels)
    for label in labels:
        yield from (thread_entry.label_prefix(label), label)


def _optional(value: str | int | None) -> Word:
    return "" if value is None else f"={value}".encode()


def copy_words(change: model.CopyThread, row: RedisRow) -> Iterator[Word]:
    """Yield the arguments of `copy.lua` from the source's own row."""
    entry = unpack_entry(change.source, row)
    yield from (change.now, _fields(row).get(b"size", b"0"), int(entry is not None))
    if entry is not None:
        yield from (entry.state, _optional(entry.waits_at), _optional(entry.ttl))
        yield from _label_words(entry.labels)


def _fields(row: RedisRow) -> dict[bytes, bytes]:
    return row if isinstance(row, dict) else dict(pairs(row))


def unpack_state(
    words: Sequence[bytes], *, skip: bool = False
) -> tuple[int, int, tuple[int, ...], int]:
    """Return a thread's generation, tombstone, tips and life; `skip`: 0 for a damaged number."""
    numbers = [words[0], words[1], words[3]]
    generation, deleted_at, life = [(_number(word) or 0) if skip else int(word) for word in numbers]
    tips = words[2]
    named = tuple([unpack_number(tips[at : at + 8]) for at in range(0, len(tips) - 7, 8)])
    return generation, deleted_at, named, life


def generation_of(row: RedisRow) -> int:
    """Return the generation in a thread's own row."""
    return int(_fields(row)[b"generation"])


def revision_of(row: RedisRow) -> int:
    """Return the revision of the entry in a thread's own row; 0 without an entry."""
    entry = unpack_entry("", row)
    return 0 if entry is None else entry.revision


def unpack_entry(thread: str, row: RedisRow) -> thread_entry.ThreadEntry | None:
    """Unpack the entry in a thread's own row, as `checked`."""
    fields = _fields(row)
    if b"state" not in fields and b"created_at" not in fields:
        return None
    origin = tuple([_text(fields.get(name, b"")) for name in _ORIGIN])
    rest, waits_at = fields.get(b"rest"), fields.get(b"waits_at")
    entry = thread_entry.ThreadEntry(
        thread=thread,
        state=_text(fields.get(b"state", b"")),
        created_at=_number(fields.get(b"created_at", b"")),
        updated_at=_number(fields.get(b"updated_at", b"")),
        size=_number(fields.get(b"size", b"0")),
        labels=tuple(sorted(str(_text(fields[name])) for name in fields if name[:2] == b"l:")),
        pinned=b"pinned" in fields,
        ttl=None if rest is None else _number(rest),
        origin=origin if b"origin" in fields else None,
        waits_at=None if waits_at is None else _text(waits_at),
        deleted_at=_number(fields.get(b"deleted_at", b"0")),
        revision=_number(fields.get(b"revision", b"0")),
    )
    return thread_entry.checked(entry)


_ORIGIN = (b"origin", b"origin_checkpoint")


def _number(value: bytes) -> Any:
    """Return a number; None if the field is damaged."""
    try:
        return int(value)
    except ValueError:
        return None


def _text(value: bytes) -> Any:
    """Return a text; the bytes if the field is damaged."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def damaged_row(thread: str, row: RedisRow) -> tuple[model.UnreadableRow, ...]:
    """The thread's own row, if its entry or its generation is damaged."""
    entry, fields = unpack_entry(thread, row), _fields(row)
    problem = "" if entry is None else entry.damage
    if fields and not thread_entry.is_count(_number(fields.get(b"generation", b"0"))):
        problem = "its generation is damaged"
    if not problem:
        return ()
    data = packb([word for name in sorted(fields) for word in (name, fields[name])])
    return (model.UnreadableRow(model.THREADS, data, problem, repr(fields).encode()),)


_SAFE: dict[bytes, tuple[Callable[[Any], bool], Word | None]] = {
    b"created_at": (thread_entry.is_time, "now"),
    b"updated_at": (thread_entry.is_time, "now"),
    b"size": (lambda number: number is not None and abs(number) <= thread_entry.LARGEST, 0),
    b"rest": (thread_entry.is_count, None),
    b"deleted_at": (lambda number: number is not None and 0 <= number <= thread_entry.LATEST, None),
    b"revision": (thread_entry.is_count, "new"),
    b"generation": (thread_entry.is_count, "new"),
    b"life": (thread_entry.is_count, "new"),
}


def sound_fields(batch: model.Batch, row: model.UnreadableRow) -> dict[bytes, Word | None]:
    """Return safe values for the damaged fields of a thread's own row; None removes a field."""
    fields = dict(pairs(unpackb(row.key)))
    safe: dict[bytes, Word | None] = {}
    for name, (is_right, value) in _SAFE.items():
        if name in fields and not is_right(_number(fields[name])):
            safe[name] = {"now": batch.now, "new": getrandbits(60)}.get(str(value), value)
    if _text(fields.get(b"state", b"")) not in set(thread_entry.ThreadStatus):
        safe[b"state"] = None
    if any(type(_text(fields.get(name, b""))) is bytes for name in _ORIGIN):
        safe |= {b"origin": None, b"origin_checkpoint": None}
    if type(_text(fields.get(b"waits_at", b""))) is bytes:
        safe[b"waits_at"] = None
    return safe
