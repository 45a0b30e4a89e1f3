"""The next version continues the kind that a thread uses; versions of a kind have an order."""

import math
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.engine import exactly
from langgraph.checkpoint.memory import InMemorySaver

from threadkeep._core.versions import compare_versions, next_version
from threadkeep.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("current", "following"),
    [
        (None, 1),
        (0, 1),
        (41, 42),
        (1.0, 2.0),
        (2.5, 3.5),
        ("7", "8"),
        ("009", "010"),
        ("99", "100"),
    ],
)
def test_same_kind(current, following):
    assert exactly(next_version(current)) == exactly(following)


def test_versions_of_langgraphs_own_savers_go_on_in_order():
    theirs = InMemorySaver()
    version = theirs.get_next_version(None, None)
    for _ in range(12):
        ours = next_version(version)
        assert ours > version
        version = theirs.get_next_version(ours, None)
        assert version > ours


def test_two_branches_get_different_versions():
    assert next_version("00000003.5") != next_version("00000003.5")


UUID1 = "2c1d43b8-e6d7-11f0-9d10-0242ac120002"
UUID4 = "5b8f0f0e-3c58-4e0b-8a65-0d7c5a1f2f11"
UUID6 = "1f0e6d72-c1d4-63b8-9d10-0242ac120002"
UUID7 = "0190163d-8694-739b-aea5-966c26f8ad91"


@pytest.mark.parametrize("current", [UUID6, UUID7, "1f0a3c00-ffff-6fff-8000-000000000000"])
def test_the_next_uuid_sorts_after_as_text_and_differs_between_branches(current):
    one, other = next_version(current), next_version(current)
    assert one != other
    for following in (one, other):
        assert following > current
        assert compare_versions(current, following) == -1
        assert (UUID(following).version, UUID(following).variant) == (
            UUID(current).version,
            UUID(current).variant,
        )


@pytest.mark.parametrize("current", [2.0**53, 1e300, -1e300])
def test_the_next_float_is_greater_though_one_is_less_than_its_precision(current):
    assert next_version(current) > current


@pytest.mark.parametrize("current", [math.inf, math.nan, "ffffffff-ffff-6fff-8000-000000000000"])
def test_a_version_without_a_successor(current):
    with pytest.raises(InvalidArgumentError, match="no greater one"):
        next_version(current)


@pytest.mark.parametrize("current", [UUID1, UUID4])
def test_uuids_that_do_not_sort_by_time_are_refused_with_the_reason(current):
    for call in (next_version, lambda version: compare_versions(version, version)):
        with pytest.raises(InvalidArgumentError, match="sort by time"):
            call(current)


@pytest.mark.parametrize("current", ["", "x", "1x.5", ".5", "-1.5", "1_0", "٣"])
def test_unknown_kind(current):
    with pytest.raises(InvalidArgumentError, match="version"):
        next_version(current)


def test_from_many_threads():
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: next_version("1.0"), range(500)))
    assert len(set(found)) == 500
    assert all(version.startswith("2.") for version in found)


# -- order -----------------------------------------------------------------------------


def hashed(seq, branch):
    return f"{seq:032}.{branch}"


ORDERED = {
    "int": (1, 2),
    "negative": (-1, 0),
    "float": (1.5, 2.5),
    "int and float": (1, 1.5),
    "digits": ("9", "10"),
    "padded": (hashed(9, "0.9"), hashed(10, "0.1")),
    "without padding": ("9.0.9", "10.0.1"),
    "padding of two widths": ("09.0.9", "00010.0.1"),
    "one sequence": (hashed(2, "0.243798848838515"), hashed(2, "0.9")),
    "hex": (hashed(2, "0a1f"), hashed(2, "f00d")),
    "with a hash": ("2", "2.0.5"),
    "very long": ("9" * 5000, "1" + "0" * 5000),
    "UUIDs": ("1f0a3c00-0000-6fff-8000-000000000000", "1f0a3c00-0001-6000-8000-000000000000"),
}


@pytest.mark.parametrize(("less", "more"), ORDERED.values(), ids=ORDERED)
def test_order(less, more):
    assert compare_versions(less, more) == -1
    assert compare_versions(more, less) == 1
    assert compare_versions(less, less) == compare_versions(more, more) == 0


def test_equal_whatever_the_padding_or_the_kind_of_number():
    assert compare_versions("2.0.5", "0002.0.5") == 0
    assert compare_versions(1, 1.0) == 0
    assert compare_versions("0", "000") == 0


@given(st.lists(st.tuples(st.integers(0, 10**20), st.floats(0, 1)), min_size=2, max_size=2))
def test_order_is_langgraphs_for_its_own_versions(pairs):
    a, b = (f"{seq:032}.{branch:016}" for seq, branch in pairs)
    assert compare_versions(a, b) == (a > b) - (a < b)


@given(st.one_of(st.integers(0, 2**60), st.integers(0, 2**60).map(str)), st.booleans())
def test_the_next_version_comes_after(current, with_hash):
    if with_hash and isinstance(current, str):
        current += ".5"
    assert compare_versions(current, next_version(current)) == -1


@pytest.mark.parametrize("odd", ["", "x", "1x.5", ".5", "-1.5", "²", None, True, float("nan"), []])
def test_what_is_no_version_has_no_order(odd):
    for other in (odd, 1, "1"):
        for pair in ((odd, other), (other, odd)):
            with pytest.raises(InvalidArgumentError, match="version"):
                compare_versions(*pair)


@pytest.mark.parametrize("pair", [(1, "1"), ("1.0.5", 1.0), ("1", UUID7), (UUID6, UUID7)])
def test_two_kinds_have_no_order(pair):
    with pytest.raises(InvalidArgumentError, match="two kinds"):
        compare_versions(*pair)
