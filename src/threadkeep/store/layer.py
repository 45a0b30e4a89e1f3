"""Layers: what stands in front of a store and answers some of the requests made to it.

Only how a request passes a layer lives here. Invariants: a layer meets the requests of the
kinds that it handles, those of what stands above it; it yields requests to whatever stands
beneath, and what fails there is thrown in at the yield; what it raises itself is thrown in where
the request came from.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, get_args

from threadkeep.engine.model import Batch, Change
from threadkeep.engine.operation import (
    Commit,
    CommitMany,
    Request,
    Requests,
)
from threadkeep.errors import ThreadkeepError

T = TypeVar("T")

CHANGES: frozenset[type] = frozenset(get_args(Change))
"""Every kind of change."""


class Layer(Protocol):
    """One layer.

    `handles`: the kinds of requests that it is to meet; a `Commit` is of the kind of its change
    (`Batch`, `DropThread`, ...). All others pass it by, and cost nothing.
    """

    @property
    def handles(self) -> frozenset[type]:
        """See above."""

    def answer(self, request: Any) -> Requests[Any]:
        """Return the reply to a request; yield what is asked of whatever stands beneath."""


def kind(request: Request) -> type:
    """The kind of a request; see `Layer`."""
    return type(request.change) if type(request) is Commit else type(request)


def through(layer: Layer, operation: Requests[T]) -> Requests[T]:
    """The operation, with requests answered by a layer."""
    handles = layer.handles
    reply: Any = None
    error: Exception | None = None
    while True:
        try:
            request = operation.send(reply) if error is None else operation.throw(error)
        except StopIteration as stop:
            result: T = stop.value
            return result
        reply = error = None
        try:
            if kind(request) in handles:
                reply = yield from layer.answer(request)
            else:
                reply = yield request
        except Exception as exc:  # noqa: BLE001 - the operation decides what it means
            error = exc


class OneByOne:
    """The layer in front of a store that commits one change at a time."""

    handles = frozenset({CommitMany})

    def answer(self, request: CommitMany) -> Requests[list[ThreadkeepError | None]]:
        """Commit each batch."""
        refusals: list[ThreadkeepError | None] = []
        for batch in request.changes:
            refusals.append((yield from self._refusal(batch)))  # noqa: PERF401 - it yields
        return refusals

    @staticmethod
    def _refusal(batch: Batch) -> Requests[ThreadkeepError | None]:
        try:
            yield Commit(batch)
        except ThreadkeepError as error:
            return error
        return None
