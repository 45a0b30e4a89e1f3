"""`threadkeep tag`: the tags of a thread."""

from __future__ import annotations

from typing import Annotated

import typer

from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import AsJson, Thread, Url
from threadkeep.cli.registered import document, in_a_line
from threadkeep.cli.stores import url_of, writing
from threadkeep.cli.terminal import Output


@command(Panel.CHANGE, "threadkeep tag 42 escalated vip --url threads.db")
def tag(
    thread: Thread,
    tags: Annotated[list[str], typer.Argument(metavar="TAG...", help="the tags")],
    *,
    remove: Annotated[bool, typer.Option("--remove", help="remove them instead")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Add tags to a thread, or remove them."""
    with writing(url_of(url)) as saver:
        change = saver.threads.untag if remove else saver.threads.tag
        one = change(thread, *tags)
    Output(as_json=as_json).tell(document(one), in_a_line(one))
    return 0
