"""Runs operations for blocking and awaiting callers, and passes their requests through layers.

An operation is a generator (see `_core.engine.operation`). A *workflow* is an operation that yields
`External` requests only. It needs no backend of its own: it may use several stores, files and
blocking calls. When `run` or `arun` returns, raises or is cancelled, no request is still running.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial, update_wrapper
from inspect import signature
from threading import Lock
from types import coroutine
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    get_args,
)

from threadkeep._core.engine.model import Change
from threadkeep._core.engine.operation import (
    Commit,
    External,
    Fetch,
    Operation,
    Request,
)
from threadkeep._core.known_names import KnownNames
from threadkeep._stores.process_forks import ResetInChild

if TYPE_CHECKING:
    from threadkeep._stores.base import ScrubReport
    from threadkeep._stores.cold_store import ColdStore

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Any])
V = TypeVar("V", bound=Callable[..., Any])


CHANGES: frozenset[type] = frozenset(get_args(Change))
"""Every kind of change."""
_MAX_READERS = 4  # concurrent fetches of one process
_MAX_THREADS = 32  # other blocking calls


# -- worker threads --------------------------------------------------------------------


class Workers(ResetInChild):
    """Worker threads of the process, started on first use."""

    def __init__(self, count: int, name: str) -> None:
        self._options = (count, name)
        super().__init__()

    def _reset(self) -> None:
        self.pool = ThreadPoolExecutor(*self._options)


READERS = Workers(_MAX_READERS, "threadkeep-read")
_workers = Workers(_MAX_THREADS, "threadkeep")


async def in_thread(call: Callable[[], T], workers: Workers = _workers) -> T:
    """Run a blocking call in a worker thread.

    threadkeep has its own threads because LangGraph runs sync nodes in the event loop's executor,
    and a sync node may wait for a saver. If the caller is cancelled, the call continues: a commit
    that has begun may still become durable.
    """
    return await asyncio.get_running_loop().run_in_executor(workers.pool, call)


# -- the loop --------------------------------------------------------------------------


def drive(operation: Operation[T], answer: Callable[[Any], Any]) -> T:
    """Answer each request of an operation with a plain call, and return the operation's result."""
    reply: Any = None
    error: Exception | None = None
    try:
        while True:
            try:
                request = operation.send(reply) if error is None else operation.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            reply = error = None
            try:
                reply = answer(request)
            except Exception as exc:  # noqa: BLE001 - the operation decides what it means
                error = exc
    except BaseException:
        operation.close()
        raise


@coroutine
def adrive(
    operation: Operation[T],
    answer: Callable[[Any], Any],
    handles: frozenset[type] | None = None,
) -> Generator[Any, Any, T]:
    """Answer each request of an operation with `yield from`, and return the operation's result.

    You can await the returned object, or use it in `yield from` (see `through`).

    Args:
        operation: the operation. It is closed at the end, also after a cancellation.
        answer: a coroutine function, or a generator function that yields other requests.
        handles: the kinds of requests to answer, and all others are yielded. None means all kinds.
    """
    reply: Any = None
    error: Exception | None = None
    try:
        while True:
            try:
                request = operation.send(reply) if error is None else operation.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            reply = error = None
            try:
                if handles is None or kind_of(request) in handles:
                    reply = yield from answer(request)
                else:
                    reply = yield request
            except Exception as exc:  # noqa: BLE001 - the operation decides what it means
                error = exc
    except BaseException:
        operation.close()
        raise


def run(workflow: Operation[T]) -> T:
    """Run a workflow."""
    return drive(workflow, _call)


async def arun(workflow: Operation[T]) -> T:
    """Async variant of `run`."""
    return await adrive(workflow, acall)


def _call(step: External) -> Any:
    return step.call()


async def acall(step: External) -> Any:
    """Carry out an external call for an awaiting caller."""
    return await (in_thread(step.call) if step.acall is None else step.acall())


# -- layers ----------------------------------------------------------------------------


