"""Copies of values are exact, share nothing, and are of one instant; compiled and in Python."""

import dataclasses
import gc
import sys
import time
from collections import Counter, OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.engine import exactly
from kit.values import VALUES, Mixed, Model, Pair, Slotted, changes
from langchain_core.messages import HumanMessage
from pydantic import BaseModel

from threadkeep._core.engine import shadow as captures
from threadkeep._core.engine import shadow as shadows
from threadkeep._core.engine.shadow import is_state

BOTH = list(dict.fromkeys([shadows.copy_and_watch, shadows.portable_copy_and_watch]))
still: Any = shadows.copy_and_watch


@pytest.fixture(params=BOTH, ids=lambda way: way.__name__, scope="module", autouse=True)
def _both_ways(request):
    globals()["still"] = request.param


@given(st.lists(VALUES, max_size=4))
def test_copies_are_exact(elements):
    found = still(elements)
    gc.collect(0)
    assert [exactly(copy) for copy in found.copies] == [exactly(e) for e in elements]
    assert [type(copy) for copy in found.copies] == [type(e) for e in elements]


@given(st.lists(VALUES, min_size=1, max_size=3), st.data())
def test_copies_do_not_change(elements, data):
    found = still(elements)
    before = [exactly(copy) for copy in found.copies]
    for way in [way for e in elements for way in changes(e)][: data.draw(st.integers(1, 20))]:
        try:
            way.made()
        except (LookupError, ValueError):  # an earlier change has removed its target
            continue
    assert [exactly(copy) for copy in found.copies] == before


def test_originals_of_instances():
    message, model = HumanMessage("text"), Model(a=1)
    found = still([{"a": [message]}, model])
    copies = [found.copies[0]["a"][0], found.copies[1]]
    assert [found.originals[id(copy)] for copy in copies] == [message, model]
    assert all(map(is_state, copies))


def test_what_refers_to_itself():
    loop = [1]
    loop.append({"again": loop})
    copy = still([loop]).copies[0]
    assert copy is not loop
    assert copy[1]["again"] is copy


def test_shared_parts_stay_shared():
    part = [1]
    one, other = still([{"a": part, "b": (part,)}, [part]]).copies
    assert one["a"] is one["b"][0]
    assert one["a"] is not part
    assert other == [[1]]


def alone(element):
    """Return True if each part occurs in one place of the element only."""
    shadow = still([element]).shadow
    compiled = not isinstance(shadow, shadows.PortableShadow)
    return (shadows.disjoint if compiled else shadows.portable_disjoint)([shadow]) == [True]


def test_what_is_in_two_places_of_an_element_is_noted_twice():
    part, message, model = [1], HumanMessage("text"), Model(a=1)
    assert not alone({"a": part, "b": (part,)})
    assert not alone({"a": message, "b": [message]})
    assert not alone([model, (model, 1)])
    assert alone([message, model, {"a": [1], "b": [1]}, Mixed([1], {})])
    fixed = (1, 2)
    assert alone([fixed, fixed, frozenset(), frozenset()])


def test_of_nothing_and_of_leaves():
    for elements in ([], ["text"], [None, 1, True]):
        found = still(elements)
        assert (found.copies, found.originals) == (elements, {})
        assert found.copies is not elements
        assert (found.shadow.size, found.shadow.holds()) == (len(elements), True)


def test_what_is_no_list_is_refused():
    if still is not shadows.portable_copy_and_watch:
        with pytest.raises(TypeError):
            still(())


def test_more_elements_than_a_shadow_has_in_a_part():
    elements = [[n] for n in range(1000)]
    found = still(elements)
    assert found.copies == elements
    assert found.shadow.size == 1000
    elements[700].append(1)
    assert found.shadow.changed() == {700}


class Tagged(tuple):  # noqa: SLOT001 - it is about those that have attributes
    """A tuple with attributes."""


def test_attributes_beside_a_c_type_are_kept():
    ordered = OrderedDict(a=1)
    ordered.more = [1]
    tagged = Tagged([1, [2]])
    tagged.more = [3]
    copies = still([ordered, tagged]).copies
    assert copies[0].more == [1]
    assert (type(copies[1]), copies[1], copies[1].more) == (Tagged, (1, [2]), [3])
    assert copies[1][1] is not tagged[1]


def test_a_struct_sequence_is_not_taken_apart():
    moment = time.gmtime(0)
    assert still([[moment]]).copies == [[moment]]


