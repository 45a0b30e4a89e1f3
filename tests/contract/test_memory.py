"""The contract on the memory backend, directly and behind the async protocol."""

import pytest
from kit.contract import Variant

from threadkeep._core.engine.model import DropThread, ForkThread
from threadkeep._core.engine.thread_entry import ThreadEntry
from threadkeep._stores.database import AsyncDatabase
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.memory.rows import EMPTY
from threadkeep.errors import StaleThreadError
from threadkeep.testing import BackendContract, BlockingBackend


class TestMemory(BackendContract):
    def new_backend(self, folder):
        return MemoryBackend()


def test_a_fork_of_a_missing_thread_is_refused():
    """Its segments would be shared with all missing threads."""
    backend = MemoryBackend()
    backend.commit(DropThread("fork", 5))
    with pytest.raises(StaleThreadError):
        backend.commit(
            ForkThread("missing", "fork", 6, 0, (), (), ThreadEntry("fork", "forked", 6, 6))
        )
    assert not EMPTY.head.heap


class AsyncMemory(AsyncDatabase):
    """A natively async backend, as far as the contract can tell."""

    def __init__(self):
        super().__init__()
        self.rows = MemoryBackend()

    async def fetch(self, reads):
        return self.rows.fetch(reads)

    async def make(self, moves):
        return self.rows.make(moves)

    async def close(self):
        self.rows.close()


class TestAsyncMemory(Variant):
    def new_backend(self, folder):
        async def make():
            return AsyncMemory()

        return BlockingBackend(make)
