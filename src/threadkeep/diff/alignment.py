"""Alignment of two sequences: the positions that hold the same element, in order.

Pairs rise on both sides. Ends are paired first, then keys that each side has once, then the
longest common subsequence of the rest, as long as there is effort left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

Keys: TypeAlias = Sequence[Hashable]
Pair: TypeAlias = tuple[int, int]
_STEPS = 2_000_000  # comparisons of two elements
_TABLE = 500_000  # numbers in a table: some megabytes


class Effort:
    """Bound on the steps of a difference; once they are spent, it is coarser, in linear time."""

    def __init__(self, steps: int = _STEPS) -> None:
        self.left = steps

    def spend(self, steps: int) -> bool:
        """Take so many steps, if they are left."""
        if steps > self.left:
            return False
        self.left -= steps
        return True


class Gap(NamedTuple):
    """Elements between two pairs: `start <= i < stop` of each side."""

    a_start: int
    a_stop: int
    b_start: int
    b_stop: int


def align(a: Keys, b: Keys, effort: Effort) -> list[Pair]:
    """Return the pairs of positions that hold the same."""
    return list(_aligned(a, b, Gap(0, len(a), 0, len(b)), effort))


def gaps(pairs: Iterable[Pair], a_size: int, b_size: int) -> Iterator[Gap]:
    """Return the gaps before, between and behind the pairs, empty or not."""
    return _gaps(pairs, Gap(0, a_size, 0, b_size))


def _gaps(pairs: Iterable[Pair], gap: Gap) -> Iterator[Gap]:
    i, j = gap.a_start, gap.b_start
    for next_i, next_j in (*pairs, (gap.a_stop, gap.b_stop)):
        yield Gap(i, next_i, j, next_j)
        i, j = next_i + 1, next_j + 1


def _aligned(
    a: Keys, b: Keys, gap: Gap, effort: Effort, *, with_anchors: bool = True
) -> Iterator[Pair]:
    inner = _without_ends(a, b, gap)
    yield from _ends_before(gap, inner)
    anchors = _anchors(a, b, inner) if with_anchors else []
    if anchors:
        for between, anchor in zip(_gaps(anchors, inner), (*anchors, None), strict=True):
            # (keys that occur once have moved: they are no anchors again)
            yield from _aligned(a, b, between, effort, with_anchors=False)
            if anchor is not None:
                yield anchor
    else:
        yield from _common(a, b, inner, effort)
    yield from _ends_behind(gap, inner)


def _ends_before(gap: Gap, inner: Gap) -> Iterator[Pair]:
    return zip(range(gap.a_start, inner.a_start), range(gap.b_start, inner.b_start), strict=True)


def _ends_behind(gap: Gap, inner: Gap) -> Iterator[Pair]:
    return zip(range(inner.a_stop, gap.a_stop), range(inner.b_stop, gap.b_stop), strict=True)


def _without_ends(a: Keys, b: Keys, gap: Gap) -> Gap:
    """Return the gap without equal elements at its ends."""
    a_start, a_stop, b_start, b_stop = gap
    while a_start < a_stop and b_start < b_stop and a[a_start] == b[b_start]:
        a_start, b_start = a_start + 1, b_start + 1
    while a_start < a_stop and b_start < b_stop and a[a_stop - 1] == b[b_stop - 1]:
        a_stop, b_stop = a_stop - 1, b_stop - 1
    return Gap(a_start, a_stop, b_start, b_stop)


def _anchors(a: Keys, b: Keys, gap: Gap) -> list[Pair]:
    """Pair keys that each side has once, as many as rise on both sides."""
    in_a = Counter(a[gap.a_start : gap.a_stop])
    in_b = Counter(b[gap.b_start : gap.b_stop])
    where = {b[j]: j for j in range(gap.b_start, gap.b_stop) if in_b[b[j]] == 1}
    once = [
        (i, where[a[i]])
        for i in range(gap.a_start, gap.a_stop)
        if in_a[a[i]] == 1 and a[i] in where
    ]
    return _rising(once)


def _rising(pairs: list[Pair]) -> list[Pair]:
    """Return a longest run of pairs that rise on the second side too (the first rises already)."""
    ends: list[int] = []  # least end of a rising row of each length
    last: list[int] = []  # its pair
    before: list[int] = []  # pair before each one in its row
    for n, (_, j) in enumerate(pairs):
        length = bisect_left(ends, j)
        before.append(last[length - 1] if length else -1)
        ends[length : length + 1] = [j]
        last[length : length + 1] = [n]
    row: list[Pair] = []
    at = last[-1] if last else -1
    while at >= 0:
        row.append(pairs[at])
        at = before[at]
    return row[::-1]


def _common(a: Keys, b: Keys, gap: Gap, effort: Effort) -> list[Pair]:
    """Return a common subsequence: the longest if there is effort left for it."""
    xs, ys = a[gap.a_start : gap.a_stop], b[gap.b_start : gap.b_stop]
    if set(xs).isdisjoint(ys):
        return []
    size = len(xs) * len(ys)
    pairs = _longest(xs, ys) if size <= _TABLE and effort.spend(size) else _greedy(xs, ys)
    return [(i + gap.a_start, j + gap.b_start) for i, j in pairs]


def _longest(a: Keys, b: Keys) -> Iterator[Pair]:
    """Return the longest common subsequence."""
    rows = [[0] * (len(b) + 1)]  # of the last elements of each side: its length
    for x in reversed(a):
        below, row = rows[-1], [0] * (len(b) + 1)
        for j in range(len(b) - 1, -1, -1):
            row[j] = below[j + 1] + 1 if x == b[j] else max(below[j], row[j + 1])
        rows.append(row)
    rows.reverse()
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            yield i, j
            i, j = i + 1, j + 1
        elif rows[i + 1][j] >= rows[i][j + 1]:
            i += 1
        else:
            j += 1


def _greedy(a: Keys, b: Keys) -> Iterator[Pair]:
    """Return a common subsequence in one pass: each element with the next one like it."""
    places: dict[Hashable, list[int]] = {}
    for i, key in enumerate(a):
        places.setdefault(key, []).append(i)
    at = 0
    for j, key in enumerate(b):
        known = places.get(key, [])
        n = bisect_left(known, at)
        if n < len(known):
            yield known[n], j
            at = known[n] + 1
