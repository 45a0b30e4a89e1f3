"""Tools of every part: its arguments, its workers, and the rounds in which it measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from bench.savers import KINDS
from bench.short.figures import Figures, Group
from bench.short.processes import Subject, Worker
from bench.short.sizes import ShortSizes


@dataclass(frozen=True)
class Setting:
    """Arguments of every part; `step(done, total)` reports progress, `say` of a part left out."""

    sizes: ShortSizes
    data: Path | None
    subjects: Sequence[Subject]
    folder: Path
    step: Callable[[int, int], None]
    say: Callable[[str], None]

    def file(self, subject: Subject, part: str) -> Path:
        return self.folder / f"{part}-{subject.name.replace(' ', '-')}.db"

    def worker(self, subject: Subject, under: Sequence[str] = ()) -> Worker:
        return Worker(subject, under)

    def some(self, *left_out: str) -> list[Subject]:
        return [subject for subject in self.subjects if subject.kind not in left_out]

    def lasting(self) -> list[Subject]:
        return [subject for subject in self.subjects if KINDS[subject.kind].lasts]


Part: TypeAlias = Callable[[Setting], Iterator[Group]]


def rounds(
    setting: Setting,
    subjects: Sequence[Subject],
    group: Group,
    measure: Callable[[Subject], Figures],
) -> Group:
    """Measure every saver once a round, each round beginning with another one."""
    total = setting.sizes.rounds * len(subjects)
    for number in range(setting.sizes.rounds):
        at = number % len(subjects) if subjects else 0
        for place, subject in enumerate([*subjects[at:], *subjects[:at]]):
            group.add(subject, measure(subject))
            setting.step(number * len(subjects) + place + 1, total)
    group.rounds = {one: group.rounds[one] for one in subjects if one in group.rounds}
    return group


def fresh(
    setting: Setting,
    subject: Subject,
    part: str,
    order: str,
    under: Sequence[str] = (),
    **given: Any,
) -> Any:
    """Carry out one order in a fresh process on a fresh store, which is removed."""
    file, kind = setting.file(subject, part), KINDS[subject.kind]
    try:
        with setting.worker(subject, under) as worker:
            return worker.ask(order, kind=kind.key, file=file, **given)
    finally:
        kind.remove(file)
