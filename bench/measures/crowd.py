"""Many processes with many threads on one file: how much gets done, and what fails.

Every thread of every process chats on a LangGraph thread of its own. Invariant: what
was reported as done is counted again in the file afterwards.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIG_IGN, SIGINT, signal
from time import perf_counter
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver

from bench.errors import BenchError
from bench.lanes import SPAWN, apart, config_of
from bench.savers import KINDS
from bench.sizes import Sizes
from bench.workloads import Graph, chat_graph
from threadkeep.errors import ThreadkeepError


@dataclass(frozen=True)
class CrowdFigures:
    """Figures of a crowd on one file."""

    kind: str
    processes: int
    threads: int
    seconds: float
    turns: int  # reported as done
    lost: int  # reported as done, not in the file
    failed: int
    error: str  # the first one, in one line
    slowest: float  # ms, of the turns that were done
    median: float  # ms


@dataclass(frozen=True)
class Outcome:
    thread: str
    times: tuple[float, ...]
    errors: tuple[str, ...]


def measure(kind: str, sizes: Sizes, folder: Path) -> CrowdFigures:
    """Let `sizes.processes` x `sizes.threads` chats run on one file of this kind."""
    file = folder / f"crowd-{kind}.db"
    apart(prepare, kind, file)
    with ExitStack() as stack:
        crowd = [stack.enter_context(member(kind, file, sizes, n)) for n in range(sizes.processes)]
        try:
            outcomes, seconds = race(crowd)
        except EOFError:
            label = KINDS[kind].label
            raise BenchError(f"a process of {label} failed: its error is above") from None
    return summary(kind, sizes, outcomes, seconds, apart(kept, kind, file, outcomes))


def race(crowd: Sequence[Connection]) -> tuple[list[Outcome], float]:
    """Start all at once when all are ready; what came of it, and the seconds it took."""
    for one in crowd:
        one.recv()
    start = perf_counter()
    for one in crowd:
        one.send("go")
    outcomes: list[Outcome] = [outcome for one in crowd for outcome in one.recv()]
    return outcomes, perf_counter() - start


def prepare(kind: str, file: Path) -> None:
    """Create the file and its tables."""
    with KINDS[kind].open(file):
        pass


@contextmanager
def member(kind: str, file: Path, sizes: Sizes, number: int) -> Iterator[Connection]:
    """One process of the crowd, and the connection to it."""
    ours, theirs = SPAWN.Pipe()
    arguments = (kind, file, sizes, number, theirs)
    process = SPAWN.Process(target=join_in, args=arguments, daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.kill()
        process.join()


def join_in(kind: str, file: Path, sizes: Sizes, number: int, parent: Connection) -> None:
    """The inside of one process: its threads share one saver."""
    signal(SIGINT, SIG_IGN)  # the parent ends us
    with KINDS[kind].open(file) as saver, ThreadPoolExecutor(sizes.threads) as pool:
        graph = chat_graph(saver)
        names = [f"chat-{number}-{n}" for n in range(sizes.threads)]
        parent.send("ready")
        parent.recv()
        parent.send(list(pool.map(partial(chat, graph, sizes.process_turns), names)))


def chat(graph: Graph, turns: int, thread: str) -> Outcome:
    times, errors = [], []
    for turn in range(turns):
        start = perf_counter()
        try:
            graph.invoke({"messages": [HumanMessage(f"{thread} {turn}")]}, config_of(thread))
        except (sqlite3.Error, ThreadkeepError) as error:
            errors.append(f"{type(error).__name__}: {error}".splitlines()[0])
        else:
            times.append((perf_counter() - start) * 1_000)
    return Outcome(thread, tuple(times), tuple(errors))


def kept(kind: str, file: Path, outcomes: list[Outcome]) -> int:
    """Count the turns reported as done that are in the file."""
    with KINDS[kind].open(file) as saver:
        return sum(min(len(o.times), answers(saver, o.thread)) for o in outcomes)


def answers(saver: BaseCheckpointSaver[Any], thread: str) -> int:
    head = saver.get_tuple(config_of(thread))
    messages = head.checkpoint["channel_values"].get("messages", []) if head else []
    return sum(message.type == "ai" for message in messages)


def summary(
    kind: str, sizes: Sizes, outcomes: list[Outcome], seconds: float, found: int
) -> CrowdFigures:
    times = sorted(time for outcome in outcomes for time in outcome.times)
    errors = [error for outcome in outcomes for error in outcome.errors]
    return CrowdFigures(
        kind,
        sizes.processes,
        sizes.threads,
        seconds,
        len(times),
        len(times) - found,
        len(errors),
        errors[0] if errors else "",
        times[-1] if times else 0.0,
        times[len(times) // 2] if times else 0.0,
    )
