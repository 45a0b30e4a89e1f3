"""`threadkeep set`: the metadata of a thread, and how long it may rest."""

from __future__ import annotations

from typing import Annotated

import typer

from threadkeep.cli import parsing
from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import AsJson, Thread, Ttl, Url
from threadkeep.cli.registered import document, in_a_line
from threadkeep.cli.stores import url_of, writing
from threadkeep.cli.terminal import Output
from threadkeep.errors import InvalidArgumentError


@command(Panel.CHANGE, "threadkeep set 42 plan=pro trial=null --ttl 30d --url threads.db")
def set(
    thread: Thread,
    pairs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE...",
            help="metadata; VALUE is JSON or else text, null removes the key",
        ),
    ] = None,
    *,
    ttl: Ttl = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Set metadata of a thread, or how long it may rest before retention removes it."""
    if not pairs and ttl is None:
        raise InvalidArgumentError("Nothing is to be set.", hint="Give KEY=VALUE, or --ttl.")
    metadata, rest = parsing.metadata("KEY=VALUE", pairs), parsing.ttl(ttl)
    with writing(url_of(url)) as saver:
        one = saver.threads.update(thread, metadata=metadata, ttl=rest)
    Output(as_json=as_json).tell(document(one), in_a_line(one))
    return 0
