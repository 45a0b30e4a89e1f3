"""Statistics of a store: counts of all threads, and the parts of a sample or of all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeAlias

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from threadkeep._core.engine import registration, thread_sizes
from threadkeep._core.engine.model import OWN_NS
from threadkeep._core.engine.operation import Operation, call
from threadkeep._core.engine.rows import pack_time
from threadkeep._core.engine.thread_sizes import ChannelStats, ThreadStats
from threadkeep._core.engine.usage import (
    DAY,
    STATUSES,
    ItemUsage,
    ReadUsage,
    StoreUsage,
    ThreadUsage,
    usage_of,
)
from threadkeep._core.texts import plural, size
from threadkeep._core.validation import MICROSECOND
from threadkeep._run import driver
from threadkeep._run.delegate import behind
from threadkeep.errors import CorruptionError, DestroyedKeyError, invalid
from threadkeep.threads.registry import EPOCH
from threadkeep.threads.statistics_report import MOST, Stats

IDLE_DAYS = 30
_SAMPLE = 40  # threads, besides the largest
_SAMPLE_BYTES = 64 << 20
_SAMPLE_CHECKPOINTS = 5_000
LISTED = 1_000  # checkpoints of another LangGraph saver that are counted
_LISTED_BYTES = 256 << 20

_PARTS = ("manifests", "pending_writes", "metadata", "unreferenced")


# -- our savers --------------------------------------------------------------------------

_Measured: TypeAlias = list[tuple[ThreadStats, list[ChannelStats]]]
_LeftOut: TypeAlias = list[tuple[ThreadUsage, float]]  # threads that are not read, their weights


def count(now: int, *, counts_usage: bool, exact: bool = False) -> Operation[Stats]:
    """Count a store as of a time, with `exact` each part of each thread, which reads them all."""
    read = ReadUsage(now, now - IDLE_DAYS * DAY, _SAMPLE)
    found = yield from thread_sizes.usage(read, counts_usage=counts_usage)
    beside: ItemUsage = yield from call("item_usage", now)
    left: _LeftOut = []
    if exact:
        every = yield from thread_sizes.all_sizes()
        weights = dict.fromkeys([one.thread for one in every.threads], 1.0)
    else:
        weights, left = _weights(found)
    measured: _Measured = []
    families: Any = {}
    damaged: list[str] = []
    for thread in sorted(weights):
        try:
            one, channels = yield from thread_sizes.thread_stats(thread, families)
        except (CorruptionError, DestroyedKeyError):
            damaged.append(thread)
            continue
        if one.bytes or one.checkpoints or one.writes:
            measured.append((replace(one, weight=weights[thread]), channels))
    if damaged:
        known = {one.thread: one for one in (*found.largest, *found.sample)}
        left += [(known[name], weights[name]) for name in damaged if name in known]
        names = ", ".join(map(ascii, damaged[:MOST]))
        note = f"{plural(len(damaged), 'thread')} not read: {names} (threadkeep check)"
        found = found._replace(notes=(*found.notes, note))
    is_whole = not damaged and (exact or len(weights) >= found.threads)
    copies = yield from _copies(left)
    unread = round(sum([one.bytes * weight for one, weight in left]))
    by_status = yield from registration.statuses(now)
    return replace(
        _measured_stats(now, found, beside, measured, unread, copies, is_whole=is_whole),
        statuses={name: getattr(by_status, name) for name in STATUSES},
        oldest_unfinished=by_status.oldest_unfinished,
    )


def _copies(left: _LeftOut) -> Operation[int]:
    """Estimate the full copies of threads that are not read: at least their bytes."""
    total, most = 0.0, _SAMPLE_BYTES
    for one, weight in sorted(left, key=lambda each: -each[0].bytes * each[1]):
        copies = 0
        if most > 0:
            with suppress(CorruptionError, DestroyedKeyError):
                copies, read = yield from thread_sizes.sampled_copies(one)
                most -= read
        total += max(copies, one.bytes) * weight
    return round(total)


def _weights(found: StoreUsage) -> tuple[dict[str, float], _LeftOut]:
    """Choose the threads to read, each with its weight. Return them and the rest.

    The largest threads have weight 1, and a sample represents the rest. Threads that take too long
    to read are left out, but at least the smallest thread is read.
    """
    largest = {one.thread: one for one in found.largest[:MOST]}
    more = (*found.sample, *(found.largest if found.threads <= _SAMPLE else ()))
    others = {one.thread: one for one in more if one.thread not in largest}
    alone, sampled = (sum([one.bytes for one in some.values()]) for some in (largest, others))
    weight = max((found.bytes - alone) / sampled, 1.0) if sampled else 1.0
    left = [_SAMPLE_BYTES, _SAMPLE_CHECKPOINTS]
    weights: dict[str, float] = {}
    left_out: _LeftOut = []
    for one in sorted([*largest.values(), *others.values()], key=lambda one: one.bytes):
        own = 1.0 if one.thread in largest else weight
        if not weights or (one.bytes <= left[0] and one.checkpoints <= left[1]):
            weights[one.thread] = own
            left = [left[0] - one.bytes, left[1] - one.checkpoints]
        else:
            left_out.append((one, own))
    return weights, left_out


def _measured_stats(
    now: int,
    found: StoreUsage,
    beside: ItemUsage,
    measured: _Measured,
    unread: int,
    copies: int,
    *,
    is_whole: bool,
) -> Stats:
    """Make the statistics of a store from its counts and the parts of measured threads."""
    threads = tuple([one for one, _ in measured])
    if is_whole:
        names = ("checkpoints", "writes", "bytes")
        totals = {name: sum([getattr(one, name) for one in threads]) for name in names}
        found = found._replace(threads=len(threads), **totals)
    else:
        left_out = (
            f"; {size(unread)} of others not read, full copies from samples" if unread else ""
        )
        note = f"channels, parts and full copies, from {plural(len(threads), 'thread')}{left_out}"
        found = found._replace(notes=(*found.notes, note))

    def total(name: str) -> int:
        sizes: list[float] = [getattr(one, name) * one.weight for one in threads]
        return round(sum(sizes))

    return _complete(
        now,
        found,
        [(channel, one.weight) for one, some in measured for channel in some],
        bytes_on_disk=found.total,
        by_thread=threads,
        parts={**{name: total(name) for name in _PARTS}, "unread": unread},
        unread_copies=copies,
        compression_saved=total("compression_saved"),
        **beside._asdict(),
    )


def _complete(
    now: int,
    found: StoreUsage,
    channels: Iterable[tuple[ChannelStats, float]],
    unread_copies: int = 0,
    **fields: Any,
) -> Stats:
    """Make statistics. Each channel has the weight of its thread."""
    merged = _merged(channels)
    return Stats(
        at=EPOCH + now * MICROSECOND,
        threads=found.threads,
        checkpoints=found.checkpoints,
        writes=found.writes,
        bytes=found.bytes,
        full_copy_bytes=sum([one.full_copy_bytes for one in merged]) + unread_copies,
        channels=tuple(sorted(merged, key=lambda one: (-one.bytes, one.name))),
        hours=found.hours,
        largest=found.largest[:MOST],
        busiest=found.busiest[:MOST],
        idle_threads=found.idle_threads,
        idle_bytes=found.idle_bytes,
        estimated=bool(found.notes),
        note="; ".join(found.notes),
        missing_indexes=found.missing_indexes,
        **fields,
    )


def _merged(found: Iterable[tuple[ChannelStats, float]]) -> list[ChannelStats]:
    """Add up channels by name."""
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for one, weight in found:
        own = sums[one.name]
        own[0] += one.bytes * weight
        own[1] += one.full_copy_bytes * weight
        own[2] += one.changes * weight
        own[3] = max(own[3], one.longest)
    return [ChannelStats(name, *map(round, own)) for name, own in sums.items()]


# -- any saver ---------------------------------------------------------------------------


def _stats(
    saver: BaseCheckpointSaver[Any],
    *,
    exact: bool = False,
    max_age: timedelta | float | None = None,
) -> Operation[Stats]:
    """Return the statistics of any saver.

    A threadkeep saver returns its own, `saver.stats()`. For another saver, the first 1,000
    checkpoints that `list()` returns are counted, with the bytes that its serializer makes.

    Args:
        saver: the saver.
        exact: count the parts of every thread (see `Saver.stats`). Other savers ignore it.
        max_age: accept older statistics (see `Saver.stats`). Other savers ignore it.

    Raises:
        InvalidArgumentError: `saver` is not a saver, or the other arguments are invalid.
    """
    if not isinstance(saver, BaseCheckpointSaver):
        raise invalid("saver", saver, "Use a LangGraph saver, such as SqliteSaver(path).")
    inner = behind(saver)
    if hasattr(inner, "astats"):
        asked = {"exact": exact, "max_age": max_age}
        own = partial(inner.stats, **asked), partial(inner.astats, **asked)
        found: Stats = yield from driver.sync_or_async(*own)
        return found

    counts = _Listed(saver.serde)

    def listed() -> None:
        for one in saver.list(None, limit=LISTED):
            if counts.add(one):
                break

    async def alisted() -> None:
        async for one in saver.alist(None, limit=LISTED):
            if counts.add(one):
                break

    yield from driver.sync_or_async(listed, alisted)
    return counts.stats(datetime.now(UTC))


stats, astats = driver.sync_and_async(_stats)
of_saver = _stats


class _Listed:
    """Counts of listed checkpoints, with the bytes that the saver's serializer makes."""

    def __init__(self, serde: Any) -> None:
        self._serde = serde
        self._sizes: dict[tuple[str, ...], int] = {}  # thread, namespace, channel, version
        self._channels: list[tuple[ChannelStats, float]] = []
        self._threads: dict[str, tuple[int, int, list[int]]] = {}  # bytes, writes, times
        self._count = self._read = self._pending = 0

    def add(self, one: CheckpointTuple) -> bool:
        """Add a checkpoint, and return True if no more are needed."""
        place, checkpoint = one.config["configurable"], one.checkpoint
        thread, ns = str(place["thread_id"]), str(place.get("checkpoint_ns", ""))
        if not ns.startswith(OWN_NS):
            size, writes, times = self._threads.get(thread, (0, 0, []))
            for name, value in checkpoint["channel_values"].items():
                version = str(checkpoint["channel_versions"].get(name))
                size += self._add_value((thread, ns, name, version), value)
            pending = sum([self._size(value) for _, _, value in one.pending_writes or ()])
            writes += len({task for task, *_ in one.pending_writes or ()})
            stored_at = pack_time(checkpoint["ts"])
            times.append(stored_at if isinstance(stored_at, int) else 0)
            self._threads[thread] = size + pending, writes, times
            self._count += 1
            self._pending += pending
            self._read += pending
        return self._is_full

    @property
    def _is_full(self) -> bool:
        return self._count >= LISTED or self._read > _LISTED_BYTES

    def _size(self, value: Any) -> int:
        return len(self._serde.dumps_typed(value)[1])

    def _add_value(self, key: tuple[str, str, str, str], value: Any) -> int:
        """Add a value of a channel, and return its size if the version is new, else 0."""
        is_new = key not in self._sizes
        if is_new:
            self._sizes[key] = self._size(value)
        size = self._sizes[key]
        longest = len(value) if isinstance(value, list) else 0
        self._channels.append((ChannelStats(key[2], size * is_new, size, is_new, longest), 1.0))
        self._read += size
        return size * is_new

    def stats(self, at: datetime) -> Stats:
        """Return the statistics."""
        now = (at - EPOCH) // MICROSECOND
        recent = [
            (name, time)
            for name, (_, _, times) in self._threads.items()
            for time in times
            if time >= now - DAY
        ]
        per_thread = Counter([name for name, _ in recent])
        threads = [
            ThreadUsage(name, size, len(times), writes, per_thread[name], max(times))
            for name, (size, writes, times) in self._threads.items()
        ]
        note = f"all, from the first {self._count:,} checkpoints that list() returns"
        read = ReadUsage(now, now - IDLE_DAYS * DAY, MOST)
        found = usage_of(read, 0, threads, recent, (note,) if self._is_full else ())
        parts = {"pending_writes": self._pending}
        return _complete(
            now, found, self._channels, bytes_on_disk=None, compression_saved=0, parts=parts
        )
