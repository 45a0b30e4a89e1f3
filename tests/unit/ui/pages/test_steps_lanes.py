"""Lanes of trees: the newest branch is left, and a fork's lanes meet at their parent."""

import pytest

from threadkeep.ui.pages.steps import LANES, Lanes, draw

FORK_OF_FORK = [("7", "5"), ("6", "4"), ("5", "2"), ("4", "2"), ("3", "1"), ("2", "1"), ("1", "")]


def places(rows):
    return [(one.lane, one.joins) for one in draw(rows)[0]]


def test_a_line_stays_in_one_lane():
    drawn, waiting = draw([("3", "2"), ("2", "1"), ("1", "")])
    assert drawn == [Lanes(0, (), ()), Lanes(0, (0,), ()), Lanes(0, (0,), ())]
    assert not any(waiting)


def test_two_forks_meet_at_their_parents():
    rows = [("5", "3"), ("4", "3"), ("3", "1"), ("2", "1"), ("1", "")]
    assert places(rows) == [(0, ()), (1, ()), (0, (0, 1)), (1, ()), (0, (0, 1))]


def test_a_fork_of_a_fork():
    drawn, _ = draw(FORK_OF_FORK)
    assert [one.lane for one in drawn] == [0, 1, 0, 1, 2, 0, 0]
    assert [one.passing for one in drawn] == [(), (0,), (1,), (0,), (0, 1), (2,), ()]
    assert drawn[-2].joins == (0, 1)
    assert drawn[-1].joins == (0, 2)


@pytest.mark.parametrize("at", range(len(FORK_OF_FORK)))
def test_windows_are_drawn_as_the_whole(at):
    newer, waiting = draw(FORK_OF_FORK[:at])
    older, end = draw(FORK_OF_FORK[at:], waiting)
    assert (newer + older, end) == draw(FORK_OF_FORK)


def test_a_lane_ends_where_the_parent_was_removed():
    drawn, _ = draw([("9", "8"), ("5", "4"), ("4", "")])
    assert drawn == [Lanes(0, (), ()), Lanes(0, (), ()), Lanes(0, (0,), ())]


def test_lanes_lead_past_a_subgraph():
    drawn, _ = draw([("", ""), ("5", "3"), ("4", "3"), ("", "5"), ("3", "")])
    assert [drawn[0], drawn[3]] == [Lanes(-1, (), ()), Lanes(-1, (), (0, 1))]


def test_lanes_are_bounded():
    drawn, waiting = draw([(f"{n:04}", "0000") for n in range(500, 0, -1)])
    assert len(waiting) == LANES == max(one.lane for one in drawn) + 1
