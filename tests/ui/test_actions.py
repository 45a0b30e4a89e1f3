"""Changes that the page makes with --write, from the browser to the store."""

import json
import logging
import re
from contextlib import suppress

import pytest
from kit.browser import PHONE, check_accessible, check_fits
from kit.graphs_to_look_at import asks, desk, failing, named
from playwright.sync_api import expect

from threadkeep import MemorySaver, SqliteSaver, guard


@pytest.fixture
def saver(tmp_path):
    with SqliteSaver(tmp_path / "threads.db", cold=f"file://{tmp_path}/cold") as saver:
        desk(saver).invoke(asks("Where is my parcel?"), named("order-17", user_id="u-1"))
        yield saver


@pytest.fixture
def writing(saver, serve):
    """The page, which may change the store."""
    return serve(saver, write=True)


@pytest.fixture
def tab(writing):
    return writing.open("/thread?id=order-17")


@pytest.fixture
def lines(caplog):
    """The lines of the audit log."""
    caplog.set_level(logging.INFO, "threadkeep.audit")
    return lambda: [
        json.loads(one.getMessage()) for one in caplog.records if one.name == "threadkeep.audit"
    ]


def acts(tab):
    return tab.locator("section#acts")


def test_a_page_that_only_shows_has_no_actions(saver, serve):
    tab = serve(saver).open("/thread?id=order-17")
    assert tab.locator("#acts").count() == 0


def test_tags_and_pins(saver, tab, lines):
    acts(tab).get_by_label("Tag", exact=True).fill("vip, urgent")
    acts(tab).get_by_role("button", name="Add").click()
    acts(tab).get_by_role("button", name="Remove the tag vip, urgent").wait_for()
    acts(tab).get_by_role("button", name="Pin").click()
    acts(tab).get_by_role("button", name="Unpin").wait_for()
    info = saver.threads.get("order-17")
    assert (info.tags, info.pinned) == (("vip, urgent",), True)
    acts(tab).get_by_role("button", name="Remove the tag vip, urgent").click()
    acts(tab).get_by_role("button", name="Unpin").click()
    acts(tab).get_by_role("button", name="Pin", exact=True).wait_for()
    info = saver.threads.get("order-17")
    assert (info.tags, info.pinned) == ((), False)
    assert [(one["action"], one["result"]) for one in lines()] == [
        (action, "done") for action in ("tag", "pin", "untag", "unpin")
    ]
    assert {key: lines()[0][key] for key in ("user", "thread", "tag")} == {
        "user": "local",
        "thread": "order-17",
        "tag": "vip, urgent",
    }


def test_a_held_thread_is_released(saver, writing, serve, lines):
    with suppress(ValueError):
        failing(saver).invoke(asks("Try this"), named("failed"))
    with suppress(ValueError), guard(saver, "failed", max_attempts=1):
        raise ValueError
    tab = serve(saver).open("/?q=status:held")
    assert tab.locator("tr[data-row] .badge").all_inner_texts() == ["held: fail"]
    check_accessible(tab)
    tab = writing.open("/thread?id=failed")
    assert tab.locator(".thread-failed").count() == 1
    acts(tab).get_by_role("button", name="Release").click()
    tab.locator("#facts .badge.failed").wait_for()
    expect(acts(tab).get_by_role("button", name="Release")).to_have_count(0)
    assert saver.threads.get("failed").status == "failed"
    assert [(one["action"], one["result"]) for one in lines()] == [("release", "done")]


def test_a_running_thread_names_its_worker(saver, serve):
    with guard(saver, "order-17", worker="host-1"):
        tab = serve(saver).open("/?q=status:running")
        badge = tab.locator("tr[data-row] .badge")
        assert badge.all_inner_texts() == ["running: host-1"]
        check_accessible(tab)
    expect(tab.locator("tr[data-row]")).to_have_count(0)


def test_a_fork_of_a_checkpoint(saver, writing, tab):
    old = [*saver.list(named("order-17"))][2].config["configurable"]["checkpoint_id"]
    writing.go(tab, f"/thread?id=order-17&at={old}")
    here = tab.locator("#acts-at")
    here.get_by_role("button", name="Pin").click()
    here.get_by_role("button", name="Unpin").wait_for()
    assert [m.checkpoint for m in saver.threads.get("order-17").marks] == [old]
    for name in ("order-17", "order/17 & more?"):
        here.get_by_role("button", name="Fork here").click()
        dialog = here.get_by_role("dialog")
        dialog.get_by_label("Name of the fork").fill(name)
        dialog.get_by_role("button", name="Fork").click()
        if name == "order-17":  # the refusal is shown in the dialog
            dialog.get_by_text(re.compile("already")).wait_for()
            dialog.get_by_role("button", name="Cancel").click()
    here.get_by_role("link", name="order/17 & more?").click()
    assert tab.get_by_role("heading", level=1).inner_text() == "order/17 & more?"
    assert saver.threads.get("order/17 & more?").forked_from == ("order-17", old)
    writing.problems.clear()  # (the browser reports the refusal)


def test_an_archive_and_back(saver, writing, tab):
    acts(tab).get_by_text("More").click()
    acts(tab).get_by_role("button", name="Archive").click()
    tab.get_by_role("heading", name="Threads", level=1).wait_for()
    assert saver.threads.get("order-17").state == "archived"
    secret = json.loads(tab.locator("body").get_attribute("hx-headers:inherited"))
    address = f"{writing.address}/actions?thread=order-17&action=restore"
    assert "Restored." in tab.request.post(address, headers=secret).text()
    assert tab.request.post(address, headers=secret).status == 409
    assert saver.threads.get("order-17").state == "active"


