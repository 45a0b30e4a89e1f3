"""Reading elements: decoded once, patches applied, missing ones named."""

import random

import numpy as np
import pytest
from kit.engine import Chain, CountedCodec, config, exactly, fresh, memory_saver, values_of
from langchain_core.messages import AIMessage

from threadkeep._core.codec import Compression, NativeCodec, frame, pack
from threadkeep._core.engine import elements, refs
from threadkeep._core.engine.elements import Elements
from threadkeep._core.engine.model import Segment, Span
from threadkeep._core.engine.refs import Cell, Inline, Run
from threadkeep._core.engine.snapshots import RawElement
from threadkeep.errors import CorruptionError

CODEC = NativeCodec()
NO_COMPRESSION = Compression(level=0)


def segment(log, start, values):
    return raw_segment(log, start, [CODEC.encode(value) for value in values])


def raw_segment(log, start, raws):
    return Segment(log, start, len(raws), pack(raws, NO_COMPRESSION))


@pytest.fixture
def found():
    return Elements(
        CODEC,
        [segment(1, 0, "ab"), segment(1, 5, ["f", ["g"]]), segment(2, 3, [["k", 1], [2, "v"]])],
    )


def test_values(found):
    assert found.value(Inline(CODEC.encode({"a": 1}))) == {"a": 1}
    assert found.value(Cell(1, 5)) == "f"
    assert found.value(Run(refs.LIST, (Span(1, 0, 2), Span(1, 5, 7)))) == ["a", "b", "f", ["g"]]
    assert found.value(Run(refs.TUPLE, (Span(1, 5, 6), Span(1, 0, 1)))) == ("f", "a")
    assert exactly(found.value(Run(refs.DICT, (Span(2, 3, 5),)))) == exactly({"k": 1, 2: "v"})
    assert exactly(found.value(Run(refs.LIST, ()))) == exactly([])
    assert exactly(found.value(Run(refs.DICT, ()))) == exactly({})


def test_containers_at_the_top_are_fresh(found):
    run = Run(refs.LIST, (Span(1, 0, 2),))
    for _ in range(3):
        value = found.value(run)
        assert value == ["a", "b"]
        value.clear()


def test_a_value_does_not_hold_an_element_twice(found):
    one, other = found.value(Run(refs.LIST, (Span(1, 6, 7), Span(1, 6, 7))))
    assert one == other == ["g"]
    assert one is not other
    data = NativeCodec().encode({"a": AIMessage(""), "b": [AIMessage("")]}, lambda part: (1, 6))
    found.add([raw_segment(3, 0, [data])])
    for ref in (Inline(data), Cell(3, 0)):
        value = found.value(ref)
        assert value == {"a": ["g"], "b": [["g"]]}
        assert value["a"] is not value["b"][0]


def test_each_element_is_decoded_once():
    codec = CountedCodec()
    found = Elements(codec, [segment(1, 0, range(100))])
    for stop in (40, 100, 60):
        assert found.value(Run(refs.LIST, (Span(1, 0, stop),))) == list(range(stop))
    found.element(1, 7)
    assert codec.decoded <= 140


@pytest.mark.parametrize(
    "span", [Span(1, 2, 3), Span(1, 0, 3), Span(1, 4, 6), Span(1, 5, 8), Span(9, 0, 1)]
)
def test_what_is_missing_is_named(found, span):
    assert found.missing([span, Span(1, 0, 2)]) == (span,)
    with pytest.raises(CorruptionError, match="missing"):
        found.value(Run(refs.LIST, (span,)))


def test_nothing_is_missing(found):
    assert found.missing([Span(1, 0, 2), Span(1, 5, 7), Span(2, 4, 5)]) == ()


def test_a_segment_that_lies():
    raws = [CODEC.encode(1)]
    with pytest.raises(CorruptionError, match="number of elements"):
        Elements(CODEC, [Segment(1, 0, 2, pack(raws, NO_COMPRESSION))])


def test_the_same_segment_twice_is_opened_once(found):
    found.add([segment(1, 0, "xy")])
    assert found.element(1, 0) == "a"


# -- patches ---------------------------------------------------------------------------


def versions(count, size=4000):
    rng = random.Random(5)
    text = rng.randbytes(size)
    for _ in range(count):
        at = rng.randrange(len(text))
        text = text[:at] + rng.randbytes(3) + text[at + rng.randrange(5) :]
        yield text


