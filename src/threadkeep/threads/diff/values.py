"""Compare two values part by part. Sequences are aligned first.

Two values are the same if the codec encodes them to the same bytes, which differ for 1, True and
1.0. The changes applied to the first value give the second, except for private attributes and the
set of given fields of a model.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple, TypeAlias

from threadkeep._core.engine.differences import same
from threadkeep.errors import ThreadkeepError
from threadkeep.threads.diff import Change, Path, TextEdit, fields, items

Keys: TypeAlias = Sequence[Hashable]
IndexPair: TypeAlias = tuple[int, int]
_STEPS = 2_000_000  # comparisons of two elements
_TABLE = 500_000  # numbers in a table: some megabytes


class Effort:
    """Limit on the steps of a comparison. After that it is coarser and takes linear time."""

    def __init__(self, steps: int = _STEPS) -> None:
        self.left = steps

    def spend(self, steps: int) -> bool:
        """Take a number of steps, or return False if fewer are left."""
        if steps > self.left:
            return False
        self.left -= steps
        return True


class Gap(NamedTuple):
    """Positions between two pairs: `start <= i < stop` on each side."""

    a_start: int
    a_stop: int
    b_start: int
    b_stop: int


def align(a: Keys, b: Keys, effort: Effort) -> list[IndexPair]:
    """Pair positions with equal keys, rising on both sides.

    Equal ends and keys that each side has once are always paired. Between them the longest common
    subsequence, while there is effort left.
    """
    front = _common_prefix(a, b)
    back = _common_prefix(a[front:][::-1], b[front:][::-1])
    xs, ys = a[front : len(a) - back], b[front : len(b) - back]
    pairs = [(n, n) for n in range(front)]
    for gap in gaps(_anchors(xs, ys), len(xs), len(ys)):
        i, j = front + gap.a_start, front + gap.b_start
        found = _longest(xs[gap.a_start : gap.a_stop], ys[gap.b_start : gap.b_stop], effort)
        pairs += [(i + x, j + y) for x, y in found]
        if gap.a_stop < len(xs):
            pairs.append((front + gap.a_stop, front + gap.b_stop))
    return pairs + [(len(a) - n, len(b) - n) for n in range(back, 0, -1)]


def _anchors(a: Keys, b: Keys) -> list[IndexPair]:
    """Pair keys that each side has once: the longest sequence that rises on both sides."""
    in_a, in_b = Counter(a), Counter(b)
    where = {key: j for j, key in enumerate(b) if in_b[key] == 1}
    ends: list[int] = []  # smallest end of a rising row, by length
    rows: list[Any] = []  # that row: its last pair, and the row before it
    for i, key in enumerate(a):
        if in_a[key] == 1 and key in where:
            length = bisect_left(ends, where[key])
            ends[length : length + 1] = [where[key]]
            rows[length : length + 1] = [((i, where[key]), rows[length - 1] if length else None)]
    found, row = list[IndexPair](), rows[-1] if rows else None
    while row is not None:
        pair, row = row
        found.append(pair)
    return found[::-1]


def _longest(a: Keys, b: Keys, effort: Effort) -> Iterator[IndexPair]:
    """Yield the longest common subsequence, or only equal ends if it takes too long."""
    i = _common_prefix(a, b)
    stop = _common_prefix(a[i:][::-1], b[i:][::-1])
    a_stop, b_stop = len(a) - stop, len(b) - stop
    yield from ((n, n) for n in range(i))
    j, size = i, (a_stop - i) * (b_stop - i)
    if size <= _TABLE and not set(a[i:a_stop]).isdisjoint(b[j:b_stop]) and effort.spend(size):
        rows = [[0] * (b_stop + 1)]  # its length for the last elements of each side
        for x in reversed(a[i:a_stop]):
            below, row = rows[-1], [0] * (b_stop + 1)
            for y in range(b_stop - 1, j - 1, -1):
                row[y] = below[y + 1] + 1 if x == b[y] else max(below[y], row[y + 1])
            rows.append(row)
        while i < a_stop and j < b_stop:
            if a[i] == b[j]:
                yield i, j
                i, j = i + 1, j + 1
            elif rows[a_stop - i - 1][j] >= rows[a_stop - i][j + 1]:
                i += 1
            else:
                j += 1
    yield from ((len(a) - n, len(b) - n) for n in range(stop, 0, -1))


def gaps(pairs: Iterable[IndexPair], a_size: int, b_size: int) -> Iterator[Gap]:
    """Iterate over the gaps before, between and after the pairs, with empty ones."""
    i = j = 0
    for next_i, next_j in (*pairs, (a_size, b_size)):
        yield Gap(i, next_i, j, next_j)
        i, j = next_i + 1, next_j + 1


def _common_prefix(a: Keys, b: Keys) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))))


DEPTH = 8  # levels to compare part by part, deeper parts change as a whole
LONG = 40  # shortest text with edits, in characters
_SCALARS = {str, int, bool, float, bytes, type(None)}
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_BETWEEN = re.compile(r"(?<=\S)\s|[^\w\s]")  # where a word of `_WORDS` begins for certain
_NEAR = 2_000  # characters in which it is looked for
_LONGEST = 2_000_000  # characters of two texts that are compared word by word


def differences(
    before: Any, after: Any, encode: Callable[[Any], bytes], effort: Effort | None = None
) -> tuple[Change, ...]:
    """List the changes between two values, or none if they are the same.

    Args:
        before: the old value.
        after: the new value.
        encode: returns equal bytes for equal values of equal types.
        effort: limit on the steps, shared with other comparisons.
    """
    walk = _Differences(encode, effort or Effort())
    walk.compare(before, after, (), ())
    return tuple(walk.changes)


class _Differences:
    """Walk through two values side by side that collects changes."""

    def __init__(self, encode: Callable[[Any], bytes], effort: Effort) -> None:
        self.changes: list[Change] = []
        self._encode = encode
        self._effort = effort

    def compare(self, a: Any, b: Any, a_at: Path, b_at: Path) -> None:
        """Collect the changes of a part, by its paths on both sides."""
        if self._same(a, b):
            return
        deeper = type(a) is type(b) and len(b_at) < DEPTH
        if not (deeper and self._compare_parts(a, b, a_at, b_at)):
            edits = text_edits(a, b, self._effort) if type(a) is type(b) is str else ()
            self.changes.append(Change("changed", a_at, b_at, a, b, edits))

    def _compare_parts(self, a: Any, b: Any, a_at: Path, b_at: Path) -> bool:
        """Compare the parts of two values of one type, or return False if they have none."""
        a_fields, b_fields = fields(a), fields(b)
        if a_fields is not None and b_fields is not None:
            self._mappings(a_fields, b_fields, a_at, b_at)
            return True
        if isinstance(a, dict):
            self._mappings(a, b, a_at, b_at)
            self._order(a, b, a_at, b_at)
            return True
        if isinstance(a, set | frozenset):
            return Counter(map(self._bytes, a)) == Counter(map(self._bytes, b))
        a_items, b_items = items(a), items(b)
        if a_items is None or b_items is None:
            return False
        self._sequences(a_items, b_items, a_at, b_at)
        return True

    def _mappings(self, a: Mapping[Any, Any], b: Mapping[Any, Any], a_at: Path, b_at: Path) -> None:
        old, new = set(map(_typed, a)), {_typed(key): key for key in b}
        for key, value in a.items():
            if _typed(key) not in new:
                self.changes.append(Change("removed", (*a_at, key), (*b_at, key), value))
        for typed, key in new.items():
            places = (*a_at, key), (*b_at, key)
            if typed in old:
                self.compare(a[key], b[key], *places)
            else:
                self.changes.append(Change("added", *places, after=b[key]))

    def _order(self, a: dict[Any, Any], b: dict[Any, Any], a_at: Path, b_at: Path) -> None:
        old, new = set(map(_typed, a)), set(map(_typed, b))
        before = [key for key in a if _typed(key) in new]
        after = [key for key in b if _typed(key) in old]
        if before != after:
            self.changes.append(Change("reordered", a_at, b_at, before, after))

    def _sequences(self, a: Sequence[Any], b: Sequence[Any], a_at: Path, b_at: Path) -> None:
        a_keys, b_keys = list(map(self._key, a)), list(map(self._key, b))
        pairs = align(a_keys, b_keys, self._effort)
        for gap in gaps(pairs, len(a), len(b)):
            replaced = _replaced(a_keys, b_keys, gap)
            for n in range(replaced):
                i, j = gap.a_start + n, gap.b_start + n
                self.compare(a[i], b[j], (*a_at, i), (*b_at, j))
            first = gap.b_start + replaced
            for i in range(gap.a_start + replaced, gap.a_stop):
                self.changes.append(Change("removed", (*a_at, i), (*b_at, first), a[i]))
            for j in range(first, gap.b_stop):
                places = (*a_at, gap.a_stop), (*b_at, j)
                self.changes.append(Change("added", *places, after=b[j]))
            if gap.a_stop < len(a):  # (the pair after the gap)
                i, j = gap.a_stop, gap.b_stop
                self.compare(a[i], b[j], (*a_at, i), (*b_at, j))

    def _key(self, element: Any) -> Hashable:
        """Choose an element's key for the alignment: its field or key `id`, else its bytes."""
        named = element if isinstance(element, dict) else fields(element) or {}
        name = named.get("id")
        return ("id", name) if type(name) in (str, int) else self._bytes(element)

    def _same(self, a: Any, b: Any) -> bool:
        if a is b:
            return True
        if type(a) is not type(b):
            return False
        if type(a) in _SCALARS:
            return same(a, b)
        return self._bytes(a) == self._bytes(b)

    def _bytes(self, value: Any) -> Hashable:
        """Encode a value, or return its identity if that fails."""
        try:
            return self._encode(value)
        except ThreadkeepError:
            return id(value)


