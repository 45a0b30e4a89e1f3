"""Commits of three processes on one store: each request of one between any two of another.

The result is that of the changes one after the other, in the order in which their moves were made.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit.backends import open_backend
from kit.put_back import PutBack, copy_rows
from kit.stories import THREADS, a_change
from kit.tips import link, without_tips

from threadkeep._core.engine.model import Change, ReadSegments, ReadThread, Span
from threadkeep._core.engine.thread_entry import ReadEntry
from threadkeep._stores.committing import Asking, Heads, MakeMoves, committing, plain_moves
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.records import new_tip
from threadkeep._stores.sync_bridge import finish
from threadkeep.errors import ThreadkeepError

STORES = {"memory": 60, "postgres": 15, "redis": 15}
"""Databases that make moves, and the number of stories. (SQLite makes a whole commit at once.)"""
PROCESSES, CHANGES = 3, 40


class Process:
    """One process: what it remembers, and the requests of its commit under way."""

    def __init__(self, database: Any) -> None:
        self.database = database
        self.heads = Heads()
        self.steps: Asking[Any] | None = None
        self.reply: Any = None
        self.changes: dict[str, Any] = {}

    def begin(self, changes: dict[str, Any]) -> None:
        """Begin to commit changes of different threads."""
        self.changes = changes
        shares = getattr(self.database, "face", self.database).shares_heaps
        self.steps = self._committing([*changes.values()], shares_heaps=shares)
        self.reply = None

    def _committing(self, changes: list[Change], *, shares_heaps: bool) -> Asking[Any]:
        """As `Database.commit_many`."""
        moves = plain_moves(self.heads, changes)
        made = (yield MakeMoves(moves)) if moves else []
        if moves and all(made):
            return [None] * len(changes), made
        tried = [*zip(moves, made, strict=True)]
        return (yield from committing(self.heads, changes, tried, shares_heaps=shares_heaps))

    def step(self, lose: Callable[[], bool]) -> list[Change]:
        """Carry out one request, again if its answer is lost; return the changes that it made."""
        assert self.steps is not None
        try:
            request = self.steps.send(self.reply)
        except StopIteration as done:
            self.heads.keep(done.value[1])
            self.steps = None
            return []
        if not isinstance(request, MakeMoves):
            try:
                self.reply = self._call("fetch", request.reads)
            except ThreadkeepError as error:  # pragma: no cover - nothing is damaged
                raise AssertionError from error
            return []
        self.reply = self._call("make", request.moves)
        made = [self.changes[head.thread] for head in self.reply if head is not None]
        if lose():
            again = self._call("make", request.moves)
            made += [self.changes[head.thread] for head in again if head is not None]
            self.reply = again
        return made

    def _call(self, method: str, argument: Any) -> Any:
        face = getattr(self.database, "face", None)
        if face is None:
            return getattr(self.database, method)(argument)
        return finish(getattr(face, method)(argument))


def rows_of(database: Any) -> list[Any]:
    """All that a store holds, but for random numbers."""
    reads: list[Any] = []
    for thread in THREADS:
        reads += (ReadThread(thread), ReadEntry(thread))
        reads.append(ReadSegments(thread, tuple(Span(log, 0, 99) for log in range(1, 7))))
    return [without_tips(reply) for reply in database.fetch(reads)]


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[list[Any], Any]]:
    """A store as three processes see it, and how to copy its rows."""
    name = request.param
    with ExitStack() as stack:
        savers = [stack.enter_context(open_backend(name, tmp_path))]
        if name != "memory":
            savers[0].setup()
            savers += [stack.enter_context(open_backend(name, tmp_path)) for _ in "ab"]
        backends = [saver.backend for saver in savers] * (1 if len(savers) > 1 else PROCESSES)
        rows = SimpleNamespace(_store=SimpleNamespace(backend=backends[0]))
        yield backends, lambda: copy_rows(name, tmp_path, rows)


@pytest.mark.parametrize(
    ("store", "seed"),
    [(name, seed) for name, count in STORES.items() for seed in range(count)],
    indirect=["store"],
)
def test_commits_that_meet_are_as_one_after_the_other(
    store: tuple[list[Any], Callable[[], PutBack]], seed: int
) -> None:
    """Also if answers are lost, and rows go back to an earlier state now and then."""
    databases, copy = store
    dice = random.Random(seed)
    processes = [Process(one) for one in databases]
    made: list[Change] = []
    kept: tuple[int, PutBack] | None = None
    for _ in range(CHANGES):
        made += _acted(dice.choice(processes), dice)
        if seed % 3 == 0 and dice.random() < 0.1:
            if kept is None:
                kept = len(made), copy()
            else:
                kept[1]()
                del made[kept[0] :]
                kept = None
    for process in processes:
        while process.steps is not None:
            made += process.step(lambda: False)
    single = MemoryBackend()
    single.shares_heaps = getattr(databases[0], "face", databases[0]).shares_heaps
    for change in made:
        single.commit(change)
    assert rows_of(databases[0]) == rows_of(single)
    assert made


def _acted(process: Process, dice: random.Random) -> list[Change]:
    """Let a process make some requests; return the changes that it made."""
    if process.steps is None:
        drawn: list[Any] = [a_change(dice, own_logs=True) for _ in range(dice.choice([1, 1, 2, 3]))]
        tip = new_tip()
        drawn = [one._replace(link=link(tip)) if hasattr(one, "link") else one for one in drawn]
        process.begin({change.thread: change for change in drawn})
    made: list[Change] = []
    for _ in range(dice.randint(1, 3)):
        if process.steps is not None:
            made += process.step(lambda: dice.random() < 0.2)
    return made
