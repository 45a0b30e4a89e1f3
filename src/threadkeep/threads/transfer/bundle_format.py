"""Format of bundles: files of threads that any store can import (docs/design/0006-bundles.md).

A bundle that was read to its end is complete; anything else ends in a typed error.

    head    89 54 4B 42 0D 0A 1A 0A, then the version, 1 byte
    record  kind (1 byte), size of the body (8 bytes), CRC-32 of kind, size and body (4 bytes), body
              "T": a thread, MessagePack in a zstd frame that tells its size
              "P": a thread, MessagePack as it is: where zstd would make it smaller than a reader
                   believes (`threads.transfer.allowance`)
              "E": the end: number of threads (8 bytes), SHA-256 of all bytes before this record

All numbers are little endian.
The end is the last record, and nothing follows it. A thread is the array `[id, deleted_at,
segments, checkpoints, writes, more]`, each of the three in the middle an array of arrays: the
fields of the records in `_core.engine.model`, in their order. `more` maps names to optional parts:
a later release adds names there.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace as replaced
from types import NoneType
from typing import Any, BinaryIO, NamedTuple, TypeVar, get_args, get_type_hints
from zlib import crc32

import ormsgpack
import zstandard

from threadkeep._core.codec.frame import uncompressed
from threadkeep._core.engine.model import CheckpointRow, Segment, WriteRow
from threadkeep._core.engine.thread_entry import ThreadEntry
from threadkeep.errors import CorruptionError, NewerFormatError, NotOursError, UnserializableError
from threadkeep.threads.transfer.allowance import (
    BEYOND,
    UNLIMITED,
    Allowance,
    opened_sizes,
    parsed_size,
)
from threadkeep.threads.transfer.whole_thread import WholeThread

T = TypeVar("T")

_THREAD, _PLAIN, _END = b"T", b"P", b"E"
_HEAD = struct.Struct("<cQI")
_TAIL = struct.Struct("<Q32s")
_MOST = 1 << 32  # bytes of one thread: bounds what a record makes a reader allocate
_LEVEL = 3

MAGIC = b"\x89TKB\r\n\x1a\n"  # as PNG's: a transfer as text damages it visibly
VERSION = 1


class Form(NamedTuple):
    """Kind of file; `names` are those that `more` of its threads may have.

    `beyond` are bytes of memory: see `threads.transfer.allowance`.
    """

    magic: bytes
    names: frozenset[str]
    noun: str
    hint: str
    beyond: int = BEYOND


# Names in `more`:
_DIGESTS = "digests"  # an array of the checkpoints' digests (`threads.transfer.digest`)
_ENTRY = "entry"  # the thread's entry in the registry (`_core.engine.thread_entry.ThreadEntry`)
BUNDLE = Form(
    MAGIC,
    frozenset((_DIGESTS, _ENTRY)),
    "bundle",
    "Use another backup: the rest of this one cannot be relied on.",
)
ARCHIVE = BUNDLE._replace(beyond=UNLIMITED)  # (the store has its digest)
_TEXT, _NUMBER, _BYTES = (str,), (int,), (bytes,)
_ENTRY_KINDS = (
    *(_TEXT, _NUMBER, _NUMBER, _NUMBER, (list,), (bool,), (int, NoneType), (list,)),
    (str, NoneType),
)


def _kinds(record: type) -> tuple[Any, ...]:
    """Return the types that each field of a record may have."""
    return tuple([get_args(hint) or (hint,) for hint in get_type_hints(record).values()])


_SEGMENT, _CHECKPOINT, _WRITE = map(_kinds, (Segment, CheckpointRow, WriteRow))


class BundleWriter:
    """Writer of a bundle, which is complete once `end` has returned."""

    def __init__(self, file: BinaryIO, form: Form = BUNDLE) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._threads = 0
        self._allowance = Allowance(form.beyond)
        self._write(form.magic + bytes((VERSION,)))

    def add(self, whole: WholeThread, more: dict[str, Any] | None = None) -> None:
        """Write a thread."""
        plain = _packed(whole, more or {})
        opened = opened_sizes(whole.segments)
        kind, body = _THREAD, self._compressor.compress(_bounded(whole, plain))
        if self._needed(body, plain, opened) > self._allowance.most(body):
            kind, body = _PLAIN, plain
        if self._needed(body, plain, opened) > self._allowance.most(body):
            segments = tuple([s._replace(data=uncompressed(s.data)) for s in whole.segments])
            opened = opened_sizes(segments)
            plain = body = _bounded(whole, _packed(replaced(whole, segments=segments), more or {}))
        self._allowance.take(body, self._needed(body, plain, opened))
        self._record(kind, body)
        self._threads += 1

    def _needed(self, body: bytes, plain: bytes, opened: int) -> int:
        return parsed_size(plain, self._allowance.most(body)) + opened

    def end(self) -> None:
        """Write the end record, which makes the bundle complete."""
        self._record(_END, _TAIL.pack(self._threads, self._digest.digest()))

    def _record(self, kind: bytes, body: bytes) -> None:
        self._write(_HEAD.pack(kind, len(body), _crc(kind, body)))
        self._write(body)

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)


def read_bundle(file: BinaryIO) -> Iterator[WholeThread]:
    """Yield the threads of a bundle, which is known to be complete only at its end."""
    return (whole for whole, _ in read_threads(file, BUNDLE))


def read_threads(file: BinaryIO, form: Form) -> Iterator[tuple[WholeThread, dict[str, Any]]]:
    """Yield the threads of a file, each with its `more`."""
    digest = hashlib.sha256()
    start = file.read(len(form.magic) + 1)
    _check_start(start, form)
    digest.update(start)
    threads, allowance = 0, Allowance(form.beyond)
    while True:
        kind, body, data = _read_record(file, form)
        if kind == _END:
            _check_end(body, (threads, digest.digest()), file.read(1), form)
            return
        digest.update(data)
        digest.update(body)
        yield _unpacked(kind, body, form, allowance)
        threads += 1


def _check_start(start: bytes, form: Form) -> None:
    if not start.startswith(form.magic):
        raise NotOursError(
            f"This file is not a {form.noun} of threadkeep.",
            hint=f"Use a file of `threadkeep {'backup' if form is BUNDLE else 'repair'}`.",
        )
    if start == form.magic:
        raise _damaged(" was cut short", form)
    if start[-1] != VERSION:
        raise NewerFormatError(
            f"The {form.noun} has format version {start[-1]};"
            f" this release reads version {VERSION}.",
            hint="Upgrade threadkeep: pip install --upgrade threadkeep",
        )


def _check_end(body: bytes, expected: tuple[int, bytes], rest: bytes, form: Form) -> None:
    if rest or len(body) != _TAIL.size or _TAIL.unpack(body) != expected:
        raise _damaged("'s end does not match what is before it", form)


def _damaged(how: str, form: Form) -> CorruptionError:
    return CorruptionError(f"The {form.noun}{how}.", hint=form.hint)


def _read_record(file: BinaryIO, form: Form) -> tuple[bytes, bytes, bytes]:
    """Return a record's kind, body and head."""
    head = file.read(_HEAD.size)
    if len(head) != _HEAD.size:
        raise _damaged(" was cut short", form)
    kind, size, crc = _HEAD.unpack(head)
    if kind not in (_THREAD, _PLAIN, _END) or size > 2 * _MOST:
        raise _damaged(" is damaged: there is no such record", form)
    body = _read(file, size, form)
    if _crc(kind, body) != crc:
        raise _damaged(" is damaged: a checksum does not match", form)
    return kind, body, head


