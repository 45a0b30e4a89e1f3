"""Commands for retention and cold storage: archive, gc, prune, tier."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, fields
from typing import Any

from threadkeep._core.engine.thread_entry import WITH_CHECKPOINTS, Lifecycle
from threadkeep._core.policies import ColdTier, Retention, Tiering, WarmTier
from threadkeep._core.validation import duration
from threadkeep.cli.app import command, print_error
from threadkeep.cli.ids import whole_threads
from threadkeep.cli.parameters import (
    DRY_RUN,
    OPTIONAL_THREAD_IDS,
    THREAD_IDS,
    option,
    parse_duration,
    parse_positive,
    parse_size,
    thread_argument,
)
from threadkeep.cli.stores import Session, settings
from threadkeep.cli.terminal import Drawn, plural, table, thread_table
from threadkeep.errors import (
    BackendError,
    InvalidArgumentError,
    StateError,
    ThreadNotFoundError,
    invalid,
)
from threadkeep.savers.saver import Saver
from threadkeep.threads import CollectedThread, GcReport, ThreadInfo, TierReport

_TIMES = {"max_age", "ttl", "warm"}
EVERY = option("--every TIME", "Repeat at this interval, such as 10m.")


def _repeat(session: Session, once: Callable[[], int], every: str | None) -> int:
    """Run once, or at the interval of --every until interrupted, and return the exit code."""
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


def _configured(table: str, options: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return the options, with the configuration's in place of None."""
    keys = dict(getattr(settings(), table) or {})
    unknown = sorted(keys.keys() - set(known))
    if unknown:
        hint = f"Use one of: {', '.join(sorted(known))}."
        raise InvalidArgumentError(f"{table}: unknown key {unknown[0]!r}.", hint=hint)
    keys |= {name: value for name, value in options.items() if value is not None}
    for name in _TIMES & keys.keys():
        value = keys[name]
        is_text = isinstance(value, str)
        keys[name] = parse_positive(name, value) if is_text else duration(name, value)
    if isinstance(keys.get("max_bytes"), str):
        keys["max_bytes"] = parse_size("max_bytes", keys["max_bytes"])
    return keys


# -- archive -----------------------------------------------------------------------------


@command("threadkeep archive threads.db --idle 30d --cold s3://bucket/agents", cold=True)
def archive(
    session: Session,
    threads: list[str] | None = thread_argument("Thread ids.", None),
    *,
    idle: str | None = option("--idle TIME", "All threads idle for this long: 30d, 12h."),
    dry_run: bool = DRY_RUN,
) -> None:
    """Move threads into the cold store. Reading a thread restores it."""
    if bool(threads) == bool(idle):
        raise InvalidArgumentError("Use either thread ids or --idle.")
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
    session.print(document, thread_table(shown), summary)


def _archive_targets(saver: Saver, threads: list[str] | None, idle: str | None) -> list[ThreadInfo]:
    """Return the threads to archive."""
    if idle:
        states = list(WITH_CHECKPOINTS)
        age = parse_duration("--idle", idle)
        return list(saver.threads.scan(state=states, updated_before=age))
    found = []
    for name in whole_threads(saver, threads or ()):
        info = saver.threads.get(name)
        if info is None or info.state == Lifecycle.DELETED:
            raise ThreadNotFoundError(thread=name, hint="Nothing was archived.")
        if info.state not in WITH_CHECKPOINTS:
            problem = f"A thread in the state {info.state} cannot be archived."
            raise StateError(problem, thread=name, hint="Nothing was archived.")
        found.append(info)
    return found


# -- gc and prune ------------------------------------------------------------------------


def _limits(
    *,
    keep: str | None = option(
        "--keep WHICH", "Keep all checkpoints, or only those at run_ends or turn_ends."
    ),
    keep_last: int | None = option(
        "--keep-last N", "Keep the newest N checkpoints of each thread."
    ),
    max_age: str | None = option("--max-age TIME", "Keep checkpoints younger than this: 7d."),
    max_bytes: str | None = option("--max-bytes BYTES", "Keep at most this size per thread: 10MB."),
    latest: list[str] | None = option(
        "--latest CHANNEL", "Keep only this channel's latest value. Repeatable."
    ),
    ttl: str | None = option("--ttl TIME", "Delete threads idle for this long: 90d."),
    max_count: int | None = option("--max-count N", "Keep at most N threads."),
    keep_tagged: bool | None = option(
        "--keep-tagged/--drop-tagged",
        "Protect tagged checkpoints, and tagged threads from --ttl and --max-count.",
    ),
) -> Retention:
    """Return the policy of these options and of the configuration."""
    options: dict[str, Any] = {
        "keep": keep,
        "keep_last": keep_last,
        "max_age": max_age,
        "max_bytes": parse_size("--max-bytes", max_bytes),
        "channels": dict.fromkeys(latest, "latest") if latest else None,
        "ttl": ttl,
        "max_count": max_count,
        "keep_tagged": keep_tagged,
    }
    return policy_of(options)


def policy_of(options: Mapping[str, Any]) -> Retention:
    """Return the policy, with the configuration's options in place of None."""
    keys = _configured("retention", options, {field.name for field in fields(Retention)})
    return Retention(**keys)


