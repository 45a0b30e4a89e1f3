"""Bundles: threads in a file that any store can be filled from.

Only the file's form lives here (docs/design/0006-bundles.md); reading and putting threads is
the engine's. Invariants: a bundle that was read to its end is whole; whatever else is read
ends in a typed error.

    head    89 54 4B 42 0D 0A 1A 0A, then the version, 1 byte
    record  kind (1 byte), size of the body (8 bytes), CRC-32 of kind, size and body (4 bytes), body
              "T": a thread, MessagePack in a zstd frame that tells its size
              "E": the end: number of threads (8 bytes), SHA-256 of all bytes before this record

All numbers are little endian. The end is the last record, and nothing follows it. A thread is
the array `[id, deleted_at, segments, checkpoints, writes, more]`, each of the three in the middle
an array of arrays: the fields of `engine.model`'s records in their order. `more` is a map from
names to what a thread may have besides; version 1 has no `more`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any, BinaryIO, TypeVar
from zlib import crc32

import ormsgpack
import zstandard

from threadkeep.engine.entries import Entry
from threadkeep.engine.model import CheckpointRow, Segment, WriteRow
from threadkeep.engine.operations.bundling import WholeThread
from threadkeep.errors import (
    CorruptionError,
    NewerFormatError,
    NotOursError,
    UnserializableError,
)

T = TypeVar("T")

MAGIC = b"\x89TKB\r\n\x1a\n"  # as PNG's: shows what a transfer as text does to it
VERSION = 2
_READ = (1, 2)
_THREAD, _END = b"T", b"E"
_HEAD = struct.Struct("<cQI")
_TAIL = struct.Struct("<Q32s")
_MOST = 1 << 32  # bytes of one thread: what a record may ask a reader to allocate
_LEVEL = 3
_AGAIN = "Take another backup: what is left of this one cannot be relied on."

_DIGESTS = "digests"  # in `more`: an array of each checkpoint's (`operations.digest`)
_ENTRY = "entry"  # likewise: what the registry says of the thread (`engine.entries.Entry`)
_TEXT, _NUMBER, _BYTES = (str,), (int,), (bytes,)
_ENTRY_KINDS = (
    *(_TEXT, _NUMBER, _NUMBER, _NUMBER, (list,), (bool,), (int, type(None)), (list,)),
    (str, type(None)),
)
_SEGMENT = (_NUMBER, _NUMBER, _NUMBER, _BYTES)
_CHECKPOINT = (
    *(_TEXT, _TEXT, (str, NoneType), _NUMBER, _NUMBER, _NUMBER, (int, str), _TEXT),
    *((bytes, NoneType), _NUMBER, _NUMBER, _BYTES),
)
_WRITE = (_TEXT, _TEXT, _NUMBER, _NUMBER, _TEXT, _TEXT, _BYTES, _NUMBER)


class BundleWriter:
    """Writes a bundle.

    Args:
        file: where to; what is there before the end is written is no bundle yet.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._threads = 0
        self._write(MAGIC + bytes((VERSION,)))

    def add(self, whole: WholeThread) -> None:
        """Write a thread.

        Raises:
            UnserializableError: it is too large for a bundle.
        """
        plain = _packed(whole)
        if len(plain) > _MOST:
            raise UnserializableError(
                f"A thread of {len(plain)} bytes is over the limit of {_MOST}.",
                hint="Back this store up in its own format, or prune the thread.",
                thread=whole.thread,
            )
        self._record(_THREAD, self._compressor.compress(plain))
        self._threads += 1

    def end(self) -> None:
        """Write the end: now the bundle is whole."""
        self._record(_END, _TAIL.pack(self._threads, self._digest.digest()))

    def _record(self, kind: bytes, body: bytes) -> None:
        self._write(_HEAD.pack(kind, len(body), _crc(kind, body)))
        self._write(body)

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)


def read_bundle(file: BinaryIO) -> Iterator[WholeThread]:
    """The threads of a bundle; only at the end is it known that it is whole.

    Raises:
        NotOursError: the file is no bundle.
        NewerFormatError: a newer release wrote it.
        CorruptionError: it is damaged, or was cut short.
    """
    digest = hashlib.sha256()
    start = file.read(len(MAGIC) + 1)
    _check_start(start)
    digest.update(start)
    threads, version = 0, start[-1]
    while True:
        kind, body, data = _read_record(file)
        if kind == _END:
            _check_end(body, threads, digest.digest(), file.read(1))
            return
        digest.update(data)
        digest.update(body)
        yield _unpacked(body, version)
        threads += 1


def _check_start(start: bytes) -> None:
    if not start.startswith(MAGIC):
        raise NotOursError(
            "This file is no bundle of threadkeep.",
            hint="Give a file that `threadkeep backup` has written.",
        )
    if not start[len(MAGIC) :] or start[-1] not in _READ:
        raise NewerFormatError(
            f"The bundle is not of version 1 to {VERSION}, which this release reads.",
            hint="Upgrade threadkeep: pip install --upgrade threadkeep",
        )


