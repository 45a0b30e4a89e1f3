"""`threadkeep copy`: a thread under another name."""

from __future__ import annotations

from typing import Annotated

import typer

from threadkeep.cli.app import Panel, command
from threadkeep.cli.completion import thread_ids
from threadkeep.cli.parameters import AsJson, Cold, Url
from threadkeep.cli.render import text
from threadkeep.cli.stores import url_of, writing
from threadkeep.cli.terminal import Output
from threadkeep.engine.context import not_found
from threadkeep.engine.operation import (
    CheckpointRef,
    fetch_checkpoint,
)


@command(Panel.CHANGE, "threadkeep copy 42 experiment --url threads.db")
def copy(
    source: Annotated[str, typer.Argument(help="the thread's id", autocompletion=thread_ids)],
    target: Annotated[str, typer.Argument(help="the id of the copy")],
    *,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Copy a thread inside the store: all its checkpoints, tags and metadata."""
    with writing(url_of(url), cold) as saver:
        if saver.run(fetch_checkpoint(source, "", None)).found is None:
            raise not_found(CheckpointRef(source))
        saver.copy_thread(source, target)
    document = {"source": source, "target": target}
    Output(as_json=as_json).tell(document, text(f"{source} was copied to {target}"))
    return 0
