"""Inputs that are stored before they run, and runs that are resumed."""

import asyncio
import operator
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import langgraph.checkpoint.base.id as ids
import pytest
from kit.graphs import linear
from kit.guards import die, lease
from kit.places import at
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphBubbleUp
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, Send, interrupt

from threadkeep import Retention, guard, task_key
from threadkeep.errors import (
    HeldError,
    InvalidArgumentError,
    LeaseLostError,
    StateError,
    ThreadDeletedError,
    ThreadLockedError,
    ThreadNotFoundError,
    UnserializableError,
)
from threadkeep.memory import LayeredCheckpointSaver
from threadkeep.runs.inputs import MOST


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class NodeError(Exception):
    """An error of a node."""


def given(text: str) -> Any:
    return {"log": [text]}


def says(name: str) -> Callable[[Any], Any]:
    return lambda _: {"log": [name]}


def asks(_: State) -> Any:
    return {"log": [interrupt("May I?")]}


def due(saver: Any, **options: Any) -> list[str]:
    return [one.id for one in saver.runs.unfinished(**options)]


def submit(graph: Any, *texts: str, thread: str = "thread") -> None:
    for text in texts:
        graph.checkpointer.runs.submit(graph, thread, given(text))


def question(saver: Any) -> str:
    (one,) = saver.threads.interrupts("thread")
    return one.id


# -- inputs ------------------------------------------------------------------------------


def test_inputs_run_in_order(saver: Any) -> None:
    graph = linear(saver, State, a=says("a"))
    stored = saver.runs.submit(graph, "thread", given("1"))
    assert (stored.thread_id, stored.is_taken) == ("thread", False)
    assert saver.get_tuple(at()) is None
    assert due(saver) == ["thread"]
    assert saver.threads.get("thread").status == "unfinished"
    submit(graph, "2", "3")
    assert saver.runs.resume(graph, "thread") == {"log": ["1", "a", "2", "a", "3", "a"]}
    assert due(saver) == []
    assert saver.runs.resume(graph, "thread") is None
    assert saver.threads.get("thread").status == "done"
    assert saver.check().ok


async def test_inputs_run_in_order_awaited(saver: Any) -> None:
    graph = linear(saver, State, a=says("a"))
    for text in "123":
        await saver.runs.asubmit(graph, "thread", given(text))
    assert [one.id async for one in saver.runs.aunfinished()] == ["thread"]
    assert await saver.runs.aresume(graph, "thread") == {"log": ["1", "a", "2", "a", "3", "a"]}
    assert await saver.runs.aresume(graph, "thread") is None
    assert [one.id async for one in saver.runs.aunfinished()] == []


def test_inputs_of_a_thread_that_runs(saver: Any) -> None:
    """The run that holds the thread takes them, and a run without `resume` leaves them."""

    def submits(state: State) -> Any:
        if len(state["log"]) < 3:
            submit(graph, "2")
        return given("a")

    graph = linear(saver, State, a=submits)
    submit(graph, "1")
    assert saver.runs.resume(graph, "thread") == {"log": ["1", "a", "2", "a"]}
    with guard(saver, "thread", worker="me") as held:
        submit(graph, "3")
        assert due(saver) == []
        graph.invoke(given("now"), held.config)
    assert due(saver) == ["thread"]
    assert saver.runs.resume(graph, "thread")["log"][-4:] == ["now", "a", "3", "a"]


async def test_a_key_stores_once(saver: Any) -> None:
    graph = linear(saver, State, a=says("a"))

    def again() -> Any:
        return saver.runs.asubmit(graph, "thread", given("1"), key="request 7")

    stored = await asyncio.gather(*[again() for _ in range(12)])
    assert len({one.id for one in stored}) == 1
    await saver.runs.asubmit(graph, "thread", given("2"), key="request 8")
    await saver.runs.asubmit(graph, "other", given("1"), key="request 7")
    results = await asyncio.gather(saver.runs.aresume(graph, "thread"), *map(_call, [again] * 8))
    assert results[0] == {"log": ["1", "a", "2", "a"]}
    taken = await again()
    assert taken.is_taken
    assert taken.key == "request 7"
    assert await saver.runs.aresume(graph, "thread") is None


