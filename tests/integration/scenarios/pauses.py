"""Runs that stop and continue: static and dynamic interrupts, alone and several at once."""

import operator
from typing import Annotated, Any

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from .table import scenario


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    last: Any


def newest(_: str, new: str) -> str:
    return new


class Busy(TypedDict, total=False):
    """Like `Log`, for steps in which several tasks say something last."""

    log: Annotated[list[Any], operator.add]
    last: Annotated[str, newest]


def say(name: str) -> Any:
    """A node that writes its name and how much it saw."""

    def node(state: Any) -> Any:
        return {"log": [name], "last": f"{name} saw {len(state['log'])}"}

    return node


def line(*names: str, **nodes: Any) -> StateGraph[Any]:
    """START -> names in order -> END; nodes not given only say their name."""
    builder = StateGraph(Log)
    builder.add_sequence([(n, nodes.get(n, say(n))) for n in names])
    builder.add_edge(START, names[0])
    builder.add_edge(names[-1], END)
    return builder


def beside(**nodes: Any) -> StateGraph[Any]:
    """START -> all nodes in parallel -> END."""
    builder = StateGraph(Log)
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    return builder


def ask(name: str, *, times: int = 1) -> Any:
    """A node that asks the user one thing or several, one after another."""

    def node(state: Any) -> Any:
        first = state["log"][0]
        answers = [interrupt({"from": name, "on": first, "n": n}) for n in range(times)]
        return {"log": [name, *answers]}

    return node


@scenario
async def stop_before_and_after(run: Any) -> None:
    run.compile(line("a", "b", "c", "d"), interrupt_before=["b"], interrupt_after=["c"])
    await run.invoke({"log": ["in"]})
    await run.state()
    await run.invoke(None)
    await run.state()
    await run.invoke(None)
    await run.invoke({"log": ["in again"]})
    await run.invoke({"log": ["in a third time, while it waits"]})


@scenario
async def stop_and_change_the_state_meanwhile(run: Any) -> None:
    run.compile(line("a", "b", "c"), interrupt_before=["b", "c"])
    await run.invoke({"log": ["in"]})
    await run.update({"last": "by the user"})
    await run.invoke(None)
    await run.update({"log": ["as b"]}, as_node="b")
    await run.invoke(None)


@scenario
async def ask_and_resume(run: Any) -> None:
    run.compile(line("a", "b", "c", b=ask("b")))
    await run.invoke({"log": ["in"]})
    await run.state()
    await run.invoke(Command(resume="yes"))
    await run.invoke({"log": ["in again"]})
    await run.invoke(Command(resume={"an": ["answer"]}))


@scenario
async def ask_several_things_in_one_node(run: Any) -> None:
    run.compile(line("a", "b", b=ask("b", times=3)))
    await run.invoke({"log": ["in"]})
    for number in range(3):
        await run.state()
        await run.invoke(Command(resume=number))


@scenario
async def ask_in_parallel_and_resume_by_id(run: Any) -> None:
    run.compile(beside(a=ask("a"), b=ask("b", times=2), c=say("c")))
    await run.invoke({"log": ["in"]})
    state = await run.state()
    first = {i.id: f"to {i.value['from']}" for i in state.interrupts}
    await run.invoke(Command(resume=first))
    state = await run.state()
    assert len(state.interrupts) == 1
    await run.invoke(Command(resume={state.interrupts[0].id: "last"}))


@scenario
async def ask_in_parallel_and_answer_one_at_a_time(run: Any) -> None:
    run.compile(beside(a=ask("a"), b=ask("b")))
    await run.invoke({"log": ["in"]})
    await run.fail(Command(resume="to whom?"))
    state = await run.state()
    one, two = state.interrupts
    await run.invoke(Command(resume={two.id: "second first"}))
    await run.state()
    await run.invoke(Command(resume={one.id: "first last"}))


@scenario
async def ask_and_be_answered_with_new_input(run: Any) -> None:
    run.compile(line("a", "b", b=ask("b")))
    await run.invoke({"log": ["in"]})
    await run.invoke({"log": ["not an answer"]})
    await run.invoke(Command(resume="an answer", update={"last": "and an update"}))


@scenario
async def ask_and_be_sent_elsewhere(run: Any) -> None:
    run.compile(line("a", "b", "c", b=ask("b")))
    await run.invoke({"log": ["in"]})
    await run.invoke(Command(goto="c", update={"log": ["sent"]}))


@scenario
async def ask_again_after_going_back(run: Any) -> None:
    run.compile(line("a", "b", "c", b=ask("b")))
    await run.invoke({"log": ["in"]})
    await run.invoke(Command(resume="first answer"))
    if run.durability != "exit":
        await run.invoke(None, await run.before("b"))
        await run.state()
        await run.invoke(Command(resume="second answer"))


@scenario
async def ask_while_streaming(run: Any) -> None:
    run.compile(line("a", "b", b=ask("b")))
    await run.stream({"log": ["in"]}, stream_mode=["updates", "values"])
    await run.stream(Command(resume="yes"), stream_mode=["updates", "values"])
