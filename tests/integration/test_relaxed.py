"""Saves that return before they are durable: kept saves, lost saves, and their reports."""

from __future__ import annotations

import asyncio
import gc
import operator
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from kit import postgres as postgres_kit
from kit.backends import BACKENDS, SHARED, open_backend, url_of
from kit.engine import Chain, checkpoint, config, run_config
from kit.forked import python
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import END, START, StateGraph
from psycopg_pool import AsyncConnectionPool

from threadkeep import AsyncPostgresSaver, GroupCommit, MemorySaver, WriteBehind, open_saver
from threadkeep._run.write_behind.queue import _nonempty
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep.errors import (
    ClosedError,
    DiskFullError,
    InvalidArgumentError,
    LostSavesError,
    StaleThreadError,
    ThreadDeletedError,
    ThreadkeepError,
    UnreachableError,
)
from threadkeep.savers.saver import Saver

SELDOM = WriteBehind(flush_interval=60)
LONG = "x" * 90


class Said(TypedDict):
    said: Annotated[list[str], operator.add]


class Store(MemoryBackend):
    """Counts its calls; fails on chosen ones."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0
        self.stored = threading.Event()
        self.down = False
        self.bad = ""

    def _look(self, changes: Any) -> None:
        if self.down:
            raise UnreachableError("The store is down.")
        if any(change.thread == self.bad for change in changes):
            raise DiskFullError
        self.changes += len(changes)

    def commit(self, change: Any) -> None:
        self._look([change])
        super().commit(change)
        self.stored.set()

    def commit_many(self, changes: Any) -> Any:
        self._look(changes)
        results = super().commit_many(changes)
        self.stored.set()
        return results


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def saver(store: Store) -> Saver:
    """A saver that stores queued saves only when it must."""
    return Saver(store, write_behind=SELDOM)


def queue_of(saver: Saver) -> Any:
    return saver._store._write_behind.queue


def talk(saver: Any, count: int, thread: str = "t") -> Any:
    """A conversation of so many checkpoints, each with a pending write."""
    chain = Chain(saver, thread)
    for number in range(count):
        chain.put(m=[*chain.values.get("m", []), f"{number} {LONG}"], n=number)
        saver.put_writes(chain.at, [("n", number)], "task")
    return chain


def expected(count: int, thread: str = "t") -> Any:
    saver = MemorySaver()
    talk(saver, count, thread)
    return shown(saver, thread)


def shown(saver: Any, thread: str = "t") -> list[Any]:
    found = saver.list(config(thread))
    return [
        (one.checkpoint["id"], one.checkpoint["channel_values"], one.pending_writes)
        for one in found
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_everything_is_there_when_it_is_read(backend: str, tmp_path: Path) -> None:
    with open_backend(backend, tmp_path, write_behind=SELDOM) as saver:
        talk(saver, 40)
        talk(saver, 5, "u")
        assert shown(saver) == expected(40)
        assert shown(saver, "u") == expected(5, "u")
        assert saver.check().ok


@pytest.mark.parametrize("backend", SHARED)
def test_closing_stores_it(backend: str, tmp_path: Path) -> None:
    with open_backend(backend, tmp_path, write_behind=SELDOM) as saver:
        talk(saver, 10)
    with open_backend(backend, tmp_path) as saver:
        assert shown(saver) == expected(10)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_awaited(backend: str, tmp_path: Path) -> None:
    async with open_backend(backend, tmp_path, write_behind=SELDOM) as saver:
        chain = Chain(saver)
        chain.put(m=[LONG], n=1)
        await saver.aput_writes(chain.at, [("n", 2)], "task")
        found = await saver.aget_tuple(config())
        assert found.pending_writes == [("task", "n", 2)]
        await saver.aput_writes(chain.at, [("n", 3)], "other")
        await saver.aflush()
        assert len((await saver.aget_tuple(config())).pending_writes) == 2


def test_many_saves_are_one_change(store: Store, saver: Saver) -> None:
    talk(saver, 5)
    talk(saver, 5, "u")
    saver.flush()
    assert store.changes <= 4  # each thread was read once, before its first save
    saver.flush()
    assert shown(saver) == expected(5)


def test_a_save_asks_nothing_of_the_store(store: Store, saver: Saver) -> None:
    chain = talk(saver, 2)
    store.down = True
    chain.put(m=[LONG], n=7)
    saver.put_writes(chain.at, [("n", 1)], "task")
    store.down = False
    assert saver.get_tuple(config()).checkpoint["channel_values"]["n"] == 7


def test_it_is_stored_before_long() -> None:
    store = Store()
    saver = Saver(store, write_behind=WriteBehind(flush_interval=0.01))
    talk(saver, 1)
    assert store.stored.wait(10)
    saver.close()


def test_a_saver_that_is_let_go_of_leaves_no_thread() -> None:
    saver = Saver(Store(), write_behind=SELDOM)
    before = set(threading.enumerate())
    chain = talk(saver, 1)
    (flusher,) = set(threading.enumerate()) - before
    saver.flush()
    del saver, chain
    gc.collect()
    flusher.join(10)
    assert not flusher.is_alive()


def test_a_saver_that_is_let_go_of_loses_nothing() -> None:
    store = Store()
    saver = Saver(store, write_behind=WriteBehind(flush_interval=0.05))
    talk(saver, 3)
    chain = talk(saver, 1, "u")
    del saver, chain
    gc.collect()
    while len(shown(Saver(store))) < 3 or not shown(Saver(store), "u"):
        assert store.stored.wait(10)
    assert shown(Saver(store)) == expected(3)


def test_what_waits_is_bounded() -> None:
    store = Store()
    saver = Saver(store, write_behind=replace(SELDOM, max_pending_bytes=5000))
    talk(saver, 40)
    assert store.changes > 2
    assert queue_of(saver)._size < 5000 + 1000  # (one more than there is room for)
    assert shown(saver) == expected(40)


# -- a store that fails ------------------------------------------------------------------


def test_a_failing_store_loses_nothing(store: Store, saver: Saver) -> None:
    chain = talk(saver, 4)
    store.down = True
    for _ in range(2):
        with pytest.raises(UnreachableError, match="down"):
            saver.flush()
    saver.put_writes(chain.at, [("n", 99)], "late")
    store.down = False
    saver.flush()
    assert {value for *_, value in saver.get_tuple(config()).pending_writes} == {3, 99}
    assert saver.check().ok


def test_a_background_failure_is_told_at_the_next_call(store: Store, saver: Saver) -> None:
    chain = talk(saver, 2)
    store.down = True
    queue_of(saver).flush_quietly()
    store.down = False
    with pytest.raises(UnreachableError, match="down"):
        saver.put_writes(chain.at, [("n", 5)], "other")
    saver.put_writes(chain.at, [("n", 5)], "other")
    saver.flush()
    assert len(saver.get_tuple(config()).pending_writes) == 2


def test_a_full_list_waits_for_the_store_and_says_why_not() -> None:
    store = Store()
    saver = Saver(store, write_behind=replace(SELDOM, max_pending_bytes=5000))
    store.down = True
    with pytest.raises(UnreachableError, match="down"):
        talk(saver, 40, "u")
    store.down = False
    saver.flush()
    found = shown(saver, "u")
    assert 0 < len(found) < 40
    assert [one[:2] for one in found[1:]] == [
        one[:2] for one in expected(40, "u")[-len(found) + 1 :]
    ]
    assert saver.check().ok


def test_one_that_fails_alone_leaves_the_others_alone(store: Store, saver: Saver) -> None:
    talk(saver, 3, "bad")
    talk(saver, 3)
    store.bad = "bad"
    queue_of(saver).flush_quietly()
    assert shown(Saver(store)) == expected(3)
    with pytest.raises(DiskFullError):
        saver.get_tuple(config("bad"))
    store.bad = ""
    assert shown(saver, "bad") == expected(3, "bad")


# -- others come in between --------------------------------------------------------------


def test_what_is_refused_takes_what_builds_on_it_along_and_is_told(
    store: Store, saver: Saver, caplog: Any
) -> None:
    chain = talk(saver, 3)
    talk(saver, 3, "u")
    saver.flush()
    chain.put(m=[LONG], n=1)
    Saver(store).delete_thread("t")  # as another process does
    saver.put_writes(chain.at, [("n", 5)], "task")
    queue_of(saver).flush_quietly()
    assert "Lost" in caplog.text
    with pytest.raises(LostSavesError, match="2 saves") as caught:
        saver.put_writes(chain.at, [("n", 6)], "task")
    assert isinstance(caught.value.__cause__, ThreadDeletedError)
    with pytest.raises(ThreadDeletedError):
        chain.put(m=[LONG, LONG], n=2)  # of the same run
    other = Chain(saver, start=10)
    other.put(m=[LONG, LONG], n=2)
    assert saver.get_tuple(config()).checkpoint["channel_values"] == {"m": [LONG, LONG], "n": 2}
    assert shown(saver, "u") == expected(3, "u")
    assert saver.check().ok


def test_nothing_is_built_on_what_was_lost(store: Store, saver: Saver) -> None:
    """The values of a lost save are met again, and found nowhere."""
    chain, note = Chain(saver), {"text": LONG}
    chain.put(n=0)
    chain.put(notes=[note])
    saver.flush()
    same = [HumanMessage("the same object " * 30, id="1")]
    chain.put(m=same)
    saver.put_writes(chain.at, [("m", same)], "task")
    later = Saver(store).put(config(), checkpoint("1", {}, {}), {}, {})
    Saver(store).prune(["t"])
    note["text"] = "changed in place: what was saved of it is nowhere any more"
    with pytest.raises(LostSavesError, match="2 saves") as caught:
        saver.flush()
    assert isinstance(caught.value.__cause__, StaleThreadError)
    at = saver.put(later, checkpoint("2", {"m": same}, {"m": 9}), {}, {})
    saver.put_writes(at, [("m", same)], "task")
    saver.flush()
    found = Saver(store).get_tuple(config())
    assert found.checkpoint["channel_values"] == {"m": same}
    assert found.pending_writes == [("task", "m", same)]
    assert saver.check().ok


def test_what_a_thread_lost_that_was_deleted_before_a_flush_is_told(
    store: Store, saver: Saver
) -> None:
    """The saves were built in the life that the deletion has ended."""
    talk(saver, 2)
    saver.put_writes(config(checkpoint_id=str(uuid6())), [("n", 1)], "task")
    Saver(store).delete_thread("t")
    with pytest.raises(LostSavesError, match="5 saves") as caught:
        saver.flush()
    assert isinstance(caught.value.__cause__, ThreadDeletedError)
    assert shown(saver) == []


def test_an_ordinary_saver_may_write_to_the_same_thread(store: Store, saver: Saver) -> None:
    """Neither continues the other's logs, so that no place can be taken."""
    talk(saver, 3)
    saver.flush()
    other = Saver(store)
    for number in range(10, 40):
        found = saver.get_tuple(run_config())
        mine = checkpoint(f"{number:08d} b", {"m": [f"mine {number} {LONG}"]}, {"m": number})
        saver.put(found.config, mine, {}, {"m": number})
        head = other.get_tuple(run_config()).checkpoint
        values = [*head["channel_values"]["m"], f"other {number} {LONG}"]
        theirs = checkpoint(f"{number:08d} a", {"m": values}, {"m": number})
        other.put(found.config, theirs, {}, {"m": number})
        saver.flush()
    assert saver.check().ok
    assert len(shown(saver)) == 63


