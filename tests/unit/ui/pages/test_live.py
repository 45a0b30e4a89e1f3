"""Events of changes: one watcher for all pages, few reads, and an end."""

import asyncio
import gc
import json
from functools import partial
from types import SimpleNamespace

import anyio
import pytest
from kit.rows import checkpoint, metadata, place
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from langgraph.types import Interrupt
from starlette.exceptions import HTTPException

from threadkeep import MemorySaver, guard
from threadkeep._run import driver
from threadkeep.ui import app
from threadkeep.ui.page import Asked
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
def clock(monkeypatch):
    """A clock that a test sets, in seconds."""
    found = SimpleNamespace(now=0.0, monotonic=lambda: found.now)
    monkeypatch.setattr(live, "time", found)
    return found


@pytest.fixture
def watched(entries, monkeypatch):
    monkeypatch.setattr(live, "INTERVAL", 0.001)
    return live.Watcher(partial(entries.aget, THREAD))


async def turns(until):
    """Let other tasks run."""
    while not until():  # noqa: ASYNC110 - of a loop that has nothing to set an event
        await asyncio.sleep(0)


async def test_a_change_is_an_event(watched, entries):
    events = watched.events(live.seen("old"), anyio.Event())
    waiting = asyncio.ensure_future(anext(events))
    await turns(lambda: entries.reads >= 3)
    assert not waiting.done(), "nothing has changed"
    entries.entry = "new"
    event = await waiting
    assert (event.event, event.id) == ("changed", live.seen("new"))
    await events.aclose()


async def test_a_change_before_the_stream_opened_is_an_event(watched):
    events = watched.events(live.seen("older"), anyio.Event())
    assert (await anext(events)).event == "changed"
    await events.aclose()


async def test_a_store_that_fails_and_recovers_is_said_once(watched, entries):
    entries.entry = OSError("away")
    events = watched.events(live.seen("old"), anyio.Event())
    assert (await anext(events)).event == "failed"
    again = asyncio.ensure_future(anext(events))
    await turns(lambda: entries.reads >= 3)
    assert not again.done()
    entries.entry = "old"
    assert (await again).event == "changed"
    await events.aclose()


async def test_a_stream_ends_with_the_server(entries):
    ending = anyio.Event()
    events = live.Watcher(partial(entries.aget, THREAD)).events(None, ending)
    end = asyncio.ensure_future(anext(events, "the end"))
    await turns(lambda: entries.reads)
    ending.set()
    assert await end == "the end"


async def test_pages_share_reads(entries, clock):
    watched = live.Watcher(partial(entries.aget, THREAD))
    for at, reads in ((0, 1), (1.9, 1), (2, 2), (3.9, 2), (4.5, 3)):
        clock.now = at
        assert await asyncio.gather(*[watched.look() for _ in range(5)]) == [live.seen("old")] * 5
        assert entries.reads == reads


async def test_a_store_that_fails_is_read_less_often(entries, clock):
    watched, pauses = live.Watcher(partial(entries.aget, THREAD)), []
    entries.entry = OSError("away")
    for _ in range(6):
        await watched.look()
        pauses.append(watched.pause)
        clock.now += watched.pause
    assert pauses == [4, 8, 16, 32, 60, 60]
    entries.entry = "old"
    assert await watched.look() == live.seen("old")
    assert watched.pause == live.INTERVAL


async def test_watched_threads_are_bounded():
    with MemorySaver() as saver:
        inner = app(saver, authorize=lambda _: "me")._app
        scope = {"type": "http", "method": "GET", "path": "/live", "headers": []}

        async def ask(thread):
            query = f"id={thread}".encode()
            return await live._live(Asked({**scope, "app": inner, "query_string": query}))

        answers = [await ask(n) for n in range(live.MOST_WATCHED)]
        assert await ask(0), "a thread that is watched costs nothing more"
        with pytest.raises(HTTPException, match="too many"):
            await ask("another")
        for one in answers:
            await one.body_iterator.aclose()
        del one, answers
        gc.collect()
        assert await ask("another")


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


@pytest.mark.parametrize("list_too", [True, False])
def test_the_renewal_of_a_lease_is_no_change(list_too):
    with MemorySaver() as saver:
        thread = saver.put(place(), checkpoint({"text": "a"}), metadata(), {"text": 1})
        name = thread["configurable"]["thread_id"]
        read = saver.threads.search if list_too else partial(saver.threads.get, name)
        free = live.seen(read())
        with guard(saver, name) as held:
            before, until = live.seen(read()), saver.threads.get(name).lease_until
            assert before != free
            driver.run(held._commit(held._change._replace(does="renew")))
            assert saver.threads.get(name).lease_until > until
            assert live.seen(read()) == before
        assert live.seen(read()) == free