class StoreLayer(Protocol):
    """A layer in front of a backend.

    `handles` names the kinds of requests that the layer answers. The kind of a `Commit` is the type
    of its change (`Batch`, `DropThread`, ...). All other requests bypass the layer at no cost.
    """

    @property
    def handles(self) -> frozenset[type]:
        """The kinds of requests that this layer answers."""

    def answer(self, request: Any) -> Operation[Any]:
        """Return the reply to a request, and yield requests to the layers below."""


class ArchiveLayer(StoreLayer, Protocol):
    """A layer that restores archived threads from the cold store, if one is configured.

    It replaces replies to `Fetch` only if they are incomplete: a complete one costs a plain call.
    """

    cold: ColdStore | None

    def suffices(self, request: Fetch, replies: list[Any]) -> bool:
        """Return True if the replies from below are complete."""

    def complete(self, request: Fetch, replies: list[Any]) -> Operation[list[Any]]:
        """Return complete replies to use instead."""


class OtherStore(Protocol):
    """A store of LangGraph's from which threads are copied when they are used (`migrate_from`)."""

    def take(self, store: Any, engine: Any, thread: str) -> Operation[None]:
        """Copy the checkpoints of a thread that are missing in a store."""

    def holds(self, thread: str) -> Operation[bool]:
        """Return True if it has anything of a thread."""

    def mirror(self, thread: str, method: str, *given: Any) -> Operation[None]:
        """Call a method of LangGraph's saver on it, if saves are written there, too."""

    def erase(self, threads: Sequence[str]) -> Operation[ScrubReport]:
        """Delete threads there, if saves are written there, too, else report them."""


def kind_of(request: Request) -> type:
    """Return the kind of a request, as listed in `StoreLayer.handles`."""
    return type(request.change) if type(request) is Commit else type(request)


def through(layer: StoreLayer, operation: Operation[T]) -> Operation[T]:
    """Return the operation with its requests answered by a layer."""
    return cast("Operation[T]", adrive(operation, layer.answer, layer.handles))


# -- workflows -------------------------------------------------------------------------


class Runner(Protocol):
    """The interface of `LayeredBackend` for layers and workflows."""

    def run(self, operation: Operation[T]) -> T:
        """Run an operation."""

    async def arun(self, operation: Operation[T]) -> T:
        """Async variant of `run`."""

    def external(self, method: str, *args: Any, **options: Any) -> External:
        """Return a request that calls a method of the backend."""


def on(store: Runner, operation: Operation[T]) -> Operation[T]:
    """Run an operation on a store."""
    result: T = yield External(partial(store.run, operation), partial(store.arun, operation))
    return result


def external(call: Callable[[], T]) -> Operation[T]:
    """Make a blocking call, in a worker thread for an awaiting caller."""
    return sync_or_async(call, partial(in_thread, call))


def sync_or_async(call: Callable[[], T], acall: Callable[[], Awaitable[T]]) -> Operation[T]:
    """Call the first function for a blocking caller, the second for an awaiting one."""
    result: T = yield External(call, partial(_to_its_end, acall))
    return result


def within(stack: ExitStack, workflow: Operation[T]) -> Operation[T]:
    """Run a workflow, then exit the stack in a worker thread to complete or remove files."""
    with stack:  # for an abandoned workflow: a closed generator cannot yield
        try:
            result = yield from workflow
        except (Exception, asyncio.CancelledError, KeyboardInterrupt) as error:
            yield from external(partial(stack.__exit__, type(error), error, error.__traceback__))
            raise
        yield from external(stack.close)
        return result


def is_awaited() -> Operation[bool]:
    """Return True for an awaiting caller."""
    result: bool = yield External(lambda: False, _true)
    return result


async def _true() -> bool:
    return True


async def _to_its_end(call: Callable[[], Awaitable[T]]) -> T:
    """Await the call. A cancelled caller waits until the call has ended."""
    task = asyncio.ensure_future(call())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # anyio cancels repeatedly
                await asyncio.wait([task])
        raise


