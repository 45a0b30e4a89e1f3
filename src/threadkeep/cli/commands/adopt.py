"""`threadkeep adopt`: threads from the stores of LangGraph's own savers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from threadkeep.cli.app import Panel, command
from threadkeep.cli.lookup import (
    load,
    naming_modules,
)
from threadkeep.cli.parameters import AsJson, Imports, Url
from threadkeep.cli.render import (
    some,
    table,
    text,
)
from threadkeep.cli.stores import check_there, made, shown, url_of
from threadkeep.cli.terminal import Output
from threadkeep.errors import WrongKeyError
from threadkeep.threads import Adopted
from threadkeep.transfer.files import told as telling_of
from threadkeep.transfer.sources.payloads import KEY_SIZES

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
    output.tell(document, *_drawn(done))
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
    with telling_of(file):
        data = file.read_bytes()
    return data if len(data) in KEY_SIZES else data.rstrip(b"\r\n")


@contextmanager
def _naming_keys() -> Iterator[None]:
    """Say how a key is given to a command."""
    try:
        yield
    except WrongKeyError as error:
        error.hint = f"Give the key that LANGGRAPH_AES_KEY held: --key-file FILE, or {_KEY}."
        raise


def _drawn(done: Adopted) -> Iterator[RenderableType]:
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
