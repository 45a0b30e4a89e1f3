"""Entries of the registry as fields of a thread's own row, and what scripts are told of them.

Only these conversions live here (`registry.lua` is the other side). Invariant: a value that may
be none is an empty word, or one that begins with an equals sign.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from threadkeep.backends.redis.scripts import Word
from threadkeep.engine.model import Batch, CopyThread
from threadkeep.engine.thread_entry import (
    ThreadEntry,
    Touch,
    label_prefix,
)

Row: TypeAlias = dict[bytes, bytes] | Sequence[bytes]
"""A thread's own row: as a command gives it, or a script."""

# -- what scripts are given ------------------------------------------------------------


def arguments(batch: Batch) -> Iterator[Word]:
    """What `commit.lua` is given for the registry."""
    yield int(batch.entry is not None)
    if batch.entry is not None:
        yield from entry_words(batch.entry)
    yield int(batch.touch is not None)
    if batch.touch is not None:
        yield from _touch_words(batch.touch, batch.now)


def _touch_words(touch: Touch, now: int) -> Iterator[Word]:
    yield from (now, "" if touch.at is None else touch.at, int(touch.whole), touch.size)
    yield len(touch.moves)
    for sources, target, checkpoint, waits, same in touch.moves:
        yield from (f"|{'|'.join(sources)}|", target, checkpoint.encode(), int(waits), int(same))
    yield from _label_words(touch.labels)


def _label_words(labels: Sequence[str]) -> Iterator[Word]:
    yield len(labels)
    for label in labels:
        yield from (label_prefix(label), label)


def _or_none(value: str | int | None) -> Word:
    return "" if value is None else f"={value}".encode()


def copy_arguments(change: CopyThread, row: Sequence[bytes]) -> Iterator[Word]:
    """What `copy.lua` is given of the source's own row."""
    found = _fields(row)
    yield from (change.now, found.get(b"size", b"0"), int(b"state" in found))
    if b"state" in found:
        yield found[b"state"]
        for field in (b"waits_at", b"rest"):
            yield b"=" + found[field] if field in found else b""
        yield from _label_words(_labels(found))


def entry_words(entry: ThreadEntry) -> Iterator[Word]:
    """An entry as `put_entry` takes it."""
    origin, checkpoint = entry.origin or (None, None)
    yield from (entry.state, entry.created_at, entry.updated_at, _or_none(entry.waits_at))
    yield _or_none("1" if entry.pinned else None)
    yield from map(_or_none, (entry.ttl, origin, checkpoint))
    yield from _label_words(entry.labels)


# -- entries ---------------------------------------------------------------------------


def _fields(row: Row) -> dict[bytes, bytes]:
    if isinstance(row, dict):
        return row
    return dict(zip(row[::2], row[1::2], strict=True))


def generation_of(row: Sequence[bytes]) -> int:
    """The generation in a thread's own row."""
    return int(_fields(row)[b"generation"])


def _labels(fields: Mapping[bytes, bytes]) -> list[str]:
    return sorted(label.decode() for field, label in fields.items() if field.startswith(b"l:"))


def unpack_entry(thread: str, row: Row) -> ThreadEntry | None:
    """The entry in a thread's own row."""
    found = _fields(row)
    if b"state" not in found:
        return None
    origin, checkpoint = found.get(b"origin"), found.get(b"origin_checkpoint", b"")
    waits_at, rest = found.get(b"waits_at"), found.get(b"rest")
    return ThreadEntry(
        thread=thread,
        state=found[b"state"].decode(),
        created_at=int(found[b"created_at"]),
        updated_at=int(found[b"updated_at"]),
        size=int(found.get(b"size", 0)),
        labels=tuple(_labels(found)),
        pinned=b"pinned" in found,
        ttl=None if rest is None else int(rest),
        origin=None if origin is None else (origin.decode(), checkpoint.decode()),
        waits_at=None if waits_at is None else waits_at.decode(),
        deleted_at=int(found.get(b"deleted_at", 0)),
        revision=int(found[b"revision"]),
    )
