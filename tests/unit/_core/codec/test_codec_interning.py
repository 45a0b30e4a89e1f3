"""Objects that are stored already are encoded as references."""

from typing import Any

import codec_models as m
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.types import Command

from threadkeep._core.codec import NativeCodec
from threadkeep.errors import CorruptionError

CODEC = NativeCodec()


class Log:
    """Interns objects by identity, as the engine does."""

    def __init__(self, *stored: object) -> None:
        self.stored = list(stored)
        self.asked: list[object] = []

    def intern(self, value: object) -> tuple[int, int] | None:
        self.asked.append(value)
        for position, known in enumerate(self.stored):
            if known is value:
                return 7, position
        return None

    def resolve(self, log: int, position: int) -> Any:
        assert log == 7
        return self.stored[position]


def test_known_objects_are_referred_to_at_any_depth() -> None:
    known = HumanMessage("x" * 1000)
    value = {"a": [Command(update={"messages": [known, AIMessage("new")]})], "b": (known,)}
    log = Log(known)
    data = CODEC.encode(value, log.intern)
    assert len(data) < 200
    back = CODEC.decode(data, log.resolve)
    assert back == value
    assert back["b"][0] is known
    assert CODEC.decode_many([data, data], log.resolve) == [value, value]


def test_the_value_itself_is_never_a_reference() -> None:
    known = HumanMessage("hi")
    log = Log(known)
    assert CODEC.encode(known, log.intern) == CODEC.encode(known)
    assert log.asked == []


def test_only_objects_are_asked_for() -> None:
    objects = [HumanMessage("m"), m.Task("t"), m.Wheel(1), m.Address(street="s"), m.OldStrict(a=1)]
    plain = [(1,), {1}, m.Point(1), m.Colour.RED, m.Tagged("t"), 2**70]
    log = Log()
    CODEC.encode([objects, plain], log.intern)
    assert log.asked == objects
    CODEC.encode([objects, plain, {1: 2}], log.intern)  # a second attempt asks again
    assert all(any(asked is known for known in objects) for asked in log.asked)


def test_positions_may_be_large() -> None:
    data = CODEC.encode([HumanMessage("m")], lambda _: (2**40, 2**50))
    assert CODEC.decode(data, lambda log, position: (log, position)) == [(2**40, 2**50)]


def test_a_reference_needs_something_that_resolves_it() -> None:
    data = CODEC.encode([HumanMessage("m")], lambda _: (1, 2))
    with pytest.raises(CorruptionError, match="refers to another element"):
        CODEC.decode(data)


def test_an_error_of_resolve_reaches_the_caller() -> None:
    def resolve(log: int, position: int) -> Any:
        raise CorruptionError("segment 3 is missing")

    data = CODEC.encode([HumanMessage("m")], lambda _: (1, 2))
    with pytest.raises(CorruptionError, match="segment 3"):
        CODEC.decode(data, resolve)
