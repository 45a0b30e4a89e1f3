"""Backends made of a store and layers in front of it, for the contract suite."""

from collections.abc import Generator, Sequence
from itertools import groupby
from typing import Any

from threadkeep._core.engine.model import Batch, Change, Read
from threadkeep._core.engine.operation import Commit, CommitMany, Fetch, Request
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.base import AsyncBackend, Backend
from threadkeep.errors import ThreadkeepError
from threadkeep.testing import BlockingBackend


class Awaited(AsyncBackend):
    """A blocking backend behind the awaited protocol; it never waits."""

    commits_groups = True
    has_identity = True

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    async def fetch(self, reads: Any) -> Any:
        return self.backend.fetch(reads)

    async def commit(self, change: Any) -> None:
        self.backend.commit(change)

    async def commit_many(self, changes: Any) -> Any:
        return self.backend.commit_many(changes)

    async def identity(self) -> Any:
        return self.backend.identity()

    async def close(self) -> None:
        self.backend.close()


def stack_of(backend: Any, layer: Any = None) -> LayeredBackend:
    return LayeredBackend(backend).under(layer)


def one(request: Request) -> Generator[Request, Any, Any]:
    return (yield request)


def many(changes: Sequence[Change]) -> Generator[Request, Any, list[ThreadkeepError | None]]:
    """Batches together, and each other change by itself."""
    results: list[ThreadkeepError | None] = []
    for is_batch, found in groupby(changes, lambda change: isinstance(change, Batch)):
        part: Any = list(found)
        if is_batch:
            results += yield CommitMany(part)
            continue
        for change in part:
            try:
                yield Commit(change)
                results.append(None)
            except ThreadkeepError as error:
                results.append(error)
    return results


class Layered(Backend):
    """Blocking calls through a stack.

    `also`: the faces of another store, closed with it.
    """

    def __init__(self, stack: LayeredBackend, also: LayeredBackend | None = None) -> None:
        self.stack = stack
        self.also = also

    def fetch(self, reads: Sequence[Read]) -> Any:
        return self.stack.run(one(Fetch(reads)))

    def commit(self, change: Change) -> None:
        self.stack.commit(change)

    def commit_many(self, changes: Sequence[Change]) -> Any:
        return self.stack.run(many(changes))

    def close(self) -> None:
        self.stack.close()
        if self.also is not None:
            self.also.close()


async def acommit(stack: LayeredBackend, change: Change) -> None:
    """Commit a change, awaited."""
    waiting = stack.submit(change)
    if waiting is not None:
        await waiting


class AwaitedLayered(AsyncBackend):
    """Awaiting calls through a stack. See `Layered`."""

    def __init__(self, stack: LayeredBackend, also: LayeredBackend | None = None) -> None:
        self.stack = stack
        self.also = also

    async def fetch(self, reads: Sequence[Read]) -> Any:
        return await self.stack.arun_here(one(Fetch(reads)))

    async def commit(self, change: Change) -> None:
        await acommit(self.stack, change)

    async def commit_many(self, changes: Sequence[Change]) -> Any:
        return await self.stack.arun_here(many(changes))

    async def close(self) -> None:
        await self.stack.aclose()
        if self.also is not None:
            await self.also.aclose()


def awaiting(stack: LayeredBackend, also: LayeredBackend | None = None) -> BlockingBackend:
    """Awaiting calls through a stack, each waited for."""

    async def made() -> Any:
        return AwaitedLayered(stack, also)

    return BlockingBackend(made)
