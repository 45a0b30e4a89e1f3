"""`threadkeep gc` and `threadkeep prune`: what need not be kept, removed.

Invariant: what goes is told before it goes, if that is asked for, and afterwards.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from threadkeep.cli import policies
from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import AsJson, ThreadIds, Url, UrlArgument
from threadkeep.cli.render import (
    size,
    table,
    text,
)
from threadkeep.cli.repeating import Every, repeated
from threadkeep.cli.stores import reading, url_of, writing
from threadkeep.cli.terminal import Output, clean
from threadkeep.retention.policy import Retention
from threadkeep.threads import Collected, GcReport

DryRun = Annotated[bool, typer.Option("--dry-run", help="only tell what would go")]
KeepLast = Annotated[
    int | None, typer.Option("--keep-last", metavar="N", help="the newest so many stay")
]
Keep = Annotated[
    str | None,
    typer.Option("--keep", metavar="WHICH", help="all, or only the last ones: run_ends, turn_ends"),
]
MaxAge = Annotated[
    str | None, typer.Option("--max-age", metavar="TIME", help="younger ones stay, such as 7d")
]
MaxBytes = Annotated[
    int | None, typer.Option("--max-bytes", metavar="N", help="what a thread may hold")
]
MaxCount = Annotated[
    int | None, typer.Option("--max-count", metavar="N", help="threads of the store")
]
Ttl = Annotated[
    str | None, typer.Option("--ttl", metavar="TIME", help="how long threads may rest, such as 90d")
]
KeepTagged = Annotated[
    bool | None, typer.Option("--keep-tagged/--drop-tagged", help="whether a tag protects")
]
Latest = Annotated[
    list[str] | None,
    typer.Option(
        "--latest",
        metavar="CHANNEL",
        help="a channel of which the latest value is enough; may be repeated",
    ),
]


@command(Panel.STORE, "threadkeep gc --keep turn_ends --keep-last 10 --ttl 90d --dry-run")
def gc(  # noqa: PLR0913 - a limit each
    store: UrlArgument = None,
    *,
    keep: Keep = None,
    keep_last: KeepLast = None,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    latest: Latest = None,
    ttl: Ttl = None,
    max_count: MaxCount = None,
    keep_tagged: KeepTagged = None,
    dry_run: DryRun = False,
    every: Every = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Remove what need not be kept, as these options and the file's table `retention` say."""
    given = {
        "keep": keep,
        "keep_last": keep_last,
        "max_age": max_age,
        "max_bytes": max_bytes,
        "channels": dict.fromkeys(latest, "latest") if latest else None,
        "ttl": ttl,
        "max_count": max_count,
        "keep_tagged": keep_tagged,
    }
    limits = policies.policy({name: one for name, one in given.items() if one is not None})
    place, output = url_of(url, store), Output(as_json=as_json)
    once = partial(_collect, place, limits, None, output, dry_run=dry_run)
    return repeated(once, every, as_json=as_json)


@command(Panel.CHANGE, "threadkeep prune 42 43 --keep-last 10 --dry-run --url threads.db")
def prune(
    threads: ThreadIds,
    *,
    keep_last: Annotated[int, typer.Option("--keep-last", metavar="N", help="how many stay")] = 1,
    dry_run: DryRun = False,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Remove all but the newest checkpoints of threads. Pinned and tagged ones stay."""
    output = Output(as_json=as_json)
    limits = Retention(keep_last=keep_last)
    return _collect(url_of(url), limits, threads, output, dry_run=dry_run)


def _collect(
    place: str, limits: Retention, threads: list[str] | None, output: Output, *, dry_run: bool
) -> int:
    opened = reading if dry_run else writing
    with output.progress() as told, opened(place) as saver:
        report = saver.threads.gc(limits, threads=threads, dry_run=dry_run, progress=told)
    output.tell(_document(report), *_drawn(report))
    return 1 if report.skipped else 0


# -- what is told ------------------------------------------------------------------------


def _document(report: GcReport) -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "looked_at": report.looked_at,
        "read": report.read,
        "checkpoints": report.checkpoints,
        "bytes": report.bytes,
        "threads": [asdict(one) for one in report.threads],
    }


def _drawn(report: GcReport) -> list[Any]:
    rows = [
        (text(one.thread), size(one.checkpoints), size(one.bytes), text(_remark(one)))
        for one in report.threads
    ]
    what = "would go" if report.dry_run else "went"
    line = (
        f"of {report.looked_at} threads {size(report.checkpoints)} checkpoints"
        f" and {len(report.deleted)} threads {what}, {size(report.bytes)} bytes"
    )
    columns = ("thread", "checkpoints>", "bytes>", "")
    return [table(columns, rows), line] if rows else [line]


def _remark(one: Collected) -> str:
    if one.skipped is not None:
        return clean(f"skipped: {one.skipped}")
    if one.deleted is not None:
        return f"the thread: {one.deleted}"
    return f"left whole: {', '.join(one.whole)}" if one.whole else ""
