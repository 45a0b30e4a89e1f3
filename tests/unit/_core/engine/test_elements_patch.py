"""Byte patches: every version comes back, and damage is always reported."""

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep._core.codec import NativeCodec
from threadkeep._core.codec.frame import pack_varint, read_varint
from threadkeep._core.engine import elements
from threadkeep.errors import CorruptionError

PIECES = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda part, times: part * times, st.binary(min_size=1, max_size=9), st.integers(1, 400)
    ),
    st.builds(
        lambda seed, size: random.Random(seed).randbytes(size), st.integers(), st.integers(0, 3000)
    ),
)
TEXTS = st.lists(PIECES, max_size=6).map(b"".join)


@st.composite
def edited(draw):
    """A version before and after a few edits: cuts, insertions, moved and doubled parts."""
    old = new = draw(TEXTS)
    for _ in range(draw(st.integers(0, 4))):
        a, b = sorted(draw(st.tuples(st.integers(0, len(new)), st.integers(0, len(new)))))
        how = draw(st.sampled_from(["cut", "insert", "move", "double", "replace"]))
        part = draw(st.binary(max_size=80))
        new = {
            "cut": new[:a] + new[b:],
            "insert": new[:a] + part + new[a:],
            "move": new[:a] + new[b:] + new[a:b],
            "double": new[:b] + new[a:],
            "replace": new[:a] + part + new[b:],
        }[how]
    return old, new


@given(edited())
def test_an_edited_version_comes_back(versions):
    old, new = versions
    made = elements.make_patch(old, new)
    assert elements.apply_patch(old, made) == new
    assert elements.full_size(elements._PATCH + bytes(2) + made) == len(new)


@given(TEXTS, TEXTS)
def test_any_version_comes_back(old, new):
    assert elements.apply_patch(old, elements.make_patch(old, new)) == new


def lines(count):
    return [b"line %07d of a long document\n" % i for i in range(count)]


@pytest.mark.parametrize("at", [0, 17, 15_000, 29_999])
def test_one_line_of_a_megabyte_costs_a_line(at):
    document = lines(30_000)
    old = b"".join(document)
    document[at] = b"another line\n"
    made = elements.make_patch(old, b"".join(document))
    assert elements.apply_patch(old, made) == b"".join(document)
    assert len(made) < 120


@pytest.mark.parametrize("size", [70_000, 1_000_000, 6_000_000])
def test_an_edit_that_changes_the_length_in_the_header(size):
    codec = NativeCodec()
    noise = random.Random(2).randbytes(size)
    old = codec.encode(noise)
    new = codec.encode(noise[: size - 100] + b"some more" + noise[size - 100 :])
    made = elements.make_patch(old, new)
    assert elements.apply_patch(old, made) == new
    assert len(made) < 40


def test_far_edits_of_a_large_text():
    document = lines(200_000)
    old = b"".join(document)
    for at in range(5_000, 200_000, 10_000):
        document[at] = b"an edit of another length\n"
    made = elements.make_patch(old, b"".join(document))
    assert elements.apply_patch(old, made) == b"".join(document)
    assert len(made) < len(old) // 100


def test_two_far_edits_do_not_cost_what_lies_between():
    document = lines(30_000)
    old = b"".join(document)
    document[10] = b"the first edit\n"
    document[29_000] = b"the second edit\n"
    made = elements.make_patch(old, b"".join(document))
    assert elements.apply_patch(old, made) == b"".join(document)
    assert len(made) < len(old) // 100


def test_a_moved_block_is_found():
    noise = random.Random(1).randbytes(200_000)
    moved = noise[50_000:] + noise[:50_000]
    made = elements.make_patch(noise, moved)
    assert elements.apply_patch(noise, made) == moved
    assert len(made) < 2_000


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"", b""),
        (b"", b"new"),
        (b"old", b""),
        (b"same", b"same"),
        (b"aaa", b"aaaa"),
        (b"ab" * 5, b"ab" * 6),
    ],
)
def test_edges(old, new):
    assert elements.apply_patch(old, elements.make_patch(old, new)) == new


def only_corruption(old, damaged):
    """Any bytes give a version, or this one error."""
    with suppress(CorruptionError):
        assert isinstance(elements.apply_patch(old, damaged), bytes)
    with suppress(CorruptionError):
        assert elements.full_size(elements._PATCH + bytes(2) + damaged) >= 0


@given(edited(), st.data())
def test_a_damaged_patch_is_named(versions, data):
    old, new = versions
    made = bytearray(elements.make_patch(old, new))
    how = data.draw(st.sampled_from(["flip", "cut", "grow"]))
    at = data.draw(st.integers(0, len(made) - 1))
    if how == "flip":
        made[at] ^= data.draw(st.integers(1, 255))
    elif how == "cut":
        del made[at:]
    else:
        made[at:at] = data.draw(st.binary(min_size=1, max_size=12))
    only_corruption(old, bytes(made))


@pytest.mark.parametrize("size", [1 << 40, 1 << 62, 1 << 200])
def test_a_patch_that_claims_to_be_huge(size):
    head = pack_varint(0) * 3 + pack_varint(size)
    frame = elements.make_patch(b"", b"a" * 1000)[-20:]
    with pytest.raises(CorruptionError):
        elements.apply_patch(b"old", head + b"\x01" + frame)
    with pytest.raises(CorruptionError):
        elements.apply_patch(b"old", head + b"\x00abc")


def test_a_patch_against_another_base_is_named():
    made = elements.make_patch(b"x" * 500 + b"1" + b"y" * 500, b"x" * 500 + b"2" + b"y" * 500)
    with pytest.raises(CorruptionError):
        elements.apply_patch(b"x" * 90, made)


@given(st.integers(0, (1 << 64) - 1), st.binary(max_size=5), st.binary(max_size=5))
def test_numbers(value, before, after):
    data = before + pack_varint(value) + after
    assert read_varint(data, len(before)) == (value, len(data) - len(after))
