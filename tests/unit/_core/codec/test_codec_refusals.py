"""Values that cannot come back exactly are refused on encoding, with a hint."""

import enum
import re
import sys
import threading
import types
from collections import ChainMap, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

import codec_models as m
import numpy as np
import pandas as pd
import pydantic
import pydantic.v1
import pytest
from langchain_core.messages import HumanMessage

from threadkeep._core.codec import NativeCodec, Registry
from threadkeep._core.codec.format import MAX_DEPTH
from threadkeep.errors import UnserializableError

CODEC = NativeCodec()


class OddZone(tzinfo):
    pass


class Open(enum.Enum):
    A = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        member = object.__new__(cls)
        member._name_, member._value_ = f"made_{value}", value
        return member


class Holder:
    def method(self) -> None: ...


def recursive_list() -> list[Any]:
    value: list[Any] = []
    value.append([value])
    return value


def recursive_dict() -> dict[Any, Any]:
    value: dict[Any, Any] = {1: 2}
    value[2] = {"a": value}
    return value


def recursive_dataclass() -> m.Slotted:
    value = m.Slotted(1)
    value.b = (value,)
    return value


def recursive_model() -> m.Person:
    value = m.Person(name="n")
    value.friends.append(value)
    return value


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def deep_objects(levels: int, lists: int = 0) -> Any:
    value: Any = 1
    for _ in range(levels):
        for _ in range(lists):
            value = {"k": value}
        value = m.Slotted(value)
    return value


REFUSED = [
    object(),
    lambda: 1,
    m.function,
    print,
    Holder,
    Holder().method,
    m.Plain(1),
    threading.Lock(),
    (x for x in [1]),
    iter([]),
    Open(7),
    defaultdict(lambda: 1, a=object()),
    type,
    int,
    NotImplemented,
    ...,
    {}.keys(),
    ChainMap(),
    datetime(2026, 1, 1, tzinfo=OddZone()),
    np.array([object()]),
    np.dtype("i4"),
    pd.DataFrame({"a": [object()]}),
    m.Colour,
    pydantic.SecretStr(m.Tagged("t")),
    re.compile(m.Tagged("t")),
    recursive_list(),
    recursive_dict(),
    recursive_dataclass(),
    recursive_model(),
    deep(300),
    deep(100_000),
    deep_objects(MAX_DEPTH + 1),
    deep_objects(1000),
    deep_objects(60, 250),
]


@pytest.mark.parametrize("value", REFUSED, ids=lambda v: type(v).__name__)
def test_what_cannot_come_back_is_refused(value) -> None:
    wrapped = [value, [value], {"k": value}, {1: value}, (value,), m.Slotted(value)]
    for whole in [*wrapped, HumanMessage("x", custom=value)]:
        with pytest.raises(UnserializableError) as caught:
            CODEC.encode(whole)
        assert str(caught.value)


def test_the_error_names_the_type_and_the_way_out() -> None:
    with pytest.raises(UnserializableError, match=r"codec_models\.Plain") as caught:
        CODEC.encode({"a": [m.Plain(1)]})
    assert "threadkeep.register(Plain" in caught.value.hint
    assert "pickle_fallback" in caught.value.hint


class Slots(pydantic.BaseModel):
    __slots__ = ("extra",)
    a: int = 1


class OldSlots(pydantic.v1.BaseModel):
    __slots__ = ("extra",)
    a: int = 1


class InheritedSlots(Slots):
    b: int = 2


class NoSlots(pydantic.BaseModel):
    __slots__ = ()
    a: int = 1


@pytest.mark.parametrize("kind", [Slots, OldSlots, InheritedSlots])
@pytest.mark.parametrize("pickle_fallback", [False, True])
def test_a_model_with_slots_of_its_own_is_refused(kind, pickle_fallback) -> None:
    value = kind()
    object.__setattr__(value, "extra", "kept?")
    codec = NativeCodec(pickle_fallback=pickle_fallback)
    for whole in (value, [value], {1: (value,)}, m.Slotted(value)):
        with pytest.raises(UnserializableError, match="__slots__ besides its fields: extra"):
            codec.encode(whole)
    assert CODEC.decode(CODEC.encode(NoSlots(a=2))) == NoSlots(a=2)


@dataclass
class Sheet:
    a: int = 5


class Shape(enum.Enum):
    ROUND = 1


class Holder:
    class Inner(pydantic.BaseModel):
        a: int = 5


def anew(cls: Any) -> Any:
    """Define another class with the same name, as a notebook cell that runs again does."""
    if cls is Shape:
        return enum.Enum("Shape", {"SQUARE": 1}, module=__name__)
    made = pydantic.create_model(cls.__name__, __module__=__name__, b=(int, 2))
    made.__qualname__ = cls.__qualname__
    return made


@pytest.mark.parametrize("value", [Sheet(), Shape.ROUND, Holder.Inner()])
@pytest.mark.parametrize("met_before", [False, True])
@pytest.mark.parametrize("pickle_fallback", [False, True])
def test_a_value_of_a_class_that_was_defined_anew_is_refused(
    value, met_before, pickle_fallback, monkeypatch
) -> None:
    codec = NativeCodec(Registry(), pickle_fallback=pickle_fallback)
    if met_before:
        assert codec.decode(codec.encode([value])) == [value]
    cls = type(value)
    scope = Holder if cls is Holder.Inner else sys.modules[__name__]
    monkeypatch.setattr(scope, cls.__name__, anew(cls))
    for whole in (value, [value], {1: (value,)}):
        with pytest.raises(UnserializableError, match=cls.__qualname__):
            codec.encode(whole)
    monkeypatch.undo()
    assert codec.decode(codec.encode([value])) == [value]


def test_a_value_of_a_module_that_was_imported_anew_is_refused(monkeypatch) -> None:
    value, codec = m.Task("t"), NativeCodec(Registry())
    assert codec.decode(codec.encode(value)) == value
    again = types.ModuleType(m.__name__)
    again.Task = anew(m.Task)
    monkeypatch.setitem(sys.modules, m.__name__, again)
    with pytest.raises(UnserializableError, match="another class now"):
        codec.encode(value)


def test_a_registered_class_needs_no_name(monkeypatch) -> None:
    registry = Registry()
    registry.register(Sheet)
    monkeypatch.setattr(sys.modules[__name__], "Sheet", anew(Sheet))
    codec = NativeCodec(registry)
    value = registry.named[f"{__name__}:Sheet"]()
    assert codec.decode(codec.encode([value])) == [value]


def test_nesting_within_the_limits_is_stored() -> None:
    for value in (deep(250), deep_objects(MAX_DEPTH), deep_objects(40, 2), deep_objects(3, 240)):
        assert CODEC.decode(CODEC.encode(value)) == value


def test_an_error_inside_leaves_the_codec_as_it_was() -> None:
    for _ in range(3):
        with pytest.raises(UnserializableError):
            CODEC.encode([m.Slotted(object())])
        assert CODEC.decode(CODEC.encode([m.Slotted(1)])) == [m.Slotted(1)]


def test_what_an_interruption_raises_is_not_lost(monkeypatch) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CODEC.encode([m.Slotted(1)], interrupt)


def test_times_in_utc_need_no_name() -> None:
    assert len(CODEC.encode(datetime(2026, 1, 1, tzinfo=UTC))) <= 20
