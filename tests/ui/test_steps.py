"""The steps of a thread: branches, subgraphs, states, windows, and updates of an open page."""

import re
import threading

import pytest
from kit.browser import PHONE, check_accessible, check_fits
from kit.graphs_to_look_at import asks, desk, named, nested, refund
from playwright.sync_api import expect

from threadkeep import MemorySaver
from threadkeep._core.texts import size
from threadkeep.ui.pages import live


def titles(tab):
    return tab.locator(".steps-list > .step:not(.steps-fold) .step-title a").all_inner_texts()


@pytest.fixture
def own(serve):
    """A saver with one conversation, and its page."""
    with MemorySaver() as saver:
        desk(saver).invoke(asks("Hello"), named("talk"))
        yield saver, serve(saver)


def test_forks_are_branches(site):
    tab = site.open("/thread?id=order-17")
    lanes = [one.get_attribute("cx") for one in tab.locator(".graph circle").all()]
    assert lanes == ["9"] * 5 + ["23"] + ["37"] * 4 + ["9"] * 11
    assert tab.locator(".graph circle.tip").count() == 3
    assert tab.locator(".graph path").count() == 20, "a line each, and three at the fork"
    assert titles(tab)[:6] == ["answer", "find_order", "look_up", "start", "fork", "update"]
    head = tab.locator(".step", has=tab.get_by_text("newest", exact=True))
    assert "14" in head.inner_text()
    assert head.get_attribute("aria-current") == "true"
    check_accessible(tab)


def test_a_subgraph_is_folded(site):
    tab = site.open("/thread?id=nested", width=PHONE)
    assert titles(tab) == ["answer", "research", "start", "input"]
    inner = tab.locator(".steps-fold .step-title a")
    expect(inner.first).to_be_hidden()
    tab.get_by_text("4 steps").click()
    assert inner.all_inner_texts() == ["find_order", "look_up", "start", "input"]
    assert "ns=research" in inner.first.get_attribute("href")
    check_fits(tab)


def test_failed_and_waiting_steps(site):
    tab = site.open("/thread?id=failed")
    failed = tab.locator(".step").first
    assert "failed" in failed.inner_text()
    assert 'ValueError("The carrier\'s service is down")' in failed.inner_text()
    assert failed.locator(".step-title bdi").inner_text() == "fail", "not the node before it"
    site.go(tab, "/thread?id=refund")
    assert "waiting ×2" in tab.locator(".step").first.inner_text()


def test_two_steps_are_compared(site):
    tab = site.open("/thread?id=order-17")
    boxes = tab.get_by_role("checkbox")
    for n in (0, 2, 1):  # (the first one chosen gives way)
        boxes.nth(n).check()
    link = tab.get_by_role("link", name="Compare the two")
    expect(link).to_be_in_viewport()
    url = link.get_attribute("href")
    ids = [boxes.nth(n).get_attribute("data-id") for n in (2, 1)]
    assert url == f"/compare?a_thread=order-17&a={ids[0]}&a_ns=&b_thread=order-17&b={ids[1]}&b_ns="
    assert not boxes.nth(0).is_checked()


def test_an_open_page_shows_a_run(own):
    saver, page = own
    tab = page.open("/thread?id=talk")
    assert titles(tab)[0] == "answer"
    tab.evaluate("window.isSame = true")
    boxes = tab.get_by_role("checkbox")
    boxes.first.check()
    chosen = boxes.first.get_attribute("data-id")
    link = tab.locator(".step-title a").nth(1)
    link.focus()
    at = link.get_attribute("href")
    refund(saver).invoke(asks("Refund me", 1), named("talk"))
    waiting = tab.locator(".step", has=tab.get_by_text("waiting ×2"))
    expect(waiting).to_be_visible()
    expect(tab.locator(".step[data-step]")).to_have_count(7)
    assert tab.evaluate("window.isSame"), "the page was not loaded again"
    assert tab.locator(f'[data-id="{chosen}"]').is_checked()
    assert tab.evaluate("document.activeElement.getAttribute('href')") == at


