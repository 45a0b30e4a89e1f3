"""`threadkeep stats`: what takes how much."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import AsJson, Url, UrlArgument
from threadkeep.cli.render import (
    bar,
    size,
    some,
    table,
    text,
)
from threadkeep.cli.stores import reading, shown, url_of
from threadkeep.cli.terminal import Output
from threadkeep.stats import ThreadStats

_PARTS = {
    "manifests": "(what checkpoints say of channels)",
    "pending_writes": "(pending writes)",
    "metadata": "(metadata of checkpoints)",
    "unreferenced": "(not referred to any more)",
}
"""Parts of a thread beside its channels, in `ThreadStats` and as they are shown."""


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
    parts: Counter[str] = Counter()
    for one in found.by_thread:
        channels.update(one.channels)
        parts.update({name: getattr(one, name) for name in _PARTS})
    whole = sum([one.bytes for one in found.by_thread])
    document = {
        "store": shown(place),
        "bytes": whole,
        **asdict(found),
        "by_channel": dict(channels.most_common()),
        "by_part": {"channels": channels.total(), **parts},
    }
    counted = f"{some(found.threads, 'thread')}, {some(found.checkpoints, 'checkpoint')}"
    largest = sorted(found.by_thread, key=lambda one: one.bytes, reverse=True)
    output.tell(
        document,
        text(f"{shown(place)}: {counted}"),
        f"{size(found.bytes_on_disk)} bytes in the store, {size(whole)} of them in threads;"
        f" whole copies would take {size(found.full_copy_bytes)}",
        "",
        _of_threads(largest[:top]),
        *_left_out(len(largest) - top),
        "",
        _of_parts(channels, parts, top),
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


def _of_parts(channels: Counter[str], parts: Counter[str], top: int) -> Table:
    """All parts of the threads' bytes, down to their sum; the smallest channels in one line."""
    named = [(name, count) for name, count in channels.most_common(top) if count]
    rest = channels.total() - sum([count for _, count in named])
    named += [(f"... {len(channels) - top} more channels (--top)", rest)] if rest else []
    named += [(shown_as, parts[name]) for name, shown_as in _PARTS.items() if parts[name]]
    most = max([count for _, count in named], default=0)
    rows = [(text(name), size(count), bar(count, most)) for name, count in named]
    rows.append((text("all"), size(channels.total() + parts.total()), text("")))
    return table(("channel", "bytes>", ""), rows)


def _left_out(count: int) -> list[str]:
    return [f"... {count} more (--top)"] if count > 0 else []
