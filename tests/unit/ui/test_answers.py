"""Questions as forms, and answers that forms give."""

import asyncio

import pytest
from kit.asgi import Client
from kit.graphs_to_look_at import approval, asks, named, refund
from langgraph.types import Command

from threadkeep import MemorySaver
from threadkeep.errors import InvalidArgumentError
from threadkeep.threads import PendingInterrupt
from threadkeep.ui import app
from threadkeep.ui.answers import actions_of, answer_of, value_of


def asked(value, schema=None):
    return PendingInterrupt("id", value, "head", "", "task", response_schema=schema)


def review(*allowed, name="mail"):
    return {"action_name": name, "allowed_decisions": [*allowed]}


def request(name="mail", **args):
    return {"name": name, "args": args}


def test_any_other_question_takes_text_or_json():
    for value in ("Why?", {"a": {"b": 1}}, None, 7, [1], {"action_requests": "no", "x": 1}):
        question = asked(value)
        assert actions_of(question) == ()
        assert answer_of(question, {"answer": "[1]", "as": "text"}) == "[1]"
        assert answer_of(question, {"answer": '{"a": [1, null]}', "as": "json"}) == {"a": [1, None]}
    for wrong in ("{", "", "NaN", "1e999", "[" * 100_000):
        with pytest.raises(InvalidArgumentError):
            answer_of(asked("Why?"), {"answer": wrong, "as": "json"})


@pytest.mark.parametrize(
    ("schema", "form", "given"),
    [
        ({"type": "boolean"}, "choice", {"0": True, "1": False}),
        ({"enum": ["yes", 7, None]}, "choice", {"0": "yes", "1": 7, "2": None}),
        ({"type": "string"}, "text", {"7": "7", "a b": "a b"}),
        ({"type": "integer"}, "number", {"7": 7, "-1": -1}),
        ({"type": "number"}, "number", {"7": 7, "1.5": 1.5}),
        ({"type": "object"}, "json", {'{"a": 1}': {"a": 1}}),
        ({"type": "array"}, "json", {"[1]": [1]}),
    ],
)
def test_a_schema_decides_the_form_of_the_answer(schema, form, given):
    question = asked("Why?", schema)
    assert value_of(question).form == form
    for text, value in given.items():
        found = answer_of(question, {"answer": text})
        assert (type(found), found) == (type(value), value)
    wrong = {"choice": ("x", "3", "-1"), "text": (), "number": ("true", "x", '"7"'), "json": ("7",)}
    for text in ("", " ", *wrong[form]):
        with pytest.raises(InvalidArgumentError):
            answer_of(question, {"answer": text})
    if schema.get("type") == "integer":
        with pytest.raises(InvalidArgumentError, match="integer"):
            answer_of(question, {"answer": "1.5"})


def test_an_empty_answer_is_refused_and_an_empty_text_is_not():
    for given in (
        {},
        {"answer": ""},
        {"answer": " \n", "as": "text"},
        {"answer": "", "as": "json"},
    ):
        with pytest.raises(InvalidArgumentError, match="Write an answer"):
            answer_of(asked("Why?"), given)
    assert answer_of(asked("Why?"), {"answer": '""', "as": "json"}) == ""


def test_any_other_schema_leaves_the_form_open():
    for schema in (
        None,
        {},
        [],
        "x",
        {"type": ["string"]},
        {"anyOf": []},
        {"enum": []},
        {"enum": 7},
    ):
        assert value_of(asked("Why?", schema)).form == "any"
    assert value_of(asked("Why?", {"enum": [*range(99)]})).form == "any"


def test_a_thread_shows_its_questions_and_their_answers():
    with MemorySaver() as saver:
        refund(saver).invoke(asks("Please"), named("refund"))
        client = Client(app(saver, authorize=lambda _: "ann", write=True))
        for path in ("/thread?id=refund", "/thread/messages?id=refund"):
            html = client.get(path).text
            assert "Which account pays?" in html
            assert html.count('hx-post="/inbox/answer') == 2
        (one,) = [one for one in saver.threads.interrupts("refund") if type(one.value) is str]
        saver.threads.answer("refund", {one.id: "the travel budget"})
        for path in ("/thread?id=refund", "/inbox?id=refund"):
            assert "the travel budget" in client.get(path).text
        saver.threads.answer("refund", {one.id: "savings"}, replace=True, by="Zo\u00eb")
        assert "Answer of Zo\u00eb" in client.get("/thread?id=refund").text
        saver.threads.answer("refund", {one.id: "debts"}, replace=True)
        assert "Answer of" not in client.get("/thread?id=refund").text
        html = client.get("/edit?thread=refund&id=").text
        assert "newest checkpoint" in html


