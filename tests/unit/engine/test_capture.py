"""Copies of values are exact, share nothing, and are of one instant; compiled and in Python."""

from __future__ import annotations

import dataclasses
import gc
import sys
import time
from collections import Counter, OrderedDict

import pytest
from engine_kit import exactly
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from pydantic import BaseModel

from threadkeep.engine import capture as captures
from threadkeep.engine.capture import capture, is_state, portable_capture

from .values import VALUES, Mixed, Model, Pair, Slotted, changes

BOTH = list(dict.fromkeys([captures._capture, portable_capture]))


@pytest.fixture(params=BOTH, ids=lambda way: way.__name__, scope="module", autouse=True)
def _both_ways(request):
    captures._capture, before = request.param, captures._capture
    yield
    captures._capture = before


@given(st.lists(VALUES, max_size=4))
def test_copies_are_exact(elements):
    found = capture(elements)
    gc.collect(0)
    assert [exactly(copy) for copy in found.copies] == [exactly(e) for e in elements]
    assert [type(copy) for copy in found.copies] == [type(e) for e in elements]


@given(st.lists(VALUES, min_size=1, max_size=3), st.data())
def test_copies_do_not_change(elements, data):
    found = capture(elements)
    before = [exactly(copy) for copy in found.copies]
    for way in [way for e in elements for way in changes(e)][: data.draw(st.integers(1, 20))]:
        try:
            way.made()
        except (LookupError, ValueError):  # an earlier change has removed what this one is about
            continue
    assert [exactly(copy) for copy in found.copies] == before


@given(st.lists(VALUES, max_size=4))
def test_both_ways_watch_the_same(elements):
    one, other = capture(elements), portable_capture(elements, {}, {}, False)
    (containers, refs, dicts, keys, sets, sizes), ends, opaque, _, _ = other
    assert sorted(map(id, one.rows[0])) == sorted(map(id, containers))
    assert sorted(map(id, one.rows[1])) == sorted(map(id, refs))
    assert sorted(map(id, one.rows[2])) == sorted(map(id, dicts))
    assert sorted(map(id, one.rows[3])) == sorted(map(id, keys))
    assert (one.rows[5], one.opaque) == (sizes, opaque)
    assert (one.ends, len(one.rows[4])) == (ends, len(sets))


def test_originals_of_instances():
    message, model = HumanMessage("text"), Model(a=1)
    found = capture([{"a": [message]}, model])
    copies = [found.copies[0]["a"][0], found.copies[1]]
    assert [found.originals[id(copy)] for copy in copies] == [message, model]
    assert all(map(is_state, copies))


def test_what_refers_to_itself():
    loop = [1]
    loop.append({"again": loop})
    copy = capture([loop]).copies[0]
    assert copy is not loop
    assert copy[1]["again"] is copy


def test_shared_parts_stay_shared():
    part = [1]
    one, other = capture([{"a": part, "b": (part,)}, [part]]).copies
    assert one["a"] is one["b"][0]
    assert one["a"] is not part
    assert other == [[1]]


def twice(element):
    met = Counter(map(id, capture([element]).rows[0]))
    return [name for name, count in met.items() if count > 1]


def test_what_is_in_two_places_of_an_element_is_noted_twice():
    part, message, model = [1], HumanMessage("text"), Model(a=1)
    assert twice({"a": part, "b": (part,)}) == [id(part)]
    assert twice({"a": message, "b": [message]}) == [id(vars(message))]
    assert twice([model, (model, 1)]) == [id(vars(model))]
    assert twice([message, model, {"a": [1], "b": [1]}, Mixed([1], {})]) == []
    fixed = (1, 2)
    assert twice([fixed, fixed, frozenset(), frozenset()]) == []


def test_without_copies():
    found = capture([[1], {"a": 2}], copying=False)
    assert (found.copies, found.originals) == ([], {})
    assert len(found.ends) == 2


class Tagged(tuple):  # noqa: SLOT001 - it is about those that have attributes
    """A tuple with attributes."""


def test_attributes_beside_a_c_type_are_kept():
    ordered = OrderedDict(a=1)
    ordered.more = [1]
    tagged = Tagged([1, [2]])
    tagged.more = [3]
    copies = capture([ordered, tagged]).copies
    assert copies[0].more == [1]
    assert (type(copies[1]), copies[1], copies[1].more) == (Tagged, (1, [2]), [3])
    assert copies[1][1] is not tagged[1]


def test_a_struct_sequence_is_not_taken_apart():
    moment = time.gmtime(0)
    assert capture([[moment]]).copies == [[moment]]


def test_slots_that_are_not_set():
    part = Slotted.__new__(Slotted)
    part.a = [1]
    copy = capture([part]).copies[0]
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
    capture(elements)
    gc.collect()
    before = [sys.getrefcount(part) for part in parts], len(gc.get_objects())
    for _ in range(100):
        capture(elements)
    gc.collect()
    assert [sys.getrefcount(part) for part in parts] == before[0]
    assert len(gc.get_objects()) - before[1] < 50


def test_the_classes_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr(captures, "_MOST", len(captures.KINDS) + 10)
    for n in range(50):
        cls = dataclasses.make_dataclass(f"Class{n}", ["a"])
        assert capture([cls([n])]).copies[0].a == [n]
    assert len(captures.KINDS) <= captures._MOST + 1
    assert len(captures.LAYOUTS) <= captures._MOST + 1


def test_a_value_of_more_classes_than_are_remembered(monkeypatch):
    monkeypatch.setattr(captures, "_MOST", len(captures.KINDS) + 10)
    parts = [dataclasses.make_dataclass(f"Class{n}", ["a"])([n]) for n in range(50)]
    assert [copy.a for copy in capture([parts]).copies[0]] == [[n] for n in range(50)]


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
    found = capture([[space, words, names, counted]])
    copies = found.copies[0]
    assert found.opaque == [0]
    assert [type(copy) for copy in copies] == [Space, Words, Names, Counter]
    assert copies == [{"a": [1]}, [[2]], {3}, Counter("aab")]
    assert [copies[0].own, copies[1].more, copies[2].own] == [[4], [5], [6]]
    originals = [space["a"], words[0], space.own, words.more, names.own]
    made = [copies[0]["a"], copies[1][0], copies[0].own, copies[1].more, copies[2].own]
    assert not any(a is b for a, b in zip(originals, made, strict=True))


@dataclasses.dataclass
class Closing:
    path: str
    closed: list

    def __del__(self):
        self.closed.append(self.path)


def test_no_copy_is_closed():
    closed = []
    part = Closing("p", closed)
    found = capture([[part]])
    assert found.opaque == [0]
    del found
    gc.collect()
    assert closed == []


@pytest.mark.parametrize("given", [None, 5, ["a"]])
def test_a_model_put_together_by_hand(given):
    model = Model(a=[1])
    object.__setattr__(model, "__pydantic_fields_set__", given)
    copy = capture([model]).copies[0]
    assert (copy.a, copy.__pydantic_fields_set__) == ([1], given)
    assert capture([Plainer.__new__(Plainer)]).ends


class Plainer(BaseModel):
    a: int = 1


def test_a_class_whose_layout_is_not_known_is_not_watched(monkeypatch):
    part = Slotted([1])
    assert is_state(part)
    monkeypatch.delitem(captures.LAYOUTS, Slotted)
    assert capture([[part]]).opaque == [0]
    assert capture([[part]]).copies[0][0] is part
