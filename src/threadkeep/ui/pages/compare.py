"""Two checkpoints side by side, and what changed between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from anyio import to_thread
from langgraph.checkpoint.base import CheckpointTuple
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep._core.langgraph_internals import is_internal
from threadkeep.errors import ThreadkeepError
from threadkeep.threads.diff import Change, ChannelDiff, path_text, shortened
from threadkeep.ui.page import MOST, StorePage, needed, number, page_of, render
from threadkeep.ui.pages.checkpoint import listed, unread
from threadkeep.ui.text import LONGEST
from threadkeep.ui.values import ValuePart, tree

_STEPS = 50  # checkpoints to choose from
_AROUND = 120  # characters of unchanged text beside an edit
_LARGE = 5_000_000  # bytes of a thread whose values are compared when asked
_ENTRIES, _CHARACTERS = 40, 20_000  # of a changed value
_FARTHEST = 10**9


class Stretch(NamedTuple):
    """A part of two texts: "same", "del" (of the first alone), "ins" or "skip"."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a value as the page draws it; `text` is set for edits of a text."""

    kind: str
    place: str
    before: ValuePart | None
    after: ValuePart | None
    text: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True)
class ChannelChanges:
    """Changes of a channel: those from `start` on, and where the next begin.

    With neither edits nor an error, they are compared when asked.
    """

    name: str
    kind: str = ""
    count: int = 0
    edits: tuple[Edit, ...] = ()
    rest: int | None = None
    is_delta: bool = False
    error: ThreadkeepError | None = None


async def compare(request: Request) -> Response:
    """Show two checkpoints, with a form to choose them."""
    asked = request.query_params
    a_thread = asked.get("a_thread", "")
    sides = []
    for side, thread in (("a", a_thread), ("b", asked.get("b_thread") or a_thread)):
        ns, id = asked.get(f"{side}_ns", ""), asked.get(side)
        one: dict[str, Any] = {
            "side": side,
            "thread": thread,
            "ns": ns,
            "id": id or "",
            "found": None,
            "steps": [],
            "error": None,
        }
        if thread:
            one |= await _side(request, thread, ns, id)
        sides.append(one)
    return render(request, "compare.html", sides=sides)


async def _side(request: Request, thread: str, ns: str, id: str | None) -> dict[str, Any]:
    try:
        found = await listed(request, thread, ns, id)
    except ThreadkeepError as error:
        return {"error": error}
    return {"found": found, "steps": await _steps(request, thread, ns)}


async def steps(request: Request) -> Response:
    """Show the newest steps of a thread as options of the form."""
    side = "b" if "b_thread" in request.query_params else "a"
    thread = needed(request, f"{side}_thread")
    found = await _steps(request, thread, request.query_params.get(f"{side}_ns", ""))
    return render(request, "options.html", steps=found, id="")


async def _steps(request: Request, thread: str, ns: str) -> list[CheckpointTuple]:
    config = {"configurable": {"thread_id": thread, "checkpoint_ns": ns}}
    found = page_of(request).saver.alist(config, limit=_STEPS, values="lazy")
    return [one async for one in found]


# -- changes -----------------------------------------------------------------------------


async def changes(request: Request) -> Response:
    """Show what changed between two checkpoints, or the changes of one channel."""
    asked = request.query_params
    channel, start = asked.get("channel"), number(request, "start", 0, _FARTHEST)
    try:
        a, b = [
            await listed(
                request,
                needed(request, f"{side}_thread"),
                asked.get(f"{side}_ns", ""),
                asked.get(side),
            )
            for side in ("a", "b")
        ]
        held = [] if channel else await _held(page_of(request), a, b)
        names = [channel] if channel else [one for one in _names(a, b) if one not in held]
        found = await _compared(page_of(request), a, b, names)
    except ThreadkeepError as error:
        return render(request, "changes.html", error=error, changed=[], start=0)
    shown = await to_thread.run_sync(partial(_shown, found, start))
    return render(
        request,
        "changes.html",
        error=None,
        changed=[*shown, *map(ChannelChanges, held)],
        same=[one.channel for one in found if not isinstance(one, ChannelChanges) and one.is_same],
        start=start,
        channel=channel,
        sides=asked.get("sides"),
        place={
            key: asked[key]
            for key in ("a_thread", "a_ns", "a", "b_thread", "b_ns", "b", "sides")
            if key in asked
        },
    )


