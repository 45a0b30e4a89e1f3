"""The state of the graphs, the values in it, and the ways to edit them in place."""

import operator
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, make_dataclass
from functools import cache, reduce
from operator import methodcaller
from typing import Annotated, Any, TypedDict

from langgraph.channels import (
    AnyValue,
    BinaryOperatorAggregate,
    DeltaChannel,
    EphemeralValue,
    Topic,
    UntrackedValue,
)
from langgraph.graph import add_messages
from pydantic import BaseModel, create_model

STEP = 0.0001  # seconds


class Point(BaseModel):
    x: int = 0
    tags: list[Any] = []


@dataclass
class Desk:
    owner: str = "nobody"
    notes: list[Any] = field(default_factory=list)


# -- the state -------------------------------------------------------------------------


class Told:
    """Records edits by LangGraph's own channels in the journal of the current play."""

    edit: Any = None


class ToldTopic(Topic[Any]):
    def update(self, values: Any) -> bool:
        with Told.edit():
            return super().update(values)


def grow(old: list[Any], new: list[Any]) -> list[Any]:
    """`operator.iadd`."""
    with Told.edit():
        return operator.iadd(old, new)


def merge(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    return {**(old or {}), **new}


def extend(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    return reduce(operator.add, writes, state)


@cache
def schema(kind: str, frequency: int, accumulate: bool) -> Any:
    """A state class of this kind, with a channel of every kind."""
    name = f"State_{kind.replace(' ', '_')}_{frequency}_{accumulate}"
    fields: dict[str, Any] = {
        "log": Annotated[list[Any], operator.add],
        "doc": Any,
        "items": Annotated[list[Any], BinaryOperatorAggregate(list, grow)],
        "messages": Annotated[list[Any], add_messages],
        "files": Annotated[dict[str, Any], merge],
        "topic": Annotated[Sequence[Any], ToldTopic(Any, accumulate)],
        "scratch": Annotated[Any, EphemeralValue],
        "handle": Annotated[Any, UntrackedValue],
        "whichever": Annotated[Any, AnyValue],
        "delta": Annotated[list[Any], DeltaChannel(extend, list, snapshot_frequency=frequency)],
    }
    made: Any
    if kind == "typed dict":
        made = TypedDict(name, fields, total=False)  # type: ignore[operator]
    elif kind == "dataclass":
        made = make_dataclass(name, [(n, t, None) for n, t in fields.items()])
    else:
        made = create_model(name, **{n: (t, None) for n, t in fields.items()})
    made.__module__ = __name__
    return globals().setdefault(name, made)  # at module level, as a program's state is


class Passed(TypedDict, total=False):
    """The results of several subgraphs in a step that do not grow by being handed back."""

    messages: Annotated[list[Any], add_messages]
    files: Annotated[dict[str, Any], merge]


class PassedAlone(Passed, total=False):
    doc: Any


def read(state: Any, name: str) -> Any:
    return state.get(name) if isinstance(state, dict) else getattr(state, name, None)


# -- values ----------------------------------------------------------------------------

_MAKE: tuple[Callable[[int], Any], ...] = (
    lambda n: [{"i": i, "text": "x" * (i % 7), "state": "idle"} for i in range(n)],
    lambda n: {f"key {i}": i for i in range(n)},
    lambda n: {f"key {i}" for i in range(n)},
    lambda n: OrderedDict((f"key {i}", [i]) for i in range(n)),
    lambda n: deque(range(n)),
    lambda n: {"rows": [{"cells": [{"v": i}]} for i in range(n)], "n": 0},
    lambda n: Point(x=n, tags=[{"t": i} for i in range(n)]),
    lambda n: Desk("ada", [Point(x=i) for i in range(n)]),
    lambda n: [Desk("bob"), {"set": set(range(n))}, [deque([1, 2])]],
    lambda n: bytearray(b"abc" * n),
    lambda n: ("tuple", [n]),
    lambda n: "text" * n,
)


def make(number: int, size: int) -> Any:
    return _MAKE[number % len(_MAKE)](size)


def edit(value: Any, number: int) -> Iterator[None]:
    """Edit a value in place, if it can be; each step but the last ends with a yield.

    A step is one call in C, in which no other thread runs: a save may rightly store the state in
    the middle of several, unknown to the journal.

    The types that LangGraph's saver returns (a list for a tuple, bytes for a bytearray) are edited
    alike.
    """
    match value:
        case ["tuple", *_]:
            pass
        case list():
            yield from _edit_list(value, number)
        case dict():
            yield from _edit_dict(value, number)
        case set():
            value.add(f"new {number}")
            yield
            value.discard("key 0")
        case deque():
            value.append(number)
            yield
            value.rotate(1)
        case Point():
            value.x += 1
            yield
            yield from _edit_list(value.tags, number)
        case Desk():
            value.owner = f"owner {number}"
            yield
            yield from _edit_list(value.notes, number)
        case _:
            pass


def _edit_list(value: list[Any], number: int) -> Iterator[None]:
    for i in range(0, len(value), max(1, len(value) // 3)):
        yield from edit(value[i], number)
        yield
    value.append(number)
    yield
    if number % 3 == 0:
        value.pop(0)
    elif number % 3 == 1:
        value.reverse()


def _edit_dict(value: dict[Any, Any], number: int) -> Iterator[None]:
    value[f"new {number}"] = [number]
    yield
    first = next(iter(value))
    kept = value.pop(first)
    yield
    value[first] = kept
    yield
    yield from edit(next(iter(value.values())), number)
    if number % 3 == 0 and len(value) > 2:
        yield
        del value[next(iter(value))]


def flip(value: Any) -> Iterator[None]:
    """Change many places and change them back, so that only intermediate states differ."""
    parts = value if isinstance(value, list) else [value]
    flags = [part for part in parts if isinstance(part, dict)]
    for state in ("busy", "idle"):
        deque(map(methodcaller("update", state=state), flags), maxlen=0)
        yield
        yield


def steps(edits: Iterable[None]) -> None:
    """Carry out an edit, each step as one in the journal, with time for other threads between."""
    iterator = iter(edits)
    more = True
    while more:
        with Told.edit():
            more = next(iterator, iterator) is None
        time.sleep(STEP)
