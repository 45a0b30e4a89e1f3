"""First calls of a process: python -m bench.short.calling KIND FILE [METHOD...].

Prints a line of JSON for each method: milliseconds of the first and of the next call, and the
modules that the first call imported. Each method has a process of its own, forked before any
saver was opened. Nothing is imported here but the package that is measured and LangGraph.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any, NamedTuple, TypeAlias

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, MessagesState, StateGraph

CONFIG: Any = {"configurable": {"thread_id": "one", "checkpoint_ns": ""}}
THREADS = ("one", "gone 0", "gone 1", "pruned 0", "pruned 1")
TURNS = 3


class Opened(NamedTuple):
    """A saver, and a graph on it."""

    saver: Any
    graph: Any


Call: TypeAlias = Callable[[Opened, int], Any]  # the number of the call


def graph_on(saver: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda _: {"messages": [("ai", "an answer")]})
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def new_checkpoint(number: int) -> tuple[Any, ...]:
    """The arguments of `put`."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"messages": [HumanMessage("hello", id="1")]}
    checkpoint["channel_versions"] = {"messages": 1}
    config = {"configurable": {"thread_id": f"new {number}", "checkpoint_ns": ""}}
    return config, checkpoint, {"source": "loop", "step": 1, "parents": {}}, {"messages": 1}


def exported(of: Opened, number: int) -> None:
    with TemporaryDirectory() as folder:
        of.saver.threads.export_bundle(["one"], f"{folder}/{number}")


BOTH: dict[str, Call] = {
    "get_tuple": lambda of, _: of.saver.get_tuple(CONFIG),
    "list": lambda of, _: list(of.saver.list(CONFIG)),
    "get_state_history": lambda of, _: list(of.graph.get_state_history(CONFIG)),
    "put": lambda of, number: of.saver.put(*new_checkpoint(number)),
    "delete_thread": lambda of, number: of.saver.delete_thread(f"gone {number}"),
}
AWAITED: dict[str, Call] = {
    "aget_tuple": lambda of, _: of.saver.aget_tuple(CONFIG),
    "aput": lambda of, number: of.saver.aput(*new_checkpoint(number)),
}
OURS: dict[str, Call] = {
    "copy_thread": lambda of, number: of.saver.copy_thread("one", f"copy {number}"),
    "prune": lambda of, number: of.saver.prune([f"pruned {number}"]),
    "stats": lambda of, _: of.saver.stats(),
    "check": lambda of, _: of.saver.check(),
    "threads.get": lambda of, _: of.saver.threads.get("one"),
    "threads.search": lambda of, _: of.saver.threads.search(limit=10),
    "threads.count": lambda of, _: of.saver.threads.count(),
    "threads.tag": lambda of, number: of.saver.threads.tag("one", f"tag {number}"),
    "threads.fork": lambda of, number: of.saver.threads.fork("one", None, f"fork {number}"),
    "threads.versions": lambda of, _: of.saver.threads.versions("one", "messages"),
    "threads.export_bundle": exported,
    "threads.gc": lambda of, _: of.saver.threads.gc(),
}


def calls(kind: str) -> dict[str, Call]:
    """The methods of savers of this kind."""
    return {**BOTH, **AWAITED, **({} if kind.startswith("lg-") else OURS)}


def openers(kind: str) -> tuple[Callable[[str], Any], Callable[[str], Any]]:
    """Import the package; how a program opens a saver, and one that is awaited."""
    if kind.startswith("lg-"):
        from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: PLC0415 - one of two
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver  # noqa: PLC0415 - the same

        return SqliteSaver.from_conn_string, AsyncSqliteSaver.from_conn_string
    import threadkeep  # noqa: PLC0415 - one of two

    return threadkeep.SqliteSaver, threadkeep.SqliteSaver


def twice(call: Callable[[int], Any]) -> dict[str, Any]:
    before = set(sys.modules)
    ms, cpu = timed(lambda: call(0))
    found = {"ms": ms, "CPU ms": cpu, "imported": sorted(set(sys.modules) - before)}
    ms, cpu = timed(lambda: call(1))
    return {**found, "next ms": ms, "next CPU ms": cpu}


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Milliseconds, and those of the CPU."""
    start, used = perf_counter(), process_time()
    work()
    return (perf_counter() - start) * 1e3, (process_time() - used) * 1e3


def called(name: str, call: Call, opened: Any) -> dict[str, Any]:
    """Call the method of a saver that is about to be opened."""
    if name not in AWAITED:
        with opened as saver:
            of = Opened(saver, graph_on(saver))
            return twice(lambda number: call(of, number))
    with asyncio.Runner() as runner:
        of = Opened(runner.run(opened.__aenter__()), None)
        found = twice(lambda number: runner.run(call(of, number)))
        runner.run(opened.__aexit__(None, None, None))
        return found


def prepare(opened: Any) -> None:
    with opened as saver:
        graph = graph_on(saver)
        for thread in THREADS:
            for number in range(TURNS):
                config: Any = {"configurable": {"thread_id": thread}}
                graph.invoke({"messages": [("user", f"question {number}")]}, config)


def apart(work: Callable[[], Any]) -> None:
    """Run this in a process that is forked from this one, and fail if it fails."""
    child = os.fork()
    if not child:
        try:
            work()
            sys.stdout.flush()
        except BaseException:  # noqa: BLE001 - the process ends
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise SystemExit(1)


def main(kind: str, file: str, chosen: list[str]) -> None:
    opener, opener_async = openers(kind)
    apart(lambda: prepare(opener(file)))
    gc.collect()
    gc.freeze()
    for name, call in calls(kind).items():
        if not chosen or name in chosen:
            opens = opener_async if name in AWAITED else opener
            apart(lambda: print(json.dumps([name, called(name, call, opens(file))])))  # noqa: B023


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