def test_open_folds_stay_open_and_a_failing_store_is_said(serve, monkeypatch):
    with MemorySaver() as saver:
        nested(saver).invoke(asks("Research"), named("nested"))
        monkeypatch.setattr(live, "INTERVAL", 0.02)
        tab = serve(saver).open("/thread?id=nested")
        tab.get_by_text("4 steps").click()
        saver.threads.tag(
            "nested", "vip", checkpoint_id=next(saver.list(named("nested"))).checkpoint["id"]
        )
        expect(tab.locator(".step .tag")).to_have_text("vip")
        expect(tab.locator(".steps-fold .step")).to_have_count(4)
        expect(tab.locator(".steps-fold .step").first).to_be_visible()

        def fail(entries):
            raise OSError("away")

        monkeypatch.setattr(live, "seen", fail)
        expect(tab.get_by_text("The store does not answer")).to_be_visible()


def test_an_idle_page_reads_one_row_and_a_hidden_one_nothing(own, monkeypatch):
    saver, page = own
    reads, enough, closed = [], threading.Event(), threading.Semaphore(0)
    fetch, events = type(saver.backend).fetch, live.Watcher.events

    def counted(backend, asked):
        reads.extend(type(one).__name__ for one in asked)
        if len(reads) >= 5:
            enough.set()
        return fetch(backend, asked)

    async def until_closed(watched, known, ending):
        try:
            async for one in events(watched, known, ending):
                yield one
        finally:
            closed.release()

    monkeypatch.setattr(live.Watcher, "events", until_closed)
    monkeypatch.setattr(live, "INTERVAL", 0.02)
    tabs = [page.open("/thread?id=talk") for _ in range(2)]
    for tab in tabs:  # (it is counted once, when a page is opened)
        expect(tab.locator("#count-inbox")).to_have_text("0")
        expect(tab.locator("#point .edit").first).to_be_visible()
    monkeypatch.setattr(type(saver.backend), "fetch", counted)
    assert enough.wait(10)
    assert set(reads) == {"ReadEntry", "ReadClock"}  # (the time of the store is no row)
    for tab in tabs:
        tab.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
        tab.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    assert all(closed.acquire(timeout=10) for _ in tabs)


def test_older_steps(serve):
    with MemorySaver() as saver:
        graph = desk(saver)
        for turn in range(15):
            graph.invoke(asks("Hello", turn), named("long"))
        first = next(saver.list(named("long"), limit=1))
        graph.update_state([*graph.get_state_history(named("long"))][70].config, {"summary": "x"})
        tab = serve(saver).open("/thread?id=long")
        expect(tab.locator(".step")).to_have_count(60)
        assert titles(tab)[:2] == ["update", "answer"]
        tab.get_by_role("link", name="Older").click()
        expect(tab.locator(".step")).to_have_count(16)
        joined = tab.locator(".step", has=tab.locator("path + path"))
        assert joined.count() == 1, "the branch of the newer window ends at its parent"
        tab.get_by_role("link", name="Newest").click()
        expect(tab.locator(".step").first).to_contain_text("update")
        assert first.checkpoint["id"] in tab.locator(".step a").nth(1).get_attribute("href")


def test_a_click_and_the_arrow_keys_show_a_step_beside_the_list(site):
    tab = site.open("/thread?id=order-17")
    tab.evaluate("window.isSame = true")
    point, head = tab.locator("#point h2"), tab.url
    expect(point).to_have_text("answer Step 14")
    tab.keyboard.press("ArrowDown")
    expect(point).to_have_text("find_order Step 13")
    tab.keyboard.press("ArrowDown")
    expect(point).to_have_text("look_up Step 12")
    tab.keyboard.press("ArrowUp")
    expect(point).to_have_text("find_order Step 13")
    expect(tab.locator("#chat .said")).to_have_count(8)
    tab.locator(".step").last.locator("a").click()
    expect(point).to_have_text("input Step -1")
    expect(tab.locator(".step[aria-current]")).to_have_count(1)
    link = tab.url
    tab.get_by_role("link", name="Back to the newest").click()
    expect(point).to_have_text("answer Step 14")
    assert tab.url == head
    tab.go_back()
    expect(point).to_have_text("input Step -1")
    assert tab.evaluate("window.isSame"), "the page was not loaded again"
    site.go(tab, link.removeprefix(site.address))
    expect(point).to_have_text("input Step -1")
    expect(tab.locator(".step[aria-current]")).to_be_in_viewport()


