"""Measurements: groups of figures by saver and round, and the ratios that have targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TypeAlias

from bench.short.processes import Subject
from bench.targets import Line

Figures: TypeAlias = dict[str, float]
FLOOR = "floor"
PEERS = {"lg-full", "lg-normal", "lg-memory", "lg-pg"}


@dataclass(frozen=True)
class Aim:
    """A ratio of one figure: beside the peer's or the floor's, above the floor's or as it is."""

    figure: str
    target: float | None = None
    beside: str = "peer"  # "peer", "floor" or "" for the figure as it is
    above_floor: bool = False
    at_least: bool = False
    of: tuple[str, ...] = ()  # the savers that have this target; () for all of ours

    def concerns(self, subject: Subject) -> bool:
        return not self.of or subject.kind in self.of


@dataclass
class Group:
    """Figures of one kind, for each saver and round; `shown` of every round in the table."""

    title: str
    columns: Sequence[str]
    shown: str
    aims: Sequence[Aim]
    rounds: dict[Subject, list[Figures]] = field(default_factory=dict)

    def add(self, subject: Subject, figures: Figures) -> None:
        self.rounds.setdefault(subject, []).append(figures)

    def medians(self, subject: Subject, figure: str) -> float | None:
        """The median over the rounds; None where it was not measured."""
        found = self.all(subject, figure)
        return median(found) if found else None

    def all(self, subject: Subject, figure: str) -> list[float]:
        return [one[figure] for one in self.rounds[subject] if figure in one]

    def of(self, kinds: set[str]) -> Subject | None:
        return next((subject for subject in self.rounds if subject.kind in kinds), None)

    def lines(self) -> Iterator[Line]:
        """Every aim, for each of our savers that it concerns."""
        ours = [one for one in self.rounds if one.kind not in {FLOOR, *PEERS}]
        for aim in self.aims:
            for subject in ours:
                if aim.concerns(subject) and (ratio := self.ratio(aim, subject)) is not None:
                    what = f"{self.title}: {aim.figure}, {subject.name}{self.words(aim)}"
                    target = None if subject.before else aim.target
                    yield Line(what, ratio, target, at_least=aim.at_least)
        yield from self.beside_before(ours)

    def beside_before(self, ours: Sequence[Subject]) -> Iterator[Line]:
        """Every figure of this checkout and of the other one."""
        pairs = [(a, b) for a in ours for b in ours if b.before and replace(b, before=None) == a]
        for now, before in pairs:
            for figure in self.columns:
                found = zip(self.all(now, figure), self.all(before, figure), strict=False)
                if ratios := [a / b for a, b in found if b]:
                    what = f"{self.title}: {figure}, {now.name} beside {before.name}"
                    yield Line(what, median(ratios))

    def words(self, aim: Aim) -> str:
        other = self.of(PEERS) if aim.beside == "peer" else self.of({FLOOR})
        above = ", above the floor" if aim.above_floor else ""
        return f"{above} beside {other.name}" if aim.beside and other else above

    def ratio(self, aim: Aim, subject: Subject) -> float | None:
        """The median of the rounds' ratios; None where something was not measured."""
        floor = self.of({FLOOR})
        other = {"peer": self.of(PEERS), "floor": floor, "": subject}[aim.beside]
        if other is None or (aim.above_floor and floor is None):
            return None
        found = self.all(subject, aim.figure)
        others = self.all(other, aim.figure) if aim.beside else [1.0] * len(found)
        if aim.above_floor and floor is not None:
            floors = self.all(floor, aim.figure)
            found = [a - b for a, b in zip(found, floors, strict=False)]
            others = [a - b for a, b in zip(others, floors, strict=False)]
        ratios = [a / b for a, b in zip(found, others, strict=False) if b]
        return median(ratios) if ratios else None
