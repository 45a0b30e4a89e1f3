"""Leases: of all runs that miss a key, in any process, one computes its value."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import SystemRandom
from sys import getrefcount
from typing import Any, TypeAlias

from langgraph.cache.base import FullKey

from threadkeep._core.engine.operation import External, Fetch, Operation
from threadkeep._core.engine.snapshots import own_copy
from threadkeep._stores.caches import CacheCommit, GetEntries, LeaseEntries, RemoveEntries
from threadkeep._stores.process_forks import ResetInChild

_MOST = 1000
_COLLECTIONS = 3  # garbage collections for one lease. Between them, event loops close generators
_WAITS = 3  # lifetimes of a lease that a run waits for others
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25  # seconds between two reads while waiting
_RANDOM = SystemRandom()

Asker: TypeAlias = "asyncio.Task[Any] | threading.Thread"
Found: TypeAlias = tuple[dict[bytes, Any], dict[bytes, bytes]]
"""Values by id, and the owners of leases by id."""


class Lease:
    """A lease for the run that called `get` with this `key` object.

    LangGraph calls `get` and `set` with the same `str` object, so the object identifies the task.
    """

    __slots__ = ("asker", "collections", "key", "owner")

    def __init__(self, key: str, owner: bytes, asker: Asker) -> None:
        self.key, self.owner, self.asker = key, owner, weakref.ref(asker)
        self.collections = 0

    @property
    def has_ended(self) -> bool:
        """True if the run no longer holds its key: it ended without a value.

        LangGraph's runs are reference cycles. After the task or thread that asked has ended, this
        collects garbage, so that others do not wait in vain.
        """
        if self.collections < _COLLECTIONS and _has_ended(self.asker()):
            self.collections += 1
            gc.collect()
        return _references(self) <= _UNHELD


def _has_ended(asker: Asker | None) -> bool:
    if isinstance(asker, threading.Thread):
        return not asker.is_alive()
    return asker is None or asker.done()


def _references(lease: Lease) -> int:
    return getrefcount(lease.key)


_UNHELD = _references(Lease(own_copy("key"), b"", threading.current_thread()))
"""Number of references to a key that only its lease holds."""


class Leases(ResetInChild):
    """Leases of this process, by id. The oldest are dropped first, and then count as another's.

    The table needs no lock: all operations on it are atomic in CPython. Only the lease may hold its
    key.

    Args:
        lifetime: microseconds.
    """

    def __init__(self, lifetime: int) -> None:
        self._lifetime = lifetime
        super().__init__()

    def _reset(self) -> None:
        self._leases: dict[bytes, Lease] = {}

    def wait(
        self,
        read: Callable[[Sequence[bytes]], Operation[Found]],
        asked: Mapping[bytes, FullKey],
        values: dict[bytes, Any],
        leased: dict[bytes, bytes],
    ) -> Operation[None]:
        """Lease all missing keys. While another run has leased any of them, lease none, and wait.

        So no run waits while it holds leases from the same call.

        Args:
            read: function that reads ids.
            asked: the keys that the caller asked for, by id.
            values: the values that `read` returned. Later values are added.
            leased: the leases that `read` returned.
        """
        end = time.monotonic() + _WAITS * self._lifetime / 1e6
        pause = _FIRST_PAUSE
        while True:
            missing = [id_ for id_ in asked if id_ not in values]
            others = yield from self._others(asked, missing, leased)
            free = [id_ for id_ in missing if id_ not in leased]
            is_over = time.monotonic() >= end
            free_to_claim = is_over or not others
            if free_to_claim and (yield from self._claim(asked, free, partly=is_over)):
                return
            seconds = pause * _RANDOM.uniform(0.5, 1.0)
            yield External(partial(time.sleep, seconds), partial(asyncio.sleep, seconds))
            pause = min(1.5 * pause, _LONGEST_PAUSE)
            more, leased = yield from read(missing)
            values.update(more)

    def _others(
        self,
        asked: Mapping[bytes, FullKey],
        ids: Sequence[bytes],
        leased: dict[bytes, bytes],
    ) -> Operation[list[bytes]]:
        """End leases of ended runs of this process, and return the ids that other runs compute."""
        others = []
        for id_ in [id_ for id_ in ids if id_ in leased]:
            lease = self._leases.get(id_)
            if lease is None or lease.owner != leased[id_]:  # (of another process)
                others.append(id_)
            elif lease.key is asked[id_][1] or lease.asker() is _asker():
                continue  # (the same run asks again)
            elif lease.has_ended:
                yield CacheCommit(RemoveEntries((id_,), leased.pop(id_)))
            else:
                others.append(id_)
        return others

    def _claim(
        self,
        asked: Mapping[bytes, FullKey],
        free: Sequence[bytes],
        *,
        partly: bool,
    ) -> Operation[bool]:
        """Lease these ids, or return False, with nothing leased, if another run was faster."""
        if not free:
            return True
        owner, now = _RANDOM.randbytes(8), time.time_ns() // 1000
        yield CacheCommit(LeaseEntries(tuple(free), owner, now, now + self._lifetime))
        reads: Any = (GetEntries(tuple(free), now),)
        (rows,) = yield Fetch(reads)  # (who is first, is the owner)
        claimed = [id_ for id_ in free if rows.get(id_) == (None, owner)]
        if len(claimed) < len(free) and not partly:
            yield CacheCommit(RemoveEntries(tuple(claimed), owner))
            return False
        for id_ in claimed:
            self._leases[id_] = Lease(asked[id_][1], owner, _asker())
        while len(self._leases) > _MOST:
            self._leases.pop(next(iter(self._leases.copy())), None)
        return True


def _asker() -> Asker:
    """Return the current asyncio task, or else the thread.

    If it asks again, it no longer computes the earlier value.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task or threading.current_thread()
