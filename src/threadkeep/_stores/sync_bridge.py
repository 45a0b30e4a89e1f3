"""Coroutines that never suspend, so that one logic serves blocking and awaiting callers."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from threadkeep._core.engine.model import Change, Read
from threadkeep._core.engine.usage import ItemUsage
from threadkeep._stores.base import AsyncBackend, Backend, ScrubReport
from threadkeep._stores.process_forks import LoopConnections
from threadkeep.errors import ThreadkeepError

if TYPE_CHECKING:
    from threadkeep._stores.items.records import SearchOptions

T = TypeVar("T")


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()  # pragma: no cover
    raise AssertionError("A coroutine over a blocking driver suspended.")  # pragma: no cover


async def sleep(seconds: float) -> None:
    """Sleep in the calling thread."""
    time.sleep(seconds)  # noqa: ASYNC251 - no event loop runs in this thread


async def result(value: Any) -> Any:
    """Return the result of a driver's method, awaited if the driver is async."""
    return await value if isinstance(value, CoroutineType) else value


class _Entered:
    """Async face of a blocking context manager."""

    __slots__ = ("_context",)

    def __init__(self, context: AbstractContextManager[Any]) -> None:
        self._context = context

    async def __aenter__(self) -> Any:
        return self._context.__enter__()

    async def __aexit__(self, *error: Any) -> bool | None:  # noqa: PYI036 - passed on as it is
        return self._context.__exit__(*error)


def entered(context: Any) -> AbstractAsyncContextManager[Any]:
    """Return a driver's context manager, blocking or async, for `async with`."""
    found: AbstractAsyncContextManager[Any] = (
        context if hasattr(context, "__aenter__") else _Entered(context)
    )
    return found


class Face(AsyncBackend):
    """An async backend in front of another one, blocking or awaited."""

    def __init__(self, below: Backend | AsyncBackend) -> None:
        self.below: Any = below
        self.instant = below.instant
        self.commits_groups = below.commits_groups
        self.has_identity = below.has_identity

    async def migrate(self) -> None:
        await result(self.below.migrate())

    async def keep_words(self, *, kept: bool) -> None:
        await result(self.below.keep_words(kept=kept))

    async def identity(self) -> str:
        return cast("str", await result(self.below.identity()))

    async def scrub(self, *, rewrite: bool) -> ScrubReport:
        return cast("ScrubReport", await result(self.below.scrub(rewrite=rewrite)))


A = TypeVar("A", bound=AsyncBackend)


class BlockingFace(Backend, Generic[A]):
    """Blocking calls over an async backend (`face`) whose connections never suspend.

    `asynchronous` is the same store for awaiting calls, `loops` are its connections.
    """

    asynchronous: A | None

    def __init__(
        self, face: A, asynchronous: A | None = None, loops: LoopConnections[Any] | None = None
    ) -> None:
        self.face = face
        self._loops = loops
        self.asynchronous = asynchronous
        self.instant = face.instant
        self.commits_groups = face.commits_groups
        self.has_identity = face.has_identity
        self.indexes_messages = face.indexes_messages
        self.counts_usage = face.counts_usage
        self.keys = face.keys

    @property
    def retries(self) -> int:
        """Includes retries of awaiting calls."""
        awaited = 0 if self.asynchronous is None else self.asynchronous.retries
        return self.face.retries + awaited

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        return finish(self.face.fetch(reads))

    def commit(self, change: Change) -> None:
        finish(self.face.commit(change))

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        return finish(self.face.commit_many(changes))

    def items(self, options: SearchOptions) -> Any:
        return self._blocking(lambda backend: backend.items(options))

    def cache(self) -> Any:
        return self._blocking(lambda backend: backend.cache())

    def _blocking(self, of: Callable[[Any], Any]) -> Any:
        """Return a blocking backend of other rows, over the same connections."""
        native = None if self.asynchronous is None else of(self.asynchronous)
        return of(self.face).blocking(native)

    def open(self) -> None:
        if isinstance(self.face, Face):
            self.face.below.open()

    def migrate(self) -> None:
        finish(self.face.migrate())

    def keep_words(self, *, kept: bool) -> None:
        finish(self.face.keep_words(kept=kept))

    def identity(self) -> str:
        return finish(self.face.identity())

    def notes(self) -> Sequence[str]:
        return finish(self.face.notes())

    def item_usage(self, now: int) -> ItemUsage:
        return finish(self.face.item_usage(now))

    def scrub(self, *, rewrite: bool) -> ScrubReport:
        return finish(self.face.scrub(rewrite=rewrite))

    def close(self) -> None:
        """Close our own connections. Later calls raise `ClosedError`. Idempotent."""
        finish(self.face.close())
        if self._loops is not None:
            self._loops.close_elsewhere()
