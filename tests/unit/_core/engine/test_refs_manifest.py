"""Manifests come back exactly from any keyframe, and damage is reported."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.engine import exactly

from threadkeep._core.engine import refs
from threadkeep._core.engine.model import Span
from threadkeep._core.engine.refs import Cell, ChannelEntry, Inline, Manifest, Run
from threadkeep.errors import CorruptionError

from .test_refs import REFS

NAMES = st.sampled_from(["messages", "__start__", "branch:to:agent", "n", "", "ü", "0"])
VERSIONS = st.one_of(
    st.none(),
    st.sampled_from([1, 1.0, True, "1", "00000001.123", 0, 2, 2.5]),
    st.integers(-(2**62), 2**62 - 1),
    st.text(max_size=5),
)
ENTRY = st.one_of(
    st.builds(ChannelEntry, VERSIONS, REFS, st.just(value=False)),
    st.builds(ChannelEntry, VERSIONS, st.none(), st.just(value=True)),
)
ENTRIES = st.dictionaries(NAMES, ENTRY, max_size=5)
SEEN = st.dictionaries(NAMES, st.dictionaries(NAMES, VERSIONS, max_size=4), max_size=4)
MANIFESTS = st.builds(
    Manifest,
    v=st.integers(1, 9),
    entries=ENTRIES,
    seen=SEEN,
    updated=st.one_of(st.none(), st.just(False), st.lists(NAMES, max_size=4)),
    extra=st.one_of(st.none(), st.binary(max_size=9)),
)


def plainly(found):
    """Return all of a manifest with the types of its versions; maps have no order."""
    entries = {name: (exactly(e.version), e.ref, e.removed) for name, e in found.entries.items()}
    seen = {node: {k: exactly(v) for k, v in vs.items()} for node, vs in found.seen.items()}
    return (found.v, entries, seen, exactly(found.updated), found.extra)


@given(MANIFESTS)
def test_alone(written):
    assert plainly(refs.decode_manifest(refs.encode_manifest(written))) == plainly(written)


@given(MANIFESTS, MANIFESTS)
def test_against_any_keyframe(written, key):
    data = refs.encode_manifest(written, key)
    assert plainly(refs.decode_manifest(data, key)) == plainly(written)


@given(MANIFESTS)
def test_against_a_keyframe_as_it_was_stored(written):
    key = refs.decode_manifest(refs.encode_manifest(written))
    assert plainly(refs.decode_manifest(refs.encode_manifest(written, key), key)) == plainly(
        written
    )


@pytest.mark.parametrize("other", [1.0, True, "1", None, 2])
def test_the_type_of_a_version_counts(other):
    ref = Inline(b"\x01")
    key = Manifest(4, {"n": ChannelEntry(1, ref)}, {"node": {"n": 1}})
    written = Manifest(4, {"n": ChannelEntry(other, ref)}, {"node": {"n": other}})
    found = refs.decode_manifest(refs.encode_manifest(written, key), key)
    assert exactly(found.entries["n"].version) == exactly(other)
    assert exactly(found.seen["node"]["n"]) == exactly(other)


def test_what_does_not_change_costs_nothing():
    entries = {f"channel {i}": ChannelEntry(i, Cell(i, i)) for i in range(100)}
    seen = {f"node {i}": {f"channel {j}": j for j in range(20)} for i in range(20)}
    key = Manifest(4, entries, seen)
    changed = dict(entries)
    changed["channel 7"] = ChannelEntry(8, Run(2, (Span(1, 0, 9),)))
    written = Manifest(4, changed, seen | {"node 3": seen["node 3"] | {"channel 1": 5}})
    assert len(refs.encode_manifest(key)) > 2_000
    assert len(refs.encode_manifest(written, key)) < 50


def test_gone_channels_and_nodes_stay_gone():
    key = Manifest(4, {c: ChannelEntry(1, None) for c in "abc"}, {n: {"a": 1} for n in "xyz"})
    written = Manifest(4, {"b": ChannelEntry(1, None)}, {"y": {}})
    found = refs.decode_manifest(refs.encode_manifest(written, key), key)
    assert plainly(found) == plainly(written)


@given(MANIFESTS, MANIFESTS, st.data())
def test_damage_is_named(written, key, data):
    made = bytearray(refs.encode_manifest(written, key))
    at = data.draw(st.integers(0, len(made) - 1))
    if data.draw(st.booleans()):
        made[at] ^= data.draw(st.integers(1, 255))
    else:
        del made[at:]
    with suppress(CorruptionError):
        found = refs.decode_manifest(bytes(made), key)
        assert all(isinstance(n, int) for span in found.needs() for n in span)


def test_another_keyframe_is_noticed_where_numbers_do_not_fit():
    key = Manifest(4, {"a": ChannelEntry(1, None), "b": ChannelEntry(1, None)})
    data = refs.encode_manifest(Manifest(4, {"a": ChannelEntry(1, None)}), key)
    with pytest.raises(CorruptionError):
        refs.decode_manifest(data, Manifest(4))
