"""References and spans: `cut`, `merged` and `covering`."""

from itertools import pairwise

import ormsgpack
from hypothesis import given
from hypothesis import strategies as st

from threadkeep._core.engine import refs
from threadkeep._core.engine.model import Span
from threadkeep._core.engine.refs import Cell, Inline, Run

SPAN = st.builds(lambda log, start, size: Span(log, start, start + size), *[st.integers(0, 12)] * 3)
SPANS = st.lists(SPAN, max_size=8)
USES = st.lists(SPAN, max_size=3).map(tuple)
REFS = st.one_of(
    st.none(),
    st.builds(Inline, st.binary(max_size=20), USES),
    st.builds(Cell, st.integers(0, 2**31), st.integers(0, 2**40), USES),
    st.builds(Run, st.sampled_from([refs.LIST, refs.TUPLE, refs.DICT]), SPANS.map(tuple)),
)


def positions(spans):
    return [(span.log, pos) for span in spans for pos in range(span.start, span.stop)]


@given(SPANS, st.integers(0, 40), st.integers(0, 40))
def test_cut_takes_a_slice(spans, start, stop):
    found = refs.cut(spans, start, stop)
    assert positions(found) == positions(spans)[start:stop]
    assert all(span.start < span.stop for span in found)


@given(SPANS)
def test_merged_keeps_the_order_in_fewer_spans(spans):
    found = refs.merged(spans)
    assert positions(found) == positions(spans)
    assert len(found) <= len(spans)
    assert all(span.start < span.stop for span in found)
    assert not any(a.log == b.log and a.stop == b.start for a, b in pairwise(found))


@given(SPANS)
def test_covering_names_each_position_once_in_order(spans):
    filled = [span for span in spans if span.start < span.stop]
    assert positions(refs.covering(filled)) == sorted(set(positions(filled)))


@given(SPANS)
def test_length(spans):
    assert refs.length(spans) == len(positions(spans))


@given(REFS)
def test_wire(ref):
    wire = ormsgpack.unpackb(ormsgpack.packb(refs.to_wire(ref)))
    assert refs.from_wire(wire) == ref


MANY = st.builds(Run, st.just(refs.LIST), st.lists(SPAN, min_size=9, max_size=30).map(tuple))


@given(st.one_of(REFS, MANY), st.one_of(REFS, MANY))
def test_wire_beside_an_older_reference(ref, old):
    wire = ormsgpack.unpackb(ormsgpack.packb(refs.to_wire(ref, old)))
    assert refs.from_wire(wire, old) == ref


@given(MANY, st.data())
def test_wire_of_an_edit_beside_an_older_reference(old, data):
    at = data.draw(st.integers(0, len(old.spans)))
    new = data.draw(st.lists(SPAN, max_size=3))
    edited = Run(old.kind, (*old.spans[:at], *new, *old.spans[at + 1 :]))
    wire = refs.to_wire(edited, old)
    assert refs.from_wire(ormsgpack.unpackb(ormsgpack.packb(wire)), old) == edited


def test_one_edit_of_many_spans_costs_little():
    spans = tuple(Span(1, 10 * i, 10 * i + 7) for i in range(100))
    old = Run(refs.LIST, spans)
    edited = Run(refs.LIST, (*spans[:50], Span(2, 0, 1), *spans[51:]))
    assert len(ormsgpack.packb(refs.to_wire(edited, old))) < 20


@given(REFS)
def test_needs_hold_the_own_place_and_the_uses(ref):
    if isinstance(ref, Cell):
        assert Span(ref.log, ref.pos, ref.pos + 1) in ref.needs
        assert set(ref.uses) <= set(ref.needs)
    elif ref is not None:
        assert ref.needs == (ref.uses if isinstance(ref, Inline) else ref.spans)
