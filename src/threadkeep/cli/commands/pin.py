"""`threadkeep pin`: which threads retention leaves alone."""

from __future__ import annotations

from typing import Annotated

import typer

from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import AsJson, Thread, Url
from threadkeep.cli.registered import document, in_a_line
from threadkeep.cli.stores import url_of, writing
from threadkeep.cli.terminal import Output


@command(Panel.CHANGE, "threadkeep pin 42 --url threads.db")
def pin(
    thread: Thread,
    *,
    remove: Annotated[bool, typer.Option("--remove", help="remove the pin instead")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Pin a thread, so that retention leaves it alone, or remove the pin."""
    with writing(url_of(url)) as saver:
        one = saver.threads.unpin(thread) if remove else saver.threads.pin(thread)
    Output(as_json=as_json).tell(document(one), in_a_line(one))
    return 0
