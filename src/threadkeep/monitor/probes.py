"""Measurements of a store: a canary, sizes, and a sliding window of operations."""

from __future__ import annotations

import random
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from statistics import linear_regression
from time import time as _now
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint

from threadkeep._core.engine.model import OWN_NS, DropThread, ReadSizes, Sizes
from threadkeep._core.engine.operation import Fetch, Operation, call, commit
from threadkeep._core.engine.registration import ALL, statuses
from threadkeep._core.engine.thread_entry import SearchThreads, ThreadEntry
from threadkeep._core.engine.usage import ItemUsage, ThreadStatuses
from threadkeep._run.delegate import behind, call_of
from threadkeep._run.driver import on
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep.errors import (
    ConflictError,
    CorruptionError,
    InvalidArgumentError,
    InvalidConfigError,
)

NS = f"{OWN_NS}canary"
_THREADS = [f"{NS}-{number:02}" for number in range(32)]
_TRIES = 5
_ABANDONED = 600  # seconds after which the monitor of a canary has crashed
_CHANNEL = "canary"


class Canary:
    """Canary of a store, on one of 32 threads that only canaries use.

    The threads have fixed names, so that the next monitor finds and removes a crash's leftovers in
    any store, without a search.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self._saver = saver
        self._inner = behind(saver)

    def probe(self) -> Operation[None]:
        """Write a canary, read it back, compare and delete it.

        Another monitor on the same thread looks like data loss, so a failed comparison is repeated
        on other threads.

        Raises:
            CorruptionError: the canary was not read back as it was written.
            Exception: any error of the saver.
        """
        *some, last = random.sample(_THREADS, _TRIES)
        for thread in some:
            with suppress(CorruptionError, ConflictError):
                yield from self._try(thread)
                return
        yield from self._try(last)

    def _try(self, thread: str) -> Operation[None]:
        try:
            yield from self._round_trip(thread)
        except Exception:
            with suppress(Exception):
                yield from self._delete(thread)
            raise
        yield from self._delete(thread)

    def _round_trip(self, thread: str) -> Operation[None]:
        token = secrets.token_hex(16)
        version = self._saver.get_next_version(None, None)
        checkpoint = empty_checkpoint()
        checkpoint["ts"] = datetime.fromtimestamp(_now(), UTC).isoformat()
        checkpoint["channel_values"] = {_CHANNEL: token}
        checkpoint["channel_versions"] = {_CHANNEL: version}
        metadata = {"source": "update", "step": 0, "parents": {}}
        stored = yield from call_of(
            self._saver, "put", _config(thread), checkpoint, metadata, {_CHANNEL: version}
        )
        yield from call_of(self._saver, "put_writes", stored, [(_CHANNEL, token)], token)
        found = yield from call_of(self._saver, "get_tuple", stored)
        if (
            found is None
            or found.checkpoint["id"] != checkpoint["id"]
            or found.checkpoint["channel_values"] != {_CHANNEL: token}
            or [tuple(write) for write in found.pending_writes or ()] != [(token, _CHANNEL, token)]
        ):
            raise CorruptionError("The canary was not read back as it was written.")

    def remove_abandoned(self) -> Operation[None]:
        """Remove canaries of monitors that crashed."""
        for thread in _THREADS:
            found = yield from call_of(self._inner, "get_tuple", _config(thread))
            if found is not None:
                made = datetime.fromisoformat(found.checkpoint["ts"]).timestamp()
                if _now() - made > _ABANDONED:
                    yield from self._delete(thread)

    def _delete(self, thread: str) -> Operation[None]:
        store = _store(self._inner)
        if store is not None:
            yield from on(store, commit(DropThread(thread, 0)))  # (0: leaves no tombstone)
            store.working_set.forget(thread)
        else:
            yield from call_of(self._saver, "delete_thread", thread)


def _config(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": NS}}


def _store(saver: Any) -> LayeredBackend | None:
    store = getattr(saver, "_store", None)
    return store if isinstance(store, LayeredBackend) else None


def statuses_of(saver: BaseCheckpointSaver[Any]) -> Operation[ThreadStatuses | None]:
    """Count the threads of a saver by status, or return None if they are not known."""
    store = _store(behind(saver))
    return None if store is None else (yield from on(store, statuses(round(_now() * 1e6))))


# -- the window --------------------------------------------------------------------------

SAMPLES = 300
DAY = 86400
_LEAST_SPAN = 3600  # seconds of sizes that a growth needs
_CALLERS_OWN = (ConflictError, InvalidArgumentError, InvalidConfigError)


@dataclass(frozen=True, slots=True)
class Rates:
    """Operations in a window, times in seconds, None without operations.

    `per_second` is None within the first second.
    """

    operations: int = 0
    failures: int = 0
    per_second: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None

    @property
    def error_rate(self) -> float | None:
        """The part of the operations that failed, 0 to 1."""
        return self.failures / self.operations if self.operations else None


class Window:
    """Sink that keeps the newest 300 operations, up to an age. Takes no lock.

    Args:
        seconds: the age at which an operation leaves the window.
        clock: returns monotonic seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._began = clock()
        self._samples: deque[tuple[float, float, bool]] = deque(maxlen=SAMPLES)

    def record(self, operation: str, seconds: float, error: BaseException | None) -> None:
        """Add an operation. Callers' mistakes, conflicts and cancellations are not failures."""
        del operation
        has_failed = isinstance(error, Exception) and not isinstance(error, _CALLERS_OWN)
        self._samples.append((self._clock(), seconds, has_failed))

    def rates(self) -> Rates:
        """Return the rates of the operations in the window."""
        now = self._clock()
        since = max(now - self._seconds, self._began)
        # (a copy, as other threads keep recording)
        samples = [one for one in self._samples.copy() if one[0] >= since]
        if len(samples) == SAMPLES:
            since = samples[0][0]
        passed = now - since
        is_known = passed > 0 and (passed >= 1 or len(samples) == SAMPLES)
        times = sorted([one[1] for one in samples])
        return Rates(
            operations=len(samples),
            failures=sum([one[2] for one in samples]),
            per_second=len(samples) / passed if is_known else None,
            p50=_percentile(times, 0.50),
            p95=_percentile(times, 0.95),
            p99=_percentile(times, 0.99),
        )


