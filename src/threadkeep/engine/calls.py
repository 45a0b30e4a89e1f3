"""What one operation asks of whoever drives it, and the calls it is made from.

An operation is a generator: it yields a `Fetch` and is sent the replies, or a `Commit`
and is sent None; errors are thrown in at the yield. `yield` is typed `Any`, so
operations use only the helpers here.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from threadkeep.engine.model import (
    Change,
    Read,
    ReadCheckpoint,
    ReadSegments,
    Segment,
    Span,
    ThreadState,
)

T = TypeVar("T")


class Fetch(NamedTuple):
    """Answer these reads in one round trip."""

    reads: Sequence[Read]


class Commit(NamedTuple):
    """Carry out this change."""

    change: Change


Operation: TypeAlias = Generator[Fetch | Commit, Any, T]


def fetch(read: Read) -> Operation[Any]:
    """One read's reply."""
    replies = yield Fetch((read,))
    return replies[0]


def fetch_checkpoint(thread: str, ns: str, checkpoint_id: str | None) -> Operation[ThreadState]:
    """The thread's generation and one of its checkpoints, or its head."""
    reply = yield from fetch(ReadCheckpoint(thread, ns, checkpoint_id))
    return cast("ThreadState", reply)


def fetch_segments(
    thread: str, spans: tuple[Span, ...], generation: int | None = None
) -> Operation[list[Segment]]:
    """The segments that the spans lie in; no round trip for no spans.

    `generation` is the thread's own of when the spans were read, where that is known.
    """
    if not spans:
        return []
    reply = yield from fetch(ReadSegments(thread, spans, generation))
    return cast("list[Segment]", reply)


def commit(change: Change) -> Operation[None]:
    """Carry out a change."""
    yield Commit(change)


class Place(NamedTuple):
    """Which checkpoint a call is about: of the head where `id` is None."""

    thread: str
    ns: str = ""
    id: str | None = None

    def named(self) -> dict[str, str | None]:
        """The place as an error's keyword arguments."""
        return {"thread": self.thread, "namespace": self.ns or None, "checkpoint": self.id}
