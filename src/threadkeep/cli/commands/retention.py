"""Commands for retention and cold storage: archive, gc, prune, tier."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, fields
from datetime import timedelta
from typing import Annotated, Any

import typer

from threadkeep.cli.app import command
from threadkeep.cli.parameters import (
    DryRun,
    OptionalThreadIds,
    ThreadIds,
    UrlArgument,
    parse_duration,
    parse_positive,
    thread_ids,
)
from threadkeep.cli.stores import Session, settings
from threadkeep.cli.terminal import (
    plural,
    print_error,
    table,
    text,
    thread_table,
)
from threadkeep.cold.policy import ColdTier, Tiering, WarmTier
from threadkeep.engine.thread_entry import WITH_CHECKPOINTS, ThreadStatus
from threadkeep.errors import (
    BackendError,
    InvalidArgumentError,
    StateError,
    ThreadNotFoundError,
    invalid,
)
from threadkeep.retention.policy import Retention
from threadkeep.saver import Saver
from threadkeep.threads import Collected, GcReport, ThreadInfo, TierReport
from threadkeep.validation import duration

Every = Annotated[
    str | None,
    typer.Option("--every", metavar="TIME", help="Repeat at this interval, such as 10m."),
]


def _repeat(session: Session, once: Callable[[], int], every: str | None) -> int:
    """Run once, or at the interval of --every until interrupted; return the exit code."""
    if every is None:
        return once()
    pause = min(parse_positive("--every", every).total_seconds(), threading.TIMEOUT_MAX)
    timer = threading.Event()
    while True:
        try:
            once()
        except BackendError as error:
            print_error(error, as_json=session.as_json)
        timer.wait(pause)


def _check_keys(table: str, keys: Mapping[str, Any], known: Collection[str]) -> None:
    unknown = sorted(keys.keys() - set(known))
    if unknown:
        hint = f"Use one of: {', '.join(sorted(known))}."
        raise InvalidArgumentError(f"{table}: unknown key {unknown[0]!r}.", hint=hint)


def _duration(name: str, value: object) -> timedelta:
    return parse_positive(name, value) if isinstance(value, str) else duration(name, value)


# -- archive -----------------------------------------------------------------------------


@command("threadkeep archive --idle 30d --cold s3://bucket/agents --url threads.db", cold=True)
def archive(
    session: Session,
    threads: Annotated[
        list[str] | None,
        typer.Argument(metavar="THREAD", help="Thread ids.", autocompletion=thread_ids),
    ] = None,
    *,
    idle: Annotated[
        str | None,
        typer.Option("--idle", metavar="TIME", help="All threads idle for this long: 30d, 12h."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Move threads into the cold store. Reading one restores it."""
    if bool(threads) == bool(idle):
        raise InvalidArgumentError("Give either thread ids or --idle.")
    done: list[ThreadInfo] = []
    with session.open() as saver:
        targets = _archive_targets(saver, threads, idle)
        with session.progress() as progress:
            for info in targets if not dry_run else ():
                done.append(saver.threads.archive(info.id))
                progress("threads archived", len(done), len(targets))
    shown = targets if dry_run else done
    freed = plural(sum(info.bytes for info in targets), "byte")
    summary = f"Would archive {plural(len(shown), 'thread')} ({freed})"
    if not dry_run:
        stored = f"{sum(info.archived_bytes or 0 for info in done):,} in the cold store"
        summary = f"Archived {plural(len(shown), 'thread')} ({freed}, {stored})"
    document = {"threads": [info.as_json() for info in shown], "archived": not dry_run}
    session.print(document, *([thread_table(shown)] if shown else []), summary)


def _archive_targets(saver: Saver, threads: list[str] | None, idle: str | None) -> list[ThreadInfo]:
    """Return the threads to archive.

    Raises:
        ThreadNotFoundError, StateError: one of those named cannot be archived.
    """
    if idle:
        states = list(WITH_CHECKPOINTS)
        age = parse_duration("--idle", idle)
        return list(saver.threads.scan(state=states, updated_before=age))
    found = []
    for name in dict.fromkeys(threads or ()):
        info = saver.threads.get(name)
        if info is None or info.state == ThreadStatus.DELETED:
            raise ThreadNotFoundError(thread=name, hint="Nothing was archived.")
        if info.state not in WITH_CHECKPOINTS:
            problem = f"A thread in the state {info.state} cannot be archived."
            raise StateError(problem, thread=name, hint="Nothing was archived.")
        found.append(info)
    return found


# -- gc and prune ------------------------------------------------------------------------

