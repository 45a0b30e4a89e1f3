"""The registry: creating threads by name, changing what is known of them, finding them.

Invariant: what somebody else has changed meanwhile is not lost: a change is made of the entry as
it is, and made anew where that is another one by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from threadkeep.engine.context import ATTEMPTS, Engine, not_found, unless_hidden
from threadkeep.engine.model import Batch
from threadkeep.engine.operation import CheckpointRef, Operation, commit, fetch, fetch_checkpoint
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
from threadkeep.errors import ConflictError, ThreadExistsError, ThreadNotFoundError

PAGE = 500
ALL = ThreadQuery()
"""Threads that were not deleted."""


def create(
    engine: Engine, thread: str, labels: tuple[str, ...], ttl: int | None
) -> Operation[ThreadEntry]:
    """Register a thread before anything is saved in it.

    Raises:
        ThreadExistsError: it is there.
        ConflictError: others change it all the time.
    """

    def made(entry: ThreadEntry | None) -> ThreadEntry:
        if not allows(Cause.CREATE, "" if entry is None else entry.state):
            raise ThreadExistsError(
                "There is a thread of this name.",
                hint="Give another name, or exist_ok=True to take it as it is.",
                thread=thread,
            )
        now = engine.now()
        return ThreadEntry(thread, ThreadStatus.CREATED, now, now, labels=labels, ttl=ttl)

    return (yield from _changed(engine, thread, made))


def change(
    engine: Engine,
    thread: str,
    how: Callable[[ThreadEntry], ThreadEntry],
    at: CheckpointRef | None = None,
) -> Operation[ThreadEntry]:
    """Change what is known of a thread; `how` makes the new entry of the present one.

    Raises:
        ThreadNotFoundError: it is not there, or was deleted.
        CheckpointNotFoundError: the checkpoint that this is about, `at`, is not there.
        ConflictError: others change it all the time.
    """

    def made(entry: ThreadEntry | None) -> ThreadEntry:
        if not is_there(entry):
            raise ThreadNotFoundError(thread=thread)
        return how(entry)

    return _changed(engine, thread, made, at)


def _changed(
    engine: Engine,
    thread: str,
    made: Callable[[ThreadEntry | None], ThreadEntry],
    at: CheckpointRef | None = None,
) -> Operation[ThreadEntry]:
    for _ in range(ATTEMPTS):
        entry = yield from read(thread)
        new = made(entry)
        if new == entry:
            return new
        if at is not None:  # (behind the entry: whoever removes the checkpoint changes that)
            state = yield from fetch_checkpoint(*at)
            if unless_hidden(state.found) is None:
                raise not_found(at)
        fence = EntryFence(0 if entry is None else entry.revision)
        try:
            yield from commit(Batch(thread, engine.now(), fences=(fence,), entry=new))
        except ConflictError:
            continue  # it has changed meanwhile: look again
        found = yield from read(thread)
        return found or new
    raise busy(thread)


def busy(thread: str) -> ConflictError:
    """The error where others change a thread's entry at every try."""
    return ConflictError(
        "Others change what is known of this thread all the time.",
        hint="Try again later.",
        thread=thread,
    )


def read(thread: str) -> Operation[ThreadEntry | None]:
    """What is known of a thread; None of one that never was."""
    reply = yield from fetch(ReadEntry(thread))
    return cast("ThreadEntry | None", reply)


def known(thread: str) -> Operation[ThreadEntry]:
    """What is known of a thread that is there.

    Raises:
        ThreadNotFoundError: it is not, or was deleted.
    """
    entry = yield from read(thread)
    if not is_there(entry):
        raise ThreadNotFoundError(thread=thread)
    return entry


def search(asked: SearchThreads) -> Operation[list[ThreadEntry]]:
    """A page of the registry."""
    reply = yield from fetch(asked)
    return cast("list[ThreadEntry]", reply)


def page_of(order: Order, after: tuple[int | str, str] | None) -> Operation[list[ThreadEntry]]:
    """Some of all threads that were not deleted, in order; fewer than `PAGE` at the end.

    `after` is the order's value of the last one before, and its id.
    """
    return search(SearchThreads(ALL, order, descending=False, after=after, limit=PAGE))


def named(threads: Iterable[str]) -> Operation[list[ThreadEntry]]:
    """Threads by name, each once.

    Raises:
        ThreadNotFoundError: one of them is not there.
    """
    found: list[ThreadEntry] = []
    for name in dict.fromkeys(threads):
        found += [(yield from known(name))]
    return found


def following(
    threads: Sequence[str] | None, page: Sequence[ThreadEntry] | None = None
) -> Operation[list[ThreadEntry]]:
    """The first of the threads that are meant (None: all), or those behind a page; none at the end.

    Raises:
        ThreadNotFoundError: one that is named is not there.
    """
    if page is None:
        return page_of("thread", None) if threads is None else named(threads)
    if threads is not None or len(page) < PAGE:
        return _nothing()
    return page_of("thread", (page[-1].thread, page[-1].thread))


def _nothing() -> Operation[list[ThreadEntry]]:
    yield from ()
    return []


def count(query: ThreadQuery) -> Operation[int]:
    """How many threads are as the query says."""
    reply = yield from fetch(CountThreads(query))
    return cast("int", reply)
