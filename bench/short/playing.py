"""Conversations played over a saver, inside a worker: many at once, or one by one."""

from __future__ import annotations

import asyncio
import gc
import resource
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
from langgraph.checkpoint.base import BaseCheckpointSaver

from bench import postgres, sql
from bench.conversations import Conversation, Turn, joined, load, made_up
from bench.errors import BenchError
from bench.lanes import config_of, milliseconds
from bench.opening import OpenedAsync
from bench.savers import KINDS
from bench.short import counting
from bench.workloads import Replay

WARM = 4  # conversations that do not count


def conversations(data: str | None, count: int | None) -> list[Conversation]:
    """So many conversations, from the first again where there are fewer; None: as they are."""
    found = load(Path(data)) if data else made_up(count or 100)
    return found if count is None else [found[n % len(found)] for n in range(count)]


def cpu() -> float:
    """CPU seconds of this process so far, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def together(
    kind: str, file: str, data: str | None, runs: int, turns: int | None
) -> dict[str, Any]:
    """Play conversations at once, each on its own thread."""
    chosen = conversations(data, runs)
    return asyncio.run(_together(kind, Path(file), chosen, turns))


def traced_together(**given: Any) -> Counter[str]:
    """Count the statements of conversations at once, opening included, by their first word."""
    with sql.statements() as found:
        together(**given)
    return found


def traced_thread(kind: str, file: str) -> dict[str, Any]:
    """Play a made-up conversation twice, on a new file each: timed, and its statements counted."""
    (one,) = conversations(None, 1)
    with KINDS[kind].open(Path(file)) as saver:
        ms = milliseconds(lambda: _play(saver, [one], "run"))
    with sql.statements() as found, KINDS[kind].open(Path(f"{file}-traced")) as saver:
        found.clear()
        before = counting.syncs()
        _play(saver, [one], "run")
        after, counts = counting.syncs(), found.copy()
    synced = None if before is None or after is None else after - before
    return {"turns": len(one.turns), "ms": ms, "statements": counts, "fsyncs": synced}


def resident(kind: str, file: str, threads: int, at_once: int) -> dict[str, float]:
    """Resident bytes gained by so many threads of three turns, and the seconds they took."""
    return asyncio.run(_resident(kind, Path(file), threads, at_once))


async def _resident(kind: str, file: Path, threads: int, at_once: int) -> dict[str, float]:
    async with _opener(kind)(file) as saver:
        await asyncio.gather(*[_run(saver, brief(), None, f"warm {n}", []) for n in range(at_once)])
        before, start, used = rss(), perf_counter(), cpu()
        numbers = iter(range(threads))

        async def converse() -> None:
            for number in numbers:
                await _run(saver, brief(), None, f"run {number}", [])

        await asyncio.gather(*[converse() for _ in range(at_once)])
        seconds, used = perf_counter() - start, cpu() - used
        return {"gained": rss() - before, "seconds": seconds, "CPU s": used}


def brief() -> Conversation:
    """A conversation of three turns and 3,000 characters."""
    text = "word " * 100
    answer = {"role": "assistant", "content": text}
    return Conversation("brief", "", (Turn({"role": "user", "content": text}, (answer,)),) * 3)


def rss() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _opener(kind: str) -> Callable[[Path], OpenedAsync]:
    opener = KINDS[kind].open_async
    if opener is None:
        raise BenchError(f"{KINDS[kind].label} cannot be awaited")
    return opener


async def _together(
    kind: str, file: Path, chosen: Sequence[Conversation], turns: int | None
) -> dict[str, Any]:
    async with _opener(kind)(file) as saver:
        await _all(saver, chosen[:WARM], turns, "warm", [])
        of_server = postgres.cpu(file) if KINDS[kind].on_postgres else None
        times: list[float] = []
        start, used = perf_counter(), cpu()
        supersteps = await _all(saver, chosen, turns, "run", times)
        seconds, used = perf_counter() - start, cpu() - used
        if of_server is not None:
            of_server = (postgres.cpu(file) or of_server) - of_server
    return {
        "supersteps": supersteps,
        "seconds": seconds,
        "cpu": used,
        "times": times,
        "server_cpu": of_server,
    }


async def _all(
    saver: BaseCheckpointSaver[Any],
    chosen: Sequence[Conversation],
    turns: int | None,
    name: str,
    times: list[float],
) -> int:
    runs = [_run(saver, one, turns, f"{name} {n}", times) for n, one in enumerate(chosen)]
    return sum(await asyncio.gather(*runs))


async def _run(
    saver: BaseCheckpointSaver[Any],
    conversation: Conversation,
    turns: int | None,
    thread: str,
    times: list[float],
) -> int:
    replay = Replay("", [conversation], limit=turns, awaits=True)
    graph = replay.graph(saver, delta=False)
    for call in replay.turns():
        start = perf_counter()
        await graph.ainvoke(call.input, config_of(thread))
        times.append((perf_counter() - start) * 1_000)
    return replay.supersteps


def one_by_one(
    kind: str, file: str, data: str | None, count: int | None, *, warm: bool, join: bool = False
) -> dict[str, Any]:
    """Play conversations one after the other; with `join`, as one long one."""
    chosen = conversations(data, count)
    with KINDS[kind].open(Path(file)) as saver:
        if warm:
            _play(saver, chosen[:WARM], "warm")
        start, used = perf_counter(), cpu()
        supersteps = _play(saver, [joined(chosen)] if join else chosen, "run")
        return {
            "supersteps": supersteps,
            "seconds": perf_counter() - start,
            "cpu": cpu() - used,
        }


def _play(saver: BaseCheckpointSaver[Any], chosen: Sequence[Conversation], name: str) -> int:
    supersteps = 0
    for number, conversation in enumerate(chosen):
        replay = Replay("", [conversation])
        graph = replay.graph(saver, delta=False)
        for call in replay.turns():
            graph.invoke(call.input, config_of(f"{name} {number}"))
        supersteps += replay.supersteps
    return supersteps


def cold(kind: str, file: str, threads: int, reads: int) -> dict[str, list[float]]:
    """Milliseconds of the first `get_tuple` of a new saver, and of the one for the next thread.

    A saver object for each; the first one, for which modules are loaded, does not count.
    """
    first, following = [], []
    for number in range(reads + 1):
        one, other = (config_of(f"run {n % threads}") for n in (number, number + 1))
        with KINDS[kind].open(Path(file)) as saver:
            first.append(milliseconds(lambda: saver.get_tuple(one)))  # noqa: B023 - called here
            following.append(milliseconds(lambda: saver.get_tuple(other)))  # noqa: B023 - the same
    return {"ms": first[1:], "next thread ms": following[1:]}
