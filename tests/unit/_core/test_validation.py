"""Numbers and times as arguments."""

import math
import sys

import pytest

from threadkeep._core.validation import is_count, is_time


@pytest.mark.parametrize("value", [1, 0.5, 10**300, sys.float_info.max, sys.float_info.min])
def test_times(value):
    assert is_time(value)


@pytest.mark.parametrize(
    "value", [0, -1, -0.0, 10**400, -(10**400), math.inf, math.nan, True, "1", None, 1j]
)
def test_what_is_no_time(value):
    assert not is_time(value)


@pytest.mark.parametrize("value", [1, 2, 10**400])
def test_counts(value):
    assert is_count(value, 1)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1", None])
def test_what_is_no_count(value):
    assert not is_count(value, 1)
