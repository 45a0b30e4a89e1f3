"""`saver.threads.diff`: what changed between two checkpoints, on every backend by both APIs."""

import json
import operator
from typing import Annotated, Any

import pytest
from kit.engine import counted_saver
from kit.graphs import linear
from kit.places import THREAD, at
from kit.rows import aput, place
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph.message import add_messages
from langgraph.types import interrupt
from typing_extensions import TypedDict

from threadkeep.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    InvalidConfigError,
    ThreadNotFoundError,
)

from . import delta_spec


class State(TypedDict, total=False):
    messages: Annotated[list, add_messages]
    facts: Annotated[dict, operator.or_]
    note: str


def graph(saver: Any, *, asks: bool = False) -> Any:
    def answer(state: Any) -> Any:
        said = interrupt("which?") if asks else f"answer to {state['messages'][-1].content}"
        count = len(state["messages"])
        return {"messages": [AIMessage(said, id=f"ai{count}")], "facts": {f"n{count}": [count]}}

    return linear(
        saver, State, answer=answer, sum_up=lambda s: {"note": f"{len(s['messages'])} messages"}
    )


async def say(made: Any, number: int, config: Any = None) -> str:
    """One turn; the head's id."""
    turn = {"messages": [HumanMessage(f"question {number}", id=f"h{number}")]}
    await made.ainvoke(turn, config or at())
    return id_of((await made.aget_state(at())).config)


def id_of(config: Any) -> str:
    return str(config["configurable"]["checkpoint_id"])


def told(diff: Any) -> dict[str, Any]:
    """The channels of the state that changed: kind, places and values of each change."""
    return {
        name: [(c.kind, c.before_at, c.after_at, c.before, c.after) for c in one.changes]
        for name, one in diff.channels.items()
        if not one.is_internal and not one.is_same
    }


async def test_what_a_turn_changed(look: Any) -> None:
    made = graph(look.saver)
    first, second = await say(made, 1), await say(made, 2)
    diff = await look("diff", THREAD, first, second)
    question, answer = (await made.aget_state(at())).values["messages"][2:]
    assert told(diff) == {
        "messages": [("added", (2,), (2,), None, question), ("added", (2,), (3,), None, answer)],
        "facts": [("added", ("n3",), ("n3",), None, [3])],
        "note": [("changed", (), (), "2 messages", "4 messages")],
    }
    assert not diff.is_same
    assert (diff.before.checkpoint, diff.after.checkpoint) == (first, second)
    assert (diff.before.step, diff.after.step) == (2, 6)
    found = await look.saver.aget_tuple(at(checkpoint=second))
    assert diff.after.time == found.checkpoint["ts"]
    versions = found.checkpoint["channel_versions"]
    assert {n: c.after_version for n, c in diff.channels.items()} == versions
    assert diff.channels["__start__"].is_internal


async def test_the_head_is_meant_where_no_checkpoint_is_named(look: Any) -> None:
    made = graph(look.saver)
    first, second = await say(made, 1), await say(made, 2)
    assert await look("diff", THREAD, first) == await look("diff", THREAD, first, second)
    assert (await look("diff", THREAD, None)).is_same


async def test_the_first_checkpoint_has_nothing_yet(look: Any) -> None:
    made = graph(look.saver)
    head = await say(made, 1)
    *_, first = [state async for state in made.aget_state_history(at())]
    diff = await look("diff", THREAD, id_of(first.config), head)
    kinds = {n: c.kind for n, c in diff.channels.items()}
    assert kinds["note"] == "added"
    assert diff.channels["note"].changes[0].after == "2 messages"
    assert diff.channels["__start__"].kind == "removed"
    asked = diff.channels["__start__"].changes[0].before["messages"][0]
    stored = diff.channels["messages"].changes[0].after
    assert asked == stored[0]
    assert asked is not stored[0]


async def test_subgraphs(look: Any) -> None:
    await linear(look.saver, State, inner=graph(True)).ainvoke({"messages": ["hello"]}, at())
    places = [c.config["configurable"] for c in look.saver.list(at())]
    inner = [p for p in places if p["checkpoint_ns"]]
    ns = inner[0]["checkpoint_ns"]
    ids = [str(p["checkpoint_id"]) for p in inner]
    diff = await look("diff", THREAD, ids[-1], ids[0], checkpoint_ns=ns)
    assert (diff.before.checkpoint_ns, diff.after.checkpoint_ns) == (ns, ns)
    assert diff.channels["note"].kind == "added"
    outside = await look("diff_checkpoints", at(), at(checkpoint_ns=ns))
    assert outside.channels["messages"].is_same
    assert outside.channels["note"].is_same


# -- between threads -------------------------------------------------------------------


async def test_a_copy_is_the_same(look: Any) -> None:
    made = graph(look.saver)
    first = await say(made, 1)
    await look.saver.acopy_thread(THREAD, "copy")
    assert (await look("diff_checkpoints", at(), at("copy"))).is_same
    await made.ainvoke({"messages": [HumanMessage("more", id="h9")]}, at("copy"))
    diff = await look("diff_checkpoints", (THREAD, first), ("copy", None))
    assert [kind for kind, *_ in told(diff)["messages"]] == ["added", "added"]
    assert (diff.before.thread, diff.after.thread) == (THREAD, "copy")


