"""Threads of one store that are brought into another: from any kind into any kind."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kit.backends import BACKENDS, open_backend
from kit.engine import Chain, Dying, config, everything, fresh, interrupted, run_on, use_backend
from kit.places import at
from kit.runs import Delta, Plain, story, told
from langgraph.checkpoint.memory import InMemorySaver

from threadkeep import MemorySaver
from threadkeep._core.engine.lineage import write_key
from threadkeep._core.engine.model import Batch, ReadThread
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.base import AsyncBackend
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep.errors import (
    BackendError,
    ConflictError,
    CorruptionError,
    InvalidArgumentError,
    ThreadNotFoundError,
)
from threadkeep.savers.saver import Saver
from threadkeep.threads.transfer import whole_thread

from .test_archive import Between

LONG = "x" * 90


def grow(saver: Any, thread: str, *names: str, schema: Any = Plain) -> None:
    for who in names:
        story(saver, schema).invoke({"log": [who]}, at(thread))


def fill(saver: Any) -> None:
    grow(saver, "plain", "a", "b")
    grow(saver, "delta", "a", "b", schema=Delta)
    chain = Chain(saver, "long", "child")
    for i in range(40):
        chain.put(m=[*chain.values.get("m", []), (i, LONG)], n=None)
        saver.put_writes(chain.at, [("m", LONG), ("n", i)], "task", "~p")


NAMES = ["delta", "long", "plain"]


def test_a_fork_that_went_on_elsewhere_comes_back(saver: Any) -> None:
    """It shares a log with its original, which has continued here."""
    grow(saver, "t", "a", "b")
    saver.threads.fork("t", None, "fork")
    with MemorySaver() as other:
        saver.threads.mirror(other)
        grow(saver, "t", "c")
        grow(other, "fork", "d")
        saver.threads.tag("fork", "here")
        assert other.threads.mirror(saver, "fork").extended == ["fork"]
        assert other.threads.mirror(saver, "fork").unchanged == 1
    assert story(saver, Plain).get_state(at("t")).values["log"] == told("a", "b", "c")
    found = saver.threads.get("fork")
    assert (found.tags, found.forked_from[0]) == (("here",), "t")
    grow(saver, "fork", "e")
    assert story(saver, Plain).get_state(at("fork")).values["log"] == told("a", "b", "d", "e")
    assert saver.check().ok


def test_a_thread_that_was_only_created_comes_along(saver: Any) -> None:
    saver.threads.create("new")
    with MemorySaver() as other:
        assert saver.threads.mirror(other).added == ["new"]
        assert other.threads.get("new").state == "created"
        assert saver.threads.mirror(other).unchanged == 1
        other.delete_thread("new")
        assert list(saver.threads.mirror(other).conflicts) == ["new"]


class Counting(Dying):
    """Counts the written rows."""

    def __init__(self, inner: Any, commits: int = 10**9) -> None:
        super().__init__(inner, commits)
        self.rows = 0
        self.bytes = 0

    def commit(self, change: Any) -> None:
        super().commit(change)
        if isinstance(change, Batch):
            self.rows += len(change.checkpoints) + len(change.writes)
            self.bytes += sum([len(segment.data) for segment in change.segments])


@pytest.mark.parametrize("target", BACKENDS)
def test_from_any_store_into_any_other(saver: Any, target: str, tmp_path: Path) -> None:
    fill(saver)
    with open_backend(target, tmp_path / "other") if target != "sqlite" else MemorySaver() as other:
        grow(other, "its own", "a")
        done = saver.threads.mirror(other)
        assert sorted(done.added) == NAMES
        shown = everything(other)
        assert {p: one for p, one in shown.items() if p[0] != "its own"} == everything(saver)
        again = saver.threads.mirror(other)
        assert (again.unchanged, again.added, again.extended) == (3, [], [])
        grow(saver, "plain", "c")
        grow(saver, "delta", "c", schema=Delta)
        more = saver.threads.mirror(other)
        assert (sorted(more.extended), more.unchanged) == (["delta", "plain"], 1)
        shown = everything(other)
        assert {p: one for p, one in shown.items() if p[0] != "its own"} == everything(saver)
        assert other.check().ok
        grow(other, "delta", "d", schema=Delta)
        state = story(other, Delta).get_state(at("delta"))
        assert state.values["log"] == told("a", "b", "c", "d")


def test_a_thread_that_is_used_there_while_it_is_deleted_stays() -> None:
    with MemorySaver() as saver, MemorySaver() as other:
        grow(saver, "plain", "a")
        saver.threads.mirror(other)
        saver.delete_thread("plain")
        racing = interrupted(other, lambda: grow(other, "plain", "b"))
        done = saver.threads.mirror(racing, delete=True)
        assert (done.deleted, [*done.conflicts]) == ([], ["plain"])
        state = story(fresh(other), Plain).get_state(at("plain"))
        assert state.values["log"] == told("a", "b")


def test_only_what_came_since_is_written(saver: Any) -> None:
    fill(saver)
    with MemorySaver() as other:
        saver.threads.mirror(other)
        chain = Chain(saver, "long", "child", start=40).follow()
        chain.put(m=[*chain.values["m"], (40, LONG)])
        saver.put_writes(chain.at, [("n", 40)], "task")
        counting = use_backend(other, Counting(other._store.backend))
        assert saver.threads.mirror(other).extended == ["long"]
        assert counting.rows == 2
        assert everything(fresh(other)) == everything(saver)


def test_pending_writes_that_came_since(saver: Any) -> None:
    grow(saver, "plain", "a")
    with MemorySaver() as other:
        saver.threads.mirror(other)
        head = saver.get_tuple(at("plain"))
        saver.put_writes(head.config, [("log", [LONG])], "late")
        assert saver.threads.mirror(other).extended == ["plain"]
        assert other.get_tuple(at("plain")).pending_writes[-1] == ("late", "log", [LONG])
        assert everything(other) == everything(saver)


def test_sealed_in_between(saver: Any) -> None:
    """Small segments there, and here one that took their place."""
    chain = Chain(saver, "t")
    with MemorySaver() as other:
        counting = use_backend(other, Counting(other._store.backend))
        for i in range(90):
            chain.put(m=[*chain.values.get("m", []), f"{i} {LONG}"])
            if i % 7 == 0:
                saver.threads.mirror(other)
                assert other.check().ok
        saver.threads.mirror(other)
        assert everything(other) == everything(saver)
        assert other.check().ok
        (here,) = LayeredBackend(saver._store.backend).blocking.fetch([ReadThread("t")])
        assert len(here.segments) < 60
        assert counting.rows == 90


@pytest.mark.parametrize("first", [0, 1, 2, 3, 4, 5, 6])
def test_cut_off_anywhere_it_goes_on(first: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("threadkeep._core.parts._MOST_ROWS", 9)
    with MemorySaver() as saver, MemorySaver() as other:
        fill(saver)
        backend = other._store.backend
        if first == 0:
            saver.threads.mirror(other)
            grow(saver, "plain", "c", "d")
            first = 1
        use_backend(other, Counting(backend, first))
        with pytest.raises(BackendError, match="killed"):
            saver.threads.mirror(other)
        use_backend(other, backend)
        assert other.check().ok
        assert values(other).items() <= values(saver).items()
        saver.threads.mirror(other)
        assert everything(fresh(other)) == everything(saver)
        assert saver.threads.mirror(other).unchanged == 3


def test_whoever_has_moved_on_is_left_alone() -> None:
    with MemorySaver() as saver, MemorySaver() as other:
        fill(saver)
        saver.threads.mirror(other)
        grow(other, "plain", "theirs")
        grow(saver, "delta", "ours", schema=Delta)
        grow(other, "delta", "theirs", schema=Delta)
        before = everything(other)
        for dry in (True, False):
            done = saver.threads.mirror(other, dry_run=dry)
            assert (done.newer, done.unchanged) == (["plain"], 1)
            assert list(done.conflicts) == ["delta"]
            assert everything(other) == before
        done = saver.threads.mirror(other, replace=True)
        assert (done.replaced, done.newer) == (["delta"], ["plain"])
        state = story(fresh(other), Delta).get_state(at("delta"))
        assert state.values["log"] == told("a", "b", "ours")
        assert other.threads.mirror(saver).extended == ["plain"]
        assert everything(saver) == everything(other)


@pytest.mark.parametrize("has_run", [False, True])
def test_stored_inputs_run_here(saver: Any, has_run: bool) -> None:
    """A mirror does not copy them. The next one continues after they have run."""
    graph = story(saver, Plain)
    if has_run:
        graph.invoke({"log": ["a"]}, at("t"))
    saver.runs.submit(graph, "t", {"log": ["b", LONG * 100]})
    with MemorySaver() as other:
        assert saver.threads.mirror(other).added == ["t"]
        assert list(other.runs.unfinished()) == []
        assert other.runs.resume(story(other, Plain), "t") is None
        assert other.check().ok
        assert saver.threads.mirror(other).unchanged == 1
        saver.runs.submit(graph, "t", {"log": ["c"]})
        result = saver.runs.resume(graph, "t")
        saver.runs.submit(graph, "t", {"log": ["d"]})
        done = saver.threads.mirror(other)
        assert (done.extended if has_run else done.added) == ["t"]
        assert story(other, Plain).get_state(at("t")).values == result
        assert other.check().notes == other.check().findings == ()
        saver.runs.resume(graph, "t")
        story(other, Plain).invoke({"log": ["theirs"]}, at("t"))
        assert list(saver.threads.mirror(other).conflicts) == ["t"]


def test_deleted_threads() -> None:
    with MemorySaver() as saver, MemorySaver() as other:
        fill(saver)
        saver.threads.mirror(other)
        saver.delete_thread("plain")
        other.delete_thread("delta")
        done = saver.threads.mirror(other)
        assert done.newer == ["plain"]
        assert done.conflicts == {"delta": "It was deleted there."}
        assert other.get_tuple(at("plain"))
        assert saver.threads.mirror(other, delete=True, dry_run=True).deleted == ["plain"]
        assert other.get_tuple(at("plain"))
        assert saver.threads.mirror(other, delete=True, replace=True).deleted == ["plain"]
        assert other.get_tuple(at("plain")) is None
        assert everything(other) == everything(saver)
        grow(saver, "plain", "anew")
        assert saver.threads.mirror(other, replace=True).replaced == []


def test_deleted_here_and_used_there() -> None:
    with MemorySaver() as saver, MemorySaver() as other:
        grow(saver, "t", "a")
        saver.threads.mirror(other)
        saver.delete_thread("t")
        grow(other, "t", "b")
        done = saver.threads.mirror(other, delete=True)
        assert list(done.conflicts) == ["t"]
        assert story(other).get_state(at("t")).values["log"] == told("a", "b")


def test_the_same_thread_stored_in_another_way() -> None:
    """Adopted at once, and turn by turn: the rows differ, the checkpoints do not."""
    source = InMemorySaver()
    with MemorySaver() as saver, MemorySaver() as other:
        for number in range(12):
            grow(source, "t", f"{number}{LONG}")
            other.threads.adopt(source)
        saver.threads.adopt(source)
        wholes = [run_on(whole_thread.read_thread("t"), s._store.backend) for s in (saver, other)]
        assert set(wholes[0].checkpoints) != set(wholes[1].checkpoints)
        assert saver.threads.mirror(other).unchanged == 1


def test_a_store_whose_numbers_have_gaps_gets_the_whole_thread() -> None:
    with MemorySaver() as saver, MemorySaver() as other:
        chain = Chain(saver)
        for n in range(3):
            chain.put(n=n)
            for task in ("a", "b", "c"):
                saver.put_writes(chain.at, [("n", LONG)], task)
        saver.threads.mirror(other)
        for store in (saver, other):  # the first of three writes is dropped in both
            (rows,) = store._store.backend.fetch([ReadThread("t")])
            first = rows.checkpoints[-1].writes[0]
            store._store.backend.commit(Batch("t", 1, drop_writes=(write_key(first),)))
        assert saver.threads.mirror(other).unchanged == 1
        # A run that has seen both others continues: it counts seen versions by number.
        chain.at = fresh(saver).get_tuple(config()).config
        chain.put(n=9)
        assert saver.threads.mirror(other).extended == ["t"]
        assert everything(fresh(other)) == everything(fresh(saver))
        assert other.check().ok


def values(saver: Any) -> dict[Any, Any]:
    return {place: one["values"] for place, one in everything(fresh(saver)).items()}


def test_a_store_that_loses_something_is_found_out() -> None:
    with MemorySaver() as saver, MemorySaver() as other:
        fill(saver)
        commit = other._store.backend.commit

        def forgetful(change: Any) -> None:
            if isinstance(change, Batch) and change.writes:
                change = change._replace(writes=change.writes[:-1])
            commit(change)

        other._store.backend.commit = forgetful
        with pytest.raises(CorruptionError, match="digest"):
            saver.threads.mirror(other, "plain")


def test_what_cannot_be_synced() -> None:
    with MemorySaver() as saver, MemorySaver() as other:
        with pytest.raises(InvalidArgumentError, match="this one"):
            saver.threads.mirror(saver)
        with pytest.raises(InvalidArgumentError, match="not a threadkeep saver"):
            saver.threads.mirror("sqlite:///other.db")
        with pytest.raises(ThreadNotFoundError):
            saver.threads.mirror(other, "nobody")


class OnlyAwaited(AsyncBackend):
    """A backend without blocking calls."""

    def __init__(self) -> None:
        self.inner = MemoryBackend()

    async def fetch(self, reads: Any) -> Any:
        return self.inner.fetch(reads)

    async def commit(self, change: Any) -> None:
        self.inner.commit(change)

    async def close(self) -> None:
        self.inner.close()


async def test_stores_that_can_only_be_awaited(tmp_path: Path) -> None:
    source = InMemorySaver()
    grow(source, "t", "a", "b")
    one, other = Saver(OnlyAwaited()), Saver(OnlyAwaited())
    assert (await one.threads.aadopt(source, verify=True)).verified == 8
    await one.threads.aexport_bundle("t", tmp_path / "t.tkb")
    await other.threads.aimport_bundle(tmp_path / "t.tkb")
    assert (await one.threads.amirror(other)).unchanged == 1
    with pytest.raises(InvalidArgumentError, match="async"):
        one.threads.mirror(other)
    for saver in (one, other):
        assert len([found async for found in saver.alist(at("t"))]) == 8


# -- what another process does meanwhile -------------------------------------------------


class Meeting(Between):
    """Before each request of a thread's rows or of a change something happens, once."""

    def __init__(self, inner: Any, number: int, what: Any) -> None:
        super().__init__(inner)
        self.left = number
        self.what = what
        self.when = self._is_due

    def _is_due(self, _: Any) -> bool:
        self.left -= 1
        return self.left == -1


