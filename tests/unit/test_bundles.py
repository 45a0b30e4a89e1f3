"""Bundles as bytes: what was written comes back, and nothing that is damaged is taken for whole."""

from __future__ import annotations

import dataclasses
import io
import random
import struct
import tracemalloc
from zlib import crc32

import ormsgpack
import pytest
import zstandard

from threadkeep.engine.model import CheckpointRow, Segment, WriteRow
from threadkeep.errors import CorruptionError, NewerFormatError, NotOursError, ThreadkeepError
from threadkeep.transfer import bundle_format
from threadkeep.transfer.bundle_format import (
    MAGIC,
    BundleWriter,
    read_bundle,
)
from threadkeep.transfer.whole_thread import WholeThread

MANY = WholeThread(
    "thread \0 é 😀",
    1_763_000_000_000_000,
    (Segment(1, 0, 3, b"\0\xff data"), Segment(2**63 - 1, 5, 1, b"")),
    (
        CheckpointRow("", "a", None, 0, 0, 0, 17, "{}", None, 1, 0, b"manifest"),
        CheckpointRow("ns", "b", "a", 2**31, 2, 7, "no time", "{}", b"exact", 1, 2, b""),
    ),
    (WriteRow("", "a", 0, 0, "task", "~path", b"body", 1), WriteRow("", "a", 3, 1, "", "", b"", 2)),
)
DELETED = WholeThread("", 5, (), (), ())


def written(*threads):
    file = io.BytesIO()
    bundle = BundleWriter(file)
    for whole in threads:
        bundle.add(whole)
    bundle.end()
    return file.getvalue()


def read(data):
    return list(read_bundle(io.BytesIO(data)))


def test_what_was_written_comes_back():
    assert read(written(MANY, DELETED, MANY)) == [MANY, DELETED, MANY]
    assert read(written()) == []


def test_the_form_is_the_one_that_is_documented():
    """Read by hand, as docs/design/0006-bundles.md says."""
    data = written(DELETED)
    assert data[:9] == b"\x89TKB\r\n\x1a\n\x01"
    kind, size, crc = struct.unpack_from("<cQI", data, 9)
    body = data[22 : 22 + size]
    assert kind == b"T"
    assert crc == crc32(data[9:18] + body)
    assert ormsgpack.unpackb(zstandard.decompress(body)) == ["", 5, [], [], [], {}]
    assert data[22 + size :][:1] == b"E"
    assert struct.unpack_from("<Q", data, 22 + size + 13) == (1,)


def test_a_bundle_without_its_end_is_not_whole():
    data = written(MANY, DELETED)
    for size in range(8, len(data)):
        with pytest.raises(CorruptionError):
            read(data[:size])
    with pytest.raises(CorruptionError):
        read(data + b"\0")


def test_every_flipped_bit_is_noticed():
    data = written(MANY, DELETED)
    for at in range(len(data)):
        for bit in (1, 128):
            with pytest.raises(ThreadkeepError):
                read(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])


def test_records_that_were_moved_or_left_out_are_noticed():
    one, other = written(MANY)[9:-53], written(DELETED)[9:-53]
    whole = written(MANY, DELETED)
    assert whole[9:-53] == one + other
    for records in (other + one, one, one + other + other):
        with pytest.raises(CorruptionError, match="end does not match"):
            read(whole[:9] + records + whole[-53:])


def test_what_is_no_bundle():
    for data in (b"", b"text", MAGIC[:-1], b"SQLite format 3\0" * 9):
        with pytest.raises(NotOursError):
            read(data)


def test_a_bundle_of_a_newer_version_is_refused():
    with pytest.raises(NewerFormatError, match="version 2; this release reads version 1"):
        read(MAGIC + b"\2" + written()[9:])


def test_digests_are_kept_with_their_thread():
    noted = dataclasses.replace(MANY, digests=(b"1", b"2"))
    assert read(written(noted, DELETED)) == [noted, DELETED]


def test_what_a_later_release_adds_to_a_thread_is_not_lost_silently():
    with pytest.raises(NewerFormatError, match="'tags'"):
        read(forged(ormsgpack.packb(["t", 0, [], [], [], {"tags": ["a"]}])))


def forged(plain):
    """A bundle of one record whose checksums hold, whatever is in it."""
    body = zstandard.compress(plain)
    file = io.BytesIO()
    BundleWriter(file)._record(b"T", body)
    return file.getvalue()


