"""Frames: the bytes of one stored segment, a run of encoded elements.

Only the framing lives here: layout, checksum, compression. Invariant: `unpack(pack(x))`
is `x`, and whatever else `unpack` is given ends in a typed error.

Layout, integers as LEB128 varints unless said otherwise:

    magic    1 byte   0xB7
    version  1 byte   high four bits: format version; low four bits: flags
    checksum 4 bytes  CRC-32 of the two bytes before and of all that follows, little endian
    [cipher id, key id, nonce: each a length byte and its bytes]    if ENCRYPTED
    [size of the body when decompressed, then a zstd frame]         if COMPRESSED
    [where the whole frame lies, in place of the rest]              if ELSEWHERE
    body: element count; if more than one: how many bytes a size takes (1, 2, 4 or 8), the
          size of each element, little endian; the elements

Sizes of one width, because they are read at the speed of C: 200 of them in 3 us, where
varints take 70. Most frames hold one element, and then its size is what is left.

CRC-32 because it guards against accidents (a torn page, a flipped bit), not against an
adversary: it is in every Python, costs 0.1 us for 200 bytes, finds every burst of up to 32 bits,
and takes 4 bytes of a frame that often holds 200. It covers the stored form, so that
nothing is decompressed that is not whole. An adversary is what the cipher is for: an
authenticated one, with the header as its associated data.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from zlib import crc32

import zstandard

from threadkeep.codec import varint
from threadkeep.errors import (
    CorruptionError,
    NewerFormatError,
    UnserializableError,
    WrongKeyError,
    invalid,
)

MAGIC = 0xB7
VERSION = 1
COMPRESSED = 1
ENCRYPTED = 2
ELSEWHERE = 4
_KNOWN_FLAGS = COMPRESSED | ENCRYPTED | ELSEWHERE
_HEADER = 6  # bytes: magic, version and flags, checksum
_WIDTHS = {1: "B", 2: "H", 4: "I", 8: "Q"}  # bytes of a size -> its form in `struct`

MAX_BODY = 1 << 30
"""Bytes that one segment may hold uncompressed: SQLite's own limit for a value is lower,
and no damaged or hostile size can make a reader allocate more."""


@dataclass(frozen=True)
class Compression:
    """When segments are compressed, with zstd.

    Args:
        level: zstd level from 1 (fast) to 22 (small); 0 or None turns compression off.
        over: bytes; what is not longer than this is stored as it is.
        ratio: the compressed form is kept only if it takes at most this share, 0 to 1.

    Raises:
        InvalidArgumentError: a value is out of its range.
    """

    level: int | None = 3
    over: int = 1024
    ratio: float = 0.8

    def __post_init__(self) -> None:
        if self.level is not None and not _is_int_within(self.level, 0, 22):
            raise invalid("level", self.level, "Use a whole number from 0 (off) to 22.")
        if not _is_int_within(self.over, 0, MAX_BODY):
            raise invalid("over", self.over, f"Use a number of bytes from 0 to {MAX_BODY}.")
        if type(self.ratio) not in (int, float) or not 0 < self.ratio <= 1:
            raise invalid("ratio", self.ratio, "Use a share above 0 and up to 1.")


def pack(elements: Sequence[bytes], compression: Compression) -> bytes:
    """Return the frame that holds the elements, in order.

    Raises:
        UnserializableError: the elements take more than `MAX_BODY` bytes together.
    """
    body = _join(elements)
    if len(body) > MAX_BODY:
        raise UnserializableError(
            f"A segment of {len(body)} bytes is over the limit of {MAX_BODY}.",
            hint="Keep such data in a file or an object store, and its address in the state.",
        )
    flags = 0
    if compression.level and len(body) > compression.over:
        packed = varint.pack(len(body)) + _compressor(compression.level).compress(body)
        if len(packed) <= compression.ratio * len(body):
            flags, body = COMPRESSED, packed
    head = _HEADS[flags]
    return head + crc32(body, crc32(head)).to_bytes(4, "little") + body


def pack_elsewhere(place: bytes) -> bytes:
    """Return the frame that stands for one that lies elsewhere; `place` says where."""
    head = _HEADS[ELSEWHERE]
    return head + crc32(place, crc32(head)).to_bytes(4, "little") + place


def elsewhere(data: bytes) -> bytes | None:
    """Return what says where a frame lies; None of one that is here.

    Raises:
        CorruptionError: what should say it is damaged.
    """
    if not data.startswith(_HEADS[ELSEWHERE]):
        return None
    _check(data)
    return data[_HEADER:]


def unpack(data: bytes) -> list[bytes]:
    """Return the elements of a frame.

    Raises:
        NewerFormatError: a newer release wrote the frame.
        CorruptionError: the bytes are no frame, damaged or cut short; or it lies elsewhere.
        WrongKeyError: they are encrypted.
    """
    body = data[_HEADER:]
    if (
        data[:2] == _PLAIN
        and body
        and crc32(body, _PLAIN_CRC) == int.from_bytes(data[2:6], "little")
    ):
        return [body[1:]] if body[0] == 1 else _split(body)  # most frames
    flags = _check(data)
    if flags & ELSEWHERE:
        raise CorruptionError(
            "A segment lies in the cold store, which did not have it as it was put there.",
            hint="Put the object back from a backup of the cold store; the log names it.",
        )
    if flags & ENCRYPTED:
        raise WrongKeyError(
            "The segment is encrypted, and no key was given.",
            hint="Open the store with the key that it was written with.",
        )
    if flags & COMPRESSED:
        body = _decompress(body)
    return _split(body)


_HEADS = [bytes((MAGIC, VERSION << 4 | flags)) for flags in range(8)]
_PLAIN, _PLAIN_CRC = _HEADS[0], crc32(_HEADS[0])
_local = threading.local()  # zstd contexts serve one thread at a time


def _check(data: bytes) -> int:
    """Return the frame's flags once magic, version and checksum hold."""
    if len(data) <= _HEADER or data[0] != MAGIC:
        raise CorruptionError(f"These {len(data)} bytes are not a threadkeep segment.")
    if crc32(data[_HEADER:], crc32(data[:2])) != int.from_bytes(data[2:_HEADER], "little"):
        raise CorruptionError("The segment's checksum does not match its bytes.")
    version, flags = data[1] >> 4, data[1] & 15
    if version > VERSION or (version == VERSION and flags & ~_KNOWN_FLAGS):
        raise NewerFormatError(
            f"The segment has format version {version} with flags {flags:#x}; "
            f"this release reads version {VERSION}.",
            hint="Upgrade threadkeep: pip install --upgrade threadkeep",
        )
    if version != VERSION:
        raise CorruptionError(f"There is no segment format version {version}.")
    return flags


