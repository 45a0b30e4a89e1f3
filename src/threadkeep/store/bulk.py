"""Many operations in one call: their batches are collected and carried out together.

Only that lives here. Invariant: what is collected is remembered by nobody else, so that
nothing that is stored meanwhile refers to it; it is carried out in order, and before
anything is read.
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

_MOST = 100  # batches in one transaction


class Collecting:
    """The layer that collects batches, and carries them out later, many at a time."""

    handles = CHANGES | {Fetch}

    def __init__(self) -> None:
        self._batches: list[Batch] = []

    def answer(self, request: Fetch | Commit) -> Requests[Any]:
        """Collect a batch; anything else comes behind what is collected."""
        if isinstance(request, Commit) and isinstance(request.change, Batch):
            self._batches.append(request.change)
            if len(self._batches) >= _MOST:
                yield from self.flush()
            return None
        yield from self.flush()
        return (yield request)

    def flush(self) -> Requests[None]:
        """Carry out what is collected.

        Raises:
            ThreadkeepError: the first refusal; what was not refused is stored.
        """
        batches, self._batches = self._batches, []
        for error in (yield from commit_many(batches)):
            if error is not None:
                raise error


def together(operations: Iterable[Operation[T]]) -> Requests[list[T] | None]:
    """The result of each operation, in order; all is durable on return.

    None where the store has refused some of it: then they are to be done one by one, which
    says what it is, and is harmless.
    """
    collecting, results = Collecting(), []
    try:
        for operation in operations:
            results.append((yield from through(collecting, operation)))  # noqa: PERF401 - it yields
        yield from collecting.flush()
    except (ConflictError, SegmentTakenError, StaleThreadError):
        return None
    return results
