"""Memory backend: rows of this process behind one lock, and answers to reads.

Replies share no container with the rows.
"""

from __future__ import annotations

import json
import secrets
import threading
import weakref
from heapq import merge, nlargest, nsmallest
from itertools import islice
from operator import attrgetter, gt, lt
from typing import TYPE_CHECKING, Any, Protocol

from threadkeep._core.engine.model import (
    OWN_NS,
    CheckpointRow,
    FindThreads,
    Read,
    ReadCheckpoint,
    ReadDamage,
    ReadPath,
    ReadSegments,
    ReadSizes,
    ReadThread,
    ScanCheckpoints,
    Segment,
    SegmentInfo,
    Sizes,
    StoredCheckpoint,
    StoredThreadSize,
    ThreadRows,
    ThreadState,
    WriteRow,
)
from threadkeep._core.engine.thread_entry import (
    WITH_CHECKPOINTS,
    CountThreads,
    ReadEntry,
    SearchThreads,
    ThreadEntry,
    ThreadQuery,
)
from threadkeep._core.engine.usage import (
    DAY,
    ItemUsage,
    ReadUsage,
    StoreUsage,
    ThreadUsage,
    usage_of,
)
from threadkeep._stores import process_forks
from threadkeep._stores.base import Backend, ScrubReport
from threadkeep._stores.memory.changes import carry_out
from threadkeep._stores.memory.rows import (
    EMPTY,
    EMPTY_NAMESPACE,
    MemoryThread,
    Namespace,
    Threads,
    entry_of,
)
from threadkeep._stores.records import between, matches
from threadkeep._stores.urls import shown
from threadkeep.errors import ClosedError, OpenError, ThreadkeepError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from threadkeep._core.engine.model import Change
    from threadkeep._stores.items.records import SearchOptions
    from threadkeep._stores.memory.cache import MemoryEntries
    from threadkeep._stores.memory.items import MemoryItems


class CountsItems(Protocol):
    """Rows beside those of threads."""

    def usage(self, now: int) -> ItemUsage:
        """Count them. See `Backend.item_usage`."""
        ...


class MemoryBackend(Backend):
    """Rows in this process's memory, gone when it ends.

    A commit takes a few microseconds. Metadata filters of scans are left to the
    engine, as the contract allows.
    """

    instant = True
    has_identity = True
    commits_groups = True
    counts_usage = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: Threads = {}
        self._closed = False
        self._identity = secrets.token_hex(16)
        self.beside: weakref.WeakSet[CountsItems] = weakref.WeakSet()
        """The items and caches that were opened over this backend."""
        process_forks.watch(self)

    def items(self, options: SearchOptions) -> MemoryItems:
        """Return items that end with this process. See `Backend.items`."""
        from threadkeep._stores.memory.items import MemoryItems  # noqa: PLC0415 - only for a store

        items = MemoryItems(options)
        self.beside.add(items)
        return items

    def cache(self) -> MemoryEntries:
        """Return entries that end with this process. See `Backend.cache`."""
        from threadkeep._stores.memory.cache import MemoryEntries  # noqa: PLC0415 - only for a cache

        entries = MemoryEntries()
        self.beside.add(entries)
        return entries

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """Answer each read, in order. See `Backend.fetch`."""
        with self._lock:
            self._check_open()
            return [_REPLIES[type(read)](self._threads, read) for read in reads]

    def commit(self, change: Change) -> None:
        """Carry out the change, all or nothing. See `Backend.commit`."""
        with self._lock:
            self._check_open()
            carry_out(self._threads, change)

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """Carry out several changes at once. See `Backend.commit_many`."""
        with self._lock:
            self._check_open()
            return [self._attempt(change) for change in changes]

    def _attempt(self, change: Change) -> ThreadkeepError | None:
        try:
            carry_out(self._threads, change)
        except ThreadkeepError as error:
            return error
        return None

    def identity(self) -> str:
        """Another one in each process. See `Backend.identity`."""
        return self._identity

    def item_usage(self, now: int) -> ItemUsage:
        """See `Backend.item_usage`."""
        return ItemUsage().plus([one.usage(now) for one in tuple(self.beside)])

    def scrub(self, *, rewrite: bool) -> ScrubReport:
        """There are no files. See `Backend.scrub`."""
        del rewrite
        return ScrubReport()

    def close(self) -> None:
        """Let go of every row. Idempotent."""
        with self._lock:
            self._closed = True
            self._threads.clear()

    def before_fork(self) -> None:
        """See `WatchedMethods.before_fork`: no other thread is in the middle of a change then."""
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        """See `WatchedMethods.after_fork`: the rows are whole in both; the child's are a copy."""
        if in_child:
            self._identity = secrets.token_hex(16)
        self._lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(hint="Open a new one: what this one held in memory is gone.")


