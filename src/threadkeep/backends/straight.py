"""Runs coroutines that never suspend, so that one logic serves blocking and awaiting callers.

Only that lives here, and the blocking face of backends that are written so. Invariant: such a
coroutine runs in the calling thread, to its end.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

from threadkeep.backends.base import AsyncBackend
from threadkeep.engine.model import Change, Read
from threadkeep.errors import ThreadkeepError

T = TypeVar("T")
A = TypeVar("A", bound="GroupingFace")


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


class CommitsManyAwaited(Protocol):
    """An awaited store that commits several changes at once."""

    async def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """See `GroupingBackend.commit_many`."""


class GroupingFace(AsyncBackend, CommitsManyAwaited, Protocol):
    """An awaited store that commits in groups."""


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
