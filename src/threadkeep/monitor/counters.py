"""Counters that savers keep anyway, read and summed up when somebody asks."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of a saver since it was opened, in this process. See `Saver.counters`.

    Attributes:
        written_bytes: bytes that saves have stored.
        saved_bytes: bytes that they did not store, as the store had them already: about what one
            whole, uncompressed copy of the state per checkpoint takes, less what was written.
        working_set_hits: loads of runs that found values of their thread in memory.
        working_set_misses: loads of runs that did not.
        cache_hits: reads that `cache=` or `hot=` answered.
        cache_misses: reads of which the store answered some.
        conflicts: runs that left the head of another run behind (`Saver.forked_runs`), and saves
            that were refused for that.
        retries: calls of the store that were made again after a failure that passes, and saves
            that were built again as another process had come in between.
        queued: saves that were acknowledged and are not stored yet (`write_behind=`).
        queued_bytes: bytes of these.
    """

    written_bytes: int = 0
    saved_bytes: int = 0
    working_set_hits: int = 0
    working_set_misses: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    conflicts: int = 0
    retries: int = 0
    queued: int = 0
    queued_bytes: int = 0

    def __add__(self, other: Counters) -> Counters:
        """Return the sums."""
        names = [one.name for one in fields(self)]
        return Counters(*[getattr(self, name) + getattr(other, name) for name in names])


# As they are exported, by name: the help, and the attribute for each value of the label "cache".
EXPORTED: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "written_bytes": ("Bytes that saves have stored.", {"": "written_bytes"}),
    "saved_bytes": (
        "Bytes that a whole copy of the state per checkpoint would have taken beyond that.",
        {"": "saved_bytes"},
    ),
    "cache_hits": (
        "Reads that memory or the hot store answered.",
        {"working_set": "working_set_hits", "segments": "cache_hits"},
    ),
    "cache_misses": (
        "Reads that the store had to answer.",
        {"working_set": "working_set_misses", "segments": "cache_misses"},
    ),
    "conflicts": ("Runs that met another run of their thread.", {"": "conflicts"}),
    "retries": ("Calls of the store that were made again.", {"": "retries"}),
}
EXPORTED_GAUGES: Mapping[str, tuple[str, str]] = {
    "queued_saves": ("Saves that wait to be stored (write-behind).", "queued"),
    "queued_bytes": ("Bytes of the saves that wait to be stored.", "queued_bytes"),
}


class Totals:
    """Counters of savers, summed up by backend.

    A saver that is gone counts as it was last seen, so that counters never decrease.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._savers: list[_Watched] = []
        self._gone: dict[str, Counters] = {}

    def add(self, saver: object, backend: str) -> None:
        """Count a saver in, once, for as long as it is there; nothing if it has no counters."""
        counters = getattr(saver, "counters", None)
        if callable(counters):
            owner = getattr(counters, "__self__", saver)  # (behind others that pass calls on)
            with self._lock:
                if not any(one.is_of(owner) for one in self._savers):
                    self._savers.append(_Watched(owner, backend))

    def read(self) -> dict[str, Counters]:
        """Return the sums by backend."""
        with self._lock:
            there = []
            for one in self._savers:
                if one.read():
                    there.append(one)
                else:
                    last = replace(one.last, queued=0, queued_bytes=0)
                    self._gone[one.backend] = self._gone.get(one.backend, Counters()) + last
            self._savers = there
            totals = dict(self._gone)
            for one in there:
                totals[one.backend] = totals.get(one.backend, Counters()) + one.last
            return totals


class _Watched:
    """A saver as long as somebody uses it, and its counters when they were last read."""

    def __init__(self, saver: Any, backend: str) -> None:
        self.backend = backend
        self.last = Counters()
        self._saver = weakref.ref(saver)

    def is_of(self, saver: object) -> bool:
        return self._saver() is saver

    def read(self) -> bool:
        """Read the counters; return False if the saver is gone."""
        saver = self._saver()
        if saver is not None:
            self.last = saver.counters()
        return saver is not None
