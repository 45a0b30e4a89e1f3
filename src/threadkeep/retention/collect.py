"""A whole store as its `Retention` says, thread by thread.

Invariants: a thread that was gone through and not written since is not read; nothing is held
of a thread behind its turn but what went of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from threadkeep.engine import (
    registration,
    thread_entry,
)
from threadkeep.engine.context import Engine
from threadkeep.engine.operation import Operation
from threadkeep.engine.registration import (
    ALL,
    PAGE,
    following,
    page_of,
)
from threadkeep.engine.thread_entry import ThreadEntry, ThreadStatus
from threadkeep.errors import CodecError
from threadkeep.retention.policy import Retention
from threadkeep.retention.thin import (
    Collected,
    delete,
    is_settled,
    policy_of,
    thin,
)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class GcReport:
    """What went of a store, or (`dry_run`) would go.

    Args:
        threads: those of which something went, and those that were skipped.
        looked_at: how many threads there are that were not deleted before.
        read: how many of them were read, as they had been written since the last time.
        dry_run: whether nothing was changed.
    """

    threads: tuple[Collected, ...]
    looked_at: int
    read: int
    dry_run: bool

    @property
    def checkpoints(self) -> int:
        """How many checkpoints went."""
        return sum([one.checkpoints for one in self.threads])

    @property
    def writes(self) -> int:
        """How many rows of pending writes went."""
        return sum([one.writes for one in self.threads])

    @property
    def segments(self) -> int:
        """How many segments went."""
        return sum([one.segments for one in self.threads])

    @property
    def bytes(self) -> int:
        """How many bytes less the threads hold."""
        return sum([one.bytes for one in self.threads])

    @property
    def deleted(self) -> tuple[str, ...]:
        """The threads that went whole."""
        return tuple([one.thread for one in self.threads if one.deleted is not None])

    @property
    def skipped(self) -> tuple[Collected, ...]:
        """The threads that were left as they are, each with the reason."""
        return tuple([one for one in self.threads if one.skipped is not None])


@dataclass(slots=True)
class _Gone:
    """What went so far."""

    threads: list[Collected]
    read: int = 0

    def add(self, found: Collected | None) -> None:
        self.read += 1
        if found is not None:
            self.threads.append(found)


def collect(
    engine: Engine,
    store: Retention,
    threads: Sequence[str] | None = None,
    *,
    dry_run: bool,
    progress: Progress | None,
) -> Operation[GcReport]:
    """Go through all threads, or some.

    Args:
        engine: the engine's parts.
        store: what is kept where nothing was said of the thread itself.
        threads: only these; `max_count` is not looked at then.
        dry_run: change nothing.
        progress: called with how many threads are done, and how many there are.

    Raises:
        ThreadNotFoundError: one of `threads` is not there; nothing was done.
    """
    total = (yield from registration.count(ALL)) if threads is None else len(threads)
    gone, done = _Gone([]), 0
    page = yield from following(threads)
    while page:
        for entry in page:
            yield from _one(engine, entry, store, gone, dry_run=dry_run)
            done += 1
            if progress is not None:
                progress(done, max(done, total))
        page = yield from following(threads, page)
    if threads is None:
        yield from _beyond(engine, store, gone, dry_run=dry_run)
    return GcReport(tuple(gone.threads), done, gone.read, dry_run)


def _one(
    engine: Engine, entry: ThreadEntry, store: Retention, gone: _Gone, *, dry_run: bool
) -> Operation[None]:
    """One thread: deleted, thinned, or left as it is."""
    now = engine.now()
    try:
        own = policy_of(entry, store)
    except CodecError as exc:
        gone.threads.append(Collected(entry.thread, skipped=exc.message))
        return
    if entry.pinned or entry.state == ThreadStatus.DELETED:
        return
    if _has_rested(entry, own, now):
        due = partial(_is_due, store=store, now=now)
        gone.add((yield from delete(engine, entry.thread, "ttl", due, dry_run=dry_run)))
    elif own.thins and entry.state != ThreadStatus.ARCHIVED and not is_settled(entry, own, now):
        ours = partial(policy_of, store=store)
        gone.add((yield from thin(engine, entry.thread, ours, dry_run=dry_run)))


# -- whole threads -------------------------------------------------------------------


def _is_due(entry: ThreadEntry, *, store: Retention, now: int) -> bool:
    return not entry.pinned and _has_rested(entry, policy_of(entry, store), now)


def _has_rested(entry: ThreadEntry, own: Retention, now: int) -> bool:
    """Whether it has rested for longer than it may: its own ttl counts before the policy's."""
    rest = entry.ttl
    if rest is None and not _is_protected(entry, own):
        rest = own.rest
    return rest is not None and entry.updated_at + rest < now


def _is_protected(entry: ThreadEntry, own: Retention) -> bool:
    """Whether the policy may not delete it."""
    is_tagged = own.keep_tagged and bool(thread_entry.tags_of(entry.labels))
    return entry.pinned or is_tagged or entry.state == ThreadStatus.SUSPENDED


def _beyond(engine: Engine, store: Retention, gone: _Gone, *, dry_run: bool) -> Operation[None]:
    """Delete the least recently updated threads that are too many."""
    if store.max_count is None:
        return
    went = {one.thread for one in gone.threads if one.deleted is not None}
    there = yield from registration.count(ALL)
    excess = there - store.max_count - (len(went) if dry_run else 0)
    after: tuple[int | str, str] | None = None
    while excess > 0:
        page = yield from page_of("updated_at", after)
        for entry in page:
            if excess > 0 and entry.thread not in went:
                excess -= yield from _one_less(engine, entry, store, gone, dry_run=dry_run)
        if len(page) < PAGE:
            return
        after = page[-1].updated_at, page[-1].thread


def _one_less(
    engine: Engine, entry: ThreadEntry, store: Retention, gone: _Gone, *, dry_run: bool
) -> Operation[bool]:
    """Whether the thread was deleted, for there are too many."""

    def is_due(now: ThreadEntry) -> bool:
        return now.updated_at == entry.updated_at and not _is_protected(now, policy_of(now, store))

    try:
        if _is_protected(entry, policy_of(entry, store)):
            return False
    except CodecError:
        return False  # (it was said before)
    found = yield from delete(engine, entry.thread, "max_count", is_due, dry_run=dry_run)
    gone.threads = [one for one in gone.threads if one.thread != entry.thread or found is None]
    gone.add(found)
    return found is not None and found.deleted is not None
