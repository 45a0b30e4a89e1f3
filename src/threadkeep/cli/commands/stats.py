"""`threadkeep stats`: what takes how much."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from threadkeep.cli.app import Panel, command
from threadkeep.cli.drawing import bar, size, table, text
from threadkeep.cli.parameters import AsJson, Url, UrlArgument
from threadkeep.cli.stores import reading, shown, url_of
from threadkeep.cli.terminal import Output
from threadkeep.engine.operations.inspection import ThreadStats

_KEYFRAMES = "(what checkpoints say of channels)"  # the name of channel "" in `Stats`


@command(Panel.STORE, "threadkeep stats threads.db --top 20")
def stats(
    store: UrlArgument = None,
    *,
    top: Annotated[int, typer.Option("--top", min=1, help="how many threads and channels")] = 10,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Show sizes by thread and by channel, beside whole copies of each state. Reads all."""
    place, output = url_of(url, store), Output(as_json=as_json)
    with reading(place) as saver, output.working("reading all threads"):
        found = saver.stats()
    channels: Counter[str] = Counter()
    for one in found.by_thread:
        channels.update(one.channels)
    document = {
        "store": shown(place),
        **asdict(found),
        "by_channel": dict(channels.most_common()),
    }
    largest = sorted(found.by_thread, key=lambda one: one.bytes, reverse=True)
    output.tell(
        document,
        text(f"{shown(place)}: {found.threads} threads, {found.checkpoints} checkpoints"),
        f"{size(found.bytes_on_disk)} bytes in the store;"
        f" whole copies would take {size(found.full_copy_bytes)}",
        "",
        _of_threads(largest[:top]),
        *_left_out(len(largest) - top),
        "",
        _of_channels(channels, top),
        *_left_out(len(channels) - top),
    )
    return 0


def _of_threads(threads: list[ThreadStats]) -> Table:
    most = max([one.bytes for one in threads], default=0)
    rows = [
        (
            text(one.thread),
            size(one.checkpoints),
            size(one.bytes),
            size(one.full_copy_bytes),
            bar(one.bytes, most),
        )
        for one in threads
    ]
    return table(("thread", "checkpoints>", "bytes>", "whole copies>", ""), rows)


def _of_channels(channels: Counter[str], top: int) -> Table:
    most = max(channels.values(), default=0)
    rows = [
        (text(name or _KEYFRAMES), size(count), bar(count, most))
        for name, count in channels.most_common(top)
    ]
    return table(("channel", "bytes of values>", ""), rows)


def _left_out(count: int) -> list[str]:
    return [f"... {count} more (--top)"] if count > 0 else []
