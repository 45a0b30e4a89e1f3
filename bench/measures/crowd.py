"""Many processes with many threads on one file: how much gets done, and what fails.

Every thread of every process chats on a LangGraph thread of its own. Invariant: what
was reported as done is counted again in the file afterwards.
"""

from __future__ import annotations

import multiprocessing
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
from typing import Any, NamedTuple

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver

from bench import sql
from bench.errors import BenchError
from bench.lanes import apart, config_of
from bench.savers import KINDS
from bench.workloads import Graph, chat_graph
from threadkeep.errors import ThreadkeepError

# Processes are forked from one that has imported everything, and has done nothing else.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([__name__])


class Load(NamedTuple):
    """Processes, threads in each, chats of each thread one after the other, turns of a chat."""

    processes: int
    threads: int
    chats: int
    turns: int


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
    held: float  # seconds, of all processes: holding the write lock, ours only
    waited: float  # seconds, of all processes: waiting for it, ours only


@dataclass(frozen=True)
class Outcome:
    thread: str
    times: tuple[float, ...]
    errors: tuple[str, ...]


@dataclass(frozen=True)
class Share:
    """The outcomes of one process, and its seconds with and before the write lock."""

    outcomes: list[Outcome]
    held: float
    waited: float


def measure(kind: str, load: Load, file: Path) -> CrowdFigures:
    """Let the chats run on one file of this kind."""
    apart(prepare, kind, file, context=FORKED)
    with ExitStack() as stack:
        crowd = [stack.enter_context(member(kind, file, load, n)) for n in range(load.processes)]
        try:
            shares, seconds = race(crowd)
        except EOFError:
            label = KINDS[kind].label
            raise BenchError(f"a process of {label} failed: its error is above") from None
    found = apart(kept, kind, file, [o for share in shares for o in share.outcomes], context=FORKED)
    return summary(kind, load, shares, seconds, found)


def race(crowd: Sequence[Connection]) -> tuple[list[Share], float]:
    """Start all at once when all are ready; what came of it, and the seconds it took."""
    for one in crowd:
        one.recv()
    start = perf_counter()
    for one in crowd:
        one.send("go")
    shares: list[Share] = [one.recv() for one in crowd]
    return shares, perf_counter() - start


def prepare(kind: str, file: Path) -> None:
    """Create the file and its tables."""
    with KINDS[kind].open(file):
        pass


@contextmanager
def member(kind: str, file: Path, load: Load, number: int) -> Iterator[Connection]:
    """One process of the crowd, and the connection to it."""
    ours, theirs = FORKED.Pipe()
    arguments = (kind, file, load, number, theirs)
    process = FORKED.Process(target=join_in, args=arguments, daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.kill()
        process.join()


def join_in(kind: str, file: Path, load: Load, number: int, parent: Connection) -> None:
    """The inside of one process: its threads share one saver."""
    signal(SIGINT, SIG_IGN)  # the parent ends us
    with (
        sql.write_lock() as lock,
        KINDS[kind].open(file) as saver,
        ThreadPoolExecutor(load.threads) as pool,
    ):
        graph = chat_graph(saver)
        names = [f"chat-{number}-{n}" for n in range(load.threads * load.chats)]
        parent.send("ready")
        parent.recv()
        held, waited = lock.held, lock.waited
        outcomes = list(pool.map(partial(chat, graph, load.turns), names))
        parent.send(Share(outcomes, lock.held - held, lock.waited - waited))


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
    kind: str, load: Load, shares: Sequence[Share], seconds: float, found: int
) -> CrowdFigures:
    outcomes = [outcome for share in shares for outcome in share.outcomes]
    times = sorted(time for outcome in outcomes for time in outcome.times)
    errors = [error for outcome in outcomes for error in outcome.errors]
    return CrowdFigures(
        kind,
        load.processes,
        load.threads,
        seconds,
        len(times),
        len(times) - found,
        len(errors),
        errors[0] if errors else "",
        times[-1] if times else 0.0,
        times[len(times) // 2] if times else 0.0,
        sum(share.held for share in shares),
        sum(share.waited for share in shares),
    )
