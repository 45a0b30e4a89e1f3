"""Sizes of threads, part by part, and counts of stores that do not count themselves."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple, cast

from threadkeep._core.engine.context import Keyframes, read_manifest
from threadkeep._core.engine.log_sizes import LogSizes, read_logs, read_parts
from threadkeep._core.engine.model import (
    OWN_NS,
    CheckpointRow,
    ReadSizes,
    ReadThread,
    ScanCheckpoints,
    Sizes,
    Span,
    StoredCheckpoint,
    StoredThreadSize,
    ThreadRows,
)
from threadkeep._core.engine.operation import Fetch, Operation, fetch
from threadkeep._core.engine.refs import Manifest, Ref, Run, length
from threadkeep._core.engine.registration import of_all
from threadkeep._core.engine.rows import created_at, id_after, unpack_writes, visible
from threadkeep._core.engine.thread_entry import WITH_CHECKPOINTS, ReadEntry, ThreadQuery
from threadkeep._core.engine.usage import DAY, ReadUsage, StoreUsage, ThreadUsage, usage_of

_PAGE = 5000
_MAX_SCANNED = 10_000
BATCH = 256  # checkpoints whose manifests are in memory at once
_MOMENTS = 8  # of a thread's life, at which some checkpoints are read
_ROWS = 4  # checkpoints of each
_SMALL = 1 << 16  # bytes: several checkpoints up to this size are read
EVERYTHING = 2**62
"""Greater than every position of a log."""


@dataclass(frozen=True, slots=True)
class ThreadStats:
    """One thread: the number of its rows, and the bytes of their contents and its segments.

    Bytes are counted as in `ThreadInfo.bytes`, without the store's overhead (ids, indexes, pages).
    Bytes shared by several parts count for the first of them, and bytes shared by several threads
    (forks) count for the first thread that refers to them.

    Attributes:
        thread: its id.
        checkpoints: their number, without hidden ones.
        writes: rows of pending writes.
        bytes: the sum of all parts.
        full_copy_bytes: bytes of one whole, uncompressed copy of the state per checkpoint.
        compression_saved: bytes that compression saves in its segments.
        channels: bytes of stored values, by channel.
        manifests: bytes of the checkpoints' manifests, with the small values in them.
        pending_writes: bytes of pending writes, and of values that only they refer to.
        metadata: bytes of the checkpoints' metadata.
        unreferenced: bytes that nothing refers to.
        weight: the number of threads of its size that it represents, in a sample.
    """

    thread: str
    checkpoints: int
    writes: int
    bytes: int
    full_copy_bytes: int
    compression_saved: int = 0
    channels: dict[str, int] = field(default_factory=dict)
    manifests: int = 0
    pending_writes: int = 0
    metadata: int = 0
    unreferenced: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """One channel, of all threads and namespaces.

    Attributes:
        name: the channel.
        bytes: bytes of its stored values, without small ones (they are in the manifests).
        full_copy_bytes: bytes of one whole, uncompressed copy of its value per checkpoint.
        changes: number of changes of its value.
        longest: the largest number of items of its value, or 0 if it is stored as one value.
    """

    name: str
    bytes: int = 0
    full_copy_bytes: int = 0
    changes: int = 0
    longest: int = 0


def all_sizes() -> Operation[Sizes]:
    """Return the sizes of all threads except threadkeep's own."""
    found: list[StoredThreadSize] = []
    total = 0
    while True:
        after = found[-1].thread if found else None
        page = cast("Sizes", (yield from fetch(ReadSizes(after, _PAGE))))
        found += page.threads
        total = max(total, page.total)
        if len(page.threads) < _PAGE:
            total = max(total, sum([one.row_bytes + one.segment_bytes for one in found]))
            others = [one for one in found if not one.thread.startswith(OWN_NS)]
            return Sizes(total, tuple(others))


