"""`threadkeep backup`: all threads of a store, in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import STORE, AsJson, Programs, Url
from threadkeep.cli.render import some
from threadkeep.cli.stores import url_of
from threadkeep.cli.terminal import Output, clean
from threadkeep.transfer import backup as backups

_NAMES = 5  # that are told


@command(Panel.STORE, "threadkeep backup sqlite:///threads.db backup.db")
def backup(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[STORE] FILE",
            help=f"STORE: the same as --url ({STORE}). FILE: where to; a backup that is"
            " there is replaced",
        ),
    ],
    *,
    form: Annotated[
        backups.Format | None,
        typer.Option(
            "--format",
            help="native: the store's own; bundle: for any kind of store. Default: native where"
            " there is such a format, and the file's name does not end in .tkb",
        ),
    ] = None,
    pg_bin: Programs = "",
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Write all threads of a store to a file, while programs use it.

    Exit code 1: of some it holds only where they are, as their values lie in the cold store.
    """
    *store, file = places
    if len(store) > 1:
        raise typer.BadParameter("at most a store and a file")
    output = Output(as_json=as_json)
    with output.progress() as told:
        taken = backups.back_up(
            url_of(url, *store),
            Path(file),
            told,
            form=form,
            programs=pg_bin,
        )
    document = {"file": file, "kind": taken.kind.name.lower(), "bytes": taken.size}
    threads = "" if taken.threads is None else f"{taken.threads} threads, "
    line = clean(f"{file}: {threads}{taken.size} bytes, {taken.kind.value}")
    output.tell({**document, "threads": taken.threads, "away": taken.away}, line, *_left_out(taken))
    return 1 if taken.away else 0


def _left_out(taken: backups.Taken) -> Iterator[str]:
    """What lies elsewhere, and what to do about it."""
    if not taken.away:
        return
    names = ", ".join(taken.away[:_NAMES]) + (", ..." if len(taken.away) > _NAMES else "")
    yield clean(f"values of {some(len(taken.away), 'thread')} lie in the cold store: {names}")
    yield "keep the cold store with this file; or bring them back first, and do it again:"
    yield clean(f"threadkeep restore --thread {taken.away[0]} --cold URL")
