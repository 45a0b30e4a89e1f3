"""Counters of savers, stores and caches as metrics: read and summed up by backend."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeVar

from threadkeep._core.engine.usage import Counters
from threadkeep._stores.process_forks import ResetInChild

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Metric(NamedTuple):
    """A metric that is exported: the attribute of `Counters` for each tuple of values of labels."""

    name: str
    help: str
    attributes: Mapping[tuple[str, ...], str]
    labels: tuple[str, ...] = ()
    gauge: Literal["", "sum", "max"] = ""
    """Of a value that also falls: how the values of several processes become one."""


METRICS = (
    Metric("written_bytes", "Bytes that saves have stored.", {(): "written_bytes"}),
    Metric(
        "saved_bytes",
        "Bytes that a whole copy of the state per checkpoint would have taken beyond that.",
        {(): "saved_bytes"},
    ),
    Metric(
        "cache_hits",
        "Values that a cache had.",
        {
            ("working_set",): "working_set_hits",
            ("segments",): "cache_hits",
            ("results",): "result_hits",
            ("vectors",): "vector_hits",
        },
        labels=("cache",),
    ),
    Metric(
        "cache_misses",
        "Values that a cache did not have.",
        {
            ("working_set",): "working_set_misses",
            ("segments",): "cache_misses",
            ("results",): "result_misses",
            ("vectors",): "vector_misses",
        },
        labels=("cache",),
    ),
    Metric(
        "cache_evictions",
        "Values that a cache removed to stay within its limits.",
        {("results",): "result_evictions"},
        labels=("cache",),
    ),
    Metric("embedding_calls", "Calls of the embedding model.", {(): "embedding_calls"}),
    Metric(
        "embedding_failures",
        "Calls of the embedding model that failed.",
        {(): "embedding_failures"},
    ),
    Metric("conflicts", "Runs that met another run of their thread.", {(): "conflicts"}),
    Metric("retries", "Calls of the store that were made again.", {(): "retries"}),
    Metric(
        "queued_saves",
        "Saves that wait to be stored (write-behind).",
        {(): "queued"},
        gauge="sum",
    ),
    Metric(
        "queued_bytes",
        "Bytes of the saves that wait to be stored.",
        {(): "queued_bytes"},
        gauge="sum",
    ),
    Metric(
        "queue_used_ratio",
        "Part of max_pending_bytes that the fullest queue takes.",
        {(): "queue_used"},
        gauge="max",
    ),
)


class Totals(ResetInChild):
    """Counters of savers, stores and caches, summed up by backend.

    One that is gone counts as it was last seen, so that counters never decrease.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[weakref.ref[Any], tuple[str, Counters]] = {}
        self._gone: dict[str, Counters] = {}

    def _reset(self) -> None:
        self._lock = threading.Lock()

    def add(self, saver: object, backend: str, observer: object) -> None:
        """Count a saver, store or cache in, once; nothing if it has no counters.

        It is read a last time when what observes it is gone.
        """
        counters = getattr(saver, "counters", None)
        if callable(counters):
            owner = getattr(counters, "__self__", saver)  # (behind others that pass calls on)
            ref = weakref.ref(owner)
            with self._lock:
                self._last.setdefault(ref, (backend, Counters()))
            weakref.finalize(observer, self._see, ref, owner).atexit = False

    def _see(self, ref: weakref.ref[Any], saver: Any) -> Counters:
        """Read a saver. Takes no lock: the garbage collector may call this anywhere."""
        counters: Counters = saver.counters()
        self._last[ref] = self._last[ref][0], counters
        return counters

    def read(self) -> dict[str, Counters]:
        """Return the sums by backend."""
        with self._lock:
            totals = dict(self._gone)
            for ref in list(self._last):
                saver = ref()
                backend, last = self._last[ref]
                if saver is not None:
                    last = self._see(ref, saver)
                else:
                    last = replace(last, queued=0, queued_bytes=0, queue_used=0.0)
                    self._gone[backend] = self._gone.get(backend, Counters()) + last
                    del self._last[ref]
                totals[backend] = totals.get(backend, Counters()) + last
            return totals


def made_once(make: Callable[[K], V]) -> Callable[[K], V]:
    """Return a function that calls `make` once for each key, for as long as the key is there."""
    lock = threading.Lock()
    known: weakref.WeakKeyDictionary[K, V] = weakref.WeakKeyDictionary()

    def get(key: K) -> V:
        with lock:
            if key not in known:
                known[key] = make(key)
            return known[key]

    return get
