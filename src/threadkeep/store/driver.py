"""Drives operations on a store: the only place, beside the backends, where sync and async differ.

An operation (see `engine.operation`) is a generator; the driver answers what it yields and throws
errors in. There is one driver, a coroutine: where answers block it never suspends, so that it
can be run to its end by one `send`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar

from threadkeep.backends import process_forks
from threadkeep.backends.group_commit import (
    AT_ONCE,
    GroupCommit,
    LoopWriter,
    Writer,
)
from threadkeep.backends.sync_bridge import finish
from threadkeep.engine.model import Change
from threadkeep.engine.operation import (
    Call,
    Commit,
    CommitMany,
    Fetch,
    Request,
    Requests,
)
from threadkeep.engine.operation import commit as committing
from threadkeep.errors import InvalidArgumentError
from threadkeep.store.layer import (
    Layer,
    through,
)

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from threadkeep.backends.base import AsyncBackend, Backend

S = TypeVar("S")
T = TypeVar("T")

_MOST_READERS = 4  # fetches of one process that wait for its disks at the same time
_MOST_THREADS = 32  # other calls that block


async def driven(steps: Generator[S, Any, T], do: Callable[[S], Awaitable[Any]]) -> T:
    """Do each step that a generator yields; return its result.

    However it ends, also by a cancellation, the generator is closed then.
    """
    reply: Any = None
    error: Exception | None = None
    try:
        while True:
            try:
                step = steps.send(reply) if error is None else steps.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            reply = error = None
            try:
                reply = await do(step)
            except Exception as exc:  # noqa: BLE001 - the generator decides what it means
                error = exc
    finally:
        steps.close()


# -- worker threads --------------------------------------------------------------------


class _Workers:
    """Worker threads of the process, started when they are first needed."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._start()
        process_forks.watch(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._most, thread_name_prefix=self._name)
            return self._pool

    def before_fork(self) -> None:
        """See `Watched.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """See `Watched.after_fork`: a child has no threads but the one that forked."""
        if in_child:
            self._start()


_readers = _Workers(_MOST_READERS, "threadkeep-read")
_workers = _Workers(_MOST_THREADS, "threadkeep")


async def in_thread(call: Callable[[], T], workers: _Workers = _workers) -> T:
    """Run a blocking call in a worker thread.

    The threads are our own: in the event loop's, LangGraph runs sync nodes, which may well
    wait for a saver. A cancelled caller does not wait, but the call is carried through: a
    commit that has begun may still become durable.
    """
    return await asyncio.get_running_loop().run_in_executor(workers.pool(), call)


# -- stores ----------------------------------------------------------------------------


def is_async(backend: Backend | AsyncBackend) -> TypeIs[AsyncBackend]:
    """Return True if the backend is driven by awaiting it."""
    return iscoroutinefunction(backend.fetch)


def blocking(backend: Backend | AsyncBackend) -> Backend:
    """The backend, which a sync method is about to use.

    Raises:
        InvalidArgumentError: it can only be awaited.
    """
    return Faces(backend).blocking  # type: ignore[no-any-return] # it is this backend


class Faces:
    """The blocking and the awaited face of one store, as far as it has both.

    Args:
        backend: the store: a blocking one, perhaps with its awaited face as `asynchronous`, or
            one that can only be awaited.

    `instant`: its calls never wait, so that awaiting callers make them in the event loop. The
    blocking face says so by an attribute of that name.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.awaited: Any = backend if is_async(backend) else getattr(backend, "asynchronous", None)
        self.instant = bool(getattr(backend, "instant", False))

    @property
    def blocking(self) -> Any:
        """The face for blocking calls.

        Raises:
            InvalidArgumentError: there is none.
        """
        if self.backend is self.awaited:
            raise InvalidArgumentError(
                f"{type(self.backend).__name__} is an async backend.",
                hint="Use the saver's async methods: aget_tuple, aput, ...",
            )
        return self.backend

    def has(self, name: str) -> bool:
        """Return True if the store has a capability: a method or an attribute of this name."""
        return hasattr(self.backend, name)

    def call(self, request: Call) -> Any:
        """Call a method of the blocking face."""
        return getattr(self.blocking, request.method)(*request.args, **request.options)

    async def acall(self, request: Call) -> Any:
        """Call a method of the awaited face, or the blocking one in a worker thread."""
        if self.awaited is not None:
            return await getattr(self.awaited, request.method)(*request.args, **request.options)
        return self.call(request) if self.instant else await in_thread(partial(self.call, request))

    def close(self) -> None:
        """Close the store. Idempotent."""
        self.blocking.close()

    async def aclose(self) -> None:
        """See `close`."""
        if self.awaited is not None:
            await self.awaited.close()
        if self.backend is not self.awaited:
            await in_thread(self.backend.close)


