"""A value that a program keeps changing is stored as it was at one instant of the call.

A thread turns switches inside a value on, one after the other, and then off in the same order,
repeatedly. So at any instant there is at most one place in the row where on and off meet, in
whatever containers the switches are. Two such places never existed together.
"""

import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any, NamedTuple

import pytest
from kit.engine import Chain, exactly, fresh, memory_saver, values_of
from kit.values import Attrs, Mixed, Model, Plain, Slotted
from langchain_core.messages import AIMessage

from threadkeep._core.engine import shadow as shadows

LONG = "x" * 70
ENGINE = "threadkeep._core.engine."
PUTS = 200


class Switch(NamedTuple):
    """Turned in the value, and read in the stored value, by the same path."""

    turn: Any
    read: Any


def item(find, value, key):
    part = find(value)
    return Switch(lambda on: part.__setitem__(key, int(on)), lambda got: find(got)[key])


def member(find, value, name):
    part = find(value)
    return Switch(
        lambda on: part.add(name) if on else part.discard(name), lambda got: name in find(got)
    )


def key(find, value, name):
    part = find(value)
    return Switch(
        lambda on: part.__setitem__(name, LONG) if on else part.pop(name, None),
        lambda got: name in find(got),
    )


def last(find, value):
    part, least = find(value), len(find(value))
    return Switch(
        lambda on: part.append("on") if on else part.remove("on"),
        lambda got: len(find(got)) > least,
    )


def attribute(find, value, name):
    part = find(value)
    return Switch(lambda on: setattr(part, name, int(on)), lambda got: getattr(find(got), name))


def whole(value):
    return value


def of_set(size):
    value = set(range(size))
    return value, [member(whole, value, f"member {n}") for n in range(9)]


def of_dict(cls, *more):
    value = cls(*more)
    value["first"] = LONG
    return value, [key(whole, value, f"key {n}") for n in range(9)]


def of_flags():
    value = [{"flag": 0, "text": LONG} for _ in range(60)]
    return value, [item(lambda v, n=n: v[n], value, "flag") for n in range(0, 60, 7)]


def of_messages():
    value = [AIMessage(LONG, id=str(n), additional_kwargs={"k": [0]}) for n in range(20)]
    found = [attribute(lambda v, n=n: v[n], value, "name") for n in range(0, 20, 3)]
    found += [item(lambda v, n=n: v[n].additional_kwargs["k"], value, 0) for n in range(0, 20, 3)]
    return value, [*found, last(whole, value)]


def of_everything():
    value = {
        "dict": {"a": 0},
        "sets": [{1, 2}],
        "ordered": (OrderedDict(a=0, b=LONG),),
        "default": defaultdict(list, a=0),
        "deque": deque([0, LONG]),
        "list": {"deep": [[0], LONG]},
    }
    return value, [
        item(lambda v: v["dict"], value, "a"),
        member(lambda v: v["sets"][0], value, 3),
        item(lambda v: v["ordered"][0], value, "a"),
        key(lambda v: v["ordered"][0], value, "c"),
        item(lambda v: v["default"], value, "a"),
        item(lambda v: v["deque"], value, 0),
        last(lambda v: v["deque"], value),
        item(lambda v: v["list"]["deep"][0], value, 0),
        last(lambda v: v["list"]["deep"], value),
    ]


def of_instances():
    value = [Plain(0, 0), Slotted(0, 0), Mixed(0, 0), Attrs(0, 0), Model(a=0, b=0)]
    places = range(len(value))
    return value, [attribute(lambda v, n=n: v[n], value, name) for n in places for name in "ab"]


def of_bytes():
    value = {"one": bytearray(90), "two": [bytearray(90)]}
    switches = [item(lambda v: v["one"], value, n) for n in range(0, 90, 20)]
    return value, switches + [item(lambda v: v["two"][0], value, n) for n in range(0, 90, 20)]


class Derived(dict):
    """A dict class of the program, like attribute dicts."""


def of_derived():
    value = [Derived(flag=0, members={1}), Counter("aab")]
    return value, [
        item(lambda v: v[0], value, "flag"),
        *[member(lambda v: v[0]["members"], value, f"member {n}") for n in range(5)],
        *[key(lambda v: v[1], value, f"key {n}") for n in range(5)],
    ]


KINDS = {
    "set": lambda: of_set(20),
    "big set": lambda: of_set(3000),
    "dict": lambda: of_dict(dict),
    "OrderedDict": lambda: of_dict(OrderedDict),
    "defaultdict": lambda: of_dict(defaultdict, int),
    "flags": of_flags,
    "messages": of_messages,
    "everything": of_everything,
    "instances": of_instances,
    "bytearray": of_bytes,
    "derived": of_derived,
}


@contextmanager
def turning(switches):
    """Run a thread that turns the switches."""
    stop = threading.Event()

    def turn():
        for on in cycle((True, False)):
            for switch in switches:
                switch.turn(on)
            if stop.is_set():
                return

    thread = threading.Thread(target=turn)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)


def torn(stored, switches):
    """Return the stored switches if they never had these states together."""
    row = [bool(switch.read(stored)) for switch in switches]
    return row if sum(a != b for a, b in pairwise(row)) > 1 else None


@pytest.mark.drawn(4)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_stored_has_existed(kind):
    value, switches = KINDS[kind]()
    chain = Chain(memory_saver())
    with turning(switches):
        puts = [chain.put(x=value, n=n) for n in range(PUTS)]
    reader = fresh(chain.saver)
    found = [torn(values_of(reader, at)["x"], switches) for at in puts]
    assert [row for row in found if row] == []
    chain.put(x=value)
    assert exactly(values_of(fresh(chain.saver), chain.at)["x"]) == exactly(value)


@pytest.fixture
def _in_python(monkeypatch):
    """The whole engine with only the parts in Python."""
    names = {"Shadow": shadows.PortableShadow, "copy_and_watch": shadows.portable_copy_and_watch}
    names |= {"disjoint": shadows.portable_disjoint, "ONE_LEAF": shadows.PortableShadow.of([None])}
    engine = [module for name, module in sys.modules.items() if name.startswith(ENGINE)]
    for name, portable in names.items():
        compiled = getattr(shadows, name)
        for module in engine:
            if getattr(module, name, None) is compiled:
                monkeypatch.setattr(module, name, portable)


@pytest.mark.usefixtures("_in_python")
@pytest.mark.parametrize("kind", KINDS)
def test_in_python_no_save_fails_and_nothing_wrong_stays(kind):
    value, switches = KINDS[kind]()
    chain = Chain(memory_saver())
    with turning(switches):
        for n in range(PUTS // 10):
            chain.put(x=value, n=n)
    chain.put(x=value)
    assert exactly(values_of(fresh(chain.saver), chain.at)["x"]) == exactly(value)


@dataclass(eq=False)
class Key:
    name: str


def test_keys_that_change_end_no_save():
    """They are not copied, because a dict would have to be hashed again."""
    value = {Key(f"{n}"): LONG for n in range(20)}
    keys = list(value)
    chain = Chain(memory_saver())
    with turning([attribute(lambda _, n=n: keys[n], value, "name") for n in range(20)]):
        for n in range(PUTS):
            chain.put(x=value, n=n)
    chain.put(x=value)
    stored = values_of(fresh(chain.saver), chain.at)["x"]
    assert [key.name for key in stored] == [key.name for key in keys]
