"""A backend for blocking and awaiting callers, and the layer in front of it."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import wait
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from threadkeep._core.engine.model import Change
from threadkeep._core.engine.operation import (
    Call,
    Commit,
    CommitMany,
    External,
    Fetch,
    Operation,
    Request,
    call,
)
from threadkeep._core.engine.usage import Counters
from threadkeep._core.engine.working_set import WorkingSet
from threadkeep._run.driver import (
    READERS,
    ArchiveLayer,
    OtherStore,
    StoreLayer,
    acall,
    adrive,
    drive,
    external,
    in_thread,
    kind_of,
    on,
    sync_or_async,
)
from threadkeep._run.first_change import CHANGING, FirstChange
from threadkeep._run.group_commit import MOST, LoopWriter, Writer
from threadkeep._stores import process_forks
from threadkeep._stores.base import AsyncBackend, Backend, ScrubReport
from threadkeep._stores.process_forks import PerLoop, running_loop
from threadkeep._stores.records import confirm, tie
from threadkeep.errors import ClosedError, InvalidArgumentError

if TYPE_CHECKING:
    from threadkeep._core.policies import Retention, Tiering
    from threadkeep._stores.cold_store import ColdStore
    from threadkeep._stores.tenant import Names

T = TypeVar("T")

RANDOM = SystemRandom()  # tokens must differ even if a program seeds its random numbers
_LOOK_EVERY = 1.0  # seconds between checks that another thread's event loop still runs


class _Home:
    """The event loop of an async-only backend. Shared by all views of the backend."""

    loop: asyncio.AbstractEventLoop | None = None


class LayeredBackend:
    """A backend, its async variant if it has one, and at most one layer in front of both.

    Commits of a backend with `commits_groups` go through a
    writer, `most` in a group (see `_run.group_commit`), unless the backend is `instant`.

    Raises:
        InvalidArgumentError: the object is not a backend, or the backend does not support an
            option.
    """

    names: Names | None = None  # of a tenant's threads
    rolling: OtherStore | None = None  # of a saver with `migrate_from`

    def __init__(
        self,
        backend: Backend | AsyncBackend,
        archives: ArchiveLayer | None = None,
        *,
        most: int = MOST,
        tiering: Tiering | None = None,
        working_set_bytes: int = 0,
    ) -> None:
        if not isinstance(backend, Backend | AsyncBackend):
            raise InvalidArgumentError(
                f"{type(backend).__name__} is not a backend.",
                hint="Use saver.backend, or inherit from threadkeep.Backend.",
            )
        self._set_backend(backend)
        self._first = FirstChange(is_due=archives is not None)  # (a saver's)
        self._archives = archives
        self.cold = None if archives is None else archives.cold
        self.tiering = tiering
        self.retention: Retention | None = None  # for threads without their own policy
        self._home = _Home()
        if self._blocking is None:
            self._home.loop = running_loop()
        if self.cold is not None and not backend.has_identity:
            name = type(backend).__name__
            raise InvalidArgumentError(
                f"cold= requires a backend with an identity, which {name} does not have.",
                hint="Override `identity` in the backend, and set `has_identity`.",
            )
        self._writer: Writer | None = None
        self._loop_writers: PerLoop[LoopWriter] | None = None
        if backend.commits_groups and not backend.instant:
            if self._blocking is not None:
                self._writer = Writer(self._blocking, most)
            if self._awaited is not None and self._awaited.commits_groups:
                self._loop_writers = PerLoop(partial(LoopWriter, self._awaited, most))
        self.working_set = WorkingSet(working_set_bytes, threading.Lock, RANDOM.getrandbits)
        process_forks.watch(self.working_set)
        self._use(archives)

    def _set_backend(self, backend: Backend | AsyncBackend) -> None:
        self.backend = backend
        self._blocking = backend if isinstance(backend, Backend) else None
        self._awaited = backend.asynchronous if isinstance(backend, Backend) else backend

    def _use(self, layer: StoreLayer | None) -> None:
        """Put a layer in front of the backend."""
        self._layer: Any = layer
        self._handles: frozenset[type] = frozenset()
        if layer is not None:
            self._below = copy.copy(self)
            self._below._use(None)  # noqa: SLF001 - a copy
            self._handles = layer.handles

    def under(self, layer: StoreLayer) -> Self:
        """Return a copy with this layer in front."""
        whole = copy.copy(self)
        whole._use(layer)  # noqa: SLF001 - a copy
        return whole

    @property
    def whole(self) -> LayeredBackend:
        """The view that shows the threads of all tenants."""
        return self

    def with_threads(self, threads: LayeredBackend) -> Self:
        """Return this store of other rows, whose first change looks at these threads."""
        self._first = FirstChange(threads)
        return self

    # -- operations ----------------------------------------------------------------------

    def run(self, operation: Operation[T]) -> T:
        """Run an operation and wait for its result."""
        if self._blocking is None:
            return self._in_loop(partial(self.arun_here, operation))
        return drive(operation, self.answer)

    async def arun(self, operation: Operation[T]) -> T:
        """Async variant of `run`. On a blocking backend, a worker thread runs the operation."""
        if self._awaited is None and not self.backend.instant:
            return await in_thread(partial(self.run, operation), READERS)
        return await self.arun_here(operation)

    async def arun_here(self, operation: Operation[T]) -> T:
        """Run an operation in the event loop. Only its requests may run in other threads.

        The operation reads the caller's values before it first suspends.
        """
        return await adrive(operation, self.aanswer)

    def answer(self, request: Request) -> Any:
        """Answer a request through the layer."""
        if self._first.is_due and type(request) in CHANGING:
            self._first.check(self)
        if kind_of(request) not in self._handles:
            return self._carry_out(request)
        below, archives = self._below, self._archives
        if archives is None or type(request) is not Fetch:
            return drive(self._layer.answer(request), below.answer)
        replies = below.answer(request)
        if archives.suffices(request, replies):
            return replies
        return drive(archives.complete(request, replies), below.answer)

    async def aanswer(self, request: Request) -> Any:
        """Answer a request of an awaiting caller through the layer."""
        if self._first.is_due and type(request) in CHANGING:
            await self._first.acheck(self)
        if kind_of(request) not in self._handles:
            return await self._acarry_out(request)
        below, archives = self._below, self._archives
        if archives is None or type(request) is not Fetch:
            return await adrive(self._layer.answer(request), below.aanswer)
        replies = await below.aanswer(request)
        if archives.suffices(request, replies):
            return replies
        return await adrive(archives.complete(request, replies), below.aanswer)

    def commit(self, change: Change) -> None:
        """Commit a change, durable on return."""
        if self._first.is_due or type(change) in self._handles:
            self.answer(Commit(change))
        elif self._writer is not None:
            self._writer.commit(change)
        elif self._blocking is not None:
            self._commit_here(change)
        else:
            self._in_loop(partial(self.aanswer, Commit(change)))

    def _commit_here(self, change: Change) -> None:
        tie([change])
        self.blocking.commit(change)
        confirm([change], [None])

    def submit(self, change: Change) -> Awaitable[None] | None:
        """Start a commit for an awaiting caller, and return an awaitable, or None if it is done."""
        if self._first.is_due or type(change) in self._handles:
            return self.aanswer(Commit(change))
        if self._blocking is None:
            self._home.loop = asyncio.get_running_loop()
        if self._loop_writers is not None:
            return self._loop_writers.here().submit(change)
        if self._writer is not None and self._awaited is None:
            return self._writer.submit(change)
        if self.backend.instant and self._awaited is None:
            self._commit_here(change)
            return None
        return self._commit_there(change)

    async def _commit_there(self, change: Change) -> None:
        tie([change])
        await self.acall(Call("commit", (change,)))
        confirm([change], [None])

    # -- the backend ---------------------------------------------------------------------

    @property
    def blocking(self) -> Backend:
        """The backend for blocking calls.

        Raises:
            InvalidArgumentError: the backend is async only.
        """
        if self._blocking is None:
            raise self._refusal()
        return self._blocking

    def _refusal(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{type(self.backend).__name__} is an async backend.",
            hint="Use the async methods, or call from a thread outside its event loop.",
        )

    def _carry_out(self, request: Request) -> Any:
        if type(request) is Fetch:
            return self.blocking.fetch(request.reads)
        if type(request) is Commit:
            return self.commit(request.change)
        if isinstance(request, CommitMany):
            tie(request.changes)
            refusals = self.blocking.commit_many(request.changes)
            confirm(request.changes, refusals)
            return refusals
        if isinstance(request, Call):
            return self.call(request)
        return request.call()

    async def _acarry_out(self, request: Request) -> Any:
        if self._blocking is None:
            self._home.loop = asyncio.get_running_loop()
        if type(request) is Fetch:
            return await self._afetch(request)
        if type(request) is Commit:
            waiting = self.submit(request.change)
            return None if waiting is None else await waiting
        if isinstance(request, CommitMany):
            tie(request.changes)
            refusals = await self.acall(Call("commit_many", (request.changes,)))
            confirm(request.changes, refusals)
            return refusals
        if isinstance(request, Call):
            return await self.acall(request)
        return await acall(request)

    async def _afetch(self, request: Fetch) -> Sequence[Any]:
        if self._awaited is not None:
            return await self._awaited.fetch(request.reads)
        if self.backend.instant:
            return self.blocking.fetch(request.reads)
        return await in_thread(partial(self.blocking.fetch, request.reads), READERS)

    def _in_loop(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Call an async function in the event loop of an async backend, from another thread."""
        loop = self._home.loop
        if loop is None or not loop.is_running() or loop is running_loop():
            raise self._refusal()
        future = asyncio.run_coroutine_threadsafe(call(), loop)
        while not wait([future], _LOOK_EVERY).done and loop.is_running():
            pass
        if not future.done() or future.cancelled():
            raise ClosedError(
                "Event loop closed before the call was confirmed; it may be complete."
            )
        return future.result()

    def call(self, request: Call) -> Any:
        """Call a method of the backend."""
        if self._blocking is None:
            return self._in_loop(partial(self.acall, request))
        return getattr(self._blocking, request.method)(*request.args, **request.options)

    async def acall(self, request: Call) -> Any:
        """Call a method of the async variant, or of the backend in a worker thread."""
        if self._awaited is not None:
            return await getattr(self._awaited, request.method)(*request.args, **request.options)
        if self.backend.instant:
            return self.call(request)
        return await in_thread(partial(self.call, request))

    def external(self, method: str, *args: Any, **options: Any) -> External:
        """Return a request to call this backend from an operation on another backend."""
        request = Call(method, args, options)
        return External(partial(self.call, request), partial(self.acall, request))

    def own_cold(self) -> Operation[ColdStore | None]:
        """Return the cold store for objects of this backend, or None if there is no cold store."""
        if self.cold is None:
            return None
        return self.cold.of((yield from on(self, call("identity"))))

    def clear_cache(self, thread: str | None, prefix: str = "") -> None:
        """Evict a thread, or all threads (None) that begin with `prefix`, from the working set."""
        self.working_set.forget(thread, prefix)

    def scrub(self, *, rewrite: bool) -> Operation[ScrubReport]:
        """Remove the bytes of deleted rows from the backend's files (see `Backend.scrub`)."""
        scrubbed: ScrubReport = yield from call("scrub", rewrite=rewrite)
        return scrubbed

    def counters(self, forked_runs: int) -> Counters:
        """Return the counters of a saver on this backend. See `Saver.counters`."""
        counts = self.working_set.counts
        return Counters(
            written_bytes=counts.written,
            saved_bytes=counts.saved,
            working_set_hits=counts.hits,
            working_set_misses=counts.loads - counts.hits,
            conflicts=forked_runs + counts.conflicts,
            retries=counts.retries + self.backend.retries,
        )

    # -- life ----------------------------------------------------------------------------

    def opening(self) -> Operation[None]:
        """Open a backend that otherwise opens on first use. See `Backend.open`."""
        if self._blocking is not None and self._awaited is None and not self.backend.instant:
            yield from external(self._blocking.open)

    def closing(self) -> Operation[None]:
        """Close the backend."""
        yield from sync_or_async(self.close, self.aclose)

    def close(self) -> None:
        """Close only the backend. Idempotent.

        Queued commits of a blocking backend are stored first. Running commits of event loops are
        refused.
        """
        if self._writer is not None:
            self._writer.close()
        if self._blocking is None:
            self._in_loop(self.aclose)
        else:
            self._blocking.close()

    async def aclose(self) -> None:
        """Async variant of `close`, which also waits for the commits of this event loop."""
        if self._loop_writers is not None:
            await self._loop_writers.here().close()
        if self._writer is not None:
            await in_thread(self._writer.close)
        if self._awaited is not None:
            await self._awaited.close()
        if self._blocking is not None:
            await in_thread(self._blocking.close)


class OfAStore(Protocol):
    """A threadkeep saver."""

    _store: LayeredBackend


def store_of(saver: object) -> LayeredBackend:
    """Return the layered backend of a threadkeep saver.

    Raises:
        InvalidArgumentError: the object is not a threadkeep saver.
    """
    store = getattr(saver, "_store", None)
    if not isinstance(store, LayeredBackend):
        raise InvalidArgumentError(
            f"{type(saver).__name__} is not a threadkeep saver.",
            hint="Open the other store: threadkeep.open_saver(url).",
        )
    return store
