"""The inside of a worker process: `python -m bench.short.worker`.

Orders come as lines of JSON on stdin, results go as lines of JSON to stdout. Modules that
an order needs are loaded before the clock starts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from signal import SIG_IGN, SIGINT, signal
from typing import Any

from bench import lanes
from bench.measures import crowd
from bench.savers import KINDS
from bench.short import playing, replaying, unknown
from bench.sizes import QUICK, SMOKE, Sizes

MAIN_SIZES = {sizes.name: sizes for sizes in (Sizes(), QUICK, SMOKE)}


class Long:
    """The endless thread of the main suite, some turns at a time."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.worker: lanes.Worker | None = None

    def open(self, kind: str, file: str, data: str | None, sizes: str) -> int:
        """Open the saver and return the number of turns."""
        task = lanes.Task(
            "endless", kind, MAIN_SIZES[sizes], Path(data) if data else None, Path(file)
        )
        self.worker = lanes.Worker(task, self.stack.enter_context(KINDS[kind].open(Path(file))))
        return len(self.worker.workload)

    def turns(self, count: int) -> dict[str, list[float]]:
        """Run so many turns: the milliseconds of each, and the CPU's, which are alike for all."""
        if self.worker is None:
            raise AssertionError("opened first")
        used = playing.cpu()
        times = self.worker.turns(count)
        used = playing.cpu() - used
        return {"ms": times, "CPU ms": [used / count * 1_000] * count}


def crowded(kind: str, file: str, load: list[int]) -> dict[str, Any]:
    """Let other processes chat on one file."""
    return asdict(crowd.measure(kind, crowd.Load(*load), Path(file)))


def orders(stack: ExitStack) -> dict[str, Callable[..., Any]]:
    """Savers by name; open ones are closed with the stack."""
    long = Long(stack)
    return {
        "together": playing.together,
        "one_by_one": playing.one_by_one,
        "traced_together": playing.traced_together,
        "traced_thread": playing.traced_thread,
        "crowd": crowded,
        "first_puts": unknown.first_puts,
        "new_savers": unknown.new_savers,
        "resident": playing.resident,
        "fill": unknown.fill,
        "cold_threads": unknown.cold_threads,
        "cold": playing.cold,
        "microseconds": replaying.microseconds,
        "counted": replaying.counted,
        "open_long": long.open,
        "turns": long.turns,
    }


def serve() -> None:
    """Carry out orders until there are no more."""
    signal(SIGINT, SIG_IGN)  # the parent ends us
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # all output is written to stderr
    with ExitStack() as stack:
        known = orders(stack)
        for line in sys.stdin:
            order, given = json.loads(line)
            answers.write(json.dumps(known[order](**given)) + "\n")
            answers.flush()


if __name__ == "__main__":
    serve()
