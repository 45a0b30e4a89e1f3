"""The parts of the suite by name: what each runs, round by round, and its targets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from statistics import median, quantiles

from bench import postgres
from bench.errors import BenchError
from bench.measures.turns import last_blocks
from bench.savers import KINDS
from bench.short import counting, crowds, first_calls, memory, statements, unknown_threads
from bench.short.figures import FLOOR, PEERS, Aim, Figures, Group
from bench.short.processes import ROOT, Subject
from bench.short.setting import Part, Setting, fresh, rounds
from bench.short.sizes import Load
from bench.sizes import QUICK, SMOKE, Sizes

TIMEOUT = 120  # seconds, of an opening
MAIN_SIZES = {sizes.name: sizes for sizes in (Sizes(), QUICK, SMOKE)}


# -- runs ------------------------------------------------------------------------------

SPEEDS = {8: 1.3, 64: 2.0, 512: 1.3}


def runs(setting: Setting) -> Iterator[Group]:
    """Many async runs at once."""
    for load in setting.sizes.loads:
        yield at_once(setting, load)


def at_once(setting: Setting, load: Load) -> Group:
    turns = "" if load.turns is None else f" of {load.turns} turns"
    group = Group(
        f"{load.runs} async runs at once{turns}",
        ("supersteps/s", "CPU s", "p50 ms", "p99 ms", "server CPU s"),
        "supersteps/s",
        (
            Aim("supersteps/s", SPEEDS.get(load.runs), at_least=True),
            Aim("p99 ms", 0.6 if load.runs in SPEEDS else None),
            Aim("CPU s", 0.6 if load.runs in SPEEDS else None, above_floor=True),
        ),
    )

    def measure(subject: Subject) -> Figures:
        given = {"data": setting.data, "runs": load.runs, "turns": load.turns}
        found = fresh(setting, subject, "runs", "together", (), **given)
        times = found["times"]
        figures = {
            "supersteps/s": found["supersteps"] / found["seconds"],
            "CPU s": found["cpu"],
            "p50 ms": median(times),
            "p99 ms": quantiles(times, n=100, method="inclusive")[98],
        }
        if found["server_cpu"] is not None:
            figures["server CPU s"] = found["server_cpu"]
        return figures

    return rounds(setting, setting.some(), group, measure)


# -- conversations one after the other -------------------------------------------------


def sync(setting: Setting) -> Iterator[Group]:
    """Short conversations, one after the other, on the sync saver."""
    count = setting.sizes.conversations
    group = Group(
        f"{count} short conversations one by one",
        ("seconds", "CPU s", "supersteps/s"),
        "seconds",
        (Aim("seconds", 0.5, above_floor=True), Aim("CPU s", above_floor=True)),
    )

    def measure(subject: Subject) -> Figures:
        given = {"data": setting.data, "count": count, "warm": True}
        found = fresh(setting, subject, "sync", "one_by_one", (), **given)
        return {
            "seconds": found["seconds"],
            "CPU s": found["cpu"],
            "supersteps/s": found["supersteps"] / found["seconds"],
        }

    yield rounds(setting, setting.some("pg-pool"), group, measure)


def stored(setting: Setting) -> Iterator[Group]:
    """Bytes of short conversations and of all joined into one."""
    lasting = [one for one in setting.lasting() if one.kind != "pg-pool"]
    ours = [one for one in lasting if one.kind not in PEERS]
    count, all_of_them = setting.sizes.conversations, setting.sizes.name == "full"
    exact = all_of_them and setting.data is not None
    for title, subjects, most, given in (
        (f"{count} short conversations", lasting, 3.7, {"join": False}),
        ("the conversations joined", ours, 1.27, {"join": True}),
    ):
        aims = (
            Aim("MB", round(most * 1.02, 3) if exact else None, beside="", of=("full", "normal")),
        )
        group = Group(f"stored bytes, {title}", ("MB", "packed MB"), "MB", aims)
        for done, subject in enumerate(subjects, 1):
            file, kind = setting.file(subject, "bytes"), KINDS[subject.kind]
            with setting.worker(subject) as worker:
                worker.ask(
                    "one_by_one",
                    kind=kind.key,
                    file=file,
                    data=setting.data,
                    count=count,
                    warm=False,
                    **given,
                )
            figures = {"MB": kind.closed_size(file) / 1e6}
            if kind.on_postgres:
                figures["packed MB"] = postgres.packed(file) / 1e6
            group.add(subject, figures)
            kind.remove(file)
            setting.step(done, len(subjects))
        yield group


# -- single calls ----------------------------------------------------------------------


def calls(setting: Setting) -> Iterator[Group]:
    """Recorded calls replayed: CPU time, and instructions where they can be counted."""
    names = ("put", "put_writes", "get_tuple")
    group = Group("CPU us a call, 20 messages", names, "put", [Aim(name) for name in names])
    chosen = [*dict.fromkeys((*setting.some("pg-pool"), *in_memory(setting)))]

    def measure(subject: Subject) -> Figures:
        given = {"data": setting.data, "threads": setting.sizes.replays}
        found: Figures = fresh(setting, subject, "calls", "microseconds", (), **given)
        return found

    yield rounds(setting, chosen, group, measure)
    yield from instructions(setting, chosen)


def in_memory(setting: Setting) -> Iterator[Subject]:
    """Ours in memory, beside ours on SQLite: the rest of its time is the database's."""
    return (replace(one, kind="memory") for one in setting.subjects if one.kind == "full")


