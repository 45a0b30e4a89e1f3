"""Format of bundles: files of threads that any store can import (docs/design/0006-bundles.md).

A reader that reaches the end has read a complete bundle, and any other file raises a typed error.

    head    89 54 4B 42 0D 0A 1A 0A, then the version, 1 byte
    record  kind (1 byte), size of the body (8 bytes), CRC-32 of kind, size and body (4 bytes), body
              "T": a thread, MessagePack in a zstd frame that declares its size
              "P": a thread, uncompressed MessagePack: used if the compressed record would exceed
                   the limit on memory
              "E": the end: number of threads (8 bytes), SHA-256 of all bytes before this record

All numbers are little endian.
The end is the last record, and nothing follows it. A thread is the array `[id, deleted_at,
segments, checkpoints, writes, more]`. Segments, checkpoints and writes are arrays of arrays: the
fields of the records in `_core.engine.model`, in their order. `more` maps names to optional parts.
A later release may add names.

Limit on memory: in memory, a record may take 200 times its own size, and all records of a file
together 64 MB more. The sizes are those that the records declare. Nothing is opened to measure it.
Writers apply the same limit, and do not compress parts that would exceed it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace as replaced
from typing import Any, BinaryIO, Final, NamedTuple, Protocol, TypeVar, get_args, get_type_hints
from zlib import crc32

import ormsgpack
import zstandard

from threadkeep._core.codec.frame import opened_size, uncompressed
from threadkeep._core.engine.model import CheckpointRow, Segment, WriteRow
from threadkeep._core.engine.thread_entry import ThreadEntry, checked
from threadkeep.errors import CorruptionError, NewerFormatError, NotOursError, UnserializableError
from threadkeep.threads.transfer.whole_thread import WholeThread

T = TypeVar("T")

_THREAD, _PLAIN, _END = b"T", b"P", b"E"
_HEAD = struct.Struct("<cQI")
_TAIL = struct.Struct("<Q32s")
_MOST = 1 << 32  # bytes of one thread: bounds the memory that a reader allocates for a record
_LEVEL = 3
_TIMES = 200
_OBJECT = 80  # most bytes of the object that one byte of MessagePack may stand for
_ELEMENT = 64  # bytes of an element in memory, without its own

BEYOND: Final = 1 << 26
UNLIMITED: Final = 1 << 62
MAGIC = b"\x89TKB\r\n\x1a\n"  # as PNG's: a transfer as text damages it visibly
VERSION = 1


class Form(NamedTuple):
    """Kind of file with this format: a bundle, an archive or a quarantine file."""

    magic: bytes
    names: frozenset[str]  # known names in `more`
    noun: str
    hint: str  # of errors about damage
    beyond: int = BEYOND  # bytes of memory for all records, plus 200 times their size


# Names in `more`:
_DIGESTS = "digests"  # an array of the checkpoints' digests (`threads.transfer.digest`)
_ENTRY = "entry"  # the thread's entry in the registry (`_core.engine.thread_entry.ThreadEntry`)
BUNDLE = Form(
    MAGIC,
    frozenset((_DIGESTS, _ENTRY)),
    "bundle",
    "Use another backup: the rest of this file cannot be trusted.",
)
ARCHIVE = BUNDLE._replace(beyond=UNLIMITED)  # (the store has its digest)
_TEXT, _NUMBER, _BYTES = (str,), (int,), (bytes,)
_SAVED = ThreadEntry._fields[1 : ThreadEntry._fields.index("deleted_at")]


def _kinds(record: type) -> tuple[Any, ...]:
    """List the types that each field of a record may have."""
    return tuple([get_args(hint) or (hint,) for hint in get_type_hints(record).values()])


_SEGMENT, _CHECKPOINT, _WRITE = map(_kinds, (Segment, CheckpointRow, WriteRow))


class Writable(Protocol):
    """A file to write to."""

    def write(self, data: bytes, /) -> object:
        """Write bytes."""


class BundleWriter:
    """Writer of a bundle, which is complete after `end`."""

    def __init__(self, file: Writable, form: Form = BUNDLE) -> None:
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
    """Yield the threads of a bundle. Only at the end is it known to be complete."""
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
            hint="Upgrade threadkeep.",
        )


def _check_end(body: bytes, expected: tuple[int, bytes], rest: bytes, form: Form) -> None:
    if rest or len(body) != _TAIL.size or _TAIL.unpack(body) != expected:
        raise _damaged("'s end does not match the data before it", form)


def _damaged(how: str, form: Form) -> CorruptionError:
    return CorruptionError(f"The {form.noun}{how}.", hint=form.hint)


def _read_record(file: BinaryIO, form: Form) -> tuple[bytes, bytes, bytes]:
    """Read a record's kind, body and head."""
    head = file.read(_HEAD.size)
    if len(head) != _HEAD.size:
        raise _damaged(" was cut short", form)
    kind, size, crc = _HEAD.unpack(head)
    if kind not in (_THREAD, _PLAIN, _END) or size > 2 * _MOST:
        raise _damaged(" is damaged: a record has an unknown kind or size", form)
    body = _read(file, size, form)
    if _crc(kind, body) != crc:
        raise _damaged(" is damaged: a checksum does not match", form)
    return kind, body, head


