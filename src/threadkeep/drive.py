"""Running operations: the only place, beside the backends, where sync and async differ.

An operation (see `engine.calls`) is a generator; the driver answers what it yields from
a backend and throws the backend's errors in. There is one driver, a coroutine: on a
blocking backend it never suspends, so that it can be run to its end by one `send`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from threadkeep.backends.base import AsyncBackend, Backend
from threadkeep.engine.calls import Fetch, Operation
from threadkeep.engine.model import Change, Read
from threadkeep.errors import ThreadkeepError

T = TypeVar("T")


async def arun(operation: Operation[T], backend: AsyncBackend) -> T:
    """Drive an operation to its end."""
    answer: Any = None
    error: ThreadkeepError | None = None
    while True:
        try:
            request = operation.send(answer) if error is None else operation.throw(error)
        except StopIteration as stop:
            result: T = stop.value
            return result
        answer = error = None
        try:
            if isinstance(request, Fetch):
                answer = await backend.fetch(request.reads)
            else:
                await backend.commit(request.change)
        except ThreadkeepError as exc:
            error = exc


class _NeverSuspends:
    """A blocking backend behind the async protocol."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def fetch(self, reads: Sequence[Read]) -> list[Any]:
        return self._backend.fetch(reads)

    async def commit(self, change: Change) -> None:
        self._backend.commit(change)

    async def close(self) -> None:
        self._backend.close()


def run(operation: Operation[T], backend: Backend) -> T:
    """Drive an operation to its end on a blocking backend, in the calling thread."""
    driver = arun(operation, _NeverSuspends(backend))
    try:
        driver.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        driver.close()
    raise AssertionError("a blocking backend does not suspend")  # pragma: no cover


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking call in a worker thread: one hop for a whole operation.

    A cancelled caller does not wait, but the call is carried through: a commit that has
    begun may still become durable.
    """
    return await asyncio.get_running_loop().run_in_executor(None, call)
