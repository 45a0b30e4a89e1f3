"""The page on every store: a walk through its views in the browser."""

import asyncio
import threading
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlencode

import pytest
from integration.foreign import tables
from integration.test_adopt import official, url_of
from kit.browser import served
from kit.graphs_to_look_at import asks, desk, fill, named
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from playwright.sync_api import expect

from threadkeep.threads.transfer.reading import LangGraphReader
from threadkeep.ui.page import StorePage


def names(tab):
    return tab.locator("tr[data-row] a.name").all_inner_texts()


def ids(saver, thread):
    """The ids of a thread's own checkpoints, newest first."""
    listed = saver.list({"configurable": {"thread_id": thread, "checkpoint_ns": ""}}, values="lazy")
    return [one.config["configurable"]["checkpoint_id"] for one in listed]


def _thread(site, tab, saver):
    tab.get_by_role("link", name="order-17", exact=True).first.click()
    expect(tab.locator("#chat .said")).to_have_count(9)
    expect(tab.locator(".steps-list > .step")).to_have_count(len(ids(saver, "order-17")))
    assert tab.locator(".graph circle.tip").count() == 3


def _then(_, tab, __):
    tab.locator(".step").nth(-3).get_by_role("link").first.click()
    tab.get_by_text("The conversation as of step").wait_for()
    expect(tab.locator("#chat .said")).to_have_count(2)


def _checkpoint(site, tab, saver):
    site.go(tab, "/thread?" + urlencode({"id": "order-17", "at": ids(saver, "order-17")[0]}))
    names = "Changed in this step", "Channels"
    changed, values = [tab.get_by_role("region", name=one) for one in names]
    changed.get_by_text("AIMessage").first.wait_for()
    values.locator("summary", has=tab.get_by_text("order", exact=True)).click()
    values.get_by_text("in transit", exact=True).wait_for()


def _timeline(site, tab, _):
    site.go(tab, "/timeline?id=nested")
    assert tab.locator(".bar-row").count() > 4
    site.go(tab, "/timeline?id=failed&only=failed")
    tab.get_by_text("The carrier's service is down").first.wait_for()


def _update(site, tab, other):
    """An open page shows checkpoints that another process saves."""
    site.go(tab, "/thread?id=order-18")
    desk(other).invoke(asks("A second question", 1), named("order-18"))
    tab.get_by_text("A second question").first.wait_for()
    expect(tab.locator("#chat .said")).to_have_count(6)


@contextmanager
def _in_a_loop(opened):
    """Open an async saver in a thread with an event loop; its sync methods work in others."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    wait = partial(asyncio.run_coroutine_threadsafe, loop=loop)
    try:
        yield wait(opened.__aenter__()).result(20)
    finally:
        wait(opened.__aexit__(None, None, None)).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


@contextmanager
def theirs(kind, folder):
    """A saver of LangGraph's, and the name of its database."""
    url = partial(tables, f"page_{kind}")
    if not kind.startswith("async"):
        with official(kind, folder, url) as opened:
            yield opened
        return
    is_file = kind == "async_sqlite"
    name = str(folder / "a.db") if is_file else url()
    made = (AsyncSqliteSaver if is_file else AsyncPostgresSaver).from_conn_string(name)
    with _in_a_loop(made) as saver:
        yield saver, name if is_file else url_of(name)


OFFICIAL = ("sqlite", "async_sqlite", "postgres", "async_postgres")


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", OFFICIAL)
def test_langgraphs_own(kind, browser, tmp_path):
    with theirs(kind, tmp_path) as (saver, name):
        fill(saver, extras=False)
        with LangGraphReader(str(name)) as reader:
            page = StorePage(saver=reader, title="langgraph", is_own=False)
            with served(browser, page) as site:
                tab = site.open()
                assert len(names(tab)) == 10
                for order in ("thread", "-bytes", "updated_at"):
                    site.go(tab, f"/?order={order}")
                    assert len(names(tab)) == 10
                expect(tab.get_by_text("failed: fail", exact=True)).to_be_visible()
                expect(tab.locator("tr[data-row] .badge.done")).to_have_count(7)
                expect(tab.get_by_text("Where is my parcel? (question 1)")).to_be_visible()
                site.go(tab, "/inbox")
                assert tab.locator(".question").count() == 3
                site.go(tab, "/?q=order-17")
                _thread(site, tab, reader)
                _then(site, tab, reader)
                _checkpoint(site, tab, reader)
                site.go(tab, "/compare?a_thread=order-18&b_thread=order-17")
                tab.locator(".edit.added").first.wait_for()
                _timeline(site, tab, reader)
                for path in ("/store", "/growth?id=order-17", "/store/items"):
                    assert tab.request.get(site.address + path).status in (400, 404)
                _update(site, tab, saver)
