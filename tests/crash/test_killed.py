"""A process killed at any moment loses nothing that it was told is stored."""

import os
import random
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kit import backends
from kit.forked import python
from kit.selection import SEED, some
from langgraph.checkpoint.base import CheckpointTuple

from tests.crash.nursery import COLLECTING, CONVERSATIONS, KEPT, digest
from threadkeep import Retention, open_saver
from threadkeep.savers.saver import Saver

KILLS = {
    "sqlite": some(10, 180),
    "postgres": some(6, 60),
    "redis": some(6, 40),
    "mysql": some(4, 40),
}
KILLS_A_STORE = some(6, 20)
ROOT = Path(__file__).parents[2]


class Nursery:
    """The program in `nursery.py`, and what its children told."""

    def __init__(self, *options: str) -> None:
        command = [*python(), "-m", "tests.crash.nursery", *options]
        self.program = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.told: dict[tuple[str, str], str] = {}

    def line(self) -> list[str]:
        assert self.program.stdout is not None
        words = self.program.stdout.readline().decode().split()
        assert words, "the nursery has ended"
        if words[0] == "ack":
            self.told[words[1], words[2]] = words[3]
        return words

    def raise_and_kill(self, url: str, seed: int, chance: random.Random, count: int) -> None:
        """Let a child work for so many acknowledged checkpoints and a moment; kill it."""
        assert self.program.stdin is not None
        self.program.stdin.write(f"{url} {seed}\n".encode())
        self.program.stdin.flush()
        child = int(self.line()[1])
        for _ in range(count):
            self.line()
        select.select([], [], [], chance.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        while self.line() != ["dead"]:
            pass

    def close(self) -> None:
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        self.program.stdin.close()
        self.program.stdout.close()
        self.program.wait()


@pytest.fixture(scope="module", params=[()])
def nursery(request: pytest.FixtureRequest) -> Iterator[Nursery]:
    """One with the options that a test gives it: what it imports takes seconds."""
    with closing(Nursery(*request.param)) as found:
        yield found


def missing(saver: Saver, told: dict[tuple[str, str], str]) -> list[tuple[str, str]]:
    """The acknowledged checkpoints that are not there as they were."""
    lost = []
    for place, wanted in told.items():
        found = find(saver, place)
        if found is None or digest(found.checkpoint["channel_values"]) != wanted:
            lost.append(place)
    return lost


def find(saver: Saver, place: tuple[str, str]) -> CheckpointTuple | None:
    """The checkpoint of a thread with an id."""
    thread, checkpoint_id = place
    where = {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": checkpoint_id}
    return saver.get_tuple({"configurable": where})


def head(saver: Saver, thread: str) -> str:
    """The id of the thread's newest checkpoint."""
    found = saver.get_tuple({"configurable": {"thread_id": thread}})
    assert found is not None
    return found.checkpoint["id"]


def url_of(store: str, number: int, folder: Path) -> str:
    """A store of its own for each number."""
    own = folder / str(number)
    own.mkdir(exist_ok=True)
    return backends.url_of(store, own)


def counts(chance: random.Random, kills: int, most: int = 12) -> list[int]:
    """The acknowledged checkpoints of each child: less than `most`, and `most` of the last one."""
    return [*(chance.randrange(most) for _ in range(kills - 1)), most]


def kills(
    nursery: Nursery, store: str, folder: Path, seed: int, count: int, most: int = 12
) -> Iterator[tuple[int, Saver]]:
    """Kill so many children; after each of them its number, and the store, which is sound.

    The nursery has what this child told, and no other.
    """
    chance = random.Random(seed)
    for kill, acknowledged in enumerate(counts(chance, count, most)):
        nursery.told.clear()
        # A fresh store now and then keeps each check small.
        url = url_of(store, kill // KILLS_A_STORE, folder)
        nursery.raise_and_kill(url, kill, chance, acknowledged)
        with open_saver(url) as saver:
            report = saver.check()
            assert report.ok, f"kill {kill}: {report.findings[0]}"
            yield kill, saver


@pytest.mark.drawn(3)
@pytest.mark.parametrize("store", KILLS)
def test_nothing_acknowledged_is_lost(nursery: Nursery, store: str, tmp_path: Path) -> None:
    threads = set()
    for kill, saver in kills(nursery, store, tmp_path, SEED, KILLS[store]):
        assert not missing(saver, nursery.told), f"kill {kill}"
        threads |= {thread for thread, _ in nursery.told}
    assert threads == set(CONVERSATIONS)


@pytest.mark.parametrize("store", KILLS)
def test_nor_by_later_kills(nursery: Nursery, store: str, tmp_path: Path) -> None:
    chance = random.Random(SEED + 1)
    url = url_of(store, 0, tmp_path)
    nursery.told.clear()
    for kill, acknowledged in enumerate(counts(chance, KILLS_A_STORE)):
        nursery.raise_and_kill(url, kill, chance, acknowledged)
    with open_saver(url) as saver:
        assert not missing(saver, nursery.told)
    assert len(nursery.told) > KILLS_A_STORE


@pytest.mark.drawn(1)
@pytest.mark.parametrize("nursery", [[COLLECTING]], indirect=True)
@pytest.mark.parametrize("store", KILLS)
def test_nothing_is_lost_that_was_to_be_kept(nursery: Nursery, store: str, tmp_path: Path) -> None:
    """Killed while it removes what need not be kept; what stays is whole."""
    collected = False
    # Long enough that most of them have checkpoints of their own to remove.
    most, count = 12 * KEPT, some(5, KILLS[store] // 3)
    for kill, saver in kills(nursery, store, tmp_path, SEED + 3, count, most):
        told = nursery.told
        newest = {max(place for place in told if place[0] == name) for name, _ in told}
        lost = set(missing(saver, told))
        for place in newest & lost:
            # One that is the newest no more, as its child was killed before it told of the
            # next, may lack the channel that keeps only its latest value.
            assert head(saver, place[0]) != place[1], f"kill {kill}"
            assert find(saver, place) is not None, f"kill {kill}"
        collected |= bool(lost - newest)
        saver.threads.gc(Retention(keep_last=KEPT))
        assert saver.check().ok
        for name, _ in newest:
            assert len(list(saver.list({"configurable": {"thread_id": name}}))) <= KEPT
    assert collected
