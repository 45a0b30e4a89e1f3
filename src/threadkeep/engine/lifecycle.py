"""The states of a thread, and what leads from one to another.

Only the table lives here, and what reads it. Invariant: whatever a call does, a thread is in
one of these states, and gets into another only as the table says.

A thread is `CREATED` by name, before anything is saved; `ACTIVE` once something is;
`SUSPENDED` while an interrupt waits for an answer; `FORKED` from another one, before anything is
saved in it (an interrupt may wait there, too); `ARCHIVED` while what it holds is in the cold store;
`DELETED` while its tombstone stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, TypeGuard

from threadkeep.engine.entries import Entry, Move


class State(StrEnum):
    """How a thread stands."""

    CREATED = "created"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    FORKED = "forked"
    ARCHIVED = "archived"
    DELETED = "deleted"


class Cause(StrEnum):
    """What can move a thread from one state to another."""

    CREATE = "create"  # `threads.create`
    FORK = "fork"  # `threads.fork`, for the new thread
    SAVE = "save"  # a checkpoint of the root namespace
    SAVE_INSIDE = "save inside"  # a checkpoint of a subgraph
    INTERRUPT = "interrupt"  # a task waits for an answer
    RESUME = "resume"  # the wait is over where it was, as what waited is gone
    ARCHIVE = "archive"  # `threads.archive`; `threads.restore` leads back to where it was
    DELETE = "delete"  # `delete_thread`


class Step(NamedTuple):
    """Where a cause leads, and from which states ("": the thread is not known)."""

    sources: tuple[str, ...]
    target: State


_NEW = ("", State.DELETED)
_LIVE = (State.ACTIVE, State.SUSPENDED, State.FORKED)  # what may hold checkpoints

TABLE: Mapping[Cause, Step] = MappingProxyType(
    {
        Cause.CREATE: Step(_NEW, State.CREATED),
        Cause.FORK: Step((*_NEW, State.CREATED), State.FORKED),
        Cause.SAVE: Step((*_NEW, State.CREATED, State.FORKED, State.SUSPENDED), State.ACTIVE),
        Cause.SAVE_INSIDE: Step((*_NEW, State.CREATED), State.ACTIVE),
        Cause.INTERRUPT: Step((*_NEW, State.CREATED, *_LIVE), State.SUSPENDED),
        Cause.RESUME: Step((State.SUSPENDED, State.FORKED), State.ACTIVE),
        Cause.ARCHIVE: Step(_LIVE, State.ARCHIVED),
        Cause.DELETE: Step(("", *State), State.DELETED),
    }
)


def move(cause: Cause, checkpoint: str) -> Move:
    """What a save, an interrupt or the end of a wait at this checkpoint means for its thread.

    They may come in any order. A checkpoint that is saved ends only what waits at an earlier
    one: the interrupt at itself may have been stored before it.
    """
    sources, target, waits, same = _MOVES[cause]
    return Move(sources, target, checkpoint, waits, same)


_MOVES = {
    cause: (
        *(tuple(map(str, step.sources)), str(step.target)),
        *(cause is Cause.INTERRUPT, cause is not Cause.SAVE),
    )
    for cause, step in TABLE.items()
}


def allows(cause: Cause, state: str) -> bool:
    """Whether the cause may move a thread that is in this state ("": not known)."""
    return state in TABLE[cause].sources


def is_there(entry: Entry | None) -> TypeGuard[Entry]:
    """True if the registry knows the thread, and not as deleted."""
    return entry is not None and entry.state != State.DELETED


def is_archived(entry: Entry | None) -> TypeGuard[Entry]:
    """Whether the thread's rows are in an archive, and not in the store."""
    return entry is not None and entry.state == State.ARCHIVED