def _percentile(ordered: list[float], part: float) -> float | None:
    """Return the smallest value not below this part of all values, or None without values."""
    return ordered[ceil(part * len(ordered)) - 1] if ordered else None


def growth_per_day(sizes: Iterable[tuple[float, int]]) -> float | None:
    """Return the growth of sizes at times in seconds, in bytes a day (least squares).

    None within the first hour.
    """
    times, values = zip(*sizes, strict=True)
    if times[-1] - times[0] < _LEAST_SPAN:
        return None
    return linear_regression(times, values).slope * DAY


def days_until(size: int, per_day: float | None, limit: int | None) -> float | None:
    """Return the days until a size reaches a limit, or None without growth or limit."""
    if limit is None or not per_day or per_day <= 0:
        return None
    return max(limit - size, 0) / per_day


# -- sizes -------------------------------------------------------------------------------

_LARGEST = 100  # threads whose growth is followed


@dataclass(frozen=True, slots=True)
class ThreadSize:
    """Size of a thread.

    Args:
        thread: its id.
        bytes: approximate size of its rows and segments, as stored.
        growth_per_day: bytes a day, or None in the first hour.
        days_left: days until it reaches `max_thread_bytes` at this growth.
    """

    thread: str
    bytes: int
    growth_per_day: float | None
    days_left: float | None


@dataclass(frozen=True, slots=True)
class Storage:
    """Size of a store.

    Args:
        bytes: all of it, with the store's own overhead and free space.
        growth_per_day: bytes a day, or None in the first hour.
        threads: its 100 largest threads, the largest first.
        items: items of stores in the same database.
        item_bytes: bytes of their values, earlier versions and vectors.
        cache_entries: cached results of nodes in the same database.
        cache_bytes: their bytes.
    """

    bytes: int
    growth_per_day: float | None
    threads: tuple[ThreadSize, ...]
    items: int = 0
    item_bytes: int = 0
    cache_entries: int = 0
    cache_bytes: int = 0


class StorageHistory:
    """Sizes of a store and of its largest threads over time. Only for threadkeep's savers.

    Args:
        saver: any saver.
        limit: the threshold `max_thread_bytes`.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], limit: int | None) -> None:
        self._store = _store(behind(saver))
        self._limit = limit
        self._sizes: dict[str | None, deque[tuple[float, int]]] = {}  # None: the store's own

    def measure(self, now: float) -> Operation[Storage | None]:
        """Return the sizes at a time in seconds, or None if they are not known."""
        if self._store is None:
            return None
        found = yield from on(self._store, _sizes())
        beside: ItemUsage = yield from on(self._store, call("item_usage", round(_now() * 1e6)))
        self._sizes = {name: self._sizes.get(name) or deque(maxlen=SAMPLES) for name in found}
        for name, size in found.items():
            self._sizes[name].append((now, size))
        total = found.pop(None)
        threads = [self._thread(name, size) for name, size in found.items() if name is not None]
        return Storage(
            total,
            growth_per_day(self._sizes[None]),
            tuple(threads),
            items=beside.items,
            item_bytes=beside.item_bytes + beside.vector_bytes,
            cache_entries=beside.cache_entries,
            cache_bytes=beside.cache_bytes,
        )

    def _thread(self, name: str, size: int) -> ThreadSize:
        growth = growth_per_day(self._sizes[name])
        return ThreadSize(name, size, growth, days_until(size, growth, self._limit))


def _sizes() -> Operation[dict[str | None, int]]:
    """Return the sizes of the largest threads by name, and of the store under None."""
    query = SearchThreads(ALL, "size", descending=True, after=None, limit=_LARGEST)
    found, sizes = yield Fetch((query, ReadSizes(None, 1)))
    threads = [one for one in cast("list[ThreadEntry]", found) if not one.thread.startswith(OWN_NS)]
    largest: dict[str | None, int] = {one.thread: max(one.size, 0) for one in threads}
    # (a tenant's store has no total)
    return {None: max(cast("Sizes", sizes).total, sum(largest.values())), **largest}
