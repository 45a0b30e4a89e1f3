"""Commands that remove threads: delete, erase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer

from threadkeep.cli import parsing
from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import (
    AsJson,
    Cold,
    DryRun,
    ThreadIds,
    Url,
    WithMetadata,
    Yes,
    thread_ids,
)
from threadkeep.cli.render import (
    size,
    table,
    text,
)
from threadkeep.cli.stores import reading, url_of, writing
from threadkeep.cli.terminal import Output, ask, clean
from threadkeep.engine.thread_entry import ThreadStatus
from threadkeep.errors import ThreadNotFoundError, UnfinishedErasureError
from threadkeep.saver import Saver, store_of
from threadkeep.stats import all_sizes
from threadkeep.threads import ErasedThread, EraseReport


@command(Panel.CHANGE, "threadkeep delete 42 43 --dry-run --url threads.db")
def delete(
    threads: ThreadIds,
    *,
    yes: Yes = False,
    dry_run: DryRun = False,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Delete threads, with all their checkpoints. Nothing is, if one of them is not there."""
    output = Output(as_json=as_json)
    with writing(url_of(url), cold) as saver:
        sizes = _sizes(saver, list(dict.fromkeys(threads)))
        if not dry_run and not yes:
            names = clean(", ".join(one.thread for one in sizes))
            question = f"Delete {names} for good?"
            ask(output, "delete", question, as_json=as_json, shown=[_draw_delete(sizes)])
        for one in sizes if not dry_run else ():
            saver.delete_thread(one.thread)
    documents = [_delete_document(one) for one in sizes]
    what = "would be deleted" if dry_run else "deleted"
    line = f"{len(sizes)} threads {what}, {size(sum(one['bytes'] for one in documents))} bytes"
    drawn = [_draw_delete(sizes)] if dry_run else []
    output.tell({"threads": documents, "deleted": not dry_run}, *drawn, line)
    return 0


class _Size(NamedTuple):
    """How many rows a thread has, and its bytes as `threadkeep threads` tells them."""

    thread: str
    checkpoints: int
    writes: int
    bytes: int


def _sizes(saver: Saver, threads: list[str]) -> list[_Size]:
    """How much each takes.

    Raises:
        ThreadNotFoundError: there is none of that name.
    """
    rows = {one.thread: one for one in store_of(saver).run(all_sizes()).threads}
    found = []
    for name in threads:
        known, counted = saver.threads.get(name), rows.get(name)
        if counted is None and (known is None or known.state == ThreadStatus.DELETED):
            raise ThreadNotFoundError(thread=name, hint="Nothing was deleted.")
        counts = (counted.checkpoints, counted.writes) if counted else (0, 0)
        found.append(_Size(name, *counts, known.bytes if known else 0))
    return found


def _delete_document(one: _Size) -> dict[str, Any]:
    return {
        "thread": one.thread,
        "checkpoints": one.checkpoints,
        "writes": one.writes,
        "bytes": one.bytes,
    }


def _draw_delete(sizes: list[_Size]) -> Any:
    rows = [(text(one.thread), size(one.checkpoints), size(one.bytes)) for one in sizes]
    return table(("thread", "checkpoints>", "~bytes>"), rows)


@command(Panel.CHANGE, "threadkeep erase --metadata user_id=u1 --dry-run --url threads.db")
def erase(  # noqa: PLR0913 - they are given by name
    thread: Annotated[
        str | None,
        typer.Argument(help="the thread's id", autocompletion=thread_ids),
    ] = None,
    *,
    metadata: WithMetadata = None,
    forks: Annotated[
        bool,
        typer.Option("--forks", help="also what was forked from these, and holds what it took"),
    ] = False,
    rewrite: Annotated[
        bool,
        typer.Option(
            "--rewrite", help="PostgreSQL: write the tables anew; nobody can use them meanwhile"
        ),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Erase a thread, or all with some metadata: rows, caches, and bytes in the store's files.

    Exit code 1: a place could not be cleared, or one of the threads not be removed: do what is
    said, and erase again.
    """
    output, place = Output(as_json=as_json), url_of(url)
    given = None if metadata is None else parsing.metadata("--metadata", metadata)
    if dry_run:
        with reading(place) as saver:
            report = saver.threads.erase(thread, metadata=given, forks=forks, dry_run=True)
    else:
        with writing(place, cold) as saver:
            if not yes:
                would = saver.threads.erase(thread, metadata=given, forks=forks, dry_run=True)
                question = f"Erase {len(would.threads)} threads for good?"
                ask(output, "erase", question, as_json=as_json, shown=_draw_erase(would))
            report = _erased(saver, output, thread, metadata=given, forks=forks, rewrite=rewrite)
    output.tell(report.as_json(), *_draw_erase(report))
    return 0 if report.ok else 1


def _erased(saver: Saver, output: Output, thread: str | None, **options: Any) -> EraseReport:
    """The report, also where a place was not cleared."""
    with output.progress() as told:
        try:
            return saver.threads.erase(thread, progress=told, **options)
        except UnfinishedErasureError as error:
            if not isinstance(error.report, EraseReport):
                raise
            return error.report


def _row(one: ErasedThread, *, archived: bool) -> Sequence[Any]:
    counts = [one.checkpoints, one.writes, one.segments, one.bytes]
    return [text(one.thread), *map(size, counts + ([one.archived_bytes] if archived else []))]


def _draw_erase(report: EraseReport) -> list[Any]:
    archived = any(one.archived_bytes for one in report.threads)
    rows = [_row(one, archived=archived) for one in report.threads]
    columns = ["thread", "checkpoints>", "writes>", "segments>", "bytes>"]
    columns += ["archived>"] if archived else []
    what = "would be erased" if report.dry_run else "erased"
    total = size(sum([one.bytes for one in report.threads]))
    lines = [f"{len(rows)} threads {what}, {total} bytes"]
    if report.forks:
        lines.append(
            f"forks hold what they took: {', '.join(report.forks)} (--forks erases them too)"
        )
    if report.shared_with:
        lines.append(f"shared with, before they parted: {', '.join(report.shared_with)}")
    lines += [f"cleared: {one}" for one in report.cleared]
    lines += [f"remains: {one}" for one in report.remains]
    lines += [f"NOT DONE: {one}" for one in report.unfinished]
    return [*([table(columns, rows)] if rows else []), *map(clean, lines)]
