"""Databases of LangGraph's own savers on the page."""

import re

import pytest
from kit.browser import PHONE, check_accessible, check_fits, served
from kit.graphs_to_look_at import asks, desk, fill, named
from langgraph.checkpoint.sqlite import SqliteSaver as OfficialSaver

from threadkeep.threads.transfer.reading import LangGraphReader
from threadkeep.ui.page import StorePage


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A database of LangGraph's SqliteSaver. Tests only read it."""
    path = tmp_path_factory.mktemp("ui") / "langgraph.db"
    with OfficialSaver.from_conn_string(str(path)) as saver:
        fill(saver, extras=False)
    return path


@pytest.fixture
def look_at(browser):
    """Serve the page over a database, as `threadkeep ui` does."""

    def start(path):
        reader = LangGraphReader(str(path))
        page = StorePage(saver=reader, title=path.name, command=path.name, is_own=False)
        return served(browser, page)

    return start


def test_threads_of_langgraph_are_shown(theirs, look_at):
    with look_at(theirs) as site:
        tab = site.open("/?q=order-17")
        assert tab.locator("tr[data-row] a.name").all_inner_texts() == ["order-17"]
        site.go(tab, "/?q=order")
        assert "exact ids" in tab.get_by_role("alert").inner_text()
        site.go(tab, "/")
        check_accessible(tab)
        for name in ("nested", "failed", "hostile", "order-17"):
            site.go(tab, "/")
            tab.get_by_role("link", name=name, exact=True).click()
            tab.get_by_role("heading", level=1, name=name, exact=True).wait_for()
            assert tab.locator(".error").count() == 0
        tab.get_by_text("Your parcel left Rotterdam").first.wait_for()
        assert tab.get_by_text("Where is my parcel?").count() >= 3
        site.go(tab, "/thread?id=refund")
        tab.locator(".facts .badge", has_text="waiting").first.wait_for()


def test_the_page_says_what_threadkeep_would_save(theirs, look_at):
    with look_at(theirs) as site:
        tab = site.open("/")
        tab.get_by_role("link", name="What would threadkeep save?").click()
        tab.get_by_role("link", name="Measure", exact=True).click()
        factor = tab.locator(".factor")
        factor.wait_for()
        assert re.fullmatch(r"[2-9]\.\d× less than LangGraph, in this sample", factor.inner_text())
        assert tab.get_by_role("row", name="order-17 21 / 21").is_visible()
        tab.get_by_text("threadkeep adopt langgraph.db sqlite:///new.db").wait_for()
        check_accessible(tab)
        tab.set_viewport_size({"width": PHONE, "height": 900})
        check_fits(tab)


def test_a_page_that_is_open_sees_what_a_program_saves(tmp_path, look_at):
    path = tmp_path / "langgraph.db"
    with OfficialSaver.from_conn_string(str(path)) as saver:
        desk(saver).invoke(asks("First"), named("one"))
        with look_at(path) as site:
            tab = site.open("/thread?id=one")
            tab.get_by_text("First").first.wait_for()
            desk(saver).invoke(asks("Second", 1), named("one"))
            tab.get_by_text("Second").first.wait_for()
