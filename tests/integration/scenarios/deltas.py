"""DeltaChannel: state that LangGraph itself rebuilds from the writes of the ancestors."""

from collections.abc import Sequence
from typing import Annotated, Any

from kit.places import at
from langchain_core.messages import AIMessage, RemoveMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.types import Command, Overwrite, Send, interrupt
from typing_extensions import TypedDict

from .chat import human, one_node
from .pauses import say
from .table import scenario

FREQUENCIES = (1, 3, 100)


def extend(old: list[Any], writes: Sequence[Any]) -> list[Any]:
    """Append every write's items, in order."""
    return [*old, *(item for write in writes for item in write)]


def merge(old: dict[str, Any], writes: Sequence[Any]) -> dict[str, Any]:
    """Update with every write, in order."""
    out = dict(old)
    for write in writes:
        out.update(write)
    return out


def state(**fields: Any) -> Any:
    """A state schema whose channels are only known where it is made."""
    return TypedDict("State", fields, total=False)


def log_schema(frequency: int) -> Any:
    channel = DeltaChannel(extend, list, snapshot_frequency=frequency)
    return state(log=Annotated[list, channel], last=Any)


def delta_line(frequency: int, *names: str, **nodes: Any) -> StateGraph[Any]:
    """START -> names in order -> END over a delta list."""
    builder = StateGraph(log_schema(frequency))
    builder.add_sequence([(n, nodes.get(n, say(n))) for n in names])
    builder.add_edge(START, names[0])
    builder.add_edge(names[-1], END)
    return builder


def for_each_frequency(script: Any) -> Any:
    """Enter the script once for each snapshot frequency."""
    for frequency in FREQUENCIES:

        async def at_frequency(run: Any, frequency: int = frequency) -> None:
            await script(run, frequency)

        at_frequency.__name__ = f"{script.__name__}_{frequency}"
        scenario(at_frequency)
    return script


@for_each_frequency
async def delta_list(run: Any, frequency: int) -> None:
    run.compile(delta_line(frequency, "a", "b"))
    for turn in range(4):
        await run.invoke({"log": [f"turn {turn}"]})


@for_each_frequency
async def delta_chat(run: Any, frequency: int) -> None:
    reducer = DeltaChannel(_messages_delta_reducer, snapshot_frequency=frequency)
    chat = state(messages=Annotated[list, reducer])

    def reply(state: Any) -> Any:
        count = len(state["messages"])
        gone = [RemoveMessage(id=state["messages"][0].id)] if count > 4 else []
        return {"messages": [*gone, AIMessage(content=f"n{count}", id=f"ai-{count}")]}

    run.compile(one_node(reply, chat))
    for turn in range(4):
        await run.invoke({"messages": [human(turn)]})
    await run.invoke({"messages": [human(0, "changed by id")]})


@for_each_frequency
async def delta_dict(run: Any, frequency: int) -> None:
    reducer = DeltaChannel(merge, dict, snapshot_frequency=frequency)
    files = state(files=Annotated[dict, reducer])

    def edit(state: Any) -> Any:
        count = len(state["files"])
        return {"files": {f"file {count}": {"lines": count}, "latest": count}}

    run.compile(one_node(edit, files))
    for turn in range(4):
        await run.invoke({"files": {"turn": turn}})


@for_each_frequency
async def delta_overwritten(run: Any, frequency: int) -> None:
    def cut(state: Any) -> Any:
        return {"log": Overwrite(state["log"][-1:])}

    run.compile(delta_line(frequency, "a", "cut", "b", cut=cut))
    for turn in range(3):
        await run.invoke({"log": [f"turn {turn}"]})
    await run.invoke({"log": Overwrite(["anew"])})


@for_each_frequency
async def delta_updated_from_outside(run: Any, frequency: int) -> None:
    run.compile(delta_line(frequency, "a", "b"))
    await run.update({"log": ["before all"]}, as_node="__start__")
    await run.invoke(None)
    await run.update({"log": ["updated"]})
    await run.update({"log": ["as a"]}, as_node="a")
    await run.invoke(None)
    await run.update({"log": Overwrite(["overwritten"])})
    await run.invoke({"log": ["after"]})


@for_each_frequency
async def delta_forked(run: Any, frequency: int) -> None:
    run.compile(delta_line(frequency, "a", "b", "c"))
    await run.invoke({"log": ["one"]})
    await run.invoke({"log": ["two"]})
    if run.durability == "exit":
        return
    old = await run.before("b")
    await run.invoke(None, old)
    await run.invoke({"log": ["instead"]}, old)
    await run.update({"log": ["left"]}, old)
    await run.invoke(None)
    await run.update(None, old, as_node="__copy__")
    await run.invoke({"log": ["three"]})


@for_each_frequency
async def delta_interrupted(run: Any, frequency: int) -> None:
    def wait(state: Any) -> Any:
        return {"log": [interrupt(len(state["log"]))]}

    run.compile(delta_line(frequency, "a", "wait", "b", wait=wait))
    for turn in range(2):
        await run.invoke({"log": [f"turn {turn}"]})
        await run.state()
        await run.invoke(Command(resume=f"answer {turn}", update={"log": ["with it"]}))


@for_each_frequency
async def delta_fanned_out(run: Any, frequency: int) -> None:
    builder = StateGraph(log_schema(frequency))
    builder.add_node("work", lambda job: {"log": [job["n"], -job["n"]]})
    builder.add_node("sum", lambda s: {"log": [len(s["log"])]})
    builder.add_conditional_edges(START, lambda _: [Send("work", {"n": n}) for n in range(4)])
    builder.add_edge("work", "sum")
    run.compile(builder)
    for turn in range(2):
        await run.invoke({"log": [f"turn {turn}"]})


@for_each_frequency
async def delta_in_a_subgraph(run: Any, frequency: int) -> None:
    inner = delta_line(frequency, "x", "y").compile(checkpointer=True)
    run.compile(delta_line(frequency, "a", "inner", "b", inner=inner))
    for turn in range(3):
        await run.invoke({"log": [f"turn {turn}"]})


@scenario
async def plain_list_that_becomes_a_delta_list_and_back(run: Any) -> None:
    from .pauses import line  # noqa: PLC0415 - the same nodes over a plain list

    run.compile(line("a", "b"))
    await run.invoke({"log": ["plain"]})
    run.compile(delta_line(3, "a", "b"))
    for turn in range(2):
        await run.invoke({"log": [f"delta {turn}"]})
    run.compile(line("a", "b"))
    await run.invoke({"log": ["plain again"]})


@scenario
async def delta_threads_side_by_side(run: Any) -> None:
    run.compile(delta_line(3, "a"))
    for turn in range(3):
        await run.invoke({"log": [f"one {turn}"]}, at("one"))
        await run.invoke({"log": [f"two {turn}"]}, at("two"))
