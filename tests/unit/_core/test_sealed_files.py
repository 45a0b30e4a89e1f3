"""Sealed files: complete and unchanged, or an error."""

import random
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep._core.sealed_files import FRAME, MAGIC, FileKind, FileWriter, opened_file
from threadkeep.errors import (
    NewerFormatError,
    NotOursError,
    TamperedDataError,
    ThreadkeepError,
    WrongKeyError,
)
from threadkeep.keys import KeyRing

RING = KeyRing([b"k" * 32])
SEALER = RING.sealer("portable", "")
KIND = FileKind.BUNDLE
HEAD = 26  # bytes
RANDOM = random.Random(7)
LONG = RANDOM.randbytes(3 * FRAME + 5)


def sealed(*parts: bytes, about: str = "", flush: bool = False) -> bytes:
    file = BytesIO()
    writer = FileWriter(file, KIND, SEALER, about)
    for part in parts:
        writer.write(part)
        if flush:
            writer.flush()
    writer.end()
    return file.getvalue()


def opened(data: bytes, about: str = "") -> bytes:
    return opened_file(BytesIO(data), KIND, SEALER, about).read()


def frames(data: bytes) -> list[bytes]:
    found, at = [], HEAD
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little") & 0x7FFFFFFF
        found.append(data[at : at + 4 + size])
        at += 4 + size
    return found


@given(st.lists(st.integers(0, FRAME * 2 + 3), max_size=5), st.booleans())
def test_every_byte_comes_back(sizes: list[int], flush: bool) -> None:
    parts = [RANDOM.randbytes(size) for size in sizes]
    assert opened(sealed(*parts, flush=flush)) == b"".join(parts)


def test_the_same_bytes_are_never_sealed_alike() -> None:
    assert sealed(b"text")[HEAD:] != sealed(b"text")[HEAD:]


def test_a_frame_is_64_kilobytes() -> None:
    assert [len(frame) for frame in frames(sealed(LONG))] == [FRAME + 37] * 3 + [5 + 37]


def test_a_file_that_was_cut_at_any_byte_does_not_open() -> None:
    data = sealed(b"one", b"two", flush=True)
    for size in range(len(MAGIC), len(data)):
        with pytest.raises(TamperedDataError):
            opened(data[:size])


def test_frames_before_the_cut_are_read() -> None:
    data = sealed(b"one", b"two", flush=True)
    first, *_ = frames(data)
    file = opened_file(BytesIO(data[: HEAD + len(first)]), KIND, SEALER)
    assert file.read(3) == b"one"
    with pytest.raises(TamperedDataError, match="cut short"):
        file.read(1)


def test_frames_are_neither_reordered_nor_left_out_nor_repeated_nor_added() -> None:
    data, other = sealed(LONG), sealed(LONG)
    head, (a, b, c, d) = data[:HEAD], frames(data)
    assert opened(head + a + b + c + d) == LONG
    foreign = frames(other)
    for wrong in (
        (b, a, c, d),
        (a, c, d),
        (a, b, d),
        (a, b, b, c, d),
        (a, b, c, d, d),
        (a, foreign[1], c, d),
        (a, b, c, foreign[3]),
        (d,),
    ):
        with pytest.raises(TamperedDataError):
            opened(head + b"".join(wrong))
    unmarked = (len(d) - 4).to_bytes(4, "little") + d[4:]  # as if more frames followed
    with pytest.raises(TamperedDataError):
        opened(head + a + b + c + unmarked)


def test_a_file_about_something_else_does_not_open() -> None:
    assert opened(sealed(b"text", about="key"), "key") == b"text"
    with pytest.raises(TamperedDataError):
        opened(sealed(b"text", about="key"), "other")


def test_a_file_of_another_kind_does_not_open() -> None:
    data = sealed(b"text")
    with pytest.raises(NotOursError, match="not a quarantine file"):
        opened_file(BytesIO(data), FileKind.QUARANTINE, SEALER)
    with pytest.raises(TamperedDataError):  # (the kind cannot be changed)
        opened_file(BytesIO(data[:9] + b"Q" + data[10:]), FileKind.QUARANTINE, SEALER).read()
    assert [kind for kind in FileKind if kind.begins(data)] == [KIND]


def test_the_missing_key_is_named() -> None:
    data = sealed(b"text")
    for sealer in (None, KeyRing([b"o" * 32]).sealer("portable", "")):
        with pytest.raises(WrongKeyError, match=RING.current):
            opened_file(BytesIO(data), KIND, sealer).read()


def test_files_of_later_releases() -> None:
    data = sealed(b"text")
    with pytest.raises(NewerFormatError):
        opened(data[:8] + b"\x02" + data[9:])


def test_plain_files_are_read_as_they_are() -> None:
    file = BytesIO()
    writer = FileWriter(file, KIND)
    writer.write(b"text")
    writer.end()
    assert opened(file.getvalue()) == b"text"
    assert opened(b"") == b""


def test_changed_bytes_are_found() -> None:
    data = sealed(b"one", b"two", flush=True)
    for at in range(len(MAGIC), len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << RANDOM.randrange(8)
        with pytest.raises(ThreadkeepError):
            opened(bytes(changed))
