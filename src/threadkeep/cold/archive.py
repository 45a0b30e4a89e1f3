"""Archived threads: what stays of one in the store, and how it leaves and comes back.

Only rows and entries are dealt with here; where archives lie, and what they look like, is the
affair of `tiers`. Invariants: the entry names an archive before there is one, and as long as
there may be; a thread's rows go in the change that says that they are archived, and come back in
the one that says that they are not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple, TypeGuard, cast

from threadkeep.engine import (
    registration,
    thread_entry,
    thread_summary,
)
from threadkeep.engine.context import (
    ATTEMPTS,
    Engine,
)
from threadkeep.engine.model import Batch, DropThread, RowsFence
from threadkeep.engine.operation import (
    Operation,
    commit,
    fetch_checkpoint,
)
from threadkeep.engine.thread_entry import (
    Cause,
    EntryFence,
    ThreadEntry,
    ThreadStatus,
    allows,
    is_archived,
)
from threadkeep.errors import (
    ConflictError,
    CorruptionError,
    StaleThreadError,
    StateError,
    ThreadNotFoundError,
)
from threadkeep.transfer.bundling import (
    WholeThread,
    fence_of,
    parts_of,
    read_state,
    stored_of,
)

RECORD = thread_entry.ARCHIVE_RECORD


class Archive(NamedTuple):
    """What the entry says of a thread's archive.

    `folder` is where all archives of this thread are that one store has made: this one, or one that
    this is a copy of. `name` is that of the newest in it; `sha256` is the digest of its bytes in
    hex, `size` their number: of nothing before the first. `state` is the thread's own, which it has
    again when it is back. `offloaded` is about how many bytes of segments lie there beside
    archives: 0 where there is no stub, -1 where there may soon be one. `back_at` is when the
    thread, or what was offloaded of it, came back last, in microseconds since 1970.
    """

    folder: str
    name: str = ""
    state: str = ""
    sha256: str = ""
    size: int = 0
    offloaded: int = 0
    back_at: int = 0

    @property
    def key(self) -> str:
        """The newest one's name in the cold store."""
        return self.folder + self.name


def archive_of(entry: ThreadEntry | None) -> Archive | None:
    """The archive that an entry names. One of another thread, whose copy this is, does not count.

    Raises:
        CorruptionError: what it says cannot be read.
    """
    found = None if entry is None else thread_entry.find_record(entry.labels, RECORD)
    if entry is None or found is None:
        return None
    try:
        archive = Archive(*found)
        return archive if _name(entry.thread) in archive.folder.split("/") else None
    except (TypeError, AttributeError) as error:
        raise CorruptionError(
            "Where a thread is archived cannot be read.", thread=entry.thread
        ) from error


def home_of(store: str, thread: str) -> str:
    """Where a store, by its identity, puts what it takes of threads of this name.

    No other one puts anything there, or removes anything.
    """
    return f"threads/{store}/{_name(thread)}/"


def _name(thread: str) -> str:
    """A thread's name as a part of keys, which may not be anything."""
    return hashlib.sha256(thread.encode()).hexdigest()[:40]


def is_at(entry: ThreadEntry | None, key: str) -> TypeGuard[ThreadEntry]:
    """Whether the thread is archived under this key."""
    if not is_archived(entry):
        return False
    archive = archive_of(entry)
    return archive is not None and archive.key == key


def naming(entry: ThreadEntry, archive: Archive) -> ThreadEntry:
    """The entry, which names this archive and no other."""
    others = thread_entry.without_record(entry.labels, RECORD)
    label = thread_entry.record_label(RECORD, list(archive))
    return entry._replace(labels=tuple(sorted((*others, label))))


# -- into an archive -----------------------------------------------------------------


