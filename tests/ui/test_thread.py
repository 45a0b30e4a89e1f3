"""The conversation of a thread."""

import json
from urllib.parse import quote

import pytest
from kit.browser import PHONE, check_accessible, check_fits
from kit.conversations import Chat, talk
from kit.graphs_to_look_at import HOSTILE, PIXEL, desk, named
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from playwright.sync_api import expect

from threadkeep import MemorySaver, SqliteSaver
from threadkeep.memory import LayeredCheckpointSaver, Layers
from threadkeep.streaming import StreamingCheckpointSaver


@pytest.fixture
def saver():
    with MemorySaver() as opened:
        yield opened


def say(saver, *messages, thread="t"):
    """Store messages at the end of a conversation."""
    desk(saver).update_state(named(thread), {"messages": [*messages]}, as_node="answer")


def texts(tab):
    return [one.inner_text() for one in tab.locator("#chat .said .rich").all()]


def test_a_conversation_with_its_calls_and_thoughts(site):
    tab = site.open("/thread?id=order-17")
    said = tab.locator("#chat .said")
    assert [one.get_attribute("class") for one in said.all()] == [
        *("said human", "said ai", "said ai"),
        *("said human", "said ai", "said ai"),
        *("said human", "said ai", "said ai"),
    ]
    call = said.nth(1).locator(".call")
    assert not call.get_by_text('"in transit"').is_visible()
    call.locator("summary").click()
    assert '"number": "ORDER-17"' in call.locator("pre").first.inner_text()
    assert '"state": "in transit"' in call.locator("pre").last.inner_text()
    said.nth(1).get_by_text("Reasoning").click()
    assert said.nth(1).get_by_text("look it up").is_visible()
    assert said.nth(2).locator("td").first.inner_text() == "Rotterdam"
    tab.get_by_text("vip").wait_for()
    check_accessible(tab)


def test_a_failed_thread_shows_its_error_above_the_conversation(site):
    tab = site.open("/thread?id=failed")
    (failed,) = tab.locator(".thread-failed").all()
    assert failed.get_by_role("heading").inner_text() == "fail failed"
    assert failed.locator("pre").inner_text() == 'ValueError("The carrier\'s service is down")'
    again = 'graph.invoke(None, {"configurable": {"thread_id": "failed"}})'
    assert failed.locator("code").inner_text() == again
    assert tab.locator("#facts .badge.failed").inner_text() == "failed: fail"
    check_accessible(tab)


def test_a_phone_shows_the_steps_after_the_conversation(site):
    tab = site.open("/thread?id=order-17", width=PHONE, scheme="dark")
    chat, steps = tab.locator("#chat").bounding_box(), tab.locator(".steps").bounding_box()
    assert steps["y"] >= chat["y"] + chat["height"]
    check_fits(tab)
    check_accessible(tab)
    for thread in ("hostile", "pictures"):
        site.go(tab, f"/thread?id={thread}")
        check_fits(tab)


def test_pictures_are_small_and_come_from_the_message(site):
    tab = site.open("/thread?id=pictures")
    picture = tab.locator("#chat img")
    assert picture.get_attribute("src") == f"data:image/png;base64,{PIXEL}"
    assert picture.evaluate("one => one.complete && one.naturalWidth") == 1
    tab.locator("figcaption").get_by_text("image/png, 70 bytes").wait_for()
    tab.locator("#facts").get_by_role("link", name="Growth").click()
    tab.get_by_role("heading", name="Growth of pictures").wait_for()


def test_earlier_messages_load_until_the_beginning(saver, serve):
    say(saver, *talk(250))
    site = serve(saver)
    tab = site.open("/thread?id=t")
    assert texts(tab) == [f"message {n}" for n in range(150, 250)]
    assert tab.get_by_text("message 249", exact=True).is_visible(), "the newest is in view"
    for count in (200, 250):
        tab.get_by_role("button", name="Earlier messages").click()
        tab.wait_for_function("n => document.querySelectorAll('.said').length === n", arg=count)
    assert texts(tab) == [f"message {n}" for n in range(250)]
    tab.get_by_text("The beginning of the conversation").wait_for()
    link = tab.locator("#chat .said").nth(7).get_by_role("link", name="JSON")
    saved = tab.evaluate("url => fetch(url).then((one) => one.json())", link.get_attribute("href"))
    assert saved["id"] == "m7"


