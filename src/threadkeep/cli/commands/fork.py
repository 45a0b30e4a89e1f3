"""`threadkeep fork`: a thread that begins as another one was."""

from __future__ import annotations

from typing import Annotated

import typer

from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import AsJson, Cold, Thread, Url
from threadkeep.cli.registered import document, in_a_line
from threadkeep.cli.stores import url_of, writing
from threadkeep.cli.terminal import Output


@command(Panel.CHANGE, "threadkeep fork 42 --as 'what if' --url threads.db")
def fork(
    thread: Thread,
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="CHECKPOINT", help="the checkpoint to begin with; default: the head"
        ),
    ] = None,
    *,
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="the id of the fork; default: a new UUID"),
    ] = None,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Begin a thread with a checkpoint of another, and with all that led there."""
    with writing(url_of(url), cold) as saver:
        one = saver.threads.fork(thread, checkpoint, name)
    Output(as_json=as_json).tell(document(one), in_a_line(one))
    return 0
