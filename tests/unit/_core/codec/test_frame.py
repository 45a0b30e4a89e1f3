"""Frames come back as they were packed; other bytes raise a typed error."""

import os
import random
from concurrent.futures import ThreadPoolExecutor
from zlib import crc32

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kit.selection import settings_of

from threadkeep._core.codec import Compression, pack, unpack
from threadkeep._core.codec.frame import (
    COMPRESSED,
    MAGIC,
    MAX_BODY,
    VERSION,
    elsewhere,
    pack_elsewhere,
)
from threadkeep.errors import (
    CodecError,
    CorruptionError,
    InvalidArgumentError,
    NewerFormatError,
    UnserializableError,
)

OFF = Compression(level=0)
ON = Compression(over=0, ratio=1.0)


def sealed(head: bytes, rest: bytes) -> bytes:
    """Return a frame of any content with the right checksum."""
    return head + crc32(rest, crc32(head)).to_bytes(4, "little") + rest


@given(st.lists(st.binary(max_size=300), max_size=40), st.sampled_from([OFF, ON, Compression()]))
@settings_of(quick=30, full=300)
def test_what_is_packed_comes_back(elements, compression) -> None:
    frame = pack(elements, compression)
    assert unpack(frame) == elements
    assert pack(elements, compression) == frame


def test_no_and_empty_elements() -> None:
    for elements in ([], [b""], [b"", b"", b"a"]):
        assert unpack(pack(elements, OFF)) == elements


def test_many_and_large_elements() -> None:
    elements = [os.urandom(size) for size in (0, 127, 128, 16_383, 16_384, 3_000_000)]
    assert unpack(pack(elements, Compression())) == elements
    assert unpack(pack([b"x"] * 100_000, ON)) == [b"x"] * 100_000


def test_a_small_element_costs_seven_bytes() -> None:
    assert len(pack([b"x" * 200], Compression())) == 207


def test_compression_only_where_it_is_long_enough_and_saves_enough() -> None:
    text, noise = b"word " * 1000, os.urandom(5000)
    assert len(pack([text], Compression())) < 200
    assert len(pack([noise], Compression())) == 5007
    assert len(pack([b"w" * 4000], Compression())) == 4007
    assert len(pack([text], Compression(over=6000))) == 5007
    assert len(pack([text], Compression(ratio=0.001))) == 5007
    for off in (Compression(level=0), Compression(level=None)):
        assert len(pack([text], off)) == 5007
    assert len(pack([text * 50], Compression(level=19))) <= len(pack([text * 50], Compression(1)))


@pytest.mark.parametrize(
    "arguments",
    [
        {"level": -1},
        {"level": 23},
        {"level": 2.5},
        {"level": True},
        {"level": "3"},
        {"over": -1},
        {"over": 1.5},
        {"over": None},
        {"ratio": 0},
        {"ratio": 1.1},
        {"ratio": -0.5},
        {"ratio": "0.8"},
        {"ratio": float("nan")},
        {"ratio": None},
    ],
)
def test_settings_out_of_range_are_refused(arguments) -> None:
    (name,) = arguments
    with pytest.raises(InvalidArgumentError, match=name):
        Compression(**arguments)


@pytest.mark.parametrize("compression", [OFF, ON], ids=["plain", "compressed"])
def test_damage_at_any_offset_is_found(compression) -> None:
    elements = [b"hello " * 20, b"", b"\xb7" * 5]
    frame = pack(elements, compression)
    for at in range(len(frame)):
        for bit in range(8):
            damaged = frame[:at] + bytes((frame[at] ^ 1 << bit,)) + frame[at + 1 :]
            with pytest.raises(CodecError):
                unpack(damaged)
        with pytest.raises(CodecError):
            unpack(frame[:at])
    with pytest.raises(CorruptionError):
        unpack(frame + b"\0")


def test_what_is_no_frame_says_so() -> None:
    for data in (b"", b"\xb7", b"SQLite format 3\0", b"\0" * 100):
        with pytest.raises(CorruptionError):
            unpack(data)


def test_a_newer_version_and_unknown_flags_are_told_apart_from_damage() -> None:
    for head in (bytes((MAGIC, VERSION + 1 << 4)), bytes((MAGIC, VERSION << 4 | 8))):
        with pytest.raises(NewerFormatError, match="Upgrade"):
            unpack(sealed(head, b"\0"))
    with pytest.raises(CorruptionError, match="no segment format version 0"):
        unpack(sealed(bytes((MAGIC, 0)), b"\0"))


def test_a_frame_that_lies_elsewhere_says_where() -> None:
    frame = pack_elsewhere(b"the place")
    assert frame.hex() == "b714" + frame[2:6].hex() + b"the place".hex()
    assert elsewhere(frame) == b"the place"
    assert elsewhere(pack([b"here"], Compression())) is None
    with pytest.raises(CorruptionError, match="cold store"):
        unpack(frame)
    for offset in range(2, len(frame)):
        damaged = bytearray(frame)
        damaged[offset] ^= 1
        with pytest.raises(CorruptionError, match="checksum"):
            elsewhere(bytes(damaged))


def test_sizes_that_lie_are_found_although_the_checksum_holds() -> None:
    plain = bytes((MAGIC, VERSION << 4))
    for body in (
        b"",
        b"\x80",
        b"\x00a",
        b"\x02",
        b"\x02\x01",
        b"\x02\x01\x01",
        b"\x02\x01\x01\x01a",
        b"\x02\x01\x01\x01abc",
        b"\x02\x03\x01\x00\x00\x01\x00\x00ab",
        b"\x02\x08" + b"\xff" * 16,
        b"\xff\xff\xff\x7f\x01a",
        b"\xff" * 12,
    ):
        with pytest.raises(CorruptionError):
            unpack(sealed(plain, body))


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    head = bytes((MAGIC, VERSION << 4 | COMPRESSED))
    huge = MAX_BODY + 1
    writer = zstandard.ZstdCompressor().compressobj(size=huge)
    start = writer.compress(b"\0" * (1 << 20)) + writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    declared = b"\x81\x80\x80\x80\x04"  # MAX_BODY + 1
    for size in (declared, b"\x0a"):
        with pytest.raises(CorruptionError, match="declares"):
            unpack(sealed(head, size + start))
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(b"\0" * 1000)
    with pytest.raises(CorruptionError):
        unpack(sealed(head, b"\xe8\x07" + unsized))
    short = zstandard.ZstdCompressor().compress(b"\0" * 1000)
    for packed in (short[:-3], short + b"\0", b"", b"not zstd"):
        with pytest.raises(CorruptionError):
            unpack(sealed(head, b"\xe8\x07" + packed))


def test_a_segment_over_the_limit_is_refused(monkeypatch) -> None:
    monkeypatch.setattr("threadkeep._core.codec.frame.MAX_BODY", 1000)
    with pytest.raises(UnserializableError, match="limit"):
        pack([b"x" * 1000], OFF)


def test_threads_do_not_share_compressors() -> None:
    elements = [random.Random(1).randbytes(50) * 100 for _ in range(5)]

    def turn(level: int) -> bool:
        return unpack(pack(elements, Compression(level % 5 + 1))) == elements

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(turn, range(200)))
