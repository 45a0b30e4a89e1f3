"""Streams of graphs: the caller sees LangGraph's own, and what came is saved."""

import asyncio
import itertools
import operator
import threading
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from kit.graphs import linear
from kit.places import at
from kit.runs import WAIT
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.cache.memory import InMemoryCache
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import CachePolicy, Command, interrupt
from typing_extensions import TypedDict

from threadkeep import MemorySaver
from threadkeep.errors import BackendError, ConflictError, InvalidArgumentError, InvalidConfigError
from threadkeep.memory import LayeredCheckpointSaver, Layers
from threadkeep.streaming import StreamingCheckpointSaver, astream_saved, stream_saved

from .saves import Watched

MODES = [
    None,
    *("values", "updates", "messages", "custom", "checkpoints", "tasks", "debug"),
    ["values"],
    ["messages", "custom"],
    ["updates", "values", "checkpoints", "messages", "custom"],
    [],
    ("messages", "custom"),
]


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], operator.add]


def model(*texts: str) -> Any:
    numbers = itertools.count()
    made = (AIMessage(text, id=f"m{next(numbers)}") for text in itertools.cycle(texts))
    return GenericFakeChatModel(messages=made)


def builder() -> StateGraph[State]:
    """A model, then two nodes at once: one is a graph with a model."""
    talking, inside = model("one two three"), model("four five")

    def talk(state: State) -> dict[str, Any]:
        get_stream_writer()({"progress": 1})
        return {"messages": [talking.invoke(state["messages"])], "notes": ["talked"]}

    def look(state: State) -> dict[str, Any]:
        get_stream_writer()({"inside": len(state["messages"])})
        return {"messages": [inside.invoke(state["messages"])]}

    sub = StateGraph(State).add_node("look", look).add_edge(START, "look").compile()
    return StateGraph(State).add_sequence([("talk", talk), ("sub", sub)]).add_edge(START, "talk")


OVERTAKEN = 6  # messages of two turns
QUESTION = {"messages": [("user", "hello")], "notes": []}


ANEW = {"id", "ts", "timestamp", "config", "parent_config", "metadata", "tool_calls"}
OF_RUNS = ("checkpoint", "langgraph_checkpoint", "langgraph_path", "ls_", "thread", "lc_")


def plain(found: Any) -> Any:
    """Return the streamed events, without the values that differ in each run."""
    if isinstance(found, dict):
        left = [key for key in found if key not in ANEW and not key.startswith(OF_RUNS)]
        return {key: plain(found[key]) for key in left}
    if isinstance(found, list | tuple):
        return type(found)(map(plain, found))
    if hasattr(found, "content"):
        return type(found).__name__, found.content
    return found.split(":", maxsplit=1)[0] if isinstance(found, str) else found


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("subgraphs", [False, True])
@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_the_caller_sees_what_the_graph_streams(
    mode: Any, subgraphs: bool, version: Any
) -> None:
    options = {"stream_mode": mode, "subgraphs": subgraphs, "version": version}
    with MemorySaver() as saver:
        want = list(builder().compile(checkpointer=saver).stream(QUESTION, at("a"), **options))
        graph = builder().compile(checkpointer=saver)
        seen = list(stream_saved(graph, QUESTION, at("b"), **options))
        assert plain(seen) == plain(want)
        graph = builder().compile(checkpointer=saver)
        awaited = [one async for one in astream_saved(graph, QUESTION, at("c"), **options)]
        assert plain(awaited) == plain(want)
        assert [one.status for one in saver.partial("b")] == ["completed"]
        assert saver.check().ok


class Held:
    """A graph that streams a text, and stops in the middle of its node until it is let go."""

    def __init__(self, saver: Any) -> None:
        self.go = threading.Event()
        talking = model("one two")

        async def first(state: State) -> dict[str, Any]:
            get_stream_writer()({"progress": 1})
            return {"notes": ["first"], "messages": [await talking.ainvoke(state["messages"])]}

        async def second(state: State) -> dict[str, Any]:
            assert await asyncio.to_thread(self.go.wait, WAIT)
            return {"notes": ["second"]}

        made = StateGraph(State).add_node("first", first).add_node("second", second)
        made.add_edge(START, "first").add_edge(START, "second")
        self.graph = made.compile(checkpointer=saver)


async def streamed(stream: AsyncIterator[Any], mode: str) -> Any:
    """Continue until an event of the mode arrives."""
    async for found in stream:
        if found[0] == mode:
            return found[1]
    return None


ALL = ["messages", "custom", "updates"]


