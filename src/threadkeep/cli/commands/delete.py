"""Commands that remove threads: delete, erase."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table
from rich.text import Text

from threadkeep.cli.app import command
from threadkeep.cli.parameters import (
    DryRun,
    ThreadIds,
    WithMetadata,
    Yes,
    parse_metadata,
    thread_ids,
)
from threadkeep.cli.render import plural, table, text
from threadkeep.cli.stores import Session
from threadkeep.cli.terminal import clean
from threadkeep.engine.thread_entry import ThreadStatus
from threadkeep.errors import ThreadNotFoundError, UnfinishedErasureError
from threadkeep.saver import Saver, store_of
from threadkeep.stats import all_sizes
from threadkeep.threads import EraseReport


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