def test_housekeeping_comes_after_what_was_saved() -> None:
    with MemorySaver(write_behind=SELDOM) as saver:
        talk(saver, 6)
        saver.prune(["t"])
        assert len(shown(saver)) == 1
        talk(saver, 2, "u")
        saver.copy_thread("u", "v")
        assert shown(saver, "v") == shown(saver, "u")
        talk(saver, 2, "gone")
        saver.delete_thread("gone")
        assert shown(saver, "gone") == []
        assert saver.check().ok


def test_what_was_read_before_a_prune_is_not_built_on_after_it(store: Store, saver: Saver) -> None:
    chain = talk(saver, 3)
    saver.flush()
    saver.clear_cache("t")  # so that the parent has to be read
    fetch = store.fetch

    def fetch_and_prune(reads: Any) -> Any:
        replies = fetch(reads)
        store.fetch = fetch  # type: ignore[method-assign]
        saver.prune(["t"])
        return replies

    store.fetch = fetch_and_prune  # type: ignore[method-assign]
    chain.put(m=[LONG], n=4)
    saver.flush()
    assert saver.get_tuple(config()).checkpoint["channel_values"] == {"m": [LONG], "n": 4}
    assert saver.check().ok


def test_housekeeping_beside_runs_loses_nothing() -> None:
    """In one process nothing is refused: runs, prunes and copies beside each other."""
    with MemorySaver(write_behind=WriteBehind(flush_interval=0.002)) as saver:
        ended = threading.Event()

        def tidy() -> None:
            while not ended.is_set():
                saver.prune(["t", "u"])
                saver.delete_thread("copy")
                saver.copy_thread("t", "copy")

        with ThreadPoolExecutor(3) as pool:
            tidying = pool.submit(tidy)
            runs = [pool.submit(talk, saver, 60, thread) for thread in "tu"]
            try:
                chains = [run.result() for run in runs]
            finally:
                ended.set()
            tidying.result()
        for chain, thread in zip(chains, "tu", strict=True):
            found = saver.get_tuple(config(thread))
            assert found.checkpoint["channel_values"] == chain.values
            assert found.pending_writes == [("task", "n", 59)]
        assert saver.check().ok


