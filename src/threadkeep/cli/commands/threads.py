"""Commands that find, change and remove threads."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table
from rich.text import Text

from threadkeep.cli.app import command
from threadkeep.cli.parameters import (
    DryRun,
    Thread,
    ThreadIds,
    Ttl,
    WithMetadata,
    WithTags,
    Yes,
    parse_metadata,
    parse_size,
    parse_time,
    parse_ttl,
    thread_ids,
)
from threadkeep.cli.stores import Session
from threadkeep.cli.terminal import (
    clean,
    plural,
    print_thread,
    table,
    text,
    thread_table,
)
from threadkeep.engine.thread_entry import ThreadStatus
from threadkeep.errors import InvalidArgumentError, ThreadNotFoundError, UnfinishedErasureError
from threadkeep.registry.filters import MOST
from threadkeep.saver import Saver, store_of
from threadkeep.stats import all_sizes
from threadkeep.threads import EraseReport, ThreadInfo, ThreadPage

_WHEN = "Use an ISO time (UTC), or a time ago such as 7d, 12h or 30m."

States = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        help=f"Only threads in this state: {', '.join(ThreadStatus)}. Repeatable. Default: all but"
        " deleted.",
    ),
]
CreatedAfter = Annotated[
    str | None,
    typer.Option("--created-after", metavar="WHEN", help=f"Created after this time. {_WHEN}"),
]
CreatedBefore = Annotated[
    str | None, typer.Option("--created-before", metavar="WHEN", help="Created before this time.")
]
UpdatedAfter = Annotated[
    str | None, typer.Option("--updated-after", metavar="WHEN", help="Updated after this time.")
]
UpdatedBefore = Annotated[
    str | None,
    typer.Option("--updated-before", metavar="WHEN", help="Not updated since this time."),
]
HasInterrupt = Annotated[
    bool | None,
    typer.Option("--has-interrupt/--no-interrupt", help="With or without an interrupt that waits."),
]
Pinned = Annotated[bool | None, typer.Option("--pinned/--not-pinned", help="Pinned or not.")]
MinBytes = Annotated[
    str | None, typer.Option("--min-bytes", metavar="BYTES", help="At least this size: 10MB.")
]
ForkedFrom = Annotated[
    str | None, typer.Option("--forked-from", metavar="THREAD", help="Forks of this thread.")
]
Order = Annotated[
    str,
    typer.Option(
        "--order", help="Sort by updated_at, created_at, bytes or thread; - reverses: -bytes."
    ),
]


@command("threadkeep threads --has-interrupt --updated-before 1h --url threads.db")
def threads(  # noqa: PLR0913 - they are given by name
    session: Session,
    thread: Annotated[
        str | None,
        typer.Argument(metavar="THREAD", help="Show only this thread.", autocompletion=thread_ids),
    ] = None,
    *,
    state: States = None,
    tag: WithTags = None,
    metadata: WithMetadata = None,
    created_after: CreatedAfter = None,
    created_before: CreatedBefore = None,
    updated_after: UpdatedAfter = None,
    updated_before: UpdatedBefore = None,
    has_interrupt: HasInterrupt = None,
    pinned: Pinned = None,
    min_bytes: MinBytes = None,
    forked_from: ForkedFrom = None,
    order: Order = "-updated_at",
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST, help="Threads per page.")] = 50,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Continue after the page that printed this.")
    ] = None,
    all_pages: Annotated[bool, typer.Option("--all", help="List all pages.")] = False,
    count: Annotated[bool, typer.Option("--count", help="Print only the number.")] = False,
) -> None:
    """List threads that match all options, or show one thread."""
    options: dict[str, Any] = {
        "state": state,
        "tags": tag,
        "metadata": parse_metadata("--metadata", metadata),
        "created_after": parse_time("--created-after", created_after),
        "created_before": parse_time("--created-before", created_before),
        "updated_after": parse_time("--updated-after", updated_after),
        "updated_before": parse_time("--updated-before", updated_before),
        "has_interrupt": has_interrupt,
        "pinned": pinned,
        "min_bytes": parse_size("--min-bytes", min_bytes),
        "forked_from": forked_from,
    }
    filters = {name: value for name, value in options.items() if value not in (None, [], {})}
    if thread is not None and (filters or cursor or all_pages or count):
        hint = "Use either a thread id or options that filter."
        raise InvalidArgumentError("A thread id cannot be combined with a search.", hint=hint)
    with session.open(read_only=True) as saver:
        if thread is not None:
            print_thread(session, _existing(saver, thread))
        elif count:
            number = saver.threads.count(**filters)
            session.print({"count": number}, str(number))
        else:
            search = {**filters, "order": order, "cursor": cursor}
            page = _all(saver, search) if all_pages else saver.threads.search(limit=limit, **search)
            _print_page(session, page)


def _existing(saver: Saver, thread: str) -> ThreadInfo:
    found = saver.threads.get(thread)
    if found is None:
        raise ThreadNotFoundError(thread=thread)
    return found


def _all(saver: Saver, search: dict[str, Any]) -> ThreadPage:
    page = saver.threads.search(limit=MOST, **search)
    found = list(page)
    while page.cursor is not None:
        page = saver.threads.search(limit=MOST, **{**search, "cursor": page.cursor})
        found += page
    return ThreadPage(tuple(found), None)


def _print_page(session: Session, page: ThreadPage) -> None:
    document = {"threads": [one.as_json() for one in page], "cursor": page.cursor}
    more = [f"More threads: --cursor {page.cursor}, or --all"] if page.cursor else []
    session.print(document, thread_table(page) if page else "No threads found", *more)


@command("threadkeep create 42 --metadata user_id=u1 --ttl 30d --url threads.db")
def create(
    session: Session,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="Thread id.")],
    *,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Tag. Repeatable.")] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata", metavar="KEY=VALUE", help="VALUE is JSON, else text. Repeatable."
        ),
    ] = None,
    ttl: Ttl = None,
) -> None:
    """Register a thread before its first run."""
    pairs = parse_metadata("--metadata", metadata)
    limit = parse_ttl(ttl) or None  # (a new thread has no time to live)
    with session.open() as saver:
        info = saver.threads.create(thread, metadata=pairs, tags=tag or (), ttl=limit)
    print_thread(session, info)


@command("threadkeep set 42 plan=pro trial=null --ttl 30d --url threads.db", cold=True)
def set_metadata(
    session: Session,
    thread: Thread,
    pairs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Metadata. VALUE is JSON, else text; null removes the key."
        ),
    ] = None,
    *,
    ttl: Ttl = None,
) -> None:
    """Set metadata of a thread, or its time to live."""
    if not pairs and ttl is None:
        raise InvalidArgumentError("There is nothing to set.", hint="Use KEY=VALUE, or --ttl.")
    metadata, limit = parse_metadata("KEY=VALUE", pairs), parse_ttl(ttl)
    with session.open() as saver:
        info = saver.threads.update(thread, metadata=metadata, ttl=limit)
    print_thread(session, info)


@command("threadkeep tag 42 escalated vip --url threads.db", cold=True)
def tag(
    session: Session,
    thread: Thread,
    tags: Annotated[list[str], typer.Argument(metavar="TAG", help="Tags.")],
    *,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the tags instead.")] = False,
) -> None:
    """Add tags to a thread, or remove them."""
    with session.open() as saver:
        change = saver.threads.untag if remove else saver.threads.tag
        info = change(thread, *tags)
    print_thread(session, info)


@command("threadkeep pin 42 --url threads.db", cold=True)
def pin(
    session: Session,
    thread: Thread,
    *,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the pin instead.")] = False,
) -> None:
    """Pin a thread, so that gc and prune leave it alone."""
    with session.open() as saver:
        info = saver.threads.unpin(thread) if remove else saver.threads.pin(thread)
    print_thread(session, info)


@command("threadkeep copy 42 experiment --url threads.db", cold=True)
def copy(
    session: Session,
    source: Annotated[
        str, typer.Argument(metavar="THREAD", help="Thread id.", autocompletion=thread_ids)
    ],
    target: Annotated[str, typer.Argument(metavar="COPY", help="Thread id of the copy.")],
) -> None:
    """Copy a thread, its tags and metadata within the store."""
    with session.open() as saver:
        if _existing(saver, source).state in (ThreadStatus.CREATED, ThreadStatus.DELETED):
            raise ThreadNotFoundError(thread=source)
        saver.copy_thread(source, target)
    document = {"source": source, "target": target}
    session.print(document, text(f"Copied thread {source} to {target}"))


@command("threadkeep delete 42 43 --dry-run --url threads.db", cold=True)
def delete(
    session: Session, threads: ThreadIds, *, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Delete threads. If one does not exist, none is deleted."""
    with session.open() as saver:
        sizes = _sizes(saver, list(dict.fromkeys(threads)))
        if not dry_run and not yes:
            names = clean(", ".join(one.thread for one in sizes))
            session.confirm("delete", f"Delete {names}? This cannot be undone.", _table(sizes))
        for one in sizes if not dry_run else ():
            saver.delete_thread(one.thread)
    verb = "Would delete" if dry_run else "Deleted"
    total = plural(sum(one.bytes for one in sizes), "byte")
    document = {"threads": [one._asdict() for one in sizes], "deleted": not dry_run}
    summary = f"{verb} {plural(len(sizes), 'thread')} ({total})"
    session.print(document, *([_table(sizes)] if dry_run else []), summary)


