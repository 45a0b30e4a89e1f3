"""`threadkeep create`: a thread by name, before anything is saved in it."""

from __future__ import annotations

from typing import Annotated

import typer

from threadkeep.cli import parsing
from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import AsJson, Ttl, Url
from threadkeep.cli.registered import document, in_a_line
from threadkeep.cli.stores import url_of, writing
from threadkeep.cli.terminal import Output


@command(Panel.CHANGE, "threadkeep create 42 --metadata user_id=u1 --ttl 30d --url threads.db")
def create(
    thread: Annotated[str, typer.Argument(help="the thread's id")],
    *,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="may be repeated")] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata", metavar="KEY=VALUE", help="VALUE is JSON or else text; may be repeated"
        ),
    ] = None,
    ttl: Ttl = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Register a thread, to give it tags, metadata or a time to live before its first run."""
    pairs = parsing.metadata("--metadata", metadata)
    rest = parsing.ttl(ttl) or None  # (never is what a new thread has anyway)
    with writing(url_of(url)) as saver:
        one = saver.threads.create(thread, metadata=pairs, tags=tag or (), ttl=rest)
    Output(as_json=as_json).tell(document(one), in_a_line(one))
    return 0
