"""LangGraph's own payloads come back as LangGraph returns them, by our rules for loading."""

import datetime as dt
import ipaddress
import json
import os
import pathlib
import re
import subprocess
import sys
import uuid
from collections import deque
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import codec_models as m
import numpy as np
import ormsgpack
import pydantic
import pydantic.v1
import pytest
from codec_same import same
from langchain_core.documents import Document
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langgraph.checkpoint.serde import _msgpack as langgraph_msgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item
from langgraph.types import Command, Interrupt, Overwrite, Send, TimeoutPolicy

from threadkeep._core.codec import NativeCodec, Registry
from threadkeep._core.codec.langgraph_payloads import Shared, decode_langgraph
from threadkeep.errors import CodecError, CorruptionError, UnknownTypeError

CODEC = NativeCodec()
LANGGRAPH = JsonPlusSerializer(
    allowed_msgpack_modules=[
        (cls.__module__, cls.__name__)
        for cls in vars(m).values()
        if isinstance(cls, type) and cls.__module__ == m.__name__
    ]
    + [
        ("pydantic.types", "SecretStr"),
        ("pydantic.v1.types", "SecretStr"),
        ("langgraph.checkpoint.serde.types", "_DeltaSnapshot"),
        ("pathlib", "PurePosixPath"),
    ]
)
NOON = dt.datetime(2026, 6, 1, 12, 30, tzinfo=dt.UTC)

VALUES = [
    None,
    b"bytes",
    bytearray(b"ba"),
    {"a": [1, 2.5, "x", None, True], 2: "int key", "t": (1, 2)},
    HumanMessage("hi", id="1", custom="extra"),
    [AIMessage("", tool_calls=[{"name": "f", "args": {"a": 1}, "id": "c"}]), AIMessageChunk("x")],
    ToolMessage("r", tool_call_id="c", artifact={"x": 1}, status="error"),
    Document("text", metadata={"page": 1}),
    {1, "a"},
    frozenset({1}),
    deque([1, 2]),
    uuid.UUID(int=3),
    Decimal("1.50"),
    NOON,
    NOON.replace(tzinfo=ZoneInfo("Asia/Tokyo")),
    dt.date(2026, 1, 2),
    dt.time(1, 2, 3, 4, tzinfo=dt.UTC, fold=1),
    dt.timedelta(days=1, seconds=2),
    dt.timezone(dt.timedelta(hours=1), "x"),
    ZoneInfo("Asia/Tokyo"),
    ipaddress.ip_address("::1"),
    ipaddress.ip_network("10.0.0.0/8"),
    ipaddress.ip_interface("10.0.0.1/8"),
    pathlib.Path("/a/b"),
    re.compile("a", re.IGNORECASE),
    pydantic.SecretStr("s"),
    pydantic.v1.SecretStr("s"),
    m.Colour.RED,
    m.Level.LOW,
    m.Size.LARGE,
    m.Access.READ | m.Access.RUN,
    m.Task("t", ["x"]),
    m.SubTask("t", parent=m.Task("p")),
    m.Frozen(1),
    m.Slotted(1, 2),
    m.Point(1, 2.0),
    m.Person(name="a", home=m.Address(street="s"), friends=[m.Person(name="b")]),
    m.OldPerson(name="a", extra=1),
    Send("n", {"a": [1]}),
    Send("n", 1, timeout=3.0),
    Command(goto="x", update={"a": 1}),
    Interrupt(value=1, id="i"),
    Overwrite([1]),
    TimeoutPolicy(run_timeout=3.0),
    Item(value={"a": 1}, key="k", namespace=("n",), created_at=NOON, updated_at=NOON),
    _DeltaSnapshot([HumanMessage("hi")]),
    np.arange(6).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_payloads_come_back_as_langgraph_gives_them(value) -> None:
    payload = LANGGRAPH.dumps_typed(value)
    expected = LANGGRAPH.loads_typed(payload)
    found = decode_langgraph(*payload, CODEC)
    assert type(found) is type(value)
    if isinstance(value, np.ndarray):
        assert found.tobytes() == expected.tobytes()
        assert found.flags.writeable
    elif isinstance(value, dt.time):
        assert found == value
    else:
        assert same(found, expected) or repr(found) == repr(expected)
    inside = LANGGRAPH.dumps_typed([{"k": value}])
    assert repr(decode_langgraph(*inside, CODEC)) == repr(LANGGRAPH.loads_typed(inside))


@pytest.mark.parametrize(
    "fields",
    [
        {"value": "ok?", "resumable": True, "ns": ["sub:1", "ask:2"], "when": "during"},
        {"value": "ok?", "resumable": False, "ns": None, "when": "during"},
        {"value": "ok?", "when": "before"},
        {"value": "ok?", "id": "i"},
    ],
)
def test_interrupts_of_older_releases_have_an_id(fields) -> None:
    data = extension(2, "langgraph.types", "Interrupt", fields)
    found = decode_langgraph("msgpack", data, CODEC)
    assert found == LANGGRAPH.loads_typed(("msgpack", data))
    assert CODEC.decode(CODEC.encode(found)) == found
    assert repr(found)


@pytest.mark.parametrize("fields", [{}, {"value": 1, "ns": [1]}])
def test_a_damaged_interrupt_is_a_typed_error(fields) -> None:
    with pytest.raises(CorruptionError):
        decode_langgraph("msgpack", extension(2, "langgraph.types", "Interrupt", fields), CODEC)


def test_enum_members_whose_value_was_a_tuple_are_found() -> None:
    payload = LANGGRAPH.dumps_typed(m.Colour.GREEN)
    assert decode_langgraph(*payload, CODEC) is m.Colour.GREEN


def test_models_that_do_not_validate_any_more_come_back_as_they_are() -> None:
    person = m.Person(name="a")
    person.__dict__["name"] = "invalid"
    payload = LANGGRAPH.dumps_typed(person)
    assert decode_langgraph(*payload, CODEC).name == "invalid"


def extension(code: int, *parts: Any) -> bytes:
    return ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(list(parts))))


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("subprocess", "Popen"),
        ("codec_models", "function"),
        ("codec_models", "Plain"),
        ("builtins", "eval"),
        ("antigravity", "geohash"),
        ("builtins", "ValueError"),
    ],
)
def test_nothing_that_a_payload_names_is_imported_or_called(
    monkeypatch, code, module, name
) -> None:
    monkeypatch.setattr(os, "system", lambda _: pytest.fail("called"))
    monkeypatch.setattr(subprocess, "Popen", lambda _: pytest.fail("called"))
    for rest in (("x",), (["x"],), ({"x": 1},), ("x", "mro"), ({"x": 1}, "model_validate_json")):
        with pytest.raises(CodecError):
            decode_langgraph("msgpack", extension(code, module, name, *rest), CODEC)
    assert "antigravity" not in sys.modules


