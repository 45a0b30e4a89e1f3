"""Changes of one call, in which a move fails, or its answer is lost."""

import pytest

from threadkeep._core.engine.model import (
    Batch,
    DropThread,
    HeadFence,
    ReadSegments,
    ReadThread,
    Span,
)
from threadkeep._core.engine.tips import BatchSegments, Link, Proof
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.records import confirm, tie
from threadkeep.errors import BackendError, StatementTimeoutError, UnreachableError
from threadkeep.testing.records import NOW, linked, segment, write


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


@pytest.mark.parametrize("known", ["", "a", "ab"])
@pytest.mark.parametrize("lost", [{1}, {2}, {1, 2}, {2, 3}])
@pytest.mark.parametrize(
    "group",
    [
        [adds("a"), adds("b"), adds("a")],
        [adds("a"), looks("a"), adds("a")],
        [adds("a"), ends("b"), adds("a")],
        [looks("b"), adds("a"), adds("a")],
        [adds("b"), adds("a"), looks("a"), adds("b")],
        [adds("a"), raises("a"), looks("b"), adds("a")],
    ],
)
def test_each_change_is_made_once(group, lost, known):
    """Also if the heads of some threads are known."""
    backend = Losing(lost)
    for thread in known:
        backend.commit(Batch(thread, NOW))
    backend.calls = 0
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


class Counting(MemoryBackend):
    reads = 0

    def fetch(self, reads):
        self.reads += len(reads)
        return super().fetch(reads)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("together", [False, True])
def test_segments_that_another_batch_has_stored_since(first, together):
    """A checkpoint carries those of its writes if it was built before their commit."""
    backend, of_writes = Counting(), BatchSegments()
    backend.commit(Batch("a", NOW))
    proof = Proof.of(backend.fetch([ReadThread("a")])[0])
    theirs, own = segment(0), segment(1)
    of_writes.segments = (theirs,)
    batches = [
        adds("a")._replace(segments=(theirs,), link=Link(proof, home=of_writes)),
        adds("a")._replace(
            segments=(theirs, own),
            link=Link(proof, home=BatchSegments(), borrowed=((of_writes, theirs),)),
        ),
    ]
    backend.reads = 0
    batches = [batches[first], batches[1 - first]]
    for group in [batches] if together else [[batch] for batch in batches]:
        tie(group)
        assert backend.commit_many(group) == [None] * len(group)
        confirm(group, [None] * len(group))
    assert backend.reads == 0
    (found,) = backend.fetch([ReadSegments("a", (Span(1, 0, 9),))])
    assert found == [theirs, own]


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