def _typed(key: Hashable) -> Hashable:
    """Make a dict's key different for 1, True and 1.0."""
    return type(key), key


def _replaced(a_keys: Sequence[Hashable], b_keys: Sequence[Hashable], gap: Gap) -> int:
    """Count the pairs of elements without ids at the start of a gap: these were changed."""
    pairs = zip(a_keys[gap.a_start : gap.a_stop], b_keys[gap.b_start : gap.b_stop], strict=False)
    without_ids = takewhile(lambda pair: tuple not in map(type, pair), pairs)
    return len(list(without_ids))


# -- texts: lines first, then words of the lines that differ ---------------------------


def text_edits(a: str, b: str, effort: Effort) -> tuple[TextEdit, ...]:
    """List the edits from `a` to `b` in order, none for short texts."""
    if max(len(a), len(b)) < LONG:
        return ()
    edits: list[TextEdit] = []
    for edit in _line_edits(a, b, effort):
        last = edits[-1] if edits else None
        between = a[last.before_at + len(last.before) : edit.before_at] if last else "x"
        if last is not None and (not between or between.isspace()):
            before, after = last.before + between + edit.before, last.after + between + edit.after
            edits[-1] = TextEdit(last.before_at, last.after_at, before, after)
        else:
            edits.append(edit)
    return tuple(edits)