def _check_end(body: bytes, threads: int, digest: bytes, rest: bytes) -> None:
    if rest or len(body) != _TAIL.size or _TAIL.unpack(body) != (threads, digest):
        raise CorruptionError("The bundle's end does not match what is before it.", hint=_AGAIN)


def _read_record(file: BinaryIO) -> tuple[bytes, bytes, bytes]:
    """A record's kind, body and head."""
    head = file.read(_HEAD.size)
    if len(head) != _HEAD.size:
        raise CorruptionError("The bundle was cut short.", hint=_AGAIN)
    kind, size, crc = _HEAD.unpack(head)
    if kind not in (_THREAD, _END) or size > 2 * _MOST:
        raise CorruptionError("The bundle is damaged: there is no such record.", hint=_AGAIN)
    body = _read(file, size)
    if _crc(kind, body) != crc:
        raise CorruptionError("The bundle is damaged: a checksum does not match.", hint=_AGAIN)
    return kind, body, head


def _read(file: BinaryIO, size: int) -> bytes:
    """So many bytes, without asking for memory that a damaged size names."""
    parts: list[bytes] = []
    while size:
        part = file.read(min(size, 1 << 24))
        if not part:
            raise CorruptionError("The bundle was cut short.", hint=_AGAIN)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _crc(kind: bytes, body: bytes) -> int:
    return crc32(body, crc32(kind + len(body).to_bytes(8, "little")))


# -- one thread ----------------------------------------------------------------------


def _packed(whole: WholeThread) -> bytes:
    return ormsgpack.packb(
        [
            whole.thread,
            whole.deleted_at,
            [[s.log, s.start, s.count, s.data] for s in whole.segments],
            [list(row) for row in whole.checkpoints],
            [list(row) for row in whole.writes],
            _more(whole),
        ]
    )


def _more(whole: WholeThread) -> dict[str, Any]:
    """What the thread has besides, by name: a later release adds names, and no version."""
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


def _entry(thread: str, more: dict[str, Any]) -> Entry | None:
    if _ENTRY not in more:
        return None
    state, created_at, updated_at, size, labels, pinned, ttl, origin, waits_at = _checked(
        _ENTRY_KINDS, more[_ENTRY]
    )
    _checked((_TEXT,) * len(labels), labels)
    _checked((_TEXT,) * len(origin), origin)
    begun = (origin[0], origin[1]) if origin else None
    times = (state, created_at, updated_at, size)
    return Entry(thread, *times, tuple(labels), pinned, ttl, begun, waits_at)


def _unpacked(body: bytes, version: int) -> WholeThread:
    try:
        parts = ormsgpack.unpackb(_plain(body))
        thread, deleted_at, segments, checkpoints, writes, more = (
            parts if version > 1 else [*parts, {}]
        )
        _checked((_TEXT, _NUMBER, (dict,)), (thread, deleted_at, more))
        return WholeThread(
            thread,
            deleted_at,
            _all(Segment, _SEGMENT, segments),
            _all(CheckpointRow, _CHECKPOINT, checkpoints),
            _all(WriteRow, _WRITE, writes),
            _digests(more, len(checkpoints)),
            _entry(thread, more),
        )
    except (zstandard.ZstdError, ValueError, TypeError) as error:
        raise CorruptionError(
            f"A thread of the bundle cannot be read: {error}", hint=_AGAIN
        ) from error


def _digests(more: dict[str, Any], count: int) -> tuple[bytes, ...] | None:
    """The checkpoints' digests, if they are noted.

    Raises:
        NewerFormatError: the thread has something besides that would be lost here.
    """
    for name in more:
        if name not in (_DIGESTS, _ENTRY):
            raise NewerFormatError(
                f"A thread of the bundle has {name!r}, which this release does not know.",
                hint="Upgrade threadkeep: pip install --upgrade threadkeep",
            )
    digests = more.get(_DIGESTS)
    return None if digests is None else tuple(_checked((_BYTES,) * count, digests))


def _plain(body: bytes) -> bytes:
    if zstandard.frame_content_size(body) > _MOST:
        raise ValueError("it is larger than any thread may be")
    return zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)


def _all(make: Callable[..., T], kinds: tuple[Any, ...], rows: Any) -> tuple[T, ...]:
    return tuple([make(*_checked(kinds, row)) for row in rows])


def _checked(kinds: tuple[Any, ...], values: Any) -> Any:
    """The values, if each is of one of its kinds."""
    for kind, value in zip(kinds, values, strict=True):
        if type(value) not in kind:
            raise TypeError(f"{type(value).__name__} stands where it must not")
    return values