KeepLast = Annotated[
    int | None,
    typer.Option("--keep-last", metavar="N", help="Keep the newest N checkpoints of each thread."),
]
Keep = Annotated[
    str | None,
    typer.Option(
        "--keep",
        metavar="WHICH",
        help="Keep all checkpoints, or only those at run_ends or turn_ends.",
    ),
]
MaxAge = Annotated[
    str | None,
    typer.Option("--max-age", metavar="TIME", help="Keep checkpoints younger than this: 7d."),
]
MaxBytes = Annotated[
    int | None, typer.Option("--max-bytes", metavar="N", help="Keep at most N bytes per thread.")
]
MaxCount = Annotated[
    int | None, typer.Option("--max-count", metavar="N", help="Keep at most N threads.")
]
IdleTtl = Annotated[
    str | None,
    typer.Option("--ttl", metavar="TIME", help="Delete threads idle for this long: 90d."),
]
KeepTagged = Annotated[
    bool | None,
    typer.Option(
        "--keep-tagged/--drop-tagged",
        help="Let tags protect: a checkpoint, or a thread from --ttl and --max-count.",
    ),
]
Latest = Annotated[
    list[str] | None,
    typer.Option(
        "--latest", metavar="CHANNEL", help="Keep only this channel's latest value. Repeatable."
    ),
]


@command("threadkeep gc --keep turn_ends --keep-last 10 --ttl 90d --dry-run", cold=True)
def gc(  # noqa: PLR0913 - a limit each
    session: Session,
    store: UrlArgument = None,
    *,
    keep: Keep = None,
    keep_last: KeepLast = None,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    latest: Latest = None,
    ttl: IdleTtl = None,
    max_count: MaxCount = None,
    keep_tagged: KeepTagged = None,
    dry_run: DryRun = False,
    every: Every = None,
) -> int:
    """Remove checkpoints and threads by a retention policy.

    Limits that are not given come from the table retention of threadkeep.toml.
    """
    options: dict[str, Any] = {
        "keep": keep,
        "keep_last": keep_last,
        "max_age": max_age,
        "max_bytes": max_bytes,
        "channels": dict.fromkeys(latest, "latest") if latest else None,
        "ttl": ttl,
        "max_count": max_count,
        "keep_tagged": keep_tagged,
    }
    limits = policy_of({name: value for name, value in options.items() if value is not None})
    url = session.url(store)
    return _repeat(session, lambda: _collect(session, url, limits, None, dry_run=dry_run), every)


def policy_of(options: Mapping[str, Any]) -> Retention:
    """Return the policy of these options, and of the configuration for all others.

    Raises:
        InvalidArgumentError: a key is unknown, or its value is invalid.
    """
    keys: dict[str, Any] = {**(settings().retention or {}), **options}
    _check_keys("retention", keys, {field.name for field in fields(Retention)})
    for name in ("max_age", "ttl"):
        if name in keys:
            keys[name] = _duration(name, keys[name])
    return Retention(**keys)


@command("threadkeep prune 42 43 --keep-last 10 --dry-run --url threads.db")
def prune(
    session: Session,
    threads: ThreadIds,
    *,
    keep_last: Annotated[
        int,
        typer.Option(
            "--keep-last", metavar="N", help="Keep the newest N checkpoints of each thread."
        ),
    ] = 1,
    dry_run: DryRun = False,
) -> int:
    """Remove older checkpoints of threads.

    Pinned threads are left alone, and so are checkpoints that have a pin or a tag.
    """
    limits = Retention(keep_last=keep_last)
    return _collect(session, session.url(), limits, threads, dry_run=dry_run)


def _collect(
    session: Session, url: str, limits: Retention, threads: list[str] | None, *, dry_run: bool
) -> int:
    with session.progress() as progress, session.open(url, read_only=dry_run) as saver:
        report = saver.threads.gc(limits, threads=threads, dry_run=dry_run, progress=progress)
    document = {**asdict(report), "checkpoints": report.checkpoints, "bytes": report.bytes}
    session.print(document, *_gc_lines(report))
    return 1 if report.skipped else 0


def _gc_lines(report: GcReport) -> list[Any]:
    rows = [
        (text(one.thread), f"{one.checkpoints:,}", f"{one.bytes:,}", text(_gc_note(one)))
        for one in report.threads
    ]
    columns = ("thread", "checkpoints>", "bytes>", "")
    return [*([table(columns, rows)] if rows else []), _gc_summary(report)]