async def test_what_a_step_has_made_is_saved_before_it_ends() -> None:
    with MemorySaver() as saver:
        held, watched = Held(saver), Watched(saver)
        stream = astream_saved(held.graph, QUESTION, at(), stream_mode=ALL, max_bytes=1)
        await streamed(stream, "updates")
        await asyncio.to_thread(watched.until, lambda: any(saver.partial("thread")[0].updates))
        found = saver.partial("thread")
        assert found[0].text == "one two"
        assert (found[0].messages[0].id, found[0].messages[0].node) == ("m0", "first")
        assert found[0].events == ({"progress": 1},)
        assert found[0].values["notes"] == ["first"]
        assert found[0].updates[0].node == "first"
        held.go.set()
        async for _ in stream:
            pass
        assert [one.status for one in saver.partial("thread")] == ["completed"]


async def test_a_cancelled_run_leaves_what_it_has_streamed() -> None:
    with MemorySaver() as saver:
        held = Held(saver)
        seen = asyncio.Event()

        async def run() -> None:
            async for mode, _ in astream_saved(held.graph, QUESTION, at(), stream_mode=ALL):
                if mode == "updates":
                    seen.set()

        task = asyncio.create_task(run())
        await asyncio.wait_for(seen.wait(), WAIT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        held.go.set()
        (found,) = saver.partial("thread")
        assert (found.status, found.text) == ("pending", "one two")
        assert found.values["notes"] == ["first"]
        # the run that resumes has it at hand, and takes its place
        async for _ in astream_saved(held.graph, None, at(), stream_mode="values"):
            pass
        assert [one.status for one in saver.partial("thread")] == ["completed", "discarded"]
        assert held.graph.get_state(at()).values["notes"] == ["first", "second"]


async def test_a_caller_that_leaves_ends_the_run() -> None:
    ended = False
    talking = model("one two")

    async def talk(state: State) -> None:
        nonlocal ended
        try:
            await talking.ainvoke(state["messages"])
            await asyncio.Event().wait()
        finally:
            ended = True

    with MemorySaver() as saver:
        graph = linear(saver, State, talk=talk)
        stream = astream_saved(graph, QUESTION, at(), stream_mode="messages")
        async for chunk, _ in stream:
            if chunk.content == "two":
                break
        await stream.aclose()
        assert ended
        assert [(one.status, one.text) for one in saver.partial("thread")] == [
            ("pending", "one two")
        ]


def test_a_node_that_fails_leaves_what_it_has_streamed() -> None:
    talking = model("one two")

    def fail(state: State) -> None:
        talking.invoke(state["messages"])
        raise ZeroDivisionError

    with MemorySaver() as saver:
        graph = linear(saver, State, fail=fail)
        with pytest.raises(ZeroDivisionError):
            list(stream_saved(graph, QUESTION, at()))
        assert [(one.status, one.text) for one in saver.partial("thread")] == [
            ("pending", "one two")
        ]


def test_a_node_that_asks_leaves_what_it_has_streamed() -> None:
    talking = model("one two")

    def ask(state: State) -> dict[str, Any]:
        found = talking.invoke(state["messages"])
        return {"messages": [found], "notes": [interrupt("go on?")]}

    with MemorySaver() as saver:
        graph = linear(saver, State, ask=ask)
        list(stream_saved(graph, QUESTION, at()))
        assert [(one.status, one.text) for one in saver.partial("thread")] == [
            ("pending", "one two")
        ]
        list(stream_saved(graph, Command(resume="yes"), at()))
        assert [one.status for one in saver.partial("thread")] == ["completed", "discarded"]


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_values_of_steps_that_have_ended_are_left_out(durability: Any) -> None:
    """Unless no checkpoint holds them before the run ends."""

    def fail(state: State) -> None:
        raise ZeroDivisionError

    with MemorySaver() as saver:
        graph = linear(saver, State, first=lambda state: {"notes": ["first"]}, fail=fail)
        with pytest.raises(ZeroDivisionError):
            list(stream_saved(graph, QUESTION, at(), durability=durability))
        found = [one.values for one in saver.partial("thread")]
        assert found == ([] if durability == "async" else [{"notes": ["first"]}])


def test_a_graph_in_front_of_another_saver() -> None:
    with StreamingCheckpointSaver(MemorySaver()) as saver:
        graph = builder().compile(checkpointer=saver)
        list(stream_saved(graph, QUESTION, at()))
        assert [one.status for one in saver.partial("thread")] == ["completed"]
        uncompiled = builder().compile()
        list(stream_saved(uncompiled, QUESTION, at("other"), saver=saver))
        assert [one.status for one in saver.partial("other")] == ["completed"]


@pytest.mark.parametrize("layers_first", [False, True])
def test_with_layered_memory_in_front_or_behind(layers_first: bool) -> None:
    policy = Layers(full_window=4, summary_window=8, archive_threshold=12, batch=1)
    inner = MemorySaver()
    saver: Any
    if layers_first:
        saver = StreamingCheckpointSaver(LayeredCheckpointSaver(inner, policy=policy))
    else:
        saver = LayeredCheckpointSaver(StreamingCheckpointSaver(inner), policy=policy)
    with saver:
        graph = builder().compile(checkpointer=saver)
        for _ in range(8):
            list(stream_saved(graph, QUESTION, at(), max_bytes=1))
        assert [one.status for one in saver.partial("thread")] == ["completed"] * 8
        saver.start_streaming("thread")
        saver.update("thread", "a")
        saver.stop_streaming("thread", status="pending")
        assert saver.partial("thread")[0].text == "a"
        assert len(saver.full_messages("thread")) > 12
        assert inner.check().ok


@pytest.mark.parametrize("sync", [True, False])
async def test_a_store_that_fails_does_not_stop_the_run(sync: bool, caplog: Any) -> None:
    with MemorySaver() as own, MemorySaver() as saver:
        graph = builder().compile(checkpointer=own)
        watched = Watched(saver)
        watched.error = BackendError("The disk is full.")
        options: Any = {"stream_mode": "updates", "saver": saver, "max_bytes": 1}
        nodes = []

        async def run() -> None:
            if sync:
                for one in stream_saved(graph, QUESTION, at(), **options):
                    nodes.extend(one)
            else:
                async for one in astream_saved(graph, QUESTION, at(), **options):
                    nodes.extend(one)

        with pytest.raises(BackendError, match="full"):
            await run()
        assert nodes == ["talk", "sub"]
        assert caplog.text.count("Recording of a run's output ended") == 1


def test_limits_are_those_of_the_saver() -> None:
    with StreamingCheckpointSaver(MemorySaver(), interval=60) as saver:
        graph = builder().compile(checkpointer=saver)
        saver.streaming_limits["interval"] = 0
        with pytest.raises(InvalidArgumentError, match="interval"):
            list(stream_saved(graph, QUESTION, at()))
        list(stream_saved(graph, QUESTION, at(), interval=60))


def test_of_cached_nodes_only_the_values_are_recorded() -> None:
    made = StateGraph(State).add_node("ask", lambda state: {"notes": [interrupt("?")]})
    made.add_node("find", lambda state: {"notes": ["found"]}, cache_policy=CachePolicy())
    made.add_edge(START, "ask").add_edge(START, "find")
    with MemorySaver() as saver:
        graph = made.compile(checkpointer=saver, cache=InMemoryCache())
        for thread in ("first", "second"):
            list(stream_saved(graph, QUESTION, at(thread)))
            (found,) = saver.partial(thread)
            assert found.values == {"notes": ["found"]}


async def test_bad_input() -> None:
    with MemorySaver() as saver:
        graph = builder().compile(checkpointer=saver)
        with pytest.raises(InvalidArgumentError, match="no checkpointer"):
            list(stream_saved(builder().compile(), QUESTION, at()))
        with pytest.raises(InvalidConfigError, match="thread_id"):
            list(stream_saved(graph, QUESTION, {"configurable": {}}))
        with pytest.raises(InvalidArgumentError, match="interval"):
            await anext(astream_saved(graph, QUESTION, at(), interval=0))
        assert list(saver.list(None)) == []


@pytest.mark.parametrize("awaited", [False, True])
def test_the_output_of_a_refused_run_is_discarded(awaited: bool) -> None:
    """Another run has answered meanwhile: no unfinished output stays beside its answer."""
    with MemorySaver(conflicts="raise") as saver:
        graph = builder().compile(checkpointer=saver)
        graph.invoke(QUESTION, at("t"))

        def overtake() -> None:
            if len(saver.get_tuple(at("t")).checkpoint["channel_values"]["messages"]) < OVERTAKEN:
                graph.invoke(QUESTION, at("t"))

        async def arun() -> None:
            async for _ in astream_saved(graph, QUESTION, at("t"), stream_mode="messages"):
                await asyncio.to_thread(overtake)

        def run() -> None:
            for _ in stream_saved(graph, QUESTION, at("t"), stream_mode="messages"):
                overtake()

        with pytest.raises(ConflictError):
            asyncio.run(arun()) if awaited else run()
        (stream,) = saver.partial("t")
        assert (stream.status, stream.text) == ("discarded", "")
