"""Running coroutines that never suspend, so that one logic serves waiting and awaiting.

Only that lives here, and a blocking backend behind the async protocol. Invariant: such a
coroutine runs in the calling thread, to its end.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Generic, TypeVar

from threadkeep.backends.base import Backend
from threadkeep.engine.model import Change, Read

T = TypeVar("T")
B = TypeVar("B", bound=Backend)


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