@command(
    "threadkeep gc threads.db --keep turn_ends --keep-last 10 --ttl 90d --dry-run",
    cold=True,
    limits=_limits,
)
def gc(
    session: Session,
    *,
    limits: Retention,
    dry_run: bool = DRY_RUN,
    every: str | None = EVERY,
) -> int:
    """Remove checkpoints and threads by a retention policy.

    Other limits come from the table retention of threadkeep.toml.
    """
    return _repeat(session, lambda: _collect(session, limits, None, dry_run=dry_run), every)


@command("threadkeep prune threads.db 42 43 --keep-last 10 --dry-run")
def prune(
    session: Session,
    threads: list[str] = THREAD_IDS,
    *,
    keep_last: int = option("--keep-last N", "Keep the newest N checkpoints of each thread.", 1),
    dry_run: bool = DRY_RUN,
) -> int:
    """Remove older checkpoints of threads.

    Keeps pinned threads, and checkpoints with a pin or a tag.
    """
    return _collect(session, Retention(keep_last=keep_last), threads, dry_run=dry_run)


_NO_LIMIT = (
    "No limit was given: checked only threads with a policy or a time to live of their own."
    " See threadkeep gc --help."
)


def _collect(
    session: Session, limits: Retention, threads: list[str] | None, *, dry_run: bool
) -> int:
    with session.progress() as progress, session.open(read_only=dry_run) as saver:
        report = saver.threads.gc(limits, thread_ids=threads, dry_run=dry_run, progress=progress)
    document = {**asdict(report), "checkpoints": report.checkpoints, "bytes": report.bytes}
    rows = [(one.thread, one.checkpoints, one.bytes, _gc_note(one)) for one in report.threads]
    found = table(("thread", "checkpoints>", "bytes>", ""), rows)
    is_unlimited = limits == Retention(keep_tagged=limits.keep_tagged)
    session.print(document, found, _gc_summary(report), _NO_LIMIT if is_unlimited else None)
    return 1 if report.skipped else 0


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


def _gc_note(one: CollectedThread) -> str:
    if one.skipped is not None:
        return f"skipped: {one.skipped}"
    if one.deleted is not None:
        return f"deleted: {one.deleted}"
    return f"channels kept: {', '.join(one.skipped_channels)}" if one.skipped_channels else ""


# -- tier --------------------------------------------------------------------------------


@command("threadkeep tier threads.db --warm 7d --cold s3://bucket/agents --dry-run", cold=True)
def tier(
    session: Session,
    threads: list[str] | None = OPTIONAL_THREAD_IDS,
    *,
    warm: str | None = option("--warm TIME", "Leave threads used within this time. Default: 1d."),
    archive: bool | None = option("--archive/--no-archive", "Archive idle threads or not."),
    offload: bool | None = option(
        "--offload/--no-offload", "Offload old values of other threads or not."
    ),
    offload_over: int | None = option(
        "--offload-over N", "Offload values over N bytes. Default: 65536."
    ),
    dry_run: bool = DRY_RUN,
    every: str | None = EVERY,
) -> int:
    """Move idle threads and old values into the cold store.

    Other options come from the table tiering of threadkeep.toml.
    """
    options = {"warm": warm, "archive": archive, "offload": offload, "offload_over": offload_over}
    tiering = _tiering(options)
    return _repeat(
        session, lambda: _tier(session, tiering, threads or None, dry_run=dry_run), every
    )


def _tiering(options: Mapping[str, Any]) -> Tiering:
    """Return the tiering, with the configuration's options in place of None."""
    keys = _configured("tiering", options, options)
    warm = WarmTier(max_age=keys["warm"]) if "warm" in keys else WarmTier()
    cold = {name: keys[name] for name in ("archive", "offload_over") if name in keys}
    offload = keys.get("offload", True)
    if not isinstance(offload, bool):
        raise invalid("offload", offload, "Use true or false.")
    if not offload and (options["offload"] is False or options["offload_over"] is None):
        cold["offload_over"] = None
    return Tiering(warm=warm, cold=ColdTier(**cold))


def _tier(session: Session, tiering: Tiering, threads: list[str] | None, *, dry_run: bool) -> int:
    with session.progress() as progress, session.open(read_only=dry_run) as saver:
        report = saver.threads.tier(tiering, thread_ids=threads, dry_run=dry_run, progress=progress)
    document = {**asdict(report), "bytes": report.bytes}
    session.print(document, *_tier_lines(report))
    return 1 if report.skipped else 0


def _tier_lines(report: TierReport) -> list[Drawn]:
    rows = [(one.thread, f"{one.bytes:,}", "archive") for one in report.archived]
    rows += [(one.thread, f"{one.bytes:,}", "offload") for one in report.offloaded]
    rows += [(thread, "", "left: shares values with forks") for thread in report.shared]
    rows += [(one.thread, "", f"skipped: {one.skipped}") for one in report.skipped]
    verbs = ("would archive", "would offload") if report.dry_run else ("archived", "offloaded")
    archived = plural(len(report.archived), "thread")
    offloaded = plural(len(report.offloaded), "thread")
    steps = [f"{verbs[0]} {archived}"] if report.archived else []
    steps += [f"{verbs[1]} old values of {offloaded}"] if report.offloaded else []
    summary = _summary(steps, report.examined, report.bytes, "Nothing to move.")
    return [table(("thread", "bytes>", ""), rows), summary]
