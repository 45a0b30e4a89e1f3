"""Operations on the registry: create threads, change entries, find threads."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from threadkeep.engine.context import Engine, not_found, unless_hidden
from threadkeep.engine.model import Batch
from threadkeep.engine.operation import (
    CheckpointRef,
    Operation,
    commit,
    fetch,
    fetch_checkpoint,
)
from threadkeep.engine.optimistic import retry
from threadkeep.engine.thread_entry import (
    Cause,
    CountThreads,
    EntryFence,
    Order,
    ReadEntry,
    SearchThreads,
    ThreadEntry,
    ThreadQuery,
    ThreadStatus,
    allows,
    is_there,
)
from threadkeep.errors import ThreadExistsError, ThreadNotFoundError

if TYPE_CHECKING:
    from threadkeep.engine.operation import Progress

PAGE = 500
ALL = ThreadQuery()
"""Threads that were not deleted."""


# -- changing an entry -----------------------------------------------------------------


def create(
    engine: Engine, thread: str, labels: tuple[str, ...], ttl: int | None
) -> Operation[ThreadEntry]:
    """Register a thread before anything is saved in it.

    Raises:
        ThreadExistsError: it exists.
        ConflictError: others keep changing it.
    """

    def created(entry: ThreadEntry | None) -> ThreadEntry:
        if not allows(Cause.CREATE, "" if entry is None else entry.state):
            raise ThreadExistsError(
                "There is a thread of this name.",
                hint="Use another name, or exist_ok=True to use the thread as it is.",
                thread=thread,
            )
        now = engine.now()
        return ThreadEntry(thread, ThreadStatus.CREATED, now, now, labels=labels, ttl=ttl)

    return _changed(engine, thread, created)


def change(
    engine: Engine,
    thread: str,
    update: Callable[[ThreadEntry], ThreadEntry],
    at: CheckpointRef | None = None,
) -> Operation[ThreadEntry]:
    """Change the entry of a thread; `update` makes the new one of the present one.

    Raises:
        ThreadNotFoundError: there is no such thread, or it was deleted.
        CheckpointNotFoundError: the checkpoint `at`, which the change is about, is not there.
        ConflictError: others keep changing it.
    """

    def updated(entry: ThreadEntry | None) -> ThreadEntry:
        if not is_there(entry):
            raise ThreadNotFoundError(thread=thread)
        return update(entry)

    return _changed(engine, thread, updated, at)


def _changed(
    engine: Engine,
    thread: str,
    update: Callable[[ThreadEntry | None], ThreadEntry],
    at: CheckpointRef | None = None,
) -> Operation[ThreadEntry]:
    def attempt() -> Operation[ThreadEntry]:
        entry = yield from read(thread)
        new = update(entry)
        if new == entry:
            return new
        if at is not None:  # (after the entry: whoever removes the checkpoint changes that)
            state = yield from fetch_checkpoint(*at)
            if unless_hidden(state.found) is None:
                raise not_found(at)
        fence = EntryFence(0 if entry is None else entry.revision)
        yield from commit(Batch(thread, engine.now(), fences=(fence,), entry=new))
        return (yield from read(thread)) or new

    return retry(thread, attempt)


# -- reading entries -------------------------------------------------------------------


def read(thread: str) -> Operation[ThreadEntry | None]:
    """Return the entry of a thread; None if there never was one."""
    return cast("ThreadEntry | None", (yield from fetch(ReadEntry(thread))))


def known(thread: str) -> Operation[ThreadEntry]:
    """Return the entry of an existing thread.

    Raises:
        ThreadNotFoundError: there is no such thread, or it was deleted.
    """
    entry = yield from read(thread)
    if not is_there(entry):
        raise ThreadNotFoundError(thread=thread)
    return entry


def search(query: SearchThreads) -> Operation[list[ThreadEntry]]:
    """Return a page of the registry."""
    return cast("list[ThreadEntry]", (yield from fetch(query)))


def all_names(query: ThreadQuery) -> Operation[list[str]]:
    """Return the names of all threads that match, in order."""
    names: list[str] = []
    after: tuple[str, str] | None = None
    while True:
        page = yield from search(SearchThreads(query, "thread", False, after, PAGE))  # noqa: FBT003 - `descending`
        names += [entry.thread for entry in page]
        if len(page) < PAGE:
            return names
        after = names[-1], names[-1]


def page_of(order: Order, after: tuple[int | str, str] | None) -> Operation[list[ThreadEntry]]:
    """Return the next page of all threads in ascending order; the last one is short.

    `after` is the order's value of the last entry of the page before, and its thread.
    """
    return search(SearchThreads(ALL, order, descending=False, after=after, limit=PAGE))


def count(query: ThreadQuery) -> Operation[int]:
    """Return how many threads match."""
    return cast("int", (yield from fetch(CountThreads(query))))


def _named(threads: Iterable[str]) -> Operation[list[ThreadEntry]]:
    found: list[ThreadEntry] = []
    for name in dict.fromkeys(threads):
        found += [(yield from known(name))]
    return found


def for_each(
    threads: Sequence[str] | None,
    visit: Callable[[ThreadEntry], Generator[Any, Any, None]],
    stage: str,
    progress: Progress | None,
    run: Callable[[Operation[Any]], Generator[Any, Any, Any]] = lambda operation: operation,
) -> Generator[Any, Any, int]:
    """Visit all threads in the order of their names, or some; return how many.

    Args:
        threads: names; None for all threads.
        visit: called with each entry.
        stage: what is being done, for `progress`.
        progress: called after each thread.
        run: how an operation is run; within an operation as it is.

    Raises:
        ThreadNotFoundError: one of `threads` does not exist; none was visited.
    """
    if threads is None:
        total, page = (yield from run(count(ALL))), (yield from run(page_of("thread", None)))
    else:
        total, page = len(threads), (yield from run(_named(threads)))
    done = 0
    while page:
        for entry in page:
            yield from visit(entry)
            done += 1
            if progress is not None:
                progress(stage, done, max(done, total))
        if threads is not None or len(page) < PAGE:
            break
        last = page[-1].thread
        page = yield from run(page_of("thread", (last, last)))
    return done
