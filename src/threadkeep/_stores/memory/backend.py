"""Memory backend: rows in this process under one lock. Replies share no container with rows."""

from __future__ import annotations

import secrets
import threading
import weakref
from bisect import bisect_right
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any

from threadkeep._core.engine import model, rule_reads, thread_entry
from threadkeep._core.engine.tips import names
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
from threadkeep._stores.base import ScrubReport
from threadkeep._stores.database import Database
from threadkeep._stores.derived import derived
from threadkeep._stores.memory.rows import (
    EMPTY_NAMESPACE,
    MemoryNamespace,
    MemoryRows,
    MemoryThread,
)
from threadkeep._stores.records import between, first_entries, matches, not_indexed, run_id
from threadkeep.errors import ClosedError, OpenError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from threadkeep._core.engine.heads import Head, Move
    from threadkeep._stores.items.records import SearchOptions
    from threadkeep._stores.memory.cache import MemoryEntries
    from threadkeep._stores.memory.items import MemoryItems


class MemoryBackend(Database):
    """Rows in this process's memory. The engine applies metadata filters of scans."""

    instant = True
    has_identity = True
    counts_usage = True
    indexes_messages = True

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._rows = MemoryRows()
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

    def keep_words(self, *, kept: bool) -> None:
        with self._lock:
            self._rows.keep_words(kept=kept)

    def fetch(self, reads: Sequence[Any]) -> list[Any]:
        with self._lock:
            self._check_open()
            return [self._reply(read) for read in reads]

    def _reply(self, read: Any) -> Any:
        if type(read) is model.ReadCheckpoint:
            self.heads.found(self._rows.head(read.thread))
        reply = _REPLIES.get(type(read))
        return derived(read, self._reply) if reply is None else reply(self._rows, read)

    def make(self, moves: Sequence[Move]) -> list[Head | None]:
        with self._lock:
            self._check_open()
            return [self._rows.make(move) for move in moves]

    def identity(self) -> str:
        """Different in each process. See `Backend.identity`."""
        return self._identity

    def item_usage(self, now: int) -> ItemUsage:
        return ItemUsage().plus([one.usage(now) for one in tuple(self.beside)])

    def scrub(self, *, rewrite: bool) -> ScrubReport:
        """There are no files."""
        del rewrite
        return ScrubReport()

    def close(self) -> None:
        """Discard every row. Idempotent."""
        with self._lock:
            self._closed = True
            self._rows.clear()
            self.heads.clear()

    def before_fork(self) -> None:
        """No other thread is in the middle of a change."""
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        """The child has a copy of the rows."""
        if in_child:
            self._identity = secrets.token_hex(16)
        self._lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(hint="Open a new one. The rows of this one, in memory, are gone.")


def _checkpoint(store: MemoryRows, read: model.ReadCheckpoint) -> model.ThreadState:
    thread = store.of(read.thread)
    namespace = thread.namespaces.get(read.ns, EMPTY_NAMESPACE)
    row = namespace.head() if read.id is None else namespace.rows.get(read.id)
    found = thread.stored(row) if row else None
    head = thread.head
    state = (head.generation, head.deleted_at, found, head.tips, head.life, head.logs)
    return model.ThreadState(*state)


def _segments(store: MemoryRows, read: model.ReadSegments) -> list[model.Segment]:
    thread = store.of(read.thread)
    head = thread.head
    if read.generation not in (None, head.generation) or not names(head.tips, read.base):
        return []
    return between(thread.heap, read.spans)


# -- scans ---------------------------------------------------------------------------


def _scan(store: MemoryRows, read: model.ScanCheckpoints) -> list[model.StoredCheckpoint]:
    # Equal ids keep the order of the iterators merged: thread, then namespace.
    found: list[Iterator[tuple[str, model.CheckpointRow]]] = []
    for name in _names(store, read.prefix) if read.thread is None else [read.thread]:
        spaces = store.of(name).namespaces
        names = sorted(spaces) if read.ns is None else [read.ns]
        found += [_visible(name, spaces.get(ns, EMPTY_NAMESPACE), read) for ns in names]
    page = islice(merge(*found, key=lambda at: at[1].id, reverse=True), read.limit)
    return [store.of(name).stored(row) for name, row in page]


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


def _thread(store: MemoryRows, read: model.ReadThread) -> model.ThreadRows:
    thread = store.of(read.thread)
    checkpoints: list[model.StoredCheckpoint] = []
    orphans: list[model.WriteRow] = []
    for _, namespace in sorted(thread.namespaces.items()):
        checkpoints += (thread.stored(namespace.rows[key]) for key in namespace.ids)
        for key in sorted(namespace.writes.keys() - namespace.rows.keys()):
            orphans += namespace.writes[key]
    places = (model.SegmentInfo(s.log, s.start, s.count, len(s.data)) for s in thread.heap.all())
    head = thread.head
    family = tuple([name for name in _family(store, thread) if name != read.thread])
    state = (head.generation, head.deleted_at)
    rows = (*state, tuple(checkpoints), tuple(orphans), tuple(places), family)
    return model.ThreadRows(*rows)._replace(tips=head.tips, life=head.life)


