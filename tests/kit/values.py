"""Values of every kind that a state may hold, and every way to change one in place."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import attrs
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel, ConfigDict, PrivateAttr

from kit.engine import exactly


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass
class Plain:
    a: Any
    b: Any = None


@dataclass(slots=True)
class Slotted:
    a: Any
    b: Any = None


@dataclass
class Mixed(Slotted):
    """Keeps `a` and `b` in slots and `c` in a dict."""

    c: Any = field(default=None)


@attrs.define
class Attrs:
    a: Any
    b: Any = None


class Model(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: Any
    b: Any = None
    _hidden: Any = PrivateAttr(default=None)


class Pair(NamedTuple):
    a: Any
    b: Any


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, 1.0, 0.0, -0.0, True, "1", b"1", 2**70, float("inf"), "x" * 70]),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.sampled_from([Colour.RED, Decimal("1.0"), UUID(int=7), datetime(2024, 5, 1, tzinfo=UTC)]),
)
KEYS = st.one_of(
    st.text(max_size=3), st.integers(0, 3), st.tuples(st.text(max_size=1), st.booleans())
)


def _containers(parts: Any) -> Any:
    return st.one_of(
        st.lists(parts, max_size=4),
        st.lists(parts, max_size=3).map(tuple),
        st.dictionaries(KEYS, parts, max_size=4),
        st.lists(parts, max_size=3).map(deque),
        st.dictionaries(KEYS, parts, max_size=3).map(OrderedDict),
        st.dictionaries(KEYS, parts, max_size=3).map(lambda items: defaultdict(list, items)),
        st.builds(Plain, parts, parts),
        st.builds(Slotted, parts, parts),
        st.builds(Mixed, parts, parts, parts),
        st.builds(Attrs, parts, parts),
        st.builds(Model, a=parts, extra=parts),
        st.builds(Pair, parts, parts),
        st.builds(
            lambda text, kw: HumanMessage(text, additional_kwargs={"k": kw}),
            st.text(max_size=4),
            parts,
        ),
    )


SETS = st.one_of(st.sets(KEYS, max_size=4), st.frozensets(KEYS, max_size=4))
VALUES = st.recursive(st.one_of(LEAVES, SETS), _containers, max_leaves=12)


# -- changes in place ------------------------------------------------------------------


class Change(NamedTuple):
    """One way to change a value, found by `changes`; `made()` carries it out."""

    what: str
    made: Any


NEW = ("a new object",)


def changes(value: Any) -> list[Change]:
    """Every single change that can be made in place anywhere inside the value."""
    found: list[Change] = []
    met: set[int] = set()
    todo = [value]
    while todo:
        part = todo.pop()
        if id(part) in met:
            continue
        met.add(id(part))
        for cls, (below, ways) in _KINDS.items():
            if isinstance(part, cls):
                todo += below(part)
                found += ways(part)
                break
    return found


def _other(leaf: Any) -> Any:
    """A value that many would take for the same."""
    return _ALIKE.get((type(leaf), leaf), NEW) if type(leaf) in (int, bool, float) else NEW


_ALIKE = {(int, 1): True, (bool, True): 1.0, (float, 1.0): 1, (int, 0): 0.0, (float, 0.0): False}


def _in_list(part: Any) -> list[Change]:
    found = [Change("append", lambda: part.append(NEW))]
    for i, item in enumerate(part):
        found.append(Change("replace", lambda i=i, item=item: part.__setitem__(i, _other(item))))
        found.append(Change("remove", lambda i=i: part.__delitem__(i)))
    if len(part) > 1 and exactly(part[0]) != exactly(part[-1]):
        found.append(
            Change("reorder", part.reverse if len(part) == 2 else lambda: part.append(_pop(part)))
        )
    return found


def _pop(part: Any) -> Any:
    item = part[0]
    del part[0]
    return item


def _in_dict(part: dict[Any, Any]) -> list[Change]:
    found = [Change("add", lambda: part.__setitem__("a new key", None))]
    for key, item in part.items():
        found.append(Change("replace", lambda k=key, v=item: part.__setitem__(k, _other(v))))
        found.append(Change("remove", lambda k=key: part.__delitem__(k)))
        found.append(Change("rename", lambda k=key: _rename(part, k)))
    if len(part) > 1:
        found.append(Change("reorder", lambda: _to_the_end(part)))
    return found


def _rename(part: dict[Any, Any], key: Any) -> None:
    items = [("renamed" if k is key else k, v) for k, v in part.items()]
    part.clear()
    part.update(items)


def _to_the_end(part: dict[Any, Any]) -> None:
    key = next(iter(part))
    part[key] = part.pop(key)


def _in_set(part: set[Any]) -> list[Change]:
    found = [Change("add", lambda: part.add("a new member"))]
    return found + [Change("remove", lambda m=member: part.discard(m)) for member in part]


def _attributes(*names: str) -> Any:
    def ways(part: Any) -> list[Change]:
        return [
            Change(
                f"set {name}", lambda name=name: setattr(part, name, _other(getattr(part, name)))
            )
            for name in names
        ]

    return ways


def _in_model(part: Model) -> list[Change]:
    found = _attributes("a", "b", "_hidden")(part)
    found.append(Change("set more", lambda: setattr(part, "more", NEW)))
    found.append(Change("fields set", lambda: part.model_fields_set.add("b")))
    return found


_KINDS: dict[type, tuple[Any, Any]] = {
    Model: (lambda m: [m.a, m.b, *(m.__pydantic_extra__ or {}).values()], _in_model),
    HumanMessage: (lambda m: [m.additional_kwargs], _attributes("content", "id", "name")),
    AIMessage: (lambda m: [m.additional_kwargs], _attributes("content", "id")),
    Mixed: (lambda m: [m.a, m.b, m.c], _attributes("a", "b", "c")),
    Plain: (lambda m: [m.a, m.b], _attributes("a", "b")),
    Slotted: (lambda m: [m.a, m.b], _attributes("a", "b")),
    Attrs: (lambda m: [m.a, m.b], _attributes("a", "b")),
    list: (list, _in_list),
    deque: (list, _in_list),
    tuple: (list, lambda _: []),
    dict: (lambda d: list(d.values()), _in_dict),
    set: (lambda _: [], _in_set),
}