async def _call(call: Callable[[], Any]) -> Any:
    return await call()


def test_a_key_stores_once_for_all_processes(another: Callable[..., Any]) -> None:
    savers = [another() for _ in range(4)]

    def again(number: int) -> str:
        saver = savers[number % 4]
        graph = linear(saver, State, a=says("a"))
        return str(saver.runs.submit(graph, "thread", given("1"), key="k").id)

    with ThreadPoolExecutor(8) as pool:
        stored = set(pool.map(again, range(24)))
    assert len(stored) == 1
    graph = linear(savers[0], State, a=says("a"))
    assert savers[0].runs.resume(graph, "thread") == {"log": ["1", "a"]}


async def test_inputs_of_many_tasks(saver: Any) -> None:
    """All that was accepted runs once."""
    graph = linear(saver, State, a=says("a"), b=says("b"))
    texts = [str(number) for number in range(24)]
    await asyncio.gather(*[saver.runs.asubmit(graph, "thread", given(text)) for text in texts])
    result = await saver.runs.aresume(graph, "thread")
    assert sorted(one for one in result["log"] if one.isdigit()) == sorted(texts)


def test_keys_are_known_as_long_as_their_checkpoints(ours: Any) -> None:
    graph = linear(ours, State, a=says("a"))
    for _ in range(2):
        assert not ours.runs.submit(graph, "thread", given("1"), key="k").is_taken
        ours.runs.resume(graph, "thread")
        assert ours.runs.submit(graph, "thread", given("1"), key="k").is_taken
        ours.threads.gc(Retention(keep_last=1))


def test_stored_inputs_are_limited(ours: Any) -> None:
    graph = linear(ours, State, a=says("a"))
    submit(graph, *map(str, range(MOST)))
    with pytest.raises(StateError, match="100 inputs"):
        submit(graph, "one more")
    assert len(ours.runs.resume(graph, "thread")["log"]) == 2 * MOST
    submit(graph, "one more")


def test_retention_keeps_stored_inputs(saver: Any) -> None:
    graph = linear(saver, State, a=says("a"))
    submit(graph, "1")
    saver.runs.resume(graph, "thread")
    submit(graph, "2")
    saver.threads.gc(Retention(keep_last=1))
    saver.prune(["thread"])
    assert saver.runs.resume(graph, "thread") == {"log": ["1", "a", "2", "a"]}


def test_wrong_arguments(ours: Any) -> None:
    graph = linear(ours, State, a=says("a"))
    for value in (None, Command(resume=1)):
        with pytest.raises(InvalidArgumentError):
            ours.runs.submit(graph, "thread", value)
    with pytest.raises(InvalidArgumentError):
        ours.runs.submit(graph, "thread", given("1"), key=7)
    with pytest.raises(UnserializableError):
        ours.runs.submit(graph, "thread", {"log": [object()]})
    for other in (
        linear(None, State, a=says("a")),
        linear(LayeredCheckpointSaver(InMemorySaver()), State, a=asks),
    ):
        with pytest.raises(InvalidArgumentError, match="another checkpointer"):
            ours.runs.submit(other, "thread", given("1"))
        with pytest.raises(InvalidArgumentError, match="another checkpointer"):
            ours.runs.resume(other, "thread")
    with pytest.raises(InvalidArgumentError):
        ours.runs.resume(graph, "thread", lease=0.1)
    with pytest.raises(InvalidArgumentError, match="durability"):
        ours.runs.resume(graph, "thread", durability="exit")
    with pytest.raises(InvalidArgumentError):
        due(ours, lease="all")
    with pytest.raises(ThreadNotFoundError):
        ours.runs.release("unknown")
    assert due(ours) == []
    assert ours.runs.resume(graph, "unknown") is None
    assert ours.check().ok


