"""The contract on the memory backend, directly and behind the async protocol."""

from kit.contract import Variant

from threadkeep._stores.base import AsyncBackend
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep.testing import BackendContract, BlockingBackend


class TestMemory(BackendContract):
    def new_backend(self, folder):
        return MemoryBackend()


class AsyncMemory(AsyncBackend):
    """A natively async backend, as far as the contract can tell."""

    def __init__(self):
        self.rows = MemoryBackend()

    async def fetch(self, reads):
        return self.rows.fetch(reads)

    async def commit(self, change):
        self.rows.commit(change)

    async def close(self):
        self.rows.close()


class TestAsyncMemory(Variant):
    def new_backend(self, folder):
        async def make():
            return AsyncMemory()

        return BlockingBackend(make)
