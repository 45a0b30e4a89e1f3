"""`threadkeep restore`: a store, filled from a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from threadkeep import backups
from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import AsJson, Programs, Url, UrlArgument
from threadkeep.cli.stores import url_of
from threadkeep.cli.terminal import Output


@command(Panel.STORE, "threadkeep restore backup.tkb redis://localhost:6379/0")
def restore(
    file: Annotated[Path, typer.Argument(help="what threadkeep backup has written")],
    store: UrlArgument = None,
    *,
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
    """Fill a store from a backup."""
    place, output = url_of(url, store), Output(as_json=as_json)
    with output.progress() as told:
        done = backups.restore(file, place, told, replace=replace, programs=pg_bin)
    known = f", {done.known} were there already" if done.known else ""
    line = "restored" if done.threads is None else f"{done.threads} threads restored{known}"
    output.tell({"file": str(file), "threads": done.threads, "known": done.known}, line)
    return 0