def test_options_of_a_run(ours: Any) -> None:
    def tags(_: State, config: RunnableConfig) -> Any:
        return given(f"{config['tags']} {config['configurable']['user']}")

    graph = linear(ours, State, a=tags)
    submit(graph, "1")
    config: Any = {"tags": ["x"], "configurable": {"user": "u"}}
    with guard(ours, "thread", worker="first"), pytest.raises(ThreadLockedError, match="first"):
        ours.runs.resume(graph, "thread", wait=0.01)
    found = ours.runs.resume(graph, "thread", config=config, worker="me", output_keys=["log"])
    assert found == {"log": ["1", "['x'] u"]}


def test_a_run_continues_from_the_head(ours: Any) -> None:
    """Also if a config names another checkpoint."""
    graph = linear(ours, State, a=says("a"))
    submit(graph, "1")
    ours.runs.resume(graph, "thread")
    first = list(graph.get_state_history(at()))[-1]
    submit(graph, "2", "3")
    found = ours.runs.resume(graph, "thread", config=first.config)
    assert found == {"log": ["1", "a", "2", "a", "3", "a"]}
    assert graph.get_state(at()).values == found


# -- questions ---------------------------------------------------------------------------


def test_a_question_in_between(saver: Any) -> None:
    """Inputs that were stored before it wait for its answer."""
    graph = linear(saver, State, ask=asks)
    submit(graph, "1", "2")
    assert saver.runs.resume(graph, "thread")["__interrupt__"]
    assert saver.threads.get("thread").status == "waiting"
    assert saver.runs.resume(graph, "thread") is None
    saver.threads.answer("thread", {question(saver): "yes"}, resume=True)
    assert saver.runs.resume(graph, "thread")["log"] == ["1", "yes", "2"]
    saver.threads.answer("thread", {question(saver): "no"}, resume=True)
    assert saver.runs.resume(graph, "thread") == {"log": ["1", "yes", "2", "no"]}
    assert due(saver) == []


def test_an_input_that_is_stored_while_a_question_is_asked(saver: Any) -> None:
    """It was stored before the question, so it waits for its answer."""

    def submits(state: State) -> Any:
        if len(state["log"]) == 1:
            saver.runs.submit(graph, "thread", given("2"), key="2")
            return asks(state)
        return given("a")

    graph = linear(saver, State, ask=submits)
    submit(graph, "1")
    assert saver.runs.resume(graph, "thread")["__interrupt__"]
    assert saver.runs.resume(graph, "thread") is None
    saver.threads.answer("thread", {question(saver): "yes"}, resume=True)
    assert saver.runs.resume(graph, "thread") == {"log": ["1", "yes", "2", "a"]}


def test_a_later_input_takes_the_place_of_an_answer(saver: Any) -> None:
    graph = linear(saver, State, ask=asks)
    submit(graph, "1")
    saver.runs.resume(graph, "thread")
    submit(graph, "2")
    assert saver.runs.resume(graph, "thread")["log"] == ["1", "2"]


def test_an_answer_is_asked_to_be_resumed(saver: Any) -> None:
    graph = linear(saver, State, ask=asks)
    submit(graph, "1")
    saver.runs.resume(graph, "thread")
    assert due(saver) == []
    saver.threads.answer("thread", {question(saver): "no"})
    assert due(saver) == []
    saver.threads.answer("thread", {question(saver): "yes"}, replace=True, resume=True)
    assert due(saver) == ["thread"]
    assert saver.runs.resume(graph, "thread") == {"log": ["1", "yes"]}


# -- attempts ----------------------------------------------------------------------------


def failing(saver: Any, errors: list[Any], keys: list[tuple[str, str]]) -> Any:
    """Two tasks at once and a third, which raise these errors as often as they are there."""

    def named(name: str) -> Callable[[State, Runtime], Any]:
        def node(_: State, runtime: Runtime) -> Any:
            keys.append((name, task_key(runtime)))
            if name in errors:
                errors.remove(name)
                raise NodeError(name)
            return given(name)

        return node

    builder = StateGraph(State)
    for name in ("a", "b", "c"):
        builder.add_node(name, named(name))
    builder.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "c")
    return builder.compile(checkpointer=saver)