def test_the_menu_does_not_cover_a_refusal(serve):
    with MemorySaver() as saver:
        desk(saver).invoke(asks("Hello"), named("order-17"))
        page = serve(saver, write=True)
        tab = page.open("/thread?id=order-17")
        acts(tab).get_by_text("More").click()
        acts(tab).get_by_role("button", name="Archive").click()
        expect(acts(tab).get_by_text("A cold store is needed")).to_be_visible()
        expect(acts(tab).get_by_role("button", name="Archive")).to_be_hidden()
        page.problems.clear()  # (the browser reports the refusal)


def test_a_thread_is_deleted_after_its_name_is_typed(saver, tab):
    acts(tab).get_by_text("More").click()
    acts(tab).get_by_role("button", name="Delete…").click()
    dialog = acts(tab).get_by_role("dialog")
    name, delete = dialog.get_by_role("textbox"), dialog.get_by_role("button", name="Delete")
    name.fill("order-1")
    assert delete.is_disabled()
    name.fill("order-17")
    delete.click()
    tab.get_by_role("heading", name="Threads", level=1).wait_for()
    assert saver.threads.get("order-17").state == "deleted"


def test_an_erasure_shows_its_report(saver, writing, lines):
    """Also of a name that cannot be typed, which is shown escaped."""
    odd = "one\ntwo\u202e"
    desk(saver).invoke(asks("Hello"), named(odd))
    tab = writing.open("/thread?id=one%0Atwo%E2%80%AE")
    acts(tab).get_by_text("More").click()
    acts(tab).get_by_role("button", name="Erase…").click()
    dialog = acts(tab).get_by_role("dialog")
    dialog.get_by_role("textbox").fill("one\\ntwo\\u202e")
    dialog.get_by_role("button", name="Erase").click()
    tab.get_by_text("Still to do by you").wait_for()
    assert saver.threads.get(odd).state == "deleted"
    assert [(one["action"], one["thread"]) for one in lines()] == [("erase", odd)]
    tab.get_by_role("link", name="To the threads").click()


def test_actions_are_accessible_and_fit(writing):
    tab = writing.open("/thread?id=order-17", width=PHONE)
    acts(tab).get_by_text("More").click()
    check_fits(tab)
    check_accessible(tab)
    acts(tab).get_by_role("button", name="Erase…").click()
    check_fits(tab)
    check_accessible(tab)


# -- editing ---------------------------------------------------------------------------


def save(tab, text):
    tab.get_by_role("textbox").fill(text)
    tab.get_by_role("button", name="Save as a new checkpoint").click()


def test_a_value_is_edited_as_json(saver, writing, tab, lines):
    head = saver.get_tuple(named("order-17")).config["configurable"]["checkpoint_id"]
    acts(tab).get_by_role("link", name="Edit a value…").click()
    tab.get_by_role("link", name="order", exact=True).click()
    check_accessible(tab)
    save(tab, '{"number": 18')
    tab.get_by_text("This is not JSON").wait_for()
    save(tab, '{"number": 18}')
    tab.get_by_text("number was text and would become a whole number").wait_for()
    tab.get_by_label("Change types").check()
    save(tab, '{"number": 18, "stops": [1.0, null]}')
    tab.wait_for_url("**/thread?**")
    found = saver.get_tuple(named("order-17"))
    assert found.checkpoint["channel_values"]["order"] == {"number": 18, "stops": [1.0, None]}
    assert found.parent_config["configurable"]["checkpoint_id"] == head
    assert desk(saver).get_state(named("order-17")).next == ()
    assert [(one["result"], one["channel"], one["checkpoint"]) for one in lines()] == [
        *[("refused: InvalidArgumentError", "order", head)] * 2,
        ("done", "order", head),
    ]
    writing.problems.clear()  # (the browser reports the refusal)


def test_the_text_of_a_message_is_edited(saver, writing, tab):
    messages = desk(saver).get_state(named("order-17")).values["messages"]
    writing.go(tab, "/edit?thread=order-17&channel=messages")
    check_accessible(tab)
    tab.get_by_role("link", name="State as a conversation").click()
    asked = tab.locator(".said", has_text="Where is my parcel?").first
    asked.get_by_role("link", name="Edit").click()
    save(tab, "\nWhere is\nmy letter?")
    tab.wait_for_url("**/thread?**")
    edited = desk(saver).get_state(named("order-17")).values["messages"]
    assert edited[0] == messages[0].model_copy(update={"content": "\nWhere is\nmy letter?"})
    assert edited[1:] == messages[1:]


def test_an_edit_is_refused_if_the_thread_has_moved_meanwhile(saver, writing, tab, lines):
    writing.go(tab, "/edit?thread=order-17&channel=summary")
    desk(saver).invoke(asks("Again", 1), named("order-17"))
    head = saver.get_tuple(named("order-17")).config
    save(tab, '"mine"')
    tab.get_by_text("The thread has a newer checkpoint").wait_for()
    assert saver.get_tuple(named("order-17")).config == head
    assert [one["result"] for one in lines()] == ["refused: ConflictError"]
    writing.problems.clear()  # (the browser reports the refusal)
