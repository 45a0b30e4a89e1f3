"""Which elements of two sequences are the same ones, in order.

Pure functions over keys that can be hashed. Invariant: pairs rise on both sides, and the
keys of a pair are equal. Ends are paired first, then keys that each side has once, then
what lies between by the longest common subsequence, as long as there is effort left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from threadkeep.diff.effort import Effort

Keys: TypeAlias = Sequence[Hashable]
Pair: TypeAlias = tuple[int, int]
_TABLE = 500_000  # numbers that a table may hold: some megabytes


class Gap(NamedTuple):
    """The elements between two pairs: `start <= i < stop` of each side."""

    a_start: int
    a_stop: int
    b_start: int
    b_stop: int


def align(a: Keys, b: Keys, effort: Effort) -> list[Pair]:
    """Pairs of positions that hold the same."""
    return list(_aligned(a, b, Gap(0, len(a), 0, len(b)), effort))


def gaps(pairs: Sequence[Pair], a_size: int, b_size: int) -> Iterator[Gap]:
    """What lies before, between and behind the pairs, empty or not: one more than pairs."""
    i = j = 0
    for next_i, next_j in (*pairs, (a_size, b_size)):
        yield Gap(i, next_i, j, next_j)
        i, j = next_i + 1, next_j + 1


def _aligned(a: Keys, b: Keys, gap: Gap, effort: Effort) -> Iterator[Pair]:
    inner = _without_ends(a, b, gap)
    front, back = inner.a_start - gap.a_start, gap.a_stop - inner.a_stop
    yield from ((gap.a_start + n, gap.b_start + n) for n in range(front))
    anchors = _anchors(a, b, inner)
    if anchors:
        offset = [(i - inner.a_start, j - inner.b_start) for i, j in anchors]
        sizes = inner.a_stop - inner.a_start, inner.b_stop - inner.b_start
        for between, anchor in zip(gaps(offset, *sizes), (*anchors, None), strict=True):
            yield from _between(a, b, _moved(between, inner), effort)
            if anchor is not None:
                yield anchor
    else:
        yield from _common(a, b, inner, effort)
    yield from ((inner.a_stop + n, inner.b_stop + n) for n in range(back))


def _moved(gap: Gap, by: Gap) -> Gap:
    a, b = by.a_start, by.b_start
    return Gap(gap.a_start + a, gap.a_stop + a, gap.b_start + b, gap.b_stop + b)


def _between(a: Keys, b: Keys, gap: Gap, effort: Effort) -> Iterator[Pair]:
    """Pairs between anchors: keys that are there once have moved, and are no anchors again."""
    inner = _without_ends(a, b, gap)
    yield from zip(
        range(gap.a_start, inner.a_start), range(gap.b_start, inner.b_start), strict=True
    )
    yield from _common(a, b, inner, effort)
    yield from zip(range(inner.a_stop, gap.a_stop), range(inner.b_stop, gap.b_stop), strict=True)


def _without_ends(a: Keys, b: Keys, gap: Gap) -> Gap:
    """The gap without what is the same at its two ends."""
    a_start, a_stop, b_start, b_stop = gap
    while a_start < a_stop and b_start < b_stop and a[a_start] == b[b_start]:
        a_start, b_start = a_start + 1, b_start + 1
    while a_start < a_stop and b_start < b_stop and a[a_stop - 1] == b[b_stop - 1]:
        a_stop, b_stop = a_stop - 1, b_stop - 1
    return Gap(a_start, a_stop, b_start, b_stop)


def _anchors(a: Keys, b: Keys, gap: Gap) -> list[Pair]:
    """Keys that each side has once, as many as rise on both sides."""
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
    """As many of the pairs as rise on the second side too (the first rises already)."""
    ends: list[int] = []  # the least end of a rising row of each length
    last: list[int] = []  # which pair that is
    before: list[int] = []  # the pair before each one in its row
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
    """A common subsequence: the longest where there is effort left for it."""
    xs, ys = a[gap.a_start : gap.a_stop], b[gap.b_start : gap.b_stop]
    if set(xs).isdisjoint(ys):
        return []
    size = len(xs) * len(ys)
    found = _longest(xs, ys) if size <= _TABLE and effort.spend(size) else _first_met(xs, ys)
    return [(i + gap.a_start, j + gap.b_start) for i, j in found]


def _longest(a: Keys, b: Keys) -> Iterator[Pair]:
    """The longest common subsequence."""
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


def _first_met(a: Keys, b: Keys) -> Iterator[Pair]:
    """A common subsequence, found in one go: each element with the next one like it."""
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
