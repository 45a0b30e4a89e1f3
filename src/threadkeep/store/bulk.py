"""Bulk commits: many operations in one call, whose batches are collected and committed together.

Batches are committed in order, and before anything is read. Until then nobody remembers them, so
that nothing that is stored meanwhile refers to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from threadkeep.engine.model import Batch
from threadkeep.engine.operation import (
    Commit,
    Fetch,
    Operation,
    Requests,
    commit_many,
)
from threadkeep.errors import ConflictError, SegmentTakenError, StaleThreadError
from threadkeep.store.layer import (
    CHANGES,
    through,
)

T = TypeVar("T")

_MAX_BATCH = 100  # batches in one transaction


class Collecting:
    """Layer that collects batches and commits them many at a time."""

    handles = CHANGES | {Fetch}

    def __init__(self) -> None:
        self._batches: list[Batch] = []

    def answer(self, request: Fetch | Commit) -> Requests[Any]:
        """Collect a batch; put anything else behind what is collected."""
        if isinstance(request, Commit) and isinstance(request.change, Batch):
            self._batches.append(request.change)
            if len(self._batches) >= _MAX_BATCH:
                yield from self.flush()
            return None
        yield from self.flush()
        return (yield request)

    def flush(self) -> Requests[None]:
        """Commit what is collected.

        Raises:
            ThreadkeepError: the first refusal; what was not refused is stored.
        """
        batches, self._batches = self._batches, []
        for error in (yield from commit_many(batches)):
            if error is not None:
                raise error


def together(operations: Iterable[Operation[T]]) -> Requests[list[T] | None]:
    """Run operations and return their results, in order; all is durable on return.

    Returns:
        The results; None if the store has refused a batch. Then run the operations one by one,
        which is harmless, and raises the error.
    """
    collecting, results = Collecting(), []
    try:
        for operation in operations:
            results.append((yield from through(collecting, operation)))  # noqa: PERF401 - it yields
        yield from collecting.flush()
    except (ConflictError, SegmentTakenError, StaleThreadError):
        return None
    return results
