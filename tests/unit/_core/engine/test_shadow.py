"""A shadow notices every single change in place, at any depth, and nothing else."""

import dataclasses
import gc
import sys
import threading
import weakref
from collections import Counter, deque
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.engine import exactly
from kit.values import VALUES, Model, Plain, changes
from langchain_core.messages import AIMessage

from threadkeep._core.codec.introspection import layout
from threadkeep._core.engine import shadow as captures
from threadkeep._core.engine import shadow as shadows
from threadkeep._core.engine.shadow import PortableShadow

COMPILED = shadows.Shadow
Shadow = COMPILED


@pytest.fixture(params=dict.fromkeys([COMPILED, PortableShadow]), scope="module", autouse=True)
def _both_ways(request):
    """Both implementations: the compiled class, and the one in Python."""
    globals()["Shadow"] = request.param


@given(st.lists(VALUES, max_size=5))
def test_no_change_holds(elements):
    shadow = Shadow.of(elements)
    gc.collect(0)
    for element in elements:
        exactly(element), repr(element), element == element  # noqa: PLR0124
    assert shadow.holds()
    assert shadow.changed() == set()


class File(type(Path())):  # type: ignore[misc] - of this system
    """A path with an extra attribute."""


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
    if Shadow is COMPILED:
        assert len(gc.get_referents(shadow)) <= 10
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


# -- what moves ----------------------------------------------------------------------


def moved_first(one, other):
    other.append(one.pop(0))


def moved_last(one, other):
    other.insert(0, one.pop())


@pytest.mark.parametrize("move", [moved_first, moved_last])
@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (1, 0), (3, 3)])
@pytest.mark.parametrize("back", [False, True])
def test_what_moves_from_one_container_to_its_neighbour(move, sizes, back):
    """The referents of both, in a row, are unchanged."""
    one, other = [[f"{size} {i}" for i in range(size)] for size in sizes]
    for value in ([one, other], {"one": one, "other": other}, Plain(one, other)):
        shadow = Shadow.of([value])
        source, target = (other, one) if back else (one, other)
        if source:
            move(source, target)
            assert shadow.changed() == {0}


def test_keys_that_move_to_the_dict_behind():
    one, other = {"a": 1, "b": 1}, {"c": 1}
    shadow = Shadow.of([one, other])
    values = {"b": one.pop("b"), **other}
    other.clear()
    other.update(values)
    assert shadow.changed() == {0, 1}


# -- both have the same answers --------------------------------------------------------


@st.composite
def pairs(draw):
    """Shadows of the same elements, built in the same way, compiled and in Python."""
    elements, found = [], [(COMPILED(), PortableShadow())]
    opaque = st.sampled_from([object, lambda: bytearray(b"abc"), lambda: Counter("aab")])
    parts = st.one_of(VALUES, VALUES, opaque.map(lambda make: [make(), [1]]))
    for values in draw(st.lists(st.lists(parts, max_size=4), min_size=1, max_size=5)):
        elements += values
        new = [cls.of(values) for cls in (COMPILED, PortableShadow)]
        way = draw(st.sampled_from(["extended", "joined", "part", "unwatched"]))
        if way == "unwatched":
            size = draw(st.integers(0, 2))
            elements += [None] * size
            new = [x.extended(type(x).of_unwatched(size)) for x in new]
        one, other = found[-1]
        if way == "joined":
            found.append((type(one).joined([one, new[0]]), type(other).joined([other, new[1]])))
        else:
            found.append((one.extended(new[0]), other.extended(new[1])))
        if way == "part":
            start, stop = sorted(draw(st.tuples(st.integers(0, 9), st.integers(0, 9))))
            found.append(tuple(x.part(start, stop) for x in found[-1]))
            elements = elements[start:stop]
    return elements, found


def answers(shadow, value, items):
    every = [shadow.size, shadow.opaque, shadow.is_opaque, shadow.changed()]
    found = [shadow.holds_in(value, None, items, size) for size in range(len(items) + 2)]
    return every, found, shadow.holds(), shadow.holds_now()


@given(pairs(), st.data())
def test_the_same_answers(made, data):
    elements, found = made
    value = list(elements)
    ways = [way for element in elements for way in changes(element)]
    for _ in range(3):
        for one, other in found:
            assert answers(one, value, elements) == answers(other, value, elements)
        kinds = [[pair[i] for pair in found] for i in (0, 1)]
        assert shadows.disjoint(kinds[0]) == shadows.portable_disjoint(kinds[1])
        if ways:
            try:
                data.draw(st.sampled_from(ways)).made()
            except (LookupError, ValueError):  # an earlier change has removed its target
                continue


@pytest.mark.parametrize("value", [{"a": 1, "b": [2]}, (1, [2]), [1, [2]], "no container", None])
def test_holding_in_a_value(value):
    keys = list(value) if isinstance(value, dict) else None
    items = list(value.values() if keys else value or ())
    shadow = Shadow.of(items)
    fits = isinstance(value, (dict, list, tuple))
    assert shadow.holds_in(value, keys, [*items, "more"], len(items)) is fits
    assert not shadow.holds_in(value, keys, items[:-1], len(items))
    assert not shadow.holds_in(value, ["a", "c"] if keys else ["a"], items[:-1], len(items) - 1)
    assert not shadow.holds_in({}, None, items, len(items))
    if fits:
        items[1].append(3) if type(items[1]) is list else None
        assert not shadow.holds_in(value, keys, items, len(items))


def test_what_is_met_once():
    a, b, c, fixed = [1], {"b": 1}, {3}, (1, 2)
    apart = shadows.disjoint if Shadow is COMPILED else shadows.portable_disjoint

    def of(*parts):
        return Shadow.joined([Shadow.of(part) for part in parts])

    assert apart([]) == []
    assert apart([of(), of([]), of([a, b], [c])]) == [True, True, True]
    assert apart([of([a, b]), of([c], [b]), of([{}])]) == [True, False, True]
    assert apart([of([a], [a])]) == [False]
    assert apart([of([fixed, a]), of([fixed], [fixed, frozenset()])]) == [True, True]
    assert apart([of([[] for _ in range(3000)])]) == [True]


# -- memory ----------------------------------------------------------------------------


class Node:
    """Refers to any object, also to one that refers back."""


def test_a_shadow_ends_with_what_refers_to_it():
    """A class may refer to a saver, which holds shadows of the class's instances."""
    node = Node()
    local = dataclasses.make_dataclass("Local", ["a"], namespace={"node": node})
    node.shadow = Shadow.of([local(1)]).extended(Shadow.of([[node]] * 300))
    gone = weakref.ref(node)
    del node, local
    captures.KINDS.clear()
    captures.LAYOUTS.clear()
    layout.cache_clear()
    gc.collect()
    assert gone() is None


def test_what_is_watched_is_let_go():
    elements = [AIMessage(f"{i}", additional_kwargs={"k": [i]}) for i in range(300)]
    parts = [*elements, elements[7].additional_kwargs, elements[7].additional_kwargs["k"]]
    before = [sys.getrefcount(part) for part in parts]
    for _ in range(3):
        shadow = Shadow.of(elements[:100]).extended(Shadow.of(elements[100:]))
        shadow = Shadow.joined([shadow.part(0, 9), shadow.part(3, 277), shadow])
        assert shadow.holds()
        assert shadow.changed() == set()
        with pytest.raises((TypeError, AttributeError)):
            shadow.extended(shadow, None)
    del shadow
    gc.collect()
    assert [sys.getrefcount(part) for part in parts] == before
