"""`threadkeep restore`: a store, filled from a backup; a thread, back from its archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from threadkeep.cli.app import Panel, command
from threadkeep.cli.completion import thread_ids
from threadkeep.cli.parameters import AsJson, Cold, Programs, Url, UrlArgument
from threadkeep.cli.registered import document, in_a_line
from threadkeep.cli.stores import url_of, writing
from threadkeep.cli.terminal import Output
from threadkeep.errors import InvalidArgumentError
from threadkeep.transfer import backup


@command(Panel.STORE, "threadkeep restore backup.tkb redis://localhost:6379/0")
def restore(
    file: Annotated[Path | None, typer.Argument(help="what threadkeep backup has written")] = None,
    store: UrlArgument = None,
    *,
    thread: Annotated[
        str | None,
        typer.Option(
            "--thread",
            help="bring this archived thread back instead",
            autocompletion=thread_ids,
        ),
    ] = None,
    cold: Cold = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="remove what stands there: the whole store; for a bundle the threads that it has",
        ),
    ] = False,
    pg_bin: Programs = "",
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Fill a store from a backup, or bring an archived thread back."""
    output = Output(as_json=as_json)
    if (file is None) == (thread is None):
        hint = "Give the file of a backup, or --thread and the id of an archived thread."
        raise InvalidArgumentError("It is not clear what is to be restored.", hint=hint)
    if file is None or thread is not None:
        with writing(url_of(url), cold) as saver:
            one = saver.threads.restore(str(thread))
        output.tell(document(one), in_a_line(one))
        return 0
    place = url_of(url, store)
    with output.progress() as told:
        done = backup.restore(file, place, told, replace=replace, programs=pg_bin)
    known = f", {done.known} were there already" if done.known else ""
    line = "restored" if done.threads is None else f"{done.threads} threads restored{known}"
    output.tell({"file": str(file), "threads": done.threads, "known": done.known}, line)
    return 0
