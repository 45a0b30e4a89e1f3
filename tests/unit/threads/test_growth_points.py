"""Points of a plot of a thread's growth: at most 1,000, with its ends."""

from itertools import pairwise

import pytest

from threadkeep.errors import InvalidArgumentError
from threadkeep.threads import GrowthStep, ThreadGrowth

POINTS = 1000


def growth(count):
    steps = [GrowthStep(f"{i}", "", "", i, {"m": 2}, 3, 10) for i in range(count)]
    return ThreadGrowth("t", tuple(steps), 0)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("count", [1, 2, POINTS - 1, POINTS, POINTS + 1, 100_000])
def test_points_are_thinned_and_sums_stay(count):
    points = growth(count).points()
    assert len(points) == min(count, POINTS)
    assert (points[0].number, points[-1].number) == (1, count)
    for one in points:
        sums = (one.stored, one.full_copies, one.channels["m"])
        assert sums == (5 * one.number, 10 * one.number, 2 * one.number)
    gaps = {b.number - a.number for a, b in pairwise(points)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_a_plot_has_two_points_or_more():
    assert [one.number for one in growth(9).points(2)] == [1, 9]
    with pytest.raises(InvalidArgumentError, match="most"):
        growth(9).points(1)
