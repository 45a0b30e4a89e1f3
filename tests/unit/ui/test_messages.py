"""Messages as the page draws them."""

from __future__ import annotations

import base64
import json

from kit.graphs_to_look_at import PIXEL
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from threadkeep.threads.messages import message
from threadkeep.ui.messages import brief, bubbles, settled


def drawn(*messages):
    return bubbles([message(one) for one in messages], 0)


def calls(*ids):
    return AIMessage("", tool_calls=[{"name": "find", "args": {}, "id": id} for id in ids])


def result(id):
    return ToolMessage(f"of {id}", tool_call_id=id)


def parts(*messages):
    return [(one.kind, one.body) for each in drawn(*messages) for one in each.parts]


def test_results_stand_under_their_calls():
    again = drawn(calls("a", "b"), result("b"), result("a"), calls("a"), result("a"), result("c"))
    assert [one.back for one in again] == [6, 3, 1], "a result of no call stands alone"
    assert [one.result.back for one in again[0].calls] == [4, 5]
    assert again[1].calls[0].result.back == 2, "an id may be used again"


def test_messages_that_a_later_one_may_change():
    def count(*messages):
        return settled([message(one) for one in messages])

    human = HumanMessage("hi")
    assert count(human, calls("a"), result("a"), human) == 4
    assert count(human, calls("a", "b"), result("a"), calls("c"), result("c")) == 1
    assert count(human, calls("a"), human) == 3, "this call was given up"


def test_json_is_indented_and_data_in_it_shortened():
    data = base64.b64encode(bytes(range(256)) * 4).decode()
    shown = parts(ToolMessage(json.dumps({"a": [1], "b": data}), tool_call_id="x"))
    assert shown == [("json", '{\n  "a": [\n    1\n  ],\n  "b": "(base64, 1.0 kB)"\n}')]
    assert parts(AIMessage('{"a": ')) == [("html", '<p>{"a":</p>\n')]


def test_pictures_have_a_limit_for_all_of_an_answer():
    png = base64.b64decode(PIXEL)
    large = base64.b64encode(png + bytes(1_400_000)).decode()
    block = {"type": "image", "base64": large, "mime_type": "image/png"}
    kinds = [kind for kind, _ in parts(*[HumanMessage([block]) for _ in range(3)])]
    assert kinds == ["note", "image", "image"], "the newest are shown"
    assert parts(ToolMessage(PIXEL, tool_call_id="x"))[0][0] == "image"


def test_markdown_has_a_limit_for_all_of_an_answer():
    long = "*a* b " * 3000
    kinds = [kind for kind, _ in parts(*[AIMessage(long) for _ in range(7)])]
    assert kinds == ["text", "text", *["html"] * 5]
    assert parts(AIMessage(long * 2))[0][0] == "text"


def test_texts_have_a_limit_for_all_of_an_answer():
    shown = [each.parts[0] for each in drawn(*[AIMessage("x" * 150_000) for _ in range(12)])]
    assert [len(one.body) for one in shown] == [1001, 1001, *[100_001] * 10]
    assert all(one.is_cut for one in shown)


def test_arguments_have_a_brief_form():
    named = {"name": "find", "args": {"q": "two\nwords", "n": 3, "deep": {"a": 1}}, "id": "c"}
    assert drawn(AIMessage("", tool_calls=[named]))[0].calls[0].brief == 'two words, 3, {"a": 1}'


def test_values_that_json_has_no_words_for():
    deep = "[" * 900 + "]" * 900
    named = {"name": "find", "args": {"deep": 1}, "id": "c"}
    call = {"role": "ai", "content": deep, "tool_calls": [{**named, "args": deep}]}
    assert [one.kind for one in drawn(call)[0].parts] == ["json"]
    large = {"type": "number", "value": 10**5000}
    assert parts(HumanMessage([large]))[0][0] == "json"
    assert brief(10**5000).startswith("0x")
    values = None, 1.5, "a", [1], {"a": 1}, b"a", {1}
    words = ["None", "1.5", "a", "list, 1", "dict, 1", "bytes, 1", "set"]
    assert [brief(one) for one in values] == words
