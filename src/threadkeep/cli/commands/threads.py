"""Commands that find, change and remove threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from threadkeep._core.engine.thread_entry import Lifecycle, ThreadStatus
from threadkeep.cli.app import command, in_shell
from threadkeep.cli.ids import whole_thread, whole_threads
from threadkeep.cli.parameters import (
    DRY_RUN,
    THREAD,
    THREAD_IDS,
    TTL,
    WITH_METADATA,
    WITH_TAGS,
    YES,
    argument,
    flag,
    option,
    parse_metadata,
    parse_size,
    parse_time,
    parse_ttl,
    thread_argument,
)
from threadkeep.cli.stores import Session, langgraph_key
from threadkeep.cli.terminal import (
    Drawn,
    found_lines,
    plural,
    print_thread,
    skipped_lines,
    table,
    text,
    thread_table,
)
from threadkeep.errors import InvalidArgumentError, ThreadNotFoundError, UnfinishedErasureError
from threadkeep.savers.saver import Saver
from threadkeep.threads import AccountReport, EraseReport, ThreadInfo, filters_of
from threadkeep.threads.registry import MOST
from threadkeep.threads.transfer.reading import MOST as MOST_READ
from threadkeep.threads.transfer.reading import LangGraphReader

_WHEN = "Use an ISO time (UTC), or a time ago such as 7d, 12h or 30m."
_STATES = ", ".join(Lifecycle)
_STATUSES = ", ".join(ThreadStatus)


def _filters(  # noqa: PLR0913 - they are given by name
    *,
    query: str | None = option(
        "--query QUERY",
        "Threads that a query of the page finds: 'status:waiting #vip user_id=u-1'.",
    ),
    state: list[str] | None = option(
        "--state STATE",
        f"Only threads in this state: {_STATES}. Repeatable. Default: all but deleted.",
    ),
    status: list[str] | None = option(
        "--status STATUS", f"Only threads with this status: {_STATUSES}. Repeatable."
    ),
    failed: bool = flag("--failed", "Only failed threads, as --status failed."),
    unfinished: bool = flag("--unfinished", "Only unfinished threads."),
    waiting: bool = flag("--waiting", "Only threads that wait for an answer."),
    failed_node: str | None = option("--failed-node NODE", "Only threads in which it failed."),
    tag: list[str] | None = WITH_TAGS,
    metadata: list[str] | None = WITH_METADATA,
    created_after: str | None = option("--created-after WHEN", f"Created after this time. {_WHEN}"),
    created_before: str | None = option("--created-before WHEN", "Created before this time."),
    updated_after: str | None = option("--updated-after WHEN", "Updated after this time."),
    updated_before: str | None = option("--updated-before WHEN", "Not updated since this time."),
    pinned: bool | None = option("--pinned/--not-pinned", "Pinned or not."),
    min_bytes: str | None = option("--min-bytes BYTES", "At least this size: 10MB."),
    forked_from: str | None = option("--forked-from THREAD", "Forks of this thread."),
    id_prefix: str | None = option("--id-prefix TEXT", "Ids that begin with this text."),
) -> dict[str, Any]:
    """Return the filters of `saver.threads.search`."""
    flags = {"failed": failed, "unfinished": unfinished, "waiting": waiting}
    options = {
        "state": state,
        "status": [*(status or ()), *[name for name, is_given in flags.items() if is_given]],
        "failed_node": failed_node,
        "tags": tag,
        "metadata": parse_metadata("--metadata", metadata),
        "created_after": parse_time("--created-after", created_after),
        "created_before": parse_time("--created-before", created_before),
        "updated_after": parse_time("--updated-after", updated_after),
        "updated_before": parse_time("--updated-before", updated_before),
        "pinned": pinned,
        "min_bytes": parse_size("--min-bytes", min_bytes),
        "forked_from": forked_from,
        "id_prefix": id_prefix,
    }
    given = {name: value for name, value in options.items() if value not in (None, [], {})}
    found = filters_of(query or "")
    if both := sorted(found.keys() & given.keys()):
        hint = "Name it in one of them."
        raise InvalidArgumentError(f"--query and an option both give {both[0]}.", hint=hint)
    return {**found, **given}


@command("threadkeep threads threads.db --status waiting --updated-before 1h", filters=_filters)
def threads(
    session: Session,
    thread: str | None = thread_argument("Show only this thread.", None),
    *,
    filters: dict[str, Any],
    order: str = option(
        "--order FIELD",
        "Sort by updated_at, created_at, bytes or thread; - reverses: -bytes.",
        "-updated_at",
    ),
    limit: int = option("--limit N", "Threads per page.", 50, min=1, max=MOST),
    cursor: str | None = option(
        "--cursor CURSOR", "Continue after the page that printed this cursor."
    ),
    all_pages: bool = flag("--all", "List all pages."),
    count: bool = flag("--count", "Print only the number."),
) -> None:
    """List threads that match all options, or show one thread."""
    if thread is not None and (filters or cursor or all_pages or count):
        hint = "Use either a thread id or options that filter."
        raise InvalidArgumentError("A thread id cannot be combined with filters.", hint=hint)
    with session.open_any(read_only=True) as saver:
        if thread is not None:
            print_thread(session, _existing(saver, whole_thread(saver, thread)))
        elif filters and not isinstance(saver, Saver):
            hint = "Use --order, --limit and --all, or copy the threads: threadkeep adopt."
            raise InvalidArgumentError("LangGraph's own savers have no filters.", hint=hint)
        elif count:
            number = saver.threads.count(**filters)
            session.print({"count": number}, str(number))
        else:
            most = MOST if isinstance(saver, Saver) else MOST_READ
            limit = most if all_pages else min(limit, most)
            search: Any = {**filters, "order": order, "limit": limit}
            page = saver.threads.search(**search, cursor=cursor)
            found = list(page)
            while all_pages and page.cursor is not None:
                page = saver.threads.search(**search, cursor=page.cursor)
                found += page
            document = {"threads": [one.as_json() for one in found], "cursor": page.cursor}
            more = f"More threads: --cursor {page.cursor}, or --all" if page.cursor else None
            is_any_held = any(one.status == ThreadStatus.HELD for one in found)
            advice = "To let a held thread be resumed: threadkeep release" if is_any_held else None
            session.print(document, thread_table(found) or "No threads found", more, advice)


@command("threadkeep find threads.db late kettle", filters=_filters)
def find(
    session: Session,
    words: list[str] = argument("WORD", "Words that one message has, all of them."),
    *,
    filters: dict[str, Any],
    limit: int = option("--limit N", "Threads to find.", 20, min=1),
    seconds: float = option("--seconds N", "Time for reading, in seconds.", 2.0),
) -> None:
    """Find threads by words of their messages, ids and metadata, newest first."""
    with session.open_any(read_only=True, key=langgraph_key()) as saver:
        if filters and not isinstance(saver, Saver):
            hint = "Leave out the filters, or copy the threads: threadkeep adopt."
            raise InvalidArgumentError("LangGraph's own savers have no filters.", hint=hint)
        found = saver.threads.find(" ".join(words), limit=limit, seconds=seconds, **filters)
        total = found.threads_read if found.complete else saver.threads.count(**filters)
    lines: list[Drawn] = [f"Read all {plural(total, 'thread')}"]
    if found.indexed:
        lines[0] = f"Searched the index, and read {plural(found.threads_read, 'thread')}"
        if found.unindexed:
            lines.append(f"Not indexed: {plural(found.unindexed, 'thread')} (threadkeep index)")
    elif not found.complete and found.oldest is not None:
        lines[0] = f"Read the newest {found.threads_read:,} of {plural(total, 'thread')}"
        if isinstance(saver, Saver):
            lines.append(f"To read on: --updated-before {found.oldest.isoformat()}")
    if found.archived:
        lines.append(f"Messages of {plural(found.archived, 'archived thread')} were not read")
    document = {**found.as_json(), "total": total}
    hits: list[Drawn] = [*found_lines(found)] or ["No threads found"]
    session.print(document, *hits, *lines, *skipped_lines(found.skipped))


@command("threadkeep index threads.db")
def index(
    session: Session,
    *,
    again: bool = flag("--again", "Remove the index and build it again: if it is damaged."),
) -> None:
    """Index messages, so that find searches all threads.

    Indexes all threads that are not indexed. Programs may use the store meanwhile.
    """
    with session.open() as saver, session.progress() as progress:
        done = saver.threads.index(progress=progress, again=again)
    session.print({"indexed": done}, f"Indexed {plural(done, 'thread')}")


def _existing(saver: Saver | LangGraphReader, thread: str, *states: Lifecycle) -> ThreadInfo:
    """Return a thread. Raise if it does not exist, or has one of these states."""
    found = saver.threads.get(thread)
    if found is None or found.state in states:
        raise ThreadNotFoundError(thread=thread)
    return found


@command("threadkeep create threads.db 42 --metadata user_id=u1 --ttl 30d")
def create(
    session: Session,
    thread: str = argument("THREAD", "Thread id."),
    *,
    tag: list[str] | None = option("--tag TAG", "Tag. Repeatable."),
    metadata: list[str] | None = option(
        "--metadata KEY=VALUE", "VALUE is JSON, else text. Repeatable."
    ),
    ttl: str | None = TTL,
) -> None:
    """Register a thread before its first run."""
    pairs = parse_metadata("--metadata", metadata)
    limit = parse_ttl(ttl) or None  # (0, never: a new thread has no time to live)
    with session.open() as saver:
        info = saver.threads.create(thread, metadata=pairs, tags=tag or (), ttl=limit)
    print_thread(session, info)


@command("threadkeep set threads.db 42 plan=pro trial=null --ttl 30d")
def set_metadata(
    session: Session,
    thread: str = THREAD,
    pairs: list[str] | None = argument(
        "KEY=VALUE", "Metadata. VALUE is JSON, else text; null removes the key.", None
    ),
    *,
    ttl: str | None = TTL,
) -> None:
    """Set metadata of a thread, or its time to live."""
    if not pairs and ttl is None:
        raise InvalidArgumentError("There is nothing to set.", hint="Use KEY=VALUE, or --ttl.")
    metadata, limit = parse_metadata("KEY=VALUE", pairs), parse_ttl(ttl)
    with session.open() as saver:
        info = saver.threads.update(whole_thread(saver, thread), metadata=metadata, ttl=limit)
    print_thread(session, info)


@command("threadkeep tag threads.db 42 escalated vip")
def tag(
    session: Session,
    thread: str = THREAD,
    tags: list[str] = argument("TAG", "Tags."),
    *,
    remove: bool = flag("--remove", "Remove the tags instead."),
) -> None:
    """Add or remove tags of a thread."""
    with session.open() as saver:
        name = whole_thread(saver, thread)
        info = (saver.threads.untag if remove else saver.threads.tag)(name, *tags)
    print_thread(session, info)


@command("threadkeep pin threads.db 42")
def pin(
    session: Session,
    thread: str = THREAD,
    *,
    remove: bool = flag("--remove", "Remove the pin instead."),
) -> None:
    """Protect a thread from gc and prune."""
    with session.open() as saver:
        name = whole_thread(saver, thread)
        info = saver.threads.unpin(name) if remove else saver.threads.pin(name)
    print_thread(session, info)


@command("threadkeep release threads.db 42")
def release(
    session: Session,
    thread: str = THREAD,
    *,
    force: bool = flag("--force", "Also end the lease of a worker, which then saves nothing more."),
) -> None:
    """Let a held thread be resumed again."""
    with session.open() as saver:
        name = whole_thread(saver, thread)
        saver.runs.release(name, force=force)
        info = _existing(saver, name)
    print_thread(session, info)


@command("threadkeep copy threads.db 42 experiment", cold=True)
def copy(
    session: Session,
    source: str = thread_argument("Thread id."),
    target: str = argument("COPY", "Thread id of the copy."),
) -> None:
    """Copy a thread with its tags and metadata within the store."""
    with session.open() as saver:
        source = whole_thread(saver, source)
        _existing(saver, source, Lifecycle.CREATED, Lifecycle.DELETED)
        saver.copy_thread(source, target)
    document = {"source": source, "target": target}
    session.print(document, f"Copied thread {source} to {target}")


@command("threadkeep delete threads.db 42 43 --dry-run", cold=True)
def delete(
    session: Session, threads: list[str] = THREAD_IDS, *, yes: bool = YES, dry_run: bool = DRY_RUN
) -> None:
    """Delete threads. If one does not exist, none is deleted."""
    with session.open() as saver:
        names = dict.fromkeys(threads) if yes else whole_threads(saver, threads)
        found = [_existing(saver, name, Lifecycle.DELETED) for name in names]
        if not dry_run and not yes:
            question = f"Delete {', '.join(one.id for one in found)}? This cannot be undone."
            session.confirm("delete", question, thread_table(found))
        for one in found if not dry_run else ():
            saver.delete_thread(one.id)
    total = plural(sum(one.bytes for one in found), "byte")
    summary = f"{'Would delete' if dry_run else 'Deleted'} {plural(len(found), 'thread')} ({total})"
    document = {"threads": [one.as_json() for one in found], "deleted": not dry_run}
    session.print(document, thread_table(found) if dry_run else None, summary)


@command("threadkeep erase threads.db --metadata user_id=u1 --dry-run", cold=True)
def erase(
    session: Session,
    thread: str | None = thread_argument("Thread id.", None),
    *,
    metadata: list[str] | None = WITH_METADATA,
    forks: bool = flag("--forks", "Erase forks too, as they hold the same data."),
    rewrite: bool = flag("--rewrite", "PostgreSQL: rewrite the tables, which locks them."),
    yes: bool = YES,
    dry_run: bool = DRY_RUN,
) -> int:
    """Erase threads from tables, caches and the store's files.

    Name one thread, or choose threads by metadata.

    Exit code 1: the erasure is incomplete. Follow the output, and erase again.
    """
    pairs = None if metadata is None else parse_metadata("--metadata", metadata)
    options: dict[str, Any] = {"metadata": pairs, "forks": forks}
    with session.open(read_only=dry_run) as saver:
        if thread is not None and not yes:
            thread = whole_thread(saver, thread)
        run = partial(saver.threads.erase, thread, **options)
        report = _erased(session, run, rewrite=rewrite, yes=yes, dry_run=dry_run)
    return 0 if report.ok else 1


@command(
    "threadkeep delete-account threads.db --metadata user_id=u1 --namespace users.u1 --dry-run",
    cold=True,
)
def delete_account(  # noqa: PLR0913 - they are given by name
    session: Session,
    *,
    metadata: list[str] = option(
        "--metadata KEY=VALUE",
        "A thread with this metadata is the user's. VALUE is JSON, else text. Repeatable.",
        ...,
    ),
    thread: list[str] | None = option("--thread ID", "Also this thread or session. Repeatable."),
    namespace: list[str] | None = option(
        "--namespace LABELS",
        "Erase the items of stores below these labels, joined by dots: users.u1. Repeatable.",
    ),
    keep_results: bool = flag("--keep-results", "Do not clear the cache of node results."),
    keep_forks: bool = flag("--keep-forks", "Do not erase forks, which hold the same data."),
    rewrite: bool = flag("--rewrite", "PostgreSQL: rewrite the tables, which locks them."),
    yes: bool = YES,
    dry_run: bool = DRY_RUN,
) -> int:
    """Erase a user's threads, items, sessions and cached results.

    Exit code 1: the erasure is incomplete. Follow the output, and call it again.
    """
    with session.open(read_only=dry_run) as saver:
        run = partial(
            saver.threads.delete_account,
            parse_metadata("--metadata", metadata),
            thread_ids=thread or (),
            namespaces=[_labels(one) for one in namespace or ()],
            results=not keep_results,
            forks=not keep_forks,
        )
        report = _erased(session, run, rewrite=rewrite, yes=yes, dry_run=dry_run)
    return 0 if report.ok else 1


def _labels(word: str) -> tuple[str, ...]:
    labels = tuple(word.split("."))
    if not all(labels):
        hint = "Use labels joined by dots: users.u1."
        raise InvalidArgumentError(f"Invalid value for --namespace: {word!r}.", hint=hint)
    return labels


def _erased(
    session: Session,
    run: Callable[..., EraseReport],
    *,
    rewrite: bool,
    yes: bool,
    dry_run: bool,
) -> EraseReport:
    """Ask, erase and print the report."""
    if dry_run or not yes:
        report = run(dry_run=True)
    if not dry_run:
        if not yes:
            question = f"Erase {plural(len(report.threads), 'thread')}? This cannot be undone."
            session.confirm("erase", question, *_erase_lines(report))
        with session.progress() as progress:
            try:
                report = run(rewrite=rewrite, progress=progress)
            except UnfinishedErasureError as error:
                report = error.report
    session.print(report.as_json(), *_erase_lines(report))
    return report


def _erase_lines(report: EraseReport) -> list[Drawn]:
    columns = ["thread", "checkpoints>", "writes>", "segments>", "bytes>", "archived>"]
    rows = [
        (one.thread, one.checkpoints, one.writes, one.segments, one.bytes, one.archived_bytes or 0)
        for one in report.threads
    ]
    width = 6 if any(one.archived_bytes for one in report.threads) else 5
    verb = "Would erase" if report.dry_run else "Erased"
    total = plural(sum([one.bytes for one in report.threads]), "byte")
    lines: list[Drawn] = [f"{verb} {plural(len(rows), 'thread')} ({total})"]
    if isinstance(report, AccountReport):
        lines += [
            f"{verb} {plural(number, 'item')} below {'.'.join(namespace)}"
            for namespace, number in report.items
        ]
        if report.results:
            lines.append(f"{verb} {plural(report.results, 'cached result')}")
    if report.forks:
        erases = "without --keep-forks" if isinstance(report, AccountReport) else "--forks"
        names = ", ".join(report.forks)
        lines.append(text(f"Forks still hold the data: {names} ({erases} erases them)"))
    if report.shared_with:
        lines.append(text(f"Shared history with: {', '.join(report.shared_with)}"))
    lines += [f"Cleared: {place}" for place in report.cleared]
    lines += [f"Remaining: {in_shell(place)}" for place in report.remains]
    lines += [f"Not done: {in_shell(place)}" for place in report.unfinished]
    return [table(columns[:width], [row[:width] for row in rows]), *lines]
