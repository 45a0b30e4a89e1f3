"""Runs operations on a store, through its layers, for blocking and awaiting callers.

An operation is a generator (see `_core.engine.operation`). This is the only place, beside backends,
where sync and async differ.

A workflow is a generator above operations: several of them, on one store or more, and blocking
calls in between. Each `External` that it yields has a step for blocking and for awaiting callers.
However it ends, also by a cancellation, no step is under way then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from functools import partial, wraps
from inspect import signature
from typing import Any, ParamSpec, Protocol, Self, TypeAlias, TypeVar

from threadkeep._core.engine.model import Change
from threadkeep._core.engine.operation import (
    Call,
    Commit,
    CommitMany,
    External,
    Fetch,
    Request,
    Requests,
)
from threadkeep._core.engine.operation import commit as committing
from threadkeep._run.group_commit import AT_ONCE, GroupCommit, LoopWriter, Writer
from threadkeep._run.layers.layer import StoreLayer, drive, through
from threadkeep._stores.base import AsyncBackend, Backend
from threadkeep._stores.first_use import running_loop
from threadkeep._stores.process_forks import PerLoop, ResetInChild
from threadkeep._stores.sync_bridge import finish
from threadkeep.errors import ClosedError, InvalidArgumentError

P = ParamSpec("P")
T = TypeVar("T")

_MAX_READERS = 4  # fetches of one process that wait for its disks at the same time
_MAX_THREADS = 32  # other calls that block
_LOOK_EVERY = 1.0  # seconds, after the event loop that a thread waits for


# -- worker threads --------------------------------------------------------------------


class _Workers(ResetInChild):
    """Worker threads of the process, started at their first use."""

    def __init__(self, count: int, name: str) -> None:
        self._options = (count, name)
        super().__init__()

    def _reset(self) -> None:
        self.pool = ThreadPoolExecutor(*self._options)


_readers = _Workers(_MAX_READERS, "threadkeep-read")
_workers = _Workers(_MAX_THREADS, "threadkeep")


async def in_thread(call: Callable[[], T], workers: _Workers = _workers) -> T:
    """Run a blocking call in a worker thread.

    The threads are our own: in the event loop's, LangGraph runs sync nodes, which may well
    wait for a saver. A cancelled caller does not wait, but the call is carried through: a
    commit that has begun may still become durable.
    """
    return await asyncio.get_running_loop().run_in_executor(workers.pool, call)


# -- stores ----------------------------------------------------------------------------


class BackendPair:
    """A backend, and its async variant if there is one."""

    def __init__(self, backend: Backend | AsyncBackend) -> None:
        if not isinstance(backend, Backend | AsyncBackend):
            raise InvalidArgumentError(
                f"{type(backend).__name__} is no backend.",
                hint="Use saver.backend, or inherit from threadkeep.Backend.",
            )
        self.backend = backend
        self.instant = backend.instant
        self._blocking = backend if isinstance(backend, Backend) else None
        self.awaited = backend.asynchronous if isinstance(backend, Backend) else backend
        self.is_blocking = self._blocking is not None
        """True if the backend has blocking methods."""
        self._loop = None if isinstance(backend, Backend) else running_loop()

    @property
    def blocking(self) -> Backend:
        """The backend for blocking calls."""
        if self._blocking is None:
            raise self._refusal()
        return self._blocking

    def _refusal(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{type(self.backend).__name__} is an async backend.",
            hint="Use the async methods, or another thread than that of its event loop.",
        )

    def in_loop(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Call an async function in the event loop of an async backend, from another thread."""
        loop = self._loop
        if loop is None or not loop.is_running() or loop is running_loop():
            raise self._refusal()
        future = asyncio.run_coroutine_threadsafe(call(), loop)
        while not wait([future], _LOOK_EVERY).done and loop.is_running():
            pass
        if not future.done() or future.cancelled():
            raise ClosedError("The event loop was shut down: nobody knows if this was done.")
        return future.result()

    def call(self, request: Call) -> Any:
        """Call a method of the backend."""
        if self._blocking is None:
            return self.in_loop(partial(self.acall, request))
        return getattr(self._blocking, request.method)(*request.args, **request.options)

    async def acall(self, request: Call) -> Any:
        """Call a method of the async variant, or the blocking one in a worker thread."""
        if self.awaited is not None:
            return await getattr(self.awaited, request.method)(*request.args, **request.options)
        return self.call(request) if self.instant else await in_thread(partial(self.call, request))

    def external(self, method: str, *args: Any, **options: Any) -> External:
        """Return a request that calls a method of this backend, whatever store answers it."""
        request = Call(method, args, options)
        return External(partial(self.call, request), partial(self.acall, request))

    def opening(self) -> Workflow[None]:
        """Open a backend that may open at its first use. See `Backend.open`."""
        if self._blocking is not None and self.awaited is None and not self.instant:
            yield from external(self._blocking.open)

    def close(self) -> None:
        """Close the backend. Idempotent."""
        if self._blocking is None:
            self.in_loop(self.aclose)
        else:
            self._blocking.close()

    async def aclose(self) -> None:
        """Async variant of `close`."""
        if self.awaited is not None:
            await self.awaited.close()
        if self._blocking is not None:
            await in_thread(self._blocking.close)


