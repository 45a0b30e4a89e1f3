"""The resident memory of a process that holds many open threads.

Each thread gets a conversation and one more turn, so that a saver that keeps its last
values of a thread would keep all of it. Invariant: each saver in a fresh process, measured
from after its first thread on, when everything has been loaded.
"""

from __future__ import annotations

import gc
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from bench.conversations import words
from bench.lanes import apart, config_of
from bench.savers import KINDS, threadkeep_sqlite
from bench.sizes import Sizes
from bench.workloads import Graph, chat_graph

MESSAGES = 24  # a thread's first input; about 15 KB of text
SMALL_LIMIT = 8_000_000  # bytes


@dataclass(frozen=True)
class ResidentFigures:
    """Resident bytes gained by `threads` open threads, and the working set's limit."""

    label: str
    threads: int
    text: int  # bytes of message text that went in
    gained: int
    limit: int | None


def measure(kind: str, limit: int | None, sizes: Sizes, folder: Path) -> ResidentFigures:
    """Open `sizes.open_threads` threads; `limit` is threadkeep's `working_set_bytes`."""
    found: ResidentFigures = apart(hold, kind, limit, sizes.open_threads, folder)
    return found


def hold(kind: str, limit: int | None, threads: int, folder: Path) -> ResidentFigures:
    file = folder / f"resident-{kind}-{limit}.db"
    limited = limit is not None
    with (
        threadkeep_sqlite(file, working_set_bytes=limit)
        if limited
        else KINDS[kind].open(file) as saver
    ):
        graph = chat_graph(saver)
        converse(graph, 0)
        before = resident()
        text = sum(converse(graph, number) for number in range(1, threads + 1))
        gained = resident() - before
    return ResidentFigures(KINDS[kind].label, threads, text, gained, limit)


def resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def converse(graph: Graph, number: int) -> int:
    """Two turns on a thread of its own; the bytes of text put in."""
    chance = random.Random(number)
    first = list(talk(chance))
    graph.invoke({"messages": first}, config_of(f"open-{number}"))
    graph.invoke({"messages": [HumanMessage("And then?")]}, config_of(f"open-{number}"))
    return sum(len(message.content) for message in first)


def talk(chance: random.Random) -> Any:
    for number in range(MESSAGES):
        text = words(chance, 90)
        message: AnyMessage = AIMessage(text) if number % 2 else HumanMessage(text)
        yield message
