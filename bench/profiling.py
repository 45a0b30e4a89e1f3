"""Profiles: cProfile around every call that LangGraph makes to the saver.

LangGraph calls from several threads, and a profile sees one at a time: so the calls
are let through one by one, which changes waiting but not work.
"""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from threading import RLock
from typing import Any

from rich.console import Console

from bench.lanes import config_of, milliseconds
from bench.savers import KINDS
from bench.sizes import Sizes
from bench.workloads import build

CALLS = ("get_tuple", "put", "put_writes")


def profile(kind: str, sizes: Sizes, data: Path | None, folder: Path, console: Console) -> None:
    """Run the endless thread, profile the saver's part of its last 100 turns, print it."""
    profiler, lock = cProfile.Profile(), RLock()
    with KINDS[kind].open(folder / f"profile-{kind}.db") as saver:
        workload = build("endless", sizes, data)
        graph = workload.graph(saver, delta=KINDS[kind].delta)
        first, times = max(0, len(workload) - 100), []
        for number, call in enumerate(workload.turns()):
            if number == first:
                for name in CALLS:
                    setattr(saver, name, watched(getattr(saver, name), profiler, lock))
            config = config_of(call.thread)
            times.append(milliseconds(lambda: graph.invoke(call.input, config)))  # noqa: B023
    stats = pstats.Stats(profiler, stream=console.file)
    saver_ms = stats.total_tt * 1_000 / max(1, len(times[first:]))  # type: ignore[attr-defined]
    console.print(f"{KINDS[kind].label}: {saver_ms:.2f} ms a turn in the saver, profiled")
    stats.sort_stats("tottime").print_stats(25)
    stats.sort_stats("cumulative").print_stats("threadkeep", 25)


def watched(
    call: Callable[..., Any], profiler: cProfile.Profile, lock: RLock
) -> Callable[..., Any]:
    @wraps(call)  # LangGraph reads the signature
    def run(*arguments: Any, **named: Any) -> Any:
        with lock:
            return profiler.runcall(call, *arguments, **named)

    return run
