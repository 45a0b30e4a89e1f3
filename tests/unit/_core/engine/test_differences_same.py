"""`same` is True only if both values encode to the same bytes."""

import copy
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.engine import exactly
from kit.values import VALUES, Model, Slotted, changes
from langchain_core.messages import HumanMessage

from threadkeep._core.codec import NativeCodec
from threadkeep._core.engine.differences import same

CODEC = NativeCodec()


@given(VALUES, VALUES)
def test_same_means_the_same_bytes(a, b):
    if same(a, b):
        assert exactly(a) == exactly(b)
        assert CODEC.encode(a) == CODEC.encode(b)


@given(VALUES, st.data())
def test_a_changed_copy_is_never_the_same(value, data):
    other = copy.deepcopy(value)
    ways = changes(other)
    if ways:
        data.draw(st.sampled_from(ways)).made()
        assert not same(value, other) or exactly(value) == exactly(other)


PLAIN = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()
    ),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.lists(parts, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), parts, max_size=3),
        st.builds(Model, a=parts, more=parts),
        st.builds(lambda kw: HumanMessage("text", additional_kwargs={"k": kw}), parts),
    ),
    max_leaves=10,
)


@given(PLAIN)
def test_a_rebuilt_value_is_the_same(value):
    assert same(value, copy.deepcopy(value))
    assert same(value, value)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, True),
        (1, 1.0),
        (0, False),
        (0.0, -0.0),
        ("1", b"1"),
        ([1], (1,)),
        ([1], [True]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1: "x"}, {True: "x"}),
        ({1}, {True}),
        ({1}, frozenset({1})),
        (HumanMessage("a"), HumanMessage("a", id=None)),
        (Slotted(1), Slotted(1)),
        (float("nan"), float("nan")),
    ],
)
def test_not_the_same(a, b):
    assert not same(a, b)


@dataclass
class Node:
    next: object = None


def test_cycles_are_not_compared_for_ever():
    a, b = Node(), Node()
    a.next, b.next = a, b
    assert not same(a, b)
    deep_a, deep_b = [], []
    for _ in range(100_000):
        deep_a, deep_b = [deep_a], [deep_b]
    assert not same(deep_a, deep_b)
