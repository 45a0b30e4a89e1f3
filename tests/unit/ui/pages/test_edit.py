"""Values as text to edit: only what JSON keeps exactly."""

import threading
from collections import OrderedDict
from datetime import UTC, datetime

import pytest
from kit.asgi import Client
from kit.places import THREAD
from kit.rows import place, put, value_at
from langchain_core.messages import AIMessage, HumanMessage

from threadkeep import MemorySaver
from threadkeep.errors import InvalidArgumentError
from threadkeep.ui import app
from threadkeep.ui.pages import edit
from threadkeep.ui.pages.edit import editable, replaced

EXACT = [None, True, 1, 10**30, 1.0, 1e300, "", "订单\r\n\0", [1, [{}]], {"a": {"b": "ä"}}, []]
ODD = [
    *((1, 2), {1}, b"bytes", {1: 2}, {(1,): 2}, datetime.now(UTC), OrderedDict(a=1)),
    *(float("nan"), float("inf"), "\ud800", {"\ud800": 1}, [HumanMessage("hi")], [b""], True + 1j),
]


@pytest.mark.parametrize("value", EXACT)
def test_what_json_keeps_is_returned_exactly(value):
    found = replaced(value, -1, editable(value)[0])
    assert (repr(found), type(found)) == (repr(value), type(value))


@pytest.mark.parametrize("value", ODD)
def test_what_json_loses_is_refused(value):
    with pytest.raises(InvalidArgumentError, match="JSON cannot keep"):
        editable(value)
    with pytest.raises(InvalidArgumentError):
        replaced(value, -1, "1")


def test_a_value_that_is_too_deep_or_too_long_is_refused():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, "x" * 300_000):
        with pytest.raises(InvalidArgumentError):
            editable(value)


def test_a_value_that_is_too_long_is_not_encoded_to_its_end():
    class Counted(list):
        read = 0

        def __iter__(self):
            for one in super().__iter__():
                self.read += 1
                yield one

    value = Counted(["x" * 1000] * 10_000)
    with pytest.raises(InvalidArgumentError, match="too long"):
        editable(value)
    assert value.read < 300


def test_values_are_encoded_beside_the_event_loop(monkeypatch):
    encode, used = edit._exact, []

    def called(*given):
        used.append(threading.current_thread())
        return encode(*given)

    monkeypatch.setattr(edit, "_exact", called)
    with MemorySaver() as saver:
        id = put(saver, place(), {"a": 1})["configurable"]["checkpoint_id"]
        client = Client(app(saver, authorize=lambda _: "ann", write=True))
        path = f"/edit?thread={THREAD}&channel=a&id={id}"
        csrf = client.get(path).text.partition('"x-threadkeep": "')[2].partition('"')[0]
        client("POST", path, content="value=2", x_threadkeep=csrf)
        assert value_at(saver, place(), "a") == 2
    assert len(used) == 3  # (shown, the old value again, the new one)
    assert threading.current_thread() not in used


@pytest.mark.parametrize("text", ["", "{", "NaN", "1e999", '"\\ud800"', "[" * 100_000, "1 2"])
def test_text_that_is_not_json_is_refused(text):
    with pytest.raises(InvalidArgumentError, match="JSON"):
        replaced(1, -1, text)


def test_only_the_content_of_a_message_changes():
    calls = [{"name": "find", "args": {"n": 1}, "id": "c", "type": "tool_call"}]
    said = [
        HumanMessage("hi", id="q"),
        AIMessage([{"type": "text", "text": "a"}], tool_calls=calls),
    ]
    plain, blocks = editable(said, 0), editable(said, 1)
    assert (plain, blocks[1]) == (("hi", False), True)
    assert replaced(said, 0, plain[0]) == replaced(said, 1, blocks[0]) == said
    assert replaced(said, 0, "one\r\ntwo")[0] == HumanMessage("one\ntwo", id="q")
    changed = replaced(said, 1, '[{"type": "text", "text": "b"}]')
    assert (changed[0], changed[1].text, changed[1].tool_calls) == (said[0], "b", calls)
    assert said[1].text == "a"
    odd = [HumanMessage("one\rtwo")]
    assert editable(odd, 0)[1], "a browser would change the line break"
    assert replaced(odd, 0, editable(odd, 0)[0]) == odd
    for at in (2, 10**8):
        with pytest.raises(InvalidArgumentError):
            replaced(said, at, "text")