def usage(read: ReadUsage, *, counts_usage: bool) -> Operation[StoreUsage]:
    """Count a store: by the backend if it `counts_usage`, else from its other reads."""
    if counts_usage:
        return cast("StoreUsage", (yield from fetch(read)))
    found = yield from all_sizes()
    in_use = yield from of_all(ThreadQuery(states=WITH_CHECKPOINTS), lambda entry: entry)
    entries = {entry.thread: entry for entry in in_use}
    recent, notes = yield from _recent(read.now - DAY)
    per_thread = Counter([thread for thread, _ in recent])
    threads = [
        ThreadUsage(
            one.thread,
            entry.size,
            one.checkpoints,
            one.writes,
            per_thread[one.thread],
            entry.updated_at,
        )
        for one in found.threads
        if (entry := entries.get(one.thread)) is not None
    ]
    return usage_of(read, found.total, threads, recent, notes)


def _recent(since: int) -> Operation[tuple[list[tuple[str, int]], tuple[str, ...]]]:
    """Return the threads and times of checkpoints since a time, and a note if there are more.

    Ids grow with time, so a page of older ones is the last.
    """
    found: list[tuple[str, int]] = []
    after: tuple[str, str, str] | None = None
    while True:
        reply = yield from fetch(ScanCheckpoints(None, None, None, None, {}, after, _PAGE))
        page = [(one.thread, one.row) for one in cast("list[StoredCheckpoint]", reply)]
        new = [
            (thread, row.ts) for thread, row in page if isinstance(row.ts, int) and row.ts >= since
        ]
        found += new
        if not new or len(page) < _PAGE:
            return found, ()
        if len(found) >= _MAX_SCANNED:
            return found, (f"of the last 24 hours, the newest {_MAX_SCANNED:,} checkpoints",)
        after = page[-1][1].id, page[-1][0], page[-1][1].ns


def thread_stats(
    thread: str, families: dict[frozenset[str], tuple[Span, ...]]
) -> Operation[tuple[ThreadStats, list[ChannelStats]]]:
    """Count one thread, and add the shared spans that it refers to to `families`."""
    rows = cast("ThreadRows", (yield from fetch(ReadThread(thread))))
    logs = yield from read_logs(thread, rows.segments)
    family = frozenset((thread, *rows.family))
    logs.count(families.get(family, ()))
    checkpoints = [stored.row for stored in rows.checkpoints]
    writes = [*rows.orphans, *(row for stored in rows.checkpoints for row in stored.writes)]
    keyframes, channels = yield from _channels(rows.checkpoints, logs)
    manifests = keyframes + sum([len(row.manifest) for row in checkpoints])
    pending = logs.count(
        [span for row in writes for w in unpack_writes(row) for span in w.ref.needs]
    )
    pending += sum([len(row.body) for row in writes])
    metadata = sum([len(row.metadata) + len(row.exact or b"") for row in checkpoints])
    unreferenced = logs.rest() if thread == max(family) else 0
    if rows.family:
        families[family] = logs.counted
    stored = {one.name: one.bytes for one in channels if one.bytes}
    found = ThreadStats(
        thread,
        checkpoints=len(visible(rows.checkpoints)),
        writes=len(writes),
        bytes=manifests + sum(stored.values()) + pending + metadata + unreferenced,
        full_copy_bytes=sum([one.full_copy_bytes for one in channels]),
        compression_saved=max(logs.compressed, 0) if thread == min(family) else 0,
        channels=stored,
        manifests=manifests,
        pending_writes=pending,
        metadata=metadata,
        unreferenced=unreferenced,
    )
    return found, channels