def instructions(setting: Setting, chosen: Sequence[Subject]) -> Iterator[Group]:
    library = counting.library(setting.folder)
    if library is None:
        setting.say("No instructions counted: that needs valgrind, its headers and a C compiler.")
        return
    on_sqlite = ("full", "normal")
    group = Group(
        "instructions a call in thousands, 20 messages",
        ("put", "put_writes", "get_tuple"),
        "put",
        (
            Aim("put", 450, beside="", of=on_sqlite),
            Aim("put_writes", 300, beside="", of=on_sqlite),
            *(Aim(name) for name in ("put", "put_writes", "get_tuple")),
        ),
    )
    # The setting of synchronous is no matter of instructions.
    chosen = [one for one in chosen if one.kind not in {FLOOR, "normal"}]
    for done, subject in enumerate(chosen, 1):
        folder = setting.folder / f"counts-{subject.name.replace(' ', '-')}"
        folder.mkdir()
        kind, file = KINDS[subject.kind], setting.file(subject, "counted")
        with setting.worker(subject, counting.command(folder)) as worker:
            worker.ask(
                "counted",
                kind=kind.key,
                file=file,
                data=setting.data,
                threads=setting.sizes.counted,
                library=library,
            )
        kind.remove(file)
        group.add(subject, {name: n / 1_000 for name, n in counting.read(folder).items()})
        setting.step(done, len(chosen))
    yield group


# -- a long thread ---------------------------------------------------------------------

LONG = {"normal": 2.0, "full": 2.4}


def turns(setting: Setting) -> Iterator[Group]:
    """Turns of the conversations joined into one thread."""
    chosen = [one for one in setting.some("pg-pool") if not one.kind.startswith("lg-")]
    columns = ("ms", "CPU ms")
    group = Group(
        "a turn of the long thread",
        columns,
        "ms",
        [
            *(Aim("ms", target, beside="floor", of=(kind,)) for kind, target in LONG.items()),
            Aim("ms", beside="floor", of=("memory", "pg", "redis")),
            Aim("CPU ms", beside="floor"),
        ],
    )
    for lane in range(setting.sizes.lanes):
        for subject, blocks in long_lane(setting, chosen, lane).items():
            figures = {name: [one for block in blocks for one in block[name]] for name in columns}
            group.add(subject, {name: median(found) for name, found in figures.items()})
    yield group


def long_lane(
    setting: Setting, chosen: Sequence[Subject], lane: int
) -> dict[Subject, list[dict[str, list[float]]]]:
    """Let every saver have a long thread; figures of its last turns, in blocks that take turns."""
    sizes = MAIN_SIZES[setting.sizes.name]
    files = {one: setting.file(one, "turns") for one in chosen}
    blocks: dict[Subject, list[dict[str, list[float]]]] = {one: [] for one in chosen}
    with ExitStack() as stack:
        total, workers = 0, {}
        for subject, file in files.items():
            stack.callback(KINDS[subject.kind].remove, file)
            workers[subject] = worker = stack.enter_context(setting.worker(subject))
            given = {"file": file, "data": setting.data, "sizes": sizes.name}
            total = worker.ask("open_long", kind=subject.kind, **given)
        done = max(0, total - sizes.last)
        for worker in workers.values() if done else ():
            worker.ask("turns", count=done)
        for stop in last_blocks(total, sizes):
            for subject, worker in workers.items():
                blocks[subject].append(worker.ask("turns", count=stop - done))
            done = stop
            setting.step(total * lane + done, total * setting.sizes.lanes)
    return blocks


