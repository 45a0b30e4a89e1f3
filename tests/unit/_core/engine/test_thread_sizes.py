"""`stats` compared with the bytes of whole encoded values."""

import random

import pytest
from kit.engine import Chain, checkpoint, config, fresh, memory_saver
from kit.values import Plain
from langchain_core.messages import AIMessage, HumanMessage

from threadkeep._core.codec import NativeCodec
from threadkeep._core.codec.introspection import references
from threadkeep._core.engine import log_sizes
from threadkeep._core.engine.model import Span

LONG = "x" * 200


def messages(count):
    return [HumanMessage(f"{i} {LONG}", id=f"{i}") for i in range(count)]


def whole(values):
    return sum(len(NativeCodec().encode(value)) for value in values)


@pytest.mark.parametrize("count", [3, 40])
def test_a_value_that_holds_what_another_channel_holds_counts_in_full(count):
    """The second versions are patches of the first, and refer to more elements."""
    saver = memory_saver()
    chain = Chain(saver)
    told = []
    for size in (count, count + 5, count + 5, count + 1):
        value = messages(size) if not told else [*told[-1][0]][:size]
        value += messages(size)[len(value) :]
        chain.put(m=value)
        chain.put(box=Plain(value, "y" * 2000))
        told.append((value, chain.values["box"]))
    boxes, lists = [], []
    for found in saver.list(config()):
        values = found.checkpoint["channel_values"]
        lists.append(values["m"])
        boxes += [values["box"]] if "box" in values else []
    expected = whole([*boxes, *(item for one in lists for item in one)])
    assert saver.stats().full_copy_bytes == pytest.approx(expected, rel=0.01)
    assert fresh(saver).stats() == saver.stats()


def test_a_graphs_input_counts_in_full():
    saver = memory_saver()
    new = [AIMessage(LONG, id="1")]
    first = {"__start__": {"m": new, "n": 1}}
    at = saver.put(config(), checkpoint(1, first, {"__start__": 1}), {}, {"__start__": 1})
    versions = {"m": 2, "__start__": 2}
    saver.put(at, checkpoint(2, {"m": new}, versions), {}, versions)
    expected = whole([first["__start__"], new[0]])
    assert saver.stats().full_copy_bytes == pytest.approx(expected, rel=0.01)


def test_every_reference_is_found():
    chance = random.Random(1)
    for _ in range(200):
        places = [(chance.getrandbits(chance.randrange(1, 63)), chance.randrange(2**40))]
        places += [(chance.randrange(300), chance.randrange(300)) for _ in range(20)]
        objects = messages(len(places))
        where = {id(item): place for item, place in zip(objects, places, strict=True)}
        value = Plain(objects[:9], {"k": Plain(objects[9:], 1)})
        data = NativeCodec().encode(value, lambda part, where=where: where.get(id(part)))
        assert [(log, pos) for log, pos, _, _ in references(data)] == places


def test_bytes_that_only_look_like_references():
    for data in (
        b"",
        b"\xd4\x00",
        b"\xc7\x03\x00\x92",
        b"\xd6\x00\x92\xc0\xc0\x00",
        b"\xd8\x00\x92",
    ):
        assert list(references(data)) == []
    assert whole([Plain(b"\xc7\x03\x00\x92\x01\x02", 1)])


def test_the_sizes_of_a_growing_list_are_not_summed_position_by_position(monkeypatch):
    saver = memory_saver()
    chain = Chain(saver)
    for i in range(150):
        chain.put(m=[*chain.values.get("m", []), f"{i} {LONG}"])
    before = saver.stats()
    positions = []

    def counted(*given):
        positions.append(len(range(*given)))
        return range(*given)

    monkeypatch.setattr(log_sizes, "range", counted, raising=False)
    assert saver.stats() == before
    assert sum(positions) <= 4 * 150


def test_sums_over_any_spans():
    chance = random.Random(2)
    sizes = {chance.randrange(100): chance.randrange(9) for _ in range(60)}
    sums = log_sizes.Sums()
    for pos in sorted(sizes):
        sums.add(1, pos, [sizes[pos]])
    sums.add(3, 2**50, [7])
    for _ in range(200):
        start, stop = chance.randrange(110), chance.randrange(110)
        if start <= stop:
            inside = [size for pos, size in sizes.items() if start <= pos < stop]
            assert sums.over((Span(1, start, stop), Span(2, 0, 9))) == sum(inside)
    assert sums.over((Span(3, 0, 2**60),)) == 7
    assert sums.total == sum(sizes.values()) + 7
