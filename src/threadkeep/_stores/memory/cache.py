"""Cache in this process's memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from threading import Lock
from typing import Any

from threadkeep._core.engine.usage import ItemUsage
from threadkeep._stores.caches import (
    PAGE,
    CacheBackend,
    CacheChange,
    CacheRow,
    ClearEntries,
    GetEntries,
    LeaseEntries,
    ReadUses,
    RemoveEntries,
    SetEntries,
    UseEntries,
    Uses,
)
from threadkeep._stores.process_forks import ResetInChild


class MemoryEntries(CacheBackend, ResetInChild):
    """Rows behind one lock, with the time at which they expire, the least recently used first."""

    instant = True

    def __init__(self) -> None:
        self._entries: dict[bytes, tuple[CacheRow, int | None]] = {}
        self._size = 0
        super().__init__()

    def _reset(self) -> None:
        self._lock = Lock()

    def fetch(self, reads: Sequence[Any]) -> list[Any]:
        """Each read is a use."""
        with self._lock:
            return [self._reply(read) for read in reads]

    def _reply(self, read: GetEntries | ReadUses) -> dict[bytes, CacheRow] | Uses:
        if isinstance(read, ReadUses):
            rows = ((id_, len(row[0] or b""), end) for id_, (row, end) in self._entries.items())
            expired = ((id_, size) for id_, size, end in rows if end and end <= read.now)
            oldest = islice(self._entries.items(), PAGE)
            sizes = [(id_, len(row[0] or b"")) for id_, (row, _) in oldest]
            return Uses(len(self._entries), self._size, list(islice(expired, PAGE)), sizes)
        return self._get(read)

    def _get(self, read: GetEntries) -> dict[bytes, CacheRow]:
        entries, found = self._entries, {}
        for id_ in read.ids:
            entry = entries.get(id_)
            if entry is not None and (entry[1] is None or entry[1] > read.now):
                del entries[id_]
                entries[id_] = entry  # (as the last one)
                found[id_] = entry[0]
        return found

    def commit(self, change: Any) -> None:
        with self._lock:
            self._carry_out(change)

    def _carry_out(self, change: CacheChange) -> None:
        match change:
            case SetEntries():
                for id_, value, expires_at in change.entries:
                    self._put(id_, (value, None), expires_at)
            case LeaseEntries(ids, owner, now, until):
                found = self._get(GetEntries(ids, now))
                for id_ in ids:
                    if id_ not in found:
                        self._put(id_, (None, owner), until)
            case RemoveEntries(ids, owner):
                entries = self._entries
                self._remove(
                    [id_ for id_ in ids if id_ in entries and owner in (None, entries[id_][0][1])]
                )
            case ClearEntries(spaces):
                self._remove(
                    [id_ for id_ in self._entries if spaces is None or id_.startswith(spaces)]
                )
            case UseEntries():
                pass  # (reads note uses)

    def _put(self, id_: bytes, row: CacheRow, expires_at: int | None) -> None:
        if id_ in self._entries:
            self._remove([id_])
        self._entries[id_] = (row, expires_at)
        self._size += len(row[0] or b"")

    def _remove(self, ids: Iterable[bytes]) -> None:
        for id_ in ids:
            entry = self._entries.pop(id_, None)
            if entry is not None:
                self._size -= len(entry[0][0] or b"")

    def usage(self, now: int) -> ItemUsage:
        """Count the values. See `Backend.item_usage`."""
        del now
        with self._lock:
            values = len([row for row, _ in self._entries.values() if row[0] is not None])
            return ItemUsage(cache_entries=values, cache_bytes=self._size)
