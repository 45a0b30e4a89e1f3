"""Graphs in graphs: stateless, with a memory of their own, interrupted, in parallel."""

import operator
from typing import Annotated, Any

from kit.places import at
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from .pauses import Busy, Log, ask, line, say
from .table import scenario


def around(inner: Any, **options: Any) -> StateGraph[Any]:
    """before -> inner graph -> after."""
    builder = StateGraph(Log)
    builder.add_node("before", say("before"))
    builder.add_node("inner", inner)
    builder.add_node("after", say("after"))
    builder.add_edge(START, "before")
    builder.add_edge("before", "inner")
    builder.add_edge("inner", "after")
    builder.add_edge("after", END)
    return builder


class Own(TypedDict, total=False):
    """An inner state whose list is not shared with the outer one."""

    mine: Annotated[list[Any], operator.add]
    last: Any


def counting() -> StateGraph[Any]:
    builder = StateGraph(Own)
    builder.add_node("count", lambda s: {"mine": [len(s.get("mine", []))]})
    builder.add_node("tell", lambda s: {"last": f"inner has {s['mine']}"})
    builder.add_edge(START, "count")
    builder.add_edge("count", "tell")
    return builder


@scenario
async def subgraph(run: Any) -> None:
    run.compile(around(line("x", "y").compile()))
    await run.invoke({"log": ["in"]})
    await run.invoke({"log": ["in again"]})


@scenario
async def subgraph_with_a_memory(run: Any) -> None:
    run.compile(around(counting().compile(checkpointer=True)))
    for turn in range(3):
        await run.invoke({"log": [turn]})


# LangGraph has no save to wait for there, and fails if told to wait.
@scenario(durabilities=("async", "exit"))
async def subgraph_without_checkpoints(run: Any) -> None:
    run.compile(around(counting().compile(checkpointer=False)))
    for turn in range(2):
        await run.invoke({"log": [turn]})


@scenario
async def subgraphs_three_deep(run: Any) -> None:
    run.compile(around(around(counting().compile(checkpointer=True)).compile()))
    await run.invoke({"log": ["in"]})
    await run.invoke({"log": ["in again"]})


@scenario
async def subgraph_that_asks(run: Any) -> None:
    run.compile(around(line("x", "y", y=ask("y", times=2)).compile()))
    await run.invoke({"log": ["in"]})
    await run.state(subgraphs=True)
    await run.invoke(Command(resume="one"))
    await run.state(subgraphs=True)
    await run.invoke(Command(resume="two"))


@scenario
async def subgraph_with_a_memory_that_asks(run: Any) -> None:
    def tell(state: Own) -> Any:
        return {"last": interrupt(f"I have {state['mine']}")}

    builder = StateGraph(Own)
    builder.add_node("count", lambda s: {"mine": [len(s.get("mine", []))]})
    builder.add_node("tell", tell)
    builder.add_edge(START, "count")
    builder.add_edge("count", "tell")
    run.compile(around(builder.compile(checkpointer=True)))
    for turn in range(2):
        await run.invoke({"log": [turn]})
        await run.state(subgraphs=True)
        await run.invoke(Command(resume=f"answer {turn}"))


@scenario
async def subgraph_that_is_updated_while_it_waits(run: Any) -> None:
    run.compile(around(line("x", "y").compile(interrupt_before=["y"])))
    await run.invoke({"log": ["in"]})
    state = await run.state(subgraphs=True)
    inner = state.tasks[0].state
    await run.update({"log": ["from outside"]}, inner.config)
    await run.state(inner.config)
    await run.state(subgraphs=True)
    await run.invoke(None)


@scenario(durabilities=("sync", "async"))
async def subgraph_replayed_from_inside(run: Any) -> None:
    run.compile(around(line("x", "y", y=ask("y")).compile()))
    await run.invoke({"log": ["in"]})
    inner = (await run.state(subgraphs=True)).tasks[0].state
    await run.history(inner.config)
    await run.invoke(Command(resume="first"))
    await run.invoke(None, inner.config)
    await run.invoke(Command(resume="second"))


@scenario(durabilities=("sync", "async"))
async def subgraph_replayed_from_the_parent(run: Any) -> None:
    run.compile(around(counting().compile(checkpointer=True)))
    for turn in range(2):
        await run.invoke({"log": [turn]})
    await run.invoke(None, await run.before("inner"))
    await run.invoke({"log": ["after"]})


@scenario
async def subgraph_that_speaks_to_its_parent(run: Any) -> None:
    inner = StateGraph(Log)
    inner.add_node(
        "leave", lambda _: Command(graph=Command.PARENT, update={"log": ["up"]}, goto="after")
    )
    inner.add_edge(START, "leave")
    builder = StateGraph(Log)
    builder.add_node("inner", inner.compile(), destinations=("after",))
    builder.add_node("after", say("after"))
    builder.add_edge(START, "inner")
    run.compile(builder)
    await run.invoke({"log": ["in"]})


@scenario
async def subgraph_streamed(run: Any) -> None:
    run.compile(around(line("x", "y").compile()))
    await run.stream({"log": ["in"]}, stream_mode="updates", subgraphs=True)


@scenario
async def subgraphs_called_in_a_node(run: Any) -> None:
    child = line("x", "y").compile()

    def call(state: Log) -> Any:
        one = child.invoke({"log": ["one"]})
        two = child.invoke({"log": ["two"]})
        return {"log": [one["last"], two["last"], len(state["log"])]}

    run.compile(line("a", "call", call=call))
    await run.invoke({"log": ["in"]})


@scenario
async def subgraphs_in_parallel(run: Any) -> None:
    """One namespace for each `Send`, all waiting for the user, then resumed together."""
    builder = StateGraph(Busy)
    builder.add_node("inner", line("x", "y", y=ask("y")).compile())
    builder.add_conditional_edges(
        START, lambda s: [Send("inner", {"log": [f"{n} of {len(s['log'])}"]}) for n in range(3)]
    )
    run.compile(builder)
    await run.invoke({"log": ["in"]})
    state = await run.state(subgraphs=True)
    await run.invoke(Command(resume={i.id: "go on" for i in state.interrupts}))


@scenario
async def a_graph_runs_on_another_thread_inside_a_node(run: Any) -> None:
    other = line("x").compile(checkpointer=run.saver)

    def call(state: Log) -> Any:
        found = other.invoke({"log": [len(state["log"])]}, at("another"))
        return {"log": found["log"]}

    run.compile(line("a", "call", call=call))
    await run.invoke({"log": ["in"]})
    await run.invoke({"log": ["in again"]})