def sampled_copies(one: ThreadUsage) -> Operation[tuple[int, int]]:
    """Estimate the bytes of whole copies of a thread's states, from some of its checkpoints.

    Between two moments the size grows evenly with the step. Ids that tell no time leave only the
    newest checkpoints.

    Returns:
        The estimate, and the bytes of segments read for it.
    """
    most = _ROWS if one.bytes < one.checkpoints * _SMALL else 1
    scan = ScanCheckpoints(one.thread, None, None, None, {}, None, most)
    entry, newest = yield Fetch([ReadEntry(one.thread), scan])
    last = created_at(newest[0].row.id) if newest else None
    pages: list[list[StoredCheckpoint]] = [newest]
    if last is not None and entry is not None:
        life = last - entry.created_at
        ends = [id_after(entry.created_at + life * n // _MOMENTS) for n in range(_MOMENTS)]
        pages += yield Fetch([scan._replace(before=end) for end in ends])
    rows = {(stored.row.ns, stored.row.id): stored for page in pages for stored in page}
    known: Keyframes = {}
    manifests = [read_manifest(stored, known)[0] for stored in rows.values()]
    refs = [value.ref for read in manifests for value in read.entries.values()]
    logs, read = yield from read_parts(one.thread, [ref for ref in refs if ref is not None])
    found = yield from ValueSizes(logs).read([*rows.values()])
    sizes = {
        (stored.row.ns, stored.row.id): sum([value.full_size for value in values])
        for stored, _, values in found
    }
    points: dict[int, float] = {}  # the mean size at a step
    for page in pages:
        steps = [step_of(stored.row) for stored in page if not stored.row.ns]
        if (step := max([one for one in steps if one is not None], default=None)) is not None:
            points[step] = fmean([sizes[one.row.ns, one.row.id] for one in page])
    mean = _mean(sorted(points.items() or enumerate(sizes.values())))
    return round(one.checkpoints * mean), read


def step_of(row: CheckpointRow) -> int | None:
    """Return the step in a checkpoint's metadata, or None."""
    with suppress(ValueError, AttributeError, RecursionError):
        step = json.loads(row.metadata).get("step")
        return step if type(step) is int else None
    return None


def _mean(points: Sequence[tuple[int, float]]) -> float:
    """Return the mean height of the line through these points, or 0 for none."""
    if len(points) <= 1:
        return sum([height for _, height in points])
    areas = [(b - a) * (low + high) / 2 for (a, low), (b, high) in pairwise(points)]
    return sum(areas) / (points[-1][0] - points[0][0])


def _channels(
    checkpoints: Sequence[StoredCheckpoint], logs: LogSizes
) -> Operation[tuple[int, list[ChannelStats]]]:
    """Count the bytes of the keyframes, and the channels (LangGraph's own last)."""
    needs: defaultdict[str, set[Span]] = defaultdict(set)
    full, changes, longest = Counter[str](), Counter[str](), Counter[str]()
    keyframes: set[Span] = set()
    reader = ValueSizes(logs)
    for at in range(0, len(checkpoints), BATCH):
        for _, keyframe, values in (yield from reader.read(checkpoints[at : at + BATCH])):
            keyframes.add(keyframe)
            for name, ref, size, is_changed in values:
                full[name] += size
                if is_changed:
                    needs[name].update(ref.needs)
                    changes[name] += 1
                    if isinstance(ref, Run):
                        longest[name] = max(longest[name], length(ref.spans))
    names = sorted(needs, key=lambda name: (name.startswith("__"), name))
    # Bytes shared by several parts count for the first of them.
    return logs.count(keyframes), [
        ChannelStats(name, logs.count(needs[name]), full[name], changes[name], longest[name])
        for name in names
    ]


class ValueSize(NamedTuple):
    """A channel's value in a checkpoint, and the bytes of a whole copy of it."""

    channel: str
    ref: Ref
    full_size: int
    is_changed: bool  # since the checkpoint before, of the same namespace


class ValueSizes:
    """Sizes of the values of checkpoints, which are read in order."""

    def __init__(self, logs: LogSizes) -> None:
        self._logs = logs
        self._last: dict[tuple[str, str], tuple[Ref, int]] = {}  # by namespace and channel

    def read(
        self, batch: Sequence[StoredCheckpoint]
    ) -> Operation[list[tuple[StoredCheckpoint, Span, list[ValueSize]]]]:
        """Return each checkpoint with the place of its keyframe, and its values."""
        known: Keyframes = {}
        manifests = [read_manifest(stored, known) for stored in batch]
        entries = [entry for read, _ in manifests for entry in read.entries.values()]
        yield from self._logs.resolve([entry.ref for entry in entries if entry.ref is not None])
        return [
            (stored, Span(key.log, key.pos, key.pos + 1), list(self._values(stored.row.ns, read)))
            for stored, (read, key) in zip(batch, manifests, strict=True)
        ]

    def _values(self, ns: str, read: Manifest) -> Iterator[ValueSize]:
        for name, entry in read.entries.items():
            if (ref := entry.ref) is None:
                continue
            last, size = self._last.get((ns, name), (None, 0))
            is_changed = last is not ref and last != ref
            if is_changed:
                size = self._logs.full_size(ref)
                self._last[ns, name] = ref, size
            yield ValueSize(name, ref, size, is_changed)