def test_only_unfinished_tasks_run_again(saver: Any) -> None:
    """With the same key."""
    keys: list[tuple[str, str]] = []
    graph = failing(saver, ["b", "b", "c"], keys)
    submit(graph, "1")
    for _ in range(3):
        with pytest.raises(NodeError):
            saver.runs.resume(graph, "thread")
        assert saver.threads.get("thread").status == "failed"
        assert due(saver) == []  # (it is due later)
        assert due(saver, lease=None) == ["thread"]
    assert saver.runs.resume(graph, "thread") == {"log": ["1", "a", "b", "c"]}
    assert sorted(name for name, _ in keys) == ["a", "b", "b", "b", "c", "c"]
    assert len(set(keys)) == 3
    submit(graph, "2")
    saver.runs.resume(graph, "thread")
    assert len(set(keys)) == 6


@pytest.mark.parametrize("status", ["failed", "unfinished"])
def test_an_edited_thread_is_resumed(saver: Any, status: str) -> None:
    """An edit finishes nothing: the same task runs next, with the edited state."""

    def fails(state: State) -> Any:
        if state["log"] == ["1"]:
            raise NodeError
        return given("a")

    graph = linear(saver, State, a=fails)
    graph.interrupt_before_nodes = ["a"] if status == "unfinished" else []
    submit(graph, "1")
    with suppress(NodeError):
        saver.runs.resume(graph, "thread")
    assert saver.threads.get("thread").status == status
    saver.threads.edit("thread", {"log": ["2"]})
    assert saver.threads.get("thread").status == "unfinished"
    report = saver.check()
    assert (report.findings, report.notes) == ((), ())
    assert saver.runs.resume(graph, "thread") == {"log": ["2", "a"]}
    assert saver.threads.get("thread").status == "done"


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize(
    ("error", "after"),
    [
        (NodeError(), ([], 1)),  # (it is due later)
        (GraphBubbleUp(), (["thread"], 0)),
        (asyncio.CancelledError(), (["thread"], 0)),
    ],
    ids=repr,
)
def test_a_run_that_ends_before_its_first_checkpoint(
    saver: Any, error: BaseException, after: Any, has_run: bool
) -> None:
    """Its input is still to be run."""

    class Fails(BaseCallbackHandler):
        raise_error = True

        def on_chain_start(self, *_: Any, **__: Any) -> None:
            raise error

    graph = linear(saver, State, a=says("a"))
    if has_run:
        graph.invoke(given("0"), at())
    submit(graph, "1")
    with pytest.raises(type(error)):
        saver.runs.resume(graph, "thread", config={"callbacks": [Fails()]})
    found = saver.threads.get("thread")
    assert ((due(saver), found.attempts), found.status) == (after, "unfinished")
    assert saver.runs.resume(graph, "thread")["log"][-2:] == ["1", "a"]
    assert saver.threads.get("thread").status == "done"


def test_the_last_attempt_holds_a_thread(saver: Any) -> None:
    """Until it is released. Progress counts attempts from 0."""
    keys: list[tuple[str, str]] = []
    graph = failing(saver, ["b"] * 2 + ["c"] * 3, keys)
    submit(graph, "1")
    for attempts in (1, 2, 1, 2, 3):
        with pytest.raises(NodeError):
            saver.runs.resume(graph, "thread")
        assert saver.threads.get("thread").attempts == attempts
    assert saver.threads.get("thread").status == "held"
    submit(graph, "2")
    assert due(saver) == []
    for _ in range(2):
        with pytest.raises(HeldError):
            saver.runs.resume(graph, "thread")
    assert len(keys) == 7
    saver.runs.release("thread")
    assert due(saver) == ["thread"]
    assert saver.runs.resume(graph, "thread")["log"][:4] == ["1", "a", "b", "c"]


