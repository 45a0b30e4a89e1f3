"""`threadkeep versions`: when a channel changed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from threadkeep.cli.app import Panel, command
from threadkeep.cli.lookup import (
    made_by,
    moment,
)
from threadkeep.cli.parameters import AsJson, Checkpoint, Cold, Namespace, Thread, Url
from threadkeep.cli.render import (
    line,
    table,
    text,
)
from threadkeep.cli.stores import looking, url_of
from threadkeep.cli.terminal import Output
from threadkeep.errors import NotFoundError
from threadkeep.threads import ChannelVersion


@command(Panel.LOOK, "threadkeep versions 42 messages --limit 5 --url threads.db")
def versions(
    thread: Thread,
    channel: Annotated[str, typer.Argument(help="the channel's name")],
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, help="how many, newest first")] = 10,
    checkpoint: Checkpoint = None,
    namespace: Namespace = "",
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """List the versions of a channel on the way to the head, or to a checkpoint."""
    with looking(url_of(url), cold) as saver:
        found = saver.threads.versions(thread, channel, namespace, limit + 1, checkpoint=checkpoint)
    if not found:
        raise NotFoundError("The thread never had this channel.", thread=thread, channel=channel)
    seen, more = found[:limit], len(found) > limit
    document = {
        "thread": thread,
        "namespace": namespace,
        "channel": channel,
        "versions": [asdict(one) for one in seen],
        "more": more,
    }
    head = line((f"thread {thread}", "bold"), (channel, "bold"))
    missing = ["... older ones are not shown (--limit)"] if more else []
    Output(as_json=as_json).tell(document, head, "", _drawn(seen), *missing)
    return 0


def _drawn(found: list[ChannelVersion]) -> Table:
    rows = [
        (
            text(one.version),
            text(one.checkpoint, "yellow"),
            text(moment(one.time)),
            text(made_by(one.source, one.step)),
            text(", ".join(_notes(one)), "dim"),
        )
        for one in found
    ]
    return table(("version", "first in", "time", "made by", ""), rows)


def _notes(one: ChannelVersion) -> list[str]:
    empty = [] if one.has_value else ["empty"]
    return empty if one.is_first else [*empty, "older ones with it were pruned"]
