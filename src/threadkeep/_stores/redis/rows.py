r"""Converts records to keys and members of Redis, and back.

A thread of any size has these six keys. They share a hash tag, so they are on one node of a cluster
and can expire at the same time:

    t  hash         the thread's own row: its head (see `heads`), its labels, expiry (milliseconds)
    c  sorted set   checkpoints: ns NUL id NUL, flags run seen key_log key_pos, 0 or 1 (has exact),
                    parent, (ts, metadata, exact, manifest)
    x  sorted set   children: ns NUL parent NUL id NUL, run seen
    w  sorted set   writes: ns NUL checkpoint NUL, seq run seen, (task_id, task_path, body)
    p  sorted set   where segments are: log, start, stop
    s  hash         the segments' data, by log and start

Redis compares members byte by byte. So a packed number has 8 bytes, and numbers from 0 up sort by
value. A packed text sorts by code point and ends with a NUL, and inside it, NUL is escaped as by
`records.pack_text`. The scripts read nothing after `parent` (`common.lua`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

from ormsgpack import packb, unpackb

from threadkeep._core.engine import model
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
    """Encode a text (see the module's docstring)."""
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
    """Pack a row as a child of its parent into a member, or b"" without a parent."""
    if row.parent is None:
        return b""
    ids = place(row.ns, row.parent, row.id)
    return ids + b"\x00" + pack_number(row.run) + pack_number(row.seen)


def unpack_child(member: bytes) -> model.Child | None:
    """Unpack a child from its member, or None if it is empty."""
    if not member:
        return None
    _, _, key, rest = member.split(b"\x00", 3)
    return model.Child(unpack_text(key), *_numbers(rest, 2))


def pack_write(row: model.WriteRow) -> bytes:
    """Pack a write into a member."""
    numbers = map(pack_number, (row.seq, row.run, row.seen))
    end = packb((row.task_id.encode(), row.task_path.encode(), row.body))
    return b"".join((place(row.ns, row.checkpoint_id), b"\x00", *numbers, end))


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
    """Return the keyframes of a reply by place, or None for a place without one."""
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


# -- the thread's own row ---------------------------------------------------------------

RedisRow: TypeAlias = dict[bytes, bytes] | Sequence[bytes]
"""A thread's own row: as a command gives it, or a script."""


def row_fields(row: RedisRow) -> dict[bytes, bytes]:
    """Return the fields of a thread's own row."""
    return row if isinstance(row, dict) else dict(pairs(row))