def _join(elements: Sequence[bytes]) -> bytes:
    count = len(elements)
    if count == 1:
        return b"\x01" + elements[0]
    if not count:
        return b"\x00"
    sizes = [*map(len, elements)]
    width = next(width for width in _WIDTHS if max(sizes) < 1 << 8 * width)
    table = struct.pack(f"<{count}{_WIDTHS[width]}", *sizes)
    return b"".join((varint.pack(count), bytes((width,)), table, *elements))


def _split(body: bytes) -> list[bytes]:
    """Cut a body into its elements; sizes must account for every byte."""
    if body[:1] == b"\x01":
        return [body[1:]]
    count, at = varint.read(body, 0)
    if count == 1:
        return [body[at:]]
    sizes, at = _read_sizes(body, at, count) if count else ((), at)
    bounds = list(accumulate(sizes, initial=at))
    if bounds[-1] != len(body):
        raise CorruptionError("The segment's element sizes do not add up to its length.")
    return [body[start:stop] for start, stop in pairwise(bounds)]


def _read_sizes(body: bytes, at: int, count: int) -> tuple[tuple[int, ...], int]:
    """Return the sizes, and where the elements begin."""
    width = body[at] if at < len(body) else 0
    try:
        sizes = struct.unpack_from(f"<{count}{_WIDTHS[width]}", body, at + 1)
    except (KeyError, struct.error) as error:
        raise CorruptionError(
            f"A segment of {len(body)} bytes cannot hold {count} elements."
        ) from error
    return sizes, at + 1 + count * width


def _decompress(data: bytes) -> bytes:
    """Undo the compression; the declared size bounds what is allocated."""
    size, at = varint.read(data, 0)
    packed = data[at:]
    try:
        declared = zstandard.frame_content_size(packed)
        if size != declared or size > MAX_BODY:
            raise CorruptionError(f"The segment declares {size} bytes, its content {declared}.")
        return _decompressor().decompress(packed, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptionError("The segment cannot be decompressed.") from error


def _compressor(level: int) -> zstandard.ZstdCompressor:
    try:
        return _local.compressors[level]  # type: ignore[no-any-return]
    except AttributeError:
        _local.compressors = {}
    except KeyError:
        pass
    made = zstandard.ZstdCompressor(level=level)
    _local.compressors[level] = made
    return made


def _decompressor() -> zstandard.ZstdDecompressor:
    try:
        return _local.decompressor  # type: ignore[no-any-return]
    except AttributeError:
        made = _local.decompressor = zstandard.ZstdDecompressor()
        return made


def _is_int_within(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high
