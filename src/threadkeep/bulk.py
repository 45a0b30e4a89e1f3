"""Many puts in one call: their commits are collected and carried out together.

Only that lives here. Invariant: what is collected is remembered by nobody else, so that
nothing that is stored meanwhile refers to it; it is carried out in order, and before
anything is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from threadkeep import drive
from threadkeep.backends.base import (
    AsyncBackend,
    Backend,
    GroupingAsyncBackend,
    GroupingBackend,
)
from threadkeep.backends.straight import StraightGrouping, finish
from threadkeep.engine.calls import Operation
from threadkeep.engine.model import Change, Read
from threadkeep.errors import (
    ConflictError,
    SegmentTakenError,
    StaleThreadError,
)

T = TypeVar("T")

_MOST = 100  # commits in one transaction


class Collecting:
    """An async backend whose commits are carried out later, many at a time."""

    def __init__(self, backend: GroupingAsyncBackend) -> None:
        self._backend = backend
        self._changes: list[Change] = []

    async def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `AsyncBackend.fetch`."""
        await self.flush()
        return await self._backend.fetch(reads)

    async def commit(self, change: Change) -> None:
        """Collect the change."""
        self._changes.append(change)
        if len(self._changes) >= _MOST:
            await self.flush()

    async def flush(self) -> None:
        """Carry out what is collected.

        Raises:
            ThreadkeepError: the first refusal; what was not refused is stored.
        """
        changes, self._changes = self._changes, []
        if not changes:
            return
        for error in await self._backend.commit_many(changes):
            if error is not None:
                raise error

    async def close(self) -> None:
        """Nothing of its own is open."""


def run(operations: Iterable[Operation[T]], backend: Backend) -> list[T] | None:
    """The result of each operation, in order; all is durable on return.

    None where the store cannot do that, or has refused some of it: then they are to be done
    one by one, which says what it is, and is harmless.
    """
    if not isinstance(backend, GroupingBackend):
        return None
    return finish(arun(operations, StraightGrouping(backend)))


async def arun(operations: Iterable[Operation[T]], backend: AsyncBackend) -> list[T] | None:
    """See `run`."""
    if not isinstance(backend, GroupingAsyncBackend):
        return None
    collecting = Collecting(backend)
    try:
        results = [await drive.arun(operation, collecting) for operation in operations]
        await collecting.flush()
    except (ConflictError, SegmentTakenError, StaleThreadError):
        return None
    return results
