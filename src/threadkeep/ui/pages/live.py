"""Events that say when a thread, or any thread, has changed.

All open pages of a process that show the same share one watcher. It reads the thread's entry, one
row, every two seconds (less often if that takes long), and ends with its last page.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from zlib import crc32

import anyio
from sse_starlette import EventSourceResponse
from sse_starlette import ServerSentEvent as Event
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep.ui.page import StorePage, needed, page_of

MOST_STREAMS = 64
INTERVAL = 2.0
"""Seconds between two reads."""

_PART = 50  # a slow read is followed by a pause of so many times its length
_SLOWEST = 60.0  # seconds between two reads of a store that fails
_PING = 30  # seconds between two signs of life
_GRACE = 1.0  # seconds that an open stream gets when the server ends
_NEWEST = 10  # threads of the list that are watched
_FAILED = "-"


def seen(entries: Any) -> str:
    """Return a short text that is another one once these entries have changed."""
    return f"{crc32(repr(entries).encode('utf-8', 'replace')):x}"


class Watcher:
    """Reads entries again and again, and tells its listeners when they have changed.

    Args:
        read: returns the entries.
    """

    def __init__(self, read: Callable[[], Awaitable[Any]]) -> None:
        self._read = read
        self._last: str | None = None
        self._told = asyncio.Event()
        self._task = asyncio.create_task(self._watch())
        self.listeners = 0

    async def _watch(self) -> None:
        pause = INTERVAL
        while True:
            began = time.monotonic()
            try:
                now = seen(await self._read())
                pause = max(INTERVAL, _PART * (time.monotonic() - began))
            except Exception:  # noqa: BLE001 - whatever the store has; its pages say so
                now, pause = _FAILED, min(pause * 2, _SLOWEST)
            if now != self._last:
                self._last = now
                self._told.set()
                self._told = asyncio.Event()
            await asyncio.sleep(pause)

    async def events(self, known: str | None, ending: anyio.Event) -> AsyncIterator[Event]:
        """Yield an event for each change since the page was drawn, which has seen `known`."""
        while not ending.is_set():
            told, now = self._told, self._last
            if now == _FAILED and known != _FAILED:
                yield Event(event="failed", data="")
            elif now is not None and known not in (None, now):
                yield Event(event="changed", data="", id=now)
            known = now or known
            waits = [asyncio.ensure_future(one.wait()) for one in (told, ending)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()

    def close(self) -> None:
        """Stop reading."""
        self._task.cancel()


class Watchers:
    """The watchers of a page, by the thread that they read, or "" for the list."""

    def __init__(self, page: StorePage) -> None:
        self._threads = page.saver.threads
        self._open: dict[str, Watcher] = {}

    async def events(
        self, thread: str, known: str | None, ending: anyio.Event
    ) -> AsyncIterator[Event]:
        """Yield the events of a thread's page until `ending` is set."""
        watcher = self._open.get(thread)
        if watcher is None:
            watcher = self._open[thread] = Watcher(lambda: self._read(thread))
        watcher.listeners += 1
        try:
            async for one in watcher.events(known, ending):
                yield one
        finally:
            watcher.listeners -= 1
            if not watcher.listeners:
                watcher.close()
                del self._open[thread]

    async def _read(self, thread: str) -> Any:
        if thread:
            return await self._threads.aget(thread)
        return (await self._threads.asearch(limit=_NEWEST)).threads

    @property
    def count(self) -> int:
        """The number of open streams."""
        return sum(one.listeners for one in self._open.values())


async def _live(request: Request) -> Response:
    """Answer with events: `changed`, and `failed` while the store does not answer."""
    state = request.app.state
    if not hasattr(state, "watchers"):
        state.watchers = Watchers(page_of(request))
    watchers: Watchers = state.watchers
    if watchers.count >= MOST_STREAMS:
        raise HTTPException(503, "Too many pages are open.")
    known = request.headers.get("last-event-id") or request.query_params.get("seen")
    thread = needed(request, "id") if request.url.path.endswith("/thread/live") else ""
    ending = anyio.Event()  # (set when the server ends)
    return EventSourceResponse(
        watchers.events(thread, known, ending),
        ping=_PING,
        shutdown_event=ending,
        shutdown_grace_period=_GRACE,
    )


ROUTES = [Route("/live", _live), Route("/thread/live", _live)]