def test_a_thread_whose_workers_die_is_held(saver: Any) -> None:
    graph = linear(saver, State, a=says("a"))
    submit(graph, "1")
    for number in range(3):
        assert due(saver) == ["thread"]
        die(saver, holder=f"dead {number}")
    with pytest.raises(HeldError):
        saver.runs.resume(graph, "thread")
    assert (saver.threads.get("thread").status, due(saver)) == ("held", [])
    with pytest.raises(HeldError):
        saver.runs.resume(graph, "thread", max_attempts=99)
    saver.runs.release("thread")
    assert saver.runs.resume(graph, "thread") == {"log": ["1", "a"]}


def test_a_worker_whose_lease_is_ended_saves_nothing_more(saver: Any) -> None:
    def ends(state: State) -> Any:
        if len(state["log"]) == 1:
            saver.runs.release("thread", force=True)
        return given("a")

    graph = linear(saver, State, a=ends)
    submit(graph, "1")
    with pytest.raises(LeaseLostError):
        saver.runs.resume(graph, "thread")
    found = saver.threads.get("thread")
    assert (due(saver), found.worker, found.attempts) == (["thread"], None, 0)
    assert saver.get_tuple(at()).pending_writes == []
    assert linear(saver, State, a=says("b")).get_state(at()).values == given("1")
    assert saver.runs.resume(linear(saver, State, a=says("b")), "thread")["log"] == ["1", "b"]


def test_a_failing_subgraph_makes_no_progress(saver: Any) -> None:
    def fails(_: State) -> Any:
        raise NodeError

    inner = linear(None, State, a=says("a"), b=fails)
    graph = linear(saver, State, inner=inner)
    submit(graph, "1")
    for _ in range(3):
        with pytest.raises(NodeError):
            saver.runs.resume(graph, "thread")
    assert saver.threads.get("thread").status == "held"


def test_an_input_that_the_graph_refuses_is_held(saver: Any) -> None:
    graph = linear(saver, State, a=says("a"))
    saver.runs.submit(graph, "thread", "no dict")
    for _ in range(3):
        with pytest.raises(Exception, match="dict"):
            saver.runs.resume(graph, "thread")
    assert saver.threads.get("thread").status == "held"


def test_keys_of_tasks(ours: Any) -> None:
    keys = []

    def sends(_: State) -> Any:
        return [Send("sent", {}), Send("sent", {})]

    def sent(_: State, config: RunnableConfig) -> Any:
        keys.append(task_key(config))
        return given("sent")

    builder = StateGraph(State)
    builder.add_node("sent", sent)
    builder.add_conditional_edges(START, sends)
    builder.compile(checkpointer=ours).invoke(given("1"), at())
    assert len(set(keys)) == 2
    for wrong in (None, {}, at(), Runtime()):
        with pytest.raises(InvalidArgumentError):
            task_key(wrong)


def test_the_functional_api(saver: Any) -> None:
    ran: list[Any] = []

    @task
    def step(text: str, config: RunnableConfig) -> str:
        ran.append((text, task_key(config)))
        return f"{text}!"

    @task
    def fails(text: str, config: RunnableConfig) -> str:
        ran.append((text, task_key(config)))
        if len(ran) == 2:
            raise NodeError
        return f"{text}?"

    @entrypoint(checkpointer=saver)
    def flow(text: str, previous: Any = None) -> Any:
        return [*(previous or []), step(text).result(), fails(text).result()]

    for text in ("x", "y"):
        saver.runs.submit(flow, "thread", text)
    with pytest.raises(NodeError):
        saver.runs.resume(flow, "thread")
    assert saver.runs.resume(flow, "thread") == ["x!", "x?", "y!", "y?"]
    assert ran[1] == ran[2]
    assert len(ran) == 5


