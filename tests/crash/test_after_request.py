"""A store that fails, or a process that dies, at any request of any operation.

Before the backend carried the request out and after; then nothing is broken, nothing
that was acknowledged is lost, and doing the same again leads where it would have led.
"""

import asyncio
import itertools
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from kit import mysql
from kit import redis as redis_kit
from kit.backends import BACKENDS
from kit.engine import (
    Chain,
    Counted,
    Passing,
    Steps,
    checkpoint,
    config,
    everything,
    fresh,
    put_operation,
    recorded,
    run_config,
    use_backend,
)
from kit.postgres import empty_schema, url
from kit.selection import drawn
from langchain_core.messages import AIMessage, HumanMessage

from threadkeep import Retention, errors
from threadkeep._core.engine import logs
from threadkeep._core.engine.cold_references import LEAST
from threadkeep._stores.base import Backend
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.mysql.backend import MysqlBackend
from threadkeep._stores.postgres.backend import PostgresBackend
from threadkeep._stores.redis.backend import RedisBackend
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.savers.saver import Saver

LONG = "x" * 90


class Death(BaseException):
    """The process is gone: nothing in it runs on."""


class Failing(Passing):
    """Raises at request number `at`, before the inner backend carries it out or after."""

    scrub = Backend.scrub

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.arm(None, after=False, error=errors.BackendError)

    def arm(self, at: int | None, *, after: bool, error: type[BaseException]) -> None:
        self.asked, self.at, self.after, self.error = 0, at, after, error

    def meet(self, asked: Any, request: Callable[[], Any]) -> Any:
        self.asked += 1
        if self.asked - 1 != self.at:
            return request()
        if self.after:
            with suppress(errors.ThreadkeepError):  # (its refusal is lost as well)
                request()
        raise self.error


# -- the store that every operation begins with ----------------------------------------

PLACES = {f"old {i}": config(checkpoint_id=f"{i + 1:08d}") for i in range(5)}
PLACES["head"] = PLACES["old 4"]


def build(saver: Saver) -> None:
    chain = Chain(saver)
    for i in range(5):
        message = HumanMessage(f"{i} {LONG}", id=f"m{i}")
        chain.put(m=[*chain.values.get("m", []), message], doc=f"{i} {LONG}" * 20, n=i)
        assert chain.at == PLACES[f"old {i}"]
        saver.put_writes(chain.at, [("m", [AIMessage(LONG, id=f"a{i}")])], f"task {i}")
    fork = checkpoint("00000003 fork", {"m": [1, LONG]}, {"m": 100})
    saver.put(PLACES["old 2"], fork, {"source": "fork", "run_id": "r2"}, {})
    inner = Chain(saver, "t", "sub:1", start=10)
    inner.put(m=[LONG, LONG])
    inner.put(m=[LONG, LONG, LONG])
    other = Chain(saver, "u")
    other.put(m=[LONG] * 3)
    saver.put(other.at, checkpoint(50, {"m": [LONG]}, {"m": 50}), {"run_id": "r2"}, {})


@cache
def history() -> list[Any]:
    """The commits of `build`, for several stores: they build on no commit of another one."""
    return [change._replace(link=None) for change in recorded(build)]


@dataclass
class Scene:
    """A store with a history, and one saver that has loaded it."""

    backend: Failing
    conflicts: Any
    operation: Any
    cold: str | None = None
    places: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.places |= PLACES
        assert self.backend.inner.commit_many(history()) == [None] * len(history())
        self.saver = Saver(self.backend, conflicts=self.conflicts, cold=self.cold)
        for thread, ns in (("t", ""), ("t", "sub:1"), ("u", "")):
            assert self.saver.get_tuple(config(thread, ns)) is not None
        assert len(everything(self.saver)) == 10
        if self.operation is lose:
            self.overtake()

    def overtake(self) -> None:
        """A run loads the head and writes; another one puts the next checkpoint."""
        loaded = self.saver.get_tuple(run_config())
        assert loaded is not None
        self.places["loser"] = loaded.config
        self.saver.put_writes(loaded.config, [("m", [LONG])], "loser")
        winner = fresh(self.saver).get_tuple(run_config())
        assert winner is not None
        fresh(self.saver).put(winner.config, checkpoint(300, {"m": []}, {"m": 300}), {}, {})


def next_put(scene: Scene) -> tuple[Any, ...]:
    value = [HumanMessage(f"{i} {LONG}", id=f"m{i}") for i in range(5)]
    made = checkpoint(200, {"m": [*value, AIMessage(LONG, id="new")], "n": 9}, {"m": 9, "n": 9})
    return scene.places["head"], made, {"source": "loop"}, {}


