"""The graph of a thread in a browser: drawn in a frame, resumed, replayed, run after an edit."""

import json
import logging
from contextlib import suppress

import pytest
from kit.browser import PHONE, check_accessible, check_fits
from kit.graphs_to_look_at import asks, desk, named, nested
from kit.shop import Order, Shop, fill
from langgraph.graph import START, StateGraph
from playwright.sync_api import expect

from threadkeep import SqliteSaver, guard
from threadkeep.ui.graphs import PageGraph

THREADS = "/thread?id="


@pytest.fixture
def shop():
    return Shop()


@pytest.fixture
def saver(tmp_path, shop):
    with SqliteSaver(tmp_path / "threads.db") as saver:
        fill(saver, shop)
        yield saver


@pytest.fixture
def site(saver, shop, serve):
    return serve(saver, write=True, graph=PageGraph(shop.builder, saver))


@pytest.fixture
def lines(caplog):
    """The lines of the audit log: their actions and results."""
    caplog.set_level(logging.INFO, "threadkeep.audit")

    def read():
        found = [one.getMessage() for one in caplog.records if one.name == "threadkeep.audit"]
        return [(one["action"], one["result"]) for one in map(json.loads, found)]

    return read


def heads(saver, thread):
    found = saver.list(named(thread), values="lazy")
    return [one.config["configurable"]["checkpoint_id"] for one in found]


def marked(tab):
    """The nodes of the graph that have a mark, by it."""
    frame = tab.frame_locator(".graph-fold iframe")
    expect(frame.locator("svg").first).to_be_visible()
    return {
        kind: frame.locator(f".node.{kind}").all_text_contents()
        for kind in ("ran", "next", "waiting", "failed")
        if frame.locator(f".node.{kind}").count()
    }


def shows(tab, **marks):
    """Wait until the graph has these marks and no others."""
    frame = tab.frame_locator(".graph-fold iframe")
    for kind, name in marks.items():
        expect(frame.locator(f".node.{kind}")).to_have_text([name])
    assert marked(tab) == {kind: [name] for kind, name in marks.items()}


# -- drawing -----------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 1000), ("dark", PHONE)])
def test_the_graph_marks_the_nodes_of_the_chosen_step(site, saver, scheme, width):
    tab = site.open(f"{THREADS}failed", scheme=scheme, width=width)
    fold = tab.locator(".graph-fold")
    assert fold.evaluate("one => one.open") == (width == 1440), "on a wide page"
    if width < 1440:
        fold.locator("summary").click()
    shows(tab, ran="ask", failed="charge")
    check_accessible(tab)
    check_fits(tab)
    tab.locator(f".step[data-step='{heads(saver, 'failed')[1]}'] a").click()
    shows(tab, ran="price", next="ask")
    site.go(tab, f"{THREADS}asks")
    shows(tab, ran="price", waiting="ask"), "the fold stays open"
    tab.locator(".graph-fold > summary").click()
    tab.reload()
    assert not fold.evaluate("one => one.open"), "and closed"


def test_a_subgraph_is_drawn_and_the_text_copied(saver, serve):
    nested(saver).invoke(asks("Research, please"), named("nested"))
    site = serve(saver, graph=PageGraph(nested(None)))
    tab = site.open(f"{THREADS}nested", permissions=["clipboard-read", "clipboard-write"])
    frame = tab.frame_locator(".graph-fold iframe")
    expect(frame.locator(".cluster-label").get_by_text("research")).to_be_visible()
    tab.get_by_role("button", name="Copy as Mermaid").click()
    tab.get_by_role("button", name="Copied").wait_for()
    copied = tab.evaluate("navigator.clipboard.readText()")
    assert "graph TD;" in copied
    assert "research\\3alook_up --> research\\3afind_order" in copied
    tab.locator(".steps-fold summary").click()
    tab.locator(".steps-fold a.to-step").first.click()
    expect(frame.locator(".node.ran")).to_have_text(["find_order"])
    assert tab.get_by_role("button", name="Replay from here").count() == 0
    assert tab.get_by_role("button", name="Resume").count() == 0


def test_names_of_a_graph_are_only_text(saver, serve):
    name = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    builder = StateGraph(Order).add_node(name, lambda _: {}).add_edge(START, name)
    site = serve(saver, graph=PageGraph(builder))
    for path in (f"{THREADS}done", "/graph", "/graph#x%22]%0Aclick A href 'javascript:alert(1)'"):
        tab = site.open(path)
        tab.wait_for_timeout(300)
        assert tab.locator("script:not([src]), img").count() == 0


