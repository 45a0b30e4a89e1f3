"""Events of changes: one watcher for all pages, few reads, and an end."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import anyio
import pytest
from kit.pages import page_over
from kit.rows import checkpoint, metadata, place
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from langgraph.types import Interrupt
from starlette.exceptions import HTTPException
from starlette.requests import Request

from threadkeep import MemorySaver
from threadkeep.ui import app
from threadkeep.ui.pages import live

THREAD = "thread"


class Entries:
    """Entries that a test changes; `reads` counts."""

    def __init__(self):
        self.reads, self.entry = 0, "old"

    async def aget(self, thread):
        assert thread == THREAD
        self.reads += 1
        if isinstance(self.entry, Exception):
            raise self.entry
        return self.entry


@pytest.fixture
def entries():
    return Entries()


@pytest.fixture
def pauses(monkeypatch):
    """The pauses between reads, which take no time."""
    taken, sleep = [], asyncio.sleep

    async def pause(seconds):
        taken.append(seconds)
        await sleep(0)

    monkeypatch.setattr(live.asyncio, "sleep", pause)
    return taken


@pytest.fixture
def watchers(entries):
    with MemorySaver() as saver:
        page = page_over(saver)
        found = live.Watchers(page)
        found._threads = entries
        yield found


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_change_is_an_event(watchers, entries, pauses):
    events = watchers.events(THREAD, live.seen("old"), anyio.Event())
    waiting = asyncio.ensure_future(anext(events))
    await turns()
    assert not waiting.done(), "nothing has changed"
    entries.entry = "new"
    event = await waiting
    assert (event.event, event.id) == ("changed", live.seen("new"))
    assert set(pauses) == {live.INTERVAL, 0}
    await events.aclose()


async def test_a_change_before_the_stream_opened_is_an_event(watchers, entries, pauses):
    events = watchers.events(THREAD, live.seen("older"), anyio.Event())
    assert (await anext(events)).event == "changed"
    await events.aclose()


async def test_pages_share_a_watcher_and_it_ends_with_the_last(watchers, entries, pauses):
    streams = [watchers.events(THREAD, live.seen("old"), anyio.Event()) for _ in range(5)]
    waiting = [asyncio.ensure_future(anext(one)) for one in streams]
    await turns(40)
    assert watchers.count == 5
    assert entries.reads == pauses.count(live.INTERVAL), "one read for all, then a pause"
    for one in waiting:
        one.cancel()
        with suppress(asyncio.CancelledError):
            await one
    await turns()
    assert watchers.count == 0
    reads = entries.reads
    await turns(40)
    assert entries.reads == reads


async def test_a_store_that_fails_is_read_less_often(watchers, entries, pauses):
    entries.entry = OSError("away")
    events = watchers.events(THREAD, live.seen("old"), anyio.Event())
    assert (await anext(events)).event == "failed"
    again = asyncio.ensure_future(anext(events))
    await turns(60)
    assert [one for one in pauses if one][:7] == [4, 8, 16, 32, 60, 60, 60]
    assert not again.done(), "it is said once"
    entries.entry = "old"
    assert (await again).event == "changed"
    await events.aclose()


async def test_streams_are_bounded():
    with MemorySaver() as saver:
        inner = app(saver, authorize=lambda _: "me")._app
        scope = {"type": "http", "method": "GET", "path": "/live", "headers": [], "app": inner}
        request = Request({**scope, "query_string": b""})
        answers = [await live._live(request) for _ in range(live.MOST_STREAMS)]
        waiting = [asyncio.ensure_future(anext(one.body_iterator)) for one in answers]
        await asyncio.sleep(0)
        with pytest.raises(HTTPException, match="Too many"):
            await live._live(request)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await live._live(request)


@pytest.mark.parametrize("list_too", [False, True])
@pytest.mark.parametrize(
    "writes",
    [[("text", "x")], [(ERROR, "ValueError()")], [(INTERRUPT, [Interrupt("Go on?", id="1")])]],
)
def test_pending_writes_alone_are_noticed(writes, list_too):
    with MemorySaver() as saver:
        config = saver.put(place(), checkpoint({"text": "a"}), metadata(), {"text": 1})
        read = (
            saver.threads.search
            if list_too
            else lambda: saver.threads.get(config["configurable"]["thread_id"])
        )
        before = live.seen(read())
        assert live.seen(read()) == before
        saver.put_writes(config, writes, "task")
        assert live.seen(read()) != before, json.dumps(str(read()))
