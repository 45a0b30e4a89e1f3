"""Messages, models, dataclasses and attrs are rebuilt from their fields, without their code."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import codec_models as m
import pytest
from codec_same import same
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    FunctionMessageChunk,
    HumanMessage,
    ToolMessage,
    ToolMessageChunk,
)
from langgraph.types import Send

from threadkeep._core.codec import NativeCodec
from threadkeep._core.codec.coders import PlainPacker
from threadkeep._core.codec.format import CODES, HOMES
from threadkeep._core.codec.langchain_types import FIELD_CODECS, MODELS, FieldCodec
from threadkeep.errors import NewerFormatError

CODEC = NativeCodec()
CALL = {"name": "search", "args": {"q": "x", "n": (1, 2)}, "id": "call-1"}
USAGE = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}


def check(value: Any) -> bytes:
    data = CODEC.encode(value)
    back = CODEC.decode(data)
    assert same(value, back), (value, back)
    assert CODEC.encode(back) == data
    nested = CODEC.decode(CODEC.encode([{"k": value}]))
    assert same([{"k": value}], nested)
    return data


def with_id_set_later() -> HumanMessage:
    message = HumanMessage("hi")
    message.id = "later"
    return message


def mutated() -> AIMessage:
    message = AIMessage("hi")
    message.additional_kwargs["added"] = (1,)
    message.tool_calls.append({**CALL, "type": "tool_call"})
    return message


MESSAGES = [
    HumanMessage("hi"),
    HumanMessage("hi", id="1", name="n"),
    HumanMessage([{"type": "text", "text": "t"}, "plain"], id="1"),
    HumanMessage("hi", custom="extra", other=(1, 2)),
    HumanMessage("hi", additional_kwargs={}, response_metadata={}, id=None),
    HumanMessage("", name="", id=""),
    with_id_set_later(),
    mutated(),
    AIMessage("hi"),
    AIMessage("", tool_calls=[CALL], usage_metadata=USAGE, id="1"),
    AIMessage("", tool_calls=[], invalid_tool_calls=[]),
    AIMessage("x", response_metadata={"model": "m"}, additional_kwargs={"k": {1: 2}}),
    AIMessage(
        "",
        invalid_tool_calls=[
            {"name": "f", "args": "{", "id": None, "error": "e", "type": "invalid_tool_call"}
        ],
    ),
    ToolMessage("r", tool_call_id="c"),
    ToolMessage("r", tool_call_id="c", status="error", artifact={"rows": {1, 2}}, name="t"),
    ChatMessage("c", role="critic"),
    FunctionMessage("f", name="fn"),
    AIMessageChunk("a", tool_call_chunks=[{"name": "f", "args": "{}", "id": "c", "index": 0}]),
    AIMessageChunk("a", chunk_position="last", usage_metadata=USAGE),
    ToolMessageChunk("t", tool_call_id="c"),
    FunctionMessageChunk("f", name="fn"),
    Document("text", metadata={"page": 1}, id="d"),
    m.MyMessage("hi", mood="glad"),
    m.MyDocument("text", score=0.5),
    m.MySerializable(value=3),
    HumanMessage("text").text,
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda x: type(x).__name__)
def test_messages_come_back_exactly(message) -> None:
    check(message)


@pytest.mark.parametrize("code", sorted(MODELS))
def test_each_known_class_is_where_the_table_says(code) -> None:
    cls = MODELS[code].cls
    assert CODES[f"{cls.__module__}:{cls.__qualname__}"] == code
    assert FIELD_CODECS[code].unnumbered == (), "langchain-core has fields that the table lacks"
    assert FIELD_CODECS[code].bits.keys() == set(cls.model_fields)


def test_codes_are_given_once() -> None:
    assert len({*HOMES.values()}) == len(HOMES)
    assert {*CODES.values()} == HOMES.keys()


def test_a_message_that_is_not_as_its_class_says_goes_the_general_way() -> None:
    message = HumanMessage("hi")
    del message.__dict__["name"]
    check(message)
    incomplete = HumanMessage.model_construct()
    check(incomplete)
    private = HumanMessage("hi")
    private.__dict__["cached"] = 1
    assert "cached" not in CODEC.decode(CODEC.encode(private)).__dict__


def test_equal_type_texts_need_not_be_the_same_object() -> None:
    message = HumanMessage("hi")
    message.__dict__["type"] = "human ".strip()
    assert CODEC.encode(message) == CODEC.encode(HumanMessage("hi"))
    message.__dict__["type"] = "other"
    check(message)


def test_a_small_message_takes_few_bytes() -> None:
    data = CODEC.encode(HumanMessage("hi", id=str(uuid.uuid4())))
    assert len(data) <= 2 + 36 + 10


def test_empty_containers_of_other_types_are_not_taken_for_defaults() -> None:
    message = HumanMessage("hi")
    message.__dict__["additional_kwargs"] = m.Config()
    assert type(check(message)) is bytes
    message = AIMessage("hi")
    message.__dict__["tool_calls"] = ()
    check(message)
    message.__dict__["name"] = False
    check(message)


def test_fields_that_a_newer_langchain_added_take_part(monkeypatch) -> None:
    fields = [field for field in MODELS[1].fields if field[0] != "name"]
    older = FieldCodec(1, MODELS[1]._replace(fields=tuple(fields)))
    assert older.unnumbered == ("name",)
    monkeypatch.setitem(FIELD_CODECS, 1, older)
    assert same(older.decode(0b110, ["hi", "id"]), HumanMessage("hi", id="id"))
    assert older.encode(HumanMessage("hi"), PlainPacker()) is not None
    assert older.encode(HumanMessage("hi", name="n"), PlainPacker()) is None


def test_fields_that_the_class_has_lost_are_dropped() -> None:
    model = MODELS[1]
    content, id_, *rest = model.fields
    longer = type(FIELD_CODECS[1])(1, model._replace(fields=(content, id_, ("gone", None), *rest)))
    back = longer.decode(0b111 << 1, ["hi", "id", "old"])
    assert same(back.__dict__, HumanMessage("hi", id="id").__dict__)


def test_unknown_field_bits_are_from_a_newer_release() -> None:
    with pytest.raises(NewerFormatError, match="Upgrade"):
        FIELD_CODECS[1].decode(1 << 20, [])


# -- models ----------------------------------------------------------------------------


def with_private() -> m.Person:
    person = m.Person(name="a")
    person._secret = "changed"
    person._later = 3
    return person


def with_bypassed_validation() -> m.Person:
    person = m.Person(name="a")
    person.__dict__["name"] = "invalid"
    person.__dict__["age"] = "not an int"
    return person


def reordered() -> m.Ordered:
    value = m.Ordered(a=1, b=2)
    value.move_to_end("a")
    return value


MODEL_VALUES = [
    m.Person(name="a", home=m.Address(street="s"), friends=[m.Person(name="b", age=1)]),
    m.Person(name="a", nickname="extra", age=None),
    m.Person.model_construct(age=3),
    m.Person.model_construct(),
    m.Person.model_construct(_fields_set={"no", "field"}, name="n"),
    with_private(),
    with_bypassed_validation(),
    m.FrozenModel(a={"x": (1, 2)}),
    m.Numbers([1, 2]),
    m.OldPerson(name="a"),
    m.OldPerson(name="a", extra=(1,), age=4),
    m.OldPerson.construct(),
    m.OldStrict(a=1, b=m.OldPerson(name="q")),
    m.Task("t", ["x"]),
    m.SubTask("t", parent=m.Task("p")),
    m.Frozen(1, (2,)),
    m.Slotted(1, m.Slotted(2)),
    m.FrozenSlotted(1),
    m.Derived(3),
    m.Box((1, 2)),
    m.Wheel(3, [1]),
    m.Axle(3),
    m.Bike(3, name="b"),
    m.Outer.Inner(1),
    m.Checked(1, [2]),
    reordered(),
]


@pytest.mark.parametrize("value", MODEL_VALUES, ids=lambda x: type(x).__name__)
def test_models_and_records_come_back_exactly(value) -> None:
    check(value)


def test_init_is_not_called_and_need_not_exist() -> None:
    value = object.__new__(m.NoInit)
    value.a = 1
    check(value)


def test_cached_properties_are_computed_again() -> None:
    person, derived = m.Person(name="a"), m.Derived(1)
    before = CODEC.encode([person, derived])
    assert person.greeting
    assert derived.expensive
    assert CODEC.encode([person, derived]) == before
    back, _ = CODEC.decode(before)
    assert "greeting" not in back.__dict__


def test_hashes_of_frozen_attrs_are_computed_again() -> None:
    axle = m.Axle(3)
    before = CODEC.encode(axle)
    assert hash(CODEC.decode(before)) == hash(axle)
    assert CODEC.encode(axle) == before


def test_fields_that_were_added_since_get_the_class_default() -> None:
    old = CODEC.encode([m.Task("t"), m.Address(street="s"), m.OldPerson(name="n"), m.Point(1)])
    for name in (b"tags", b"number", b"age", b"y"):  # as if written before these fields existed
        old = old.replace(
            bytes((0xA0 + len(name),)) + name, bytes((0xA0 + len(name),)) + name.upper()
        )
    task, address, person, point = CODEC.decode(old)
    assert task.tags == []
    assert address.number == 1
    assert person.age == 3
    assert point == m.Point(1)


def test_fields_that_are_gone_are_dropped() -> None:
    data = CODEC.encode(m.Address(street="s")).replace(b"\xa6number", b"\xa6former")
    assert same(CODEC.decode(data).__dict__, {"street": "s", "number": 1})
    slotted = CODEC.encode(m.Slotted(1, 2)).replace(b"\xa1b", b"\xa1c")
    assert not hasattr(CODEC.decode(slotted), "c")


def test_a_value_can_be_stored_by_every_thread_at_once() -> None:
    def turn(i: int) -> bool:
        value = [HumanMessage("hi", id=str(i)), Send("n", {1: m.Task(str(i))})]
        return same(value, CODEC.decode(CODEC.encode(value)))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(turn, range(400)))
