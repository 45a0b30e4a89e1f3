"""Commands that move threads between stores and files: export, import, adopt, mirror."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from threadkeep.cli.app import command
from threadkeep.cli.parameters import (
    STORE,
    DryRun,
    Full,
    WithMetadata,
    WithTags,
    parse_metadata,
    thread_ids,
)
from threadkeep.cli.render import plural, table, text
from threadkeep.cli.stores import (
    Session,
    check_exists,
    is_same,
    open_existing,
    open_target,
    public_name,
)
from threadkeep.cli.terminal import clean
from threadkeep.engine.thread_entry import ThreadStatus
from threadkeep.errors import InvalidArgumentError, ThreadNotFoundError, WrongKeyError
from threadkeep.threads import Adopted, Filters, Imported, Mirrored
from threadkeep.transfer.bundles import check_is_bundle
from threadkeep.transfer.files import file_errors
from threadkeep.transfer.sources.base import KEY_SIZES

_SAVED = [
    state for state in ThreadStatus if state not in (ThreadStatus.CREATED, ThreadStatus.DELETED)
]


@command("threadkeep export 42 43 refunds.tkb --url threads.db", cold=True)
def export(
    session: Session,
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[THREAD...] FILE",
            help="Thread ids, and the bundle to write. An existing bundle is replaced.",
            autocompletion=thread_ids,
        ),
    ],
    *,
    all_threads: Annotated[bool, typer.Option("--all", help="Export all threads.")] = False,
    tag: WithTags = None,
    metadata: WithMetadata = None,
) -> None:
    """Export threads to a bundle, a file for any kind of store. Programs may keep running."""
    *threads, file = places
    filters: Filters = {
        "state": _SAVED,
        "tags": tag or (),
        "metadata": parse_metadata("--metadata", metadata),
    }
    has_filters = bool(tag or metadata)
    if sum(map(bool, (threads, all_threads, has_filters))) != 1:
        hint = "Use ids before the file, or --all, or --tag and --metadata."
        raise InvalidArgumentError("Say which threads to export.", hint=hint)
    with session.open_to_read() as saver, session.progress() as progress:
        archived: list[str] = []
        if has_filters:
            found = list(saver.threads.scan(**filters))
            if not found:
                raise ThreadNotFoundError("No threads match.", hint="Nothing was written.")
            archived = [one.id for one in found if one.state == ThreadStatus.ARCHIVED]
            threads = [one.id for one in found if one.state != ThreadStatus.ARCHIVED]
        ids = None if all_threads else threads
        done = saver.threads.export_bundle(ids, file, progress=progress)
    archived += done.archived
    counts = f"{plural(done.checkpoints, 'checkpoint')}, {plural(done.size, 'byte')}"
    lines = [f"Exported {plural(done.threads, 'thread')} to {file} ({counts})"]
    if archived:
        skipped = plural(len(archived), "archived thread")
        lines.append(f"Skipped {skipped} (use threadkeep restore --thread first)")
    counted = {"threads": done.threads, "checkpoints": done.checkpoints, "bytes": done.size}
    session.print({"file": file, **counted, "archived": archived}, *map(text, lines))


@command("threadkeep import refunds.tkb --url redis://localhost:6379/0")
def import_bundle(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Bundle.")],
    *,
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="New thread id, for a bundle of one thread."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace threads that differ, and lose their data.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Import the threads of a bundle. Run it again to finish an interrupted import."""
    url = session.url()
    check_is_bundle(file)
    with open_target(url, dry_run=dry_run) as saver, session.progress() as progress:
        done = saver.threads.import_bundle(
            file, name, replace=replace, dry_run=dry_run, progress=progress
        )
    document = {"file": str(file), "dry_run": dry_run, **done._asdict()}
    session.print(document, *_import_lines(done, dry_run=dry_run))


def _import_lines(done: Imported, *, dry_run: bool) -> Iterator[Text]:
    for name in done.replaced:
        yield text(f"{'Would replace' if dry_run else 'Replaced'} {name}")
    verb = "Would import" if dry_run else "Imported"
    known = f"; {plural(len(done.known), 'thread')} already complete" if done.known else ""
    yield text(f"{verb} {plural(len(done.put), 'thread')}{known}")


# -- adopt -------------------------------------------------------------------------------

_KEY = "TK_ADOPT_KEY"


@command("threadkeep adopt langgraph.db sqlite:///threads.db --verify", imports=True)
def adopt(
    session: Session,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FROM",
            help="Database of LangGraph's SqliteSaver or PostgresSaver: a path, sqlite:///..."
            " or postgresql://... (?schema=NAME). It is only read.",
        ),
    ],
    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TO THREAD",
            help="TO: store, same as --url; leave it out with --url. THREAD: only these threads.",
        ),
    ] = None,
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Resolve conflicts: replace the threads here.")
    ] = False,
    as_fork: Annotated[
        bool, typer.Option("--as-fork", help="Resolve conflicts: adopt into forks, THREAD-adopted.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare each checkpoint as both savers return it.")
    ] = False,
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file",
            metavar="FILE",
            help=f"Key of encrypted values (LANGGRAPH_AES_KEY). Default: the value of {_KEY}.",
        ),
    ] = None,
) -> int:
    """Adopt threads of LangGraph's own savers. Exit code 1: there are conflicts.

    Run it again to adopt what came since, or to finish an interrupted run.
    """
    words = places or []
    target, threads = words[:1], words[1:]
    if session.option:
        target, threads = [], words
    url = session.url(*target)
    check_exists(source)
    key = _read_key(key_file)
    try:
        with open_target(url) as saver, session.progress() as progress:
            done = saver.threads.adopt(
                source,
                threads or None,
                replace=replace,
                as_fork=as_fork,
                verify=verify,
                key=key,
                progress=progress,
            )
    except WrongKeyError as error:
        error.hint = f"Use the key that LANGGRAPH_AES_KEY held: --key-file FILE, or {_KEY}."
        raise
    document = {"from": public_name(source), "to": public_name(url), **asdict(done)}
    session.print(document, *_adopt_lines(done))
    return 1 if done.conflicts else 0


