"""Cold reads: a saver that has just been opened reads the head, or the newest history.

Every saver object is fresh, so nothing is cached in it; the files are in the system's
page cache for all alike. Invariant: the savers take turns, and the first round, in
which modules are loaded, does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.lanes import apart, config_of, milliseconds
from bench.savers import KINDS
from bench.sizes import Sizes
from bench.workloads import build


@dataclass
class ColdFigures:
    """Milliseconds of each cold read."""

    kind: str
    tuple: list[float] = field(default_factory=list)  # get_tuple of the head
    state: list[float] = field(default_factory=list)  # graph.get_state of the head
    history: list[float] = field(default_factory=list)  # get_state_history(limit=20)


def measure(
    workload: str, files: Mapping[str, Path], sizes: Sizes, data: Path | None
) -> list[ColdFigures]:
    """Read from each kind's file `sizes.reads` times, in a process of its own."""
    found: list[ColdFigures] = apart(rounds, workload, dict(files), sizes, data)
    return found


def rounds(
    workload: str, files: dict[str, Path], sizes: Sizes, data: Path | None
) -> list[ColdFigures]:
    figures = [ColdFigures(kind) for kind in files]
    thread = next(iter(build(workload, sizes, data).turns())).thread
    for _ in range(sizes.reads + 1):
        for found in figures:
            read(found, files[found.kind], workload, thread, sizes)
    for found in figures:
        del found.tuple[0], found.state[0], found.history[0]
    return figures


def read(found: ColdFigures, file: Path, workload: str, thread: str, sizes: Sizes) -> None:
    kind = KINDS[found.kind]
    config = config_of(thread)
    with kind.open(file) as saver:
        found.tuple.append(milliseconds(lambda: saver.get_tuple(config)))
    with kind.open(file) as saver:
        graph = build(workload, sizes, None).graph(saver, delta=kind.delta)
        found.state.append(milliseconds(lambda: graph.get_state(config)))
    with kind.open(file) as saver:
        graph = build(workload, sizes, None).graph(saver, delta=kind.delta)
        found.history.append(milliseconds(lambda: list(graph.get_state_history(config, limit=20))))
