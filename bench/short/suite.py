"""The suite as a command runs it: which savers and parts, and how figures are shown."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench import report
from bench.errors import BenchError
from bench.results import machine
from bench.savers import KINDS, OURS
from bench.servers import Server
from bench.short.figures import Group
from bench.short.parts import PARTS
from bench.short.processes import Subject, source
from bench.short.setting import Setting
from bench.short.sizes import SIZES

BACKENDS = {
    "sqlite": (("floor", "lg-full", "full", "normal"), tuple(PARTS)),
    "postgres": (("floor", "lg-pg", "pg", "pg-pool"), ("runs", "sync", "cold", "fresh", "bytes")),
    "redis": (("floor", "lg-pg", "redis"), ("runs", "sync", "cold")),
    "mysql": (("floor", "lg-pg", "mysql"), ("runs", "sync", "cold")),
    "memory": (("floor", "lg-memory", "memory"), ("runs", "sync", "calls")),
}


def subjects(kinds: Sequence[str], before: Path | None) -> list[Subject]:
    """The savers, those of another checkout beside ours."""
    found = []
    for kind in kinds:
        found.append(Subject(kind))
        if before and kind in OURS:
            found.append(Subject(kind, before))
    return found


def run(
    options: argparse.Namespace, parts: Sequence[str], kinds: Sequence[str], console: Console
) -> None:
    """Measure the parts one after the other, show and write the figures."""
    sizes = SIZES["smoke" if options.smoke else "quick" if options.quick else "full"]
    if options.rounds is not None:
        if options.rounds < 1:
            raise BenchError(f"--rounds {options.rounds}: 1 or more")
        sizes = replace(sizes, rounds=options.rounds)
    before = source(options.before) if options.before else None
    data = options.data and options.data.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    groups: list[Group] = []
    with (
        ExitStack() as stack,
        tempfile.TemporaryDirectory(prefix="bench-", dir=options.out) as folder,
        progress(console) as bars,
    ):
        stores = dict.fromkeys(KINDS[kind].store for kind in kinds)
        servers = [stack.enter_context(s.server()) for s in stores if s is not None and s.server]
        try:
            for name in parts:
                bar = bars.add_task(name, total=None)
                setting = Setting(
                    sizes,
                    data,
                    subjects(kinds, before),
                    Path(folder).resolve(),
                    lambda done, total: bars.update(bar, completed=done, total=total),  # noqa: B023
                    console.print,
                )
                groups += PARTS[name](setting)
        finally:  # where a part fails, the others' figures are shown all the same
            if groups:
                bars.stop()
                finish(groups, sizes.name, servers, options.out, console)


def progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console)


def finish(
    groups: Sequence[Group], sizes: str, servers: Sequence[Server], out: Path, console: Console
) -> None:
    lines = [line for group in groups for line in group.lines()]
    for server in servers:
        console.print(str(server), highlight=False)
    for group in groups:
        console.print(table(group))
        console.print()
    console.print(report.targets(lines))
    record: dict[str, Any] = {
        "machine": machine(),
        "sizes": sizes,
        "servers": [asdict(server) for server in servers],
        "groups": [
            {
                "title": group.title,
                "savers": {subject.name: found for subject, found in group.rounds.items()},
            }
            for group in groups
        ],
        "targets": [{**asdict(line), "holds": line.holds} for line in lines],
    }
    path = out / "short.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    console.print("Written:", str(path))


def table(group: Group) -> Table:
    """A row a saver: the medians, and one figure of every round."""
    columns = [
        name
        for name in group.columns
        if any(group.medians(subject, name) is not None for subject in group.rounds)
    ]
    several = max((len(found) for found in group.rounds.values()), default=0) > 1
    extra = (f"{group.shown}, every round",) if several else ()
    found = report.table(group.title, ("saver", *columns, *extra))
    for subject in group.rounds:
        medians = [report.number(group.medians(subject, name)) for name in columns]
        rounds = " ".join(report.number(one) for one in group.all(subject, group.shown))
        found.add_row(subject.label, *medians, *([rounds] if several else []))
    return found