def test_go_to_a_step_of_a_long_thread(serve):
    with MemorySaver() as saver:
        graph = desk(saver)
        for turn in range(80):
            graph.invoke(asks("Hello", turn), named("long"))
        site = serve(saver)
        tab = site.open("/thread?id=long")
        expect(tab.locator(".step")).to_have_count(60)
        field = tab.get_by_label("Go to step")
        field.fill("120")
        field.press("Enter")
        expect(tab.locator("#point h2")).to_contain_text("Step 120")
        current = tab.locator(".step[aria-current]")
        expect(current).to_be_in_viewport()
        first = tab.locator(".step-facts > :first-child").first
        expect(first).to_have_text("135")
        tab.get_by_role("link", name="Newer").click()
        expect(first).to_have_text("195")
        field = tab.get_by_label("Go to step")
        field.fill("9,999")
        field.press("Enter")
        expect(tab.get_by_text("The thread has no step 9999.")).to_be_visible()
        site.go(tab, "/thread?id=long&at=removed-by-retention")
        expect(tab.get_by_text("The thread has no step removed-by-retention.")).to_be_visible()
        expect(first).to_have_text("398")
        expect(tab.locator("#point h2")).to_contain_text("Step 398")


def test_an_open_channel_stays_open_while_the_thread_runs(own):
    saver, page = own
    tab = page.open("/thread?id=talk")
    tab.locator("#channels ~ details").first.locator("summary").first.click()
    desk(saver).invoke(asks("Again", 1), named("talk"))
    expect(tab.locator("#point h2")).to_have_text("answer Step 8")
    expect(tab.locator("#channels ~ details").first).to_have_attribute("open", "")
    tab.get_by_text("ORDER-17").first.wait_for()


# -- the timeline ------------------------------------------------------------------------


def bars(tab):
    return tab.locator(".bar-row text").all_text_contents()


def test_a_timeline(site):
    tab = site.open("/timeline?id=order-17", width=PHONE)
    assert len(bars(tab)) == 21
    assert bars(tab)[2].startswith("look_up")
    expect(tab.locator(".axis time").first).to_have_text(re.compile(r"^[-\d]{10} [:\d]{8}$"))
    assert tab.locator(".gap-row").count() >= 1, "the pause before the fork is compressed"
    check_accessible(tab)
    check_fits(tab)


def test_a_timeline_of_what_failed_and_waits(site):
    tab = site.open("/timeline?id=failed&only=failed")
    assert [text.partition(" ")[0] for text in bars(tab)] == ["look_up", "fail"]
    assert "The carrier's service is down" in bars(tab)[1]
    site.go(tab, "/timeline?id=refund&only=waiting")
    assert bars(tab)[-1] == "ask_finance, ask_manager"
    site.go(tab, "/timeline?id=order-17&only=failed")
    expect(tab.get_by_text("None of the 21 steps matches.")).to_be_visible()


def test_a_timeline_without_subgraphs_and_in_a_range(site):
    tab = site.open("/timeline?id=nested")
    assert sum(text.startswith("research / ") for text in bars(tab)) == 4
    tab.get_by_label("Subgraphs").select_option("hide")
    tab.get_by_role("button", name="Apply").click()
    expect(tab.locator(".bar-row")).to_have_count(4)
    for name, count in (("from", 0), ("to", 4)):
        site.go(tab, f"/timeline?id=nested&inner=no&{name}=2100-01-01T00:00")
        expect(tab.locator(".bar-row")).to_have_count(count)
    site.go(tab, "/timeline?id=nested&to=2001-01-01T00:00")
    expect(tab.get_by_text("No steps.")).to_be_visible()


def test_a_timeline_says_what_each_step_added(site, filled):
    steps = filled.threads.growth("order-17").steps
    tab = site.open("/timeline?id=order-17")
    expect(tab.locator(".bar-row text").first).to_contain_text(f"+{size(steps[0].bytes)}")
    assert sum("+" in text for text in bars(tab)) == len(steps)
