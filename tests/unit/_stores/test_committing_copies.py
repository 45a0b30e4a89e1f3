"""A copy onto an empty fork of its source, while the source is saved to."""

import pytest

from threadkeep._core.engine.model import Batch, Change, CopyThread, ForkThread, ReadThread
from threadkeep._core.engine.thread_entry import EntryUpdate, ReadEntry, ThreadEntry
from threadkeep._stores.committing import Ask, Heads, MakeMoves, awaited, committing
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.sync_bridge import finish
from threadkeep.testing.records import checkpoint, segment


def _save(number: int) -> Batch:
    touch = EntryUpdate(5, at=number, saves=True)
    return Batch(
        "v",
        number,
        segments=(segment(number, log=1),),
        checkpoints=(checkpoint(number),),
        touch=touch,
    )


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_a_copy_is_made_of_one_state_of_its_source(asked: int) -> None:
    """The source is saved to after each of the reads that decide on the copy."""
    backend = MemoryBackend()
    entry = ThreadEntry("t", "active", 1, 1)
    backend.commit(_save(1))
    backend.commit(ForkThread("v", "t", 9, 0, (), (), entry))
    copy: Change = CopyThread("v", "t", 9)
    asks = 0

    async def answered(request: Ask | MakeMoves) -> list[object]:
        nonlocal asks
        if isinstance(request, MakeMoves):
            return list(backend.make(request.moves))
        found = list(backend.fetch(request.reads))
        asks += 1
        if asks == asked:
            backend.commit(_save(2))
        return found

    results, _ = finish(awaited(committing(Heads(), [copy]), answered))
    assert results == [None]
    source, copied = backend.fetch([ReadThread("v"), ReadThread("t")])
    assert [one.row for one in copied.checkpoints] == [one.row for one in source.checkpoints]
    entries = backend.fetch([ReadEntry("v"), ReadEntry("t")])
    assert entries[0].size == entries[1].size
