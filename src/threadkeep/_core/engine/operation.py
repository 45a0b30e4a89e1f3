"""Operations, the requests that they yield, and helpers to make them.

An operation is a generator: it yields requests and is sent their replies. Errors are thrown in at
the yield. The engine's operations yield `Fetch` and `Commit` only, and workflows `External` only.
Layers and maintenance use all requests. `yield` is typed `Any`, so operations use the helpers here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast, final

from threadkeep._core.engine.model import (
    Change,
    Read,
    ReadCheckpoint,
    ReadSegments,
    Segment,
    Span,
    ThreadState,
)
from threadkeep._core.engine.records import quick
from threadkeep._core.engine.tips import Look
from threadkeep.errors import ThreadkeepError

T = TypeVar("T")


@final
class Fetch(NamedTuple):
    """Answer these reads in one round trip. Reply: a list, in order."""

    reads: Sequence[Read]


@final
class Commit(NamedTuple):
    """Carry out this change. Reply: None."""

    change: Change


class CommitMany(NamedTuple):
    """Carry out these changes together. Reply: for each None, or the error that refused it."""

    changes: Sequence[Change]


class Call(NamedTuple):
    """Call a method of the backend, or of its async variant. Reply: its result."""

    method: str
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})


class External(NamedTuple):
    """Do something outside the backend. Reply: its result."""

    call: Callable[[], Any]  # may block
    acall: Callable[[], Awaitable[Any]] | None = None  # None: `call` in a worker thread


Request: TypeAlias = Fetch | Commit | CommitMany | Call | External
Operation: TypeAlias = Generator[Request, Any, T]


def fetch(read: Read) -> Operation[Any]:
    """Return the reply to one read."""
    replies = yield Fetch((read,))
    return replies[0]


def fetch_checkpoint(thread: str, ns: str, checkpoint_id: str | None) -> Operation[ThreadState]:
    """Return the thread's generation and a checkpoint of it, or its head."""
    reply = yield from fetch(ReadCheckpoint(thread, ns, checkpoint_id))
    return cast("ThreadState", reply)


def fetch_segments(
    thread: str, spans: tuple[Span, ...], look: Look | None = None
) -> Operation[list[Segment]]:
    """Return the segments that hold the spans. No spans take no round trip.

    None if the thread's row has changed since the look so that others may be at the positions.
    """
    if not spans:
        return []
    if look is None:
        reply = yield from fetch(ReadSegments(thread, spans))
    else:
        generation, base = look
        reply = yield from fetch(ReadSegments(thread, spans, generation, base=base))
    return cast("list[Segment]", reply)


def commit(change: Change) -> Operation[None]:
    yield Commit(change)


def commit_many(changes: Sequence[Change]) -> Operation[Sequence[ThreadkeepError | None]]:
    """Carry out changes together. The reply is as for `CommitMany`."""
    if not changes:
        return ()
    refusals: Sequence[ThreadkeepError | None] = yield CommitMany(changes)
    return refusals


def call(method: str, *args: Any, **options: Any) -> Operation[Any]:
    return (yield Call(method, args, options))


def external(function: Callable[..., T], *args: Any) -> Operation[T]:
    result: T = yield External(partial(function, *args))
    return result


@quick
class CheckpointRef(NamedTuple):
    """The checkpoint that a call is about: the head if `id` is None."""

    thread: str
    ns: str = ""
    id: str | None = None

    def named(self) -> dict[str, str | None]:
        """Return it as an error's keyword arguments."""
        return {"thread": self.thread, "namespace": self.ns or None, "checkpoint": self.id}


Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the stage ("threads read"), how much of it is done, and the total (0: unknown)."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Show nothing."""