class BottomStore(BackendPair):
    """A backend as the bottom of a stack: it answers the requests that no layer has answered.

    Commits of a backend that commits groups go through a writer (`_run.group_commit`), unless
    it is `instant`.
    """

    def __init__(self, backend: Backend | AsyncBackend, how: GroupCommit = AT_ONCE) -> None:
        super().__init__(backend)
        self._writer: Writer | None = None
        self._loop_writers: PerLoop[LoopWriter] | None = None
        if backend.commits_groups and self._blocking is not None and not self.instant:
            self._writer = Writer(self._blocking, how)
        if self.awaited is not None and self.awaited.commits_groups and not self.instant:
            self._loop_writers = PerLoop(partial(LoopWriter, self.awaited, how))

    async def answer(self, request: Request) -> Any:
        """Carry out a request; nothing suspends."""
        if type(request) is Fetch:
            return self.blocking.fetch(request.reads)
        if type(request) is Commit:
            return self.commit(request.change)
        if isinstance(request, CommitMany):
            return self.blocking.commit_many(request.changes)
        if isinstance(request, Call):
            return self.call(request)
        return request.call()

    async def aanswer(self, request: Request) -> Any:
        """Carry out a request for an awaiting caller."""
        if self._blocking is None:
            self._loop = asyncio.get_running_loop()
        if type(request) is Fetch:
            return await self._afetch(request)
        if type(request) is Commit:
            waiting = self.submit(request.change)
            return None if waiting is None else await waiting
        if isinstance(request, CommitMany):
            return await self.acall(Call("commit_many", (request.changes,)))
        if isinstance(request, Call):
            return await self.acall(request)
        return await (in_thread(request.call) if request.acall is None else request.acall())

    async def _afetch(self, request: Fetch) -> Sequence[Any]:
        if self.awaited is not None:
            return await self.awaited.fetch(request.reads)
        if self.instant:
            return self.blocking.fetch(request.reads)
        if request.hot:
            replies = [self.blocking.at_hand(read) for read in request.reads]
            if None not in replies:
                return replies
        return await in_thread(partial(self.blocking.fetch, request.reads), _readers)

    def commit(self, change: Change) -> None:
        """Commit a change; return when it is durable. See `Backend.commit`."""
        if self._writer is not None:
            self._writer.commit(change)
        elif self._blocking is not None:
            self._blocking.commit(change)
        else:
            self.in_loop(partial(self.aanswer, Commit(change)))

    def submit(self, change: Change) -> Awaitable[None] | None:
        """Begin to commit a change for an awaiting caller, who awaits the result.

        None where nothing is left to wait for.
        """
        if self._blocking is None:
            self._loop = asyncio.get_running_loop()
        if self._loop_writers is not None:
            return self._loop_writers.here().submit(change)
        if self._writer is not None and self.awaited is None:
            return self._writer.submit(change)
        if self.instant and self.awaited is None:
            self.blocking.commit(change)
            return None
        return self.acall(Call("commit", (change,)))

    def close(self) -> None:
        """Close the store. Idempotent.

        What waits for the blocking backend is committed first; what event loops still commit is
        refused.
        """
        if self._writer is not None:
            self._writer.close()
        super().close()

    async def aclose(self) -> None:
        """See `close`."""
        if self._loop_writers is not None:
            await self._loop_writers.here().close()
        if self._writer is not None:
            await in_thread(self._writer.close)
        await super().aclose()


