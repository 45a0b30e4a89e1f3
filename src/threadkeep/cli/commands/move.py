"""Commands that move threads between stores and files: export, import, adopt, mirror."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from rich.console import RenderableType
from rich.text import Text

from threadkeep.cli import parsing
from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import (
    STORE,
    AsJson,
    Cold,
    DryRun,
    Full,
    Imports,
    Replace,
    Url,
    WithMetadata,
    WithTags,
    thread_ids,
)
from threadkeep.cli.render import (
    load,
    naming_modules,
    size,
    some,
    table,
    text,
)
from threadkeep.cli.stores import (
    as_if_made,
    check_there,
    looking,
    made,
    reading,
    same,
    shown,
    url_of,
)
from threadkeep.cli.terminal import Output
from threadkeep.engine.thread_entry import ThreadStatus
from threadkeep.errors import InvalidArgumentError, ThreadNotFoundError, WrongKeyError
from threadkeep.saver import Saver
from threadkeep.threads import Adopted, Filters, Imported, Mirrored, ThreadInfo
from threadkeep.transfer.bundles import check_is_bundle
from threadkeep.transfer.files import file_errors
from threadkeep.transfer.sources.base import KEY_SIZES

_SAVED = [
    state for state in ThreadStatus if state not in (ThreadStatus.CREATED, ThreadStatus.DELETED)
]


@command(Panel.MOVE, "threadkeep export 42 43 refunds.tkb --url threads.db")
def export(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[THREAD...] FILE",
            help="the threads' ids, and where to; a bundle that is there is replaced",
            autocompletion=thread_ids,
        ),
    ],
    *,
    all_threads: Annotated[bool, typer.Option("--all", help="all threads")] = False,
    tag: WithTags = None,
    metadata: WithMetadata = None,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Write threads to a file (a bundle), while programs use them."""
    *threads, file = places
    filters = _filters(tag, metadata)
    if sum(map(bool, (threads, all_threads, filters))) != 1:
        raise InvalidArgumentError(
            "It is not clear which threads are meant.",
            hint="Give ids before the file, or --all, or --tag and --metadata.",
        )
    output = Output(as_json=as_json)
    with looking(url_of(url), cold) as saver, output.progress() as told:
        found = _find_export(saver, filters) if filters else []
        archived = [one.id for one in found if one.state == ThreadStatus.ARCHIVED]
        wanted = threads or ([one.id for one in found if one.id not in archived] if found else None)
        done = saver.threads.export_bundle(wanted, file, progress=told)
    archived += done.archived
    counts = f"{some(done.threads, 'thread')}, {some(done.checkpoints, 'checkpoint')}"
    document = {"file": file, "threads": done.threads, "checkpoints": done.checkpoints}
    drawn = [text(f"{file}: {counts}, {size(done.size)} bytes")]
    if archived:
        left_out = (
            f"left out: {some(len(archived), 'archived thread')} (threadkeep restore --thread)"
        )
        drawn.append(text(left_out))
    output.tell({**document, "bytes": done.size, "archived": archived}, *drawn)
    return 0


def _filters(tags: list[str] | None, metadata: list[str] | None) -> Filters | None:
    """Which threads are meant, of those in which something is saved; None for all."""
    if not (tags or metadata):
        return None
    pairs = parsing.metadata("--metadata", metadata)
    return {"state": _SAVED, "tags": tags or (), "metadata": pairs}


def _find_export(saver: Saver, filters: Filters) -> list[ThreadInfo]:
    """The threads that are meant.

    Raises:
        ThreadNotFoundError: there are none.
    """
    found = list(saver.threads.scan(**filters))
    if not found:
        raise ThreadNotFoundError("There are no such threads.", hint="Nothing was written.")
    return found


