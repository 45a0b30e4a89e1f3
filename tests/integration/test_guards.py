"""A guard: of all workers, one at a time runs a thread, and only its saves are stored."""

import asyncio
import operator
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import UUID

import psycopg
import pytest
from kit.backends import open_backend
from kit.engine import Chain
from kit.graphs import linear
from kit.guards import all_saved, die, take_over
from kit.places import at
from kit.postgres import url_for
from kit.put_back import copy_rows
from kit.runs import Run
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphInterrupt, GraphRecursionError
from langgraph.func import entrypoint, task
from langgraph.types import Command, interrupt

from threadkeep import KeyRing, guard, open_saver
from threadkeep.errors import (
    BackendError,
    InvalidArgumentError,
    LeaseLostError,
    StateError,
    ThreadLockedError,
)
from threadkeep.memory import LayeredCheckpointSaver
from threadkeep.streaming import stream_saved

from .test_processes_and_loops import in_fork


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class NodeError(Exception):
    """An error of a node."""


INPUT: Any = {"log": ["q"]}


def says(name: str) -> Callable[[Any], Any]:
    return lambda _: {"log": [name]}


def said(saver: Any, thread: str = "thread") -> Any:
    found = saver.get_tuple(at(thread))
    return None if found is None else found.checkpoint["channel_values"].get("log")


def seen(saver: Any, thread: str = "thread") -> Any:
    """The status, worker and attempts of a thread."""
    found = saver.threads.get(thread)
    return found.status, found.worker, found.attempts


def due(saver: Any) -> list[str]:
    return [one.id for one in saver.runs.unfinished()]


# -- entry and exit ----------------------------------------------------------------------


def test_one_worker_at_a_time_runs_a_thread(saver: Any) -> None:
    graph = linear(saver, State, a=says("a"))
    with guard(saver, "thread", worker="first") as held:
        assert graph.invoke(INPUT, held.config) == {"log": ["q", "a"]}
        assert seen(saver) == ("running", "first", 0)
        with (
            pytest.raises(ThreadLockedError, match="first runs the thread"),
            guard(saver, "thread", worker="second"),
        ):
            pytest.fail("two workers hold the thread")
        with guard(saver, "other") as other:
            graph.invoke(INPUT, other.config)
    assert seen(saver) == ("done", None, 0)
    with guard(saver, "thread", worker="second") as held:
        assert graph.invoke(INPUT, held.config) == {"log": ["q", "a", "q", "a"]}


async def test_one_awaiting_worker_at_a_time_runs_a_thread(saver: Any) -> None:
    graph = linear(saver, State, a=says("a"))
    async with guard(saver, "thread", worker="first") as held:
        assert await graph.ainvoke(INPUT, held.config) == {"log": ["q", "a"]}
        with pytest.raises(ThreadLockedError):
            async with guard(saver, "thread"):
                pytest.fail("two workers hold the thread")
    assert seen(saver) == ("done", None, 0)


def test_a_worker_waits_for_another(saver: Any) -> None:
    def run() -> Any:
        with guard(saver, "thread", worker="second", wait=20) as second:
            return linear(saver, State, a=says("a")).invoke(INPUT, second.config)

    with guard(saver, "thread", worker="first") as first:
        waiting = Run(run)
        linear(saver, State, a=says("a")).invoke(INPUT, first.config)
        assert waiting.is_alive()
    assert waiting.finish() == {"log": ["q", "a", "q", "a"]}


async def test_an_awaiting_worker_waits_for_another(saver: Any) -> None:
    async def run() -> None:
        async with guard(saver, "thread", wait=20):
            pass

    async with guard(saver, "thread"):
        waiting = asyncio.create_task(run())
        with pytest.raises(ThreadLockedError):
            async with guard(saver, "thread", wait=0.1):
                pass
        assert not waiting.done()
    await waiting


@pytest.mark.parametrize(
    ("error", "after"),
    [
        (None, (None, 0)),
        (NodeError(), (None, 1)),  # (it is due later)
        (GraphInterrupt(), ("due", 0)),
        (GraphRecursionError(), (None, 0)),  # (an endless graph would run for ever)
        (KeyboardInterrupt(), ("due", 0)),
        (asyncio.CancelledError(), ("due", 0)),
    ],
    ids=repr,
)
def test_how_a_run_ends(ours: Any, error: BaseException | None, after: Any) -> None:
    linear(ours, State, a=says("a")).update_state(at(), INPUT, as_node="__input__")
    with suppress(BaseException), guard(ours, "thread"):
        if error is not None:
            raise error
    assert ("due" if due(ours) else None, seen(ours)[2]) == after
    if error is not None:
        with pytest.raises(type(error)) as caught, guard(ours, "thread"):
            raise error
        assert caught.value is error


