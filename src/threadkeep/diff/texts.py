"""What differs between two texts: lines first, then words of the lines that differ.

Pure functions. Invariant: putting each edit's `after` in place of its `before` makes the
one text of the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher

from threadkeep.diff.alignment import (
    align,
    gaps,
)
from threadkeep.diff.effort import Effort
from threadkeep.diff.records import TextEdit

LONG = 40  # characters from which the edits of a text tell more than the two texts
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")


def edits(a: str, b: str, effort: Effort) -> tuple[TextEdit, ...]:
    """The edits from `a` to `b`, in order; none for short texts, which tell it themselves."""
    if max(len(a), len(b)) < LONG:
        return ()
    found: list[TextEdit] = []
    for edit in _by_lines(a, b, effort):
        last = found[-1] if found else None
        between = a[last.before_at + len(last.before) : edit.before_at] if last else "x"
        if last is not None and (not between or between.isspace()):
            before, after = last.before + between + edit.before, last.after + between + edit.after
            found[-1] = TextEdit(last.before_at, last.after_at, before, after)
        else:
            found.append(edit)
    return tuple(found)


def _by_lines(a: str, b: str, effort: Effort) -> Iterator[TextEdit]:
    a_lines, b_lines = a.splitlines(keepends=True), b.splitlines(keepends=True)
    i = j = 0
    for gap in gaps(align(a_lines, b_lines, effort), len(a_lines), len(b_lines)):
        before = "".join(a_lines[gap.a_start : gap.a_stop])
        after = "".join(b_lines[gap.b_start : gap.b_stop])
        yield from _by_words(before, after, i, j, effort)
        same = len(a_lines[gap.a_stop]) if gap.a_stop < len(a_lines) else 0
        i, j = i + len(before) + same, j + len(after) + same


def _by_words(a: str, b: str, i: int, j: int, effort: Effort) -> Iterator[TextEdit]:
    """The edits of two texts that begin at `i` and `j`."""
    if a == b:
        return
    xs, ys = _WORDS.findall(a), _WORDS.findall(b)
    front = _same_front(xs, ys)
    back = _same_front(xs[front:][::-1], ys[front:][::-1])
    begun = len("".join(xs[:front]))
    xs, ys = xs[front : len(xs) - back], ys[front : len(ys) - back]
    i, j = i + begun, j + begun
    if not effort.spend(len(xs) * len(ys)):
        yield TextEdit(i, j, "".join(xs), "".join(ys))
        return
    matcher = SequenceMatcher(None, xs, ys, autojunk=False)
    for what, x0, x1, y0, y1 in matcher.get_opcodes():
        before, after = "".join(xs[x0:x1]), "".join(ys[y0:y1])
        if what != "equal":
            yield TextEdit(i, j, before, after)
        i, j = i + len(before), j + len(after)


def _same_front(a: list[str], b: list[str]) -> int:
    """How many words both begin with."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count
