"""Calls on threads that a saver or a process does not know, inside a worker."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from time import process_time
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, ChannelVersions

from bench import many
from bench.lanes import config_of
from bench.savers import KINDS
from bench.short.replaying import MEASURED, Call, played, record, replay

WARM = 3  # calls that do not count
FASTER = {"full": "normal", "lg-full": "lg-normal"}  # they make the same file


def first_puts(kind: str, file: str, data: str | None, threads: int) -> float:
    """CPU microseconds of the first `put` of a new thread by an open saver, the mean."""
    calls, used = record(data), 0.0
    first = next(n for n, call in enumerate(calls) if call.name == "put")
    with KINDS[kind].open(Path(file)) as saver:
        played(saver, deepcopy(calls), "warm")
        for number in range(threads):
            for call, make in replay(saver, deepcopy(calls[: first + 1]), f"new {number}"):
                spent = seconds(make)
                used += spent if call.name == "put" else 0.0
    return used / threads * 1e6


def new_savers(kind: str, file: str, data: str | None, threads: int) -> dict[str, float]:
    """CPU milliseconds of one turn of a short thread and of opening its saver, the mean.

    Each turn has a saver of its own, in this one process.
    """
    earlier, turn = short_thread(record(data))
    count = threads + WARM
    with KINDS[kind].open(Path(file)) as saver:
        for number in range(count):
            played(saver, deepcopy(earlier), f"thread {number}")
    opening = calls = 0.0
    for number in range(count):
        own, start = deepcopy(turn), process_time()
        with KINDS[kind].open(Path(file)) as saver:
            opened = process_time()
            played(saver, own, f"thread {number}")
            done = process_time()
        if number >= WARM:
            opening, calls = opening + opened - start, calls + done - opened
    return {"CPU ms": calls / threads * 1e3, "open CPU ms": opening / threads * 1e3}


def short_thread(calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
    """The first turn of a thread of about twenty messages, and the calls before it.

    The last turn, if the thread is shorter.
    """
    starts = [n for n, call in enumerate(calls) if call.name == "get_tuple"]
    start = next((n for n in starts if calls[n].messages in MEASURED), starts[-1])
    stop = next((n for n in starts if n > start), len(calls))
    return list(calls[:start]), list(calls[start:stop])


def fill(kind: str, file: str, threads: int) -> None:
    """Store so many threads of one checkpoint."""
    with KINDS[FASTER.get(kind, kind)].open(Path(file)) as saver:
        many.fill(saver, range(threads))


def cold_threads(kind: str, file: str, threads: int, calls: int, seed: int) -> dict[str, float]:
    """CPU microseconds of `get_tuple` of one of many threads, and of the `put` after it."""
    some = random.Random(seed).sample(range(threads), min(threads, calls + WARM))
    used = {"get": 0.0, "put": 0.0}
    with KINDS[kind].open(Path(file)) as saver:
        for count, number in enumerate(some):
            get, put = get_and_put(saver, number)
            if count >= WARM:
                used = {"get": used["get"] + get, "put": used["put"] + put}
    return {f"{name} CPU us": spent / (len(some) - WARM) * 1e6 for name, spent in used.items()}


def get_and_put(saver: BaseCheckpointSaver[Any], number: int) -> tuple[float, float]:
    """CPU seconds of both."""
    found: list[Any] = []
    get = seconds(lambda: found.append(saver.get_tuple(config_of(many.named(number)))))
    config, checkpoint = found[0].config, many.checkpoint(number)
    old = found[0].checkpoint["channel_values"]["messages"]
    checkpoint["channel_values"]["messages"] = [*old, "an answer"]
    new: ChannelVersions = {"messages": 2}
    checkpoint["channel_versions"] = new
    return get, seconds(lambda: saver.put(config, checkpoint, many.metadata(number), new))


def seconds(make: Callable[[], Any]) -> float:
    start = process_time()
    make()
    return process_time() - start