def test_one_decision_for_each_action_in_order():
    requests = [request(to="a"), request("ask"), request("drop"), request("log")]
    configs = [
        review("approve", "edit"),
        review("respond", name="ask"),
        review("reject", name="drop"),
    ]
    question = asked(
        {"action_requests": requests, "review_configs": [*configs, review("approve", name="log")]}
    )
    assert [one.allowed for one in actions_of(question)] == [
        ("approve", "edit"),
        ("respond",),
        ("reject",),
        ("approve",),
    ]
    given = {"decision-0": "edit", "args-0": '{"to": "c"}', "decision-1": "respond"}
    given |= {"message-1": " 42 ", "decision-2": "reject", "message-2": "", "decision-3": "approve"}
    assert answer_of(question, given) == {
        "decisions": [
            {"type": "edit", "edited_action": {"name": "mail", "args": {"to": "c"}}},
            {"type": "respond", "message": "42"},
            {"type": "reject"},
            {"type": "approve"},
        ]
    }
    wrong = [
        ({"decision-0": "reject"}, "mail"),  # not allowed here
        ({"decision-3": ""}, "log"),
        ({"args-0": "[1]"}, "object"),
        ({"args-0": "{"}, "JSON"),
        ({"message-1": " "}, "ask"),
    ]
    for change, says in wrong:
        with pytest.raises(InvalidArgumentError, match=says):
            answer_of(question, {**given, **change})


def test_requests_without_a_review_are_shown_as_they_are():
    for value in (
        {"action_requests": [request()], "review_configs": []},
        {"action_requests": [request(), 7], "review_configs": [review("approve")]},
        {"action_requests": [request()], "review_configs": [review()]},
        {"action_requests": [], "review_configs": []},
        {"action_requests": [request()], "review_configs": [{"action_name": []}]},
        {"action_requests": [request(7)], "review_configs": [review("approve", name=7)]},
    ):
        assert actions_of(asked(value)) == ()
        assert answer_of(asked(value), {"answer": "yes"}) == "yes"


def test_an_approval_of_one_call():
    value = {"type": "tool_approval", "name": "mail", "args": {"to": "a"}, "description": "Mail"}
    types = [{"properties": {"type": {"const": one}}} for one in ("approve", "reject")]
    question = asked(value, {"$defs": {"A": types[0]}, "oneOf": [types[1]]})
    assert actions_of(question)[0].allowed == ("approve", "reject")
    assert answer_of(question, {"decision-0": "approve"}) == {"type": "approve"}
    with pytest.raises(InvalidArgumentError):
        answer_of(question, {"decision-0": "edit", "args-0": "{}"})


def test_a_mounted_page_hands_answers_to_the_application():
    with MemorySaver() as saver:
        graph = refund(saver)
        graph.invoke(asks("Please"), named("refund"))
        given = []

        async def on_answer(thread, answers):
            given.append((thread, answers))
            await graph.ainvoke(Command(resume=answers), named(thread))

        page = app(saver, authorize=lambda _: "ann", write=True, on_answer=on_answer)
        client = Client(page, "http://service.example")
        html = client.get("/inbox").text
        csrf = html.partition('"x-threadkeep": "')[2].partition('"')[0]
        first, second = saver.threads.interrupts("refund")

        def send(one, checkpoint, **fields):
            path = f"/inbox/answer?thread=refund&id={one.id}&checkpoint={checkpoint}"
            content = "&".join(f"{name}={value}" for name, value in fields.items())
            return client("POST", path, content=content, x_threadkeep=csrf)

        assert send(first, "other", answer="yes").status_code == 409
        assert given == []
        answer = send(first, first.checkpoint_id, answer="yes")
        assert answer.status_code == 200
        assert "went to the application" in answer.text
        assert given == [("refund", {first.id: "yes"})]
        assert send(first, first.checkpoint_id, answer="again").status_code == 409
        assert send(second, second.checkpoint_id, answer="7", **{"as": "json"}).status_code == 200
        assert given[-1] == ("refund", {second.id: 7})
        assert len(asyncio.run(graph.aget_state(named("refund"))).values["approved"]) == 2


def test_a_page_without_write_takes_no_answers():
    with MemorySaver() as saver:
        approval(saver).invoke(asks("Please"), named("mail"))
        client = Client(app(saver, authorize=lambda _: "ann"), "http://service.example")
        html = client.get("/inbox").text
        assert "send_mail" in html
        assert "textarea" not in html
        (one,) = saver.threads.interrupts("mail")
        path = f"/inbox/answer?thread=mail&id={one.id}&checkpoint={one.checkpoint_id}"
        assert client("POST", path, content="decision-0=approve").status_code == 403
