"""Threads as a whole: snapshots, optimistic changes, and entries of the registry.

An optimistic change reads a thread, builds one change and commits it, and tries again if another
writer was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

from threadkeep._core.engine import model, thread_summary
from threadkeep._core.engine.context import ATTEMPTS, Engine, not_found, unless_hidden
from threadkeep._core.engine.operation import (
    CheckpointRef,
    Fetch,
    Operation,
    commit,
    fetch,
    fetch_checkpoint,
)
from threadkeep._core.engine.thread_entry import (
    ARCHIVE_RECORD,
    WITH_CHECKPOINTS,
    CountThreads,
    EntryFence,
    Lifecycle,
    Order,
    ReadClock,
    ReadEntry,
    SearchThreads,
    ThreadEntry,
    ThreadQuery,
    find_record,
    is_archived,
    is_there,
    sound,
)
from threadkeep._core.engine.tips import Link, Proof
from threadkeep._core.engine.usage import STATUSES, ThreadStatuses
from threadkeep.errors import (
    ConflictError,
    SegmentTakenError,
    StaleThreadError,
    ThreadExistsError,
    ThreadNotFoundError,
)

if TYPE_CHECKING:
    from threadkeep._core.engine.operation import Progress


T = TypeVar("T")
Y = TypeVar("Y")

OVERTAKEN = (ConflictError, StaleThreadError, SegmentTakenError)
"""Errors of a commit after which another writer was faster."""


class ThreadSnapshot(NamedTuple):
    """One state of a thread: its entry, its rows, and the rows of threads that share segments."""

    thread: str
    entry: ThreadEntry | None
    rows: model.ThreadRows
    others: tuple[model.ThreadRows, ...] = ()

    @property
    def rows_fence(self) -> model.RowsFence:
        """Holds until a row is added to the thread, or to one that shares its segments."""
        return rows_fence((self.rows, *self.others))

    @property
    def entry_fence(self) -> EntryFence:
        """Holds until the entry changes."""
        return EntryFence(0 if self.entry is None else self.entry.revision)

    @property
    def fences(self) -> tuple[model.RowsFence, EntryFence]:
        return self.rows_fence, self.entry_fence

    @property
    def counts_segments(self) -> bool:
        """True if segments count for this thread: shared ones do for the first by name."""
        return not any(name < self.thread for name in self.rows.family)

    def segment_bytes(self, without: Iterable[model.SegmentInfo] = ()) -> int:
        """Return the bytes of the segments that count for the thread, except some."""
        if not self.counts_segments:
            return 0
        return thread_summary.bytes_of(self.rows.segments) - thread_summary.bytes_of(without)

    @property
    def size(self) -> int:
        """Bytes of the thread, as the registry counts them."""
        rows = self.rows
        return thread_summary.of_rows(rows.checkpoints, rows.orphans, self.segment_bytes()).size


Build: TypeAlias = Callable[[ThreadSnapshot], Operation[tuple[model.Change | None, T]]]
"""Builds a change (None if there is nothing to do) and a result from a snapshot."""


def rows_fence(threads: Iterable[model.ThreadRows]) -> model.RowsFence:
    """Return a fence that holds until a row is added to any of these threads."""
    checkpoints = writes = 0
    for rows in threads:
        tables = [row.table for row in rows.unreadable]
        checkpoints += len(rows.checkpoints) + tables.count("checkpoints")
        writes += sum([len(s.writes) for s in rows.checkpoints]) + len(rows.orphans)
        writes += tables.count("writes")
    return model.RowsFence(checkpoints, writes)


def read_snapshot(
    thread: str, *, stub: bool = True, skip: bool = False, alone: bool = False
) -> Operation[ThreadSnapshot]:
    """Read one state of a thread, with `alone`, without the threads that share its segments.

    `stub` leaves an archived thread in the cold store, so that it has no rows. `skip` lists
    unreadable rows apart and returns a damaged entry, instead of raising.
    """
    family: tuple[str, ...] = ()
    while True:
        reads = [model.ReadThread(name, skip=skip, stub=stub) for name in (thread, *family)]
        entry, rows, *others = yield Fetch([ReadEntry(thread), *reads])
        if not skip:
            sound(entry)
        if alone or rows.family == family:
            found = cast("list[model.ThreadRows]", others)
            return ThreadSnapshot(thread, cast("ThreadEntry | None", entry), rows, tuple(found))
        family = rows.family


def optimistic(
    engine: Engine,
    thread: str,
    build: Build[T],
    read: Callable[[str], Operation[ThreadSnapshot]] = read_snapshot,
) -> Operation[T]:
    """Change a thread: read a snapshot, build a change, commit it, again if overtaken.

    Raises ConflictError if other writers were faster at every attempt. `build` may raise errors of
    `OVERTAKEN` to be called again.
    """

    def attempt() -> Operation[T]:
        snapshot = yield from read(thread)
        change, result = yield from build(snapshot)
        if change is not None:
            if isinstance(change, model.Batch | model.DropThread) and change.thread == thread:
                # (the rows that it was built from must still be there)
                change = change._replace(link=Link(Proof.of(snapshot.rows)))
            yield from commit(change)
            if isinstance(change, model.DropThread) or (
                isinstance(change, model.Batch) and (change.bump_generation or change.drop_segments)
            ):
                engine.working_set.forget(thread)  # (its memory may hold removed rows)
        return result

    return (yield from retry(thread, attempt))


def retry(
    thread: str,
    attempt: Callable[[], Generator[Y, Any, T]],
    overtaken: tuple[type[Exception], ...] | type[Exception] = OVERTAKEN,
    attempts: int = ATTEMPTS,
) -> Generator[Y, Any, T]:
    """Run an attempt, again while other writers are faster, and raise ConflictError in the end."""
    for _ in range(attempts):
        try:
            return (yield from attempt())
        except overtaken:
            continue
    raise ConflictError(
        "Other writers keep changing this thread.",
        hint="Try again later, or stop the programs that use it.",
        thread=thread,
    )


PAGE = 500
TOGETHER = 50  # reads in one round trip
_MINUTE = 60_000_000  # microseconds
ALL = ThreadQuery()
"""All threads except deleted ones."""


def create(
    engine: Engine, thread: str, labels: tuple[str, ...], ttl: int | None
) -> Operation[ThreadEntry]:
    """Register a thread before anything is saved in it."""
    tried: list[ThreadEntry] = []

    def attempt() -> Operation[ThreadEntry]:
        entry = yield from read(thread)
        if entry is not None and is_made(entry, tried):
            return entry
        if is_there(entry):
            raise ThreadExistsError(
                "A thread of this name exists.",
                hint="Use another name, or exist_ok=True to use the existing thread.",
                thread=thread,
            )
        now = engine.now()
        new = ThreadEntry(thread, Lifecycle.CREATED, now, now, labels=labels, ttl=ttl)
        tried.append(new)
        return (yield from _commit(engine, entry, new))

    return retry(thread, attempt)


def is_made(entry: ThreadEntry, tried: Iterable[ThreadEntry]) -> bool:
    """Return True if any of these attempts made the thread, and its answer was lost."""
    return (entry.created_at, entry.origin) in [(one.created_at, one.origin) for one in tried]


def change(
    engine: Engine,
    thread: str,
    update: Callable[[ThreadEntry], ThreadEntry],
    at: CheckpointRef | None = None,
) -> Operation[ThreadEntry]:
    """Change the entry of a thread, if the checkpoint `at` (if given) exists."""

    def attempt() -> Operation[ThreadEntry]:
        entry = yield from known(thread)
        new = update(entry)
        if new == entry:
            return new
        if at is not None:  # (after the entry, which changes when the checkpoint is removed)
            state = yield from fetch_checkpoint(*at)
            if unless_hidden(state.found) is None:
                raise not_found(at)
        return (yield from _commit(engine, entry, new))

    return retry(thread, attempt)


def _commit(engine: Engine, old: ThreadEntry | None, new: ThreadEntry) -> Operation[ThreadEntry]:
    fence = EntryFence(0 if old is None else old.revision)
    yield from commit(model.Batch(new.thread, engine.now(), fences=(fence,), entry=new))
    return (yield from read(new.thread)) or new


def read(thread: str) -> Operation[ThreadEntry | None]:
    """Return the entry of a thread, or None if it never had one. Raises `CorruptionError`."""
    return sound((yield from fetch(ReadEntry(thread))))


def read_all(threads: Sequence[str]) -> Operation[list[ThreadEntry | None]]:
    """Return the entries of several threads, as `read` does."""
    found: list[ThreadEntry | None] = []
    for start in range(0, len(threads), TOGETHER):
        reads = [ReadEntry(one) for one in threads[start : start + TOGETHER]]
        found += map(sound, (yield Fetch(reads)))
    return found


def known(thread: str) -> Operation[ThreadEntry]:
    """Return the entry of an existing thread. Raises `CorruptionError`."""
    return cast("ThreadEntry", sound((yield from _existing(thread))))


def _existing(thread: str) -> Operation[ThreadEntry]:
    entry = cast("ThreadEntry | None", (yield from fetch(ReadEntry(thread))))
    if not is_there(entry):
        raise ThreadNotFoundError(thread=thread)
    return entry


def search(query: SearchThreads) -> Operation[list[ThreadEntry]]:
    """Return a page of the registry, including damaged entries."""
    return cast("list[ThreadEntry]", (yield from fetch(query)))


def damaged_or_archived() -> Operation[list[str]]:
    """Return the names of all threads whose entries are damaged, or name an archive."""

    def name(entry: ThreadEntry) -> str | None:
        record = find_record(entry.labels, ARCHIVE_RECORD)
        return entry.thread if entry.damage or is_archived(entry) or record else None

    return of_all(ALL, name)


def all_names(query: ThreadQuery) -> Operation[list[str]]:
    return of_all(query, lambda entry: entry.thread)


def forks_of(threads: Sequence[str]) -> Operation[list[str]]:
    """List the direct and indirect forks of some threads, each after its origin."""
    found, ahead, asked = list[str](), list(threads), 0
    while asked < len(ahead):
        some = [ThreadQuery(origin=one) for one in ahead[asked : asked + TOGETHER]]
        asked += len(some)
        first = SearchThreads(ALL, "thread", descending=False, after=None, limit=PAGE)
        pages = yield Fetch([first._replace(query=one) for one in some])
        for query, page in zip(some, pages, strict=True):
            forks = [one.thread for one in page]
            if len(page) == PAGE:
                forks = yield from all_names(query)
            new = [one for one in forks if one not in ahead]
            ahead += new
            found += new
    return found


def of_all(query: ThreadQuery, read: Callable[[ThreadEntry], T | None]) -> Operation[list[T]]:
    """Read each entry that matches, page by page, and return the results that are not None."""
    found: list[T] = []
    after: tuple[str, str] | None = None
    while True:
        page = yield from page_of("thread", after, query)
        found += [one for entry in page if (one := read(entry)) is not None]
        if len(page) < PAGE:
            return found
        after = page[-1].thread, page[-1].thread


def page_of(
    order: Order, after: tuple[int | str, str] | None, query: ThreadQuery = ALL
) -> Operation[list[ThreadEntry]]:
    """Return the next page of threads in ascending order, after a value and its thread."""
    return search(SearchThreads(query, order, descending=False, after=after, limit=PAGE))


def count(query: ThreadQuery) -> Operation[int]:
    return cast("int", (yield from fetch(CountThreads(query))))


def clock() -> Operation[int]:
    """Return the store's time, which decides who runs."""
    now: int = yield from fetch(ReadClock(""))
    return now


