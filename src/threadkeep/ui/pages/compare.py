"""Two checkpoints side by side, and the changes between them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from heapq import nsmallest
from typing import NamedTuple

from anyio import to_thread
from langgraph.checkpoint.base import CheckpointTuple
from starlette.responses import Response

from threadkeep._core.engine.thread_summary import state_channels
from threadkeep.errors import ThreadkeepError
from threadkeep.threads.diff import ChannelDiff, path_text, shortened
from threadkeep.ui.page import MOST, Asked, PagePlace, route
from threadkeep.ui.pages.checkpoint import listed, unread
from threadkeep.ui.text import LONGEST
from threadkeep.ui.values import tree

_STEPS = 50  # checkpoints to choose from
_LARGE = 5_000_000  # bytes of a thread whose values are compared when asked


class Chosen(NamedTuple):
    """A checkpoint of the form: `name` is "a" or "b"."""

    name: str
    thread: str
    ns: str
    id: str
    found: CheckpointTuple | None = None
    steps: tuple[CheckpointTuple, ...] = ()
    error: ThreadkeepError | None = None


@route("/compare")
async def compare(request: Asked) -> Response:
    """Show two checkpoints, with a form to choose them."""
    asked = request.query_params
    first = asked.get("a_thread", "")
    sides = [
        await _side(request, Chosen(name, thread, asked.get(f"{name}_ns", ""), asked.get(name, "")))
        for name, thread in (("a", first), ("b", asked.get("b_thread") or first))
    ]
    return request.render("compare.html", sides=sides)


async def _side(request: Asked, side: Chosen) -> Chosen:
    if not side.thread:
        return side
    newest = PagePlace(side.thread, side.ns)
    steps = request.page.saver.alist(newest.config, limit=_STEPS, values="lazy")
    try:
        found = await listed(request, newest._replace(id=side.id))
        return side._replace(found=found, steps=tuple([one async for one in steps]))
    except ThreadkeepError as error:
        return side._replace(error=error)


@route("/changes")
async def changes(request: Asked) -> Response:
    """Show the changes between two checkpoints, or the changes of one channel."""
    asked, saver = request.query_params, request.page.saver
    channel = asked.get("channel")
    names, waiting, found, error = set[str](), set[str](), list[ChannelDiff](), None
    try:
        a, b = [
            await listed(request, request.place(f"{side}_thread", f"{side}_ns", side))
            for side in ("a", "b")
        ]
        if channel is None:
            names = {*a.checkpoint["channel_versions"], *b.checkpoint["channel_versions"]}
            waiting = await _waiting(request, a, b)
        chosen = _first(names - waiting, a, b) if channel is None else [channel]
        compared = await saver.threads.adiff_checkpoints(a.config, b.config, channels=chosen)
        found = [*compared.channels.values()]
    except ThreadkeepError as caught:  # (of one channel, maybe: then the others can be opened)
        error, waiting = caught, names
    keys = "a_thread", "a_ns", "a", "b_thread", "b_ns", "b", "sides"
    made = partial(
        request.render,
        "changes.html",
        error=error,
        found=found,
        waiting=sorted(state_channels(waiting))[:MOST],
        count=len(state_channels(names)),
        start=request.number("start"),
        channel=channel,
        sides=asked.get("sides"),
        place={key: asked[key] for key in keys if key in asked},
        longest=LONGEST,
        tree=partial(tree, entries=40, characters=20_000),
        place_text=lambda path: shortened(path_text(path), 300),
    )
    return await to_thread.run_sync(made)


def _first(names: Iterable[str], a: CheckpointTuple, b: CheckpointTuple) -> list[str]:
    """Return the channels to compare: all of them, or of very many those with a new version."""
    before, after = a.checkpoint["channel_versions"], b.checkpoint["channel_versions"]
    return nsmallest(
        MOST, state_channels(names), key=lambda one: (before.get(one) == after.get(one), one)
    )


async def _waiting(request: Asked, a: CheckpointTuple, b: CheckpointTuple) -> set[str]:
    """Return the channels that may be large and must be read whole to be compared."""
    threads = {one.config["configurable"]["thread_id"] for one in (a, b)}
    infos = [await request.entry(one) for one in threads]
    if all(one is None or one.bytes < _LARGE for one in infos):
        return set()
    before, after = a.checkpoint["channel_versions"], b.checkpoint["channel_versions"]
    return {
        name
        for name, length in {**unread(a), **unread(b)}.items()
        if len(threads) > 1 or (length is None and before.get(name) != after.get(name))
    }