def test_an_empty_guard_leaves_a_thread_due(saver: Any) -> None:
    """A `resume` that finds nothing to run ends it."""
    graph = linear(saver, State, a=lambda _: {"log": [interrupt("May I?")]})
    graph.invoke(INPUT, at())
    die(saver)
    for _ in range(2):
        with guard(saver, "thread"):
            pass
        assert due(saver) == ["thread"]
    assert saver.runs.resume(graph, "thread") is None
    assert due(saver) == []


def test_a_store_that_goes_back_during_a_run(
    request: pytest.FixtureRequest, saver: Any, tmp_path: Path
) -> None:
    """The thread is due, as the end of its run is lost. It is not, after the next run."""

    def copies(_: State) -> Any:
        kept.append(copy_rows(request.node.callspec.params["saver"], tmp_path, saver))
        return {"log": ["b"]}

    kept: list[Any] = []
    graph = linear(saver, State, a=says("a"), b=copies)
    with guard(saver, "thread") as held:
        graph.invoke(INPUT, held.config, durability="sync")
        kept[0]()
    assert (seen(saver), due(saver)) == (("unfinished", None, 0), ["thread"])
    assert saver.runs.resume(graph, "thread") == {"log": ["q", "a", "b"]}
    assert (seen(saver), due(saver)) == (("done", None, 0), [])


def test_a_store_that_goes_back_to_a_question(
    request: pytest.FixtureRequest, saver: Any, tmp_path: Path
) -> None:
    """The thread is due once: `resume` finds that it waits."""
    graph = linear(saver, State, a=lambda _: {"log": [interrupt("May I?")]})
    graph.invoke(INPUT, at())
    with guard(saver, "thread") as held:
        put_back = copy_rows(request.node.callspec.params["saver"], tmp_path, saver)
        graph.invoke(Command(resume="yes"), held.config)
        put_back()
    assert (seen(saver), due(saver)) == (("waiting", None, 0), ["thread"])
    assert saver.runs.resume(graph, "thread") is None
    assert (seen(saver), due(saver)) == (("waiting", None, 0), [])


