"""A value that is changed in place and put again is stored changed."""

import asyncio
from dataclasses import dataclass
from typing import Annotated

import pytest
from kit.engine import Chain, CountedCodec, config, exactly, fresh, memory_saver, shown, values_of
from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

LONG = "x" * 90


@dataclass(slots=True)
class Point:
    x: int


@dataclass
class Named(Point):
    name: str


def read_back(chain):
    """Return the last checkpoint as another process reads it."""
    return values_of(fresh(chain.saver), chain.at)


@pytest.fixture
def chain():
    return Chain(memory_saver())


def test_equal_object_takes_the_place_and_changes(chain):
    first, second = {"a": LONG}, {"a": LONG}
    chain.put(x=[first])
    chain.put(x=[second, {"b": LONG}])
    second["a"] = "changed"
    chain.put(x=[second, {"b": LONG}])
    assert read_back(chain)["x"][0] == {"a": "changed"}


def test_slots_beside_a_dict_are_compared(chain):
    chain.put(x=[Named(1, LONG), LONG])
    chain.put(x=[Named(2, LONG), LONG])
    assert exactly(read_back(chain)["x"]) == exactly([Named(2, LONG), LONG])


def test_pending_write_changed_before_its_put(chain):
    message = {"a": LONG}
    at = chain.put(n=0)
    chain.saver.put_writes(at, [("x", [message])], "task")
    message["a"] = "changed"
    chain.put(x=[message])
    assert read_back(chain)["x"] == [{"a": "changed"}]
    tuple_ = fresh(chain.saver).get_tuple(at)
    assert tuple_.pending_writes == [("task", "x", [{"a": LONG}])]


