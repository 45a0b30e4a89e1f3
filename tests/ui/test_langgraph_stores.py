"""Databases of LangGraph's own savers on the page."""

import re
from types import SimpleNamespace

import pytest
from kit.browser import PHONE, check_accessible, check_fits, served
from kit.graphs_to_look_at import asks, desk, fill, named, refund
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver as OfficialSaver
from langgraph.types import Command, Send
from playwright.sync_api import expect

from threadkeep.threads.transfer.reading import LangGraphReader
from threadkeep.ui.page import StorePage


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A database of LangGraph's SqliteSaver. Tests only read it."""
    path = tmp_path_factory.mktemp("ui") / "langgraph.db"
    with OfficialSaver.from_conn_string(str(path)) as saver:
        fill(saver, extras=False)
    return path


def put(saver, values, thread):
    state = {
        **empty_checkpoint(),
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, 1),
    }
    place = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    saver.put(place, state, {"source": "loop", "step": 0}, dict.fromkeys(values, 1))


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
        site.go(tab, "/?q=rotterdam")
        expect(tab.locator(".hit")).to_have_count(7)
        tab.get_by_text("All 10 threads were read.").wait_for()
        site.go(tab, "/?q=user_id=u-1")
        assert "no such filter" in tab.get_by_role("alert").inner_text()
        site.go(tab, "/")
        check_accessible(tab)
        for name in ("nested", "failed", "hostile", "order-17"):
            site.go(tab, "/")
            tab.get_by_role("link", name=name, exact=True).click()
            tab.get_by_role("heading", level=1, name=name, exact=True).wait_for()
            assert tab.locator(".error:visible").count() == 0
        tab.get_by_text("Your parcel left Rotterdam").first.wait_for()
        assert tab.get_by_text("Where is my parcel?").count() >= 3
        site.go(tab, "/thread?id=refund")
        tab.locator(".facts .badge", has_text="waiting").first.wait_for()


def badges(tab):
    return {
        one.locator("a.name").inner_text(): one.locator(".badge").inner_text()
        for one in tab.locator("tr[data-row]").all()
    }


def test_statuses_and_messages_of_langgraph(theirs, look_at):
    with look_at(theirs) as site:
        tab = site.open("/")
        expect(tab.locator("tr[data-row] .badge")).to_have_count(10)
        told = {"failed": "failed: fail", "mail": "waiting", "refund": "waiting"}
        assert badges(tab) == dict.fromkeys(badges(tab), "done") | told
        failed = tab.locator("tr[data-row]").filter(has_text="Try this")
        expect(failed.locator(".preview p").last).to_contain_text("carrier's service is down")
        assert tab.locator(".chips a").all_inner_texts() == [
            "failed 1",
            "unfinished",
            "waiting 2",
            "done",
        ]
        for term, found in {
            "waiting": ["mail", "refund"],
            "unfinished": [],
            "failed": ["failed"],
        }.items():
            site.go(tab, f"/?q=status:{term}")
            assert sorted(badges(tab)) == found
        site.go(tab, "/?q=status:done+status:failed")
        assert len(badges(tab)) == 8
        tab.get_by_text("8 of the 10 threads that were looked at").wait_for()


def test_questions_of_langgraph_are_shown_with_the_command_that_answers(theirs, look_at):
    with look_at(theirs) as site:
        tab = site.open("/")
        tab.get_by_role("link", name="Inbox 2").click()
        assert tab.get_by_role("heading", level=2).all_inner_texts() == ["refund", "mail"]
        tab.get_by_text("Which account pays?").wait_for()
        tab.get_by_text("Refund 240 euros?").wait_for()
        assert tab.get_by_role("button", name="Answer").count() == 0
        code = tab.locator(".command code").first.inner_text()
        answered = []
        graph = SimpleNamespace(invoke=lambda *given: answered.append(given))
        exec(code, {"graph": graph, "Command": Command, "answer": "yes"})
        ((command, config),) = answered
        assert config == {"configurable": {"thread_id": "refund"}}
        with OfficialSaver.from_conn_string(str(theirs)) as saver:
            asked = refund(saver).get_state(config).interrupts
        assert command.resume == {one.id: "yes" for one in asked}
        check_accessible(tab)
        tab.set_viewport_size({"width": PHONE, "height": 900})
        check_fits(tab)


def test_an_unfinished_thread_of_langgraph(tmp_path, look_at):
    """Also one that waits for several nodes, and one that has sent tasks."""
    path = tmp_path / "langgraph.db"
    with OfficialSaver.from_conn_string(str(path)) as saver:
        graph = desk(saver)
        graph.update_state(named("next"), asks("Go on"), as_node="look_up")
        graph.invoke(asks("Done"), named("done"))
        values = {"join:a+b:c": {"a"}, "messages": []}
        for name, state in {
            "joining": values,
            "joined": {**values, "join:a+b:c": {"a", "b"}},
        }.items():
            put(saver, state, thread=name)
        put(saver, {"__pregel_tasks": [Send("a", 1)]}, thread="sent")
        put(saver, {"__pregel_tasks": []}, thread="empty")
        put(saver, {"text": "x" * 9_000_000}, thread="large")
    with look_at(path) as site:
        tab = site.open("/")
        expect(tab.locator("tr[data-row] .badge")).to_have_count(6)
        large = tab.locator("tr[data-row]").filter(has_text="large")
        assert large.locator(".unknown").inner_text() == "not known"
        site.go(tab, "/?q=status:unfinished")
        assert sorted(badges(tab)) == ["joined", "next", "sent"]


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
