"""Heads of threads, and moves: the conditional changes that every database makes.

A head is a thread's own row. It names the tips of the thread's last commits (see `tips`). A move
names the head that it builds on. If that is still the thread's head, another one takes its place,
and rows are added and removed with it. Otherwise nothing happens. So the rules (`rules`) are
Python, on heads and rows that the move then proves, and a database knows no rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from threadkeep._core.engine.model import (
    CheckpointRow,
    Segment,
    ThreadState,
    UnreadableRow,
    Words,
    WriteRow,
)
from threadkeep._core.engine.records import quick
from threadkeep._core.engine.thread_entry import FIELDS, REPAIR, ThreadEntry, checked, wrong_in
from threadkeep.errors import CorruptionError

LogEnds: TypeAlias = Mapping[int, int]
"""The position after the last segment of each log that a thread appends to."""

Gaps: TypeAlias = Mapping[int, tuple[tuple[int, int], ...]]
"""Ranges of positions before the end of a log that have no segment: start and stop."""

RowsKey: TypeAlias = Any  # (int or str)
"""A key of rows: the number of a thread, as the store assigned it, or the key of a heap.

A heap's key is the number of a thread, or another one that the rules choose: a negative number, or
a longer text. 0 or "": nothing.
"""

NO_LOGS: LogEnds = {}
NO_GAPS: Gaps = {}
MOST_LOGS = 64
"""Logs that a head lists: those used last."""
MOST_GAPS = 4
"""Gaps of a log that a process remembers: the last ones."""


@quick
class Head(NamedTuple):
    """A thread's own row, without its labels. Without tips, the store does not have it.

    `gaps` are not stored: they are a process's knowledge of the logs that it wrote.
    """

    thread: str
    tips: tuple[int, ...] = ()  # of the last commits, newest first
    number: RowsKey = 0  # of its rows, as the store assigned it (0: none yet)
    heap: RowsKey = 0  # whose segments these are (0: its own alone)
    generation: int = 0
    life: int = 0
    deleted_at: int = 0
    seq: int = 0  # of the last write
    newest: str | None = None  # no checkpoint of the root namespace has a greater id
    logs: LogEnds = NO_LOGS  # that belong to this thread of a heap
    lists_all: bool = True  # the heap has no other logs
    gaps: Gaps = NO_GAPS
    size: int = 0
    revision: int = 0
    state: str | None = None  # None: the thread is not in the registry
    created_at: int | None = None
    updated_at: int | None = None
    pinned: bool = False
    ttl: int | None = None
    origin: tuple[str, str] | None = None
    status: str | None = None  # as in `ThreadEntry`
    status_at: str | None = None
    failed_node: str | None = None
    holder: str | None = None  # of its lease, likewise
    lease_until: int | None = None
    attempts: int = 0

    @property
    def entry_revision(self) -> int:
        """The revision of its entry, or 0 without one."""
        return 0 if self.state is None else self.revision


_SHARED = [name for name in ThreadEntry._fields if name in Head._fields]


def entry_of(head: Head, labels: Iterable[str]) -> ThreadEntry | None:
    """Return the entry of a thread, as `checked`, or None if it is not in the registry."""
    if head.state is None and head.created_at is None:
        return None
    fields: dict[str, Any] = {name: getattr(head, name) for name in _SHARED}
    return checked(ThreadEntry(**fields, labels=tuple(sorted(labels, key=str))))


def sound(head: Head) -> Head:
    """Return a head that was read from a store. Raises CorruptionError if it is damaged."""
    wrong = wrong_in(head)
    if wrong:
        raise _damaged(head, wrong)
    return head


def readable(head: Head, *, skip: bool = False) -> Head:
    """Return a head if it is sound, else another one whose fields of a `ThreadState` are.

    Damaged tips and logs are none. Raises CorruptionError if another field of the state is damaged.
    With `skip`, it is 0 instead.
    """
    wrong = wrong_in(head)
    if not wrong:
        return head
    safe: dict[str, Any] = {n: FIELDS[n].safe for n in wrong if n in ThreadState._fields}
    if not (skip or safe.keys() <= {"tips", "logs"}):
        raise _damaged(head, wrong)
    return head._replace(**safe)


def _damaged(head: Head, wrong: Iterable[str]) -> CorruptionError:
    sentence = f"The thread's own row is damaged: {', '.join(wrong)}."
    return CorruptionError(sentence, hint=REPAIR, thread=head.thread)


def problem_of(head: Head, labels: Iterable[str]) -> str:
    """Name the damaged fields of a thread's own row in a sentence, or "" if it is sound."""
    entry, wrong = entry_of(head, labels), wrong_in(head)
    if entry is not None and entry.damage:
        return entry.damage
    return f"its own row is damaged: {', '.join(wrong)}" if wrong else ""


class Copying(NamedTuple):
    """Rows of another thread: all of them, or those with these keys."""

    source: Head
    checkpoints: tuple[tuple[str, str], ...] | None = None  # ns, id
    writes: tuple[tuple[str, str, int], ...] | None = None  # ns, checkpoint id, seq
    segments: bool = True


@quick
class Move(NamedTuple):
    """One conditional change of a thread (see above).

    The stored heads must have the newest tips of `old` and of each old head `beside`. If segments
    are added, each of `drop_segments` must exist. Otherwise the move is refused. Then, in this
    order:

    - `clears`: the thread's checkpoints and writes are removed, `clears_labels`: its labels,
      `clears_heap`: the segments of the old head's heap;
    - the rows of `copies` are added, unchanged;
    - rows are dropped, hidden and replaced (missing ones are left out);
    - rows are added. Writes have their `seq`. Added segments overlap no others. Checkpoints replace
      by (ns, id), labels by `label_prefix`. Segments are added to the heap of the new head, and
      dropped from it;
    - the heads become the new ones.
    """

    old: Head
    new: Head
    segments: tuple[Segment, ...] = ()
    checkpoints: tuple[CheckpointRow, ...] = ()
    writes: tuple[WriteRow, ...] = ()
    labels: tuple[str, ...] = ()
    drop_segments: tuple[tuple[int, int, int], ...] = ()  # log, start, count
    drop_checkpoints: tuple[tuple[str, str], ...] = ()  # ns, id
    drop_writes: tuple[tuple[str, str, int], ...] = ()  # ns, checkpoint id, seq
    replace_writes: tuple[WriteRow, ...] = ()
    hide_checkpoints: tuple[tuple[str, str], ...] = ()  # ns, id
    drop_unreadable: tuple[UnreadableRow, ...] = ()  # if the store reports any
    clears: bool = False
    clears_heap: bool = False
    clears_labels: bool = False
    copies: Copying | None = None
    beside: tuple[tuple[Head, Head], ...] = ()  # of its heap, or of `copies.source`: old and new
    words: Words | None = None