def put(saver: Saver, scene: Scene) -> None:
    saver.put(*next_put(scene))


def put_on_old(saver: Saver, scene: Scene) -> None:
    made = checkpoint(201, {"m": [LONG], "doc": "new" * 900}, {"m": 9, "doc": 9})
    saver.put(scene.places["old 1"], made, {"source": "fork"}, {})


def put_cold(saver: Saver, scene: Scene) -> None:
    put(fresh(saver), scene)


def put_writes(saver: Saver, scene: Scene) -> None:
    saver.put_writes(scene.places["head"], [("m", [LONG]), ("n", 1)], "late task")


def a_step(saver: Saver, scene: Scene) -> None:
    """Writes and the put that absorbs them."""
    at, made, metadata, versions = next_put(scene)
    saver.put_writes(at, [("m", [made["channel_values"]["m"][-1]])], "step task")
    saver.put(at, made, metadata, versions)


def prune(saver: Saver, scene: Scene) -> None:
    saver.prune(["t", "u"])


def prune_all(saver: Saver, scene: Scene) -> None:
    saver.prune(["t", "u"], strategy="delete")


def delete_for_runs(saver: Saver, scene: Scene) -> None:
    saver.delete_for_runs(["r2", "absent"])


def collect(saver: Saver, scene: Scene) -> None:
    """The newest checkpoints stay, one of them without a value."""
    found = saver.threads.gc(Retention(keep_last=2, channels={"doc": "latest"}))
    assert not found.skipped


def collect_threads(saver: Saver, scene: Scene) -> None:
    saver.threads.gc(Retention(ttl=0.000001))


def copy_thread(saver: Saver, scene: Scene) -> None:
    try:
        saver.copy_thread("t", "copy")
    except errors.ThreadExistsError:
        # It was copied, and the news was lost.
        assert len([p for p in everything(saver) if p[0] == "copy"]) > 0


def delete_thread(saver: Saver, scene: Scene) -> None:
    saver.delete_thread("t")


def erase(saver: Saver, scene: Scene) -> None:
    saver.threads.erase("t")


def lose(saver: Saver, scene: Scene) -> None:
    """A run that is overtaken: its put is refused, and its writes are swept."""
    try:
        saver.put(scene.places["loser"], checkpoint(299, {"m": [1]}, {"m": 299}), {}, {})
    except errors.ConflictError:
        return
    assert saver._engine.conflicts == "fork"


def read(saver: Saver, scene: Scene) -> None:
    assert saver.get_tuple(config()) is not None
    assert len(list(saver.list(None))) == 10


OPERATIONS = [
    put,
    put_on_old,
    put_cold,
    put_writes,
    a_step,
    prune,
    prune_all,
    delete_for_runs,
    collect,
    collect_threads,
    copy_thread,
    delete_thread,
    erase,
    lose,
    read,
]


@pytest.fixture(params=BACKENDS)
def stores(request, tmp_path):
    """Makes one backend after the other; closes them in the end."""
    made = []

    def make() -> Failing:
        if request.param == "memory":
            inner: Any = MemoryBackend()
        elif request.param == "postgres":
            inner = PostgresBackend(url(), schema=empty_schema(), max_size=2)
        elif request.param == "mysql":
            inner = MysqlBackend(mysql.url_for(tmp_path / f"{len(made)}"))
        elif request.param == "redis":
            inner = RedisBackend(redis_kit.url(), prefix=redis_kit.empty_prefix())
        else:
            inner = SqliteBackend(tmp_path / f"{len(made)}.db", synchronous="normal")
        made.append(Failing(inner))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.fixture
def cases(request):
    """Draws from a list of failures: all of them where the store is in memory."""
    in_memory = "memory" in request.node.name

    def draw(every, count):
        return list(every) if in_memory else drawn(every, count, request.node.name)

    return draw


@pytest.fixture(autouse=True)
def small_seals(monkeypatch):
    """Segments are sealed early here, so that the operations do it."""
    monkeypatch.setattr(logs, "SEAL_COUNT", 4)
    monkeypatch.setattr(logs, "SEAL_KEYFRAMES", 2)


def uninterrupted(stores, conflicts, operation):
    """Everything that is there in the end, and how many requests it took."""
    scene = Scene(stores(), conflicts, operation)
    everything(scene.saver)  # as if interrupted: the saver remembers its reads
    scene.backend.asked = 0
    operation(scene.saver, scene)
    requests = scene.backend.asked
    return everything(fresh(scene.saver)), requests