def test_a_running_thread_adds_messages_and_keeps_the_others(saver, serve):
    call = {"name": "find", "args": {}, "id": "c1"}
    before = AIMessage("", tool_calls=[{**call, "id": "c0"}], id="a0")
    say(saver, HumanMessage("one", id="h1"), before, ToolMessage("yes", tool_call_id="c0", id="r0"))
    say(saver, AIMessage("two", tool_calls=[call], id="a1"))
    tab = serve(saver).open("/thread?id=t")
    fold = tab.locator("#m-a0 .call")
    fold.locator("summary").click()
    tab.locator("#m-a1").get_by_text("no result").wait_for()
    say(saver, ToolMessage("found", tool_call_id="c1", id="r1"), HumanMessage("three", id="h2"))
    tab.evaluate("htmx.trigger(document.body, 'changed')")
    tab.locator("#chat").get_by_text("three").wait_for()
    assert texts(tab) == ["one", "two", "three"]
    tab.locator("#m-a1 summary").click()
    tab.locator("#m-a1").get_by_text("found").wait_for()
    assert fold.get_by_text("yes").is_visible(), "it stays open"
    say(saver, HumanMessage("one, corrected", id="h1"))
    tab.evaluate("htmx.trigger(document.body, 'changed')")
    tab.locator("#chat").get_by_text("one, corrected").wait_for()
    assert texts(tab) == ["one, corrected", "two", "three"]
    say(saver, *talk(250))
    tab.evaluate("htmx.trigger(document.body, 'changed')")
    tab.locator("#chat").get_by_text("message 249").wait_for()
    assert tab.locator("#chat .said").count() == 100, "more than an answer holds"


def test_the_conversation_at_an_older_checkpoint(site, filled):
    old = list(filled.list(named("order-17"), values="lazy"))[-4].config["configurable"]
    tab = site.open(f"/thread?id=order-17&at={old['checkpoint_id']}")
    tab.get_by_text("The conversation as of step").wait_for()
    assert tab.locator("#chat .said").count() == 2
    tab.get_by_role("link", name="Back to the newest").click()
    expect(tab.locator("#chat .said")).to_have_count(9)
    assert not tab.get_by_text("The conversation as of step").is_visible()


def test_a_link_to_a_message_shows_those_around_it(saver, serve):
    say(saver, *talk(250))
    site = serve(saver)
    tab = site.open("/thread?id=t&message=20")
    named = tab.locator("#chat .said.named")
    expect(named).to_be_in_viewport()
    assert "message 20" in named.inner_text()
    assert texts(tab)[-1] == "message 69"
    tab.get_by_role("link", name="Newest messages").click()
    expect(tab.locator("#chat").get_by_text("message 249")).to_be_visible()


def test_a_fork_names_its_origin(site):
    tab = site.open("/thread?id=order-17-fork")
    tab.locator("#facts").get_by_role("link", name="order-17").click()
    tab.wait_for_url("**/thread?id=order-17&at=*")
    assert tab.get_by_role("heading", level=1).inner_text() == "order-17"


def test_a_thread_without_messages_names_its_channels(saver, serve):
    desk(saver).update_state(named("t"), {"summary": "A", "order": {"a": 1}}, as_node="answer")
    history = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    desk(saver).update_state(named("other"), {"order": history}, as_node="answer")
    site = serve(saver)
    tab = site.open("/thread?id=t")
    tab.get_by_role("heading", name="No messages").wait_for()
    assert {*tab.locator(".channels > *").all_inner_texts()} == {"order", "a: 1", "summary", "A"}
    site.go(tab, "/thread?id=other")
    tab.locator("#chat").get_by_text("hello").wait_for()
    assert texts(tab) == ["hello", "hi"], "the first channel that holds messages"


def test_an_archived_thread_stays_archived(serve, tmp_path):
    with SqliteSaver(tmp_path / "t.db", cold=f"file://{tmp_path}/cold") as saver:
        say(saver, HumanMessage("one"))
        saver.threads.archive("t")
        tab = serve(saver).open("/thread?id=t")
        tab.get_by_text("The thread is archived.").wait_for()
        tab.evaluate("fetch('/thread/messages?id=t&start=0').then((one) => one.text())")
        assert not tab.locator("#facts").get_by_role("link").count(), "reading growth restores it"
        assert saver.threads.get("t").state == "archived"