def _names(a: CheckpointTuple, b: CheckpointTuple) -> list[str]:
    """Return the channels of the graphs' states."""
    sides = [
        {*one.checkpoint["channel_versions"], *one.checkpoint["channel_values"]} for one in (a, b)
    ]
    return sorted(one for one in sides[0] | sides[1] if not is_internal(one))


async def _held(page: StorePage, a: CheckpointTuple, b: CheckpointTuple) -> list[str]:
    """Return the channels that may be large and must be read whole to be compared."""
    threads = [one.config["configurable"]["thread_id"] for one in (a, b)]
    infos = [await page.saver.threads.aget(one) for one in dict.fromkeys(threads)]
    if all(one is None or one.bytes < _LARGE for one in infos):
        return []
    waiting, is_one = [unread(one) for one in (a, b)], threads[0] == threads[1]

    def is_held(name: str) -> bool:
        versions = [one.checkpoint["channel_versions"].get(name) for one in (a, b)]
        lengths = [one[name] for one in waiting if name in one]
        return bool(lengths) and not (
            is_one and (versions[0] == versions[1] or None not in lengths)
        )

    return [name for name in _names(a, b) if is_held(name)]


async def _compared(
    page: StorePage, a: CheckpointTuple, b: CheckpointTuple, names: list[str]
) -> list[ChannelDiff | ChannelChanges]:
    """Compare channels; one that cannot be read becomes its error."""
    try:
        found = await page.saver.threads.adiff_checkpoints(a.config, b.config, channels=names)
    except ThreadkeepError as error:
        if len(names) <= 1:
            return [ChannelChanges(name, error=error) for name in names]
        each = [await _compared(page, a, b, [name]) for name in names]
        return [one for some in each for one in some]
    return [*found.channels.values()]


def _shown(found: Iterable[ChannelDiff | ChannelChanges], start: int) -> list[ChannelChanges]:
    left, shown = MOST, list[ChannelChanges]()
    for one in found:
        if isinstance(one, ChannelChanges):
            shown.append(one)
        elif not one.is_same:
            some = one.changes[start : start + left]
            left -= len(some)
            rest = start + len(some) if start + len(some) < len(one.changes) else None
            edits = tuple(map(edit_of, some))
            shown.append(
                ChannelChanges(one.channel, one.kind, len(one.changes), edits, rest, one.is_delta)
            )
    return shown


def edit_of(change: Change) -> Edit:
    """Return a change as the page draws it."""
    at = change.before_at if change.kind == "removed" else change.after_at
    text = tuple(pieces(change))
    before, after = [
        None
        if text or change.kind == missing
        else tree(one, entries=_ENTRIES, characters=_CHARACTERS)
        for one, missing in ((change.before, "added"), (change.after, "removed"))
    ]
    return Edit(change.kind, shortened(path_text(at), 300), before, after, text)


def pieces(change: Change) -> Iterator[Stretch]:
    """Yield the parts of two texts, with the beginning and end of long parts in common."""
    at, left = 0, LONGEST
    for position, edit in enumerate(change.text):
        yield from _common(change.before[at : edit.before_at], first=not position)
        for kind, text in (("del", edit.before), ("ins", edit.after)):
            if text:
                yield Stretch(kind, text[:left])
                left = max(left - len(text), 0)
        at = edit.before_at + len(edit.before)
        if not left:
            yield Stretch("skip", "")
            return
    if change.text:
        yield from _common(change.before[at:], last=True)


def _common(text: str, *, first: bool = False, last: bool = False) -> Iterator[Stretch]:
    if len(text) <= 2 * _AROUND:
        if text:
            yield Stretch("same", text)
        return
    if not first:
        yield Stretch("same", text[:_AROUND])
    yield Stretch("skip", "")
    if not last:
        yield Stretch("same", text[-_AROUND:])


ROUTES = [
    Route("/compare", compare),
    Route("/compare/steps", steps),
    Route("/changes", changes),
]
