"""Byte patches: a large value stored as its difference to an earlier version.

A patch keeps what both versions share at the front and at the back and replaces the
middle. Where the middle is long itself, the new one is compressed with the old one as
dictionary, which finds what moved or stayed in between. The very first bytes are given
anew where they differ: there an encoding keeps its length, which most edits change.
Pure functions over bytes.

Layout: the head's length and the head, three more LEB128 numbers (where the middle
begins, bytes kept at the back, length of the new middle), one byte (0 the middle follows
as it is, 1 as a zstd frame), the middle.
"""

from __future__ import annotations

import zstandard

from threadkeep.codec import frame
from threadkeep.codec.frame import MAX_BODY
from threadkeep.errors import CorruptionError

_PLAIN, _ZSTD = 0, 1
_SHORTEST_DICTIONARY = 8  # bytes; zstd takes none below
_HEAD = 64  # bytes at the front that may be given anew
_LARGE_BASE = 1 << 19
_COMPRESS_OVER = 64  # a zstd frame costs a dozen bytes: below this it cannot win


def diff(old: bytes, new: bytes) -> bytes:
    """A patch that `apply(old, patch)` turns into `new`."""
    first = _head(old, new)
    front = _shared(old, new, first)
    back = _shared_back(old, new, min(len(old), len(new)) - front)
    middle = new[front : len(new) - back]
    head = (
        frame.pack_varint(first)
        + new[:first]
        + frame.pack_varint(front)
        + frame.pack_varint(back)
        + frame.pack_varint(len(middle))
    )
    if len(middle) > _COMPRESS_OVER:
        packed = _compress(middle, old[front : len(old) - back])
        if len(packed) < len(middle):
            return head + bytes((_ZSTD,)) + packed
    return head + bytes((_PLAIN,)) + middle


def apply(old: bytes, patch: bytes) -> bytes:
    """The version that `patch` makes of `old`.

    Raises:
        CorruptionError: the patch is damaged or was not made against `old`.
    """
    try:
        first, at = frame.read_varint(patch, 0)
        head, at = patch[at : at + first], at + first
        front, back, size, at = _bounds(patch, at)
        if size > MAX_BODY:  # no value is longer: nothing is to be allocated for it
            raise CorruptionError("A stored patch claims to make more than a segment can hold.")
        how, middle = patch[at], patch[at + 1 :]
        if how == _ZSTD:
            middle = _decompress(middle, old[front : len(old) - back], size)
    except (IndexError, zstandard.ZstdError) as exc:
        raise CorruptionError("A stored patch is damaged.") from exc
    if len(middle) != size or len(head) != first or first > front or front + back > len(old):
        raise CorruptionError("A stored patch does not fit its base.")
    return b"".join((head, old[first:front], middle, old[len(old) - back :]))


def full_size(patch: bytes) -> int:
    """The length of what the patch makes."""
    first, at = frame.read_varint(patch, 0)
    front, back, size, _ = _bounds(patch, at + first)
    return front + back + size


def _bounds(patch: bytes, at: int) -> tuple[int, int, int, int]:
    """The three numbers that begin at `at`, and where they end."""
    front, at = frame.read_varint(patch, at)
    back, at = frame.read_varint(patch, at)
    size, at = frame.read_varint(patch, at)
    return front, back, size, at


def _head(old: bytes, new: bytes) -> int:
    """How many of the first bytes differ, up to the last one that does."""
    most = min(_HEAD, len(old), len(new))
    if old[:most] == new[:most]:
        return 0
    return 1 + max(i for i in range(most) if old[i] != new[i])


def _shared(a: bytes, b: bytes, start: int) -> int:
    """Where both first differ from `start` on: steps of growing length, then halving ones."""
    low, high = start, min(len(a), len(b))
    step = 256
    while low < high and a[low : low + step] == b[low : low + step]:
        low = min(low + step, high)
        step *= 2
    high = min(low + step, high)
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _shared_back(a: bytes, b: bytes, most: int) -> int:
    """How many bytes both end with, at most `most`."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if _same_end(a, b, low, middle):
            low = middle
        else:
            high = middle - 1
    return low


def _same_end(a: bytes, b: bytes, start: int, stop: int) -> bool:
    """Whether the bytes between `start` and `stop`, counted from the end, are the same."""
    return a[len(a) - stop : len(a) - start] == b[len(b) - stop : len(b) - start]


def _parameters(size: int, base: int) -> zstandard.ZstdCompressionParameters:
    window = max(10, min(27, (size + base).bit_length() + 1))
    # The level's own table is too small for a large base: most of it would not be found.
    table = {"hash_log": min(24, base.bit_length() - 2)} if base > _LARGE_BASE else {}
    return zstandard.ZstdCompressionParameters.from_level(
        3, window_log=window, write_content_size=False, write_checksum=False, **table
    )


def _dictionary(base: bytes) -> zstandard.ZstdCompressionDict | None:
    if len(base) < _SHORTEST_DICTIONARY:
        return None
    return zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _compress(data: bytes, base: bytes) -> bytes:
    return zstandard.ZstdCompressor(
        dict_data=_dictionary(base), compression_params=_parameters(len(data), len(base))
    ).compress(data)


def _decompress(data: bytes, base: bytes, size: int) -> bytes:
    context = zstandard.ZstdDecompressor(dict_data=_dictionary(base), max_window_size=1 << 28)
    return context.decompress(data, max_output_size=size)