OTHERS: dict[str, Any] = {
    "archive": lambda saver: saver.threads.archive("t"),
    "delete": lambda saver: saver.delete_thread("t"),
    "erase": lambda saver: saver.threads.erase("t"),
}


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("named", [False, True])
def test_the_target_is_never_left_without_content(
    what: str, tmp_path: Path, *, named: bool
) -> None:
    """Another process takes the thread away here, at each request in turn."""
    options = {"cold": (tmp_path / "cold").as_uri()}
    for number in range(60):
        inner = MemoryBackend()
        with Saver(inner, **options) as process, MemorySaver() as target:
            Chain(process, "t").put(said=["here", "longer " * 99], n=1)
            Chain(target, "t", start=50).put(said=["there"], n=2)
            before = everything(target)
            meeting = Meeting(inner, number, lambda p=process: OTHERS[what](p))
            source = everything(process)
            with Saver(meeting, **options) as saver:
                threads = ["t"] if named else None
                with suppress(ConflictError, ThreadNotFoundError):
                    saver.threads.mirror(target, threads, replace=True)
            assert everything(fresh(target)) in (before, source), number
            assert target.check().ok
        if meeting.left >= 0:
            assert number > 5
            return
    pytest.fail("it does not end")


def test_cut_off_while_it_is_replaced() -> None:
    """A process that dies there leaves the former thread, or the new one."""
    for left in range(10):
        inner = MemoryBackend()
        with MemorySaver() as source, Saver(inner) as there:
            Chain(source, "t").put(said=["here", "longer " * 99], n=1)
            Chain(there, "t", start=50).put(said=["there"], n=2)
            states = everything(there), everything(source)
            died = False
            try:
                source.threads.mirror(Saver(Dying(inner, left)), replace=True)
            except BackendError:
                died = True
            assert everything(fresh(there)) in states
        if not died:
            assert left > 0
            return
    pytest.fail("it does not end")
