"""Two checkpoints side by side."""

from typing import Any
from urllib.parse import urlencode

from kit.browser import PHONE, check_accessible, check_fits
from kit.places import THREAD
from kit.rows import checkpoint, metadata, place

from threadkeep import SqliteSaver
from threadkeep.ui.pages import compare


def ids(saver: Any, thread: str) -> list[str]:
    config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    return [one.checkpoint["id"] for one in saver.list(config, values="lazy")]


def test_a_fork_beside_its_origin(site: Any, filled: Any) -> None:
    old = ids(filled, "order-17")[-1]
    asked = {"a_thread": "order-17", "a": old, "b_thread": "order-17-fork"}
    tab = site.open("/compare?" + urlencode(asked))
    tab.locator(".edit.added").first.wait_for()
    check_accessible(tab)
    before, after = [
        tab.locator(f".edit .{side}").first.bounding_box() for side in ("before", "after")
    ]
    assert before["x"] + before["width"] <= after["x"]
    tab.get_by_role("link", name="Swap").click()
    tab.locator(".edit.removed").first.wait_for()
    assert tab.locator(".edit.added").count() == 0
    boxes = tab.get_by_label("Thread")
    assert [one.input_value() for one in boxes.all()] == ["order-17-fork", "order-17"]
    for _ in range(2):
        tab.keyboard.press("j")
    assert tab.evaluate("document.activeElement.className") == "edit removed"


def test_checkpoints_are_chosen_in_a_form(site: Any, filled: Any) -> None:
    every = ids(filled, "order-17")
    tab = site.open("/compare", width=PHONE)
    before, after = tab.get_by_role("group", name="Before"), tab.get_by_role("group", name="After")
    before.get_by_label("Thread").fill("order-17")
    before.get_by_label("Step").click()
    before.locator(f"option[value='{every[4]}']").wait_for(state="attached")
    before.get_by_label("Step").select_option(every[4])
    after.get_by_label("Thread").fill("order-17")
    tab.get_by_role("button", name="Compare").click()
    tab.locator(".edit").first.wait_for()
    assert before.get_by_label("Step").input_value() == every[4]
    check_fits(tab)
    after.get_by_label("Thread").fill("missing")
    tab.get_by_role("button", name="Compare").click()
    tab.get_by_role("alert").wait_for()


def test_many_changes_are_windows_and_large_channels_wait(
    serve: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    with SqliteSaver(tmp_path / "threads.db") as saver:
        old = {"numbers": {f"n{n}": n for n in range(450)}, "text": "one two " * 999, "same": 1}
        new = {"numbers": {f"n{n}": -n for n in range(450)}, "text": "one 2 " * 999, "same": 1}
        first = saver.put(place(), checkpoint(old), metadata(1), dict.fromkeys(old, 1))
        versions = {"numbers": 2, "text": 2, "same": 1}
        second = saver.put(first, checkpoint(new, **versions), metadata(2), versions)
        site = serve(saver)
        at = [one["configurable"]["checkpoint_id"] for one in (first, second)]
        address = "/compare?" + urlencode(
            {"a_thread": THREAD, "a": at[0], "b_thread": THREAD, "b": at[1]}
        )
        tab = site.open(address)
        numbers = tab.locator(".channel", has_text="numbers").locator(".edit")
        numbers.first.wait_for()
        assert numbers.count() == 200
        for shown in (400, 449):
            tab.get_by_role("button", name="More changes").first.click()
            numbers.nth(shown - 1).wait_for()
        assert tab.get_by_text("Unchanged channels").is_visible()
        monkeypatch.setattr(compare, "_LARGE", 0)
        site.go(tab, address)
        waiting = tab.locator("summary", has_text="may be large")
        waiting.wait_for()
        assert tab.locator(".edit").count() == 200
        waiting.click()
        tab.locator("del").first.wait_for()