class Interrupting(CountedCodec):
    """Simulates another thread that changes an object as soon as it is encoded."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def encode(self, value, intern=None):
        data = super().encode(value, intern)
        self.change()
        self.change = lambda: None
        return data


@pytest.mark.parametrize(
    "make", [lambda m: [m], lambda m: {"k": m}, lambda m: (m, LONG), lambda m: m]
)
@pytest.mark.parametrize("first", ["write", "put"])
def test_an_object_that_changes_while_it_is_encoded(chain, make, first):
    message = AIMessage(LONG, id=None)
    saver, at = chain.saver, chain.put(n=0)
    codec = Interrupting(lambda: setattr(message, "id", "given late"))
    saver._engine = saver._engine._replace(codec=codec)
    value = make(message)
    if first == "write":
        saver.put_writes(at, [("x", value)], "task")
    else:
        chain.put(x=value)
    chain.put(x=value)
    assert exactly(read_back(chain)["x"]) == exactly(value)
    again = make(message)
    chain.put(x=again)
    assert exactly(read_back(chain)["x"]) == exactly(again)


def test_a_key_that_is_equal_but_of_another_type_inside_a_tuple(chain):
    value = {"text": LONG}
    chain.put(x={(1, 2): value, "other": LONG})
    chain.put(x={"first": LONG, (True, 2): value, "other": LONG})
    assert exactly(read_back(chain)["x"]) == exactly(
        {"first": LONG, (True, 2): value, "other": LONG}
    )


async def test_aput_stores_its_values_as_they_were_when_it_was_called(chain):
    at = chain.put(n=0)
    value = [LONG, {"k": LONG}]
    chain.saver.put_writes(at, [("x", value)], "task")
    value.append("in time")
    arguments = chain.arguments(x=value)
    putting = asyncio.ensure_future(chain.saver.aput(*arguments))
    await asyncio.sleep(0)
    value.pop()
    value[1]["k"] = "too late"
    await putting
    chain.at = config(checkpoint_id=arguments[1]["id"])
    assert read_back(chain)["x"] == [LONG, {"k": LONG}, "in time"]


@dataclass(eq=False)
class Mutable:
    name: str


def test_a_key_changed_in_place(chain):
    key = Mutable("before")
    chain.put(x={key: LONG, "other": LONG})
    key.name = "after"
    chain.put(x={key: LONG, "other": LONG})
    assert [k.name for k in read_back(chain)["x"] if isinstance(k, Mutable)] == ["after"]


def gather(old, new):
    """A reducer that changes its argument."""
    old = old or {}
    for key, values in new.items():
        old.setdefault(key, []).extend(values)
    return old


class Gathered(TypedDict):
    found: Annotated[dict, gather]
    n: int


def test_a_reducer_that_changes_its_value_for_a_graphs_input():
    saver = memory_saver()
    builder = StateGraph(Gathered)
    builder.add_node("count", lambda state: {"n": state.get("n", 0) + 1})
    builder.add_edge(START, "count")
    graph = builder.compile(checkpointer=saver)
    at = {"configurable": {"thread_id": "t"}}
    for i in range(5):
        graph.invoke({"found": {"key": [f"{i} {LONG}"]}}, at, durability="sync")
        found = builder.compile(checkpointer=fresh(saver)).get_state(at).values["found"]
        assert found == {"key": [f"{n} {LONG}" for n in range(i + 1)]}


@pytest.mark.parametrize("count", [3, 100])
def test_a_dict_with_keys_that_are_no_plain_values_grows(chain, count):
    value = {(0, "a"): LONG, (1, "a"): LONG}
    chain.put(x=value)
    chain.put(x=value | {(i, "b"): LONG for i in range(count)})
    assert exactly(read_back(chain)["x"]) == exactly(chain.values["x"])


def test_what_a_reader_does_to_a_checkpoint_changes_nothing(chain):
    at = chain.put(x=[{"a": LONG}, [1, 2, 3]], y={"k": {"b": LONG}}, z={1, 2})
    chain.saver.put_writes(at, [("x", [3])], "task")
    stored = shown(fresh(chain.saver).get_tuple(at))
    for _ in range(2):
        for found in (chain.saver.get_tuple(at), next(chain.saver.list(at))):
            assert shown(found) == stored
            found.checkpoint["channel_values"]["x"][0]["a"] = "mine"
            found.checkpoint["channel_values"]["y"].clear()
            found.checkpoint["channel_values"]["z"].add(3)
            found.checkpoint["channel_values"]["new"] = 1
            found.checkpoint["channel_versions"]["x"] = 99
            found.checkpoint["versions_seen"]["n"] = {}
            found.metadata["source"] = "mine"
            found.pending_writes[0][2].append(9)
            found.pending_writes.clear()
    chain.put(n=1)
    after = shown(fresh(chain.saver).get_tuple(chain.at))["values"]
    assert after == {**stored["values"], "n": exactly(1)}


class Meddling(CountedCodec):
    """Changes a value while it is encoded, and optionally back again."""

    def __init__(self, flags, back):
        super().__init__()
        self.flags, self.back, self.left = flags, back, 99

    def encode(self, value, intern=None):
        before = [part["flag"] for part in self.flags]
        self.left -= 1
        for part in self.flags if self.left >= 0 else ():
            part["flag"] = f"busy {self.left}"
        try:
            return super().encode(value, intern)
        finally:
            for part, flag in zip(self.flags, before, strict=True):
                part["flag"] = flag if self.back else part["flag"]


@pytest.mark.parametrize("back", [True, False])
@pytest.mark.parametrize(
    "wrap", [list, tuple, lambda flags: {"in": flags}, lambda flags: {"__start__": flags}]
)
def test_changed_while_it_is_encoded(back, wrap):
    flags = [{"flag": "idle", "text": LONG, "n": n} for n in range(50)]
    saver, value = memory_saver(), wrap(flags)
    chain, codec = Chain(saver), Meddling(flags, back)
    saver._engine = saver._engine._replace(codec=codec)
    chain.put(x=value, n=1)
    first = read_back(chain)["x"]
    codec.left = 0
    chain.put(x=value, n=2)
    assert read_back(chain)["x"] == value
    parts = first.get("in", first.get("__start__")) if isinstance(first, dict) else first
    assert len({part["flag"] for part in parts}) == 1, "of one instant"