@command(Panel.MOVE, "threadkeep import refunds.tkb --url redis://localhost:6379/0")
def import_(
    file: Annotated[Path, typer.Argument(help="what threadkeep export has written")],
    *,
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="another id, where the file has one thread"),
    ] = None,
    replace: Replace = False,
    dry_run: DryRun = False,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Put the threads of a file into the store. Done again, it completes what was cut off."""
    place, output = url_of(url), Output(as_json=as_json)
    check_is_bundle(file)
    opened = as_if_made if dry_run else made
    with opened(place) as saver, output.progress() as told:
        done = saver.threads.import_bundle(
            file, name, replace=replace, dry_run=dry_run, progress=told
        )
    document = {"file": str(file), "dry_run": dry_run, **done._asdict()}
    output.tell(document, *_draw_import(done, dry_run=dry_run))
    return 0


def _draw_import(done: Imported, *, dry_run: bool) -> Iterator[Text]:
    would = "would be " if dry_run else ""
    for name in done.replaced:
        yield text(f"{name} {would or 'was '}replaced")
    known = f", {some(len(done.known), 'thread')} had all of theirs" if done.known else ""
    yield text(f"{some(len(done.put), 'thread')} {would}put{known}")


_KEY = "TK_ADOPT_KEY"

ReplaceHere = Annotated[
    bool,
    typer.Option(
        "--replace", help="put FROM's threads in the place of those that went another way here"
    ),
]
AsFork = Annotated[
    bool,
    typer.Option("--as-fork", help="bring FROM's into forks of those that did: THREAD-adopted"),
]
Verify = Annotated[
    bool,
    typer.Option("--verify", help="compare each checkpoint through LangGraph's saver and ours"),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        help=f"holds the key of encrypted values (LANGGRAPH_AES_KEY); default: the key in {_KEY}",
    ),
]


@command(Panel.MOVE, "threadkeep adopt langgraph.db sqlite:///threads.db --verify")
def adopt(  # noqa: PLR0913 - they are given by name
    source: Annotated[
        str,
        typer.Argument(
            metavar="FROM",
            help="the database of LangGraph's SqliteSaver or PostgresSaver: a path, sqlite:///..."
            " or postgresql://... (?schema=NAME); only read",
        ),
    ],
    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TO] [THREAD...]",
            help="TO: the same as --url, and left out with it. THREAD: only these",
        ),
    ] = None,
    *,
    replace: ReplaceHere = False,
    as_fork: AsFork = False,
    verify: Verify = False,
    key_file: KeyFile = None,
    imports: Imports = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Bring threads here from LangGraph's own savers. Exit code 1: some went another way here.

    Done again, it brings what came since, or goes on where it was cut off.
    """
    target, threads = _split(places or [], url)
    load(imports)
    check_there(source)
    key, output = _key(key_file), Output(as_json=as_json)
    with made(target) as saver, output.progress() as told, naming_modules(), _naming_keys():
        done = saver.threads.adopt(
            source,
            threads or None,
            replace=replace,
            as_fork=as_fork,
            verify=verify,
            key=key,
            progress=told,
        )
    document = {"from": shown(source), "to": shown(target), **asdict(done)}
    output.tell(document, *_draw_adopt(done))
    return 1 if done.conflicts else 0


def _split(places: list[str], option: str | None) -> tuple[str, list[str]]:
    """The store, and the threads: only the first of the places may be a store."""
    if option:
        return url_of(option), places
    return url_of(None, *places[:1]), places[1:]


def _key(file: Path | None) -> bytes | None:
    """The key that is given: without the line end that editors leave, where that is too much.

    Raises:
        OpenError: the file cannot be read.
    """
    if file is None:
        return os.fsencode(os.environ.get(_KEY, "")) or None
    with file_errors(file):
        data = file.read_bytes()
    return data if len(data) in KEY_SIZES else data.rstrip(b"\r\n")


@contextmanager
def _naming_keys() -> Iterator[None]:
    """Say how a key is given to a command."""
    try:
        yield
    except WrongKeyError as error:
        error.hint = f"Use the key that LANGGRAPH_AES_KEY held: --key-file FILE, or {_KEY}."
        raise


