"""Generated values come back exactly and encode to the same bytes again."""

from collections import OrderedDict, deque
from decimal import Decimal
from typing import Any

import codec_models as m
import ormsgpack
from codec_same import same
from hypothesis import given
from hypothesis import strategies as st
from kit.selection import settings_of
from langchain_core.messages import AIMessage, HumanMessage

from threadkeep._core.codec import NativeCodec, introspection

CODEC = NativeCodec()

texts = st.text(st.characters(), max_size=20)  # surrogates included
hashable_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    texts,
    st.binary(max_size=20),
    st.complex_numbers(),
    st.decimals(allow_nan=False).map(Decimal),
    st.fractions(),
    st.uuids(),
    st.datetimes(timezones=st.one_of(st.none(), st.timezones())),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.sampled_from([*m.Colour, *m.Level, *m.Size, *m.Access]),
    texts.map(m.Tagged),
    st.integers().map(m.Count),
)
leaves = st.one_of(hashable_leaves, st.binary(max_size=9).map(bytearray))
keys = st.recursive(hashable_leaves, lambda inside: st.tuples(inside, inside), max_leaves=3)


def containers(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inside, max_size=4)
    return st.one_of(
        some,
        some.map(tuple),
        some.map(deque),
        some.map(m.Stack),
        st.sets(keys, max_size=4),
        st.frozensets(keys, max_size=4),
        st.dictionaries(texts, inside, max_size=4),
        st.dictionaries(keys, inside, max_size=4),
        st.dictionaries(keys, inside, max_size=4).map(OrderedDict),
        st.builds(m.Task, name=texts, tags=some),
        st.builds(m.Slotted, inside, inside),
        st.builds(m.Wheel, inside, some),
        st.builds(m.Point, inside, inside),
        st.builds(lambda v: m.Person.model_construct(name=v, friends=[v]), inside),
        st.builds(lambda v: m.OldStrict.construct(a=v), inside),
        st.builds(lambda t, v: HumanMessage(t, additional_kwargs={"k": v}), texts, inside),
        st.builds(lambda t, v: AIMessage(t, response_metadata={t: v}, extra=v), texts, inside),
    )


values = st.recursive(leaves, containers, max_leaves=25)
examples = settings_of(quick=20, full=500, print_blob=True)


@given(values)
@examples
def test_any_value_comes_back_exactly(value) -> None:
    data = CODEC.encode(value)
    back = CODEC.decode(data)
    assert same(value, back)
    assert CODEC.encode(value) == data
    assert CODEC.encode(back) == data


plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text()),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
)


@given(plain)
@examples
def test_nesting_is_measured_the_same_in_values_and_bytes(value) -> None:
    exact = introspection.depth_of_value(value)
    packed = ormsgpack.packb(value)
    assert introspection._exact(packed) == exact_without_empty(value)
    assert exact - 1 <= introspection._exact(packed) <= introspection.depth_of_bytes(packed)
    assert introspection.depth_of_bytes(packed) <= max(exact, introspection.SHALLOW)


def exact_without_empty(value: Any) -> int:
    """Empty containers add no level in bytes, so the innermost one is not counted."""
    if not isinstance(value, (list, dict)) or not value:
        return 0
    inside = value if isinstance(value, list) else value.values()
    return 1 + max(map(exact_without_empty, inside))
