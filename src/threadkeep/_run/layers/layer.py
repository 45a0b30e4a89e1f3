"""Layers in front of a store, and the loop that drives operations through them.

A layer meets the requests of the kinds that it handles. It yields requests to what is beneath,
and an error there is thrown in at the yield.

`together` is the layer of bulk commits: batches of many operations are collected, and committed
in order before anything is read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from types import coroutine
from typing import Any, Protocol, TypeVar, cast, get_args

from threadkeep._core.engine.model import Batch, Change
from threadkeep._core.engine.operation import (
    Commit,
    Fetch,
    Operation,
    Request,
    Requests,
    commit_many,
)
from threadkeep.errors import ConflictError, SegmentTakenError, StaleThreadError

T = TypeVar("T")

CHANGES: frozenset[type] = frozenset(get_args(Change))
"""Every kind of change."""


class StoreLayer(Protocol):
    """One layer.

    `handles` names the kinds of requests that it answers; a `Commit` is of the kind of its change
    (`Batch`, `DropThread`, ...). All others pass it by, and cost nothing.
    """

    @property
    def handles(self) -> frozenset[type]:
        """The kinds of requests that this layer answers."""

    def answer(self, request: Any) -> Requests[Any]:
        """Return the reply to a request; yield what is asked of what is beneath."""


@coroutine
def drive(
    requests: Generator[Any, Any, T],
    answer: Callable[[Any], Any],
    handles: frozenset[type] | None = None,
) -> Generator[Any, Any, T]:
    """Answer each request that a generator yields; return its result.

    The generator is closed at the end, also where this is cancelled. (The result can be awaited,
    and `yield from` takes it as well: the one loop serves layers and stores.)

    Args:
        requests: an operation, a layer's answer or a workflow.
        answer: a generator function that yields requests in turn, or a coroutine function.
        handles: the kinds of requests to answer; others are yielded. None for all.
    """
    reply: Any = None
    error: Exception | None = None
    try:
        while True:
            try:
                request = requests.send(reply) if error is None else requests.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            reply = error = None
            try:
                if handles is None or _kind(request) in handles:
                    reply = yield from answer(request)
                else:
                    reply = yield request
            except Exception as exc:  # noqa: BLE001 - the generator decides what it means
                error = exc
    except BaseException:  # (also a cancellation)
        requests.close()
        raise


def _kind(request: Request) -> type:
    return type(request.change) if type(request) is Commit else type(request)


def through(layer: StoreLayer, operation: Requests[T]) -> Requests[T]:
    """Return the operation with requests answered by a layer."""
    return cast("Requests[T]", drive(operation, layer.answer, layer.handles))


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
        """Commit what is collected."""
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
