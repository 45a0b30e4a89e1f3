"""Many tasks in one step: `Send`, joins, commands, and what happens when tasks fail."""

import operator
import threading
from typing import Annotated, Any

from langgraph.errors import NodeError
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send
from typing_extensions import TypedDict

from .pauses import Busy, Log, line, say
from .table import scenario


class Relay:
    """Lets the tasks of one step end in reverse order, with no clock."""

    def __init__(self, count: int) -> None:
        self.done = [threading.Event() for _ in range(count + 1)]
        self.done[count].set()

    def wait_for_next(self, number: int) -> None:
        assert self.done[number + 1].wait(10)
        self.done[number].set()


class Work(TypedDict, total=False):
    jobs: int
    log: Annotated[list[Any], operator.add]
    seen: Annotated[dict[str, Any], operator.or_]


def spread(worker: Any) -> StateGraph[Any]:
    """A planner, one worker for each job, and a node after all of them."""
    builder = StateGraph(Work)
    builder.add_node("plan", lambda _: {"log": ["planned"]})
    builder.add_node("work", worker)
    builder.add_node("sum", lambda s: {"log": [f"{len(s['log'])} lines"]})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges(
        "plan", lambda s: [Send("work", {"number": n, "of": s["jobs"]}) for n in range(s["jobs"])]
    )
    builder.add_edge("work", "sum")
    builder.add_edge("sum", END)
    return builder


@scenario
async def fan_out(run: Any) -> None:
    run.compile(spread(lambda job: {"log": [job["number"]], "seen": {str(job["number"]): job}}))
    await run.invoke({"jobs": 5})
    await run.invoke({"jobs": 2})
    await run.invoke({"jobs": 0})


@scenario
async def fan_out_whose_tasks_end_in_reverse_order(run: Any) -> None:
    relay = Relay(4)

    def work(job: Any) -> Any:
        relay.wait_for_next(job["number"])
        return {"log": [job["number"], f"late {job['number']}"]}

    run.compile(spread(work))
    await run.invoke({"jobs": 4})


@scenario
async def fan_out_by_nodes_that_send_themselves(run: Any) -> None:
    def split(state: Any) -> Any:
        depth = state["depth"]
        sends = [Send("split", {"depth": depth - 1, "side": s}) for s in "lr"] if depth else []
        return Command(update={"log": [(depth, state.get("side", "top"))]}, goto=sends)

    builder = StateGraph(Work)
    builder.add_node("split", split)
    builder.add_conditional_edges(START, lambda _: [Send("split", {"depth": 2})])
    run.compile(builder)
    await run.invoke({"jobs": 1})


@scenario
async def fan_out_interrupted_and_forked(run: Any) -> None:
    run.compile(spread(lambda job: {"log": [job["number"]]}), interrupt_before=["work"])
    await run.invoke({"jobs": 3})
    state = await run.state()
    await run.invoke(None)
    await run.update({"log": ["a late line"]}, state.config, as_node="work")
    await run.invoke(None)


# The join's channel hands its own set to every put: with durability="async" LangGraph's
# saver may encode it after the next step changed it.
@scenario(durabilities=("sync", "exit"))
async def parallel_nodes_join(run: Any) -> None:
    builder = StateGraph(Busy)
    for name in ("a", "b", "c", "join", "late"):
        builder.add_node(name, say(name), defer=name == "late")
    for name in ("a", "b"):
        builder.add_edge(START, name)
    builder.add_edge("b", "c")
    builder.add_edge(["a", "c"], "join")
    builder.add_edge("a", "late")
    builder.add_edge("join", END)
    run.compile(builder)
    for turn in range(3):
        await run.invoke({"log": [turn]})


@scenario
async def commands_that_update_and_go(run: Any) -> None:
    def first(state: Log) -> Any:
        return Command(update={"log": ["a"]}, goto="c" if len(state["log"]) % 2 else "b")

    builder = StateGraph(Log)
    builder.add_node("a", first, destinations=("b", "c"))
    builder.add_node("b", say("b"))
    builder.add_node("c", say("c"))
    builder.add_edge(START, "a")
    run.compile(builder)
    await run.invoke({"log": ["in"]})
    await run.invoke({"log": ["in"]})
    await run.invoke(Command(update={"log": ["from outside"]}, goto="b"))


class BrokenError(Exception):
    """A node's own error."""


def failing(name: str, times: int) -> Any:
    """A node that fails so many times, in all."""
    left = [times]

    def node(_: Any) -> Any:
        if left[0]:
            left[0] -= 1
            message = f"{name} is broken, {left[0]} to go"
            raise BrokenError(message)
        return {"log": [f"{name} at last"]}

    return node


@scenario
async def node_that_fails_and_is_run_again(run: Any) -> None:
    run.compile(line("a", "b", "c", b=failing("b", 2)))
    await run.fail({"log": ["in"]})
    await run.state()
    await run.fail(None)
    await run.invoke(None)
    await run.invoke({"log": ["in again"]})


@scenario
async def node_that_is_retried_by_policy(run: Any) -> None:
    policy = RetryPolicy(initial_interval=0, jitter=False, retry_on=BrokenError)
    builder = StateGraph(Log)
    builder.add_node("a", failing("a", 2), retry_policy=policy)
    builder.add_edge(START, "a")
    run.compile(builder)
    await run.invoke({"log": ["in"]})
    await run.invoke({"log": ["in again"]})


@scenario
async def node_error_that_a_handler_takes(run: Any) -> None:
    def handle(state: Log, error: NodeError) -> Any:
        return {"log": [f"{error.node}: {error.error!r} after {len(state['log'])}"]}

    builder = StateGraph(Log)
    builder.add_node("a", failing("a", 1), error_handler=handle)
    builder.add_node("b", say("b"))
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    run.compile(builder)
    await run.invoke({"log": ["in"]})
    await run.invoke({"log": ["in again"]})


@scenario
async def node_error_whose_handler_fails_at_first(run: Any) -> None:
    again = failing("the handler", 1)

    def handle(state: Log, error: NodeError) -> Any:
        return {"log": [*again(state)["log"], error.node]}

    builder = StateGraph(Log)
    builder.add_node("a", failing("a", 1), error_handler=handle)
    builder.add_edge(START, "a")
    run.compile(builder)
    await run.fail({"log": ["in"]})
    await run.state()
    await run.invoke(None)


@scenario
async def run_that_takes_too_many_steps(run: Any) -> None:
    builder = StateGraph(Log)
    builder.add_node("a", say("a"))
    builder.add_edge(START, "a")
    builder.add_edge("a", "a")
    run.compile(builder)
    config = {"configurable": {"thread_id": "thread"}, "recursion_limit": 4}
    await run.fail({"log": ["in"]}, config)
    await run.state()
    await run.fail(None, config)
