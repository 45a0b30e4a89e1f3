"""Changes of one call, in which a move fails, or its answer is lost."""

import pytest

from threadkeep._core.engine.model import Batch, DropThread, HeadFence, ReadThread
from threadkeep._core.engine.tips import Link
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.records import confirm, tie
from threadkeep.errors import BackendError, StatementTimeoutError, UnreachableError
from threadkeep.testing.records import NOW, linked, write


class Losing(MemoryBackend):
    """The answers to some calls of `make` are lost, by number. A repeated call is refused."""

    def __init__(self, lost):
        super().__init__()
        self.lost, self.calls = lost, 0

    def make(self, moves):
        self.calls += 1
        made = super().make(moves)
        return super().make(moves) if self.calls in self.lost else made


def adds(thread):
    return Batch(thread, NOW, writes=(write(1),), link=linked())


def looks(thread):
    """A batch that takes a look at the store."""
    return adds(thread)._replace(fences=(HeadFence("ns", None),))


def ends(thread):
    return DropThread(thread, NOW, link=linked())


def raises(thread):
    return Batch(thread, NOW, bump_generation=True, link=linked())


@pytest.mark.parametrize("lost", [{1}, {2}, {1, 2}, {2, 3}])
@pytest.mark.parametrize(
    "group",
    [
        [adds("a"), looks("a"), adds("a")],
        [adds("a"), ends("b"), adds("a")],
        [looks("b"), adds("a"), adds("a")],
        [adds("b"), adds("a"), looks("a"), adds("b")],
        [adds("a"), raises("a"), looks("b"), adds("a")],
    ],
)
def test_each_change_is_made_once(group, lost):
    backend = Losing(lost)
    tie(group)
    assert backend.commit_many(group) == [None] * len(group)
    for thread in "ab":
        (rows,) = backend.fetch([ReadThread(thread)])
        added = [one for one in group if isinstance(one, Batch) and one.thread == thread]
        assert len(rows.orphans) == sum(len(one.writes) for one in added)


class Overtaken(MemoryBackend):
    """Its first move is refused; then another save of the same process is faster once more."""

    def __init__(self, other):
        super().__init__()
        self.others, self.refuses = [other], True

    def make(self, moves):
        if self.refuses:
            self.refuses = False
            return [None]
        return super().make(moves)

    def fetch(self, reads):
        found = super().fetch(reads)
        while self.others and not self.refuses:
            other = self.others.pop()
            tie([other])
            self.commit(other)
            confirm([other], [None])
        return found


def test_another_save_of_the_process_between_two_attempts():
    link = linked()
    change, other = (adds("a")._replace(link=Link(link.proof)) for _ in range(2))
    backend = Overtaken(other)
    tie([change])
    assert backend.commit_many([change]) == [None]
    (rows,) = backend.fetch([ReadThread("a")])
    assert len(rows.orphans) == 2


class Failing(MemoryBackend):
    """A store that cannot take some thread, in any transaction."""

    failure = BackendError

    def make(self, moves):
        if any(move.new.thread == "bad" for move in moves):
            raise self.failure("no")
        return super().make(moves)


@pytest.mark.parametrize("failure", [BackendError, StatementTimeoutError, UnreachableError])
@pytest.mark.parametrize("last", [adds, looks, ends])
def test_a_failure_leaves_changes_that_are_made_alone(failure, last):
    """They are not reported as failures, after which callers repeat them."""
    backend = Failing()
    backend.failure = failure
    group = [adds("a"), ends("b"), adds("c"), last("bad"), looks("c")]
    tie(group)
    results = backend.commit_many(group)
    assert results[:2] == [None, None]
    assert isinstance(results[3], failure)
    if failure is not UnreachableError:
        assert [results[2], results[4]] == [None, None]
    stored = sum(len(rows.orphans) for rows in backend.fetch([ReadThread("a"), ReadThread("c")]))
    assert stored == 1 + [results[2], results[4]].count(None)