class Stack:
    """A store and the layers in front of it, from the outside in, on which operations run."""

    def __init__(self, store: BottomStore, layers: Sequence[StoreLayer] = ()) -> None:
        self._store = store
        self._layers = tuple(layers)
        self._handled = frozenset[type]().union(*[layer.handles for layer in layers])

    def opening(self) -> Workflow[None]:
        """See `BackendPair.opening`."""
        return self._store.opening()

    def under(self, layer: StoreLayer) -> Stack:
        """Return the same store and layers with one more in front."""
        return Stack(self._store, (layer, *self._layers))

    @property
    def has_awaited(self) -> bool:
        """True if awaiting callers use an async variant of the backend."""
        return self._store.awaited is not None

    def run(self, operation: Requests[T]) -> T:
        """Run an operation, and wait for it."""
        if not self._store.is_blocking:
            return self._store.in_loop(partial(self.arun_here, operation))
        whole = self._through(operation) if self._layers else operation
        return finish(drive(whole, self._store.answer))

    async def arun(self, operation: Requests[T]) -> T:
        """See `run`. In front of a store that blocks, a worker thread does all of it."""
        if self._store.awaited is None and not self._store.instant:
            return await in_thread(partial(self.run, operation), _readers)
        return await self.arun_here(operation)

    async def arun_here(self, operation: Requests[T]) -> T:
        """Run an operation in the event loop, and only its requests elsewhere.

        Values are looked at before this first suspends, as the program continues then.
        """
        whole = self._through(operation) if self._layers else operation
        return await drive(whole, self._store.aanswer)

    def commit(self, change: Change) -> None:
        """Commit a change; durable on return, unless `write_behind` is used.

        No generator is made where no layer handles such changes.
        """
        if type(change) in self._handled:
            self.run(committing(change))
        else:
            self._store.commit(change)

    def submit(self, change: Change) -> Awaitable[None] | None:
        """Begin to commit a change for an awaiting caller. See `BottomStore.submit`."""
        if type(change) in self._handled:
            return self.arun_here(committing(change))
        return self._store.submit(change)

    def _through(self, operation: Requests[T]) -> Requests[T]:
        for layer in self._layers:
            operation = through(layer, operation)
        return operation


Workflow: TypeAlias = Generator[External, Any, T]


class Runner(Protocol):
    """A store that operations run on."""

    def run(self, operation: Requests[T]) -> T:
        """Run an operation."""

    async def arun(self, operation: Requests[T]) -> T:
        """Async variant of `run`."""


def on(store: Runner, operation: Requests[T]) -> Workflow[T]:
    """Run an operation on a store."""
    result: T = yield External(partial(store.run, operation), partial(store.arun, operation))
    return result


def external(call: Callable[[], T]) -> Workflow[T]:
    """Call what blocks; an awaiting caller does so in a worker thread."""
    return sync_or_async(call, partial(in_thread, call))


def sync_or_async(call: Callable[[], T], acall: Callable[[], Awaitable[T]]) -> Workflow[T]:
    """Call the first for a blocking caller, the second for an awaiting one."""
    result: T = yield External(call, partial(_to_its_end, acall))
    return result


def within(stack: ExitStack, workflow: Workflow[T]) -> Workflow[T]:
    """Run a workflow, and leave the stack as an `external`: files are completed or removed."""
    with stack:  # (for a workflow that is dropped: it can call nothing any more)
        try:
            result = yield from workflow
        except (Exception, asyncio.CancelledError, KeyboardInterrupt) as error:
            yield from external(partial(stack.__exit__, type(error), error, error.__traceback__))
            raise
        yield from external(stack.close)
        return result


async def _to_its_end(call: Callable[[], Awaitable[T]]) -> T:
    """Await the call; a caller that is cancelled, however often, waits until it is done."""
    task = asyncio.ensure_future(call())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # (anyio cancels again and again)
                await asyncio.wait([task])
        raise


def run(workflow: Workflow[T]) -> T:
    """Run a workflow."""
    return finish(drive(workflow, _call))


async def arun(workflow: Workflow[T]) -> T:
    """Async variant of `run`."""
    return await drive(workflow, _acall)


async def _call(step: External) -> Any:
    return step.call()


async def _acall(step: External) -> Any:
    return await (step.acall or partial(in_thread, step.call))()


def sync_and_async(
    workflow: Callable[P, Workflow[T]],
) -> tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]:
    """Return the method that runs a workflow, and its async variant."""

    @wraps(workflow)
    def method(*args: P.args, **options: P.kwargs) -> T:
        return run(workflow(*args, **options))

    @wraps(workflow)
    async def variant(*args: P.args, **options: P.kwargs) -> T:
        return await arun(workflow(*args, **options))

    # As `help` and `inspect` show it: without the `Workflow` around the result.
    known = signature(workflow)
    result = str(known.return_annotation).removeprefix("Workflow[").removesuffix("]")
    shown = {"__signature__": known.replace(return_annotation=result)}
    vars(method).update(shown)
    vars(variant).update(shown)
    return method, variant


class Closing:
    """Context manager, sync and async, of what has `close` and `aclose`."""

    close: Callable[[], None]
    aclose: Callable[[], Awaitable[None]]

    def _opening(self) -> Workflow[None]:
        """Open what opens at its first use."""
        yield from ()

    def __enter__(self) -> Self:
        run(self._opening())
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await arun(self._opening())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()
