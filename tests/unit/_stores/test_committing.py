"""Changes of one call, of which the answer to a move is lost."""

import pytest

from threadkeep._core.engine.model import Batch, DropThread, HeadFence, ReadThread
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.records import tie
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
