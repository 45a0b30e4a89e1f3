"""Operations on the registry: create threads, change entries, find threads."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, cast

from threadkeep._core.engine.context import Engine, not_found, unless_hidden
from threadkeep._core.engine.model import OWN_NS, Batch
from threadkeep._core.engine.operation import (
    CheckpointRef,
    Operation,
    commit,
    fetch,
    fetch_checkpoint,
)
from threadkeep._core.engine.optimistic import retry
from threadkeep._core.engine.thread_entry import (
    ARCHIVE_RECORD,
    CountThreads,
    EntryFence,
    Order,
    ReadEntry,
    SearchThreads,
    ThreadEntry,
    ThreadQuery,
    ThreadStatus,
    find_record,
    is_archived,
    is_there,
    sound,
)
from threadkeep.errors import ThreadExistsError, ThreadNotFoundError

if TYPE_CHECKING:
    from threadkeep._core.engine.operation import Progress

PAGE = 500
ALL = ThreadQuery()
"""Threads that were not deleted."""


def create(
    engine: Engine, thread: str, labels: tuple[str, ...], ttl: int | None
) -> Operation[ThreadEntry]:
    """Register a thread before anything is saved in it."""

    def attempt() -> Operation[ThreadEntry]:
        entry = yield from read(thread)
        if is_there(entry):
            raise ThreadExistsError(
                "There is a thread of this name.",
                hint="Use another name, or exist_ok=True to use the thread as it is.",
                thread=thread,
            )
        now = engine.now()
        new = ThreadEntry(thread, ThreadStatus.CREATED, now, now, labels=labels, ttl=ttl)
        return (yield from _commit(engine, entry, new))

    return retry(thread, attempt)


def change(
    engine: Engine,
    thread: str,
    update: Callable[[ThreadEntry], ThreadEntry],
    at: CheckpointRef | None = None,
) -> Operation[ThreadEntry]:
    """Change the entry of a thread, if the checkpoint `at` is there."""

    def attempt() -> Operation[ThreadEntry]:
        entry = yield from known(thread)
        new = update(entry)
        if new == entry:
            return new
        if at is not None:  # (after the entry: removing the checkpoint changes that)
            state = yield from fetch_checkpoint(*at)
            if unless_hidden(state.found) is None:
                raise not_found(at)
        return (yield from _commit(engine, entry, new))

    return retry(thread, attempt)


def _commit(engine: Engine, old: ThreadEntry | None, new: ThreadEntry) -> Operation[ThreadEntry]:
    fence = EntryFence(0 if old is None else old.revision)
    yield from commit(Batch(new.thread, engine.now(), fences=(fence,), entry=new))
    return (yield from read(new.thread)) or new


def read(thread: str) -> Operation[ThreadEntry | None]:
    """Return the entry of a thread; None if there never was one. Raises `CorruptionError`."""
    return sound((yield from fetch(ReadEntry(thread))))


def known(thread: str) -> Operation[ThreadEntry]:
    """Return the entry of an existing thread. Raises `CorruptionError`."""
    return cast("ThreadEntry", sound((yield from _existing(thread))))


def _existing(thread: str) -> Operation[ThreadEntry]:
    entry = cast("ThreadEntry | None", (yield from fetch(ReadEntry(thread))))
    if not is_there(entry):
        raise ThreadNotFoundError(thread=thread)
    return entry


def search(query: SearchThreads) -> Operation[list[ThreadEntry]]:
    """Return a page of the registry, with entries that are damaged."""
    return cast("list[ThreadEntry]", (yield from fetch(query)))


def damaged_or_archived() -> Operation[list[str]]:
    """Return the names of all threads whose entries are damaged, or name an archive."""
    names: list[str] = []
    after: tuple[str, str] | None = None
    while page := (yield from page_of("thread", after)):
        names += [
            entry.thread
            for entry in page
            if entry.damage or is_archived(entry) or find_record(entry.labels, ARCHIVE_RECORD)
        ]
        after = page[-1].thread, page[-1].thread
    return names


def all_names(query: ThreadQuery) -> Operation[list[str]]:
    """Return the names of all threads that match, in order."""
    names: list[str] = []
    after: tuple[str, str] | None = None
    while True:
        page = yield from page_of("thread", after, query)
        names += [entry.thread for entry in page]
        if len(page) < PAGE:
            return names
        after = names[-1], names[-1]


def page_of(
    order: Order, after: tuple[int | str, str] | None, query: ThreadQuery = ALL
) -> Operation[list[ThreadEntry]]:
    """Return the next page of threads in ascending order, behind a value and its thread."""
    return search(SearchThreads(query, order, descending=False, after=after, limit=PAGE))


def count(query: ThreadQuery) -> Operation[int]:
    """Return how many threads match."""
    return cast("int", (yield from fetch(CountThreads(query))))


def for_each(
    threads: Sequence[str] | None,
    visit: Callable[[ThreadEntry], Generator[Any, Any, None]],
    stage: str,
    progress: Progress | None,
    run: Callable[[Operation[Any]], Generator[Any, Any, Any]] = lambda operation: operation,
) -> Generator[Any, Any, int]:
    """Visit all threads by name but threadkeep's own, or some, each entry; return how many.

    Damaged entries are visited too. `run` runs an operation.
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
            if threads is None and entry.thread.startswith(OWN_NS):
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