@pytest.mark.drawn(6)
@pytest.mark.parametrize("conflicts", ["fork", "raise"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda op: op.__name__)
def test_failure_at_every_request(stores, operation, conflicts, cases):
    end, requests = uninterrupted(stores, conflicts, operation)
    assert requests
    failures = itertools.product(range(requests), (False, True), (errors.BackendError, Death))
    for at, after, error in cases(failures, 2):
        scene = Scene(stores(), conflicts, operation)
        before = everything(scene.saver)
        interrupt(scene, operation, at, after, error)
        reader = fresh(scene.saver)
        assert reader.check().ok, (at, after, error)
        assert_nothing_lost(before, everything(reader), end)
        again = scene.saver if error is errors.BackendError else reader
        operation(again, scene)
        assert everything(fresh(again)) == end, (at, after, error)
        assert fresh(again).check().ok


def interrupt(scene, operation, at, after, error):
    scene.backend.arm(at, after=after, error=error)
    try:
        operation(scene.saver, scene)
    except (errors.BackendError, Death):
        pass
    else:
        # The failure of what only tidies up may be passed over.
        assert operation is lose
    scene.backend.at = None


def assert_nothing_lost(before, now, end):
    """Each is as it was or as it is in the end; only what the end lacks may be gone."""
    for place, shown in now.items():
        assert shown in (before.get(place), end.get(place)), place
    for place in before.keys() & end.keys():
        assert place in now


# -- archived threads ------------------------------------------------------------------


def archive(saver: Saver, scene: Scene) -> None:
    try:
        saver.threads.archive("t")
    except errors.StateError:
        entry = saver.threads.get("t")  # it was archived, and the news was lost
        assert entry is not None
        assert entry.state == "archived"


def archive_again(saver: Saver, scene: Scene) -> None:
    """Back, and into another archive."""
    saver.get_tuple(config())
    archive(saver, scene)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("operation", [archive, archive_again, read], ids=lambda op: op.__name__)
def test_an_archived_thread_is_whole_at_every_request(stores, operation, tmp_path, cases):
    def begin(cold):
        scene = Scene(stores(), "fork", operation, cold.as_uri())
        before = everything(scene.saver)
        if operation is not archive:
            scene.saver.threads.archive("t")
        return scene, before

    scene, _ = begin(tmp_path / "alone")
    requests = asked(scene, operation)
    assert requests > 2
    failures = itertools.product(range(requests), (False, True), (errors.BackendError, Death))
    for at, after, error in cases(failures, 4):
        cold = tmp_path / f"{at} {after} {error.__name__}"
        scene, before = begin(cold)
        scene.backend.arm(at, after=after, error=error)
        with suppress(errors.BackendError, Death):
            operation(scene.saver, scene)
        scene.backend.at = None
        reader = Saver(scene.backend, cold=cold.as_uri())
        assert reader.get_tuple(config()) is not None
        assert everything(reader) == before, (at, after, error)
        assert reader.check().ok
        archive(reader, scene)
        assert reader.get_tuple(config()) is not None
        assert everything(reader) == before
        reader.delete_thread("t")
        assert not [*cold.rglob("*.tkb")], (at, after, error)
        scene.backend.close()


def asked(scene, operation):
    """Carry it out; how many requests it takes."""
    scene.backend.asked = 0
    operation(scene.saver, scene)
    scene.backend.close()
    return scene.backend.asked


# -- parts of threads ------------------------------------------------------------------


def replace_pages(scene: Scene) -> None:
    """Each checkpoint has a page that resembles no other."""
    at = scene.places["head"]
    for number in range(4):
        page = random.Random(number).randbytes(3000)
        made = checkpoint(400 + number, {"page": page}, {"page": number + 1})
        at = scene.saver.put(at, made, {"source": "loop"}, {"page": number + 1})


def offload(saver: Saver, scene: Scene) -> None:
    saver.threads.offload("t", over=LEAST)


def bring_back(saver: Saver, scene: Scene) -> None:
    with suppress(errors.StateError):  # (it was, and the news was lost)
        saver.threads.restore("t")


def fork(saver: Saver, scene: Scene) -> None:
    with suppress(errors.ThreadExistsError):
        saver.threads.fork("t", new_thread_id="copy")


def offload_less(saver: Saver, scene: Scene) -> None:
    """The faults also cover removals by retention."""
    saver.threads.gc(Retention(channels={"doc": "latest"}))
    saver.threads.offload("t", over=LEAST)


def archive_rest(saver: Saver, scene: Scene) -> None:
    archive(saver, scene)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "operation",
    [offload, bring_back, fork, copy_thread, offload_less, archive_rest],
    ids=lambda op: op.__name__,
)
def test_parts_of_a_thread_are_whole_at_every_request(stores, operation, tmp_path, cases):
    """Each is in the store, or in an object that is there."""

    def begin(cold):
        scene = Scene(stores(), "fork", operation, cold.as_uri())
        replace_pages(scene)
        before = everything(scene.saver)
        if operation is not offload:
            offload(scene.saver, scene)
            assert objects(cold)
        return scene, before

    scene, _ = begin(tmp_path / "alone")
    requests = asked(scene, operation)
    assert requests > 2
    for at, after in cases(itertools.product(range(requests), (False, True)), 4):
        cold = tmp_path / f"{at} {after}"
        scene, before = begin(cold)
        scene.backend.arm(at, after=after, error=Death)
        with suppress(Death):
            operation(scene.saver, scene)
        scene.backend.at = None
        reader = Saver(scene.backend, cold=cold.as_uri())
        assert reader.get_tuple(config()) is not None
        found = everything(reader)
        assert reader.check().ok
        if operation is not offload_less:
            assert {place: found[place] for place in before} == before, (at, after)
        operation(reader, scene)
        assert reader.get_tuple(config()) is not None
        assert everything(reader).keys() >= before.keys()
        reader.delete_thread("t")
        assert not objects(cold), (at, after)
        assert reader.check().ok
        if operation is copy_thread:
            copied = {(*place[1:],) for place in everything(reader) if place[0] == "copy"}
            assert copied == {(*place[1:],) for place in before if place[0] == "t"}
        scene.backend.close()


