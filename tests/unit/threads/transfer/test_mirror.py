"""Mirrors of a damaged thread while another process writes to it."""

import pytest
from kit.engine import Chain, Passing, everything, memory_saver, rows_in_memory

from threadkeep._core.engine.model import ReadThread
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep.errors import CorruptionError
from threadkeep.savers.saver import Saver

LONG = "longer " * 20


class Beside(Passing):
    """Calls `write` before one of its requests."""

    def __init__(self, inner, number, write):
        super().__init__(inner)
        self.left, self.write = number, write

    def meet(self, asked, request):
        self.left -= 1
        if self.left == -1:
            self.write()
        return request()


def segment(saver):
    """Damage the thread's first elements, which the writer does not read again."""
    log = next(iter(rows_in_memory(saver)["t"].heap.values()))
    start = log.starts[0]
    log.segments[start] = log.segments[start]._replace(data=b"damaged")


def manifest(saver):
    """Damage the thread's first checkpoint."""
    space = rows_in_memory(saver)["t"].namespaces[""]
    row = space.rows[space.ids[0]]
    space.rows[space.ids[0]] = row._replace(manifest=row.manifest[:-1] + b"?")


def grow(chain):
    chain.put(m=[*chain.values.get("m", []), f"{chain.number} {LONG}"])
    chain.saver.put_writes(chain.at, [("n", LONG)], "task")


@pytest.mark.parametrize("damage", [segment, manifest])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("copied_before", [False, True])
def test_a_writer_on_a_damaged_thread(damage, named, copied_before):
    """Before any request: no damage reaches the copy, and the save is not lost."""
    for number in range(60):
        inner = MemoryBackend()
        writer, target = Saver(inner), memory_saver()
        chain = Chain(writer)
        grow(chain)
        if copied_before:
            writer.threads.mirror(target)
        for _ in range(3):
            grow(chain)
        grow(Chain(writer, "sound"))
        before = {place: one for place, one in everything(writer).items() if place[0] == "sound"}
        before |= everything(target)
        damage(writer)
        beside = Beside(inner, number, lambda chain=chain: grow(chain))
        mirror = Saver(beside).threads.mirror
        if named:
            with pytest.raises(CorruptionError, match="thread 't'"):
                mirror(target, ["sound", "t"])
        else:
            done = mirror(target)
            assert list(done.skipped) == ["t"]
            assert done.added == ["sound"]
        assert everything(target) == before
        assert target.check().ok
        if beside.left >= 0:
            assert number > 5
            return
        (stored,) = inner.fetch([ReadThread("t")])
        assert len(stored.checkpoints) == 5
        assert all(one.writes for one in stored.checkpoints)
    pytest.fail("it does not end")