def _checkpoint(threads: Threads, read: ReadCheckpoint) -> ThreadState:
    thread = threads.get(read.thread, EMPTY)
    namespace = thread.namespaces.get(read.ns, EMPTY_NAMESPACE)
    row = namespace.head() if read.id is None else namespace.rows.get(read.id)
    found = thread.stored(read.thread, row) if row else None
    return ThreadState(thread.generation, thread.deleted_at, found)


def _segments(threads: Threads, read: ReadSegments) -> list[Segment]:
    thread = threads.get(read.thread, EMPTY)
    if read.generation not in (None, thread.generation):
        return []
    return between(thread.logs, read.spans)


def _path(threads: Threads, read: ReadPath) -> list[StoredCheckpoint]:
    thread = threads.get(read.thread, EMPTY)
    rows = thread.namespaces.get(read.ns, EMPTY_NAMESPACE).rows
    path: list[StoredCheckpoint] = []
    row = rows.get(read.id)
    while row is not None and len(path) < read.limit:
        path.append(thread.stored(read.thread, row))
        row = None if row.parent is None else rows.get(row.parent)
    return path


# -- scans ---------------------------------------------------------------------------


def _scan(threads: Threads, read: ScanCheckpoints) -> list[StoredCheckpoint]:
    # Equal ids keep the order of the iterators merged: thread, then namespace.
    found: list[Iterator[tuple[str, CheckpointRow]]] = []
    for name in sorted(threads) if read.thread is None else [read.thread]:
        spaces = threads.get(name, EMPTY).namespaces
        names = sorted(spaces) if read.ns is None else [read.ns]
        found += [_visible(name, spaces.get(ns, EMPTY_NAMESPACE), read) for ns in names]
    page = islice(merge(*found, key=lambda at: at[1].id, reverse=True), read.limit)
    return [threads[name].stored(name, row) for name, row in page]


def _visible(
    name: str, namespace: Namespace, read: ScanCheckpoints
) -> Iterator[tuple[str, CheckpointRow]]:
    """Yield the rows of one namespace that are wanted, with their thread."""
    after = read.after
    upper = [key for key in (read.id, after and after[0]) if key is not None]
    for row in namespace.visible_down(read.before, min(upper, default=None)):
        if read.id is not None and row.id != read.id:
            return
        if after is None or row.id < after[0] or (name, row.ns) > after[1:]:
            yield name, row


# -- housekeeping --------------------------------------------------------------------


def _thread(threads: Threads, read: ReadThread) -> ThreadRows:
    thread = threads.get(read.thread, EMPTY)
    checkpoints: list[StoredCheckpoint] = []
    orphans: list[WriteRow] = []
    for _, namespace in sorted(thread.namespaces.items()):
        checkpoints += (thread.stored(read.thread, namespace.rows[key]) for key in namespace.ids)
        for key in sorted(namespace.writes.keys() - namespace.rows.keys()):
            orphans += namespace.writes[key]
    places = (SegmentInfo(s.log, s.start, s.count, len(s.data)) for s in thread.segments())
    family = tuple(sorted(thread.heap.members - {read.thread}))
    state = (thread.generation, thread.deleted_at)
    return ThreadRows(*state, tuple(checkpoints), tuple(orphans), tuple(places), family)


