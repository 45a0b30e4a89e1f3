"""Proof that a store still has the rows that a process remembers.

Each commit of a thread gets a random number, its *tip*. The thread's row names the tips of its last
commits, newest first. If it names the tip of a commit, the rows of that commit and of all before it
are stored. A store that loses its last commits (a promoted replica, a restored file) no longer
names their tips, whatever other programs commit afterwards. Numbers that are counted would repeat.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from threadkeep._core.engine.records import quick

SegmentPlace: TypeAlias = tuple[int, int, int]
"""Log and start of a segment, and its count (of a span: its stop)."""

MOST = 16
"""Tips that a thread's row names."""


class Row(Protocol):
    """The columns of a thread's row in a reply."""

    @property
    def generation(self) -> int: ...
    @property
    def life(self) -> int: ...
    @property
    def tips(self) -> tuple[int, ...]: ...


@quick
class Look(NamedTuple):
    """A thread's row at one moment, as later reads expect it."""

    generation: int
    base: tuple[int, ...]  # tips that the row must still name

    @classmethod
    def of(cls, row: Row) -> Look:
        return cls(row.generation, row.tips[:1])


@dataclass(slots=True, eq=False)
class Proof:
    """The state of a thread's row that proves the values which a process remembers.

    The row must have this generation, and name all of the tips: mostly one. Simultaneous commits
    leave several, as none of them proves another. No lock is needed: each change is atomic in
    CPython, and a tip is added before others are removed.
    """

    generation: int
    life: int = 0
    tips: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, row: Row) -> Proof:
        """Return the proof of rows that are read together with the thread's row."""
        return cls(row.generation, row.life, set(row.tips[:1]))

    @property
    def look(self) -> Look:
        return Look(self.generation, tuple(self.tips))

    def holds(self, generation: int, named: Collection[int]) -> bool:
        """Return True if a row of this generation that names these tips still has everything."""
        return generation == self.generation and names(named, self.tips)


class BatchSegments:
    """The segments of one batch, until it is committed."""

    segments: tuple[Any, ...] = ()  # each a `Segment`
    committed = False
    carried: frozenset[SegmentPlace] = frozenset()  # those that another batch has stored

    def mark_stored(self) -> None:
        """Note that no other batch has to carry them now."""
        self.committed = True
        self.segments = ()

    def holding(self, span: SegmentPlace) -> list[Any]:
        """Return the segments that hold a part of the span: log, start and stop."""
        log, start, stop = span
        return [s for s in self.segments if s.log == log and s.start < stop and start < s.stop]


@dataclass(slots=True, eq=False)
class Link:
    """Ties one change to the commits that it builds on: the thread's row must name all of `base`.

    `tip` is the change's own. Both are set when the change is sent to the store, as other changes
    of the thread may have been committed since it was built: among them those whose segments it
    borrows.
    """

    proof: Proof
    base: tuple[int, ...] = ()
    tip: int = 0
    is_open: bool = False  # sent, and not known to be committed
    home: BatchSegments | None = None
    borrowed: tuple[tuple[BatchSegments, Any], ...] = ()
    stored: frozenset[SegmentPlace] = frozenset()  # segments of the change that the base proves

    def tie(self, tip: int) -> None:
        home, borrowed = self.home, self.borrowed
        if borrowed or (home is not None and home.carried):
            # (before the base: it then names their commits)
            stored = [one[:3] for by, one in borrowed if by.committed or one[:3] in by.carried]
            self.stored = frozenset(stored) if home is None else home.carried.union(stored)
        self.base, self.tip, self.is_open = tuple(self.proof.tips), tip, True

    def committed(self) -> None:
        """From now on the tip proves the process's memory."""
        if self.is_open:
            self.is_open = False
            tips = self.proof.tips
            tips.add(self.tip)
            tips.difference_update(self.base)  # (the change's own tip is new, and not among them)
        for by, one in self.borrowed:
            by.carried |= {one[:3]}
        if self.home is not None:
            self.home.mark_stored()


def names(named: Collection[int], base: Iterable[int]) -> bool:
    """Return True if a row that names some tips has everything that the others prove."""
    return all(map(named.__contains__, base))


def after(named: tuple[int, ...], tip: int) -> tuple[int, ...]:
    """Return the tips that a row names after a commit."""
    return named if tip in named else (tip, *named[: MOST - 1])