@pytest.mark.parametrize(
    "thread",
    [
        b"\xc1",
        ormsgpack.packb(None),
        ormsgpack.packb(["t", 0, [], [], []]),
        ormsgpack.packb([1, 0, [], [], [], {}]),
        ormsgpack.packb(["t", True, [], [], [], {}]),
        ormsgpack.packb(["t", 0, [[1, 0, 1, "text"]], [], [], {}]),
        ormsgpack.packb(["t", 0, [[1, 0, 1]], [], [], {}]),
        ormsgpack.packb(["t", 0, [], [[""] * 12], [], {}]),
        ormsgpack.packb(["t", 0, [], [], [["", "a", 0, 0, "", "", None, 1]], {}]),
        ormsgpack.packb(["t", 0, 5, [], [], {}]),
        ormsgpack.packb(["t", 0, [], [], [], []]),
        ormsgpack.packb(["t", 0, [], [], [], {"digests": [b"one too many"]}]),
        ormsgpack.packb(["t", 0, [], [], [], {"digests": 5}]),
    ],
)
def test_what_stands_where_it_must_not(thread):
    with pytest.raises(CorruptionError, match="cannot be read"):
        read(forged(thread))


def test_a_size_that_nobody_has_written_asks_for_no_memory():
    head = struct.pack("<cQI", b"T", 2**33, 0)
    with pytest.raises(CorruptionError, match="cut short"):
        read(MAGIC + b"\1" + head + b"few bytes")
    with pytest.raises(CorruptionError, match="no such record"):
        read(MAGIC + b"\1" + struct.pack("<cQI", b"T", 2**60, 0))


def test_a_small_file_does_not_make_a_reader_allocate_much():
    head, body = written()[:9], zstandard.ZstdCompressor().compress(bytes(1 << 27))  # 4 kB
    record = struct.pack("<cQ", b"T", len(body))
    forged = head + record + struct.pack("<I", crc32(body, crc32(record))) + body
    tracemalloc.start()
    with pytest.raises(CorruptionError, match="declare 134217728"):
        read(forged)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 22


def test_a_small_file_does_not_hold_many_values():
    """An empty list or dict takes a byte in the file, and 72 in memory."""
    many = 1 << 22
    for one in (b"\x90", b"\x80", b"\xc0"):
        body = b"\x96\xa1t\x00\x90\x90\xdd" + many.to_bytes(4, "big") + one * many + b"\x80"
        bundle = forged(body)
        assert len(bundle) < 1000
        tracemalloc.start()
        with pytest.raises(CorruptionError, match="more values than"):
            read(bundle)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 3 * many


def drawn_value(random, level=0):
    sizes = [0, 1, 31, 32, 255, 256, 65_535, 65_536]
    made = [
        lambda: random.choice([None, True, False]),
        lambda: random.randrange(-(2**63), 2**64) >> random.randrange(64),
        random.random,
        lambda: "x" * random.choice(sizes),
        lambda: b"x" * random.choice(sizes),
        lambda: ormsgpack.Ext(1, b"x" * random.choice([1, 2, 4, 8, 16, *sizes[2:]])),
    ]
    if level < 3:
        length = random.choice([0, 1, 3, 15, 16, 17])
        made.append(lambda: [drawn_value(random, level + 1) for _ in range(length)])
        made.append(lambda: {str(n): drawn_value(random, level + 1) for n in range(length)})
    return random.choice(made)()


def count_of(value):
    if isinstance(value, dict):
        return 1 + sum(1 + count_of(part) for part in value.values())
    return 1 + sum(map(count_of, value)) if isinstance(value, list) else 1


@pytest.mark.parametrize("seed", range(100))
def test_values_are_counted_by_their_heads(seed):
    value = drawn_value(random.Random(seed))
    data, count = ormsgpack.packb(value), count_of(value)
    assert bundle_format._has_at_most(count, data)
    assert not bundle_format._has_at_most(count - 1, data)


def test_many_values_in_one_container():
    for value in ([0] * 65_536, {str(n): 0 for n in range(65_536)}):
        data, count = ormsgpack.packb(value), count_of(value)
        assert bundle_format._has_at_most(count, data)
        assert not bundle_format._has_at_most(count - 1, data)


def test_a_thread_that_would_be_compressed_too_well_is_written_as_it_is(monkeypatch):
    monkeypatch.setattr(bundle_format, "_BELIEVED", 1 << 16)
    whole = dataclasses.replace(MANY, segments=(Segment(1, 0, 1, bytes(1 << 18)),))
    assert len(written(whole)) > 1 << 18
    assert read(written(DELETED, whole, MANY)) == [DELETED, whole, MANY]