def _find(threads: Threads, read: FindThreads) -> list[str]:
    def is_wanted(thread: MemoryThread) -> bool:
        if not read.run_ids:
            return read.empty or any(thread.rows())
        return any(_run_id(row) in read.run_ids for row in thread.rows())

    found = (name for name in _names_after(threads, read.after) if is_wanted(threads[name]))
    return list(islice(found, read.limit))


def _run_id(row: CheckpointRow) -> object:
    metadata = json.loads(row.metadata)
    return metadata.get("run_id") if isinstance(metadata, dict) else None


def _names_after(threads: Threads, after: str | None) -> list[str]:
    return sorted(name for name in threads if after is None or name > after)


def _sizes(threads: Threads, read: ReadSizes) -> Sizes:
    sizes = {name: _size(name, thread) for name, thread in threads.items() if thread.holds_rows()}
    total = sum(size.row_bytes + size.segment_bytes for size in sizes.values())
    page = [sizes[name] for name in _names_after(threads, read.after) if name in sizes]
    return Sizes(total, tuple(page[: read.limit]))


def _size(name: str, thread: MemoryThread) -> StoredThreadSize:
    rows, writes = list(thread.rows()), list(thread.writes())
    segments = list(thread.segments()) if name == min(thread.heap.members) else []
    row_bytes = sum(len(r.metadata) + len(r.exact or b"") + len(r.manifest) for r in rows)
    row_bytes += sum(len(write.body) for write in writes)
    segment_bytes = sum(len(segment.data) for segment in segments)
    return StoredThreadSize(name, len(rows), len(writes), len(segments), row_bytes, segment_bytes)


def _usage(threads: Threads, read: ReadUsage) -> StoreUsage:
    found: list[ThreadUsage] = []
    recent: list[tuple[str, int]] = []
    since = read.now - DAY
    for name, thread in threads.items():
        entry = thread.entry
        if entry is not None and entry.state in WITH_CHECKPOINTS and not name.startswith(OWN_NS):
            times = [row.ts for row in thread.rows()]
            new = [(name, time) for time in times if isinstance(time, int) and time >= since]
            writes = sum(
                [len(rows) for n in thread.namespaces.values() for rows in n.writes.values()]
            )
            counts = (thread.size, len(times), writes, len(new), entry.updated_at)
            found.append(ThreadUsage(name, *counts))
            recent += new
    return usage_of(read, sum([thread.size for thread in threads.values()]), found, recent)


# -- the registry --------------------------------------------------------------------


def _entry(threads: Threads, read: ReadEntry) -> ThreadEntry | None:
    return entry_of(threads.get(read.thread, EMPTY))


def _search(threads: Threads, read: SearchThreads) -> list[ThreadEntry]:
    first, is_behind = (nlargest, lt) if read.descending else (nsmallest, gt)
    place, found = attrgetter(read.order, "thread"), _meant(threads, read.query)
    if read.after is not None:
        found = [entry for entry in found if is_behind(place(entry), read.after)]
    return first(read.limit, found, key=place)


def _count(threads: Threads, read: CountThreads) -> int:
    return len(_meant(threads, read.query))


def _meant(threads: Threads, query: ThreadQuery) -> list[ThreadEntry]:
    entries = map(entry_of, threads.values())
    return [entry for entry in entries if entry is not None and matches(entry, query)]


def _damage(_threads: Threads, _read: ReadDamage) -> list[str]:
    return []


_REPLIES: dict[type[Read], Callable[[Threads, Any], Any]] = {
    ReadCheckpoint: _checkpoint,
    ReadSegments: _segments,
    ReadPath: _path,
    ScanCheckpoints: _scan,
    ReadThread: _thread,
    FindThreads: _find,
    ReadSizes: _sizes,
    ReadUsage: _usage,
    ReadEntry: _entry,
    SearchThreads: _search,
    CountThreads: _count,
    ReadDamage: _damage,
}


def opened(url: str) -> MemoryBackend:
    """Open a new store."""
    if url.lower() != "memory://":
        raise OpenError(
            f"{shown(url)} names a place, but memory has none.", hint="Write memory://."
        )
    return MemoryBackend()