def sync_and_async(
    workflow: Callable[P, Operation[T]],
) -> tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]:
    """Make a method that runs a workflow, and its async variant."""

    def method(*args: P.args, **options: P.kwargs) -> T:
        return run(workflow(*args, **options))

    async def variant(*args: P.args, **options: P.kwargs) -> T:
        return await arun(workflow(*args, **options))

    return _described(workflow, method, variant)


def in_store(
    operation: Callable[Concatenate[Any, P], Operation[T]],
) -> tuple[Callable[Concatenate[Any, P], T], Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]]:
    """Make a method that runs an operation in the object's `_store`, and its async variant."""

    def method(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        result: T = self._store.run(operation(self, *args, **options))
        return result

    async def variant(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        result: T = await self._store.arun_here(operation(self, *args, **options))
        return result

    return _described(operation, method, variant)


def _described(source: Callable[..., Any], method: M, variant: V) -> tuple[M, V]:
    """Give methods the public name, documentation and signature of their operations."""
    # Errors about wrong arguments show the public name.
    source.__qualname__ = source.__qualname__.replace("._", ".")
    source.__name__ = source.__name__.removeprefix("_")
    # `help` and `inspect` show the result's type without `Operation`.
    known = signature(source)
    result = str(known.return_annotation)
    shown = [result.removeprefix("Operation[").removesuffix("]")] * 2
    if result.startswith("Iterator["):
        item = result.removeprefix("Iterator[Operation[Iterable[").removesuffix("]]]")
        shown = [f"Iterator[{item}]", f"AsyncIterator[{item}]"]
    for made, annotation in zip((method, variant), shown, strict=True):
        update_wrapper(made, source)
        made.__annotations__ = {**source.__annotations__, "return": annotation}
        vars(made)["__signature__"] = known.replace(return_annotation=annotation)
    return method, variant


def each_and_aeach(
    pages: Callable[P, Iterator[Operation[Iterable[T]]]],
) -> tuple[Callable[P, Iterator[T]], Callable[P, AsyncIterator[T]]]:
    """Make a method that yields the items of pages, and its async variant.

    Each page is the result of a workflow. The next page is requested after the caller has taken all
    items of the previous page.
    """

    def method(*args: P.args, **options: P.kwargs) -> Iterator[T]:
        for page in pages(*args, **options):
            yield from run(page)

    async def variant(*args: P.args, **options: P.kwargs) -> AsyncIterator[T]:
        for page in pages(*args, **options):
            for item in await arun(page):
                yield item

    return _described(pages, method, variant)


class Closing(KnownNames):
    """Sync and async context manager for a class with `close` and `aclose`."""

    close: Callable[[], None]
    aclose: Callable[[], Awaitable[None]]

    def _opening(self) -> Operation[None]:
        """Open a backend that otherwise opens on first use."""
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


class Wake:
    """A signal for one waiting thread, which its `wait` resets.

    It is a lock in C, which the waiting thread takes. So `set` may be called in any thread at any
    moment, even by a callback during `wait`, and an interrupt blocks no other thread. (Neither
    holds for `threading.Event`, and `SimpleQueue.get` of CPython 3.11 may wait without end if a
    short timeout is over before it begins to wait.)
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    @property
    def is_set(self) -> bool:
        return not self._lock.locked()

    def set(self) -> None:
        try:  # noqa: SIM105 - an interrupt in `suppress` would be lost
            self._lock.release()
        except RuntimeError:  # it is set already
            pass

    def wait(self, seconds: float | None) -> bool:
        """Wait until it is set, and reset it, and return False after `seconds`."""
        return self._lock.acquire(timeout=-1 if seconds is None else max(seconds, 0))


class End:
    """Wakes a waiting thread for the last time.

    `set` may be the callback of a weak reference. Python can call it in any thread, even during
    `wait`.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._wake = Wake()

    def set(self, reference: object = None) -> None:
        """End the thread. `reference` is ignored."""
        del reference
        self.is_set = True
        self._wake.set()

    def wait(self, seconds: float) -> bool:
        """Wait for `set`, and return True if it was called, or False after `seconds`."""
        if not self.is_set:
            self._wake.wait(seconds)
        return self.is_set