def test_methods_other_than_the_one_that_langgraph_writes_are_refused() -> None:
    for method in ("strptime", "__class__", "mro"):
        with pytest.raises(UnknownTypeError, match="asks to call"):
            decode_langgraph("msgpack", extension(3, "datetime", "datetime", "x", method), CODEC)


def test_strict_mode_holds_here_too(monkeypatch) -> None:
    payload = LANGGRAPH.dumps_typed([m.Task("t")])
    monkeypatch.setattr(langgraph_msgpack, "STRICT_MSGPACK_ENABLED", True)
    with pytest.raises(UnknownTypeError, match="STRICT"):
        decode_langgraph(*payload, CODEC)
    listed = CODEC.with_allowlist([("codec_models", "Task")])
    assert decode_langgraph(*payload, listed) == [m.Task("t")]


def test_a_moved_class_is_found_by_its_registered_name() -> None:
    registry = Registry()
    registry.register(m.Task, name="old.models:Work")
    data = extension(2, "old.models", "Work", {"name": "t"})
    assert decode_langgraph("msgpack", data, NativeCodec(registry)) == m.Task("t")


def test_pickles_only_where_asked_for() -> None:
    payload = JsonPlusSerializer(pickle_fallback=True).dumps_typed(range(3))
    assert payload[0] == "pickle"
    with pytest.raises(UnknownTypeError, match="pickle"):
        decode_langgraph(*payload, CODEC)
    assert decode_langgraph(*payload, NativeCodec(pickle_fallback=True)) == range(3)


@pytest.mark.parametrize("type_", ["msgpack+aes", "yaml", ""])
def test_other_types_name_the_serializer_to_use(type_) -> None:
    with pytest.raises(UnknownTypeError, match="plain serializer"):
        decode_langgraph(type_, b"", CODEC)


# -- the JSON of older LangGraph releases ----------------------------------------------


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def envelope(*path: str, args: list[Any] | None = None, **kwargs: Any) -> dict[str, Any]:
    found = {"lc": 2, "type": "constructor", "id": list(path), "method": [None, "construct"]}
    return found | ({"args": args} if args else {}) | ({"kwargs": kwargs} if kwargs else {})


