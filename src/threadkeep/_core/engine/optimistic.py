"""Optimistic changes: read a thread, build one change, commit; retry where others were faster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from threadkeep._core.engine import thread_summary
from threadkeep._core.engine.context import ATTEMPTS, Engine
from threadkeep._core.engine.model import (
    Batch,
    Change,
    DropThread,
    ReadThread,
    RowsFence,
    SegmentInfo,
    ThreadRows,
)
from threadkeep._core.engine.operation import Fetch, Operation, commit
from threadkeep._core.engine.thread_entry import EntryFence, ReadEntry, ThreadEntry, sound
from threadkeep.errors import ConflictError, SegmentTakenError, StaleThreadError

T = TypeVar("T")
Y = TypeVar("Y")

OVERTAKEN = (ConflictError, StaleThreadError, SegmentTakenError)
"""Errors of a commit that say that another writer was faster."""


class ThreadSnapshot(NamedTuple):
    """One state of a thread: its entry, its rows, and the rows of threads that share segments."""

    thread: str
    entry: ThreadEntry | None
    rows: ThreadRows
    others: tuple[ThreadRows, ...] = ()

    @property
    def rows_fence(self) -> RowsFence:
        """Holds as long as nobody adds a row to the thread or to those that share its segments."""
        return rows_fence((self.rows, *self.others))

    @property
    def entry_fence(self) -> EntryFence:
        """Holds as long as the entry is the same."""
        return EntryFence(0 if self.entry is None else self.entry.revision)

    @property
    def fences(self) -> tuple[RowsFence, EntryFence]:
        """Both."""
        return self.rows_fence, self.entry_fence

    @property
    def counts_segments(self) -> bool:
        """True if segments count for the thread's size: shared ones do for the first by name."""
        return not any(name < self.thread for name in self.rows.family)

    def segment_bytes(self, without: Iterable[SegmentInfo] = ()) -> int:
        """Bytes of the segments that count for the thread, but for some of them."""
        if not self.counts_segments:
            return 0
        return thread_summary.bytes_of(self.rows.segments) - thread_summary.bytes_of(without)

    @property
    def size(self) -> int:
        """Bytes of the thread, as the registry counts them."""
        rows = self.rows
        return thread_summary.of_rows(rows.checkpoints, rows.orphans, self.segment_bytes()).size


Build: TypeAlias = Callable[[ThreadSnapshot], Operation[tuple[Change | None, T]]]
"""Makes of a snapshot a change, or None where nothing is to be done, and a result."""


def rows_fence(threads: Iterable[ThreadRows]) -> RowsFence:
    """Holds as long as nobody adds a row to one of these threads."""
    checkpoints = writes = 0
    for rows in threads:
        tables = [row.table for row in rows.unreadable]
        checkpoints += len(rows.checkpoints) + tables.count("checkpoints")
        writes += sum([len(s.writes) for s in rows.checkpoints]) + len(rows.orphans)
        writes += tables.count("writes")
    return RowsFence(checkpoints, writes)


def read_snapshot(
    thread: str, *, stub: bool = True, skip: bool = False, alone: bool = False
) -> Operation[ThreadSnapshot]:
    """Read one state of a thread; `alone`: without the threads that share its segments.

    `stub` leaves an archived thread in the cold store: it has no rows then. `skip` lists unreadable
    rows apart and returns a damaged entry, instead of failing.
    """
    family: tuple[str, ...] = ()
    while True:
        reads = [ReadThread(name, skip=skip, stub=stub) for name in (thread, *family)]
        entry, rows, *others = yield Fetch([ReadEntry(thread), *reads])
        if not skip:
            sound(entry)
        if alone or rows.family == family:
            found = cast("list[ThreadRows]", others)
            return ThreadSnapshot(thread, cast("ThreadEntry | None", entry), rows, tuple(found))
        family = rows.family


def optimistic(
    engine: Engine,
    thread: str,
    build: Build[T],
    read: Callable[[str], Operation[ThreadSnapshot]] = read_snapshot,
) -> Operation[T]:
    """Change a thread: read a snapshot, build a change, commit it; retry where overtaken.

    Raises ConflictError where others were faster at every attempt. `build` may raise one of
    `OVERTAKEN` to be called again.
    """

    def attempt() -> Operation[T]:
        change, result = yield from build((yield from read(thread)))
        if change is not None:
            yield from commit(change)
            if isinstance(change, DropThread) or (
                isinstance(change, Batch) and (change.bump_generation or change.drop_segments)
            ):
                engine.working_set.forget(thread)  # (it may remember rows that were removed)
        return result

    return (yield from retry(thread, attempt))


def retry(
    thread: str,
    attempt: Callable[[], Generator[Y, Any, T]],
    overtaken: tuple[type[Exception], ...] | type[Exception] = OVERTAKEN,
    attempts: int = ATTEMPTS,
) -> Generator[Y, Any, T]:
    """Run an attempt, and another one where another writer was faster; at last a ConflictError."""
    for _ in range(attempts):
        try:
            return (yield from attempt())
        except overtaken:
            continue
    raise busy(thread)


def busy(thread: str) -> ConflictError:
    """Return the error where others were faster at every attempt."""
    return ConflictError(
        "Other writers keep changing this thread.",
        hint="Try again later, or stop the programs that use it.",
        thread=thread,
    )
