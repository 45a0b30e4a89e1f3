"""A step beside the conversation: its changes, values, pending writes."""

import json
import random
import sqlite3
from contextlib import closing
from typing import Any
from urllib.parse import urlencode

import pytest
from kit.browser import check_accessible
from kit.places import THREAD
from kit.rows import checkpoint, metadata, place
from playwright.sync_api import expect

from threadkeep import SqliteSaver


def newest(saver: Any, thread: str, number: int = 0) -> str:
    """The address of a thread's newest checkpoint, or of an earlier one."""
    config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    found = [*saver.list(config, values="lazy")][number]
    return "/thread?" + urlencode({"id": thread, "at": found.checkpoint["id"]})


def card(tab: Any, name: str) -> Any:
    return tab.get_by_role("region", name=name)


def test_a_checkpoint_shows_what_changed_and_its_values(site: Any, filled: Any) -> None:
    tab = site.open(newest(filled, "order-17"))
    assert tab.locator("#point h2").inner_text() == "answer Step 14"
    assert tab.locator("#point .badges").inner_text() == "newest"
    changed = card(tab, "Changed in this step")
    changed.get_by_text("AIMessage").wait_for()
    edit = changed.locator(".edit", has=tab.locator("ins"))
    assert (edit.locator("del").inner_text(), edit.locator("ins").inner_text()) == ("7", "11")
    values = card(tab, "Channels")
    assert values.get_by_text("Hannover").count() == 0
    values.locator("summary", has_text="messages").click()
    message = values.locator(
        "li", has=tab.locator("> details > summary", has_text="ToolMessage")
    ).first
    message.locator("summary").first.click()
    message.locator("summary", has_text="JSON").click()
    message.get_by_text("Hannover", exact=True).wait_for()
    check_accessible(tab)


def test_links_lead_to_the_parent_and_the_head(site: Any, filled: Any) -> None:
    tab = site.open(newest(filled, "order-17", 1))
    tab.get_by_role("link", name="The step before").click()
    tab.wait_for_url(site.address + newest(filled, "order-17", 2))
    expect(tab.locator("#point h2")).to_have_text("look_up Step 12")
    tab.get_by_role("link", name="Compare with the newest").click()
    tab.get_by_role("heading", name="Differences").wait_for()


def test_interrupts_and_errors_are_marked(site: Any, filled: Any) -> None:
    tab = site.open(newest(filled, "refund"))
    writes = card(tab, "Pending writes")
    assert writes.locator(".badge.warn").count() == 2
    for n in range(2):
        writes.locator("summary", has=tab.locator(".badge.warn")).nth(n).click()
    writes.get_by_text("Refund 240 euros?", exact=True).wait_for()
    writes.get_by_text("Which account pays?", exact=True).wait_for()
    nodes = card(tab, "Runs next").locator(".tag").all_inner_texts()
    assert sorted(nodes) == ["ask_finance", "ask_manager"]
    site.go(tab, newest(filled, "failed"))
    card(tab, "Runs next").get_by_text("The carrier's service is down").wait_for()


def test_a_large_value_is_cut_with_all_of_it_to_open_and_save(serve: Any, tmp_path: Any) -> None:
    text = "<b>line</b> \u8ba2\u5355\n" * 20_000
    with SqliteSaver(tmp_path / "threads.db") as saver:
        values = {"text": text, "list": [{"inner": [n, n]} for n in range(250)]}
        saver.put(place(), checkpoint(values, text=1, list=1), metadata(1), {"text": 1, "list": 1})
        site = serve(saver)
        tab = site.open(newest(saver, THREAD))
        card(tab, "Channels").locator("summary", has_text="text").click()
        shown = card(tab, "Channels").locator("pre")
        assert shown.inner_text().count("line") < 100_000 / 14
        with tab.expect_download() as saved:
            tab.get_by_role("link", name="Save").first.click()
        assert saved.value.suggested_filename == f"{THREAD}-text.json"
        assert json.loads(saved.value.path().read_text("utf-8")) == text
        whole = tab.request.get(
            site.address + tab.get_by_role("link", name="All of it").first.get_attribute("href")
        )
        assert (whole.text(), whole.headers["content-type"]) == (text, "text/plain; charset=utf-8")
        card(tab, "Channels").locator("summary", has_text="list").click()
        rows = (
            card(tab, "Channels").locator(".channel", has_text="250 elements").locator(".tree > li")
        )
        tab.get_by_role("button", name="Show more").click()
        tab.get_by_text("200 of 250 shown").wait_for()
        assert rows.count() == 202  # (two lines are links)
        rows.nth(199).locator("summary").first.click()
        rows.nth(199).locator("summary", has_text="inner").last.click()
        rows.nth(199).locator("bdi.word", has_text="199").first.wait_for()


def test_a_value_that_cannot_be_read_stands_beside_the_others(serve: Any, tmp_path: Any) -> None:
    path = tmp_path / "threads.db"
    with SqliteSaver(path) as saver:
        good, bad = [f"good {n} " * 9 for n in range(9)], random.Random(1).randbytes(5_000).hex()
        first = saver.put(place(), checkpoint({}), metadata(1), {})
        made = checkpoint({"good": good, "bad": bad}, good=1, bad=1)
        saver.put(first, made, metadata(2), {"good": 1, "bad": 1})
        with closing(sqlite3.connect(path)) as file, file:
            longest = "(SELECT max(length(data)) FROM tk_heap_segments)"
            file.execute(f"DELETE FROM tk_heap_segments WHERE length(data) = {longest}")
        tab = serve(saver).open(newest(saver, THREAD))
        values = card(tab, "Channels")
        for name in ("good", "bad"):
            values.locator("summary", has_text=name).click()
        values.get_by_text("This value cannot be shown.").wait_for()
        values.get_by_text("good 8").wait_for()
        changed = card(tab, "Changed in this step")
        changed.get_by_text("This cannot be compared.").wait_for()
        changed.locator("summary", has_text="good").click()
        changed.get_by_text("list").first.wait_for()


@pytest.mark.parametrize("id", ["1ef00000-0000-6000-8000-000000000000", "</pre>"])
def test_a_checkpoint_that_is_missing(site: Any, id: str) -> None:
    tab = site.open(f"/thread?{urlencode({'id': 'order-17', 'at': id})}")
    expect(tab.get_by_text(f"The thread has no step {id}.")).to_be_visible()