def objects(cold):
    return [file for file in cold.rglob("*") if file.is_file()]


# -- cancellation ----------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("closed_at", range(3))
def test_an_operation_that_is_closed_leaves_the_saver_usable(stores, closed_at, after):
    scene = Scene(stores(), "fork", put)
    end, _ = uninterrupted(stores, "fork", put)
    steps = Steps(put_operation(fresh(scene.saver), *next_put(scene)), scene.backend)
    for _ in range(closed_at):
        steps.step()
    assert steps.request is not None
    if after:
        steps.carry_out()
    steps.close()
    assert fresh(scene.saver).check().ok
    put(scene.saver, scene)
    assert everything(scene.saver) == end
    assert fresh(scene.saver).check().ok


def test_sealing_goes_on_after_an_operation_was_closed(stores):
    scene = Scene(stores(), "fork", put)
    chain = Chain(scene.saver, "v")
    counted = Counted(scene.backend)
    for i in range(20):
        if i % 3 == 1:
            steps = Steps(
                put_operation(scene.saver, *chain.arguments(m=[f"{i} {LONG}"])), scene.backend
            )
            steps.carry_out()
            steps.close()
        chain.put(m=[*chain.values.get("m", []), f"{i} {LONG}"])
    seals = 0
    use_backend(scene.saver, counted)
    for i in range(20):
        chain.put(m=[*chain.values["m"], f"more {i} {LONG}"])
        seals += bool(counted.commits[-1].drop_segments)
    assert seals >= 3
    assert fresh(scene.saver).check().ok


class Gate(Passing):
    """A blocking backend whose commits wait until they are let through."""

    has_identity = False

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.arrived, self.open, self.done = (threading.Event() for _ in range(3))
        self.open.set()

    def commit(self, change: Any) -> None:
        self.arrived.set()
        assert self.open.wait(20)
        super().commit(change)
        self.done.set()


@pytest.mark.parametrize("conflicts", ["fork", "raise"])
async def test_a_cancelled_put_may_still_be_stored_and_harms_nothing(stores, conflicts):
    scene = Scene(stores(), conflicts, put)
    end, _ = uninterrupted(stores, conflicts, put)
    gate = Gate(scene.backend)
    saver = Saver(gate, conflicts=conflicts)
    gate.open.clear()
    task = asyncio.create_task(saver.aput(*next_put(scene)))
    await asyncio.to_thread(gate.arrived.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.open.set()
    assert await asyncio.to_thread(gate.done.wait, 20)
    assert everything(fresh(saver)) == end
    await saver.aput(*next_put(scene))
    assert everything(saver) == end
    report = await saver.acheck()
    assert report.ok, report.findings