def test_slots_that_are_not_set():
    part = Slotted.__new__(Slotted)
    part.a = [1]
    copy = still([part]).copies[0]
    assert copy.a == [1]
    assert copy.a is not part.a
    assert not hasattr(copy, "b")


def test_nothing_is_leaked():
    elements = [
        Mixed([1], {"a": Pair(1, [2])}),
        HumanMessage("text"),
        {"k": {1, 2}},
        bytearray(b"x"),
    ]
    parts = [elements, *elements, elements[0].a, elements[0].b, elements[2]["k"]]
    still(elements)
    gc.collect()
    before = [sys.getrefcount(part) for part in parts], len(gc.get_objects())
    for _ in range(100):
        still(elements)
    gc.collect()
    assert [sys.getrefcount(part) for part in parts] == before[0]
    assert len(gc.get_objects()) - before[1] < 50


def classes(count):
    """Return so many new classes."""
    return [type(f"Class{n}", (Slotted,), {}) for n in range(count)]


def test_the_classes_that_are_remembered_are_bounded():
    for cls in classes(captures._MOST + 10):
        assert still([cls([1])]).copies[0].a == [1]
    assert len(captures.KINDS) <= captures._MOST + 1
    assert len(captures.LAYOUTS) <= captures._MOST + 1


def test_a_value_of_more_classes_than_are_remembered():
    parts = [cls([n]) for n, cls in enumerate(classes(captures._MOST + 10))]
    for _ in range(2):
        assert [part.a for part in still([parts]).copies[0]] == [part.a for part in parts]


class Space(dict):
    """A dict with attributes and a slot for each of its parts."""

    def __setitem__(self, key, value):
        raise AssertionError("a copy runs no code of the class")


class Words(list):
    __slots__ = ("more",)


class Names(set):
    """A set with attributes."""


def test_what_derives_from_a_container_is_copied_and_not_watched():
    space, words, names, counted = Space(a=[1]), Words([[2]]), Names({3}), Counter("aab")
    space.own, words.more, names.own = [4], [5], [6]
    found = still([[space, words, names, counted]])
    copies = found.copies[0]
    assert found.shadow.opaque == {0}
    assert [type(copy) for copy in copies] == [Space, Words, Names, Counter]
    assert copies == [{"a": [1]}, [[2]], {3}, Counter("aab")]
    assert [copies[0].own, copies[1].more, copies[2].own] == [[4], [5], [6]]
    originals = [space["a"], words[0], space.own, words.more, names.own]
    made = [copies[0]["a"], copies[1][0], copies[0].own, copies[1].more, copies[2].own]
    assert not any(a is b for a, b in zip(originals, made, strict=True))


class Hashing(type):
    """Classes that record when they are hashed, which runs code of the program."""

    hashed = 0

    def __hash__(cls):
        Hashing.hashed += 1
        return id(cls)


class Hashed(metaclass=Hashing):
    pass


def test_no_code_of_a_metaclass_is_run():
    if still is shadows.portable_copy_and_watch:
        pytest.skip("in Python nothing is in the way of it")
    before = Hashing.hashed
    assert still([Hashed()]).shadow.is_opaque
    assert Hashing.hashed == before


@dataclasses.dataclass
class Closing:
    path: str
    closed: list

    def __del__(self):
        self.closed.append(self.path)


def test_no_copy_is_closed():
    closed = []
    part = Closing("p", closed)
    found = still([[part]])
    assert found.shadow.opaque == {0}
    del found
    gc.collect()
    assert closed == []


@pytest.mark.parametrize("given", [None, 5, ["a"]])
def test_a_model_put_together_by_hand(given):
    model = Model(a=[1])
    object.__setattr__(model, "__pydantic_fields_set__", given)
    copy = still([model]).copies[0]
    assert (copy.a, copy.__pydantic_fields_set__) == ([1], given)
    assert still([Plainer.__new__(Plainer)]).shadow.size == 1


class Plainer(BaseModel):
    a: int = 1


def test_a_class_whose_layout_is_not_known_is_not_watched(monkeypatch):
    part = Slotted([1])
    assert is_state(part)
    monkeypatch.delitem(captures.LAYOUTS, Slotted)
    assert still([[part]]).shadow.opaque == {0}
    assert still([[part]]).copies[0][0] is part
