"""The parts of a run, by name: which savers each one measures, and on what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from bench.measures import copies, crowd, puts, reads, resident, turns
from bench.measures import runs as runs_at_once
from bench.results import Results
from bench.savers import KINDS
from bench.sizes import Sizes
from bench.workloads import build

COPYING = {"pg", "redis"}  # savers whose copy of a whole thread is timed
Step: TypeAlias = Callable[[int, int], None]  # done, total


@dataclass(frozen=True)
class Setting:
    """Arguments of every part: sizes, data, savers, folder."""

    sizes: Sizes
    data: Path | None
    kinds: Sequence[str]
    folder: Path


def run_turns(name: str, setting: Setting, results: Results, step: Step, lanes: int = 1) -> None:
    workload = build(name, setting.sizes, setting.data)
    kinds = [key for key in setting.kinds if workload.delta or not KINDS[key].delta]
    run = turns.Run(name, kinds, setting.sizes, setting.data, setting.folder, lanes)
    results.turns[name] = turns.measure(run, workload.title, step)


def run_simple(name: str) -> Callable[[Setting, Results, Step], None]:
    def part(setting: Setting, results: Results, step: Step) -> None:
        run_turns(name, setting, results, step)
        forget(results.turns[name])

    return part


def endless(setting: Setting, results: Results, step: Step) -> None:
    """The endless thread, and then cold reads of it."""
    run_turns("endless", setting, results, step, setting.sizes.lanes)
    figures = results.turns["endless"]
    files = {lane.kind: lane.file for lane in figures.lanes if KINDS[lane.kind].lasts}
    if files:
        results.cold = reads.measure("endless", files, setting.sizes, setting.data)
    for kind in COPYING & files.keys():
        results.copies.append(copies.measure(kind, files[kind], setting.sizes, setting.data))
    forget(figures)


def forget(figures: turns.TurnFigures) -> None:
    """Remove the stored data, as LangGraph's takes gigabytes."""
    for lane in figures.lanes:
        KINDS[lane.kind].remove(lane.file)


def runs(setting: Setting, results: Results, step: Step) -> None:
    kinds = [key for key in setting.kinds if KINDS[key].open_async]
    for number, kind in enumerate(kinds, 1):
        sizes, folder = setting.sizes, setting.folder
        results.runs.append(runs_at_once.measure(kind, sizes, setting.data, folder))
        KINDS[kind].remove(folder / f"runs-{kind}.db")
        step(number, len(kinds))


def put(setting: Setting, results: Results, step: Step) -> None:
    kinds = lasting(setting)
    for number, kind in enumerate(kinds, 1):
        results.puts += puts.measure(kind, setting.sizes, setting.folder)
        step(number, len(kinds))


def processes(setting: Setting, results: Results, step: Step) -> None:
    kinds = lasting(setting)
    sizes = setting.sizes
    load = crowd.Load(sizes.processes, sizes.threads, 1, sizes.process_turns)
    for number, kind in enumerate(kinds, 1):
        results.crowd.append(crowd.measure(kind, load, setting.folder / f"crowd-{kind}.db"))
        step(number, len(kinds))


def memory(setting: Setting, results: Results, step: Step) -> None:
    cases: list[tuple[str, int | None]] = [
        (kind, None) for kind in setting.kinds if kind in {"memory", "full", "lg-memory", "lg-full"}
    ]
    if "full" in setting.kinds:
        cases.append(("full", resident.SMALL_LIMIT))
    for number, (kind, limit) in enumerate(cases, 1):
        results.resident.append(resident.measure(kind, limit, setting.sizes, setting.folder))
        step(number, len(cases))


def lasting(setting: Setting) -> list[str]:
    """The savers with a store, without the DeltaChannel ones: the graphs here have none."""
    return [key for key in setting.kinds if KINDS[key].lasts and not KINDS[key].delta]


PARTS: dict[str, Callable[[Setting, Results, Step], None]] = {
    "chat": run_simple("chat"),
    "conversations": run_simple("conversations"),
    "endless": endless,
    "document": run_simple("document"),
    "files": run_simple("files"),
    "put": put,
    "processes": processes,
    "memory": memory,
    "runs": runs,
}
ON_SQLITE = tuple(part for part in PARTS if part != "runs")
ON_SERVER = ("endless", "runs")
