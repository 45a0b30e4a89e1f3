"""What differs between two values, part by part.

Two values are the same if the codec gives the same bytes for them, which tells 1 from True
and from 1.0. Invariant: applied to the first value, the changes give the second, but for
what no reader sees (which fields of a model were set, private attributes).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from threadkeep.diff import (
    parts,
    texts,
)
from threadkeep.diff.alignment import (
    Gap,
    align,
    gaps,
)
from threadkeep.diff.effort import Effort
from threadkeep.diff.records import (
    Change,
    Path,
)
from threadkeep.engine.differences import same
from threadkeep.errors import ThreadkeepError

DEPTH = 8  # how deep a difference looks into values; below, a part is told whole
_PLAIN = {str, int, bool, float, bytes, type(None)}


def differences(
    before: Any, after: Any, encode: Callable[[Any], bytes], effort: Effort | None = None
) -> tuple[Change, ...]:
    """What changed between two values; nothing if they are the same.

    Args:
        before: the value as it was.
        after: the value as it is.
        encode: gives equal bytes for equal values of equal types.
        effort: what may be done for it, shared with other differences.
    """
    walk = _Walk(encode, effort or Effort())
    walk.compare(before, after, (), ())
    return tuple(walk.found)


class _Walk:
    """Goes through two values side by side and collects what differs."""

    def __init__(self, encode: Callable[[Any], bytes], effort: Effort) -> None:
        self.found: list[Change] = []
        self._encode = encode
        self._effort = effort

    def compare(self, a: Any, b: Any, a_at: Path, b_at: Path) -> None:
        """Collect what differs between two parts, which stand at these places."""
        if self._same(a, b):
            return
        deeper = type(a) is type(b) and len(b_at) < DEPTH
        if not (deeper and self._inside(a, b, a_at, b_at)):
            edits = texts.edits(a, b, self._effort) if type(a) is type(b) is str else ()
            self.found.append(Change("changed", a_at, b_at, a, b, edits))

    def _inside(self, a: Any, b: Any, a_at: Path, b_at: Path) -> bool:
        """Compare the parts of two values of one type; False if they have none."""
        a_fields, b_fields = parts.fields(a), parts.fields(b)
        if a_fields is not None and b_fields is not None:
            self._mappings(a_fields, b_fields, a_at, b_at)
            return True
        if isinstance(a, dict):
            self._mappings(a, b, a_at, b_at)
            self._order(a, b, a_at, b_at)
            return True
        if isinstance(a, set | frozenset):
            return Counter(map(self._bytes, a)) == Counter(map(self._bytes, b))
        a_items, b_items = parts.items(a), parts.items(b)
        if a_items is None or b_items is None:
            return False
        self._sequences(a_items, b_items, a_at, b_at)
        return True

    # -- dicts and fields --------------------------------------------------------------

    def _mappings(self, a: Mapping[Any, Any], b: Mapping[Any, Any], a_at: Path, b_at: Path) -> None:
        new = {_typed(key): key for key in b}
        for key, value in a.items():
            if _typed(key) not in new:
                self.found.append(Change("removed", (*a_at, key), (*b_at, key), value))
        old = {_typed(key) for key in a}
        for typed, key in new.items():
            if typed in old:
                self.compare(a[key], b[key], (*a_at, key), (*b_at, key))
            else:
                added = Change("added", (*a_at, key), (*b_at, key), after=b[key])
                self.found.append(added)

    def _order(self, a: dict[Any, Any], b: dict[Any, Any], a_at: Path, b_at: Path) -> None:
        old, new = {_typed(key) for key in a}, {_typed(key) for key in b}
        before = [key for key in a if _typed(key) in new]
        after = [key for key in b if _typed(key) in old]
        if before != after:
            self.found.append(Change("reordered", a_at, b_at, before, after))

    # -- lists -------------------------------------------------------------------------

    def _sequences(self, a: Sequence[Any], b: Sequence[Any], a_at: Path, b_at: Path) -> None:
        a_keys, b_keys = list(map(self._key, a)), list(map(self._key, b))
        pairs = align(a_keys, b_keys, self._effort)
        for gap in gaps(pairs, len(a), len(b)):
            replaced = _replaced(a_keys, b_keys, gap)
            for n in range(replaced):
                i, j = gap.a_start + n, gap.b_start + n
                self.compare(a[i], b[j], (*a_at, i), (*b_at, j))
            j = gap.b_start + replaced
            for i in range(gap.a_start + replaced, gap.a_stop):
                self.found.append(Change("removed", (*a_at, i), (*b_at, j), a[i]))
            for new in range(j, gap.b_stop):
                at = (*a_at, gap.a_stop), (*b_at, new)
                self.found.append(Change("added", *at, after=b[new]))
            if gap.a_stop < len(a):  # (the pair behind the gap)
                i, j = gap.a_stop, gap.b_stop
                self.compare(a[i], b[j], (*a_at, i), (*b_at, j))

    def _key(self, element: Any) -> Hashable:
        """What an element is found by on the other side: its id, else what it is."""
        name = parts.id_of(element)
        return self._bytes(element) if name is None else ("id", name)

    # -- sameness ----------------------------------------------------------------------

    def _same(self, a: Any, b: Any) -> bool:
        if a is b:
            return True
        if type(a) is not type(b):
            return False
        if type(a) in _PLAIN:
            return same(a, b)
        return self._bytes(a) == self._bytes(b)

    def _bytes(self, value: Any) -> Hashable:
        """What tells the value from any other; of what cannot be encoded, its identity."""
        try:
            return self._encode(value)
        except ThreadkeepError:
            return id(value)


def _typed(key: Hashable) -> Hashable:
    """A dict's key by which 1, True and 1.0 are different."""
    return type(key), key


def _replaced(a_keys: Sequence[Hashable], b_keys: Sequence[Hashable], gap: Gap) -> int:
    """How many elements of a gap to tell as changed: those that no id tells apart."""
    count = 0
    for a, b in zip(
        a_keys[gap.a_start : gap.a_stop], b_keys[gap.b_start : gap.b_stop], strict=False
    ):
        if isinstance(a, tuple) or isinstance(b, tuple):
            break
        count += 1
    return count
