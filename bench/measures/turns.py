"""Growth and time of turns: the savers run a workload side by side, taking turns.

Invariant: all lanes are at the same turn when one is measured, and the last turns,
which count, are run in small blocks in rotation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.lanes import Lane, Sample, Task
from bench.savers import KINDS
from bench.sizes import Sizes


@dataclass
class LaneFigures:
    """Figures of one lane: milliseconds of every turn, sizes on the way, reads at the end."""

    kind: str
    times: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    history: list[float] = field(default_factory=list)  # get_state_history(limit=20), ms
    state: list[float] = field(default_factory=list)  # get_state of the head, ms
    disk: int = 0  # bytes after closing
    file: Path = Path()


@dataclass
class TurnFigures:
    """All lanes of one workload, and the final state as plain JSON, in bytes."""

    title: str
    turns: int
    messages: int
    lanes: list[LaneFigures]
    plain_json: dict[str, int]

    def of(self, kind: str) -> list[LaneFigures]:
        return [lane for lane in self.lanes if lane.kind == kind]


@dataclass(frozen=True)
class Run:
    """One workload over several savers; `lanes` runs of the quick ones."""

    workload: str
    kinds: Sequence[str]
    sizes: Sizes
    data: Path | None
    folder: Path
    lanes: int = 1

    def tasks(self) -> list[Task]:
        return [
            Task(
                self.workload,
                key,
                self.sizes,
                self.data,
                self.folder / f"{self.workload}-{key}-{n}.db",
            )
            for key in self.kinds
            for n in range(self.lanes if KINDS[key].quick else 1)
        ]


def stops(turns: int, last: int) -> list[int]:
    """The turns at which every lane waits for the others: closer together at first."""
    fill = max(0, turns - last)
    marks = [5, 10, 25, 50, *range(100, fill, 100), fill]
    return sorted({mark for mark in marks if 0 < mark <= fill})


def measure(run: Run, title: str, step: Callable[[int, int], None]) -> TurnFigures:
    """Run the workload to its end in every lane; `step(done, total)` reports progress."""
    with ExitStack() as stack:
        lanes = [stack.enter_context(Lane(task)) for task in run.tasks()]
        figures = [LaneFigures(lane.task.kind, file=lane.task.file) for lane in lanes]
        turns = min(lane.ready() for lane in lanes)  # all the same; every one is waited for
        for blocks in (stops(turns, run.sizes.last), last_blocks(turns, run.sizes)):
            for stop in blocks:
                for lane, found in zip(lanes, figures, strict=True):
                    found.times += lane.do("turns", stop - len(found.times))
                    found.samples.append(lane.sample())
                    step(sum(len(f.times) for f in figures), turns * len(lanes))
        read(lanes, figures)
        plain = lanes[0].do("plain_json")
    for found in figures:
        found.disk = KINDS[found.kind].closed_size(found.file)
    return TurnFigures(title, turns, figures[0].samples[-1].messages, figures, plain)


def last_blocks(turns: int, sizes: Sizes) -> list[int]:
    fill = max(0, turns - sizes.last)
    return [min(turns, stop + sizes.block) for stop in range(fill, turns, sizes.block)]


def read(lanes: Sequence[Lane], figures: Sequence[LaneFigures]) -> None:
    """Read the head and the newest history, in rotation, each once to warm up."""
    for _ in range(4):
        for lane, found in zip(lanes, figures, strict=True):
            found.history += lane.do("history", 20, 1)
            found.state += lane.do("state", 3)
    for found in figures:
        del found.history[0], found.state[:3]
