"""Several changes in one commit, and the error of each. Operations that share requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from threadkeep._core.engine.model import Batch, Change
from threadkeep._core.engine.operation import Commit, Fetch, Operation, commit_many
from threadkeep._run.driver import CHANGES, through
from threadkeep._stores.records import confirm, tie
from threadkeep.errors import (
    BackendError,
    ClosedError,
    ConflictError,
    SegmentTakenError,
    StaleThreadError,
    StatementTimeoutError,
    ThreadkeepError,
    UnreachableError,
)

T = TypeVar("T")

_MAX_BATCH = 100  # batches in one transaction, and threads at the same time

_OF_THE_STORE = (UnreachableError, ClosedError)
"""Failures of the store, not of one change."""

_OVERTAKEN = (ConflictError, SegmentTakenError, StaleThreadError)
"""Refusals of a batch because another writer was faster."""


async def commit_together(
    changes: Sequence[Change],
    commit_many: Callable[[Sequence[Any]], Awaitable[object]],
    errors: list[ThreadkeepError | None] | None = None,
    *,
    patient: bool = True,
) -> list[ThreadkeepError | None]:
    """Commit changes as a group. If the group fails, commit each alone. Return their errors.

    Each error is added to `errors` once it is known, for callers that are interrupted. If not
    `patient`, a group that exceeds the store's time limit fails as a whole.
    """
    errors = [] if errors is None else errors
    tie(changes)
    try:
        results = checked(await commit_many(changes), changes)
    except Exception as error:  # noqa: BLE001 - every caller must get a result
        failure = named(error)
    else:
        confirm(changes, results)
        errors += results
        return errors
    if len(changes) == 1:
        errors.append(failure)
    elif isinstance(failure, _OF_THE_STORE if patient else (*_OF_THE_STORE, StatementTimeoutError)):
        errors += [failure.fresh() for _ in changes]
    elif isinstance(failure, StatementTimeoutError):
        await _commit_late(changes, commit_many, errors)
    else:
        for change in changes:
            await commit_together([change], commit_many, errors)
    return errors


async def _commit_late(
    changes: Sequence[Change],
    commit_many: Callable[[Sequence[Any]], Awaitable[object]],
    errors: list[ThreadkeepError | None],
) -> None:
    """Commit changes that exceeded the store's time limit as a group.

    Each is committed alone until one exceeds the limit again. Later changes of its thread fail like
    it, and the others are a group once more. So a lock costs a group three time limits at most, not
    one for each change.
    """
    rest = deque(changes)
    while rest:
        change = rest.popleft()
        (late,) = await commit_together([change], commit_many)
        errors.append(late)
        if isinstance(late, StatementTimeoutError):
            break
    else:
        return
    # (changes of caches and stores have no thread)
    is_blocked = [getattr(one, "thread", id(one)) == getattr(change, "thread", 0) for one in rest]
    others = [one for one, blocked in zip(rest, is_blocked, strict=True) if not blocked]
    found = iter(await commit_together(others, commit_many, patient=False) if others else ())
    errors += [late.fresh() if blocked else next(found) for blocked in is_blocked]


def checked(results: object, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
    """Return the results of `commit_many`, if there is one for each change."""
    if isinstance(results, list) and len(results) == len(changes):
        return results
    raise BackendError(
        f"commit_many() of the store returned {results!r:.100} for {len(changes)} changes.",
        hint="Return a list with None or an error for each change.",
    )


def named(error: BaseException) -> ThreadkeepError:
    """Return the error as a `ThreadkeepError`."""
    if isinstance(error, ThreadkeepError):
        return error
    failure = BackendError(f"The store failed with an unexpected error: {error!r}")
    failure.__cause__ = error
    return failure


# -- operations ------------------------------------------------------------------------


class _RefusedError(Exception):
    """The store refused a collected batch: not the running operation's."""

    def __init__(self, error: ThreadkeepError) -> None:
        super().__init__(error)
        self.error = error


class Collecting:
    """Layer that collects batches and commits them in groups. Raises `_RefusedError`."""

    handles = CHANGES

    def __init__(self) -> None:
        self._batches: list[Batch] = []

    def answer(self, request: Commit) -> Operation[Any]:
        """Collect a batch. Commit the collected batches before any other change."""
        if isinstance(request.change, Batch):
            self._batches.append(request.change)
            if len(self._batches) >= _MAX_BATCH:
                yield from self.flush()
            return None
        yield from self.flush()
        return (yield request)

    def fetch(self, reads: Sequence[Any]) -> Operation[list[Any]]:
        """Read after the collected batches, if the reads may concern their threads."""
        changed = {None, *[batch.thread for batch in self._batches]}
        if any(getattr(read, "thread", None) in changed for read in reads):
            yield from self.flush()
        replies: list[Any] = yield Fetch(reads)
        return replies

    def flush(self) -> Operation[None]:
        """Commit the collected batches."""
        batches, self._batches = self._batches, []
        for error in (yield from commit_many(batches)):
            if error is not None:
                raise _RefusedError(error)


def together(lanes: Sequence[Iterable[Operation[T]]]) -> Operation[list[list[T]] | None]:
    """Run operations in as few requests as possible, durable on return.

    Each lane has operations of one thread, which run in order. Several lanes run at the same time.

    Returns:
        The results of each lane, in order, or None if other writers were faster. In that case, run
        the operations one by one: a batch that was committed is harmless if it is repeated.

    Raises:
        ThreadkeepError: a batch was refused for another reason.
    """
    collecting, results = Collecting(), [list[T]() for _ in lanes]
    running = [
        through(collecting, _in_order(lane, found))
        for lane, found in zip(lanes, results, strict=True)
    ]
    try:
        for first in range(0, len(running), _MAX_BATCH):
            yield from _side_by_side(running[first : first + _MAX_BATCH], collecting)
        yield from collecting.flush()
    except _OVERTAKEN:
        return None
    except _RefusedError as refused:
        if isinstance(refused.error, _OVERTAKEN):
            return None
        raise refused.error from None
    finally:
        for lane in running:
            lane.close()
    return results


def _in_order(operations: Iterable[Operation[T]], results: list[T]) -> Operation[None]:
    for operation in operations:
        results.append((yield from operation))  # noqa: PERF401 - it yields


def _side_by_side(lanes: Iterable[Operation[None]], collecting: Collecting) -> Operation[None]:
    """Run lanes, which wait for each other's reads: all of them are one request."""
    waiting: list[tuple[Operation[None], Any]] = [(lane, None) for lane in lanes]
    while waiting:
        asked: list[tuple[Operation[None], Fetch]] = []
        for lane, reply in waiting:
            with suppress(StopIteration):
                request = lane.send(reply)
                while not isinstance(request, Fetch):
                    request = lane.send((yield request))
                asked.append((lane, request))
        reads = [read for _, request in asked for read in request.reads]
        replies = iter((yield from collecting.fetch(reads)) if reads else ())
        waiting = [(lane, [next(replies) for _ in request.reads]) for lane, request in asked]
