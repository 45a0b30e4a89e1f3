"""Running operations: the only place, beside the backends, where sync and async differ.

An operation (see `engine.calls`) is a generator; the driver answers what it yields from
a backend and throws the backend's errors in. There is one driver, a coroutine: on a
blocking backend it never suspends, so that it can be run to its end by one `send`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar

from threadkeep import process_forks
from threadkeep.backends.base import AsyncBackend, Backend, DualBackend
from threadkeep.backends.straight import Straight, finish
from threadkeep.engine.calls import Fetch, Operation
from threadkeep.engine.model import Change, Read
from threadkeep.errors import InvalidArgumentError, ThreadkeepError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

T = TypeVar("T")

_MOST_THREADS = 32  # calls of one process that wait for its disks at the same time


def is_async(backend: Backend | AsyncBackend) -> TypeIs[AsyncBackend]:
    """Whether the backend is driven by awaiting it."""
    found = _is_awaited(type(backend))
    return iscoroutinefunction(backend.fetch) if found is None else found


@lru_cache(maxsize=64)  # (asked at every call of a saver)
def _is_awaited(cls: type[Backend | AsyncBackend]) -> bool | None:
    """Whether backends of this class are; None of one that passes calls on to another object."""
    return iscoroutinefunction(cls.fetch) if hasattr(cls, "fetch") else None


def awaited(backend: Backend | AsyncBackend) -> AsyncBackend | None:
    """What async methods await; None where they need a thread to wait in."""
    if is_async(backend):
        return backend
    return backend.asynchronous if isinstance(backend, DualBackend) else None


def blocking(backend: Backend | AsyncBackend) -> Backend:
    """The backend, which a sync method is about to use.

    Raises:
        InvalidArgumentError: it is async.
    """
    if is_async(backend):
        raise InvalidArgumentError(
            f"{type(backend).__name__} is an async backend.",
            hint="Use the saver's async methods: aget_tuple, aput, ...",
        )
    return backend


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


def run(operation: Operation[T], backend: Backend) -> T:
    """Drive an operation to its end on a blocking backend, in the calling thread."""
    return finish(arun(operation, Straight(backend)))


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking call in a worker thread: one hop for a whole operation.

    The threads are our own: in the event loop's, LangGraph runs sync nodes, which may well
    wait for a saver. A cancelled caller does not wait, but the call is carried through: a
    commit that has begun may still become durable.
    """
    return await asyncio.get_running_loop().run_in_executor(_workers.pool(), call)


class Hops:
    """A blocking backend behind the async protocol: each request is made in a worker thread."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `AsyncBackend.fetch`."""
        return await in_thread(partial(self._backend.fetch, reads))

    async def commit(self, change: Change) -> None:
        """See `AsyncBackend.commit`."""
        await in_thread(partial(self._backend.commit, change))

    async def close(self) -> None:
        """See `AsyncBackend.close`."""
        await in_thread(self._backend.close)


class _Workers:
    """The process's worker threads, started when they are first needed."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="threadkeep")
            return self._pool

    def before_fork(self) -> None:
        """See `Watched.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """See `Watched.after_fork`: a child has no threads but the one that forked."""
        if in_child:
            self._start()


_workers = _Workers()
process_forks.watch(_workers)
