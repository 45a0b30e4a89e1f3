"""Events that say when a thread, or any thread, has changed.

All open pages of a process that show the same share a read of the thread's entry, one row, every
two seconds (less often if that takes long), and read nothing once the last page is closed.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary
from zlib import crc32

import anyio
from sse_starlette import EventSourceResponse
from sse_starlette import ServerSentEvent as Event
from starlette.exceptions import HTTPException
from starlette.responses import Response

from threadkeep.threads import ThreadInfo, ThreadPage
from threadkeep.ui.page import Asked, route

MOST_WATCHED = 64
INTERVAL = 2.0  # seconds between two reads
_PART = 50  # a slow read is followed by a pause of so many times its length
_SLOWEST = 60.0  # seconds between two reads of a store that fails
_LONGEST = 10.0  # seconds of a read
_PING = 30  # seconds between two signs of life
_GRACE = 1.0  # seconds that an open stream gets when the server ends
_NEWEST = 10  # threads of the list that are watched
_FAILED = "-"


def seen(found: Any) -> str:
    """Return a short text that is another one once an entry or a page of entries has changed.

    The renewal of a lease is no change.
    """
    entries = found.threads if isinstance(found, ThreadPage) else [found]
    known = [
        replace(one, lease_until=None) if isinstance(one, ThreadInfo) else one for one in entries
    ]
    return f"{crc32(repr(known).encode('utf-8', 'replace')):x}"


class Watcher:
    """Entries that pages show, read once for all of them."""

    def __init__(self, read: Callable[[], Awaitable[Any]]) -> None:
        self._read = read
        self._last = ""
        self.found: Any = None  # of the last read
        self._due = 0.0
        self._lock = anyio.Lock()
        self.pause = INTERVAL

    async def look(self) -> str:
        """Return the text of `seen` as of the last read. Read again if that is due."""
        async with self._lock:
            began = time.monotonic()
            if began >= self._due:
                try:
                    # (a page that is closed meanwhile must not break the connection of the read)
                    with anyio.fail_after(_LONGEST, shield=True):
                        self.found = await self._read()
                    self._last = seen(self.found)
                    self.pause = max(INTERVAL, _PART * (time.monotonic() - began))
                except Exception:  # noqa: BLE001 - whatever the store has, its pages say so
                    self._last, self.pause = _FAILED, min(self.pause * 2, _SLOWEST)
                self._due = time.monotonic() + self.pause
            return self._last

    async def events(self, known: str | None, ending: anyio.Event) -> AsyncIterator[Event]:
        """Yield an event for each change since the page was drawn, which has seen `known`."""
        while not ending.is_set():
            now = await self.look()
            if now == _FAILED and known != _FAILED:
                yield Event(event="failed", data="")
            elif known not in (None, now):
                yield Event(event="changed", data="", id=now)
            known = now
            with anyio.move_on_after(self._due - time.monotonic()):
                await ending.wait()


@route("/live")
async def _live(request: Asked) -> Response:
    """Answer with events: `changed`, and `failed` while the store does not answer."""
    state, threads = request.app.state, request.page.saver.threads
    if not hasattr(state, "watched"):
        state.watched = WeakValueDictionary[str, Watcher]()
    known = request.headers.get("last-event-id") or request.query_params.get("seen")
    thread = request.query_params.get("id")
    read = partial(threads.asearch, limit=_NEWEST)
    if thread is not None:
        read = partial(threads.aget, thread)
    if len(state.watched) >= MOST_WATCHED and thread not in state.watched:
        raise HTTPException(503, "The pages of too many threads are open.")
    watched = state.watched.setdefault(thread, Watcher(read))
    ending = anyio.Event()  # (set when the server ends)
    return EventSourceResponse(
        watched.events(known, ending),
        ping=_PING,
        shutdown_event=ending,
        shutdown_grace_period=_GRACE,
    )
