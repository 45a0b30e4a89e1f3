"""`threadkeep state`: the values of a checkpoint's channels."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from threadkeep.cli.app import Panel, command
from threadkeep.cli.lookup import (
    found,
    head_line,
    load,
    place,
)
from threadkeep.cli.parameters import (
    AsJson,
    Checkpoint,
    Cold,
    Full,
    Imports,
    Namespace,
    Thread,
    Url,
)
from threadkeep.cli.render import (
    text,
    tree_of,
)
from threadkeep.cli.stores import looking, url_of
from threadkeep.cli.terminal import Output
from threadkeep.errors import NotFoundError
from threadkeep.readable.checkpoints import view
from threadkeep.readable.values import kind, plain


@command(Panel.LOOK, "threadkeep state 42 --channel plan --url threads.db")
def state(  # noqa: PLR0913 - they are given by name
    thread: Thread,
    *,
    channel: Annotated[
        list[str] | None, typer.Option("--channel", help="only this channel; may be repeated")
    ] = None,
    checkpoint: Checkpoint = None,
    namespace: Namespace = "",
    full: Full = False,
    imports: Imports = None,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Show the values of channels: as a tree, or with --json as JSON (types are lost in it)."""
    load(imports)
    with looking(url_of(url), cold) as saver:
        one = found(saver, thread, namespace, checkpoint)
    seen, values = view(one), one.checkpoint["channel_values"]
    for name in channel or ():
        if name not in values:
            raise NotFoundError(f"There is no channel {name!r} here.", thread=thread)
    chosen = {name: values[name] for name in channel or values}
    readable = {name: plain(value) for name, value in chosen.items()}
    trees = [
        tree_of(text(name, "bold") + Text(f" ({kind(chosen[name])})", "dim"), value, full=full)
        for name, value in readable.items()
    ]
    Output(as_json=as_json).tell({**place(seen), "values": readable}, head_line(seen), *trees)
    return 0
