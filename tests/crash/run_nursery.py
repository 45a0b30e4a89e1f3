"""Raises workers that resume the threads of one store, until they are killed.

Run as a program: for each line of JSON on stdin it forks a worker (everything is imported by then)
with these options, and prints its process id. A worker appends lines to a log:

    begin THREAD INPUT NODE KEY PID   a task begins
    saved TASK                        the store has confirmed the task's writes
    lost THREAD PID                   the worker's guard has lost its lease
    accepted THREAD KEY               the store has confirmed an input
"""

import asyncio
import importlib
import json
import operator
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import wraps
from typing import Annotated, Any, TypedDict

import langgraph.checkpoint.base.id as ids
from langgraph.checkpoint.serde.types import ERROR
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime

from threadkeep import MemorySaver, open_saver, task_key
from threadkeep.errors import LeaseLostError, ThreadkeepError

NODES = ("plan", "left", "right", "end")
DEFAULTS = {"slow": 0.0, "lease": 30, "offset": 0, "tasks": 1, "attempts": 3, "submits": []}


class State(TypedDict, total=False):
    said: str
    done: Annotated[list[str], operator.add]


class PoisonError(Exception):
    """A run that fails each time."""


class Log:
    """A file that several processes append lines to."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(self, *words: object) -> None:
        os.write(self.file, (" ".join(map(str, words)) + "\n").encode())


def graph_on(saver: Any, log: Log | None = None, slow: float = 0.0, seed: int = 0) -> Any:
    chance = random.Random(seed)

    def named(name: str) -> Any:
        def node(state: State, runtime: Runtime) -> Any:
            said = state["said"]
            if log is not None:
                thread = runtime.execution_info.thread_id
                log.say("begin", thread, said, name, task_key(runtime), os.getpid())
            time.sleep(slow * chance.random())
            if said.startswith("poison"):
                raise PoisonError
            if said.startswith("deadly"):
                os._exit(1)
            return {"done": [f"{said}/{name}"]}

        return node

    builder = StateGraph(State)
    for name in NODES:
        builder.add_node(name, named(name))
    builder.add_edge(START, "plan").add_edge("plan", "left").add_edge("plan", "right")
    builder.add_edge(["left", "right"], "end")
    return builder.compile(checkpointer=saver)


def telling(saver: Any, log: Log) -> None:
    """Let a saver tell which tasks are stored."""
    put_writes, aput_writes = saver.put_writes, saver.aput_writes

    def say(writes: Any, task_id: str) -> None:
        if ERROR not in dict(writes):
            log.say("saved", task_id)

    @wraps(put_writes)
    def put(config: Any, writes: Any, task_id: str, *path: str) -> None:
        put_writes(config, writes, task_id, *path)
        say(writes, task_id)

    @wraps(aput_writes)
    async def aput(config: Any, writes: Any, task_id: str, *path: str) -> None:
        await aput_writes(config, writes, task_id, *path)
        say(writes, task_id)

    saver.put_writes, saver.aput_writes = put, aput


def put_clock(offset: int) -> None:
    """Let the clock of this process be wrong by so many seconds."""
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + offset
    time.time_ns = lambda: real_ns() + offset * 10**9
    ids._last_v6_timestamp = None


class Worker:
    """Resumes threads for ever, one after the other or in several tasks at once."""

    def __init__(self, saver: Any, graph: Any, log: Log, seed: int, **options: Any) -> None:
        self.saver, self.graph, self.log = saver, graph, log
        self.chance, self.options = random.Random(seed), options
        self.parent = os.getppid()

    def resume(self) -> None:
        while os.getppid() == self.parent:
            with suppress(ThreadkeepError):  # (a server is restarted)
                for thread in self.shuffled(self.saver.runs.unfinished()):
                    try:
                        self.saver.runs.resume(self.graph, thread, **self.options)
                    except (ThreadkeepError, PoisonError) as error:
                        self.note(thread, error)
            time.sleep(0.02)

    async def aresume(self) -> None:
        while os.getppid() == self.parent:
            with suppress(ThreadkeepError):
                found = [one async for one in self.saver.runs.aunfinished()]
                for thread in self.shuffled(found):
                    try:
                        await self.saver.runs.aresume(self.graph, thread, **self.options)
                    except (ThreadkeepError, PoisonError) as error:
                        self.note(thread, error)
            await asyncio.sleep(0.02)

    async def aresume_at_once(self, tasks: int) -> None:
        await asyncio.gather(*[self.aresume() for _ in range(tasks)])

    def shuffled(self, found: Iterable[Any]) -> list[str]:
        threads = [one.id for one in found]
        self.chance.shuffle(threads)
        return threads

    def note(self, thread: str, error: Exception) -> None:
        if isinstance(error, LeaseLostError):
            self.log.say("lost", thread, os.getpid())


def work(url: str, log: str, seed: int, **more: Any) -> None:
    """Submit inputs, or resume threads."""
    if more["offset"]:
        put_clock(more["offset"])
    own_log = Log(log)
    options: dict[str, Any] = {"synchronous": "normal"} if url.startswith("sqlite") else {}
    saver = open_saver(url, **options)
    telling(saver, own_log)
    graph = graph_on(saver, own_log, more["slow"], seed)
    for thread, key in more["submits"]:
        saver.runs.submit(graph, thread, {"said": key}, key=key)
        own_log.say("accepted", thread, key)
    if more["submits"]:
        return
    given: dict[str, Any] = {"lease": more["lease"], "max_attempts": more["attempts"]}
    worker = Worker(saver, graph, own_log, seed, **given)
    if more["tasks"] == 1:
        worker.resume()
    else:
        asyncio.run(worker.aresume_at_once(more["tasks"]))


def warm_up() -> None:
    """Import modules that are imported at their first use: once, not in every worker."""
    for backend in ("sqlite", "postgres", "redis", "mysql"):
        importlib.import_module(f"threadkeep._stores.{backend}")
    with MemorySaver() as saver:
        graph = graph_on(saver)
        saver.runs.submit(graph, "t", {"said": "hello"})
        saver.runs.resume(graph, "t")
    deadline = time.monotonic() + 10  # (the thread that renews leases ends by itself)
    while threading.active_count() > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == 1  # a child would not have the others


def main() -> None:
    warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                work(**{**DEFAULTS, **json.loads(line)})
            finally:
                sys.stdout.flush()
                os._exit(0)
        os.write(1, f"{child}\n".encode())


if __name__ == "__main__":
    main()