def _read(file: BinaryIO, size: int, form: Form) -> bytes:
    """Read in parts: a damaged size must not allocate memory."""
    parts: list[bytes] = []
    while size:
        part = file.read(min(size, 1 << 24))
        if not part:
            raise _damaged(" was cut short", form)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _crc(kind: bytes, body: bytes) -> int:
    return crc32(body, crc32(kind + len(body).to_bytes(8, "little")))


# -- one thread ----------------------------------------------------------------------


def _bounded(whole: WholeThread, plain: bytes) -> bytes:
    if len(plain) > _MOST:
        raise UnserializableError(
            f"A thread of {len(plain)} bytes is over the limit of {_MOST}.",
            hint="Back this store up in its own format, or prune the thread.",
            thread=whole.thread,
        )
    return plain


def _packed(whole: WholeThread, more: dict[str, Any]) -> bytes:
    return ormsgpack.packb(
        [
            whole.thread,
            whole.deleted_at,
            [[s.log, s.start, s.count, s.data] for s in whole.segments],
            [list(row) for row in whole.checkpoints],
            [list(row) for row in whole.writes],
            _more(whole) | more,
        ]
    )


def _more(whole: WholeThread) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if whole.digests is not None:
        more[_DIGESTS] = list(whole.digests)
    if whole.entry is not None:
        entry = whole.entry
        more[_ENTRY] = [
            *(entry.state, entry.created_at, entry.updated_at, entry.size, list(entry.labels)),
            *(entry.pinned, entry.ttl, list(entry.origin or ()), entry.waits_at),
        ]
    return more