def _read_key(file: Path | None) -> bytes | None:
    """Read the key, without a line end that makes it too long.

    Raises:
        OpenError: the file cannot be read.
    """
    if file is None:
        return os.fsencode(os.environ.get(_KEY, "")) or None
    with file_errors(file):
        data = file.read_bytes()
    return data if len(data) in KEY_SIZES else data.rstrip(b"\r\n")


def _adopt_lines(done: Adopted) -> Iterator[RenderableType]:
    rows = [(name, "replaced", "") for name in done.replaced]
    rows += [(name, "forked", f"as {fork}") for name, fork in done.forks.items()]
    rows += [(name, "conflict", why) for name, why in done.conflicts.items()]
    if rows:
        yield table(("thread", "here", ""), [(text(a), b, text(c)) for a, b, c in rows])
    known = f", {done.known:,} already present" if done.known else ""
    verified = f", {done.verified:,} verified" if done.verified else ""
    conflicts = f", {plural(len(done.conflicts), 'conflict')}" if done.conflicts else ""
    checkpoints = f"{plural(done.checkpoints, 'checkpoint')} from {plural(done.threads, 'thread')}"
    yield f"Adopted {checkpoints}{known}{verified}{conflicts}"
    if done.conflicts:
        yield "Conflicts were not changed here. To keep both, add their ids and --as-fork."
        yield "To replace the threads here, add their ids and --replace."
    for name in done.deleted:
        yield text(f"Skipped {name}: it was deleted here. To adopt it again, add its id.")


# -- mirror ------------------------------------------------------------------------------

_ROWS = 20  # shown, beside the conflicts


@command("threadkeep mirror threads.db postgresql://agent@db/app --dry-run", url=False)
def mirror(
    session: Session,
    a: Annotated[str, typer.Argument(metavar="A", help=f"Source: {STORE}. It is only read.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Target.")],
    threads: Annotated[
        list[str] | None, typer.Argument(metavar="THREAD", help="Thread ids. Default: all.")
    ] = None,
    *,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete threads in B that were deleted in A.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Resolve conflicts: replace the threads in B.")
    ] = False,
    dry_run: DryRun = False,
    full: Full = False,
) -> int:
    """Copy to B what it lacks of A's threads. Exit code 1: there are conflicts.

    Run it again to copy what came since, or to finish an interrupted run.
    """
    if is_same(a, b):
        raise InvalidArgumentError("A and B are the same store.", hint="Use two stores.")
    source = open_existing(a, read_only=True)
    with source, open_target(b, dry_run=dry_run) as target, session.progress() as progress:
        done = source.threads.mirror(
            target,
            threads or None,
            replace=replace,
            delete=delete,
            dry_run=dry_run,
            progress=progress,
        )
    document = {"from": public_name(a), "to": public_name(b), "dry_run": dry_run, **asdict(done)}
    session.print(document, *_mirror_lines(done, dry_run=dry_run, full=full))
    return 1 if done.conflicts else 0


def _mirror_lines(done: Mirrored, *, dry_run: bool, full: bool) -> Iterator[RenderableType]:
    groups = (
        (done.put, "added", ""),
        (done.completed, "updated", ""),
        (done.replaced, "replaced", ""),
        (done.deleted, "deleted", ""),
        (done.archived, "skipped", "It is archived in A. To include it, add its id."),
        (done.ahead, "skipped", "B has more of it, or it was deleted in A (--delete)."),
    )
    rows = [(text(name), text(what), why) for names, what, why in groups for name in names]
    hidden = 0 if full else max(0, len(rows) - _ROWS)
    shown = rows[: len(rows) - hidden]
    for name, why in done.conflicts.items():
        shown.append((text(name), text("conflict", "bold red"), clean(why)))
    if shown:
        yield table(("thread", "in B", ""), shown)
    if hidden:
        yield f"... {plural(hidden, 'more thread')} (--full)"
    yield _mirror_summary(done, dry_run=dry_run)
    if done.conflicts:
        yield "Conflicts were not changed in B. To copy A's threads, add their ids and --replace."
        yield "To copy B's threads to A: threadkeep mirror B A, their ids and --replace."


def _mirror_summary(done: Mirrored, *, dry_run: bool) -> str:
    counts = {
        "added": len(done.put),
        "updated": len(done.completed),
        "replaced": len(done.replaced),
        "deleted": len(done.deleted),
        "skipped": len(done.ahead) + len(done.archived),
        "unchanged": done.same,
    }
    parts = [f"{count:,} {what}" for what, count in counts.items() if count]
    parts += [plural(len(done.conflicts), "conflict")] if done.conflicts else []
    summary = ", ".join(parts) or "nothing to mirror"
    return f"{'Dry run' if dry_run else 'Threads'}: {summary}"
