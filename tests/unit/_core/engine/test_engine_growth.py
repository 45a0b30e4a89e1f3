"""The bytes added per step stay flat under any changes, and everything reads back exactly."""

import random
import resource
import sys

import pytest
from kit.engine import Chain, Counted, exactly, fresh, values_of
from kit.selection import some
from langchain_core.messages import HumanMessage

from threadkeep.savers.saver import Saver

STEPS = some(500, 1000)
LONG = "some text that a message may well have, not very long and not very short "


def item(i):
    return {"id": i, "text": f"{i} {LONG}"}


class Grown:
    """A thread that is put step by step, and the bytes that each step added."""

    def __init__(self):
        self.backend = Counted()
        self.saver = Saver(self.backend)
        self.chain = Chain(self.saver)
        self.added = []
        self.shown = []

    def put(self, value):
        at = self.chain.put(x=value)
        self.added.append(self.backend.growth)
        if len(self.added) % 97 in (0, 1):
            self.shown.append((at, exactly(value)))
        self.last = at, value

    def mean(self, start, stop):
        return sum(self.added[start:stop]) / (stop - start)

    def check(self):
        """Every noted checkpoint reads back in a process that remembers nothing."""
        reader = fresh(self.saver)
        last, value = self.last
        for at, shown in (*self.shown, (last, exactly(value))):
            assert exactly(values_of(reader, at)["x"]) == shown
        assert reader.check().ok

    def check_flat(self, limit):
        """The last steps cost no more than the early ones, and little."""
        self.check()
        early, late = self.mean(100, 300), self.mean(STEPS - 200, STEPS)
        assert late <= early * 1.3 + 60, (early, late)
        assert late <= limit, late


@pytest.fixture
def grown():
    return Grown()


def items(count):
    return [item(i) for i in range(count)]


def append_to_the_same_list(value, i, rng):
    value.append(HumanMessage(f"{i} {LONG}", id=str(i)))
    return value


def edit_in_the_middle(value, i, rng):
    at = rng.randrange(len(value))
    return [*value[:at], item(1000 + i), *value[at + 1 :]]


def change_in_place(value, i, rng):
    value[rng.randrange(len(value))]["id"] = 1000 + i
    return value


def remove(value, i, rng):
    at = rng.randrange(len(value))
    return [*value[:at], *value[at + 1 :]]


def reorder(value, i, rng):
    value = list(value)
    value.insert(rng.randrange(len(value)), value.pop(rng.randrange(len(value))))
    return value


def grow_a_dict(value, i, rng):
    value[f"call {i}"] = f"{i} {LONG}"
    return value


# The change of a step, the value before the first step, and the most bytes of a late step.
CHANGES = {
    "append": (lambda value, i, rng: [*value, item(i)], list, 400),
    "append to the same list": (append_to_the_same_list, list, 400),
    "edit in the middle": (edit_in_the_middle, lambda: items(500), 1200),
    "change in place": (change_in_place, lambda: items(500), 1200),
    "remove": (remove, lambda: items(1500), 1200),
    "window": (lambda value, i, rng: [*value[1:], item(1000 + i)], lambda: items(100), 400),
    "reorder": (reorder, lambda: items(300), 1200),
    "one of 500 in a dict": (
        lambda value, i, rng: {**value, f"file {rng.randrange(500)}.py": f"new {i} {LONG}" * 3},
        lambda: {f"file {i}.py": f"{i} {LONG}" * 3 for i in range(500)},
        1500,
    ),
    "a dict that grows": (grow_a_dict, dict, 400),
    "tuple": (lambda value, i, rng: (*value, (i, f"{i} {LONG}")), tuple, 400),
}


@pytest.mark.drawn(3)
@pytest.mark.parametrize("kind", CHANGES)
def test_a_step_costs_what_it_changes(grown, kind):
    change, first, most = CHANGES[kind]
    value, rng = first(), random.Random(1)
    for i in range(STEPS):
        value = change(value, i, rng)
        grown.put(value)
    grown.check_flat(most)


def test_text_of_a_megabyte_edited_at_one_place(grown):
    rng = random.Random(6)
    lines = [f"line {i} {rng.random()} {LONG}\n" for i in range(11_000)]
    for i in range(STEPS // 4):
        lines[rng.randrange(len(lines))] = f"edited {i} {LONG}\n"
        grown.put("".join(lines))
    assert len(grown.last[1]) > 1_000_000
    grown.check()
    whole = [size for size in grown.added if size > 20_000]
    assert len(whole) <= 3  # the first, and occasionally a new one
    assert sum(size for size in grown.added if size <= 20_000) / len(grown.added) < 1000


def test_text_that_grows(grown):
    value = ""
    for i in range(STEPS):
        value += f"{i} {LONG}\n"
        grown.put(value)
    grown.check()
    assert grown.mean(0, STEPS) < 250


def test_set(grown):
    rng = random.Random(7)
    value = {f"member {i} {rng.random()}" for i in range(200)}
    for i in range(STEPS // 4):
        value = value - {rng.choice(sorted(value))} | {f"new {i} {rng.random()}"}
        grown.put(value)
    grown.check()
    # A set is one value, stored as a patch of an earlier one, and occasionally whole.
    assert grown.mean(1, len(grown.added)) < 250


def test_nested_values(grown):
    value = {"plan": [], "done": {}, "names": ()}
    for i in range(STEPS // 4):
        value["plan"].append({"step": i, "parts": [{"a": (i, LONG)}]})
        value["done"][str(i)] = [i, {LONG}]
        value["names"] = (*value["names"], i)
        grown.put(value)
    grown.check()


def test_many_channels_of_which_one_changes(grown):
    chain = grown.chain
    chain.put(**{f"channel_{i}": f"{i} {LONG}" for i in range(300)})
    for i in range(200):
        chain.put(channel_7=f"{i} {LONG}")
    sizes = []
    for i in range(200):
        chain.put(channel_7=f"{i} {LONG}")
        sizes.append(grown.backend.growth)
    # A keyframe, written occasionally, holds all channels.
    assert sum(sizes) / len(sizes) < 500
    assert fresh(grown.saver).check().ok


def test_hundred_megabytes():
    """One value of 100 MB, put twice: the second put stores only the change."""
    backend = Counted()
    saver = Saver(backend)
    chain = Chain(saver)
    value = random.Random(8).randbytes(1_000_000) * 100
    chain.put(x=value)
    assert backend.growth < 105_000_000
    backend.asked()
    changed = b"".join((value[:70_000_000], b"an edit", value[70_000_003:]))
    at = chain.put(x=changed)
    assert backend.growth < 1000
    del chain
    assert values_of(fresh(saver), at)["x"] == changed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    assert peak < 2_500_000_000
