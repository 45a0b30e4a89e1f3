"""Bringing one store's threads into another, as far as they are not there.

Only the steps live here. Invariants: wherever it ends, the other store shows whole threads, in
this or an earlier state, and doing it again goes on; what the other store alone has is kept,
unless that was asked for. A thread that is archived or deleted here while it is compared is looked
at anew: nothing there gives way to what is not here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from threadkeep.engine.model import DropThread
from threadkeep.engine.operation import commit
from threadkeep.engine.optimistic import retry
from threadkeep.engine.rows import created_at
from threadkeep.engine.thread_entry import is_archived
from threadkeep.errors import ConflictError, ThreadNotFoundError
from threadkeep.progress import Progress
from threadkeep.store.workflows import (
    Plan,
    Store,
    aside,
    on,
)
from threadkeep.transfer import (
    bundling,
    completion,
    digest,
)
from threadkeep.transfer.bundling import WholeThread
from threadkeep.transfer.completion import Standing
from threadkeep.transfer.portable import compare


@dataclass(slots=True)
class Mirrored:
    """What was done, or (of a dry run) is to be done: the ids of threads.

    Attributes:
        put: were not there.
        completed: had an earlier state there.
        replaced: stood there in another state, and `replace` was given.
        deleted: were deleted here, and `delete` was given.
        ahead: have more there, and nothing less; left alone.
        conflicts: why others were left alone, by thread.
        archived: are archived here, and were not named; left where they are.
        same: how many had nothing to be done.
    """

    put: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    ahead: list[str] = field(default_factory=list)
    conflicts: dict[str, str] = field(default_factory=dict)
    archived: list[str] = field(default_factory=list)
    same: int = 0


@dataclass(frozen=True, slots=True)
class Wishes:
    """What was asked for beside bringing what is not there."""

    replace: bool = False
    delete: bool = False
    dry_run: bool = False


def sync(
    here: Store,
    there: Store,
    names: Sequence[str] | None,
    wishes: Wishes,
    progress: Progress,
) -> Plan[Mirrored]:
    """Bring threads from one store into another.

    Args:
        here: where they are.
        there: where to.
        names: their ids; None for all.
        wishes: see `Wishes`.
        progress: see `Progress`.

    Raises:
        ThreadNotFoundError: there is no such thread here; nothing was changed.
        CorruptionError: a thread is damaged, or did not arrive as it is here.
        ConflictError: a thread is written there all the time.
    """
    known = yield from on(here, bundling.all_threads())
    for name in set(names or ()).difference(known):
        raise ThreadNotFoundError(hint="Correct the ids of threads.", thread=name)
    result = Mirrored()
    wanted = known if names is None else names
    for done, name in enumerate(wanted, 1):
        yield from _thread(here, there, name, wishes, result, is_named=names is not None)
        progress("threads compared", done, len(wanted))
    return result


class _GoneError(Exception):
    """The thread holds nothing here any more."""


def _thread(
    here: Store, there: Store, name: str, wishes: Wishes, result: Mirrored, *, is_named: bool
) -> Plan[None]:
    attempt = partial(_looked_at, here, there, name, wishes, result, is_named=is_named)
    return retry(name, attempt, _GoneError)


def _looked_at(
    here: Store, there: Store, name: str, wishes: Wishes, result: Mirrored, *, is_named: bool
) -> Plan[None]:
    own = yield from on(here, completion.rows_of(name, stub=not is_named))
    if is_archived(own.entry):
        result.archived.append(name)
        return
    other = yield from on(there, completion.rows_of(name))
    found = completion.standing(own, other)
    if found is Standing.APART and (yield from _are_equal(here, there, own)):
        found = Standing.SAME
    if found is Standing.SAME:
        result.same += 1
    elif found is Standing.AHEAD:
        result.ahead.append(name)
    elif found is Standing.GONE:
        yield from _gone(there, own, other, wishes, result)
    elif found in (Standing.ABSENT, Standing.BEHIND):
        if not wishes.dry_run:
            yield from _brought(here, there, own, replace=False)
        (result.put if found is Standing.ABSENT else result.completed).append(name)
    elif wishes.replace:
        if not wishes.dry_run:
            yield from _brought(here, there, own, replace=True)
        result.replaced.append(name)
    else:
        result.conflicts[name] = f"It {found.value}."


def _content(here: Store, own: WholeThread) -> Plan[WholeThread]:
    """All of a thread, as it is now.

    Raises:
        _GoneError: it was archived or deleted since its rows were read.
    """
    whole = yield from on(here, bundling.read_thread(own.thread))
    if is_archived(whole.entry) or (own.checkpoints and not whole.checkpoints):
        raise _GoneError
    return whole


def _are_equal(here: Store, there: Store, own: WholeThread) -> Plan[bool]:
    """Whether two threads whose rows differ are the same nevertheless."""
    whole = yield from _content(here, own)
    other = yield from on(there, bundling.read_thread(own.thread, stub=False))
    found = yield from aside(partial(digest.of_checkpoints, whole))
    return found == (yield from aside(partial(digest.of_checkpoints, other)))


def _gone(
    there: Store, own: WholeThread, other: WholeThread, wishes: Wishes, result: Mirrored
) -> Plan[None]:
    """A thread that was deleted here, and is there."""
    times = [created_at(row.id) or own.deleted_at for row in other.checkpoints]
    if max(times, default=0) > own.deleted_at and not wishes.replace:
        result.conflicts[own.thread] = "It was deleted here, and has gone on there since."
    elif not wishes.delete:
        result.ahead.append(own.thread)
    else:
        result.deleted.append(own.thread)
        if not wishes.dry_run:
            yield from on(there, commit(DropThread(own.thread, own.deleted_at)))


def _brought(here: Store, there: Store, own: WholeThread, *, replace: bool) -> Plan[None]:
    """Bring a thread, as it is now: what is not there, or all of it; compare both sides."""
    whole = yield from _content(here, own)
    wanted = yield from aside(partial(digest.of_checkpoints, whole))
    now = time.time_ns() // 1000
    if replace:
        yield from on(there, bundling.put_thread(whole, now, replace=True))
    else:
        yield from _completed(there, whole, now)
    arrived = yield from on(there, bundling.read_thread(own.thread, stub=False))
    compare(own.thread, wanted, (yield from aside(partial(digest.of_checkpoints, arrived))))


def _completed(there: Store, whole: WholeThread, now: int) -> Plan[None]:
    """Add what is not there, or put all of it where that does not fit but nothing is lost."""
    try:
        yield from on(there, completion.complete(whole, now))
    except ConflictError:
        other = yield from on(there, completion.rows_of(whole.thread))
        if completion.standing(whole, other) in (Standing.AHEAD, Standing.APART):
            raise
        yield from on(there, bundling.put_thread(whole, now, replace=True))
