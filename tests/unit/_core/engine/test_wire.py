"""Differences of manifests and checks of names and versions: the same compiled and in Python."""

import sys
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.engine import exactly

from threadkeep._core import validation
from threadkeep._core.engine import refs
from threadkeep._core.engine.model import Span
from threadkeep._core.engine.refs import (
    Cell,
    ChannelEntry,
    Inline,
    Manifest,
    Run,
    numbers,
    portable_difference,
    to_wire,
)
from threadkeep._core.engine.shadow import behind, portable_behind

from .test_refs_manifest import ENTRY, MANIFESTS, NAMES, SEEN, VERSIONS

compiled = pytest.mark.skipif(
    refs.difference is portable_difference, reason="it could not be compiled"
)
USUAL = Manifest(
    4,
    {
        "a": ChannelEntry(3, Run(2, (Span(1, 0, 4),))),
        "b": ChannelEntry(1, None),
        "c": ChannelEntry("1.5", Cell(1, 2)),
    },
    {"node": {"a": 2, "b": 1}, "other": {"a": 1}, "none": {}},
)


class Text(str):
    """A str with code of its own."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise AssertionError(other)


class Name(str):
    """A str of a subclass."""

    __slots__ = ()


class Number(int):
    """A number with code of its own."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        raise AssertionError(other)


def parts(written, key):
    return written.entries, written.seen, key.entries, key.seen, *numbers(key), to_wire


def assert_same(written, key):
    """The compiled function answers as the one in Python."""
    answer = refs.difference(*parts(written, key))
    if answer is not None:
        assert exactly(answer) == exactly(portable_difference(*parts(written, key)))
    return answer


@st.composite
def changed(draw, key):
    """A manifest that shares most parts with another one, as the same objects or as copies."""
    entries = {n: e for n, e in key.entries.items() if draw(st.integers(0, 5))}
    entries |= draw(st.dictionaries(NAMES, ENTRY, max_size=2))
    seen = {n: draw(st.sampled_from([s, dict(s)])) for n, s in key.seen.items()}
    for name in list(seen):
        if draw(st.booleans()):
            seen[name] = draw(st.dictionaries(NAMES, VERSIONS, max_size=2))
        elif draw(st.booleans()):
            seen[name] = seen[name] | draw(st.dictionaries(NAMES, VERSIONS, max_size=2))
    return Manifest(4, entries, seen | draw(SEEN))


@compiled
def test_it_is_compiled_with_the_rest():
    assert behind is not portable_behind
    assert validation.is_usual is not validation.portable_is_usual


@given(MANIFESTS, MANIFESTS)
def test_any_difference(written, key):
    assert_same(written, key)


@given(MANIFESTS, st.data())
def test_a_difference_to_what_it_came_from(key, data):
    assert_same(data.draw(changed(key)), key)


@pytest.mark.parametrize(
    "written",
    [
        USUAL,
        Manifest(4, {}, {}),
        Manifest(4, dict(list(USUAL.entries.items())[1:]), {"other": {"a": 1}}),
        Manifest(4, {**USUAL.entries, "a": ChannelEntry(4, Inline(b"\x01"))}, {"node": {"b": 1}}),
        Manifest(
            4,
            {"a": ChannelEntry(2**80, None), "b": ChannelEntry(-(2**80), None)},
            {"x": {"a": 2**90}},
        ),
        Manifest(
            4,
            {"a": ChannelEntry(3, None, removed=True), "ü": ChannelEntry(None, Run(3, ()))},
            {"ü": {}},
        ),
        Manifest(4, {"a": ChannelEntry(-1, Inline(b"", (Span(1, 2, 3),)))}, {"node": {"a": None}}),
        Manifest(4, {"c": ChannelEntry("2", Run(2, (Span(1, 0, 1), Span(3, 0, 1))))}, {}),
    ],
)
@pytest.mark.parametrize("key", [USUAL, refs.EMPTY])
@compiled
def test_usual_manifests_are_left_to_the_compiled_one(written, key):
    assert assert_same(written, key) is not None


