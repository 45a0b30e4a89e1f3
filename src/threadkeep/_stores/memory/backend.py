"""Memory backend: rows in this process under one lock. Replies share no container with rows."""

from __future__ import annotations

import secrets
import threading
import weakref
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any

from threadkeep._core.engine import model, thread_entry
from threadkeep._core.engine.usage import (
    DAY,
    ItemUsage,
    ReadUsage,
    StoreUsage,
    ThreadUsage,
    usage_of,
)
from threadkeep._core.texts import shown_url
from threadkeep._stores import process_forks
from threadkeep._stores.base import Backend, ScrubReport
from threadkeep._stores.memory.rows import (
    EMPTY,
    EMPTY_NAMESPACE,
    MemoryNamespace,
    MemoryThread,
    MemoryThreads,
    carry_out,
    entry_of,
)
from threadkeep._stores.records import between, first_entries, matches, run_id
from threadkeep.errors import ClosedError, OpenError, ThreadkeepError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from threadkeep._core.engine.model import Change
    from threadkeep._stores.items.records import SearchOptions
    from threadkeep._stores.memory.cache import MemoryEntries
    from threadkeep._stores.memory.items import MemoryItems


class MemoryBackend(Backend):
    """Rows in this process's memory. The engine applies metadata filters of scans."""

    instant = True
    has_identity = True
    commits_groups = True
    counts_usage = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: MemoryThreads = {}
        self._closed = False
        self._identity = secrets.token_hex(16)
        self.beside: weakref.WeakSet[MemoryEntries | MemoryItems] = weakref.WeakSet()
        """The items and caches opened over this backend."""
        process_forks.watch(self)

    def items(self, options: SearchOptions) -> MemoryItems:
        from threadkeep._stores.memory.items import MemoryItems  # noqa: PLC0415 - only for a store

        items = MemoryItems(options)
        self.beside.add(items)
        return items

    def cache(self) -> MemoryEntries:
        from threadkeep._stores.memory.cache import MemoryEntries  # noqa: PLC0415 - only for a cache

        entries = MemoryEntries()
        self.beside.add(entries)
        return entries

    def fetch(self, reads: Sequence[model.Read]) -> list[Any]:
        with self._lock:
            self._check_open()
            return [_REPLIES[type(read)](self._threads, read) for read in reads]

    def commit(self, change: Change) -> None:
        with self._lock:
            self._check_open()
            carry_out(self._threads, change)

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
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
        """Different in each process. See `Backend.identity`."""
        return self._identity

    def item_usage(self, now: int) -> ItemUsage:
        return ItemUsage().plus([one.usage(now) for one in tuple(self.beside)])

    def scrub(self, *, rewrite: bool) -> ScrubReport:
        """See `Backend.scrub`: there are no files."""
        del rewrite
        return ScrubReport()

    def close(self) -> None:
        """Discard every row. Idempotent."""
        with self._lock:
            self._closed = True
            self._threads.clear()

    def before_fork(self) -> None:
        """See `WatchedMethods.before_fork`: no other thread is in the middle of a change."""
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        """See `WatchedMethods.after_fork`: the child has a copy of the rows."""
        if in_child:
            self._identity = secrets.token_hex(16)
        self._lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(hint="Open a new one. The rows of this one, in memory, are gone.")


def _checkpoint(threads: MemoryThreads, read: model.ReadCheckpoint) -> model.ThreadState:
    thread = threads.get(read.thread, EMPTY)
    namespace = thread.namespaces.get(read.ns, EMPTY_NAMESPACE)
    row = namespace.head() if read.id is None else namespace.rows.get(read.id)
    found = thread.stored(read.thread, row) if row else None
    return model.ThreadState(thread.generation, thread.deleted_at, found, thread.tips, thread.life)


def _segments(threads: MemoryThreads, read: model.ReadSegments) -> list[model.Segment]:
    thread = threads.get(read.thread, EMPTY)
    if read.generation not in (None, thread.generation):
        return []
    if not all(tip in thread.tips for tip in read.base):
        return []
    return between(thread.heap.logs, read.spans)


def _path(threads: MemoryThreads, read: model.ReadPath) -> list[model.StoredCheckpoint]:
    thread = threads.get(read.thread, EMPTY)
    rows = thread.namespaces.get(read.ns, EMPTY_NAMESPACE).rows
    path: list[model.StoredCheckpoint] = []
    row = rows.get(read.id)
    while row is not None and len(path) < read.limit:
        path.append(thread.stored(read.thread, row))
        row = None if row.parent is None else rows.get(row.parent)
    return path


# -- scans ---------------------------------------------------------------------------


def _scan(threads: MemoryThreads, read: model.ScanCheckpoints) -> list[model.StoredCheckpoint]:
    # Equal ids keep the order of the iterators merged: thread, then namespace.
    found: list[Iterator[tuple[str, model.CheckpointRow]]] = []
    for name in _names(threads, read.prefix) if read.thread is None else [read.thread]:
        spaces = threads.get(name, EMPTY).namespaces
        names = sorted(spaces) if read.ns is None else [read.ns]
        found += [_visible(name, spaces.get(ns, EMPTY_NAMESPACE), read) for ns in names]
    page = islice(merge(*found, key=lambda at: at[1].id, reverse=True), read.limit)
    return [threads[name].stored(name, row) for name, row in page]