def statuses(now: int) -> Operation[ThreadStatuses]:
    """Count threads by status, and find the unfinished thread that is idle longest."""
    every = ThreadQuery((Lifecycle.CREATED, *WITH_CHECKPOINTS), now=(yield from clock()))
    queries = {one: every._replace(statuses=(one,)) for one in STATUSES}
    unfinished, recent = queries["unfinished"], queries["failed"]
    recent = recent._replace(updated=(now - _MINUTE, None))
    counts = map(CountThreads, (*queries.values(), recent))
    # (more than one, as damaged entries are passed over)
    first = SearchThreads(unfinished, "updated_at", descending=False, after=None, limit=TOGETHER)
    *numbers, page = yield Fetch([*counts, first])
    found = ThreadStatuses(*numbers)
    for one in page:
        if not one.damage:
            idle = max(now - one.updated_at, 0) / 1e6
            return replace(found, oldest_unfinished=idle, oldest_thread=one.thread)
    return found


def for_each(
    threads: Sequence[str] | None,
    visit: Callable[[ThreadEntry], Generator[Any, Any, None]],
    stage: str,
    progress: Progress | None,
    run: Callable[[Operation[Any]], Generator[Any, Any, Any]] = lambda operation: operation,
) -> Generator[Any, Any, int]:
    """Visit the entry of each thread by name, or of some threads, and return their number.

    Without `threads`, threadkeep's own threads are skipped. Damaged entries are visited too. `run`
    runs an operation.
    """
    if threads is None:
        total, page = (yield from run(count(ALL))), (yield from run(page_of("thread", None)))
    else:
        total, page = len(threads), []
        for name in dict.fromkeys(threads):
            page.append((yield from run(_existing(name))))
    done = 0
    while page:
        for entry in page:
            if threads is None and entry.thread.startswith(model.OWN_NS):
                continue
            yield from visit(entry)
            done += 1
            if progress is not None:
                progress(stage, done, max(done, total))
        if threads is not None or len(page) < PAGE:
            break
        last = page[-1].thread
        page = yield from run(page_of("thread", (last, last)))
    return done
