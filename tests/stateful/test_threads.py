"""Many threads of one process, and two savers, on a few conversations at once."""

import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from kit import mysql
from kit import redis as redis_kit
from kit.engine import checkpoint, config, exactly, fresh, run_config, values_of
from kit.postgres import empty_schema, url
from kit.selection import some
from langchain_core.messages import AIMessage, HumanMessage

from threadkeep import errors
from threadkeep._core.engine import logs
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.mysql.backend import MysqlBackend
from threadkeep._stores.postgres.backend import PostgresBackend
from threadkeep._stores.redis.backend import RedisBackend
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.savers.saver import Saver

LONG = "x" * 60
WORKERS = 6
ROUNDS = some(5, 25)


@pytest.fixture(autouse=True)
def eager():
    """Switch threads often, and seal segments often."""
    interval, count = sys.getswitchinterval(), logs.SEAL_COUNT
    sys.setswitchinterval(1e-5)
    logs.SEAL_COUNT = 4
    yield
    sys.setswitchinterval(interval)
    logs.SEAL_COUNT = count


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis", "mysql"])
def backend(request, tmp_path):
    if request.param == "memory":
        found: Any = MemoryBackend()
    elif request.param == "postgres":
        found = PostgresBackend(url(), schema=empty_schema(), max_size=4)
    elif request.param == "redis":
        found = RedisBackend(redis_kit.url(), prefix=redis_kit.empty_prefix())
    elif request.param == "mysql":
        found = MysqlBackend(mysql.url_for(tmp_path))
    else:
        found = SqliteBackend(tmp_path / "t.db", synchronous="normal")
    yield found
    found.close()


class Work:
    """The shared state of the workers: savers, acknowledged calls, failures."""

    def __init__(self, backend: Any, conflicts: Any) -> None:
        self.savers = [Saver(backend, conflicts=conflicts) for _ in range(2)]
        self.stored: dict[str, tuple[Any, Any]] = {}
        self.written: dict[str, tuple[Any, Any]] = {}
        self.failures: list[BaseException] = []
        self.refused = 0
        self.at: Any = None  # the target of `write`

    def play(self, parts: list[Callable[[int], None]]) -> None:
        """Run the parts to their end, one per thread."""
        threads = [threading.Thread(target=self._guarded, args=(p, n)) for n, p in enumerate(parts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        if self.failures:
            raise self.failures[0]

    def _guarded(self, part: Callable[[int], None], number: int) -> None:
        try:
            part(number)
        except BaseException as exc:  # noqa: BLE001 - told by the main thread
            self.failures.append(exc)

    def run(self, number: int) -> None:
        """Load the head, write, put; repeatedly."""
        chance = random.Random(number)
        saver = self.savers[number % 2]
        for turn in range(ROUNDS):
            found = saver.get_tuple(run_config())
            at = config() if found is None else found.config
            values = {} if found is None else found.checkpoint["channel_values"]
            try:
                self.turn(saver, chance, f"{number}.{turn}", at, values)
            except errors.ConflictError:
                self.refused += 1

    def turn(self, saver: Saver, chance: random.Random, name: str, at: Any, values: Any) -> None:
        new = AIMessage(f"{name} {LONG}", id=name)
        versions = dict.fromkeys(["m", "shared"], f"{name} version")
        if "checkpoint_id" in at["configurable"]:
            saver.put_writes(at, [("m", [new])], f"task {name}")
        if values and chance.random() < 0.3:
            values["m"][0] = HumanMessage(f"edited by {name}", id="first")
        value = [*values.get("m", [])[-40:], new]
        shared = {**values.get("shared", {}), name: f"{name} {LONG}"}
        made = checkpoint(name.zfill(9), {"m": value, "shared": shared}, versions)
        wanted = exactly({"m": value, "shared": shared})
        after = saver.put(at, made, {"step": 1, "run_id": name}, {})
        self.stored[name] = (after, wanted)

    def write(self, number: int) -> None:
        """Tasks write to the same checkpoint at the same time."""
        saver, chance = self.savers[number % 2], random.Random(number)
        for turn in range(ROUNDS):
            name = f"writer {number}.{turn}"
            value = [AIMessage(f"{name} {LONG}", id=None if chance.random() < 0.5 else name)]
            wanted = exactly(value)
            saver.put_writes(self.at, [("m", value)], name)
            self.written[name] = (self.at, wanted)

    def read(self, number: int) -> None:
        saver = self.savers[number % 2]
        for _ in range(ROUNDS):
            for found in saver.list(config(), limit=5):
                assert found.checkpoint["channel_values"]["m"]
            saver.get_tuple(config())


def check(work: Work) -> None:
    reader = fresh(work.savers[0])
    report = reader.check()
    assert report.ok, report.findings
    for at, wanted in work.stored.values():
        for saver in (reader, *work.savers):
            assert exactly(values_of(saver, at)) == wanted
    for task, (at, wanted) in work.written.items():
        found = {t: value for t, _, value in reader.get_tuple(at).pending_writes}
        assert exactly(found[task]) == wanted


@pytest.mark.parametrize("conflicts", ["fork", "raise"])
def test_runs_on_one_thread(backend, conflicts):
    work = Work(backend, conflicts)
    work.play([work.run] * WORKERS)
    assert len(work.stored) + work.refused == WORKERS * ROUNDS
    assert conflicts == "raise" or not work.refused
    check(work)


def test_tasks_that_write_beside_runs_and_readers(backend):
    work = Work(backend, "fork")
    work.at = work.savers[0].put(config(), checkpoint(1, {"m": [LONG]}, {"m": 1}), {}, {})
    # Runs continue from another checkpoint, without the writes of other runs.
    work.savers[0].put(config(), checkpoint(2, {"m": [LONG]}, {"m": 1}), {}, {})
    work.play([work.write, work.run, work.write, work.read, work.write, work.run])
    check(work)


def test_housekeeping_beside_runs(backend):
    """Nothing breaks if checkpoints are removed while others are put."""
    work = Work(backend, "fork")

    def tidy(number: int) -> None:
        saver = work.savers[number % 2]
        for turn in range(ROUNDS // 2):
            try:
                saver.prune(["t"])
                saver.delete_for_runs([f"{number}.{turn}"])
                saver.copy_thread("t", f"copy {number}.{turn}")
            except errors.ConflictError:
                work.refused += 1
        saver.delete_thread("copy 0.0")

    work.play([tidy, work.run, work.read, work.run, tidy, work.run])
    reader = fresh(work.savers[0])
    report = reader.check()
    assert report.ok, report.findings
    for found in reader.list(None):
        name = str(found.checkpoint["id"]).lstrip("0") or "0"
        name = name if name in work.stored else f"0{name}"
        assert exactly(found.checkpoint["channel_values"]) == work.stored[name][1]