# -- a thread that is deleted under a run --------------------------------------------------


def late(saver: Any, parent: Any) -> Any:
    """The next checkpoint of a run that has not heard of a deletion."""
    values = {"m": [f"SECRET {LONG}"]}
    return saver.put(parent, checkpoint(str(uuid6()), values, {"m": 1}), {}, {"m": 1})


@pytest.mark.parametrize("whose", ["mine", "another's"])
@pytest.mark.parametrize("flushed", [0, 1, 2])
def test_deletion_stays_deleted_for_a_run_under_way(
    store: Store, saver: Saver, whose: str, flushed: int
) -> None:
    at = late(saver, config())
    for number in range(3):
        at = late(saver, at)
        if number < flushed:
            saver.flush()
    (saver if whose == "mine" else Saver(store)).delete_thread("t")
    for _ in range(4):
        with suppress(LostSavesError, ThreadDeletedError):
            at = late(saver, at)
            saver.flush()
        with suppress(LostSavesError, ThreadDeletedError):
            saver.put_writes(at, [("m", "SECRET")], "task")
    with suppress(LostSavesError):
        saver.flush()
    assert shown(Saver(store)) == []
    late(saver, config())  # another run begins again
    saver.flush()
    assert len(shown(Saver(store))) == 1


@pytest.mark.parametrize("whose", ["mine", "another's"])
@pytest.mark.parametrize("backend", SHARED)
def test_a_graph_that_runs_on_does_not_bring_its_thread_back(
    backend: str, whose: str, tmp_path: Path
) -> None:
    how = WriteBehind(flush_interval=0.005)
    with (
        open_backend(backend, tmp_path, write_behind=how) as saver,
        open_backend(backend, tmp_path) as other,
    ):

        def step(state: dict[str, Any]) -> dict[str, Any]:
            if len(state["said"]) == 12:
                (saver if whose == "mine" else other).delete_thread("t")
            return {"said": [f"SECRET {len(state['said'])} {LONG}"]}

        builder: StateGraph[Any] = StateGraph(Said)
        builder.add_node("step", step)
        builder.add_edge(START, "step")
        builder.add_conditional_edges(
            "step", lambda state: END if len(state["said"]) > 30 else "step"
        )
        with suppress(LostSavesError, ThreadDeletedError):
            builder.compile(checkpointer=saver).invoke(
                {"said": [LONG]}, {"configurable": {"thread_id": "t"}, "recursion_limit": 100}
            )
        with suppress(LostSavesError):
            saver.flush()
        assert list(other.list(config())) == []


