"""Workers that are killed, stopped, wrong about the time, or cut off lose and repeat nothing.

An accepted input runs. Each of its tasks is in the state once, a task that the store has confirmed
does not run again, and one that has not ended may, with the same key, once for each kill.
"""

import json
import logging
import os
import random
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kit import postgres_server, redis_servers
from kit.backends import SHARED
from kit.forked import python
from kit.guards import all_saved
from kit.places import at
from kit.selection import FULL, SEED, some

from tests.crash.run_nursery import NODES, graph_on
from tests.crash.test_killed import url_of
from tests.crash.test_lost_seconds import pair
from threadkeep import open_saver

_log = logging.getLogger("threadkeep.tests")
ROOT = Path(__file__).parents[2]
SERVERS = ("postgres", "redis")
PATIENCE = 120.0
THREADS, INPUTS = some(4, 50), 4
KILLS = some(20, 1000)
BETWEEN = 0.07  # seconds from one kill to the next
HOUR = 3600


class Nursery:
    """The program in `run_nursery.py`, and the workers that it has raised."""

    def __init__(self) -> None:
        command = [*python(), "-m", "tests.crash.run_nursery"]
        self.program = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.workers: list[int] = []

    def start(self, **options: Any) -> int:
        self.program.stdin.write(f"{json.dumps(options)}\n".encode())
        self.program.stdin.flush()
        worker = int(self.program.stdout.readline())
        self.workers.append(worker)
        return worker

    def kill(self, worker: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
        self.workers.remove(worker)
        self.wait(worker)

    def wait(self, worker: int) -> None:
        until(lambda: not is_alive(worker))

    def kill_all(self) -> None:
        for worker in [*self.workers]:
            self.kill(worker)

    def close(self) -> None:
        self.kill_all()
        self.program.stdin.close()
        self.program.stdout.close()
        self.program.wait()


def is_alive(worker: int) -> bool:
    try:
        os.kill(worker, 0)
    except ProcessLookupError:
        return False
    return True


def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait until it holds, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the workers do not get there"
        time.sleep(0.02)
    return found


@pytest.fixture(scope="module")
def started() -> Iterator[Nursery]:
    with closing(Nursery()) as found:
        yield found


@pytest.fixture
def nursery(started: Nursery) -> Iterator[Nursery]:
    yield started
    started.kill_all()


class Story:
    """Inputs of threads, and the log of the workers that run them."""

    def __init__(self, url: str, folder: Path, threads: int = 4, inputs: int = INPUTS) -> None:
        self.url, self.log = url, folder / "log"
        self.log.touch()
        self.keys = [
            (f"thread{thread}", f"{thread}-{number}")
            for number in range(inputs)
            for thread in range(threads)
        ]

    @property
    def options(self) -> dict[str, Any]:
        return {"url": self.url, "log": str(self.log), "seed": SEED}

    @property
    def threads(self) -> list[str]:
        return sorted({thread for thread, _ in self.keys})

    def lines(self, kind: str) -> list[list[str]]:
        every = [line.split() for line in self.log.read_text().splitlines()]
        return [words[1:] for words in every if words[0] == kind]

    def submit(self, saver: Any) -> None:
        graph = graph_on(saver)
        for thread, key in self.keys:
            saver.runs.submit(graph, thread, {"said": key}, key=key)

    def is_done(self, saver: Any) -> bool:
        return all(saver.threads.get(thread).status == "done" for thread in self.threads)

    def check(self, saver: Any) -> None:
        """Everything was done once, and no task ran again after the store had confirmed it."""
        for thread in self.threads:
            wanted = [key for of, key in self.keys if of == thread]
            done = saver.get_tuple(at(thread)).checkpoint["channel_values"]["done"]
            assert sorted(done) == sorted(f"{key}/{node}" for key in wanted for node in NODES)
            order = [one.partition("/")[0] for one in done if one.endswith("/plan")]
            assert order == wanted
        saved: set[str] = set()
        for kind, *words in map(str.split, self.log.read_text().splitlines()):
            if kind == "saved":
                saved.add(words[0])
            elif kind == "begin":
                assert words[3] not in saved, f"it ran again: {words}"
        assert all(len(set(keys)) == 1 for keys in self.runs(3).values())
        assert saver.check().ok

    def runs(self, field: int) -> dict[tuple[str, ...], list[str]]:
        """A field of each attempt of each task."""
        found = defaultdict(list)
        for words in self.lines("begin"):
            found[tuple(words[:3])].append(words[field])
        return found

    @property
    def lost(self) -> set[tuple[str, str]]:
        """Threads and workers that lost their leases: a loaded machine may not renew in time."""
        return {(thread, worker) for thread, worker in self.lines("lost")}

    def repeated(self) -> int:
        return sum(len(runs) - 1 for runs in self.runs(4).values())


@pytest.mark.parametrize("store", SHARED)
def test_killed_workers(nursery: Nursery, store: str, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    story = Story(url_of(store, 0, tmp_path), tmp_path, THREADS)
    options = {**story.options, "slow": 0.7 if FULL else 0.3, "lease": 1, "attempts": 10**6}
    killed: set[str] = set()
    with open_saver(story.url) as saver:
        story.submit(saver)
        for number in range(KILLS):
            while len(nursery.workers) < 4:
                nursery.start(**{**options, "seed": number})
            time.sleep(BETWEEN * 2 * chance.random())
            worker = chance.choice(nursery.workers)
            nursery.kill(worker)
            killed.add(str(worker))
            if number % 10 == 9 and story.is_done(saver):
                break
        while len(nursery.workers) < 2:
            nursery.start(**options)
        until(lambda: story.is_done(saver))
        story.check(saver)
        lost = story.lost
        for task, workers in story.runs(4).items():
            before = [one for one in workers[:-1] if (task[0], one) not in lost]
            assert killed.issuperset(before), f"it ran again without a kill: {task} {workers}"
            assert len(set(before)) == len(before)
        assert all(
            len(tasks) == 1 or tasks == [(*tasks[0][:2], "left"), (*tasks[0][:2], "right")]
            for tasks in interrupted(story).values()
        )
    _log.info(
        "%s: %s inputs, %s kills, %s repetitions of tasks",
        *(store, len(story.keys), len(killed), story.repeated()),
    )


def interrupted(story: Story) -> dict[str, list[tuple[str, ...]]]:
    """The tasks that had to be repeated after each worker: two at most, which run at once."""
    found, lost = defaultdict(list), story.lost
    for task, workers in story.runs(4).items():
        for worker in workers[:-1]:
            if (task[0], worker) not in lost:
                found[worker].append(task)
    return {worker: sorted(tasks) for worker, tasks in found.items()}


@pytest.mark.drawn(1)
@pytest.mark.parametrize("store", SHARED)
def test_killed_while_inputs_are_submitted(nursery: Nursery, store: str, tmp_path: Path) -> None:
    """An accepted one is stored, and one that is submitted again by its key runs once."""
    chance = random.Random(SEED + 1)
    story = Story(url_of(store, 0, tmp_path), tmp_path, 3, some(8, 40))
    with open_saver(story.url) as saver:
        saver.setup()
        left = story.keys
        while left:
            worker = nursery.start(**story.options, submits=left)
            time.sleep(0.15 * chance.random())
            nursery.kill(worker)
            accepted = {tuple(words) for words in story.lines("accepted")}
            for thread in story.threads:
                stored = {key for of, key in accepted if of == thread}
                found = saver.list(at(thread, checkpoint_ns="threadkeep$inputs"))
                assert stored <= {one.metadata["threadkeep_input"] for one in found}
            left = [one for one in story.keys if one not in accepted]
        nursery.start(**story.options)
        until(lambda: story.is_done(saver))
        story.check(saver)
        assert story.repeated() == 0


@pytest.mark.parametrize("store", SHARED)
def test_a_stopped_worker_that_wakes_saves_nothing(
    nursery: Nursery, store: str, tmp_path: Path
) -> None:
    for number in range(some(1, 10)):
        folder = tmp_path / str(number)
        folder.mkdir()
        story = Story(url_of(store, 0, folder), folder, 1, 2)
        with open_saver(story.url) as saver:
            story.submit(saver)
            stop_and_wake(nursery, story, saver, number % 3)
            story.check(saver)


def stop_and_wake(nursery: Nursery, story: Story, saver: Any, tasks: int) -> None:
    """Stop a worker in a task, and wake it after another one has done everything."""
    stopped = nursery.start(**story.options, lease=1, slow=1)
    until(lambda: len(story.lines("begin")) > tasks)
    os.kill(stopped, signal.SIGSTOP)
    nursery.start(**story.options, lease=1)
    try:
        until(lambda: story.is_done(saver), 20)
    except AssertionError:  # (it was stopped in a transaction, which locks a file)
        os.kill(stopped, signal.SIGCONT)
        until(lambda: story.is_done(saver))
        nursery.kill_all()
        return
    before = all_saved(saver, "thread0")
    os.kill(stopped, signal.SIGCONT)
    until(lambda: ["thread0", str(stopped)] in story.lines("lost"))
    nursery.kill_all()
    assert all_saved(saver, "thread0") == before


@pytest.mark.parametrize("store", SERVERS)
def test_workers_whose_clocks_are_wrong(nursery: Nursery, store: str, tmp_path: Path) -> None:
    """They steal no thread, and run threads as others do."""
    story = Story(url_of(store, 0, tmp_path), tmp_path, 6, 3)
    with open_saver(story.url) as saver:
        story.submit(saver)
        for offset in (0, HOUR, -HOUR):
            nursery.start(**{**story.options, "seed": offset}, offset=offset, lease=5, slow=0.2)
        until(lambda: story.is_done(saver))
        story.check(saver)
        assert story.repeated() == 0
        assert len({words[4] for words in story.lines("begin")}) == 3
        nursery.kill_all()
        for offset in (HOUR, -HOUR):  # alone
            more = Story(story.url, tmp_path, 6, 0)
            graph = graph_on(saver)
            said = f"offset{offset}"
            for number in range(6):
                saver.runs.submit(graph, f"thread{number}", {"said": said}, key=said)
            more.keys = [(f"thread{number}", said) for number in range(6)]
            worker = nursery.start(**story.options, offset=offset)
            until(lambda: more.is_done(saver))  # noqa: B023 - called at once
            nursery.kill(worker)
            story.keys += more.keys
        story.check(saver)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("store", SHARED)
def test_many_workers_on_one_list(nursery: Nursery, store: str, tmp_path: Path) -> None:
    """Each input runs once, and runs that fail are held without blocking others."""
    story = Story(url_of(store, 0, tmp_path), tmp_path, some(8, 40), 2)
    with open_saver(story.url) as saver:
        story.submit(saver)
        graph = graph_on(saver)
        for number in range(3):
            saver.runs.submit(graph, f"bad{number}", {"said": f"poison{number}"})
        for number in range(4):
            options = {**story.options, "seed": number}
            nursery.start(**options, tasks=16, slow=0.05, lease=60)
        until(lambda: story.is_done(saver))
        bad = [f"bad{number}" for number in range(3)]
        until(lambda: {saver.threads.get(one).status for one in bad} == {"held"})
        nursery.kill_all()
        good = [words for words in story.lines("begin") if not words[0].startswith("bad")]
        assert len(good) == len(story.keys) * len(NODES)
        assert len(story.lines("begin")) - len(good) == 3 * 3
        story.check(saver)


def test_a_run_that_kills_its_workers_is_held(nursery: Nursery, tmp_path: Path) -> None:
    story = Story(url_of("sqlite", 0, tmp_path), tmp_path, 2, 1)
    with open_saver(story.url) as saver:
        story.submit(saver)
        saver.runs.submit(graph_on(saver), "bad", {"said": "deadly"})

        def is_held() -> bool:
            nursery.workers[:] = filter(is_alive, nursery.workers)
            if not nursery.workers:
                nursery.start(**story.options, lease=1)
            return saver.threads.get("bad").status == "held"

        until(is_held)
        until(lambda: story.is_done(saver))
        deaths = [words for words in story.lines("begin") if words[0] == "bad"]
        assert len(deaths) == 3
        assert len({words[3] for words in deaths}) == 1
        story.check(saver)


# -- servers -----------------------------------------------------------------------------


@pytest.mark.drawn(1)
@pytest.mark.parametrize("store", SERVERS)
def test_a_server_that_is_restarted(nursery: Nursery, store: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        if store == "redis":
            redis = stack.enter_context(
                redis_servers.Server("--appendonly", "yes", "--appendfsync", "always")
            )
            url = redis.url

            def restart() -> None:
                redis.kill()
                redis.start()
        else:
            postgres = stack.enter_context(postgres_server.server())
            url, restart = postgres.url(), postgres.restart
        story = Story(url, tmp_path, 6, 3)
        with open_saver(url) as saver:
            saver.setup()
            story.submit(saver)
        for number in range(3):
            nursery.start(**{**story.options, "seed": number}, lease=5, slow=0.1, attempts=99)
        for number in range(some(2, 8)):
            until(lambda: len(story.lines("begin")) > 8 * number)  # noqa: B023 - called at once
            restart()
        with open_saver(url) as saver:
            until(lambda: story.is_done(saver))
            nursery.kill_all()
            story.check(saver)


def test_a_synchronous_standby_that_is_promoted(nursery: Nursery, tmp_path: Path) -> None:
    with pair() as servers:
        with psycopg.connect(servers.primary.url(), autocommit=True) as primary:
            primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            primary.execute("SELECT pg_reload_conf()")
            kind = "SELECT sync_state FROM pg_stat_replication"
            until(lambda: primary.execute(kind).fetchone() == ("sync",))
        story = Story(servers.url, tmp_path, 6, 3)
        with open_saver(story.url) as saver:
            saver.setup()
            story.submit(saver)
        for number in range(3):
            nursery.start(**{**story.options, "seed": number}, lease=5, slow=0.1, attempts=99)
        until(lambda: len(story.lines("begin")) > 16)
        servers.fail_over()
        with open_saver(story.url) as saver:
            until(lambda: story.is_done(saver))
            nursery.kill_all()
            story.check(saver)