def test_streamed_output_is_shown_as_unfinished(saver, serve):
    say(saver, HumanMessage("one", id="h1"))
    streaming = StreamingCheckpointSaver(saver)
    streaming.start_streaming("t")
    streaming.update("t", "It begins with")
    streaming.stop_streaming("t", status="pending")
    tab = serve(saver).open("/thread?id=t")
    unfinished = tab.locator(".stream .said")
    assert unfinished.locator(".rich").inner_text() == "It begins with"
    unfinished.get_by_text("unfinished").wait_for()
    check_accessible(tab)


def test_layered_memory_shows_the_view_and_the_archive(saver, serve):
    policy = Layers(full_window=4, summary_window=8, archive_threshold=12, batch=1)
    with LayeredCheckpointSaver(saver, policy) as layered:
        Chat(layered).talk("t", [f"text number {n}" for n in range(20)])
        stored = saver.list({"configurable": {"thread_id": "t"}}, values="lazy")
        before = len(list(stored))
        tab = serve(saver).open("/thread?id=t")
        shown = tab.locator("#chat .said").count()
        assert shown < 8
        tab.get_by_text("What the model sees").click()
        assert tab.get_by_text("in full").is_visible()
        assert tab.get_by_text(f"of {layered.usage('t').messages} messages").is_visible()
        check_accessible(tab)
        tab.get_by_role("button", name="Archived messages").click()
        tab.locator(".archived .said").first.wait_for()
        assert texts(tab) == [f"text number {n}" for n in range(20)]
        stored = saver.list({"configurable": {"thread_id": "t"}}, values="lazy")
        assert len(list(stored)) == before, "nothing was written"
        say(saver, HumanMessage("one more"))
        tab.evaluate("htmx.trigger(document.body, 'changed')")
        tab.locator("#newest").get_by_text("one more").wait_for()
        assert tab.locator(".archived .said").count() == 20 - shown, "they stay"


def test_hostile_messages_load_and_run_nothing(saver, serve):
    svg = "data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+"
    urls = [svg, "https://evil.example/a.png", "javascript:alert(1)", "//evil.example", "http://["]
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    deep = json.loads("[" * 90 + "]" * 90)
    name = '"><script>alert(1)</script>\u202e'
    call = {"name": name, "args": {name: deep, "a": [svg]}, "id": "'\" onload=alert(1) x="}
    say(
        saver,
        HumanMessage([{"type": "text", "text": HOSTILE}, *images], id='"><img src=x onerror=1>'),
        AIMessage("[a](JaVaScRiPt:alert(1)) [b](data:text/html,x) \udc80", tool_calls=[call]),
        ToolMessage("[" * 50_000, tool_call_id=call["id"], name=name, status="error"),
        ToolMessage(HOSTILE, tool_call_id="of nothing", id="\udc80"),
        AIMessage("x" * 1_000_000, name="n" * 100_000, id="long"),
        {"role": "user", "content": None},
    )
    tab = serve(saver).open("/thread?id=t", width=PHONE)
    assert tab.locator("#chat .said").count() == 5
    tab.locator("#chat details").evaluate_all("all => all.forEach((one) => (one.open = true))")
    assert tab.locator("#chat img, #chat script, #chat iframe, #chat svg").count() == 0
    links = tab.locator("#chat a").evaluate_all("all => all.map((one) => one.protocol)")
    assert {*links} <= {"http:", "https:"}
    tab.get_by_text("evil.example", exact=True).first.wait_for()
    tab.get_by_text("The rest is left out.").first.wait_for()
    check_accessible(tab)
    check_fits(tab)
    tab.set_viewport_size({"width": 1440, "height": 900})
    check_fits(tab)


def test_a_name_that_must_be_escaped(site):
    tab = site.open(f"/thread?id={quote('order/17 & more?', safe='')}")
    assert tab.get_by_role("heading", level=1).inner_text() == "order/17 & more?"
    assert tab.locator("#chat .said").count() == 3
