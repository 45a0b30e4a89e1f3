"""`threadkeep repair`: what is broken is taken out of threads, into a file.

Invariant: nothing leaves the store that is not in the file.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from threadkeep.backends.open import file_of
from threadkeep.cli.app import Panel, command
from threadkeep.cli.completion import thread_ids
from threadkeep.cli.parameters import AsJson, Cold, Url
from threadkeep.cli.stores import shown, url_of, writing
from threadkeep.cli.terminal import Output, clean
from threadkeep.repair.repair import (
    HINTS,
    RepairedThread,
    RepairReport,
)


@command(Panel.STORE, "threadkeep repair --url threads.db --dry-run")
def repair(
    threads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[THREAD]...", help="the threads' ids; default: all", autocompletion=thread_ids
        ),
    ] = None,
    *,
    quarantine: Annotated[
        Path | None,
        typer.Option(
            "--quarantine",
            metavar="FILE",
            help="where to what is taken out; default: quarantine-TIME.tkq, beside a SQLite file,"
            " else in this folder",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only tell what would be taken out")
    ] = False,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Take out what cannot be read, into a file. Exit code 0: all is sound, 1: not all."""
    place, output = url_of(url), Output(as_json=as_json)
    file = quarantine or _beside(file_of(place))
    with writing(place, cold) as saver, output.progress() as told:
        report = saver.threads.repair(threads or None, file=file, dry_run=dry_run, progress=told)
    lines = [line for one in report.repaired for line in _lines(one, dry_run=dry_run)]
    lines += [f"left: {finding}" for finding in report.left]
    kinds = {finding.kind for finding in report.left}
    lines += [hint for kind, hint in HINTS.items() if kind in kinds]
    lines.append(_summary(shown(place), report, dry_run=dry_run))
    output.tell(_document(shown(place), report, dry_run=dry_run), *map(clean, lines))
    return 0 if report.ok else 1


def _beside(store: str | None) -> Path:
    """A new name in the folder of a SQLite file, or in this folder."""
    folder = Path(store or "").parent
    return folder / f"quarantine-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.tkq"


def _lines(one: RepairedThread, *, dry_run: bool) -> list[str]:
    """What is said of a thread: how much goes, and what its head is then."""
    parts = {
        "checkpoints": len(one.checkpoints),
        "pending writes": one.writes,
        "segments": one.segments,
        "unreadable rows": one.unreadable,
    }
    told = ", ".join(f"{number} {what}" for what, number in parts.items() if number)
    verb = "would be taken out" if dry_run else "taken out"
    if not told:
        return [f"thread {one.thread!r}: its entry in the registry is put right"]
    lines = [f"thread {one.thread!r}: {told} {verb}"]
    for head in one.heads:
        where = f" of namespace {head.namespace!r}" if head.namespace else ""
        after = head.after or "none: nothing of it is sound"
        lines.append(f"  head{where}: {after} (was {head.before})")
    return lines


def _summary(store: str, report: RepairReport, *, dry_run: bool) -> str:
    threads = f"{store}: {report.threads} threads"
    if not report.repaired and report.ok:
        return f"{threads}, sound"
    verb = "would be repaired" if dry_run else "repaired"
    where = f"; what was taken out is in {report.file}" if report.file else ""
    left = f", {len(report.left)} findings left" if report.left else ""
    return f"{threads}, {len(report.repaired)} {verb}{left}{where}"


def _document(store: str, report: RepairReport, *, dry_run: bool) -> dict[str, Any]:
    return {
        "store": store,
        "ok": report.ok,
        "dry_run": dry_run,
        "threads": report.threads,
        "repaired": [_as_json(one) for one in report.repaired],
        "left": [{**asdict(one), "hint": HINTS.get(one.kind, "")} for one in report.left],
        "file": None if report.file is None else str(report.file),
    }


def _as_json(one: RepairedThread) -> dict[str, Any]:
    checkpoints = [{"namespace": ns, "checkpoint": id} for ns, id in one.checkpoints]
    return {**asdict(one), "checkpoints": checkpoints}