def _line_edits(a: str, b: str, effort: Effort) -> Iterator[TextEdit]:
    a_lines, b_lines = a.splitlines(keepends=True), b.splitlines(keepends=True)
    i = j = 0
    for gap in gaps(align(a_lines, b_lines, effort), len(a_lines), len(b_lines)):
        before = "".join(a_lines[gap.a_start : gap.a_stop])
        after = "".join(b_lines[gap.b_start : gap.b_stop])
        yield from _word_edits(before, after, i, j, effort)
        equal = len(a_lines[gap.a_stop]) if gap.a_stop < len(a_lines) else 0
        i, j = i + len(before) + equal, j + len(after) + equal


def _word_edits(a: str, b: str, i: int, j: int, effort: Effort) -> Iterator[TextEdit]:
    """List the edits of two texts that begin at `i` and `j`."""
    if a == b:
        return
    start, end = _common_ends(a, b)
    a, b, i, j = a[start : len(a) - end], b[start : len(b) - end], i + start, j + start
    if len(a) + len(b) > _LONGEST:
        yield TextEdit(i, j, a, b)
        return
    xs, ys = _WORDS.findall(a), _WORDS.findall(b)
    for gap in gaps(align(xs, ys, effort), len(xs), len(ys)):
        before = "".join(xs[gap.a_start : gap.a_stop])
        after = "".join(ys[gap.b_start : gap.b_stop])
        if before or after:
            yield TextEdit(i, j, before, after)
        equal = len(xs[gap.a_stop]) if gap.a_stop < len(xs) else 0
        i, j = i + len(before) + equal, j + len(after) + equal


def _common_ends(a: str, b: str) -> tuple[int, int]:
    """Return the lengths of a beginning and an end in common, of whole words.

    Alignment would pair them too. Comparing slices takes a thousandth of the time.
    """
    most = min(len(a), len(b))
    start = _longest_common(most, lambda n: a[:n] == b[:n])
    end = _longest_common(most - start, lambda n: a[len(a) - n :] == b[len(b) - n :])
    near = max(start - _NEAR, 0)
    starts = [near + found.start() for found in _BETWEEN.finditer(a[near:start])]
    first = _BETWEEN.search(a[len(a) - end :][:_NEAR])
    return (starts[-1] if starts else 0), (end - first.start() if first else 0)


def _longest_common(most: int, is_common: Callable[[int], bool]) -> int:
    """Return the greatest number up to `most` for which a rising condition holds."""
    return bisect_left(range(1, most + 1), 1, key=lambda n: int(not is_common(n)))
