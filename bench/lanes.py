"""A lane: one saver with one workload, in a process of its own that waits between orders.

Many lanes stand side by side and run a few turns each in turn. Invariant: between two
orders a lane does nothing, so whatever it is measured at is its own doing.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIG_IGN, SIGINT, signal
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import psutil
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from bench.errors import BenchError
from bench.messages import plain_json
from bench.savers import KINDS
from bench.sizes import Sizes
from bench.workloads import Call, build

SPAWN = multiprocessing.get_context("spawn")  # a fresh interpreter, on every system


@dataclass(frozen=True)
class Task:
    """Work of a lane, picklable for its process."""

    workload: str
    kind: str
    sizes: Sizes
    data: Path | None
    file: Path


@dataclass(frozen=True)
class Sample:
    """A lane's size at one moment: resident bytes gained, bytes stored (0 in memory)."""

    turn: int
    messages: int
    resident: int
    disk: int = 0


def config_of(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread}, "recursion_limit": 500}


def milliseconds(work: Callable[[], Any]) -> float:
    start = perf_counter()
    work()
    return (perf_counter() - start) * 1_000


class Worker:
    """The lane's inside: runs the workload's turns and looks at what came of them."""

    def __init__(self, task: Task, saver: BaseCheckpointSaver[Any]) -> None:
        self.workload = build(task.workload, task.sizes, task.data)
        self.graph = self.workload.graph(saver, delta=KINDS[task.kind].delta)
        self.calls: Iterator[Call] = self.workload.turns()
        self.done = 0
        self.last = Call("", {})
        self.resident = psutil.Process().memory_info().rss

    def turns(self, count: int) -> list[float]:
        """Run the next `count` turns; milliseconds of each."""
        times = []
        for call in islice(self.calls, count):
            config = config_of(call.thread)
            times.append(milliseconds(lambda: self.graph.invoke(call.input, config)))  # noqa: B023
            self.done, self.last = self.done + 1, call
        return times

    def sample(self) -> Sample:
        gained = psutil.Process().memory_info().rss - self.resident
        return Sample(self.done, self.last.messages, gained)

    def history(self, limit: int, repeats: int) -> list[float]:
        """Milliseconds of each `get_state_history(limit)` on the last thread."""
        config = config_of(self.last.thread)
        return [
            milliseconds(lambda: list(self.graph.get_state_history(config, limit=limit)))
            for _ in range(repeats)
        ]

    def state(self, repeats: int) -> list[float]:
        """Milliseconds of each `get_state` of the last thread's head."""
        config = config_of(self.last.thread)
        return [milliseconds(lambda: self.graph.get_state(config)) for _ in range(repeats)]

    def plain_json(self) -> dict[str, int]:
        """The bytes of the last thread's state as JSON, in LangChain's form and at the least."""
        values = self.graph.get_state(config_of(self.last.thread)).values
        return {"langchain": plain_json(values), "least": plain_json(values, least=True)}


def serve(task: Task, orders: Connection) -> None:
    """The lane's process: carry out orders until the one to close."""
    signal(SIGINT, SIG_IGN)  # the parent ends us
    with KINDS[task.kind].open(task.file) as saver:
        worker = Worker(task, saver)
        orders.send(len(worker.workload))
        while (order := heard(orders)) is not None:
            name, arguments = order
            orders.send(getattr(worker, name)(*arguments))
    orders.send(None)


def heard(orders: Connection) -> tuple[str, tuple[Any, ...]] | None:
    """The next order; if the parent has ended, this process ends too, quietly."""
    try:
        order: tuple[str, tuple[Any, ...]] | None = orders.recv()
    except EOFError:
        sys.exit()
    return order


class Lane:
    """The lane's outside: starts the process and passes orders on."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.label = KINDS[task.kind].label
        self.orders, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=serve, args=(task, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def ready(self) -> int:
        """Wait until the process has started; how many turns its workload has."""
        turns: int = self._answer()
        return turns

    def _answer(self) -> Any:
        try:
            return self.orders.recv()
        except EOFError:
            self.process.join()
            raise BenchError(
                f"{self.label} failed on workload {self.task.workload!r}: its error is above"
            ) from None

    def do(self, name: str, *arguments: Any) -> Any:
        """Have the worker's method `name` called; its result."""
        self.orders.send((name, arguments))
        return self._answer()

    def sample(self) -> Sample:
        """Return its size now.

        The file is looked at from here: SQLite's locks break where one process opens
        a file through two libraries.
        """
        sample: Sample = self.do("sample")
        kind = KINDS[self.task.kind]
        return replace(sample, disk=kind.size(self.task.file))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.orders.send(None)
            self._answer()
        else:
            self.process.kill()
        self.process.join()
        self.orders.close()


def apart(target: Callable[..., Any], *arguments: Any, context: Any = SPAWN) -> Any:
    """Run `target(*arguments)` in a fresh process; its result."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=report, args=(theirs, target, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        raise BenchError(f"{target.__name__} failed: its error is above") from None
    finally:
        ours.close()
        process.kill()
        process.join()


def report(to: Connection, target: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal(SIGINT, SIG_IGN)  # the parent ends us
    to.send(target(*arguments))
