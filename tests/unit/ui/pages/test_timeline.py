"""A time axis: in proportion, except for long gaps."""

import pytest

from threadkeep.ui.pages.timeline import Axis


def test_without_gaps_it_is_in_proportion():
    axis = Axis([(10, 12), (12, 14), (14, 20)])
    assert [axis.at(moment) for moment in (10, 11, 15, 20)] == [0, 10, 50, 100]
    assert axis.gaps == []


def test_a_long_gap_is_short():
    axis = Axis([(0, 5), (3605, 3610)])
    (gap,) = axis.gaps
    assert gap == pytest.approx((3600, 48.5, 51.5))
    assert [axis.at(moment) for moment in (0, 5, 3605, 3610)] == pytest.approx([0, 48.5, 51.5, 100])
    assert axis.at(1805) == pytest.approx(50)


def test_short_gaps_stay():
    axis = Axis([(0, 5), (5.5, 10)])
    assert axis.gaps == []
    assert axis.at(5) == 50


def test_many_gaps_leave_room():
    axis = Axis([(n * 1000, n * 1000 + 1) for n in range(200)])
    assert sum(gap.right - gap.left for gap in axis.gaps) == pytest.approx(40)
    assert axis.at(199_001) == pytest.approx(100)


def test_moments_without_length():
    axis = Axis([(5, 5), (900, 900)])
    assert 0 <= axis.at(5) < axis.at(900) <= 100
    assert Axis([]).at(3) == 0