# -- opening and first reads -----------------------------------------------------------


def cold(setting: Setting) -> Iterator[Group]:
    """The first `get_tuple` of a saver, of a short thread."""
    columns = ("ms", "next thread ms")
    aims = (Aim("ms", 0.7), Aim("next thread ms"))
    group = Group("get_tuple by a fresh saver", columns, "ms", aims)
    chosen = [one for one in setting.lasting() if one.kind != "pg-pool"]
    threads = min(setting.sizes.conversations or setting.sizes.reads, setting.sizes.reads)
    with ExitStack() as stack:
        for subject in chosen:
            file, kind = setting.file(subject, "cold"), KINDS[subject.kind]
            stack.callback(kind.remove, file)
            given = {"kind": kind.key, "file": file, "data": setting.data}
            with setting.worker(subject) as worker:
                worker.ask("one_by_one", **given, count=threads, warm=False)

        def measure(subject: Subject) -> Figures:
            with setting.worker(subject) as worker:
                found = worker.ask(
                    "cold",
                    kind=subject.kind,
                    file=setting.file(subject, "cold"),
                    threads=threads,
                    reads=setting.sizes.reads,
                )
            return {name: median(times) for name, times in found.items()}

        yield rounds(setting, chosen, group, measure)


IMPORTS = {
    "full": "from threadkeep import SqliteSaver",
    "lg-full": "from langgraph.checkpoint.sqlite import SqliteSaver\n"
    "from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver",
}
OPENINGS = {
    "full": "with SqliteSaver(path) as saver: saver.setup()",
    "lg-full": "with SqliteSaver.from_conn_string(path) as saver: saver.setup()",
}
SCRIPT = """
import sys, time
path = sys.argv[1]
start, used = time.perf_counter(), time.process_time()
{imports}
imported, used = time.perf_counter() - start, time.process_time() - used
start = time.perf_counter()
{opening}
print(imported * 1e3, used * 1e3, (time.perf_counter() - start) * 1e3)
"""


def opening(setting: Setting) -> Iterator[Group]:
    """Importing the package and opening a saver on a new file, in a fresh process.

    Modules are compiled before, as those of a program that ran once.
    """
    columns = ("import ms", "import CPU ms", "open ms")
    aims = (Aim("import ms", 1.0), Aim("import CPU ms"), Aim("open ms", 1.0))
    group = Group("import and open, SQLite", columns, "import ms", aims)
    chosen = [one for one in setting.some() if one.kind in IMPORTS]

    def measure(subject: Subject) -> Figures:
        found = [opened(setting, subject) for _ in range(setting.sizes.openings)]
        return {name: median(one[name] for one in found) for name in columns}

    def opened(setting: Setting, subject: Subject) -> Figures:
        file = setting.file(subject, "opening")
        script = SCRIPT.format(imports=IMPORTS[subject.kind], opening=OPENINGS[subject.kind])
        done = subprocess.run(
            [sys.executable, "-c", script, str(file)],
            check=False,
            cwd=ROOT,
            env=subject.compiling(),
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT,
        )
        KINDS[subject.kind].remove(file)
        if done.returncode:
            raise BenchError(f"{subject.label} failed: its error is above")
        return dict(zip(columns, map(float, done.stdout.split()), strict=True))

    for subject in chosen:
        opened(setting, subject)  # (compiles)
    yield rounds(setting, chosen, group, measure)


PARTS: dict[str, Part] = {
    "runs": runs,
    "sync": sync,
    "calls": calls,
    "turns": turns,
    "cold": cold,
    "opening": opening,
    "bytes": stored,
    "processes": crowds.processes,
    "statements": statements.statements,
    "fresh": unknown_threads.fresh_threads,
    "first": first_calls.first_calls,
    "memory": memory.memory,
}