# -- calls that are interrupted ------------------------------------------------------------


def test_an_interrupted_save_holds_up_nobody(saver: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(saver, 2, "u")
    chain = talk(saver, 2)
    saver.flush()
    chain.put(n=7)

    def interrupted(_batch: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("threadkeep._run.write_behind.queue._size", interrupted)
        with pytest.raises(KeyboardInterrupt):
            saver.put_writes(config("v", checkpoint_id="1"), [("n", 1)], "task")
    queue = queue_of(saver)
    queue._paused.add("t")  # as if interrupted while something was removed
    saver.put_writes(chain.at, [("n", 8)], "other")
    saver.flush()
    assert saver.get_tuple(config()).pending_writes == [("other", "n", 8)]
    assert queue_of(saver)._size == 0


def test_a_store_that_is_down_is_asked_once() -> None:
    store = Store()
    saver = Saver(store, write_behind=SELDOM, group_commit=GroupCommit(max_batch=10))
    for number in range(55):
        talk(saver, 1, f"thread {number}")
    saver.flush()
    for number in range(55):
        saver.put_writes(config(f"thread {number}", checkpoint_id="00000001"), [("n", 0)], "x")
    asked = []
    store._look = lambda _changes: asked.append(1) or down()  # type: ignore[method-assign]

    def down() -> None:
        raise UnreachableError

    with pytest.raises(UnreachableError):
        saver.flush()
    assert len(asked) == 1
    del store._look  # (else the end of the tests would wait for it)
    saver.close()


async def test_those_who_wait_for_a_store_hold_up_nobody_else(tmp_path: Path) -> None:
    async with open_backend("postgres", tmp_path, write_behind=SELDOM) as saver:
        for number in range(40):
            await saver.aput(*Chain(saver, f"t{number}").arguments(n=1))
        go_on = threading.Event()
        commit_many = saver._store.backend.commit_many

        def slow(changes: Any) -> Any:
            assert go_on.wait(30)
            return commit_many(changes)

        saver._store.backend.commit_many = slow
        reads = [asyncio.create_task(saver.aget_tuple(config(f"t{n}"))) for n in range(40)]
        await asyncio.sleep(0)
        async with open_saver(f"sqlite:///{tmp_path / 'other.db'}") as other:
            assert await other.aget_tuple(config()) is None
        assert not any(read.done() for read in reads)
        go_on.set()
        found = await asyncio.gather(*reads)
        assert [one.checkpoint["channel_values"] for one in found] == [{"n": 1}] * 40


# -- the end -----------------------------------------------------------------------------


AT_EXIT = """
import sys
from threadkeep import WriteBehind, open_saver
from kit.engine import Chain
saver = open_saver(sys.argv[1], write_behind=WriteBehind(flush_interval=60))
Chain(saver).put(m=["kept"], n=1)
"""


@pytest.mark.parametrize("backend", SHARED)
def test_the_end_of_the_program_stores_it(backend: str, tmp_path: Path) -> None:
    url = url_of(backend, tmp_path)
    with open_saver(url):
        pass
    folder = Path(__file__).parents[1]
    subprocess.run([*python(), "-c", AT_EXIT, url], cwd=folder, check=True, timeout=60)
    with open_saver(url) as saver:
        assert saver.get_tuple(config()).checkpoint["channel_values"]["m"] == ["kept"]


@pytest.mark.parametrize(
    "options",
    [
        {"flush_interval": 0},
        {"flush_interval": 61},
        {"flush_interval": "1"},
        {"max_pending_bytes": 0},
    ],
)
def test_what_has_no_meaning_is_refused(options: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="Invalid"):
        WriteBehind(**options)


def test_conflicts_cannot_be_raised() -> None:
    with pytest.raises(InvalidArgumentError, match="conflict"):
        MemorySaver(write_behind=SELDOM, conflicts="raise")


async def test_a_store_that_can_only_be_awaited_is_refused() -> None:
    async with AsyncConnectionPool(postgres_kit.url(), open=False) as pool:
        with pytest.raises(InvalidArgumentError, match="URL"):
            AsyncPostgresSaver(pool, write_behind=SELDOM)


async def test_an_awaiting_saver_has_reached_the_store_before_it_answers(tmp_path: Path) -> None:
    """At the program's end a pool's threads may not be started any more."""
    async with open_backend("postgres", tmp_path, write_behind=SELDOM) as saver:
        assert not saver._store._write_behind._is_reached
        await saver.aput(*Chain(saver).arguments(n=1))
        assert saver._store._write_behind._is_reached


def test_a_program_that_ends_stores_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_thread: Any) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    store = Store()
    saver = Saver(store, write_behind=SELDOM)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        talk(saver, 2)
    assert queue_of(saver) in _nonempty
    queue_of(saver).flush_quietly()  # as the program's end does
    assert shown(Saver(store)) == expected(2)


def test_what_cannot_be_stored_at_the_end_is_told_once(store: Store, saver: Saver) -> None:
    talk(saver, 2)
    talk(saver, 2, "u")
    store.down = True
    with pytest.raises(LostSavesError, match="2 threads"):
        saver.close()
    saver.close()


def test_all_threads_that_were_lost_are_named_at_the_end(store: Store, saver: Saver) -> None:
    for thread in "abc":
        talk(saver, 2, thread)
    saver.flush()
    for thread in "abc":
        saver.put_writes(config(thread, checkpoint_id="00000002"), [("n", 1)], "late")
        Saver(store).delete_thread(thread)
    with pytest.raises(LostSavesError, match=r"3 threads .*'a', 'b', 'c'"):
        saver.close()


def test_an_interrupted_close_can_be_done_again(
    store: Store, saver: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(saver, 3)

    def interrupted(_changes: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "_look", interrupted)
        with pytest.raises(KeyboardInterrupt):
            saver.close()
    assert queue_of(saver) in _nonempty  # the program's end would store it as well
    monkeypatch.setattr(store, "close", lambda: None)
    saver.close()
    assert queue_of(saver) not in _nonempty
    assert shown(Saver(store)) == expected(3)


@pytest.mark.parametrize(
    "error",
    [
        UnreachableError("The store is down."),
        InvalidArgumentError("The given connection is in the middle of a transaction."),
    ],
)
def test_a_failure_that_is_mended_is_not_told(
    store: Store, saver: Saver, error: ThreadkeepError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_changes: Any) -> None:
        raise error

    talk(saver, 3)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_look", refused)
        queue_of(saver).flush_quietly()
    queue_of(saver).flush_quietly()
    assert shown(saver) == expected(3)


def test_once_closed_nothing_is_taken() -> None:
    saver = MemorySaver(write_behind=SELDOM)
    chain = talk(saver, 2)
    saver.close()
    saver.close()
    with pytest.raises(ClosedError):
        chain.put(n=1)
