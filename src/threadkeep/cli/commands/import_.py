"""`threadkeep import`: threads out of a file that `threadkeep export` has written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from threadkeep.cli.app import Panel, command
from threadkeep.cli.drawing import some, text
from threadkeep.cli.parameters import AsJson, Replace, Url
from threadkeep.cli.stores import made, url_of
from threadkeep.cli.terminal import Output
from threadkeep.transfer.kinds import check_is_bundle


@command(Panel.MOVE, "threadkeep import refunds.tkb --url redis://localhost:6379/0")
def import_(
    file: Annotated[
        Path, typer.Argument(help="what threadkeep export has written", show_default=False)
    ],
    *,
    name: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="another id, where the file has one thread",
            show_default=False,
        ),
    ] = None,
    replace: Replace = False,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Put the threads of a file into the store. Done again, it completes what was cut off."""
    place, output = url_of(url), Output(as_json=as_json)
    check_is_bundle(file)
    with made(place) as saver, output.progress() as told:
        done = saver.threads.import_(file, name, replace=replace, progress=told)
    document = {"file": str(file), "put": done.put, "known": done.known}
    known = f", {some(len(done.known), 'thread')} had all of theirs" if done.known else ""
    line = f"{some(len(done.put), 'thread')} put{known}"
    output.tell({**document, "checkpoints": done.checkpoints}, text(line))
    return 0
