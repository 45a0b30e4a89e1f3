"""Running coroutines that never suspend, so that one logic serves waiting and awaiting.

Only that lives here, and backends of one kind behind the protocol of the other. Invariant:
such a coroutine runs in the calling thread, to its end.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

from threadkeep.backends.base import (
    AsyncBackend,
    Backend,
    GroupingAsyncBackend,
    GroupingBackend,
    IdentifiedBackend,
    MigratingBackend,
)
from threadkeep.engine.model import Change, Read
from threadkeep.errors import ThreadkeepError

T = TypeVar("T")
B = TypeVar("B", bound=Backend)
A = TypeVar("A", bound=GroupingAsyncBackend)
F = TypeVar("F", bound=AsyncBackend)


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, by one step: whatever it awaits has no need to wait."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        coroutine.close()
    raise AssertionError("what blocks does not suspend")  # pragma: no cover


async def sleep(seconds: float) -> None:
    """Wait in the calling thread."""
    time.sleep(seconds)  # noqa: ASYNC251 - it runs straight: nothing else waits for it


class Loops(Protocol):
    """What an awaiting face keeps for each event loop."""

    def close_elsewhere(self) -> None:
        """Close it in all event loops but the one that runs here, if one does."""


class BlockingFace(Generic[A]):
    """A backend for blocking calls: an async one over connections that never suspend.

    Args:
        face: that one.
        asynchronous: the same store for awaiting calls, where there is one.
        loops: what that one keeps.
    """

    def __init__(self, face: A, asynchronous: A | None, loops: Loops | None) -> None:
        self._face = face
        self._loops = loops
        self.asynchronous = asynchronous

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `Backend.fetch`."""
        return finish(self._face.fetch(reads))

    def commit(self, change: Change) -> None:
        """See `Backend.commit`."""
        finish(self._face.commit(change))

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """See `GroupingBackend.commit_many`."""
        return finish(self._face.commit_many(changes))

    def close(self) -> None:
        """Close all connections of ours; later calls raise `ClosedError`. Idempotent."""
        finish(self._face.close())
        if self._loops is not None:
            self._loops.close_elsewhere()


class Straight(Generic[B]):
    """A blocking backend behind the async protocol."""

    def __init__(self, backend: B) -> None:
        self.backend = backend

    async def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `AsyncBackend.fetch`."""
        return self.backend.fetch(reads)

    async def commit(self, change: Change) -> None:
        """See `AsyncBackend.commit`."""
        self.backend.commit(change)

    async def close(self) -> None:
        """See `AsyncBackend.close`."""
        self.backend.close()


class StraightGrouping(Straight[GroupingBackend]):
    """The same of one that commits in groups."""

    async def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """See `GroupingAsyncBackend.commit_many`."""
        return self.backend.commit_many(changes)


def straight(backend: Backend) -> AsyncBackend:
    """A blocking backend behind the async protocol, of groups too where it can."""
    return StraightGrouping(backend) if isinstance(backend, GroupingBackend) else Straight(backend)


def identity_of(backend: IdentifiedBackend) -> Callable[[], Awaitable[str]]:
    """How to ask a blocking backend for its name."""

    async def identity() -> str:
        return backend.identity()

    return identity


class Front(Generic[F]):
    """A blocking backend with something in front of it: an async one that never suspends.

    Args:
        backend: the store.
        face: that one, over `straight(backend)`.
        asynchronous: the same for awaiting calls, where the store has a face for these.
    """

    def __init__(self, backend: Backend, face: F, asynchronous: F | None) -> None:
        self._backend = backend
        self._face = face
        self.asynchronous = asynchronous

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `Backend.fetch`."""
        return finish(self._face.fetch(reads))

    def commit(self, change: Change) -> None:
        """See `Backend.commit`."""
        finish(self._face.commit(change))

    def close(self) -> None:
        """See `Backend.close`."""
        finish(self._face.close())

    def migrate(self) -> None:
        """See `MigratingBackend.migrate`."""
        if isinstance(self._backend, MigratingBackend):
            self._backend.migrate()
