"""The suite `threads`: many threads in one store, compared with scans of the whole store.

The same threads are saved through `put` into each saver. LangGraph's savers have no such queries,
so a program scans `list(None)` instead. Each query is timed several times in turns, and the report
has the least time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, cast

from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint
from langgraph.checkpoint.base.id import uuid6
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench import report
from bench.lanes import apart
from bench.savers import KINDS, Kind
from bench.targets import Line
from threadkeep import Retention, Saver

PAGE = 50
USERS = 1000
REPEATS = 5
MOST = 100  # milliseconds of a total, as a target
PAIRS = {
    "sqlite": ("normal", "lg-normal"),
    "postgres": ("pg", "lg-pg"),
    "redis": ("redis", "lg-pg"),
}


@dataclass
class Figure:
    """Time of one query in milliseconds, and its result."""

    question: str
    ours: float
    peer: float | None
    found: int
    cpu: float | None = None  # milliseconds of this process, ours

    @property
    def ratio(self) -> float | None:
        """Factor by which ours is faster."""
        return None if self.peer is None else self.peer / self.ours


def filled(saver: BaseCheckpointSaver[Any], count: int, label: str, console: Console) -> float:
    """Save so many threads of one checkpoint; milliseconds each."""
    begin = perf_counter()
    fill(saver, track(range(count), f"{label:32}", console=console, transient=True))
    return (perf_counter() - begin) / count * 1e3


def fill(saver: BaseCheckpointSaver[Any], numbers: Iterable[int]) -> None:
    for number in numbers:
        config: Any = {"configurable": {"thread_id": named(number), "checkpoint_ns": ""}}
        saver.put(config, checkpoint(number), metadata(number), {"messages": 1})


def named(number: int) -> str:
    return f"thread-{number:07}"


def checkpoint(number: int) -> Checkpoint:
    return {
        "v": 4,
        "id": str(uuid6(clock_seq=number)),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {"messages": [f"message {number} " + "x" * 200]},
        "channel_versions": {"messages": 1},
        "versions_seen": {},
        "updated_channels": ["messages"],
    }


def metadata(number: int) -> Any:
    return {"source": "loop", "step": 1, "parents": {}, "user_id": f"u{number % USERS}"}


def least(question: Callable[[], int]) -> tuple[float, int]:
    """The least time in milliseconds, and the result."""
    times, found = [], 0
    for _ in range(REPEATS):
        begin = perf_counter()
        found = question()
        times.append(perf_counter() - begin)
    return min(times) * 1e3, found


Question = tuple[str, Callable[[Saver], int], Callable[[BaseCheckpointSaver[Any]], int] | None]


def questions(count: int) -> Iterator[Question]:
    """Each query: on our saver, and as a program on another saver."""
    yield (f"the newest {PAGE}", page(), lambda saver: len(distinct(saver, {}, PAGE)))
    yield (
        f"a user's threads, {PAGE} at most",
        page(metadata={"user_id": "u7"}),
        lambda saver: len(distinct(saver, {"user_id": "u7"}, PAGE)),
    )
    yield ("how many threads", lambda s: s.threads.count(), lambda s: len(distinct(s, {}, None)))
    yield (f"page {count // PAGE // 2} by cursor", half_way(count), None)
    yield ("the largest", page(order="-bytes"), None)
    yield ("none of them matches", page(min_bytes=10**12), None)


def page(**asked: Any) -> Callable[[Saver], int]:
    return lambda saver: len(saver.threads.search(limit=PAGE, **asked).threads)


def half_way(count: int) -> Callable[[Saver], int]:
    cursors: dict[int, str | None] = {}

    def ask(saver: Saver) -> int:
        if id(saver) not in cursors:
            cursor = None
            for _ in range(max(count // 1000 // 2, 1)):
                cursor = saver.threads.search(limit=min(1000, count // 2), cursor=cursor).cursor
            cursors[id(saver)] = cursor
        return len(saver.threads.search(limit=PAGE, cursor=cursors[id(saver)]).threads)

    return ask


def distinct(
    saver: BaseCheckpointSaver[Any], wanted: dict[str, Any], limit: int | None
) -> set[str]:
    """The threads that a scan of all checkpoints meets, up to so many."""
    names = (t.config["configurable"]["thread_id"] for t in saver.list(None, filter=wanted or None))
    return set(names if limit is None else islice(names, limit))


def run(backend: str, count: int, out: Path, console: Console) -> None:
    """Fill both stores, ask both, show and write the figures."""
    ours, peer = (KINDS[key] for key in PAIRS[backend])
    out.mkdir(parents=True, exist_ok=True)
    paths = {kind.key: out / f"many-{kind.key}.db" for kind in (ours, peer)}
    with ExitStack() as stack:
        for store in {kind.store for kind in (ours, peer)}:
            if store is not None and store.server:
                stack.enter_context(store.server())
        savers = [opened(kind, paths[kind.key], stack) for kind in (ours, peer)]
        puts = [
            filled(saver, count, kind.label, console)
            for saver, kind in zip(savers, (ours, peer), strict=True)
        ]
        figures = [Figure("a put", puts[0], puts[1], count)]
        figures += [asked(*question, *savers) for question in questions(count)]
        figures += [apart(total, name, ours.key, paths[ours.key]) for name in TOTALS]
        figures += collected(savers[0])
    show(figures, (ours, peer), count, console)
    console.print(report.targets([line(one, count) for one in figures if one.cpu is not None]))
    rows = [{**asdict(figure), "ratio": figure.ratio} for figure in figures]
    (out / "threads.json").write_text(json.dumps({"threads": count, "figures": rows}, indent=2))


TOTALS: dict[str, Callable[[Saver], int]] = {
    "stats": lambda saver: saver.stats().threads,
    "count": lambda saver: saver.threads.count(),
}


def total(name: str, key: str, path: Path) -> Figure:
    """Ask for a total of all threads, once, in a process that has asked for nothing."""
    with KINDS[key].open(path) as saver:
        begin, used = perf_counter(), process_time()
        found = TOTALS[name](cast("Saver", saver))
        took, used = perf_counter() - begin, process_time() - used
    return Figure(f"{name}, fresh process", took * 1e3, None, found, used * 1e3)


def line(figure: Figure, count: int) -> Line:
    return Line(f"{figure.question}, {count:,} threads: ms", figure.ours, MOST)


def collected(saver: Saver) -> Iterator[Figure]:
    """Going through all threads once, and once more when nothing was written since."""
    for name in ("gc of all", "gc once more"):
        begin = perf_counter()
        report = saver.threads.gc(Retention(keep_last=1, max_age=1))
        yield Figure(name, (perf_counter() - begin) * 1e3, None, len(report.threads))


def opened(kind: Kind, path: Path, stack: ExitStack) -> Any:
    kind.remove(path)
    stack.callback(kind.remove, path)
    return stack.enter_context(kind.open(path))


def asked(
    name: str,
    ask: Callable[[Saver], int],
    scan: Callable[[BaseCheckpointSaver[Any]], int] | None,
    ours: Saver,
    peer: BaseCheckpointSaver[Any],
) -> Figure:
    took, found = least(lambda: ask(ours))
    if scan is None:
        return Figure(name, took, None, found)
    theirs, also = least(lambda: scan(peer))
    if also != found:
        raise AssertionError(f"{name}: {found} found, and {also} by a scan")
    return Figure(name, took, theirs, found)


def show(figures: list[Figure], kinds: tuple[Kind, Kind], count: int, console: Console) -> None:
    table = Table(
        title=f"{count:,} threads of one checkpoint; milliseconds, the least of {REPEATS}"
    )
    for name in ("", *(kind.label for kind in kinds), "times faster", "found", "CPU ms"):
        table.add_column(name, justify="left" if not name else "right")
    for one in figures:
        peer = "" if one.peer is None else f"{one.peer:,.2f}"
        ratio = "" if one.ratio is None else f"{one.ratio:,.1f}"
        cpu = "" if one.cpu is None else f"{one.cpu:,.2f}"
        table.add_row(one.question, f"{one.ours:,.2f}", peer, ratio, f"{one.found:,}", cpu)
    console.print(table)