def _entry(thread: str, more: dict[str, Any]) -> ThreadEntry | None:
    if _ENTRY not in more:
        return None
    state, created_at, updated_at, size, labels, pinned, ttl, origin, waits_at = _checked(
        _ENTRY_KINDS, more[_ENTRY]
    )
    _checked((_TEXT,) * len(labels), labels)
    _checked((_TEXT,) * len(origin), origin)
    begun = (origin[0], origin[1]) if origin else None
    times = (state, created_at, updated_at, size)
    return ThreadEntry(thread, *times, tuple(labels), pinned, ttl, begun, waits_at)


def _unpacked(
    kind: bytes, body: bytes, form: Form, allowance: Allowance
) -> tuple[WholeThread, dict[str, Any]]:
    try:
        most = allowance.most(body)
        plain = body if kind == _PLAIN else _plain(body, most)
        needed = _believed(body, parsed_size(plain, most), most)
        thread, deleted_at, segments, checkpoints, writes, more = ormsgpack.unpackb(plain)
        _checked((_TEXT, _NUMBER, (dict,)), (thread, deleted_at, more))
        _check_names(more, form)
        whole = WholeThread(
            thread,
            deleted_at,
            _all(Segment, _SEGMENT, segments),
            _all(CheckpointRow, _CHECKPOINT, checkpoints),
            _all(WriteRow, _WRITE, writes),
            _digests(more, len(checkpoints)),
            _entry(thread, more),
        )
        needed = _believed(body, needed + opened_sizes(whole.segments), most)
        whole = replaced(whole, spare=allowance.take(body, needed))
    except (zstandard.ZstdError, ValueError, TypeError) as error:
        raise _damaged(f": a thread cannot be read: {error}", form) from error
    return whole, more


def _check_names(more: dict[str, Any], form: Form) -> None:
    """Raise NewerFormatError for a part that this release does not know, and would lose."""
    for name in more:
        if name not in form.names:
            raise NewerFormatError(
                f"A thread of the {form.noun} has {name!r}, which this release does not know.",
                hint="Upgrade threadkeep: pip install --upgrade threadkeep",
            )


def _digests(more: dict[str, Any], count: int) -> tuple[bytes, ...] | None:
    digests = more.get(_DIGESTS)
    return None if digests is None else tuple(_checked((_BYTES,) * count, digests))


def _plain(body: bytes, most: int) -> bytes:
    size = zstandard.frame_content_size(body)
    _believed(body, size, min(most, _MOST))
    return zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)


def _believed(body: bytes, needed: int, most: int) -> int:
    """Return the bytes that a record needs; raise ValueError if it may not take so many."""
    if not 0 <= needed <= most:
        raise ValueError(f"its {len(body)} bytes declare {needed}, more than threadkeep writes so")
    return needed


def _all(make: Callable[..., T], kinds: tuple[Any, ...], rows: Any) -> tuple[T, ...]:
    return tuple([make(*_checked(kinds, row)) for row in rows])


def _checked(kinds: tuple[Any, ...], values: Any) -> Any:
    """Return the values if each is of one of its kinds."""
    for kind, value in zip(kinds, values, strict=True):
        if type(value) not in kind:
            raise TypeError(f"unexpected {type(value).__name__}")
    return values
