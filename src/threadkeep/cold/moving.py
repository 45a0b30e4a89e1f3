"""A whole store as its `Tiering` says, thread by thread.

Only what is done with which thread lives here; how is `archiving`'s and `offloading`'s.
Invariants: a thread that fails keeps nobody from the others, but for a cold store that fails;
each thread is whole at every step, so that it may be cut off anywhere, and done again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from threadkeep.cold.archive import archive_of
from threadkeep.cold.archive_workflow import archive
from threadkeep.cold.offload_workflow import (
    Offloaded,
    Wish,
    offload,
    rehearsed,
    tidy,
)
from threadkeep.cold.store import ColdStore
from threadkeep.cold.tiering import Tiering
from threadkeep.engine import registration
from threadkeep.engine.context import Engine
from threadkeep.engine.registration import (
    ALL,
    count,
    following,
)
from threadkeep.engine.thread_entry import (
    Cause,
    ThreadEntry,
    allows,
)
from threadkeep.errors import CodecError, ConflictError, StateError, ThreadNotFoundError
from threadkeep.store.workflows import (
    Plan,
    Store,
    on,
)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Archived:
    """A thread that was archived, or would be.

    Args:
        thread: its name.
        bytes: what it took in the store.
    """

    thread: str
    bytes: int


@dataclass(frozen=True, slots=True)
class TierReport:
    """What was moved of a store, or (`dry_run`) would be.

    Args:
        archived: the threads that went whole.
        offloaded: the threads of which a part went.
        shared: the threads whose old values stay, as forks share them.
        skipped: those that failed, each with the reason; they are as they were.
        looked_at: how many threads were looked at.
        dry_run: whether nothing was moved.
    """

    archived: tuple[Archived, ...]
    offloaded: tuple[Offloaded, ...]
    shared: tuple[str, ...]
    skipped: tuple[Offloaded, ...]
    looked_at: int
    dry_run: bool

    @property
    def bytes(self) -> int:
        """How many bytes went out of the store."""
        archived, offloaded = self.archived, self.offloaded
        return sum([one.bytes for one in archived]) + sum([one.bytes for one in offloaded])


@dataclass(frozen=True, slots=True)
class _Move:
    """What every step of a pass works with; without a cold store nothing is moved."""

    store: Store
    cold: ColdStore | None
    engine: Engine
    tiering: Tiering
    archived: list[Archived] = field(default_factory=list)
    offloaded: list[Offloaded] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    skipped: list[Offloaded] = field(default_factory=list)


def move(
    store: Store,
    cold: ColdStore | None,
    engine: Engine,
    tiering: Tiering,
    threads: Sequence[str] | None,
    progress: Progress | None,
) -> Plan[TierReport]:
    """Go through all threads, or some.

    Args:
        store: the store.
        cold: where things go; None: only tell what would.
        engine: the engine's parts.
        tiering: what goes.
        threads: only these.
        progress: called with how many threads are done, and how many there are.

    Raises:
        ThreadNotFoundError: one of `threads` is not there; nothing was moved.
        OpenError, BackendError: the cold store refused or failed; what was moved is moved.
    """
    to, done = _Move(store, cold, engine, tiering), 0
    total = (yield from on(store, count(ALL))) if threads is None else len(threads)
    page = yield from on(store, following(threads))
    while page:
        for entry in page:
            yield from _one(to, entry)
            done += 1
            if progress is not None:
                progress(done, max(done, total))
        page = yield from on(store, following(threads, page))
    return TierReport(
        tuple(to.archived),
        tuple(to.offloaded),
        tuple(to.shared),
        tuple(to.skipped),
        looked_at=done,
        dry_run=cold is None,
    )


def _one(to: _Move, entry: ThreadEntry) -> Plan[None]:
    """One thread: tidied, then archived, thinned out, or left as it is."""
    try:
        yield from _tidied(to, entry)
        if allows(Cause.ARCHIVE, entry.state) and not entry.pinned:
            yield from _moved(to, entry)
    except (CodecError, ConflictError) as error:
        to.skipped.append(Offloaded(entry.thread, skipped=error.message))
    except (ThreadNotFoundError, StateError):
        pass  # somebody else deleted it, or archived it, meanwhile


def _tidied(to: _Move, entry: ThreadEntry) -> Plan[None]:
    """What was offloaded of a thread may be needed no more, whatever else is done with it."""
    known = archive_of(entry)
    if to.cold is not None and known is not None and known.offloaded:
        yield from tidy(to.store, to.cold, to.engine, entry.thread)


def _moved(to: _Move, entry: ThreadEntry) -> Plan[None]:
    how, warm = to.tiering.cold, to.engine.now() - to.tiering.warm.age
    known = archive_of(entry)
    back_at = 0 if known is None else known.back_at
    if how.archive and max(entry.updated_at, back_at) < warm:
        yield from _archived(to, entry)
    elif how.offload_over is not None and max(entry.created_at, back_at) < warm:
        yield from _offloaded(to, entry, Wish(how.offload_over, warm))


def _archived(to: _Move, entry: ThreadEntry) -> Plan[None]:
    now = yield from on(to.store, registration.known(entry.thread))
    if now.updated_at != entry.updated_at:
        return  # it is in use again
    if to.cold is not None:
        yield from archive(to.store, to.cold, to.engine, entry.thread)
    to.archived.append(Archived(entry.thread, max(entry.size, 0)))


def _offloaded(to: _Move, entry: ThreadEntry, wish: Wish) -> Plan[None]:
    known = archive_of(entry)
    if entry.size <= wish.over and entry.origin is None and (known is None or not known.offloaded):
        return  # it is too small to hold anything that is large enough (a fork's size may lack it)
    if to.cold is None:
        found = yield from rehearsed(to.store, to.engine, entry.thread, wish)
    else:
        found = yield from offload(to.store, to.cold, to.engine, entry.thread, wish)
    if found.segments:
        to.offloaded.append(found)
    elif found.skipped is not None:
        to.shared.append(entry.thread)
