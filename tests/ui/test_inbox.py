"""The inbox: questions, and answers that a run continues with."""

import json
import logging

import pytest
from kit.browser import PHONE, check_accessible, check_fits
from kit.graphs_to_look_at import HOSTILE, approval, asks, named, refund
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from playwright.sync_api import expect

from threadkeep import MemorySaver


@pytest.fixture
def saver():
    with MemorySaver() as saver:
        yield saver


def card(tab, name):
    return tab.get_by_role("article").filter(has=tab.get_by_role("heading", name=name))


def question(tab, text):
    return tab.locator(".question").filter(has_text=text)


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (PHONE, "dark")])
def test_everyone_can_read_it(filled, serve, width, scheme):
    tab = serve(filled, write=True).open("/inbox", width=width, scheme=scheme)
    assert tab.get_by_role("heading", level=2).all_inner_texts() == ["refund", "mail"]
    for label in ("Edit", "Reject"):
        tab.get_by_label(label, exact=True).last.check()
    check_accessible(tab)
    check_fits(tab)


def test_questions_are_answered_one_by_one(saver, serve, caplog):
    graph = refund(saver)
    graph.invoke(asks("Please"), named("refund"))
    site = serve(saver, write=True)
    tab = site.open("/inbox")
    with caplog.at_level(logging.INFO, "threadkeep.audit"):
        asked = question(tab, "Which account pays?")
        asked.get_by_label("Answer").fill("travel")
        asked.get_by_role("button", name="Answer").click()
        expect(question(tab, "Which account pays?")).to_contain_text("answered")
    line = json.loads(caplog.records[-1].getMessage())
    assert (line["user"], line["action"], line["thread"]) == ("local", "answer", "refund")
    assert "travel" not in caplog.text
    asked = question(tab, "Refund 240 euros?")
    asked.get_by_label("as JSON").check()
    asked.get_by_label("Answer").fill("{oops")
    asked.get_by_role("button", name="Answer").click()
    expect(asked.get_by_role("alert")).to_contain_text("not JSON")
    assert asked.get_by_label("Answer").input_value() == "{oops", "nothing is lost"
    asked.get_by_label("Answer").fill('{"ok": true}')
    asked.get_by_role("button", name="Answer").click()
    expect(question(tab, "Refund 240 euros?")).to_contain_text("answered")
    tab.reload()
    expect(tab.get_by_text("answered", exact=True)).to_have_count(2)
    result = graph.invoke(None, named("refund"))
    assert sorted(result["approved"]) == ["finance: travel", "manager: {'ok': True}"]
    tab.reload()
    assert tab.get_by_text("No thread waits").is_visible()
    site.problems.clear()  # (the browser reports the refusal)


def test_decisions_on_actions(saver, serve):
    graph = approval(saver)
    graph.invoke(asks("Please"), named("mail"))
    site = serve(saver, write=True)
    tab = site.open("/inbox?id=mail")
    mail, delete = [tab.get_by_role("group", name=name) for name in ("send_mail", "delete_order")]
    assert delete.get_by_role("radio").count() == 2, "only decisions that are allowed"
    arguments = mail.get_by_label("Arguments as JSON")
    expect(arguments).to_be_hidden()
    mail.get_by_label("Edit").check()
    arguments.fill('{"to": "b@example.com"}')
    delete.get_by_label("Reject").check()
    delete.get_by_label("Message").fill("Keep it")
    tab.get_by_role("button", name="Answer").click()
    expect(tab.get_by_text("The answer is stored")).to_be_visible()
    tab.get_by_text("Change the answer").click()
    mail.get_by_label("Approve").check()
    delete.get_by_label("Reject").check()
    tab.get_by_role("button", name="Answer").click()
    expect(mail).to_be_hidden()  # (the answer is stored, and folded again)
    assert graph.invoke(None, named("mail"))["approved"] == [
        str({"decisions": [{"type": "approve"}, {"type": "reject"}]})
    ]


def test_an_answer_is_refused_if_the_thread_has_moved(saver, serve):
    graph = refund(saver)
    graph.invoke(asks("Please"), named("refund"))
    site = serve(saver, write=True)
    tab = site.open("/inbox")
    asked = question(tab, "Which account pays?")
    asked.get_by_label("Answer").fill("travel")
    first, second = saver.threads.interrupts("refund")
    saver.threads.answer("refund", {first.id: "1", second.id: "2"})
    graph.invoke(None, named("refund"))
    asked.get_by_role("button", name="Answer").click()
    expect(asked.get_by_role("alert")).to_contain_text("moved on")
    assert asked.get_by_label("Answer").input_value() == "travel"
    site.problems.clear()  # (the browser reports the refusal)


def test_an_answer_that_is_being_written_stays(saver, serve):
    refund(saver).invoke(asks("Please"), named("refund"))
    tab = serve(saver, write=True).open("/inbox")
    field = question(tab, "Which account pays?").get_by_label("Answer")
    approval(saver).invoke(asks("Please"), named("mail"))
    held = []

    def hold(route):
        held.append(route)

    tab.route("**/inbox", hold, times=1)
    with tab.expect_request("**/inbox"):
        tab.evaluate("htmx.trigger(document.body, 'changed')")
    field.fill("trav")
    held[0].continue_()
    expect(tab.get_by_text("Threads have changed.")).to_be_visible()
    assert field.input_value() == "trav"
    field.fill("")
    field.blur()
    tab.evaluate("htmx.trigger(document.body, 'changed')")
    expect(card(tab, "mail")).to_be_visible()


def test_any_question_is_shown(saver, serve):
    values = {
        "hostile": {HOSTILE: HOSTILE, "list": [HOSTILE]},
        "long": "x" * 300_000,
        "null": None,
        "deep": [[[1]]],
    }
    builder = StateGraph(MessagesState)
    for name, value in values.items():
        builder.add_node(name, lambda _, value=value: {"messages": [interrupt(value)]})
        builder.add_edge(START, name)
    builder.compile(checkpointer=saver).invoke(asks("Go"), named("any"))
    tab = serve(saver, write=True).open("/inbox", width=PHONE)
    assert tab.locator(".question").count() == len(values)
    assert tab.locator("main img, main iframe, main svg[onload]").count() == 0
    check_fits(tab)
    assert len(tab.content()) < 150_000


def test_pages_of_waiting_threads(saver, serve):
    for number in range(23):
        approval(saver).invoke(asks("Please"), named(f"t{number:02}"))
    tab = serve(saver).open("/inbox")
    expect(tab.get_by_text("Threads that wait: 23")).to_be_visible()
    assert tab.get_by_role("article").count() == 20
    tab.get_by_role("link", name="Next page").click()
    expect(tab.get_by_role("article")).to_have_count(3)
