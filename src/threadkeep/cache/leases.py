"""Leases that this process has: which run computes the value of a key."""

from __future__ import annotations

import asyncio
import threading
from sys import getrefcount

from threadkeep.engine.snapshots import own_copy

_MOST = 1000


class Lease:
    """A lease for the run that asked with this very `key` object.

    LangGraph asks and answers with one `str` object for a task, so that it names the task.
    """

    __slots__ = ("asker", "key", "owner")

    def __init__(self, key: str, owner: bytes, asker: int) -> None:
        self.key, self.owner, self.asker = key, owner, asker

    @property
    def has_ended(self) -> bool:
        """True if the run holds its key no more: it ended before it had a value.

        LangGraph's runs are reference cycles: it may take until the next garbage collection.
        """
        return _references(self) <= _UNHELD


def _references(lease: Lease) -> int:
    return getrefcount(lease.key)


_UNHELD = _references(Lease(own_copy("key"), b"", 0))
"""References to a key that only its lease holds."""


class Leases:
    """Table of the leases of this process, by id; the oldest are forgotten first.

    What is forgotten is taken for another process's. Only operations that are atomic in CPython
    touch the table: no lock. Nothing of ours but the lease may hold its key.
    """

    def __init__(self) -> None:
        self._leases: dict[bytes, Lease] = {}

    def add(self, id_: bytes, lease: Lease) -> None:
        """Remember a lease."""
        self._leases[id_] = lease
        while len(self._leases) > _MOST:
            self._leases.pop(next(iter(self._leases.copy())), None)

    def of(self, id_: bytes, owner: bytes) -> Lease | None:
        """Return the lease of this owner; None if it is another process's."""
        lease = self._leases.get(id_)
        return lease if lease is not None and lease.owner == owner else None


def asker() -> int:
    """Return a number of the asyncio task, else the thread, that runs.

    It does one thing at a time: whoever asks again computes nothing any more.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident() if task is None else id(task)
