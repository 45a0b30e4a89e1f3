"""A whole thread copied inside the store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.lanes import apart, config_of, milliseconds
from bench.savers import KINDS
from bench.sizes import Sizes
from bench.workloads import build


@dataclass(frozen=True)
class CopyFigures:
    """Milliseconds of each copy of a thread with so many checkpoints."""

    kind: str
    checkpoints: int
    times: list[float]


def measure(kind: str, file: Path, sizes: Sizes, data: Path | None) -> CopyFigures:
    """Copy the endless thread a few times, in a process of its own."""
    found: CopyFigures = apart(copies, kind, file, sizes, data)
    return found


def copies(kind: str, file: Path, sizes: Sizes, data: Path | None) -> CopyFigures:
    thread = next(iter(build("endless", sizes, data).turns())).thread
    with KINDS[kind].open(file) as saver:
        count = sum(1 for _ in saver.list(config_of(thread)))
        times = [
            milliseconds(lambda: saver.copy_thread(thread, f"copy {n}"))  # noqa: B023 - called here
            for n in range(sizes.copies)
        ]
    return CopyFigures(kind, count, times)