def test_a_breakpoint_stops_a_run(saver: Any) -> None:
    graph = linear(saver, State, a=says("a"), b=says("b"))
    graph.interrupt_before_nodes = ["b"]
    submit(graph, "1", "2")
    assert saver.runs.resume(graph, "thread")["log"] == ["1", "a"]
    assert due(saver) == ["thread"]  # (the other input)
    assert saver.runs.resume(graph, "thread")["log"] == ["1", "a", "b", "2", "a"]
    assert due(saver) == []
    assert saver.runs.resume(graph, "thread")["log"] == ["1", "a", "b", "2", "a", "b"]


@pytest.mark.parametrize("is_awaited", [False, True])
async def test_a_drained_run_may_be_resumed_at_once(saver: Any, is_awaited: bool) -> None:
    runtime = pytest.importorskip("langgraph.runtime")
    if not hasattr(runtime, "RunControl"):
        pytest.skip("this release of LangGraph drains no runs")
    control, drained = runtime.RunControl(), pytest.importorskip("langgraph.errors").GraphDrained

    def drains(_: State) -> Any:
        control.request_drain()
        return given("a")

    graph = linear(saver, State, a=drains, b=says("b"))
    submit(graph, "1", "2")

    async def run() -> None:
        if is_awaited:
            await saver.runs.aresume(graph, "thread", control=control)
        else:
            saver.runs.resume(graph, "thread", control=control)

    with pytest.raises(drained):
        await run()
    assert (due(saver), saver.threads.get("thread").attempts) == (["thread"], 0)
    assert saver.runs.resume(graph, "thread")["log"] == ["1", "a", "b", "2", "a", "b"]


async def test_a_cancelled_run_may_be_resumed_at_once(saver: Any) -> None:
    begun = asyncio.Event()

    async def waits(_: State) -> Any:
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(30)
        return given("a")

    graph = linear(saver, State, a=waits)
    await saver.runs.asubmit(graph, "thread", given("1"))
    running = asyncio.create_task(saver.runs.aresume(graph, "thread"))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (due(saver), saver.threads.get("thread").attempts) == (["thread"], 0)
    assert await saver.runs.aresume(graph, "thread") == {"log": ["1", "a"]}


def test_threads_to_resume(saver: Any) -> None:
    def fails(_: State) -> Any:
        raise NodeError

    graph, bad = linear(saver, State, a=says("a")), linear(saver, State, a=fails)
    submit(graph, "1", thread="input")
    submit(bad, "1", thread="failed")
    with pytest.raises(NodeError):
        saver.runs.resume(bad, "failed")
    with suppress(NodeError):
        bad.invoke(given("1"), at("no guard"))
    graph.invoke(given("1"), at("done"))
    die(saver, "done")
    submit(graph, "1", thread="held")
    with guard(saver, "held"):
        assert due(saver) == ["input", "done"]
        assert sorted(due(saver, lease=None)) == ["done", "failed", "input", "no guard"]
        assert due(saver, older_than=timedelta(hours=1)) == []
    assert due(saver) == ["input", "done", "held"]
    assert saver.runs.resume(graph, "done") is None
    assert due(saver) == ["input", "held"]


def test_tenants(saver: Any) -> None:
    one, two = saver.for_tenant("one"), saver.for_tenant("two")
    for tenant in (one, two):
        submit(linear(tenant, State, a=says(str(tenant.tenant))), "1")
    assert due(one) == due(two) == ["thread"]
    assert len(due(saver)) == 2
    assert one.runs.resume(linear(one, State, a=says("a")), "thread") == {"log": ["1", "a"]}
    assert (due(one), due(two)) == ([], ["thread"])


def test_layered_memory(saver: Any) -> None:
    layered = LayeredCheckpointSaver(saver)
    builder = StateGraph(MessagesState)
    builder.add_node("a", lambda state: {"messages": [AIMessage(f"{len(state['messages'])}")]})
    graph: Any = builder.add_edge(START, "a").compile(checkpointer=layered)
    for text in "xy":
        layered.runs.submit(graph, "thread", {"messages": [HumanMessage(text)]})
    result = layered.runs.resume(graph, "thread")
    assert [one.content for one in result["messages"]] == ["x", "1", "y", "3"]
    clone = saver.with_allowlist([])
    plain = linear(clone, State, a=says("a"))
    clone.runs.submit(plain, "other", given("1"))
    assert saver.runs.resume(plain, "other") == {"log": ["1", "a"]}


