"""Instances of classes defined inside functions come back in the process that made them."""

import gc
import weakref
from collections import namedtuple

import pydantic
import pydantic.v1
import pytest
from codec_local_classes import instances, make_classes
from langgraph.checkpoint.serde import _msgpack as langgraph_msgpack

from threadkeep._core.codec import NativeCodec, Registry
from threadkeep._core.codec.registry import LocalClasses
from threadkeep.errors import UnknownTypeError


@pytest.fixture
def codec() -> NativeCodec:
    return NativeCodec(Registry())


def test_instances_come_back(codec) -> None:
    for value in instances(make_classes()).values():
        for whole in (value, [value], {1: (value,)}):
            data = codec.encode(whole)
            back = codec.decode(data)
            assert codec.encode(back) == data
        back = codec.decode(codec.encode(value))
        assert type(back) is type(value)
        assert isinstance(back, Exception) or back == value


def test_classes_that_were_made_by_a_call_come_back(codec) -> None:
    dynamic = pydantic.create_model("Dynamic", a=(int, 1))
    pair = namedtuple("Pair", "a b")  # noqa: PYI024 - as some programs do
    for value in (dynamic(a=2), pair(1, 2)):
        assert codec.decode(codec.encode([value])) == [value]
        assert type(codec.decode(codec.encode(value))) is type(value)


def test_a_name_made_again_is_another_class_and_each_comes_back_as_its_own(codec) -> None:
    first, second, third = (make_classes() for _ in range(3))
    stored = [
        (value, codec.encode(value))
        for classes in (first, second, first, third)
        for value in instances(classes).values()
    ]
    for value, data in stored:
        assert type(codec.decode(data)) is type(value)
        assert codec.encode(value) == data


def test_where_the_class_is_gone_loading_says_so(codec) -> None:
    data = codec.encode(make_classes()["Record"](1))
    with pytest.raises(UnknownTypeError, match=r"make_classes\.<locals>\.Record") as caught:
        NativeCodec(Registry()).decode(data)
    assert "top level" in caught.value.hint


def test_elsewhere_a_numbered_name_stands_for_the_class_of_that_name(codec) -> None:
    make = [make_classes()["Record"] for _ in range(3)]
    data = [codec.encode(cls(5)) for cls in make]
    assert len(set(data)) == 3
    other = NativeCodec(Registry())
    with pytest.raises(UnknownTypeError, match=r"<locals>\.Record, "):
        other.decode(data[2])
    known = make_classes()["Record"]
    other.encode(known(1))
    assert other.decode_many(data) == [known(5)] * 3
    registry = Registry()
    registry.register(known, name=f"{known.__module__}:{known.__qualname__}")
    assert NativeCodec(registry).decode_many(data) == [known(5)] * 3


def test_a_name_of_another_kind_by_now_is_refused(codec) -> None:
    data = codec.encode(make_classes()["Record"](1))
    other = NativeCodec(Registry())
    wrong = pydantic.create_model("Record", __module__=make_classes.__module__, a=(int, 1))
    wrong.__qualname__ = "make_classes.<locals>.Record"
    other.encode(wrong())
    with pytest.raises(UnknownTypeError, match="was stored as dataclass"):
        other.decode(data)


def test_strict_mode_asks_the_list(codec, monkeypatch) -> None:
    monkeypatch.setattr(langgraph_msgpack, "STRICT_MSGPACK_ENABLED", True)
    value = make_classes()["Record"](1)
    make_classes()
    codec.encode(make_classes()["Record"](2))
    data = codec.encode(value)
    assert b"#2" in data
    with pytest.raises(UnknownTypeError, match="STRICT"):
        codec.decode(data)
    assert codec.with_allowlist([(make_classes.__module__, "Record")]).decode(data) == value


def test_the_table_keeps_no_class_alive() -> None:
    table = LocalClasses()
    one, two = make_classes()["Name"], make_classes()["Name"]
    assert (table.name(one, "m:N"), table.name(two, "m:N")) == ("m:N", "m:N#2")
    assert (table.name(one, "m:N"), table.name(two, "m:N")) == ("m:N", "m:N#2")
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None
    assert table.find("m:N") is two
    assert table.find("m:N#2") is two
    assert table.find("m:Other") is None