async def test_threads_that_never_met(look: Any) -> None:
    made = graph(look.saver)
    for thread, first in (("one", "hi"), ("two", "hello")):
        turn = {"messages": [HumanMessage(first, id="1")], "facts": {"big": ["x" * 9000] * 3}}
        await made.ainvoke(turn, at(thread))
    diff = await look("diff_checkpoints", at("one"), at("two"))
    assert told(diff) == {
        "messages": [
            ("changed", (0, "content"), (0, "content"), "hi", "hello"),
            ("changed", (1, "content"), (1, "content"), "answer to hi", "answer to hello"),
        ]
    }


# -- DeltaChannels ---------------------------------------------------------------------


async def delta(look: Any, frequency: int) -> tuple[Any, list[str]]:
    """A thread with a DeltaChannel, and its checkpoints' ids, oldest first."""
    made = await delta_spec.chat(look.saver, 3, frequency=frequency)
    return made, [id_of(c.config) for c in look.saver.list(at())][::-1]


async def test_a_delta_tells_its_writes(look: Any) -> None:
    _, ids = await delta(look, 100)
    diff = await look("diff", THREAD, ids[5], ids[7])
    log = diff.channels["log"]
    assert (log.kind, log.is_delta) == ("changed", True)
    history = [
        await look.saver.aget_delta_channel_history(config=at(checkpoint=i), channels=["log"])
        for i in (ids[5], ids[7])
    ]
    before, after = ([w for _, _, w in found["log"]["writes"]] for found in history)
    assert len(before) < len(after)
    assert [(c.kind, c.after_at[0], c.after) for c in log.changes] == [
        ("added", "writes", write) for write in after[len(before) :]
    ]
    assert "a delta channel" in diff.as_text()


async def test_the_same_writes_are_no_difference(look: Any) -> None:
    made, ids = await delta(look, 100)
    config = await made.aupdate_state(at(), {"turns": 9})
    diff = await look("diff", THREAD, ids[-1], id_of(config))
    assert diff.channels["log"].is_same
    assert [n for n, c in diff.channels.items() if not c.is_same and not c.is_internal] == ["turns"]


async def test_snapshots_are_compared_as_values(look: Any) -> None:
    _, ids = await delta(look, 1)
    diff = await look("diff", THREAD, ids[3], ids[-1])
    log = diff.channels["log"]
    assert not log.is_delta
    new = list(enumerate(delta_spec.lines(3)))[3:]
    assert [(c.after_at, c.after) for c in log.changes] == [((n,), line) for n, line in new]


async def test_from_a_snapshot_to_what_was_written_since(look: Any) -> None:
    first = await aput(look.saver, place(), {"log": _DeltaSnapshot(["s"])}, log=1)
    await delta_spec.write(look.saver, first, ["w"])
    second = await aput(look.saver, first, log=2)
    diff = await look("diff", THREAD, id_of(first), id_of(second))
    log = diff.channels["log"]
    assert log.is_delta
    assert [(c.kind, c.after_at, c.after) for c in log.changes] == [("added", ("writes", 0), ["w"])]
    await delta_spec.write(look.saver, second, ["v"])
    third = await aput(look.saver, second, {"log": _DeltaSnapshot(["s", "w", "v"])}, log=3)
    diff = await look("diff", THREAD, id_of(first), id_of(third))
    log = diff.channels["log"]
    assert not log.is_delta
    assert [c.after for c in log.changes] == ["w", "v"]


async def test_deltas_of_a_pruned_thread(look: Any) -> None:
    made, _ = await delta(look, 100)
    await look.saver.aprune([THREAD])
    before = (await look("branches", THREAD)).head
    await made.ainvoke({"log": ["again"]}, at())
    log = (await look("diff", THREAD, before)).channels["log"]
    assert log.is_delta
    assert [c.after for c in log.changes] == [["again"], ["a10"], ["b11"]]


async def test_a_channel_that_became_empty_is_no_delta(look: Any) -> None:
    first = await aput(look.saver, place(), {"v": [1]}, v=1)
    second = await aput(look.saver, first, v=2)
    third = await aput(look.saver, second, v=3)
    diff = await look("diff", THREAD, id_of(first), id_of(second))
    assert (diff.channels["v"].kind, diff.channels["v"].is_delta) == ("removed", False)
    diff = await look("diff", THREAD, id_of(second), id_of(third))
    assert (diff.channels["v"].kind, diff.channels["v"].is_delta) == ("version", False)


# -- forms, errors, costs --------------------------------------------------------------