def test_a_long_chain_of_patches_is_read_in_few_steps():
    stored, raw, whole, deepest = {}, None, 0, 0
    for pos, data in enumerate(versions(600)):
        element, depth, uses, anchor = elements.patch_against(raw, data)
        stored[pos] = element
        raw = RawElement(data, 1, pos, depth, uses, anchor)
        whole += element == data
        needed = {p for span in uses for p in range(span.start, span.stop)} | {pos}
        found = Elements(CODEC, [raw_segment(1, p, [stored[p]]) for p in sorted(needed)])
        assert found.raw(1, pos) == data
        assert elements.full_size(element) == len(data)
        deepest = max(deepest, len(found._patches((1, pos), {})[1]))
    assert whole == 3
    assert deepest <= 46


def test_a_chain_goes_on_in_another_process():
    stored, raw = {}, None
    for pos, data in enumerate(versions(200)):
        element, depth, uses, anchor = elements.patch_against(raw, data)
        stored[pos] = element
        raw = RawElement(data, 1, pos, depth, uses, anchor)
        if pos % 7 == 0:  # as known to another process
            found = Elements(CODEC, [raw_segment(1, p, [e]) for p, e in stored.items()])
            raw = RawElement(found.raw(1, pos), 1, pos, found.depth(1, pos), uses)
        found = Elements(CODEC, [raw_segment(1, p, [e]) for p, e in stored.items()])
        assert len(found._patches((1, pos), {})[1]) <= 46


@pytest.mark.parametrize("order", [1, -1], ids=["oldest first", "newest first"])
@pytest.mark.parametrize("room", [1 << 20, 0], ids=["room for all", "no room"])
def test_neighbouring_versions_are_put_together_once(order, room, monkeypatch):
    stored, raw = [], None
    whole = list(versions(200))
    for pos, data in enumerate(whole):
        element, depth, uses, anchor = elements.patch_against(raw, data)
        stored.append(element)
        raw = RawElement(data, 1, pos, depth, uses, anchor)
    applied = []
    apply = elements.apply_patch
    monkeypatch.setattr(elements, "apply_patch", lambda *of: applied.append(of) or apply(*of))
    monkeypatch.setattr(elements, "_CACHE_BYTES", room)
    found = Elements(CODEC, [raw_segment(1, 0, stored)])
    for pos in range(200)[::order]:
        assert found.raw(1, pos) == whole[pos]
    patches = sum(element.startswith(elements._PATCH) for element in stored)
    assert len(applied) == patches if room else len(applied) > 5 * patches
    assert sum(map(len, found._patched.values())) <= room


def test_small_values_and_other_values_are_stored_whole():
    assert elements.patch_against(None, b"x" * 5000)[0] == b"x" * 5000
    assert elements.patch_against(RawElement(b"x" * 1000, 1, 0), b"x" * 1001)[0] == b"x" * 1001
    rng = random.Random(6)
    other = rng.randbytes(5000)
    assert elements.patch_against(RawElement(rng.randbytes(5000), 1, 0), other) == (
        other,
        0,
        (),
        None,
    )


def test_patches_in_a_circle_are_named():
    delta = elements.make_patch(b"a" * 2000, b"a" * 2001)
    ring = [
        elements._PATCH + frame.pack_varint(1) + frame.pack_varint(1 - pos) + delta
        for pos in range(2)
    ]
    found = Elements(CODEC, [raw_segment(1, 0, ring)])
    with pytest.raises(CorruptionError, match="form a cycle"):
        found.raw(1, 0)


@pytest.mark.parametrize("cut", range(2, 12))
def test_a_patch_cut_short_is_named(cut):
    base = CODEC.encode("a" * 2000)
    whole = (
        elements._PATCH
        + frame.pack_varint(300)
        + frame.pack_varint(0)
        + elements.make_patch(base, CODEC.encode("b" * 2000))
    )
    found = Elements(CODEC, [raw_segment(300, 0, [base]), raw_segment(1, 0, [whole[:cut]])])
    with pytest.raises(CorruptionError):
        found.raw(1, 0)
    with pytest.raises(CorruptionError):
        elements.full_size(whole[:cut])


# -- values with an `==` of their own --------------------------------------------------


def test_arrays_are_read_from_history():
    saver = memory_saver()
    chain = Chain(saver)
    value = [np.arange(50) + i for i in range(4)]
    for i in range(3):
        value = [*value, np.arange(60) + i]
        chain.put(x=value, y={"k": np.arange(90)})
    history = [one.checkpoint["channel_values"]["x"] for one in saver.list(config())]
    assert [len(values) for values in history] == [7, 6, 5]
    last = values_of(fresh(saver), chain.at)["x"]
    assert all(np.array_equal(a, b) for a, b in zip(last, value, strict=True))