def _gc_summary(report: GcReport) -> str:
    verbs = ("would remove", "would delete") if report.dry_run else ("removed", "deleted")
    changed = [one for one in report.threads if one.skipped is None and one.deleted is None]
    count = plural(sum(one.checkpoints for one in changed), "checkpoint")
    steps = [f"{verbs[0]} {count} from {plural(len(changed), 'thread')}"] if changed else []
    deleted = plural(len(report.deleted), "thread")
    steps += [f"{verbs[1]} {deleted}"] if report.deleted else []
    return _summary(steps, report.examined, report.bytes, "Nothing to remove.")


def _summary(steps: list[str], threads: int, size: int, nothing: str) -> str:
    if not steps:
        return f"Checked {plural(threads, 'thread')}. {nothing}"
    summary = " and ".join(steps)
    return f"{summary[0].upper()}{summary[1:]} ({plural(size, 'byte')})"


def _gc_note(one: Collected) -> str:
    if one.skipped is not None:
        return f"skipped: {one.skipped}"
    if one.deleted is not None:
        return f"deleted: {one.deleted}"
    return f"channels kept: {', '.join(one.skipped_channels)}" if one.skipped_channels else ""


# -- tier --------------------------------------------------------------------------------


@command("threadkeep tier --warm 7d --cold s3://bucket/agents --dry-run", cold=True)
def tier(
    session: Session,
    threads: OptionalThreadIds = None,
    *,
    warm: Annotated[
        str | None,
        typer.Option(
            "--warm", metavar="TIME", help="Leave threads used within this time. Default: 1d."
        ),
    ] = None,
    archive: Annotated[
        bool | None, typer.Option("--archive/--no-archive", help="Archive idle threads, or not.")
    ] = None,
    offload: Annotated[
        bool | None,
        typer.Option("--offload/--no-offload", help="Offload old values of others, or not."),
    ] = None,
    offload_over: Annotated[
        int | None,
        typer.Option(
            "--offload-over", metavar="N", help="Offload values over N bytes. Default: 65536."
        ),
    ] = None,
    dry_run: DryRun = False,
    every: Every = None,
) -> int:
    """Move idle threads and old values into the cold store.

    Options that are not given come from the table tiering of threadkeep.toml.
    """
    options = {"warm": warm, "archive": archive, "offload": offload, "offload_over": offload_over}
    tiering = _tiering({name: value for name, value in options.items() if value is not None})
    return _repeat(
        session, lambda: _tier(session, tiering, threads or None, dry_run=dry_run), every
    )


def _tiering(options: Mapping[str, Any]) -> Tiering:
    """Return the tiering of these options, and of the configuration for all others.

    Raises:
        InvalidArgumentError: a key is unknown, or its value is invalid.
    """
    keys = {**(settings().tiering or {}), **options}
    _check_keys("tiering", keys, {"warm", "archive", "offload_over", "offload"})
    warm = WarmTier(max_age=_duration("warm", keys["warm"])) if "warm" in keys else WarmTier()
    cold = {name: keys[name] for name in ("archive", "offload_over") if name in keys}
    offload = keys.get("offload", True)
    if not isinstance(offload, bool):
        raise invalid("offload", offload, "Use true or false.")
    if not offload and ("offload" in options or "offload_over" not in options):
        cold["offload_over"] = None
    return Tiering(warm=warm, cold=ColdTier(**cold))


def _tier(session: Session, tiering: Tiering, threads: list[str] | None, *, dry_run: bool) -> int:
    with session.progress() as progress, session.open(read_only=dry_run) as saver:
        report = saver.threads.tier(tiering, threads=threads, dry_run=dry_run, progress=progress)
    document = {**asdict(report), "bytes": report.bytes}
    session.print(document, *_tier_lines(report))
    return 1 if report.skipped else 0


def _tier_lines(report: TierReport) -> list[Any]:
    rows = [(text(one.thread), f"{one.bytes:,}", text("archive")) for one in report.archived]
    rows += [(text(one.thread), f"{one.bytes:,}", text("offload")) for one in report.offloaded]
    rows += [(text(one), "", text("left: shares values with forks")) for one in report.shared]
    rows += [(text(one.thread), "", text(f"skipped: {one.skipped}")) for one in report.skipped]
    verbs = ("would archive", "would offload") if report.dry_run else ("archived", "offloaded")
    archived = plural(len(report.archived), "thread")
    offloaded = plural(len(report.offloaded), "thread")
    steps = [f"{verbs[0]} {archived}"] if report.archived else []
    steps += [f"{verbs[1]} old values of {offloaded}"] if report.offloaded else []
    summary = _summary(steps, report.examined, report.bytes, "Nothing to move.")
    return [*([table(("thread", "bytes>", ""), rows)] if rows else []), summary]