def announce(
    engine: Engine, thread: str, home: str, token: str, *, stubs: bool = False
) -> Operation[Archive]:
    """What the entry says of the thread's archives; with this token, if it names none at home.

    With `stubs` it says that there may be some. The entry names the folder before anything is in
    it, as long as the thread lives.

    Raises:
        ThreadNotFoundError: there is no such thread.
        StateError: it holds nothing, or is archived already.
        ConflictError: others change it all the time.
    """

    def how(entry: ThreadEntry) -> ThreadEntry:
        if not allows(Cause.ARCHIVE, entry.state):
            raise StateError(f"A thread that is {entry.state} cannot be archived.", thread=thread)
        known = archive_of(entry)
        archive = known or Archive(home)
        if not archive.folder.startswith(home) or known is None:
            archive = archive._replace(folder=f"{home}{token}/", name="", sha256="", size=0)
        if stubs and not archive.offloaded:
            archive = archive._replace(offloaded=-1)
        return entry if archive == known else naming(entry, archive)

    entry = yield from registration.change(engine, thread, how)
    return cast("Archive", archive_of(entry))


class Taken(NamedTuple):
    """A thread as it was read, and what must still be so when it goes."""

    whole: WholeThread
    entry: ThreadEntry
    generation: int
    rows: RowsFence


def take(thread: str) -> Operation[Taken]:
    """Read a thread that is to be archived.

    Raises:
        ThreadNotFoundError: it holds no checkpoints.
        StateError: it was archived meanwhile.
        ConflictError: segments were removed at every try.
        CorruptionError: it is damaged.
    """
    state = yield from read_state(thread)
    fence = yield from fence_of(state)
    if is_archived(state.entry):
        raise StateError("Somebody else has archived this thread.", thread=thread)
    if state.entry is None or not state.whole.checkpoints:
        raise ThreadNotFoundError(thread=thread)
    return Taken(state.whole, state.entry, state.rows.generation, fence)


def close(engine: Engine, taken: Taken, archive: Archive) -> Operation[ThreadEntry]:
    """Remove the thread's rows; the entry says where they are.

    Raises:
        ConflictError, StaleThreadError: the thread has changed since it was taken.
    """
    thread, entry = taken.whole.thread, taken.entry
    known = archive_of(entry) or archive
    archive = archive._replace(offloaded=known.offloaded)
    entry = naming(entry, archive)._replace(state=ThreadStatus.ARCHIVED)
    fences = (taken.rows, EntryFence(entry.revision))
    tombstone = taken.whole.deleted_at
    yield from commit(DropThread(thread, tombstone, taken.generation, fences, entry))
    engine.working_set.forget(thread)
    return (yield from registration.read(thread)) or entry


# -- and back ------------------------------------------------------------------------


def reopen(whole: WholeThread, archive: Archive, now: int) -> Operation[None]:
    """Put back the rows of a thread, if it is archived there.

    Segments come first, where nobody sees them; then all rows at once, with the state that the
    thread had. The entry goes on to name the archive.

    Raises:
        ConflictError: others change it all the time.
    """
    for _ in range(ATTEMPTS):
        entry = yield from registration.read(whole.thread)
        if not is_at(entry, archive.key):
            return
        there = yield from fetch_checkpoint(whole.thread, "", None)
        try:
            for batch in _batches(whole, entry, there.generation, archive, now):
                yield from commit(batch)
        except (ConflictError, StaleThreadError):
            continue  # somebody has brought it back, or has changed its entry: look again
        return
    raise registration.busy(whole.thread)


def _batches(
    whole: WholeThread, entry: ThreadEntry, generation: int, archive: Archive, now: int
) -> Iterator[Batch]:
    fences = (RowsFence(0, 0), EntryFence(entry.revision))
    plain = Batch(whole.thread, now, generation, fences=fences)
    for segments in parts_of(whole.segments, lambda segment: len(segment.data)):
        yield plain._replace(segments=tuple(segments))
    touch = thread_summary.of_rows(*stored_of(whole), sum([len(s.data) for s in whole.segments]))
    yield plain._replace(
        checkpoints=whole.checkpoints,
        writes=whole.writes,
        bump=True,
        entry=naming(entry, archive._replace(back_at=now))._replace(state=archive.state),
        touch=touch._replace(moves=()),
    )
