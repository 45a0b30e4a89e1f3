"""The next version continues what a thread already uses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from engine_kit import exactly
from langgraph.checkpoint.memory import InMemorySaver

from threadkeep.errors import InvalidArgumentError
from threadkeep.versions import next_version


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


@pytest.mark.parametrize("current", ["", "x", "1x.5", ".5", "-1.5", "1_0"])
def test_unknown_kind(current):
    with pytest.raises(InvalidArgumentError, match="version"):
        next_version(current)


def test_from_many_threads():
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: next_version("1.0"), range(500)))
    assert len(set(found)) == 500
    assert all(version.startswith("2.") for version in found)
