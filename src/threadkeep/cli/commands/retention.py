"""Commands for retention and cold storage: archive, gc, prune, tier."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from threadkeep.cli import parsing
from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import (
    AsJson,
    Cold,
    DryRun,
    Every,
    ThreadIds,
    Url,
    UrlArgument,
    repeated,
    thread_ids,
)
from threadkeep.cli.render import (
    in_a_table,
    size,
    some,
    table,
    text,
)
from threadkeep.cli.stores import reading, url_of, writing
from threadkeep.cli.terminal import Output, clean
from threadkeep.cold.tiering import Tiering
from threadkeep.engine.thread_entry import (
    TRANSITIONS,
    Cause,
    ThreadStatus,
    allows,
)
from threadkeep.errors import InvalidArgumentError, StateError, ThreadNotFoundError
from threadkeep.retention.policy import Retention
from threadkeep.saver import Saver
from threadkeep.threads import Collected, GcReport, ThreadInfo, TierReport


@command(Panel.CHANGE, "threadkeep archive --idle 30d --cold s3://bucket/agents --url threads.db")
def archive(
    threads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[THREAD...]",
            help="the threads' ids",
            autocompletion=thread_ids,
        ),
    ] = None,
    *,
    idle: Annotated[
        str | None,
        typer.Option(
            "--idle",
            metavar="TIME",
            help="all that were not written for so long: 30d, 12h",
        ),
    ] = None,
    dry_run: DryRun = False,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Move threads into the cold store. They are found as before; reading one brings it back."""
    if bool(threads) == bool(idle):
        hint = "Use the ids of threads, or --idle and a time."
        raise InvalidArgumentError("It is not clear which threads are meant.", hint=hint)
    output, gone = Output(as_json=as_json), list[ThreadInfo]()
    with writing(url_of(url), cold) as saver:
        meant = _archive_targets(saver, threads, idle)
        with output.progress() as told:
            for one in meant if not dry_run else ():
                gone.append(saver.threads.archive(one.id))
                told("threads archived", len(gone), len(meant))
    shown = meant if dry_run else gone
    what = "would be archived" if dry_run else "archived"
    line = f"{some(len(shown), 'thread')} {what}, {size(sum(one.bytes for one in meant))} bytes"
    if not dry_run:
        line += f"; {size(sum(one.archived_bytes or 0 for one in gone))} in the cold store"
    document = {"threads": [one.as_json() for one in shown], "archived": not dry_run}
    output.tell(document, *([in_a_table(shown)] if shown else []), line)
    return 0


def _archive_targets(saver: Saver, threads: list[str] | None, idle: str | None) -> list[ThreadInfo]:
    """The threads that are to go: those named, or all that have rested.

    Raises:
        ThreadNotFoundError, StateError: one of those named cannot go.
    """
    if idle:
        states = list(TRANSITIONS[Cause.ARCHIVE].sources)
        rested = parsing.age("--idle", idle)
        return list(saver.threads.scan(state=states, updated_before=rested))
    found = []
    for name in dict.fromkeys(threads or ()):
        one = saver.threads.get(name)
        if one is None or one.state == ThreadStatus.DELETED:
            raise ThreadNotFoundError(thread=name, hint="Nothing was archived.")
        if not allows(Cause.ARCHIVE, one.state):
            problem = f"A thread that is {one.state} cannot be archived."
            raise StateError(problem, thread=name, hint="Nothing was archived.")
        found.append(one)
    return found


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
    limits = parsing.policy({name: one for name, one in given.items() if one is not None})
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
    output.tell(_gc_document(report), *_draw_gc(report))
    return 1 if report.skipped else 0


# -- what is told ------------------------------------------------------------------------


def _gc_document(report: GcReport) -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "looked_at": report.looked_at,
        "read": report.read,
        "checkpoints": report.checkpoints,
        "bytes": report.bytes,
        "threads": [asdict(one) for one in report.threads],
    }


def _draw_gc(report: GcReport) -> list[Any]:
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


@command(Panel.STORE, "threadkeep tier --warm 7d --cold s3://bucket/agents --dry-run")
def tier(  # noqa: PLR0913 - a limit each
    threads: Annotated[
        list[str] | None,
        typer.Argument(metavar="[THREAD...]", help="only these", autocompletion=thread_ids),
    ] = None,
    *,
    warm: Annotated[
        str | None,
        typer.Option("--warm", metavar="TIME", help="what is in use stays: 1d, if nothing is said"),
    ] = None,
    archive: Annotated[
        bool | None,
        typer.Option("--archive/--no-archive", help="whether threads go that are not in use"),
    ] = None,
    offload: Annotated[
        bool | None,
        typer.Option("--offload/--no-offload", help="whether old values of the others go"),
    ] = None,
    offload_over: Annotated[
        int | None,
        typer.Option("--offload-over", metavar="N", help="bytes; those that are larger: 65536"),
    ] = None,
    dry_run: DryRun = False,
    every: Every = None,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Move into the cold store what is not in use: threads, and old values of others."""
    given = {"warm": warm, "archive": archive, "offload": offload, "offload_over": offload_over}
    how = parsing.tiering({name: one for name, one in given.items() if one is not None})
    place, output = url_of(url), Output(as_json=as_json)
    once = partial(_move, place, cold, how, threads or None, output, dry_run=dry_run)
    return repeated(once, every, as_json=as_json)


def _move(
    place: str,
    cold: str | None,
    how: Tiering,
    threads: list[str] | None,
    output: Output,
    *,
    dry_run: bool,
) -> int:
    opened = reading if dry_run else writing
    with output.progress() as told, opened(place, cold) as saver:
        report = saver.threads.tier(how, threads=threads, dry_run=dry_run, progress=told)
    output.tell(_tier_document(report), *_draw_tier(report))
    return 1 if report.skipped else 0


def _tier_document(report: TierReport) -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "looked_at": report.looked_at,
        "bytes": report.bytes,
        "archived": [asdict(one) for one in report.archived],
        "offloaded": [asdict(one) for one in report.offloaded],
        "shared": list(report.shared),
        "skipped": [asdict(one) for one in report.skipped],
    }


def _draw_tier(report: TierReport) -> list[Any]:
    rows = [(text(one.thread), size(one.bytes), "archived") for one in report.archived]
    rows += [(text(one.thread), size(one.bytes), "old values") for one in report.offloaded]
    rows += [(text(one), "", "left: it shares its values with forks") for one in report.shared]
    rows += [(text(one.thread), "", _remark_tier(one.skipped)) for one in report.skipped]
    would = "would be " if report.dry_run else ""
    line = (
        f"of {some(report.looked_at, 'thread')} {len(report.archived)} {would}archived,"
        f" old values of {len(report.offloaded)} {would}moved: {size(report.bytes)} bytes"
    )
    return [table(("thread", "bytes>", ""), rows), line] if rows else [line]


def _remark_tier(why: str | None) -> str:
    return clean(f"skipped: {why}")
