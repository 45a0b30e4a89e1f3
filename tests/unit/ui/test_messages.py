"""Messages as the page draws them."""

import base64
import json
import re

import pytest
from kit.graphs_to_look_at import PIXEL
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from threadkeep.ui.messages import bubbles
from threadkeep.ui.text import markdown


def drawn(*messages):
    return bubbles(messages, 0)


def calls(*ids):
    return AIMessage("", tool_calls=[{"name": "find", "args": {}, "id": id} for id in ids])


def result(id):
    return ToolMessage(f"of {id}", tool_call_id=id)


def parts(*messages):
    return [(one.kind, one.body) for each in drawn(*messages) for one in each.parts]


def test_results_stand_under_their_calls():
    again = drawn(calls("a", "b"), result("b"), result("a"), calls("a"), result("a"), result("c"))
    assert [one.place for one in again] == [0, 3, 5], "a result of no call stands alone"
    assert [one.result.place for one in again[0].calls] == [2, 1]
    assert again[1].calls[0].result.place == 4, "an id may be used again"


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


@pytest.mark.parametrize("to", ["https://a.example/x", "http://a.example", "mailto:a@b.example"])
def test_a_link_names_its_scheme(to):
    assert f'href="{to}"' in markdown(f"[there]({to})")


@pytest.mark.parametrize(
    "to",
    [
        *("//evil.example", "/\\evil.example", "\\\\evil.example", "///evil.example", "/erase"),
        *("inbox", "#x", "?q=1", "javascript:alert(1)", "data:text/html,x", "ftp://evil.example"),
        *("java\tscript:x", "&#47;/evil.example", "%2F%2Fevil.example"),
    ],
)
def test_any_other_link_is_text(to):
    for text in (f"[there]({to})", f"[there](<{to}>)", f"<a href='{to}'>there</a>"):
        assert not re.search("<a[^>]*href", markdown(text))


def test_markdown_has_a_limit_for_all_of_an_answer():
    long = "*a* b " * 3000
    kinds = [kind for kind, _ in parts(*[AIMessage(long) for _ in range(7)])]
    assert kinds == ["text", "text", *["html"] * 5]
    assert parts(AIMessage(long * 2))[0][0] == "text"


def test_markdown_that_would_become_much_more_stays_text():
    table = "a|" * 128 + "\n" + "-|" * 128 + "\n" + "|\n" * 500
    assert parts(AIMessage(table))[0][0] == "text"
    definition = "[a]: http://x/" + "y" * 9000 + "\n\n" + "[a]" * 3000
    assert len(parts(AIMessage(definition))[0][1]) < 20_000


def test_parts_have_a_limit_for_all_of_an_answer():
    calls = [{"name": "f", "args": {}, "id": f"{number}"} for number in range(1500)]
    old, new = drawn(AIMessage(["a"] * 9000), AIMessage("b", tool_calls=calls))
    assert len(new.parts) == 1
    assert len(new.calls) == 1500
    assert len(old.parts) == 500
    assert old.parts[-1].is_cut


def test_texts_have_a_limit_for_all_of_an_answer():
    shown = [each.parts[0] for each in drawn(*[AIMessage("x" * 150_000) for _ in range(12)])]
    assert [len(one.body) for one in shown] == [1001, 1001, *[100_001] * 10]
    assert all(one.is_cut for one in shown)


def test_arguments_have_a_brief_form():
    named = {"name": "find", "args": {"q": "two\nwords", "n": 3, "deep": {"a": 1}}, "id": "c"}
    assert drawn(AIMessage("", tool_calls=[named]))[0].calls[0].brief == (
        "q: two words, n: 3, deep: {…}"
    )


def test_values_that_json_has_no_words_for():
    deep = "[" * 900 + "]" * 900
    named = {"name": "find", "args": {"deep": 1}, "id": "c"}
    call = {"role": "ai", "content": deep, "tool_calls": [{**named, "args": deep}]}
    assert [one.kind for one in drawn(call)[0].parts] == ["json"]
    large = {"type": "number", "value": 10**5000}
    assert parts(HumanMessage([large]))[0][0] == "json"