# -- deletion ----------------------------------------------------------------------------


def test_a_deleted_thread_has_no_inputs(saver: Any) -> None:
    def deletes(_: State) -> Any:
        saver.delete_thread("thread")
        return given("a")

    graph = linear(saver, State, a=deletes)
    submit(graph, "1", "2")
    with pytest.raises(ThreadDeletedError):
        saver.runs.resume(graph, "thread")
    assert (due(saver), list(saver.list(at()))) == ([], [])
    assert saver.runs.resume(graph, "thread") is None
    assert not saver.runs.submit(graph, "thread", given("3"), key="k").is_taken
    assert due(saver) == ["thread"]


# -- clocks ------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Sets the clock of this worker, and lets it make ids as a new process."""
    real, real_ns = time.time, time.time_ns

    def put(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + seconds)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(seconds * 10**9))
        monkeypatch.setattr(ids, "_last_v6_timestamp", None)

    yield put
    monkeypatch.undo()
    ids._last_v6_timestamp = None


HOUR = 3600


@pytest.mark.parametrize("seconds", [-HOUR, HOUR])
def test_a_worker_whose_clock_is_wrong(saver: Any, clock: Any, seconds: float) -> None:
    """Its run continues the thread, and the next one continues it."""
    inner = linear(None, State, i=says("i"))
    graph = linear(saver, State, a=says("a"), inner=inner)
    submit(graph, "1")
    saver.runs.resume(graph, "thread")
    clock(seconds)
    submit(graph, "2")
    saver.runs.resume(graph, "thread")
    clock(0)
    submit(graph, "3")
    result = saver.runs.resume(graph, "thread")
    numbers = [one for one in result["log"] if one.isdigit()]  # (the subgraph repeats them)
    assert list(dict.fromkeys(numbers)) == ["1", "2", "3"]
    assert graph.get_state(at()).values == result
    assert due(saver) == []


@pytest.mark.parametrize("seconds", [-HOUR, HOUR])
def test_an_input_after_a_question_of_a_worker_whose_clock_is_wrong(
    saver: Any, clock: Any, seconds: float
) -> None:
    graph = linear(saver, State, ask=asks)
    clock(seconds)
    submit(graph, "1")
    saver.runs.resume(graph, "thread")
    clock(0)
    submit(graph, "2")
    assert saver.runs.resume(graph, "thread")["log"] == ["1", "2"]


@pytest.mark.parametrize("seconds", [-HOUR, HOUR])
def test_a_question_after_an_input_of_a_worker_whose_clock_is_wrong(
    saver: Any, clock: Any, seconds: float
) -> None:
    graph = linear(saver, State, ask=asks)
    clock(seconds)
    submit(graph, "1", "2")
    clock(0)
    saver.runs.resume(graph, "thread")
    assert saver.runs.resume(graph, "thread") is None
    saver.threads.answer("thread", {question(saver): "yes"}, resume=True)
    assert saver.runs.resume(graph, "thread")["log"] == ["1", "yes", "2"]


def test_a_lease_does_not_end_by_the_clock_of_a_worker(saver: Any, clock: Any) -> None:
    """A server's clock decides. Workers on one file have one clock."""
    if type(saver._store.backend).__name__ in ("MemoryBackend", "SqliteBackend"):
        return
    submit(linear(saver, State, a=says("a")), "1")
    lease(saver, "thread", "take")
    for seconds in (2 * HOUR, -2 * HOUR):
        clock(seconds)
        assert due(saver) == []
        with pytest.raises(ThreadLockedError), guard(saver, "thread"):
            pass
    clock(-2 * HOUR)
    with guard(saver, "other"):
        clock(0)
        assert saver.runs.resume(linear(saver, State, a=says("a")), "third") is None
        with pytest.raises(ThreadLockedError), guard(saver, "other"):
            pass