async def test_names_of_workers(ours: Any) -> None:
    linear(ours, State, a=says("a")).invoke(INPUT, at())
    async with guard(ours, at()):
        assert seen(ours)[1] == f"{socket.gethostname()}-{os.getpid()}"
    for name in ("", "a b  c ", "名", "nul\0", "x" * 255):
        with guard(ours, "thread", worker=name):
            assert seen(ours)[1] == name
    config = {"configurable": {"thread_id": "thread", "user": "u"}, "tags": ["mine"]}
    for thread in (7, 7.5, UUID(int=7), at(7)):
        assert guard(ours, thread).thread_id == str(7 if thread == at(7) else thread)
    made = guard(ours, config)
    assert made.config["tags"] == ["mine"]
    assert made.config["configurable"]["user"] == "u"


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease": 0.5},
        {"lease": "long"},
        {"wait": -1},
        {"max_attempts": 0},
        {"max_attempts": True},
        {"worker": 7},
        {"worker": "x" * 256},
        {"thread_id": {"configurable": {}}},
        {"thread_id": {}},
        {"thread_id": None},
        {"saver": InMemorySaver},
    ],
    ids=repr,
)
def test_wrong_arguments(ours: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        guard(**{"saver": ours, "thread_id": "thread", **wrong})


def test_a_guard_holds_once_at_a_time(ours: Any) -> None:
    held = guard(ours, "thread")
    for _ in range(2):
        with held:
            with pytest.raises(StateError, match="already"), held:
                pytest.fail("it was entered twice")
            assert not held.lost
        with pytest.raises(LeaseLostError):
            linear(ours, State, a=says("a")).invoke(INPUT, held.config)
    assert said(ours) is None


# -- saves -------------------------------------------------------------------------------


def chain(saver: Any, takeover: Any) -> Any:
    return linear(saver, State, a=says("a"), b=takeover, c=says("c"))


def nested(saver: Any, takeover: Any) -> Any:
    inner = linear(None, State, b=takeover, c=says("c"))
    return linear(saver, State, a=says("a"), inner=inner, d=says("d"))


def functional(saver: Any, takeover: Any) -> Any:
    @task
    def second(given: Any) -> Any:
        return takeover(given)["log"]

    @task
    def first(given: Any) -> Any:
        return given["log"]

    @entrypoint(checkpointer=saver)
    def flow(given: Any) -> Any:
        return [*first(given).result(), *second(given).result(), *first(given).result()]

    return flow


def layered(saver: Any, takeover: Any) -> Any:
    return chain(LayeredCheckpointSaver(saver), takeover)


def cloned(saver: Any, takeover: Any) -> Any:
    return chain(saver.with_allowlist([]), takeover)


GRAPHS = {one.__name__: one for one in (chain, nested, functional, layered, cloned)}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("build", GRAPHS)
@pytest.mark.parametrize("is_awaited", [False, True], ids=["sync API", "async API"])
async def test_nothing_is_saved_after_a_takeover(
    saver: Any, build: str, durability: Any, is_awaited: bool
) -> None:
    """Neither checkpoints, nor writes, nor errors: the run gets a LeaseLostError."""
    before: list[Any] = []

    def takeover(_: Any) -> Any:
        deadline = time.monotonic() + 5
        while durability == "async" and time.monotonic() < deadline:
            if len(all_saved(saver)) >= 2 or build == "functional":
                break  # (the saves of earlier steps may be under way)
        time.sleep(0.05 if durability == "async" else 0)
        take_over(saver, held)
        before.append(all_saved(saver))
        return {"log": ["b"]}

    graph = GRAPHS[build](saver, takeover)
    held = guard(graph.checkpointer, "thread")

    async def run() -> None:
        if is_awaited:
            async with held:
                await graph.ainvoke(INPUT, held.config, durability=durability)
        else:
            with held:
                graph.invoke(INPUT, held.config, durability=durability)

    with pytest.raises(LeaseLostError):
        await run()
    assert all_saved(saver) == before[0]
    assert seen(saver)[1] in ("another", None) if before[0] else True
    with pytest.raises(ThreadLockedError, match="another"), guard(saver, "thread"):
        pass


def test_nothing_is_streamed_after_a_takeover(saver: Any) -> None:
    def takeover(_: Any) -> Any:
        take_over(saver, held)
        before.append(all_saved(saver))
        return {"log": ["b"]}

    before: list[Any] = []
    graph = chain(saver, takeover)
    with pytest.raises(LeaseLostError), guard(saver, "thread") as held:
        list(stream_saved(graph, INPUT, held.config, stream_mode="values", max_bytes=1))
    assert all_saved(saver) == before[0]


def test_a_node_saves_in_another_thread(ours: Any) -> None:
    """The guard is of one thread: a graph of another may run with the config of a node."""
    inner = linear(ours, State, x=says("x"))

    def calls(_: Any, config: RunnableConfig) -> Any:
        own = {**config["configurable"], "thread_id": "other", "checkpoint_ns": ""}
        inner.invoke(INPUT, {**config, "configurable": own})
        return {"log": ["b"]}

    with guard(ours, "thread") as held:
        linear(ours, State, b=calls).invoke(INPUT, held.config)
    assert said(ours, "other") == ["q", "x"]


def test_tenants_have_leases_of_their_own(saver: Any) -> None:
    one, two = saver.for_tenant("one"), saver.for_tenant("two")
    with guard(one, "thread") as first, guard(two, "thread") as second, guard(saver, "thread"):
        for tenant, held in ((one, first), (two, second)):
            linear(tenant, State, a=says("a")).invoke(INPUT, held.config)
        with pytest.raises(ThreadLockedError), guard(saver.for_tenant("one"), "thread"):
            pass
    assert said(one) == said(two) == ["q", "a"]


def test_threads_of_a_store_with_keys(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    with open_saver(url, keys=KeyRing([b"k" * 32])) as saver:
        graph = linear(saver, State, a=says("a"))
        with guard(saver, "thread", worker="me") as held:
            graph.invoke(INPUT, held.config)
            assert seen(saver) == ("running", "me", 0)
            take_over(saver, held)
            with pytest.raises(LeaseLostError):
                graph.invoke(INPUT, held.config)
            held._lost = True
        assert said(saver) == ["q", "a"]


# -- renewal and loss --------------------------------------------------------------------


async def test_a_blocked_event_loop_loses_no_lease(saver: Any) -> None:
    """Leases are renewed from a thread: many guards outlast three leases in which a node blocks."""
    runs = 0

    async def blocks(_: State) -> Any:
        nonlocal runs
        runs += 1
        if runs == 1:
            time.sleep(3.2)  # noqa: ASYNC251 - the event loop is blocked
        return {"log": ["b"]}

    graph = linear(saver, State, a=says("a"), b=blocks, c=says("c"))

    async def run(number: int) -> Any:
        async with guard(saver, f"thread {number}", lease=1) as held:
            return await graph.ainvoke(INPUT, held.config)

    results = await asyncio.gather(*map(run, range(8)))
    assert [one["log"] for one in results] == [["q", "a", "b", "c"]] * 8
    assert runs == 8


async def test_a_lost_lease_cancels_the_run(saver: Any) -> None:
    begun, ended = asyncio.Event(), []

    async def waits(_: State) -> Any:
        begun.set()
        await asyncio.sleep(30)

    async def run() -> None:
        try:
            async with guard(saver, "thread", lease=1) as held:
                guards.append(held)
                await graph.ainvoke(INPUT, held.config)
        finally:
            ended.append(asyncio.current_task().cancelling())

    guards: list[Any] = []
    graph = linear(saver, State, a=says("a"), b=waits)
    running = asyncio.create_task(run())
    await begun.wait()
    take_over(saver, guards[0])
    before = all_saved(saver)
    with pytest.raises(LeaseLostError):
        await running
    assert ended == [0]
    assert all_saved(saver) == before
    assert seen(saver)[1] == "another"


async def test_a_late_renewal_of_a_run_that_was_cancelled(
    ours: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard stays lost, though the store confirms its lease."""
    begun, cancelled, renewed = (threading.Event() for _ in range(3))
    held = guard(ours, "thread", lease=1)
    commit = held._commit

    def is_late(change: Any) -> Any:
        if change.does == "renew":
            begun.set()
            assert cancelled.wait(5)
        yield from commit(change)
        if change.does == "renew":
            renewed.set()

    async def run() -> None:
        async with held:
            monkeypatch.setattr(held, "_commit", is_late)
            assert await asyncio.to_thread(begun.wait, 5)
            held._until = 0  # (the end of the lease, by this worker's clock)
            try:
                await asyncio.sleep(30)
            finally:
                cancelled.set()
                assert await asyncio.to_thread(renewed.wait, 5)
                assert held.lost

    with pytest.raises(LeaseLostError):
        await run()
    assert asyncio.current_task().cancelling() == 0


async def test_a_run_ends_before_a_lease_that_cannot_be_renewed(
    ours: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the worker's own clock, also if the store answers nothing."""

    def fails(_: Any) -> Any:
        raise BackendError("The server is gone.")

    held = guard(ours, "thread", lease=1)

    async def run() -> None:
        async with held:
            monkeypatch.setattr(held, "_commit", fails)
            await asyncio.sleep(30)

    with pytest.raises(LeaseLostError):
        await run()
    assert held.lost
    with pytest.raises(LeaseLostError):
        linear(ours, State, a=says("a")).invoke(INPUT, held.config)


async def test_an_error_of_one_renewal_ends_no_lease(
    ours: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its own nor those of others, which the same thread renews."""

    def fails(_: Any) -> Any:
        monkeypatch.undo()
        raise RuntimeError

    async with guard(ours, "one", lease=1) as one, guard(ours, "two", lease=1) as two:
        monkeypatch.setattr(one, "_commit", fails)
        await asyncio.sleep(2)
        assert not one.lost
        assert not two.lost


async def test_a_cancellation_by_others_stays_one(ours: Any) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1), guard(ours, "thread"):
            await asyncio.sleep(30)
    async with guard(ours, "thread"):
        pass  # (a cancelled run gives its lease back)


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_cancellation_by_others_beside_a_loss(ours: Any, is_known: bool) -> None:
    async def run() -> None:
        async with guard(ours, "thread") as held:
            held._until = 0
            if is_known:
                held._cancel()
            asyncio.current_task().cancel()
            await asyncio.sleep(30)

    lost = asyncio.create_task(run())
    with pytest.raises(asyncio.CancelledError):
        await lost
    assert lost.cancelled()


async def test_a_run_that_ignores_its_cancellation_learns_of_the_loss(ours: Any) -> None:
    async def run() -> None:
        async with guard(ours, "thread", lease=1) as held:
            take_over(ours, held)
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(30)

    with pytest.raises(LeaseLostError):
        await run()
    assert asyncio.current_task().cancelling() == 0


async def test_errors_of_a_run_whose_lease_is_lost(ours: Any) -> None:
    """The loss is the news: the error is its cause."""

    async def run(held: Any) -> None:
        async with held:
            held._until = 0
            raise NodeError

    def run_blocking(held: Any) -> None:
        with held:
            held._until = 0
            raise NodeError

    with pytest.raises(LeaseLostError) as caught:
        await run(guard(ours, "one"))
    assert isinstance(caught.value.__cause__, NodeError)
    with pytest.raises(LeaseLostError) as caught:
        run_blocking(guard(ours, "two"))
    assert isinstance(caught.value.__cause__, NodeError)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
async def test_a_program_ends_though_a_lease_is_lost(ours: Any, error: type[BaseException]) -> None:
    async def run() -> None:
        async with guard(ours, "one") as held:
            held._until = 0
            raise error

    def run_blocking() -> None:
        with guard(ours, "two") as held:
            held._until = 0
            raise error

    with pytest.raises(error):
        await run()
    with pytest.raises(error):
        run_blocking()


def test_a_thread_that_another_program_locks(tmp_path: Path) -> None:
    """Leases of other threads are renewed meanwhile."""
    base, _, schema = url_for(tmp_path).partition("?schema=")
    with open_backend("postgres", tmp_path) as saver, ExitStack() as stack:
        guards = [stack.enter_context(guard(saver, thread, lease=3)) for thread in "abcdefgh"]
        with psycopg.connect(base) as server:
            table = f"{schema}.threads"
            server.execute(f"SELECT 1 FROM {table} WHERE thread_id = 'a' FOR UPDATE")
            time.sleep(3.5)
            assert not [one.thread_id for one in guards[1:] if one.lost]


@pytest.mark.parametrize("steps", range(0, 24, 3))
async def test_a_cancelled_entry_leaves_no_lease(saver: Any, steps: int) -> None:
    async def run() -> None:
        async with guard(saver, "thread", wait=5):
            await asyncio.sleep(30)

    entering = asyncio.create_task(run())
    for _ in range(steps):
        await asyncio.sleep(0)
    entering.cancel()
    with suppress(asyncio.CancelledError):
        await entering
    async with guard(saver, "thread"):
        pass


# -- processes ---------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking beside threads, on purpose
def test_the_child_of_a_fork_does_not_hold_the_thread(ours: Any) -> None:
    graph = linear(ours, State, a=says("a"))

    def child() -> bool:
        try:
            with pytest.raises(LeaseLostError):
                graph.invoke(INPUT, held.config)
            held.__exit__(None, None, None)
            held.__exit__(SystemExit, SystemExit(), None)
        except BaseException:  # noqa: BLE001 - of the child
            return False
        return held.lost

    with guard(ours, "thread") as held:
        graph.invoke(INPUT, held.config)
        assert in_fork(child)
        assert seen(ours)[0] == "running"
        assert graph.invoke(INPUT, held.config) == {"log": ["q", "a"] * 2}


# -- cost --------------------------------------------------------------------------------


def test_a_save_under_a_guard_costs_as_much_as_another_one(tmp_path: Path) -> None:
    with open_saver(f"sqlite:///{tmp_path / 'cost.db'}") as saver:
        plain = calls_of(Chain(saver, "plain"), {})
        with guard(saver, "guarded", lease=3600) as held:
            guarded = calls_of(Chain(saver, "guarded"), held.config["configurable"])
    assert guarded <= 1.03 * plain


def calls_of(chain: Chain, more: Any) -> int:
    """Return the Python functions that the last of some puts calls."""
    count = 0

    def noted(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event == "call"

    for number in range(8):
        chain.at["configurable"] |= more
        given = chain.arguments(text=f"{number}")
        count = 0
        sys.setprofile(noted)
        try:
            chain.at = chain.saver.put(*given)
        finally:
            sys.setprofile(None)
    return count