# -- runs --------------------------------------------------------------------------------


def test_a_failed_thread_is_resumed(site, saver, shop, lines):
    tab = site.open(f"{THREADS}failed")
    failed = tab.locator(".thread-failed")
    assert "graph.invoke" not in failed.inner_text()
    failed.get_by_role("button", name="Resume").click()
    tab.locator("#acts").get_by_text("The run has failed.").wait_for()
    assert saver.threads.get("failed").attempts == 1
    shop.is_repaired = True
    failed.get_by_role("button", name="Resume").click()
    tab.locator("#acts").get_by_text("The run has ended.").wait_for()
    expect(tab.locator("#chat").get_by_text("Paid: 20 euros")).to_be_visible()
    expect(failed).to_have_count(0)
    assert saver.threads.get("failed").status == "done"
    assert lines() == [("resume", "done")] * 2


def test_a_held_thread_is_resumed(site, saver, shop, lines):
    shop.is_repaired = True
    with suppress(ValueError), guard(saver, "failed", max_attempts=1):
        raise ValueError
    assert saver.threads.get("failed").status == "held"
    tab = site.open(f"{THREADS}failed")
    tab.locator("#acts").get_by_role("button", name="Resume").click()
    tab.locator("#acts").get_by_text("The run has ended.").wait_for()
    assert saver.threads.get("failed").status == "done"
    assert lines() == [("resume", "done")]


def test_a_replay_is_a_branch(site, saver, shop, lines):
    shop.is_repaired = True
    before = heads(saver, "done")
    tab = site.open(f"{THREADS}done&at={before[2]}")
    here = tab.locator("#acts-at")
    here.get_by_role("button", name="Replay from here").click()
    here.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    here.get_by_role("button", name="Replay from here").click()
    check_accessible(tab)
    here.get_by_role("dialog").get_by_role("button", name="Replay", exact=True).click()
    here.get_by_text("The run has ended.").wait_for()
    new = [one for one in heads(saver, "done") if one not in before]
    expect(tab.locator(".step[data-step]")).to_have_count(len(before) + len(new))
    state = saver.get_tuple(named("done"))
    assert state.checkpoint["channel_values"]["paid"] == ["20 euros"]
    assert lines() == [("replay", "done")]
    site.go(tab, f"{THREADS}done")
    expect(tab.locator("#acts-at").get_by_role("button", name="Pin")).to_be_visible()
    assert tab.get_by_role("button", name="Replay from here").count() == 0, "nothing runs next"


def test_an_edited_state_is_saved_and_run(site, saver, shop, lines):
    shop.is_repaired = True
    tab = site.open(f"/edit?thread=done&id={heads(saver, 'done')[2]}&channel=price")
    tab.locator("#value").fill("15")
    tab.get_by_role("button", name="Save and run").click()
    expect(tab.locator("#point-title")).to_contain_text("update")
    tab.get_by_role("link", name="Back to the newest").click()
    expect(tab.locator("#chat").get_by_text("Paid: 15 euros")).to_be_visible()
    assert lines() == [("edit", "done"), ("replay", "done")]


def test_an_answer_continues_the_thread(site, saver, shop, lines):
    shop.is_repaired = True
    tab = site.open(f"{THREADS}asks")
    tab.locator(".question textarea").fill("yes")
    tab.locator(".question").get_by_role("button", name="Answer").click()
    expect(tab.locator("#chat").get_by_text("Paid: 20 euros")).to_be_visible()
    assert lines() == [("answer", "done"), ("resume", "done")]


def test_an_answer_of_before_is_continued(site, saver, shop):
    shop.is_repaired = True
    (one,) = saver.threads.interrupts("asks")
    saver.threads.answer("asks", {one.id: "yes"})
    tab = site.open(f"{THREADS}asks")
    tab.locator(".question").get_by_role("button", name="Resume").click()
    expect(tab.locator("#chat").get_by_text("Paid: 20 euros")).to_be_visible()


def test_an_answer_is_stored_though_the_graph_cannot_continue(saver, serve, shop):
    tab = serve(saver, write=True, graph=PageGraph(desk(None), saver)).open("/inbox?id=asks")
    tab.locator(".question textarea").fill("yes")
    tab.locator(".question").get_by_role("button", name="Answer").click()
    tab.get_by_text("The graph has no node 'ask'").wait_for()
    assert saver.threads.interrupts("asks")[0].answered