def _visible(
    name: str, namespace: MemoryNamespace, read: model.ScanCheckpoints
) -> Iterator[tuple[str, model.CheckpointRow]]:
    """Yield the rows of one namespace that the read asks for, with their thread."""
    after = read.after
    upper = [key for key in (read.id, after and after[0]) if key is not None]
    for row in namespace.visible_down(read.before, min(upper, default=None)):
        if read.id is not None and row.id != read.id:
            return
        if after is None or row.id < after[0] or (name, row.ns) > after[1:]:
            yield name, row


# -- housekeeping --------------------------------------------------------------------


def _thread(threads: MemoryThreads, read: model.ReadThread) -> model.ThreadRows:
    thread = threads.get(read.thread, EMPTY)
    checkpoints: list[model.StoredCheckpoint] = []
    orphans: list[model.WriteRow] = []
    for _, namespace in sorted(thread.namespaces.items()):
        checkpoints += (thread.stored(read.thread, namespace.rows[key]) for key in namespace.ids)
        for key in sorted(namespace.writes.keys() - namespace.rows.keys()):
            orphans += namespace.writes[key]
    places = (model.SegmentInfo(s.log, s.start, s.count, len(s.data)) for s in thread.segments())
    family = tuple(sorted(thread.heap.members - {read.thread}))
    state = (thread.generation, thread.deleted_at)
    rows = (*state, tuple(checkpoints), tuple(orphans), tuple(places), family)
    return model.ThreadRows(*rows)._replace(tips=thread.tips, life=thread.life)


def _find(threads: MemoryThreads, read: model.FindThreads) -> list[str]:
    def is_wanted(thread: MemoryThread) -> bool:
        if not read.run_ids:
            return read.empty or any(thread.rows())
        return any(run_id(row) in read.run_ids for row in thread.rows())

    names = _names(threads, read.prefix, read.after)
    return list(islice((name for name in names if is_wanted(threads[name])), read.limit))


def _names(threads: MemoryThreads, prefix: str, after: str | None = None) -> list[str]:
    found = [name for name in threads if name.startswith(prefix)] if prefix else threads
    return sorted(name for name in found if after is None or name > after)


def _sizes(threads: MemoryThreads, read: model.ReadSizes) -> model.Sizes:
    sizes = {name: _size(name, thread) for name, thread in threads.items() if thread.holds_rows()}
    total = sum(size.row_bytes + size.segment_bytes for size in sizes.values())
    page = [sizes[name] for name in _names(threads, read.prefix, read.after) if name in sizes]
    return model.Sizes(total, tuple(page[: read.limit]))


def _size(name: str, thread: MemoryThread) -> model.StoredThreadSize:
    rows, writes = list(thread.rows()), list(thread.writes())
    segments = list(thread.segments()) if name == min(thread.heap.members) else []
    row_bytes = sum(len(r.metadata) + len(r.exact or b"") + len(r.manifest) for r in rows)
    row_bytes += sum(len(write.body) for write in writes)
    segment_bytes = sum(len(segment.data) for segment in segments)
    return model.StoredThreadSize(
        name, len(rows), len(writes), len(segments), row_bytes, segment_bytes
    )


def _usage(threads: MemoryThreads, read: ReadUsage) -> StoreUsage:
    found: list[ThreadUsage] = []
    recent: list[tuple[str, int]] = []
    since = read.now - DAY
    for name, thread in threads.items():
        entry = thread.entry
        if (
            entry is not None
            and entry.state in thread_entry.WITH_CHECKPOINTS
            and not name.startswith(model.OWN_NS)
        ):
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


def _entry(threads: MemoryThreads, read: thread_entry.ReadEntry) -> thread_entry.ThreadEntry | None:
    return entry_of(threads.get(read.thread, EMPTY))


def _search(
    threads: MemoryThreads, read: thread_entry.SearchThreads
) -> list[thread_entry.ThreadEntry]:
    return first_entries(read, _matching(threads, read.query))


def _count(threads: MemoryThreads, read: thread_entry.CountThreads) -> int:
    states = read.query.states_alone
    if states is None:
        return len(_matching(threads, read.query))
    entries = [thread.entry for thread in threads.values()]
    return sum([entry is not None and entry.state in states for entry in entries])


def _matching(
    threads: MemoryThreads, query: thread_entry.ThreadQuery
) -> list[thread_entry.ThreadEntry]:
    entries = map(entry_of, threads.values())
    return [entry for entry in entries if entry is not None and matches(entry, query)]


def _damage(_threads: MemoryThreads, _read: model.ReadDamage) -> list[str]:
    return []


_REPLIES: dict[type[model.Read], Callable[[MemoryThreads, Any], Any]] = {
    model.ReadCheckpoint: _checkpoint,
    model.ReadSegments: _segments,
    model.ReadPath: _path,
    model.ScanCheckpoints: _scan,
    model.ReadThread: _thread,
    model.FindThreads: _find,
    model.ReadSizes: _sizes,
    ReadUsage: _usage,
    thread_entry.ReadEntry: _entry,
    thread_entry.SearchThreads: _search,
    thread_entry.CountThreads: _count,
    model.ReadDamage: _damage,
}


def opened(url: str) -> MemoryBackend:
    """Open a new store."""
    if url.lower() != "memory://":
        raise OpenError(
            f"{shown_url(url)} names a place, but memory has none.", hint="Write memory://."
        )
    return MemoryBackend()
