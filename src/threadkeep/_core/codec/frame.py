"""Frames: the bytes of one stored segment, a run of encoded elements.

Integers are LEB128 varints unless noted:

    magic    1 byte   0xB7
    version  1 byte   high four bits: format version, low four bits: flags
    checksum 4 bytes  CRC-32 of the two bytes before and of all that follows, little endian
    [size of the body when decompressed, then a zstd frame]         if COMPRESSED
    [address of the whole frame, in place of the rest]              if ELSEWHERE
    body: element count; if more than one: how many bytes a size takes (1, 2, 4 or 8), the
          size of each element, little endian; the elements
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from zlib import crc32

import zstandard

from threadkeep._core.codec.format import newer
from threadkeep.errors import (
    CodecError,
    CorruptionError,
    TamperedDataError,
    UnserializableError,
    WrongKeyError,
    invalid,
)

MAGIC = 0xB7
SEALED = 0xB8  # first byte of an encrypted value, whose other bytes `_core.sealing` describes
PADDED = 0xB9  # the same of one that was filled up
MOST_PADDING = 65536  # bytes
SEALED_OVERHEAD = 33
KEY_ID = 4  # bytes
VERSION = 1
COMPRESSED = 1
ELSEWHERE = 4
_KNOWN_FLAGS = COMPRESSED | ELSEWHERE
_HEADER = 6  # bytes: magic, version and flags, checksum
_WIDTHS = {1: "B", 2: "H", 4: "I", 8: "Q"}  # bytes of a size -> its form in `struct`

MAX_BODY = 1 << 30
"""Bytes that one segment may hold uncompressed. SQLite's limit of a value is lower, and no damaged
or hostile size can make a reader allocate more."""


@dataclass(frozen=True)
class Compression:
    """Compression of segments with zstd.

    Args:
        level: zstd level from 1 (fast) to 22 (small). 0 or None turns compression off.
        over: segments of at most so many bytes stay uncompressed.
        ratio: greatest share, 0 to 1, that a compressed segment may take of the original.

    Raises:
        InvalidArgumentError: a value is out of its range.
    """

    level: int | None = 3
    over: int = 4096
    ratio: float = 0.8

    def __post_init__(self) -> None:
        if self.level is not None and (type(self.level) is not int or not 0 <= self.level <= 22):  # noqa: PLR2004 - zstd's own
            raise invalid("level", self.level, "Use a whole number from 0 (off) to 22.")
        if type(self.over) is not int or not 0 <= self.over <= MAX_BODY:
            raise invalid("over", self.over, f"Use a number of bytes from 0 to {MAX_BODY}.")
        if type(self.ratio) not in (int, float) or not 0 < self.ratio <= 1:
            raise invalid("ratio", self.ratio, "Use a share above 0 and up to 1.")


_AS_IT_IS = Compression(level=None)


def pack(elements: Sequence[bytes], compression: Compression) -> bytes:
    """Return the frame of the elements. Raises UnserializableError over `MAX_BODY`."""
    body = _join(elements)
    if len(body) > MAX_BODY:
        raise UnserializableError(
            f"A segment of {len(body)} bytes is over the limit of {MAX_BODY}.",
            hint="Store such data in a file or an object store, and keep its address in the state.",
        )
    flags = 0
    if compression.level and len(body) > compression.over:
        packed = pack_varint(len(body)) + _compress(body, compression.level)
        if len(packed) <= compression.ratio * len(body):
            flags, body = COMPRESSED, packed
    head = _HEADS[flags]
    return head + crc32(body, crc32(head)).to_bytes(4, "little") + body


def pack_elsewhere(place: bytes) -> bytes:
    """Return the frame that replaces one that was moved to `place`."""
    head = _HEADS[ELSEWHERE]
    return head + crc32(place, crc32(head)).to_bytes(4, "little") + place


def elsewhere(data: bytes) -> bytes | None:
    """Return the place that a frame was moved to, or None if it was not moved."""
    if not data.startswith(_HEADS[ELSEWHERE]):
        return None
    _check(data)
    return data[_HEADER:]


def opened_size(data: bytes) -> int:
    """Count the bytes that `unpack` decompresses, or 0 for an uncompressed or damaged frame."""
    if not data.startswith(_HEADS[COMPRESSED]) or not is_intact(data):
        return 0
    try:
        size, _ = read_varint(data, _HEADER)
    except CorruptionError:
        return 0
    return size if size <= MAX_BODY else 0


def full_size(data: bytes) -> int:
    """Return about how many bytes an intact frame takes without compression."""
    return read_varint(data, _HEADER)[0] if data[1] & COMPRESSED else len(data)


def uncompressed(data: bytes) -> bytes:
    """Return an uncompressed frame of the same elements, or the same bytes if damaged."""
    try:
        return pack(unpack(data), _AS_IT_IS) if opened_size(data) else data
    except CorruptionError:
        return data


def unpack(data: bytes, count: int | None = None) -> list[bytes]:
    """Return the elements of a frame.

    Raises CorruptionError if the frame is damaged, or does not hold `count` elements (if given).
    """
    found = split(data, count)  # (most frames)
    if found is not None:
        return found
    flags, body = _check(data), data[_HEADER:]
    if flags & ELSEWHERE:
        raise TamperedDataError(
            "A segment was moved to the cold store, which no longer holds its original bytes.",
            hint="Restore the object named in the log from a backup of the cold store.",
        )
    if flags & COMPRESSED:
        body = _decompress(body)
    return _split(body, count)


def portable_split(data: bytes, count: int | None) -> list[bytes] | None:
    """Return the elements of a plain frame, or None for another or a damaged one."""
    if data[:2] != _PLAIN or len(data) <= _HEADER or not is_intact(data):
        return None
    return _split(data[_HEADER:], count)


_HEADS = [bytes((MAGIC, VERSION << 4 | flags)) for flags in range(8)]
_PLAIN = _HEADS[0]


def unreadable(data: bytes, message: str) -> CodecError:
    """Return the error for bytes that cannot be read, which may be encrypted ones."""
    if not is_sealed(data):
        return CorruptionError(message)
    return WrongKeyError(
        f"The stored value is encrypted with key {key_of(data)}, and no keys were given.",
        hint="Open the store with keys=, a threadkeep.KeyRing (in the shell: TK_KEYS or"
        " THREADKEEP_KEYS_FILE).",
    )


def not_given(what: str, key: str) -> WrongKeyError:
    """Return the error for something that is encrypted with a key that the program lacks."""
    return WrongKeyError(
        f"{what} is encrypted with key {key}, which was not given.",
        hint=f"Give keys= or a key_store= that includes {key}.",
    )


def is_sealed(data: bytes) -> bool:
    """Return True if these may be sealed bytes (see `_core.sealing`)."""
    return len(data) >= SEALED_OVERHEAD and data[0] in (SEALED, PADDED)


def key_of(sealed: bytes) -> str:
    """Return the id of the root key of sealed bytes."""
    return sealed[1 : 1 + KEY_ID].hex()


def is_intact(data: bytes) -> bool:
    """Return True if the checksum of a frame matches its bytes."""
    return crc32(data[_HEADER:], crc32(data[:2])) == int.from_bytes(data[2:_HEADER], "little")


def _check(data: bytes) -> int:
    if len(data) <= _HEADER or data[0] != MAGIC:
        raise unreadable(data, f"These {len(data)} bytes are not a threadkeep segment.")
    if not is_intact(data):
        raise CorruptionError("The segment's checksum does not match its bytes.")
    version, flags = data[1] >> 4, data[1] & 15
    if version > VERSION or (version == VERSION and flags & ~_KNOWN_FLAGS):
        raise newer(
            f"The segment has format version {version} with flags {flags:#x}; "
            f"this release reads version {VERSION}."
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
    return b"".join((pack_varint(count), bytes((width,)), table, *elements))


def _split(body: bytes, expected: int | None) -> list[bytes]:
    """Cut a body into its elements. The sizes must account for every byte."""
    count, at = read_varint(body, 0)
    if expected is not None and count != expected:  # (before allocating memory for them)
        raise CorruptionError("A stored segment holds a wrong number of elements.")
    if count == 1:
        return [body[at:]]
    sizes: tuple[int, ...] = ()
    if count:
        width = body[at] if at < len(body) else 0
        try:
            sizes = struct.unpack_from(f"<{count}{_WIDTHS[width]}", body, at + 1)
        except (KeyError, struct.error) as error:
            raise CorruptionError(
                f"A segment of {len(body)} bytes cannot hold {count} elements."
            ) from error
        at += 1 + count * width
    bounds = list(accumulate(sizes, initial=at))
    if bounds[-1] != len(body):
        raise CorruptionError("The segment's element sizes do not add up to its length.")
    return [body[start:stop] for start, stop in pairwise(bounds)]


def _decompress(data: bytes) -> bytes:
    """Decompress a body. The declared size bounds the allocation."""
    size, at = read_varint(data, 0)
    packed = data[at:]
    try:
        declared = zstandard.frame_content_size(packed)
        if size != declared or not may_hold(packed, size):
            raise CorruptionError(f"The segment declares {size} bytes, its content {declared}.")
        return _contexts.decompressor.decompress(packed, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptionError("The segment cannot be decompressed.") from error


def may_hold(packed: bytes, size: int) -> bool:
    """Return True if a zstd frame can hold `size` bytes, `MAX_BODY` at most.

    Its smallest block has 4 bytes and stands for 128 KiB.
    """
    return 0 <= size <= min(MAX_BODY, len(packed) << 15)


class _Contexts(threading.local):
    """zstd contexts: each serves one thread at a time."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def _compress(body: bytes, level: int) -> bytes:
    compressor = _contexts.compressors.get(level)
    if compressor is None:
        compressor = _contexts.compressors[level] = zstandard.ZstdCompressor(level=level)
    return compressor.compress(body)


_MORE = 0x80  # the bit that marks another byte to follow
_MOST = 10  # bytes: enough for 64 bits
_SMALL = [bytes((n,)) for n in range(_MORE)]


def pack_varint(number: int) -> bytes:
    if number < _MORE:
        return _SMALL[number]
    out = bytearray()
    while number >= _MORE:
        out.append(number & (_MORE - 1) | _MORE)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at `at`, and its end."""
    number = shift = 0
    for byte in data[at : at + _MOST]:
        at += 1
        number |= (byte & (_MORE - 1)) << shift
        if byte < _MORE:
            return number, at
        shift += 7
    raise CorruptionError("Stored bytes end inside a number.")


try:
    from threadkeep._core.codec._reading import split
except ImportError:  # it could not be compiled
    split = portable_split