def _read(file: BinaryIO, size: int, form: Form) -> bytes:
    """Read in parts, so that a damaged size allocates no memory."""
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
            f"A thread of {len(plain)} bytes exceeds the limit of {_MOST}.",
            hint="Back this store up in its own format, or prune the thread.",
            thread=whole.thread,
        )
    return plain


def _packed(whole: WholeThread, more: dict[str, Any]) -> bytes:
    own: dict[str, Any] = {}
    if whole.digests is not None:
        own[_DIGESTS] = whole.digests
    if whole.entry is not None:
        entry = whole.entry._replace(origin=whole.entry.origin or ())  # type: ignore[arg-type]  # (as stored)
        own[_ENTRY] = entry[1 : 1 + len(_SAVED)]
    tables = (whole.segments, whole.checkpoints, whole.writes)
    rows = [[list(row) for row in table] for table in tables]
    return ormsgpack.packb([whole.thread, whole.deleted_at, *rows, own | more])


def _entry(thread: str, more: dict[str, Any]) -> ThreadEntry | None:
    if _ENTRY not in more:
        return None
    fields: list[Any] = [tuple(one) if type(one) is list else one for one in more[_ENTRY]]
    entry = ThreadEntry(thread, *fields)
    entry = checked(entry._replace(origin=entry.origin or None))
    if entry.damage or len(fields) > len(_SAVED) or type(entry.labels) is not tuple:
        raise ValueError(entry.damage)
    return entry


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
    """Raise NewerFormatError for a part that this release would lose."""
    for name in more:
        if name not in form.names:
            raise NewerFormatError(
                f"A thread of the {form.noun} has an unknown part, {name!r}.",
                hint="Upgrade threadkeep.",
            )


def _digests(more: dict[str, Any], count: int) -> tuple[bytes, ...] | None:
    digests = more.get(_DIGESTS)
    return None if digests is None else tuple(_checked((_BYTES,) * count, digests))


def _plain(body: bytes, most: int) -> bytes:
    size = zstandard.frame_content_size(body)
    _believed(body, size, min(most, _MOST, len(body) << 15))  # (as `frame.may_hold`)
    return zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)


def _believed(body: bytes, needed: int, most: int) -> int:
    """Return `needed`, or raise ValueError if the record may not take so many bytes."""
    if not 0 <= needed <= most:
        raise ValueError(f"its {len(body)} bytes declare {needed}, more than the limit of {most}")
    return needed


def _all(make: Callable[..., T], kinds: tuple[Any, ...], rows: Any) -> tuple[T, ...]:
    return tuple([make(*_checked(kinds, row)) for row in rows])


def _checked(kinds: tuple[Any, ...], values: Any) -> Any:
    """Return the values, or raise TypeError unless each has an allowed type."""
    for kind, value in zip(kinds, values, strict=True):
        if type(value) not in kind:
            raise TypeError(f"unexpected {type(value).__name__}")
    return values


# -- memory ---------------------------------------------------------------------------


class Allowance:
    """Bytes of memory that the records of one file may still take. See the limit on memory."""

    def __init__(self, beyond: int) -> None:
        self._beyond = beyond

    def most(self, body: bytes) -> int:
        """Return the most bytes that this record may take in memory."""
        return self._beyond + _TIMES * len(body)

    def take(self, body: bytes, needed: int) -> int:
        """Count a record as read, and return the bytes that it may take beyond `needed`."""
        left = self.most(body) - needed
        self._beyond = min(self._beyond, left)
        return left


def parsed_size(plain: bytes, most: int) -> int:
    """Estimate the bytes that MessagePack and its objects take, up to about `most`.

    The objects are counted only if they might exceed `most`.
    """
    if (1 + _OBJECT) * len(plain) <= most:
        return len(plain)
    return len(plain) + _OBJECT * _objects(plain, most // _OBJECT)


def opened_sizes(segments: Iterable[Segment]) -> int:
    """Add up the bytes of memory that segments declare for their elements."""
    needed = 0
    for _, _, count, data in segments:
        size = opened_size(data)
        # (an element has at least one byte: this bounds a damaged count)
        needed += size + _ELEMENT * max(0, min(count, size or len(data)))
    return needed


# By the first byte of a MessagePack object: the object's bytes, and the bytes that hold the length
# of the rest. Objects in an array or a map are counted separately.
_STEPS = {
    **dict.fromkeys(range(256), (1, 0)),
    **{0xA0 + n: (1 + n, 0) for n in range(32)},  # short str
    **{0xC4 + n: (1 + (1 << n), 1 << n) for n in range(3)},  # bin
    **{0xC7 + n: (2 + (1 << n), 1 << n) for n in range(3)},  # ext
    0xCA: (5, 0),
    0xCB: (9, 0),  # float
    **{0xCC + n: (1 + (1 << n % 4), 0) for n in range(8)},  # int
    **{0xD4 + n: (2 + (1 << n), 0) for n in range(5)},  # ext of a fixed size
    **{0xD9 + n: (1 + (1 << n), 1 << n) for n in range(3)},  # str
    0xDC: (3, 0),
    0xDD: (5, 0),
    0xDE: (3, 0),
    0xDF: (5, 0),  # array, map
}


def _objects(plain: bytes, most: int) -> int:
    """Count the objects in MessagePack, up to one more than `most`."""
    at = count = 0
    while at < len(plain) and count <= most:
        step, width = _STEPS[plain[at]]
        if width:
            step += int.from_bytes(plain[at + 1 : at + 1 + width], "big")
        at += step
        count += 1
    return count