def _family(store: MemoryRows, thread: MemoryThread) -> list[str]:
    """Return the names of all threads that share a thread's heap, in order."""
    if not thread.head.heap:
        return [thread.head.thread] if thread.head.tips else []
    return sorted([name for name, one in store.threads.items() if one.heap is thread.heap])


def _find(store: MemoryRows, read: model.FindThreads) -> list[str]:
    def is_wanted(thread: MemoryThread) -> bool:
        if not read.run_ids:
            return read.empty or any(thread.rows())
        return any(run_id(row) in read.run_ids for row in thread.rows())

    names = _names(store, read.prefix, read.after)
    return list(islice((name for name in names if is_wanted(store.of(name))), read.limit))


def _names(store: MemoryRows, prefix: str, after: str | None = None) -> list[str]:
    found = [name for name in store.threads if name.startswith(prefix)] if prefix else store.threads
    return sorted(name for name in found if after is None or name > after)


def _usage(store: MemoryRows, read: ReadUsage) -> StoreUsage:
    found: list[ThreadUsage] = []
    recent: list[tuple[str, int]] = []
    since = read.now - DAY
    for name, thread in store.threads.items():
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
            counts = (entry.size, len(times), writes, len(new), entry.updated_at)
            found.append(ThreadUsage(name, *counts))
            recent += new
    return usage_of(
        read, sum([thread.head.size for thread in store.threads.values()]), found, recent
    )


# -- the registry --------------------------------------------------------------------


def _entry(store: MemoryRows, read: thread_entry.ReadEntry) -> thread_entry.ThreadEntry | None:
    return store.of(read.thread).entry


def _search(store: MemoryRows, read: thread_entry.SearchThreads) -> list[thread_entry.ThreadEntry]:
    return first_entries(read, _matching(store, read.query))


def _count(store: MemoryRows, read: thread_entry.CountThreads) -> int:
    states = read.query.states_alone
    if states is None:
        return len(_matching(store, read.query))
    return sum([thread.head.state in states for thread in store.threads.values()])


def _matching(store: MemoryRows, query: thread_entry.ThreadQuery) -> list[thread_entry.ThreadEntry]:
    threads: Iterable[MemoryThread] = store.threads.values()
    if query.words or query.unindexed:
        if store.words is None:
            raise not_indexed()
        threads = [one for one in threads if store.words.matches(one.head, query)]
    if query.statuses and "done" not in query.statuses:  # (seen without making their entries)
        wanted = query.statuses
        threads = [one for one in threads if one.head.lease_until or one.head.status in wanted]
    entries = [thread.entry for thread in threads]
    return [entry for entry in entries if entry is not None and matches(entry, query)]


# -- reads of the rules --------------------------------------------------------------


def _head(store: MemoryRows, read: rule_reads.ReadHead) -> Head:
    return store.head(read.thread)


def _newer(store: MemoryRows, read: rule_reads.ReadNewer) -> list[str]:
    namespace = store.of(read.head.thread).namespaces.get(read.ns, EMPTY_NAMESPACE)
    first = 0 if read.id is None else bisect_right(namespace.ids, read.id)
    return [id for id in namespace.ids[first:] if not namespace.rows[id].flags & model.NESTED][
        : read.limit
    ]


def _has_others(store: MemoryRows, read: rule_reads.HasOthers) -> bool:
    namespace = store.of(read.head.thread).namespaces.get(read.ns, EMPTY_NAMESPACE)
    rows = namespace.writes.get(read.checkpoint_id, ())
    return any(row.run != read.run and row.seq > read.seen for row in rows)


def _ends(store: MemoryRows, read: rule_reads.ReadEnds) -> dict[int, int]:
    heap = store.of(read.head.thread).heap
    logs = [heap[log] for log in read.logs if log in heap and heap[log].starts]
    last = [log.segments[log.starts[-1]] for log in logs]
    return {segment.log: segment.stop for segment in last}


_REPLIES: dict[Any, Callable[[MemoryRows, Any], Any]] = {
    rule_reads.ReadHead: _head,
    rule_reads.ReadNewer: _newer,
    rule_reads.HasOthers: _has_others,
    rule_reads.ReadEnds: _ends,
    model.ReadCheckpoint: _checkpoint,
    model.ReadSegments: _segments,
    model.ScanCheckpoints: _scan,
    model.ReadThread: _thread,
    model.FindThreads: _find,
    ReadUsage: _usage,
    thread_entry.ReadEntry: _entry,
    thread_entry.SearchThreads: _search,
    thread_entry.CountThreads: _count,
}


def opened(url: str) -> MemoryBackend:
    """Open a new store."""
    if url.lower() != "memory://":
        raise OpenError(
            f"{shown_url(url)} names a place, but memory has none.", hint="Write memory://."
        )
    return MemoryBackend()