def test_several_spans_are_a_difference_to_the_older_ones():
    key = Manifest(4, {"a": ChannelEntry(1, Run(2, (Span(1, 0, 2), Span(3, 0, 2))))}, {})
    more = Run(2, (Span(1, 0, 2), Span(3, 0, 2), Span(1, 5, 6)))
    for ref in (more, Run(2, (Span(1, 0, 2),)), Inline(b"\x01"), Cell(1, 1), None):
        assert_same(Manifest(4, {"a": ChannelEntry(2, ref)}, {}), key)


@compiled
@pytest.mark.parametrize("other", [True, 1.0, Number(1), Text("1"), float("nan")])
def test_unusual_versions_are_left_to_the_python(other):
    ref = Inline(b"\x01")
    for written in (
        Manifest(4, {"a": ChannelEntry(other, ref)}, {}),
        Manifest(4, {}, {"node": {"a": other}}),
    ):
        for version in (1, "1"):
            key = Manifest(4, {"a": ChannelEntry(version, ref)}, {"node": {"a": version}})
            assert refs.difference(*parts(written, key)) is None


@compiled
def test_unusual_names_and_mappings_are_left_to_the_python():
    odd = {Text("a"): ChannelEntry(1, None)}
    for written in (
        Manifest(4, odd, {}),
        Manifest(4, {}, {Text("node"): {}}),
        Manifest(4, {}, {"node": {Text("a"): 1}}),
        Manifest(4, MappingProxyType({}), {}),
        Manifest(4, {}, {"node": MappingProxyType({})}),
    ):
        assert refs.difference(*parts(written, Manifest(4, {}, {}))) is None
    assert refs.difference(*parts(Manifest(4, {}, {}), Manifest(4, odd, {}))) is None


def test_what_fails_fails_in_both():
    def refuse(ref: object, old: object) -> None:
        raise LookupError(ref, old)

    several = Run(2, (Span(1, 0, 1), Span(3, 0, 1)))
    given = [{"a": ChannelEntry(1, several)}, {}, {}, {}, {}, {}, refuse]
    for ways in (refs.difference, portable_difference):
        with pytest.raises(LookupError):
            ways(*given)


def test_nothing_is_kept_or_lost():
    names, long = ["a name", "a node"], Run(2, (Span(10**6, 0, 10**7), Span(10**6, 0, 10**7)))
    entries = {names[0]: ChannelEntry("a version", long)}
    odd = {**entries, "odd": ChannelEntry(1.5, None)}
    seen, numbered = {names[1]: {names[0]: 10**9}}, {"gone": 10**9}
    held = [*names, long, entries, odd, seen, numbered, *entries.values(), *numbered.values()]
    keys = [{}, {names[0]: ChannelEntry("another", Cell(1, 2))}]

    def counts():
        return [sys.getrefcount(each) for each in held]

    before = counts()
    for _ in range(100):
        for key in keys:
            refs.difference(entries, seen, key, {}, numbered, numbered, to_wire)
            refs.difference(odd, seen, key, {}, numbered, numbered, to_wire)
    assert counts() == before


NAMED = st.one_of(NAMES, st.sampled_from([1, None, "half \ud800", Name("a"), b"a"]))
LIMITS = [2**63 - 1, 2**63, -(2**63), -(2**63) - 1]
SAID = st.one_of(VERSIONS, st.sampled_from([*LIMITS, [], Name("1"), Number(1)]))
SAID_OF = st.dictionaries(NAMED, SAID, max_size=3)


@given(SAID_OF, SAID_OF, st.dictionaries(NAMED, SAID_OF, max_size=3))
def test_what_is_usual(values, versions, seen):
    usual = validation.is_usual(values, versions, seen)
    assert usual == validation.portable_is_usual(values, versions, seen)


@pytest.mark.parametrize("seen", [None, 1, [], "node", {"node": None}, {"node": ["a"]}, {"n": "a"}])
def test_what_no_node_can_have_seen_is_not_usual(seen):
    assert not validation.is_usual({}, {}, seen)
    assert not validation.portable_is_usual({}, {}, seen)
