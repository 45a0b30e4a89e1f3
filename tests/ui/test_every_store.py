"""The page on every store: a walk through its views in the browser."""

import asyncio
import threading
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlencode

import pytest
from integration.foreign import tables
from integration.test_adopt import official, url_of
from kit.backends import BACKENDS, SHARED, open_backend
from kit.browser import served
from kit.graphs_to_look_at import asks, desk, fill, named, refund
from kit.selection import FULL
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from playwright.sync_api import expect

from threadkeep import Store
from threadkeep.threads.transfer.reading import LangGraphReader
from threadkeep.ui.page import StorePage

SERVERS = ("postgres", "redis")
"""Stores of a quick run: the other tests of the page use SQLite and memory."""


def names(tab):
    return tab.locator("tr[data-row] a.name").all_inner_texts()


def ids(saver, thread):
    """The ids of a thread's own checkpoints, newest first."""
    listed = saver.list({"configurable": {"thread_id": thread, "checkpoint_ns": ""}}, values="lazy")
    return [one.config["configurable"]["checkpoint_id"] for one in listed]


# -- threadkeep's own ------------------------------------------------------------------


@pytest.mark.drawn(1)
@pytest.mark.parametrize("backend", BACKENDS if FULL else SERVERS)
def test_every_view(backend, serve, tmp_path):
    with open_backend(backend, tmp_path, cold=f"file://{tmp_path}/cold") as saver:
        fill(saver)
        saver.threads.archive("pictures")
        if backend in SHARED:  # (items in memory belong to the store that put them)
            with Store(saver.backend) as items:
                items.put(("users", "u-1"), "likes", {"text": "tea"})
        site = serve(saver, write=True)
        tab = site.open()
        for look in (_list, _thread, _then, _checkpoint, _compare, _timeline, _inbox, _acts):
            look(site, tab, saver)
        _store(site, tab, saver)
        if backend in SHARED:
            _items(site, tab)
            with open_backend(backend, tmp_path) as other:
                _update(site, tab, other)
        else:
            _update(site, tab, saver)


def _list(site, tab, _):
    assert len(names(tab)) == 11
    site.go(tab, "/?" + urlencode({"q": "user_id=u-1 is:waiting", "order": "-bytes"}))
    assert names(tab) == ["refund"]
    site.go(tab, "/?q=order&order=thread")
    assert names(tab) == ["order-17", "order-17-fork", "order-18", "order/17 & more?"]
    site.go(tab, "/?q=%23vip&order=-bytes")
    assert names(tab) == ["order-17"]


def _thread(site, tab, saver):
    tab.get_by_role("link", name="order-17", exact=True).first.click()
    expect(tab.locator("#chat .said")).to_have_count(9)
    expect(tab.locator(".steps-list > .step")).to_have_count(len(ids(saver, "order-17")))
    assert tab.locator(".graph circle.tip").count() == 3


def _then(_, tab, __):
    tab.locator(".step").nth(-3).get_by_role("link", name="state then").click()
    tab.get_by_text("The conversation as of step").wait_for()
    expect(tab.locator("#chat .said")).to_have_count(2)


def _checkpoint(site, tab, saver):
    site.go(
        tab, "/checkpoint?" + urlencode({"thread": "order-17", "id": ids(saver, "order-17")[0]})
    )
    changed, values = [tab.get_by_role("region", name=one) for one in ("What changed", "Values")]
    changed.get_by_text("AIMessage").first.wait_for()
    values.locator("summary", has_text="order").click()
    values.get_by_text("in transit", exact=True).wait_for()


def _compare(site, tab, _):
    site.go(tab, "/compare?a_thread=order-17&b_thread=order-17-fork")
    tab.locator(".edit.added").first.wait_for()


def _timeline(site, tab, _):
    site.go(tab, "/timeline?id=nested")
    assert tab.locator(".bar-row").count() > 4
    site.go(tab, "/timeline?id=failed&only=failed")
    tab.get_by_text("The carrier's service is down").first.wait_for()


def _inbox(site, tab, saver):
    """Two questions are answered, and the graph's next run takes the answers."""
    site.go(tab, "/inbox")
    assert tab.get_by_role("heading", level=2).all_inner_texts() == ["refund", "mail"]
    for text, answer in (("Which account pays?", "travel"), ("Refund 240 euros?", "yes")):
        asked = tab.locator(".question").filter(has_text=text)
        asked.get_by_label("Answer").fill(answer)
        asked.get_by_role("button", name="Answer").click()
        expect(asked).to_contain_text("answered")
    refund(saver).invoke(None, named("refund"))
    approved = refund(saver).get_state(named("refund")).values["approved"]
    assert sorted(approved) == ["finance: travel", "manager: yes"]
    site.go(tab, "/inbox")
    assert tab.get_by_role("heading", level=2).all_inner_texts() == ["mail"]


def _acts(site, tab, saver):
    site.go(tab, "/thread?id=order-18")
    acts = tab.locator("section#acts")
    acts.get_by_label("Tag", exact=True).fill("late")
    acts.get_by_role("button", name="Add").click()
    acts.get_by_role("button", name="Remove the tag late").wait_for()
    acts.get_by_role("button", name="Fork").click()
    dialog = acts.get_by_role("dialog")
    dialog.get_by_label("Name of the fork").fill("order-18-fork")
    dialog.get_by_role("button", name="Fork").click()
    acts.get_by_role("link", name="order-18-fork").click()
    expect(tab.locator("#chat .said")).to_have_count(3)
    assert saver.threads.get("order-18").tags == ("late",)


def _store(site, tab, saver):
    site.go(tab, "/growth?id=order-17")
    expect(tab.locator(".plot canvas").first).to_be_visible()
    site.go(tab, "/store")
    expect(tab.locator(".fact", has_text="Threads")).to_contain_text(str(saver.stats().threads))
    tab.get_by_role("link", name="Archives").click()
    expect(tab.locator("tbody tr")).to_have_count(1)
    expect(tab.locator("tbody tr")).to_contain_text("pictures")
    site.go(tab, "/store/check")
    tab.get_by_role("link", name="Check now").click()
    tab.get_by_text("threads checked").wait_for()
    assert tab.locator("tr[data-row]").count() == 0, "nothing is damaged"


def _items(site, tab):
    site.go(tab, "/store/items?ns=users")
    tab.get_by_role("link", name="likes").click()
    tab.locator("pre", has_text='"tea"').wait_for()


def _update(site, tab, other):
    """An open page shows checkpoints that another process saves."""
    site.go(tab, "/thread?id=order-18")
    desk(other).invoke(asks("A second question", 1), named("order-18"))
    tab.get_by_text("A second question").first.wait_for()
    expect(tab.locator("#chat .said")).to_have_count(6)


# -- LangGraph's own -------------------------------------------------------------------


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
                site.go(tab, "/?q=order-17")
                _thread(site, tab, reader)
                _then(site, tab, reader)
                _checkpoint(site, tab, reader)
                site.go(tab, "/compare?a_thread=order-18&b_thread=order-17")
                tab.locator(".edit.added").first.wait_for()
                _timeline(site, tab, reader)
                for path in ("/store", "/inbox", "/growth?id=order-17", "/store/items"):
                    assert tab.request.get(site.address + path).status in (400, 404)
                _update(site, tab, saver)
