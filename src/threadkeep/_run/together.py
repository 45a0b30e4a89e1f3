"""Commits of several changes, and the error of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from threadkeep._core.engine.model import Change
from threadkeep._stores.records import confirm, tie
from threadkeep.errors import (
    BackendError,
    ClosedError,
    StatementTimeoutError,
    ThreadkeepError,
    UnreachableError,
)

OF_THE_STORE = (UnreachableError, ClosedError)
"""Failures of the store, not of one change."""


async def commit_together(
    changes: Sequence[Change],
    commit_many: Callable[[Sequence[Any]], Awaitable[object]],
    errors: list[ThreadkeepError | None] | None = None,
    *,
    patient: bool = True,
) -> list[ThreadkeepError | None]:
    """Commit changes as a group; if the group fails, commit each alone. Return their errors.

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
    elif isinstance(failure, OF_THE_STORE if patient else (*OF_THE_STORE, StatementTimeoutError)):
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
