"""Proof that a store still has the rows that a process remembers.

Each commit of a thread gets a random number, its *tip*. The thread's row names the tips of its last
commits, newest first. If it names the tip of a commit, the rows of that commit and of all before it
are stored. A store that loses its last commits (a promoted replica, a restored file) no longer
names their tips, whatever other programs commit afterwards; numbers that are counted would repeat.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from threadkeep._core.engine.records import quick

MOST = 16
"""Tips that a thread's row names."""
BITS = 62
"""Bits of a tip. It is positive: 0 stands for none."""


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
    """A thread's row at one moment: what later reads expect of it."""

    generation: int
    base: tuple[int, ...]  # tips that the row must still name
    named: tuple[int, ...]  # tips that it is known to have named

    @classmethod
    def of(cls, row: Row) -> Look:
        tips = row.tips
        return cls(row.generation, tips[:1], tips)


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
        tips = tuple(self.tips)
        return Look(self.generation, tips, tips)

    def holds(self, generation: int, named: Collection[int]) -> bool:
        """Return True if a row of this generation that names these tips still has everything."""
        return generation == self.generation and names(named, self.tips)


@dataclass(slots=True, eq=False)
class Link:
    """Ties one change to the commits that it builds on: the thread's row must name all of `base`.

    `tip` is the change's own. Both are set when the change is sent to the store, as other changes
    of the thread may have been committed since it was built.
    """

    proof: Proof
    base: tuple[int, ...] = ()
    tip: int = 0
    is_open: bool = False  # sent, and not known to be committed

    def tie(self, tip: int) -> None:
        self.base, self.tip, self.is_open = tuple(self.proof.tips), tip, True

    def committed(self) -> None:
        """From now on the tip proves what the process remembers."""
        if self.is_open:
            self.is_open = False
            tips = self.proof.tips
            tips.add(self.tip)
            tips.difference_update(self.base)  # (the change's own tip is new, and not among them)


def names(named: Collection[int], base: Iterable[int]) -> bool:
    """Return True if a row that names some tips has everything that the others prove."""
    return all(map(named.__contains__, base))


def after(named: tuple[int, ...], tip: int) -> tuple[int, ...]:
    """Return the tips that a row names after a commit."""
    return named if tip in named else (tip, *named[: MOST - 1])