class Store(Faces):
    """The store at the bottom: it carries out the requests that no layer has answered.

    Commits of a store that can commit several changes at once go through a writer
    (`backends.group_commit`), but for one that is `instant`.

    Args:
        backend: see `Faces`.
        how: how concurrent commits share a transaction.
    """

    def __init__(self, backend: Backend | AsyncBackend, how: GroupCommit = AT_ONCE) -> None:
        super().__init__(backend)
        self._reads_in_memory = bool(getattr(backend, "reads_hot_in_memory", False))
        is_grouping = self.has("commit_many") and not self.instant
        self._writer: Writer | None = None
        self._loop_writer: LoopWriter | None = None
        if is_grouping and self.backend is not self.awaited:
            self._writer = Writer(self.backend, how)
        if is_grouping and self.awaited is not None:
            self._loop_writer = LoopWriter(self.awaited, how)

    def answer(self, request: Request) -> Any:
        """Carry out a request, and wait for it."""
        if isinstance(request, Fetch):
            return self.blocking.fetch(request.reads)
        if isinstance(request, Commit):
            return self.commit(request.change)
        if isinstance(request, CommitMany):
            return self.blocking.commit_many(request.changes)
        if isinstance(request, Call):
            return (request.of or self).call(request)
        return request.call()

    async def aanswer(self, request: Request) -> Any:
        """Carry out a request for an awaiting caller."""
        if isinstance(request, Fetch):
            return await self._afetch(request)
        if isinstance(request, Commit):
            return await self.acommit(request.change)
        if isinstance(request, CommitMany):
            return await self.acall(Call(None, "commit_many", (request.changes,)))
        if isinstance(request, Call):
            return await (request.of or self).acall(request)
        return await (request.by or in_thread)(request.call)

    async def _afetch(self, request: Fetch) -> Sequence[Any]:
        if self.awaited is not None:
            replies: Sequence[Any] = await self.awaited.fetch(request.reads)
            return replies
        if self.instant or (request.hot and self._reads_in_memory):
            return self.backend.fetch(request.reads)  # type: ignore[no-any-return] # any backend
        return await in_thread(partial(self.backend.fetch, request.reads), _readers)

    def commit(self, change: Change) -> None:
        """Commit a change; return when it is durable. See `Backend.commit`."""
        if self._writer is not None:
            self._writer.commit(change)
        else:
            self.blocking.commit(change)

    def submit(self, change: Change) -> Awaitable[None] | None:
        """Begin to commit a change for an awaiting caller, who awaits the result.

        None where nothing is left to wait for.
        """
        if self._loop_writer is not None:
            return self._loop_writer.submit(change)
        if self._writer is not None and self.awaited is None:
            return self._writer.submit(change)
        if self.instant and self.awaited is None:
            self.backend.commit(change)
            return None
        return self.acall(Call(None, "commit", (change,)))

    async def acommit(self, change: Change) -> None:
        """See `commit`."""
        waiting = self.submit(change)
        if waiting is not None:
            await waiting

    def close(self) -> None:
        """Close the store. Idempotent.

        What waits in front of the blocking face is committed first; what event loops still commit
        over the awaited one is refused.
        """
        if self._writer is not None:
            self._writer.close()
        super().close()

    async def aclose(self) -> None:
        """See `close`."""
        if self._loop_writer is not None:
            await self._loop_writer.close()
        if self._writer is not None:
            await in_thread(self._writer.close)
        await super().aclose()


class Stack:
    """A store and the layers in front of it, on which operations run.

    Args:
        store: the store.
        layers: those in front of it, from the outside in.
    """

    def __init__(self, store: Store, layers: Sequence[Layer] = ()) -> None:
        self._store = store
        self._layers = tuple(layers)
        self._handled = frozenset[type]().union(*[layer.handles for layer in layers])

    def under(self, layer: Layer) -> Stack:
        """The same store and layers, with one more in front."""
        return Stack(self._store, (layer, *self._layers))

    @property
    def has_awaited(self) -> bool:
        """True if awaiting callers use a face of the store that is their own."""
        return self._store.awaited is not None

    def run(self, operation: Requests[T]) -> T:
        """Run an operation, and wait for it.

        Raises:
            InvalidArgumentError: the store can only be awaited.
        """
        self._store.blocking  # noqa: B018 - raises, also where nothing is asked of the store
        return finish(driven(self._through(operation), self._answer))

    async def arun(self, operation: Requests[T]) -> T:
        """See `run`. In front of a store that blocks, a worker thread does all of it."""
        if self._store.awaited is None and not self._store.instant:
            return await in_thread(partial(self.run, operation), _readers)
        return await self.arun_here(operation)

    async def arun_here(self, operation: Requests[T]) -> T:
        """Run an operation in the event loop, and only its requests elsewhere.

        Values are looked at before this first suspends, as the program goes on then.
        """
        return await driven(self._through(operation), self._store.aanswer)

    def commit(self, change: Change) -> None:
        """Commit a change; durable on return, unless saves are relaxed.

        No generator is made where no layer handles such changes.

        Raises:
            ThreadkeepError: as `Backend.commit`.
        """
        if type(change) in self._handled:
            self.run(committing(change))
        else:
            self._store.commit(change)

    def submit(self, change: Change) -> Awaitable[None] | None:
        """Begin to commit a change for an awaiting caller. See `commit` and `Store.submit`."""
        if type(change) in self._handled:
            return self.arun_here(committing(change))
        return self._store.submit(change)

    async def acommit(self, change: Change) -> None:
        """See `commit`."""
        waiting = self.submit(change)
        if waiting is not None:
            await waiting

    def _through(self, operation: Requests[T]) -> Requests[T]:
        for layer in self._layers:
            operation = through(layer, operation)
        return operation

    async def _answer(self, request: Request) -> Any:
        return self._store.answer(request)
