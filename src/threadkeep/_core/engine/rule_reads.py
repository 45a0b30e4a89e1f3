"""Reads that only the rules of rows need, and the generators that yield them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from threadkeep._core.engine.heads import Head, RowsKey

T = TypeVar("T")
Planning: TypeAlias = Generator[Sequence[Any], list[Any], T]
"""A rule: it yields reads, and is sent their replies."""


class ReadHead(NamedTuple):
    """The head of a thread. Reply: one `Head`."""

    thread: str


class ReadDamaged(NamedTuple):
    """The head of a thread whose row is damaged. Reply: a `Head` with safe values.

    None if the store can compare rows, and has no such row any more: see `UnreadableRow.key`.
    """

    thread: str
    key: bytes


class ReadFamily(NamedTuple):
    """The heads of the threads that share a heap. Reply: `Head`s."""

    heap: RowsKey


class ReadNewer(NamedTuple):
    """The checkpoints of a namespace with a greater id (None: all) that are not NESTED.

    Reply: at most `limit` ids, the smallest first.
    """

    head: Head
    ns: str
    id: str | None
    limit: int


class HasOthers(NamedTuple):
    """Look for a write with `seq > seen` of another run. Reply: one `bool`."""

    head: Head
    ns: str
    checkpoint_id: str
    run: int
    seen: int


class CountRows(NamedTuple):
    """The rows of some threads. Reply: a tuple, the numbers of checkpoints and of writes."""

    heads: tuple[Head, ...]


class HoldsCheckpoints(NamedTuple):
    """Check whether a thread has any checkpoint. Reply: one `bool`.

    With `any_row`: any checkpoint, any write, or any segment in its heap.
    """

    head: Head
    any_row: bool = False


class ReadEnds(NamedTuple):
    """The ends of some logs of a thread's heap. Reply: `LogEnds`, without empty ones."""

    head: Head
    logs: tuple[int, ...]


OfRules: TypeAlias = (
    ReadHead
    | ReadDamaged
    | ReadFamily
    | ReadNewer
    | HasOthers
    | CountRows
    | HoldsCheckpoints
    | ReadEnds
)


def ask(read: Any) -> Planning[Any]:
    (reply,) = yield (read,)
    return reply


def family_of(head: Head) -> Planning[Sequence[Head]]:
    """Return the thread's head, and the heads of the threads that share its heap."""
    found = (yield from ask(ReadFamily(head.heap))) if head.heap else ()
    # (its own row may hold another number, a damaged one)
    return (head, *[one for one in found if one.thread != head.thread])
