"""Pairs rise on both sides and hold the same."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from threadkeep.threads.diff.values import Effort, align, gaps

KEYS = st.lists(st.integers(0, 4), max_size=14)
ANY = st.lists(st.integers(0, 40), max_size=30)


@given(KEYS | ANY, KEYS | ANY, st.sampled_from([0, 20, 10_000]))
def test_pairs_rise_and_hold_the_same(a, b, steps):
    pairs = align(a, b, Effort(steps))
    for (i, j), (k, n) in pairwise(pairs):
        assert i < k
        assert j < n
    assert all(a[i] == b[j] for i, j in pairs)


def test_what_is_there_once_holds_the_rest_in_its_place():
    a = ["{", "a", "}", "{", "b", "}"]
    b = ["{", "a", "}", "{", "c", "}", "{", "b", "}"]
    assert align(a, b, Effort()) == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 7), (5, 8)]


@given(KEYS, KEYS)
def test_gaps_and_pairs_are_all_there_is(a, b):
    pairs = align(a, b, Effort())
    found = list(gaps(pairs, len(a), len(b)))
    assert len(found) == len(pairs) + 1
    in_gaps = [i for gap in found for i in range(gap.a_start, gap.a_stop)]
    assert sorted(in_gaps + [i for i, _ in pairs]) == list(range(len(a)))
    in_gaps = [j for gap in found for j in range(gap.b_start, gap.b_stop)]
    assert sorted(in_gaps + [j for _, j in pairs]) == list(range(len(b)))
