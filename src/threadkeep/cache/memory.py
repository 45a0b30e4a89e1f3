"""Cache in this process's memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple

from threadkeep.backends.process_forks import ResetInChild
from threadkeep.cache.backend import (
    AT_ONCE,
    CacheBackend,
    Change,
    Claim,
    ClearEntries,
    GetEntries,
    Limits,
    RemoveEntries,
    Row,
    SetEntries,
    UseEntries,
    surplus,
)
from threadkeep.errors import ThreadkeepError


class _Held(NamedTuple):
    row: Row
    expires_at: int | None

    @property
    def size(self) -> int:
        return len(self.row.value or b"")


class MemoryEntries(CacheBackend, ResetInChild):
    """Rows behind one lock, the least recently used first."""

    instant = True

    def __init__(self) -> None:
        self._entries: dict[bytes, _Held] = {}
        self._size = 0
        super().__init__()

    def _reset(self) -> None:
        self._lock = Lock()

    def fetch(self, reads: Sequence[Any]) -> list[Any]:
        """See `CacheBackend`."""
        with self._lock:
            return [self._get(read) for read in reads]

    def _get(self, read: GetEntries) -> list[Row | None]:
        found = [self._alive(id_, read.now) for id_ in read.ids]
        return [one and one.row for one in found]

    def _alive(self, id_: bytes, now: int) -> _Held | None:
        one = self._entries.get(id_)
        return None if one is None or _has_expired(one, now) else one

    def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        """See `CacheBackend`."""
        with self._lock:
            for change in changes:
                self._carry_out(change)
        return [None] * len(changes)

    def _carry_out(self, change: Change) -> None:
        match change:
            case SetEntries():
                for id_, value, expires_at in change.entries:
                    self._put(id_, Row(value, None, change.now), expires_at)
            case UseEntries():
                for id_ in change.ids:
                    if one := self._entries.get(id_):
                        self._put(id_, one.row._replace(used_at=change.now), one.expires_at)
            case RemoveEntries():
                self._remove(change.ids, change.owner)
            case ClearEntries():
                spaces = change.spaces
                self._remove([one for one in self._entries if spaces is None or one[:8] in spaces])

    def _remove(self, ids: Iterable[bytes], owner: bytes | None = None) -> None:
        for id_ in ids:
            one = self._entries.get(id_)
            if one is not None and owner in (None, one.row.owner):
                self._drop(id_)

    def _put(self, id_: bytes, row: Row, expires_at: int | None) -> None:
        self._drop(id_)
        self._entries[id_] = one = _Held(row, expires_at)
        self._size += one.size

    def _drop(self, id_: bytes) -> None:
        one = self._entries.pop(id_, None)
        if one is not None:
            self._size -= one.size

    def claim(self, claim: Claim) -> list[bytes]:
        """See `CacheBackend.claim`."""
        with self._lock:
            free = [id_ for id_ in claim.ids if self._alive(id_, claim.now) is None]
            for id_ in free:
                self._put(id_, Row(None, claim.owner, claim.now), claim.until)
            return free

    def trim(self, now: int, limits: Limits) -> None:
        """See `CacheBackend.trim`."""
        with self._lock:
            self._remove([id_ for id_, one in self._entries.items() if _has_expired(one, now)])
            over = Limits(len(self._entries) - limits.entries, self._size - limits.size)
            oldest = ((id_, one.size) for id_, one in islice(self._entries.items(), AT_ONCE))
            self._remove(list(surplus(oldest, over)))


def _has_expired(one: _Held, now: int) -> bool:
    return one.expires_at is not None and one.expires_at <= now