def _draw_adopt(done: Adopted) -> Iterator[RenderableType]:
    rows = [(name, "replaced", "") for name in done.replaced]
    rows += [(name, "forked", f"It is in {fork}.") for name, fork in done.forks.items()]
    rows += [(name, "conflict", why) for name, why in done.conflicts.items()]
    if rows:
        yield table(("thread", "here", ""), [(text(a), b, text(c)) for a, b, c in rows])
    known = f", {done.known:,} were there already" if done.known else ""
    verified = f", {done.verified:,} verified" if done.verified else ""
    checkpoints = f"{some(done.checkpoints, 'checkpoint')} adopted{known}{verified}"
    conflicts = f", {some(len(done.conflicts), 'conflict')}" if done.conflicts else ""
    yield f"{some(done.threads, 'thread')}: {checkpoints}{conflicts}"
    if done.conflicts:
        yield "conflicts are left as they are here. To have both: --as-fork, with their ids"
        yield "to have FROM's in place of those here: --replace, with their ids"
    for name in done.deleted:
        yield text(f"{name} was deleted here, and is left so unless it is named")


_ROWS = 20  # of what needs no answer

_Row: TypeAlias = tuple[Text, Text | str, Text | str]

Threads = Annotated[list[str] | None, typer.Argument(metavar="[THREAD...]", help="only these")]
Delete = Annotated[
    bool, typer.Option("--delete", help="delete threads in B that were deleted in A")
]


@command(Panel.MOVE, "threadkeep mirror threads.db postgresql://agent@db/app --dry-run")
def mirror(
    a: Annotated[str, typer.Argument(metavar="A", help=f"from where: {STORE}; only read")],
    b: Annotated[str, typer.Argument(metavar="B", help="where to")],
    threads: Threads = None,
    *,
    delete: Delete = False,
    replace: Replace = False,
    dry_run: DryRun = False,
    full: Full = False,
    as_json: AsJson = False,
) -> int:
    """Bring to B what it lacks of A's threads. Exit code 1: some went another way there.

    Cut off anywhere, it goes on when it is done again.
    """
    if same(a, b):
        raise InvalidArgumentError("Both stores are the same one.", hint="Name another one.")
    output = Output(as_json=as_json)
    with ExitStack() as stack:
        here = stack.enter_context(reading(a))
        there = stack.enter_context(as_if_made(b) if dry_run else made(b))
        told = stack.enter_context(output.progress())
        done = here.threads.mirror(
            there, threads or None, replace=replace, delete=delete, dry_run=dry_run, progress=told
        )
    document = {"from": shown(a), "to": shown(b), "dry_run": dry_run, **asdict(done)}
    output.tell(document, *_draw_mirror(done, dry_run=dry_run, full=full))
    return 1 if done.conflicts else 0


def _draw_mirror(done: Mirrored, *, dry_run: bool, full: bool) -> Iterator[RenderableType]:
    rows = list(_mirror_rows(done))
    conflicts: list[_Row] = [
        (text(name), Text("conflict", "bold red"), text(why))
        for name, why in done.conflicts.items()
    ]
    left_out = 0 if full else max(0, len(rows) - _ROWS)
    drawn = [*rows[: len(rows) - left_out], *conflicts]
    if drawn:
        yield table(("thread", "in B", ""), drawn)
    if left_out:
        yield f"... {left_out} more threads (--full)"
    yield _mirror_summary(done, dry_run=dry_run)
    if conflicts:
        yield "conflicts are left as they are in B. To have A's there: --replace, with their ids"
        yield "to have B's in A instead: threadkeep mirror B A --replace, with their ids"


def _mirror_rows(done: Mirrored) -> Iterator[_Row]:
    for names, what, why in (
        (done.put, "put", ""),
        (done.completed, "completed", ""),
        (done.replaced, "replaced", ""),
        (done.deleted, "deleted", ""),
        (done.archived, "left out", "It is archived in A. Name it to have it brought back."),
        (done.ahead, "left alone", "It has more there, or was deleted here (--delete)."),
    ):
        yield from ((text(name), what, why) for name in names)


def _mirror_summary(done: Mirrored, *, dry_run: bool) -> str:
    counts = {
        "put": len(done.put),
        "completed": len(done.completed),
        "replaced": len(done.replaced),
        "deleted": len(done.deleted),
        "left alone": len(done.ahead),
        "archived": len(done.archived),
        "the same": done.same,
    }
    told = [f"{count:,} {what}" for what, count in counts.items() if count]
    told += [some(len(done.conflicts), "conflict")] if done.conflicts else []
    line = ", ".join(told) or "there are no threads"
    return f"would be done: {line}" if dry_run else line