@pytest.mark.parametrize(
    "message",
    [
        HumanMessage("hi", id="1"),
        AIMessage("", tool_calls=[{"name": "f", "args": {"a": 1}, "id": "c"}]),
        ToolMessage("r", tool_call_id="c"),
        Document("text", metadata={"a": 1}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_langchain_envelopes(message) -> None:
    data = as_json({"messages": [dumpd(message)]})
    assert decode_langgraph("json", data, CODEC)["messages"] == [message]


JSON_VALUES = [
    (envelope("builtins", "set", args=[[1, 2]]), {1, 2}),
    (envelope("uuid", "UUID", args=["00000000-0000-0000-0000-000000000003"]), uuid.UUID(int=3)),
    (envelope("decimal", "Decimal", args=["1.5"]), Decimal("1.5")),
    (envelope("datetime", "datetime", args=["2026-06-01T12:30:00+00:00"]), NOON),
    (envelope("datetime", "timedelta", args=[1, 2, 3]), dt.timedelta(1, 2, 3)),
    (envelope("pathlib", "PosixPath", args=["/", "a"]), pathlib.Path("/a")),
    (envelope("re", "compile", args=["a", 34]), re.compile("a", re.IGNORECASE)),
    (envelope("ipaddress", "IPv4Address", args=["1.2.3.4"]), ipaddress.ip_address("1.2.3.4")),
    (envelope("codec_models", "Colour", args=[1]), m.Colour.RED),
    (envelope("codec_models", "Task", name="t", tags=["x"]), m.Task("t", ["x"])),
    (envelope("codec_models", "Point", x=1, y=2.0), m.Point(1, 2.0)),
    (envelope("codec_models", "Address", street="s"), m.Address(street="s")),
    (envelope("langgraph.types", "Send", node="n", arg=1), Send("n", 1)),
    (envelope("langgraph.constants", "Send", node="n", arg=1), Send("n", 1)),
    (envelope("langgraph.constants", "Interrupt", value=1, when="during"), Interrupt(1)),
    ({"lc": 3, "plain": [1]}, {"lc": 3, "plain": [1]}),
    ({"type": "constructor", "id": ["a"]}, {"type": "constructor", "id": ["a"]}),
]


@pytest.mark.parametrize(("stored", "expected"), JSON_VALUES)
def test_langgraph_envelopes(stored, expected) -> None:
    found = decode_langgraph("json", as_json([stored]), CODEC)
    assert same(found, [expected]) or found == [expected]


@pytest.mark.parametrize(
    "stored",
    [
        envelope("os", "system", args=["true"]),
        envelope("subprocess", "Popen", args=[["true"]]),
        envelope("antigravity", "geohash", args=[1]),
        envelope("codec_models", "function"),
        {"lc": 1, "type": "constructor", "id": ["langchain", "llms", "OpenAI"], "kwargs": {}},
        {"lc": 1, "type": "constructor", "id": ["other", "HumanMessage"], "kwargs": {}},
        {"lc": 1, "type": "secret", "id": ["API_KEY"]},
        {"lc": 1, "type": "not_implemented", "id": ["a", "b"], "repr": "x"},
    ],
    ids=str,
)
def test_other_envelopes_are_refused(stored) -> None:
    with pytest.raises(UnknownTypeError):
        decode_langgraph("json", as_json([stored]), CODEC)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000])
def test_damaged_json_is_a_typed_error(data) -> None:
    with pytest.raises(CorruptionError):
        decode_langgraph("json", data, CODEC)


def read_in_turn(shared: Shared, *values: Any) -> list[Any]:
    """Decode each value."""
    serde = JsonPlusSerializer()
    return [decode_langgraph(*serde.dumps_typed(value), CODEC, shared) for value in values]


def test_neighbours_share_what_is_the_same() -> None:
    first, second = HumanMessage("a", id="1"), HumanMessage("b", id="2")
    one, two, alone = read_in_turn(Shared(), [first], [first, second], {"of": second})
    assert (one, two, alone) == ([first], [first, second], {"of": second})
    assert two[0] is one[0]
    assert alone["of"] is two[1]


def test_no_object_stands_twice_in_a_payload() -> None:
    task, nested = m.Task("t", ["x"]), Send("node", m.Task("t", ["x"]))
    for one, other, inside in read_in_turn(Shared(), *[[task, task, nested]] * 3):
        assert one == other == inside.arg == task
        assert len({id(one), id(other), id(inside.arg)}) == 3


def test_what_is_shared_is_bounded() -> None:
    shared = Shared(most=1000)
    texts = [HumanMessage("x" * 100, id=str(number)) for number in range(50)]
    (found,) = read_in_turn(shared, texts)
    assert found == texts
    assert 0 < shared._objects.size <= 1000
    assert len([*shared._objects]) < 20


def test_an_array_of_countless_elements_without_bytes_is_refused():
    data = ormsgpack.packb(ormsgpack.Ext(6, ormsgpack.packb(["V0", [10**12], "C", b""])))
    with pytest.raises(CorruptionError, match="stored array"):
        decode_langgraph("msgpack", data, NativeCodec())
