"""Objects of classes that a process lacks can be shown, and never be stored."""

from __future__ import annotations

import enum
import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import attrs
import pydantic
import pydantic.v1
import pytest
from langchain_core.messages import AIMessage, HumanMessage

from threadkeep.codec import NativeCodec, Registry
from threadkeep.codec.raw import Raw, RawCodec
from threadkeep.diff.records import plain
from threadkeep.diff.values import differences
from threadkeep.errors import CorruptionError, UnknownTypeError, UnserializableError

HERE = f"{__name__}.made.<locals>."


def made() -> dict[str, tuple[Any, Any]]:
    """Values of classes that no other process has, and the parts that are shown of each."""

    class Model(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        a: int = 1
        key: pydantic.SecretStr = pydantic.SecretStr("hush")

    class OldModel(pydantic.v1.BaseModel):
        a: int = 1

    class Mine(AIMessage):
        mood: str = "calm"

    @dataclass
    class Record:
        a: Any = 1

    @attrs.define
    class Attrs:
        a: int = 1

    class Point(NamedTuple):
        a: int = 1

    class Colour(enum.Enum):
        RED = 1

    class Access(enum.Flag):
        READ = 1
        WRITE = 2

    class Name(str):
        __slots__ = ()

    class LocalError(Exception):
        pass

    return {
        "Model": (Model(b=2), {"a": 1, "key": "**********", "b": 2}),
        "OldModel": (OldModel(), {"a": 1}),
        "Record": (Record(), {"a": 1}),
        "Attrs": (Attrs(), {"a": 1}),
        "Point": (Point(), {"a": 1}),
        "Colour": (Colour.RED, {"value": "RED"}),
        "Access": (Access.READ | Access.WRITE, {"value": 3}),
        "Name": (Name("ann"), {"value": "ann"}),
        "LocalError": (LocalError("no", 2), {"args": ["no", 2]}),
        "Mine": (Mine("yes"), {**plain(AIMessage("yes")), "mood": "calm"}),
    }


def raw(value: Any) -> Any:
    """A value as a process without its classes reads it."""
    return RawCodec(Registry()).decode(NativeCodec(Registry()).encode(value))


@pytest.mark.parametrize("name", made())
def test_an_object_is_shown_by_its_parts(name):
    value, parts = made()[name]
    assert plain(raw(value)) == {"__class__": HERE + name, **parts}
    with pytest.raises(UnknownTypeError):
        NativeCodec(Registry()).decode(NativeCodec(Registry()).encode(value))


def test_objects_within_objects_keys_and_sets():
    colour, record = made()["Colour"][0], made()["Record"][0]
    record.a = [{colour: 1}, {colour}, HumanMessage("hi", additional_kwargs={"at": colour})]
    found = raw([record, 1])
    assert found[1] == 1
    keys, members, message = found[0]["a"]
    assert type(message) is HumanMessage
    shown = {"__class__": f"{HERE}Colour", "value": "RED"}
    assert [plain(*keys), plain(*members), plain(message.additional_kwargs["at"])] == [shown] * 3
    assert raw(colour) == raw(colour)


def test_deep_objects_are_read_once():
    cls = type(made()["Record"][0])
    value = None
    for _ in range(40):  # (a decoder that read the parts twice would need hours)
        value = cls(value)
    assert plain(raw(value))["a"]["a"]["__class__"] == f"{HERE}Record"


def test_what_was_read_raw_cannot_be_stored():
    found = raw(made()["Record"][0])
    for codec in (NativeCodec(), RawCodec(), RawCodec().with_allowlist([("a", "B")])):
        with pytest.raises(UnserializableError):
            codec.encode([found])


def test_a_pickle_is_not_loaded():
    data = NativeCodec(Registry(), pickle_fallback=True).encode(range)
    found = plain(RawCodec(Registry()).decode(data))
    assert (found["__class__"], found["bytes"]) == ("pickle", len(pickle.dumps(range, protocol=5)))


def test_a_foreign_object_is_shown_as_it_was_encoded():
    registry, odd = Registry(), made()["Record"][0]
    registry.register(type(odd), encode=lambda one: [one.a], decode=type(odd))
    found = RawCodec(Registry()).decode(NativeCodec(registry).encode(odd))
    assert plain(found) == {"__class__": f"{HERE}Record", "value": [1]}


def test_damage_stays_an_error():
    data = NativeCodec(Registry()).encode(made()["Record"][0])
    with pytest.raises(CorruptionError):
        RawCodec(Registry()).decode(data[:-1])


def test_raw_objects_are_compared_part_by_part():
    record = made()["Record"][0]
    before = raw([record, made()["Name"][0]])
    record.a = 2
    after = raw([record, made()["Name"][0]])
    (change,) = differences(before, after, RawCodec().encode)
    assert (change.after_at, change.before, change.after) == ((0, "a"), 1, 2)
    assert type(before[0]) is Raw