async def test_both_forms_of_a_real_one(look: Any) -> None:
    made = graph(look.saver)
    first, second = await say(made, 1), await say(made, 2)
    diff = await look("diff", THREAD, first, second)
    data = json.loads(json.dumps(diff.as_data()))
    assert data["channels"]["messages"]["changes"][0]["after"]["content"] == "question 2"
    text = diff.as_text()
    assert '  + [2] HumanMessage "question 2"' in text.splitlines()
    assert "branch:to" not in text
    assert "branch:to" in diff.as_text(internal=True)


async def test_what_is_not_there(look: Any) -> None:
    head = id_of(await aput(look.saver, place(), {"v": 1}))
    await look.refuses(ThreadNotFoundError, "diff", "nobody", None)
    await look.refuses(ThreadNotFoundError, "diff", THREAD, None, checkpoint_ns="nowhere")
    error = await look.refuses(CheckpointNotFoundError, "diff", THREAD, head, "none")
    assert (error.thread, error.checkpoint) == (THREAD, "none")
    await look.refuses(ThreadNotFoundError, "diff_checkpoints", at(), at("nobody"))


async def test_wrong_arguments(look: Any) -> None:
    await aput(look.saver, place(), {"v": 1})
    await look.refuses(InvalidArgumentError, "diff", THREAD, 5)
    for places in ((at(), "text"), (None, at()), ((THREAD,), at())):
        await look.refuses(InvalidArgumentError, "diff_checkpoints", *places)
    await look.refuses(InvalidConfigError, "diff_checkpoints", at(), {})


MESSAGES = 2_400


@pytest.fixture
def long_thread() -> Any:
    saver, backend, codec = counted_saver()
    messages = [HumanMessage(f"{n} {'x' * 200}", id=f"m{n}") for n in range(MESSAGES)]
    values = {"messages": messages, "policy": "p" * 10_000, "n": 1}
    first = saver.put(*arguments(place(), "1", values))
    edited = [*messages[:50], HumanMessage("edited", id="m50"), *messages[51:]]
    second = saver.put(*arguments(first, "2", {**values, "messages": [*edited, AIMessage("new")]}))
    backend.asked()
    codec.decoded, codec.encoded = 0, []
    return saver, backend, codec, second


def arguments(config: Any, id: str, values: Any) -> Any:
    fixed = ("policy", "n")
    versions = {name: 1 if name in fixed else int(id) for name in values}
    made = {"v": 4, "id": id, "ts": "", "channel_values": values, "channel_versions": versions}
    return config, {**made, "versions_seen": {}}, {}, {}


def test_the_shared_start_of_a_list_is_not_read(long_thread: Any) -> None:
    saver, backend, codec, config = long_thread
    messages = saver.get_tuple(config).checkpoint["channel_values"]["messages"]
    saver.put(*arguments(config, "3", {"messages": [*messages, AIMessage("newer")], "n": 1}))
    backend.asked()
    codec.decoded = 0
    diff = saver.threads.diff(THREAD, "2", "3", channels=["messages", "absent"])
    (change,) = diff.channels["messages"].changes
    place = (MESSAGES + 1,)
    assert (change.kind, change.before_at, change.after_at) == ("added", place, place)
    assert change.after.content == "newer"
    assert [*diff.channels] == ["messages"]
    assert codec.decoded <= 5  # (metadata aside, the new message)
    back = saver.threads.diff(THREAD, "3", "2")
    assert [(c.kind, c.before_at) for c in back.channels["messages"].changes] == [
        ("removed", place)
    ]


def test_a_long_list_is_read_once_and_what_is_shared_is_not_read(long_thread: Any) -> None:
    saver, backend, codec, _ = long_thread
    diff = saver.threads.diff(THREAD, "1", "2")
    assert backend.asked() == (2, 0)
    # (metadata aside, each message behind the shared ones once for both sides)
    assert codec.decoded <= MESSAGES - 50 + 4
    assert [(c.kind, c.after_at) for c in diff.channels["messages"].changes] == [
        ("changed", (50, "content")),
        ("added", (MESSAGES,)),
    ]
    assert diff.channels["policy"].kind == "unchanged"


def test_nothing_is_decoded_where_all_is_shared(long_thread: Any) -> None:
    saver, backend, codec, _ = long_thread
    assert saver.threads.diff(THREAD, "2", "2").is_same
    assert backend.asked() == (1, 0)
    assert codec.decoded == 0


def test_a_reader_may_change_what_it_was_told(long_thread: Any) -> None:
    saver, _, _, config = long_thread
    diff = saver.threads.diff(THREAD, "1", "2")
    diff.channels["messages"].changes[-1].after.content = "changed by the reader"
    assert saver.get_tuple(config).checkpoint["channel_values"]["messages"][-1].content == "new"


def test_channels_that_langgraph_empties_are_not_looked_for(long_thread: Any) -> None:
    saver, backend, _, config = long_thread
    for number in range(3, 200):
        made = arguments(config, f"{number:03}", {"n": number})
        made[1]["channel_versions"]["branch:to:node"] = number
        config = saver.put(*made)
    backend.asked()
    assert saver.threads.diff(THREAD, "003", "199").channels["branch:to:node"].kind == "version"
    assert backend.asked() == (1, 0)
