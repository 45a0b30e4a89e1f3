"""A shadow notices every single change in place, at any depth, and nothing else."""

from __future__ import annotations

import gc
import threading
from collections import Counter, deque
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace

import numpy as np
import pytest
from engine_kit import exactly
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage

from threadkeep.engine import shadow as shadows
from threadkeep.engine.identity import intact, portable_intact
from threadkeep.engine.shadow import Shadow

from .values import VALUES, Attrs, Mixed, Model, Pair, Plain, Slotted, changes


@pytest.fixture(params=dict.fromkeys([intact, portable_intact]), scope="module", autouse=True)
def _both_ways(request):
    """The compiled comparison, and the same in Python."""
    shadows.intact, before = request.param, shadows.intact
    yield
    shadows.intact = before


@given(st.lists(VALUES, max_size=5))
def test_no_change_holds(elements):
    shadow = Shadow.of(elements)
    gc.collect(0)
    for element in elements:
        exactly(element), repr(element), element == element  # noqa: PLR0124
    assert shadow.holds()
    assert shadow.changed() == set()


class File(type(Path())):  # type: ignore[misc] - of this system
    """A path with an attribute, which is none of a path's own."""


def test_only_paths_themselves_never_change():
    file = File("a")
    file.tags = ["one"]
    shadow = Shadow.of([Path("a"), file])
    assert shadow.opaque == {1}
    assert Shadow.of([Path("a"), PureWindowsPath("b")]).holds()


@given(st.lists(VALUES, min_size=1, max_size=4), st.data())
def test_any_single_change_is_noticed(elements, data):
    where = data.draw(st.integers(0, len(elements) - 1))
    ways = changes(elements[where])
    if not ways:
        return
    before = [exactly(element) for element in elements]
    shadow = Shadow.of(elements)
    way = data.draw(st.sampled_from(ways))
    way.made()
    touched = {i for i, element in enumerate(elements) if exactly(element) != before[i]}
    if touched or way.what == "fields set":
        assert not shadow.holds(), way.what
        assert shadow.changed() >= touched
    if len({id(e) for e in elements}) == len(elements):
        assert shadow.changed() <= {where} | touched


@given(st.lists(st.lists(VALUES, max_size=3), max_size=6), st.data())
def test_growing_agrees_with_a_shadow_taken_at_once(chunks, data):
    grown = Shadow()
    for chunk in chunks:
        grown = grown.extended(Shadow.of(chunk))
    elements = [element for chunk in chunks for element in chunk]
    whole = Shadow.of(elements)
    assert grown.size == whole.size == len(elements)
    assert grown.opaque == whole.opaque
    ways = [way for element in elements for way in changes(element)]
    if ways:
        data.draw(st.sampled_from(ways)).made()
    assert grown.holds() == whole.holds()
    assert grown.changed() == whole.changed()


def test_growing_one_by_one_keeps_few_chunks():
    shadow, elements = Shadow(), []
    for i in range(1000):
        elements.append([i])
        shadow = shadow.extended(Shadow.of(elements[-1:]))
    assert len(shadow._chunks) <= 10
    elements[517][0] = "changed"
    assert shadow.changed() == {517}


@pytest.mark.parametrize(
    "steps", [[1, True], [1, 1.0], [True, 1], [0, False], [0.0, 0], ["1", 1], [None, 0]]
)
def test_a_change_of_type_alone(steps):
    before, after = steps
    for element, change in (
        ([before], lambda e: e.__setitem__(0, after)),
        ({"k": before}, lambda e: e.__setitem__("k", after)),
        (Plain(before), lambda e: setattr(e, "a", after)),
        (Model(a=before), lambda e: setattr(e, "a", after)),
        (deque([before]), lambda e: e.__setitem__(0, after)),
    ):
        shadow = Shadow.of([element])
        change(element)
        assert not shadow.holds()


def test_a_member_of_a_set_changes_its_type():
    members = {1, 2}
    shadow = Shadow.of([members])
    members.remove(1)
    members.add(True)
    assert not shadow.holds()


def test_a_key_changes_its_type():
    items = {1: "a", "k": "b"}
    shadow = Shadow.of([items])
    values = [(True, "a"), ("k", "b")]
    items.clear()
    items.update(values)
    assert not shadow.holds()


def test_messages():
    message = AIMessage("text", tool_calls=[{"name": "f", "args": {"x": [1]}, "id": "1"}])
    for change in (
        lambda: setattr(message, "id", "new"),
        lambda: message.tool_calls[0]["args"]["x"].append(2),
        lambda: message.additional_kwargs.update(k=1),
        lambda: message.response_metadata.update(k=1),
        message.tool_calls.clear,
        lambda: message.__dict__.update(content="other"),
    ):
        shadow = Shadow.of([message])
        change()
        assert not shadow.holds()


@pytest.mark.parametrize(
    "make", [Plain, Slotted, Mixed, Attrs, lambda a: Model(a=a), lambda a: Pair(a, 1)]
)
def test_below_an_attribute(make):
    inner = {"deep": [1]}
    shadow = Shadow.of([make(inner)])
    inner["deep"].append(2)
    assert not shadow.holds()


def test_an_attribute_of_no_field():
    value = Plain(1)
    shadow = Shadow.of([value])
    value.other = 2
    assert not shadow.holds()


def test_a_replaced_attribute_dict():
    value = Plain([1])
    shadow = Shadow.of([value])
    value.__dict__ = {"b": None, "a": value.a}
    assert not shadow.holds()


OPAQUE = [
    np.arange(3),
    bytearray(b"abc"),
    Counter("aab"),
    SimpleNamespace(a=1),
    object(),
    threading.Lock(),
    type("Text", (str,), {})("text"),
    type("Numbers", (list,), {})([1]),
]


@pytest.mark.parametrize("thing", OPAQUE, ids=lambda thing: type(thing).__name__)
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: Plain({"k": (x,)})])
def test_what_cannot_be_watched_never_holds(thing, wrap):
    shadow = Shadow.of([1, wrap(thing), [2]])
    assert not shadow.holds()
    assert shadow.opaque == {1}
    assert shadow.changed() == {1}
    later = Shadow.of([[3]]).extended(shadow)
    assert later.opaque == {2}
    assert not later.holds()


def test_cycles():
    ring = [1]
    ring.append(ring)
    shadow = Shadow.of([ring])
    assert shadow.holds()
    ring[0] = 2
    assert not shadow.holds()


def test_deep_values_need_no_recursion():
    deep = inner = []
    for _ in range(20_000):
        inner.append([])
        inner = inner[0]
    shadow = Shadow.of([deep])
    assert shadow.holds()
    inner.append(1)
    assert not shadow.holds()


def test_ids_are_not_used_again():
    holder = {"k": [1]}
    shadow = Shadow.of([holder])
    for _ in range(200):
        holder["k"] = [1]
        assert not shadow.holds()


def test_an_empty_container_fills():
    for empty, fill in (
        ([], lambda e: e.append(1)),
        ({}, lambda e: e.update(a=1)),
        (set(), lambda e: e.add(1)),
    ):
        shadow = Shadow.of([[empty]])
        fill(empty)
        assert not shadow.holds()


def test_human_turns_are_cheap_to_check():
    messages = [HumanMessage("text", id=str(i)) for i in range(2000)]
    shadow = Shadow.of(messages)
    assert shadow.holds()
    messages[1999].content = "changed"
    assert shadow.changed() == {1999}