class _Size(NamedTuple):
    """Rows of a thread, and its bytes as the registry counts them."""

    thread: str
    checkpoints: int
    writes: int
    bytes: int


def _sizes(saver: Saver, threads: list[str]) -> list[_Size]:
    """Return the sizes of threads.

    Raises:
        ThreadNotFoundError: one of them does not exist.
    """
    rows = {one.thread: one for one in store_of(saver).run(all_sizes()).threads}
    found = []
    for name in threads:
        info, stored = saver.threads.get(name), rows.get(name)
        if stored is None and (info is None or info.state == ThreadStatus.DELETED):
            raise ThreadNotFoundError(thread=name, hint="Nothing was deleted.")
        counts = (stored.checkpoints, stored.writes) if stored else (0, 0)
        found.append(_Size(name, *counts, info.bytes if info else 0))
    return found


def _table(sizes: list[_Size]) -> Table:
    rows = [(text(one.thread), f"{one.checkpoints:,}", f"{one.bytes:,}") for one in sizes]
    return table(("thread", "checkpoints>", "~bytes>"), rows)


@command("threadkeep erase --metadata user_id=u1 --dry-run --url threads.db", cold=True)
def erase(
    session: Session,
    thread: Annotated[
        str | None, typer.Argument(metavar="THREAD", help="Thread id.", autocompletion=thread_ids)
    ] = None,
    *,
    metadata: WithMetadata = None,
    forks: Annotated[
        bool, typer.Option("--forks", help="Erase forks too: they hold the same data.")
    ] = False,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="PostgreSQL: rewrite the tables, which locks them.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Erase threads from tables, caches and the store's files.

    Name one thread, or all that have some metadata.

    Exit code 1: part of it was not done. Do what the output says, and erase again.
    """
    pairs = None if metadata is None else parse_metadata("--metadata", metadata)
    options: dict[str, Any] = {"metadata": pairs, "forks": forks}
    with session.open(read_only=dry_run) as saver:
        if dry_run or not yes:
            report = saver.threads.erase(thread, **options, dry_run=True)
        if not dry_run:
            if not yes:
                question = f"Erase {plural(len(report.threads), 'thread')}? This cannot be undone."
                session.confirm("erase", question, *_erase_lines(report))
            report = _erase(saver, session, thread, **options, rewrite=rewrite)
    session.print(report.as_json(), *_erase_lines(report))
    return 0 if report.ok else 1


def _erase(saver: Saver, session: Session, thread: str | None, **options: Any) -> EraseReport:
    with session.progress() as progress:
        try:
            return saver.threads.erase(thread, progress=progress, **options)
        except UnfinishedErasureError as error:
            if not isinstance(error.report, EraseReport):
                raise
            return error.report


def _erase_lines(report: EraseReport) -> list[Any]:
    archived = any(one.archived_bytes for one in report.threads)
    columns = ["thread", "checkpoints>", "writes>", "segments>", "bytes>"]
    rows: list[list[Text | str]] = []
    for one in report.threads:
        counts = [one.checkpoints, one.writes, one.segments, one.bytes]
        counts += [one.archived_bytes] if archived else []
        rows.append([text(one.thread), *(f"{count:,}" for count in counts)])
    columns += ["archived>"] if archived else []
    verb = "Would erase" if report.dry_run else "Erased"
    total = plural(sum([one.bytes for one in report.threads]), "byte")
    lines = [f"{verb} {plural(len(rows), 'thread')} ({total})"]
    if report.forks:
        lines.append(f"Forks still hold the data: {', '.join(report.forks)} (--forks erases them)")
    if report.shared_with:
        lines.append(f"Shared history with: {', '.join(report.shared_with)}")
    lines += [f"Cleared: {place}" for place in report.cleared]
    lines += [f"Remaining: {place}" for place in report.remains]
    lines += [f"Not done: {place}" for place in report.unfinished]
    return [*([table(columns, rows)] if rows else []), *map(clean, lines)]
