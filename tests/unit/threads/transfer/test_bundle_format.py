"""Bundles as bytes: written threads come back, and damage always raises."""

import dataclasses
import io
import struct
import tracemalloc
from zlib import crc32

import ormsgpack
import pytest
import zstandard

from threadkeep._core.codec.format import Tag
from threadkeep._core.codec.frame import Compression, pack, uncompressed
from threadkeep._core.engine.elements import make_patch
from threadkeep._core.engine.model import CheckpointRow, Segment, WriteRow
from threadkeep._core.engine.rows import with_manifest
from threadkeep.errors import CorruptionError, NewerFormatError, NotOursError, ThreadkeepError
from threadkeep.threads.transfer import digest
from threadkeep.threads.transfer.bundle_format import (
    ARCHIVE,
    BUNDLE,
    MAGIC,
    BundleWriter,
    read_bundle,
    read_threads,
)
from threadkeep.threads.transfer.whole_thread import WholeThread

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


def test_a_damaged_size_allocates_no_memory():
    head = struct.pack("<cQI", b"T", 2**33, 0)
    with pytest.raises(CorruptionError, match="cut short"):
        read(MAGIC + b"\1" + head + b"few bytes")
    with pytest.raises(CorruptionError, match="unknown kind or size"):
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


SMALL = BUNDLE._replace(beyond=1 << 20)
PLAIN = Compression(level=None)
ZEROS = pack([bytes(1 << 24)], Compression())  # 16 MB in 500 bytes
NOTHINGS = pack([b""] * (1 << 18), Compression())
MANIFEST = pack([ormsgpack.packb([[]] * (1 << 16))], Compression())
GROWING = [  # each is a patch of the one before, and 100 times as long
    b"\0" * 9,
    *[b"\xc1" + bytes((Tag.PATCH, 1, n)) + make_patch(b"", bytes(1000 * 100**n)) for n in range(3)],
]


def rows(segments, keyframe=0):
    """Return a thread as a bundle has it, with a checkpoint that refers to a keyframe."""
    row = CheckpointRow("", "a", None, 0, 0, 0, 0, "{}", None, 1, keyframe, b"")
    row = with_manifest(row, ormsgpack.packb([4, None, {}, [], [], [], [], 0]))
    return ormsgpack.packb(["t", 0, segments, [list(row)], [], {}])


HOSTILE = {
    "one record": [bytes(1 << 22)],
    "records together": [rows([[1, 0, 1, pack([bytes(600_000)], PLAIN)]])] * 9,
    "objects": [b"\x96\xa1t\x00\xdc\xff\xff" + b"\x90" * 65535 + b"\x90\x90\x80"],
    "objects in objects": [ormsgpack.packb(["t", 0, [], [], [], {"digests": [[]] * (1 << 15)}])],
    "segments": [rows([[1, n, 1, ZEROS] for n in range(9)])],
    "elements": [rows([[1, 0, 1 << 18, NOTHINGS]])],
    "elements that were not declared": [rows([[1, 0, 2, NOTHINGS]])],
    "a manifest": [rows([[1, 0, 1, MANIFEST]])],
    "patches": [rows([[1, 0, len(GROWING), pack(GROWING, Compression())]], len(GROWING) - 1)],
}


def verify(file):
    for whole, _ in read_threads(file, SMALL):
        digest.of_checkpoints(whole)


@pytest.mark.parametrize("plains", HOSTILE.values(), ids=HOSTILE)
def test_a_small_file_takes_little_memory(plains):
    """The limits hold for any declared size: 1 MB here (else 64 MB, or 200 times the size)."""
    file = io.BytesIO()
    writer = BundleWriter(file)
    for plain in plains:
        writer._record(b"T", zstandard.compress(plain))
    assert file.tell() < 4000
    file.seek(0)
    tracemalloc.start()
    with pytest.raises(CorruptionError):
        verify(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


COMPRESSES = {
    "rows": Segment(1, 0, 1, bytes(1 << 22)),
    "a segment": Segment(1, 0, 1, ZEROS),
    "elements": Segment(1, 0, 1 << 18, NOTHINGS),
    "a damaged segment": Segment(1, 0, 2**63 - 1, ZEROS[:-1]),
}


@pytest.mark.parametrize("segment", COMPRESSES.values(), ids=COMPRESSES)
def test_what_compresses_too_well_is_written_as_it_is(segment):
    whole = dataclasses.replace(MANY, segments=(segment,))
    file = io.BytesIO()
    writer = BundleWriter(file, SMALL)
    for thread in (DELETED, whole, whole, MANY):
        writer.add(thread)
    writer.end()
    file.seek(0)
    read = [found for found, _ in read_threads(file, SMALL)]
    plain = uncompressed(segment.data)
    assert read[2] in (whole, dataclasses.replace(whole, segments=(segment._replace(data=plain),)))
    assert read == [DELETED, read[1], read[2], MANY]
    file = io.BytesIO()
    BundleWriter(file, ARCHIVE).add(whole)  # (the store has an archive's digest)
    assert file.tell() < 4000
