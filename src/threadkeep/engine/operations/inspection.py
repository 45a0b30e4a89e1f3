"""Looking into the store: what takes how much, and whether all of it is sound.

Both go thread by thread, so that nothing large is held and progress can be shown.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import cast

from threadkeep.codec.frame import unpack
from threadkeep.codec.references import references
from threadkeep.engine import elements
from threadkeep.engine.calls import Operation, fetch, fetch_segments
from threadkeep.engine.elements import Elements
from threadkeep.engine.manifest import Manifest
from threadkeep.engine.model import (
    HIDDEN,
    CheckpointRow,
    FindThreads,
    ReadDamage,
    ReadSizes,
    ReadThread,
    Segment,
    Sizes,
    Span,
    StoredCheckpoint,
    ThreadRows,
    ThreadSize,
    WriteRow,
)
from threadkeep.engine.operations.context import NO_CODEC, Engine, Keyframes, read_manifest
from threadkeep.engine.refs import Cell, Inline, Ref, Run, covering
from threadkeep.engine.rows import unpack_metadata, unpack_writes
from threadkeep.errors import CodecError, CorruptionError, ThreadkeepError

_PAGE = 256
_EVERYTHING = 2**62
_LOOKS = 3


# -- how much ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ThreadStats:
    """One thread: its rows, its bytes, and what storing whole states would have taken.

    `channels` gives the bytes of values by channel, "" for the manifests' keyframes;
    a segment that several channels share counts for each by its elements. All in bytes.
    """

    thread: str
    checkpoints: int
    writes: int
    bytes: int
    full_copy_bytes: int
    channels: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stats:
    """The whole store, in bytes.

    `bytes_on_disk` includes the store's own overhead and free space; `full_copy_bytes` is
    what one whole, uncompressed copy of the state per checkpoint takes.
    """

    threads: int
    checkpoints: int
    bytes_on_disk: int
    full_copy_bytes: int
    by_thread: tuple[ThreadStats, ...]


def sizes(after: str | None) -> Operation[Sizes]:
    """A page of threads and their sizes."""
    reply = yield from fetch(ReadSizes(after, _PAGE))
    return cast("Sizes", reply)


def thread_names(after: str | None, limit: int) -> Operation[list[str]]:
    """The first ids, in their order, of threads that hold checkpoints, behind this one."""
    reply = yield from fetch(FindThreads(after, limit))
    return cast("list[str]", reply)


def all_sizes() -> Operation[Sizes]:
    """The sizes of all threads."""
    page = yield from sizes(None)
    threads = list(page.threads)
    while len(page.threads) == _PAGE:
        page = yield from sizes(threads[-1].thread)
        threads += page.threads
    return Sizes(page.total, tuple(threads))


def stats() -> Operation[Stats]:
    """What takes how much."""
    found = yield from all_sizes()
    threads: list[ThreadStats] = []
    for size in found.threads:
        one = yield from _thread_stats(size)
        threads.append(one)
    return Stats(
        threads=len(threads),
        checkpoints=sum([t.checkpoints for t in threads]),
        bytes_on_disk=found.total,
        full_copy_bytes=sum([t.full_copy_bytes for t in threads]),
        by_thread=tuple(threads),
    )


def _thread_stats(size: ThreadSize) -> Operation[ThreadStats]:
    reply = yield from fetch(ReadThread(size.thread))
    rows = cast("ThreadRows", reply)
    segments = yield from _all_segments(size.thread, rows)
    logs = _Logs(segments)
    channels: dict[str, set[Span]] = {}
    known: Keyframes = {}
    copies = 0
    for stored in rows.checkpoints:
        read, key = read_manifest(stored, known)
        channels.setdefault("", set()).add(Span(key.log, key.pos, key.pos + 1))
        for name, entry in read.entries.items():
            if entry.ref is not None:
                copies += logs.full_size(entry.ref)
                channels.setdefault(name, set()).update(entry.ref.needs)
        for row in stored.writes:
            for write in unpack_writes(row):
                channels.setdefault(write.channel, set()).update(write.ref.needs)
    return ThreadStats(
        thread=size.thread,
        checkpoints=len([s for s in rows.checkpoints if not s.row.flags & HIDDEN]),
        writes=size.writes,
        bytes=size.row_bytes + size.segment_bytes,
        full_copy_bytes=copies,
        channels={name: logs.stored_size(spans) for name, spans in channels.items() if spans},
    )


def _all_segments(thread: str, rows: ThreadRows) -> Operation[list[Segment]]:
    spans = tuple(Span(log, 0, _EVERYTHING) for log in sorted({s.log for s in rows.segments}))
    return (yield from fetch_segments(thread, spans))


class _Logs:
    """The sizes of all elements of a thread, summed up along each log; 0 for missing ones."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        full: dict[int, dict[int, int]] = {}
        stored: dict[int, dict[int, int]] = {}
        for segment in segments:
            parts = unpack(segment.data)
            share = len(segment.data) // len(parts)
            for pos, part in enumerate(parts, segment.start):
                full.setdefault(segment.log, {})[pos] = elements.full_size(part)
                stored.setdefault(segment.log, {})[pos] = share
        self._segments = segments
        self._full = {log: _Sums(sizes) for log, sizes in full.items()}
        self._stored = {log: _Sums(sizes) for log, sizes in stored.items()}
        self._known: dict[Ref, int] = {}

    @cached_property
    def _elements(self) -> Elements:
        return Elements(NO_CODEC, self._segments)

    def full_size(self, ref: Ref) -> int:
        """The bytes of a whole copy of the value, with what it refers to."""
        if isinstance(ref, Run):
            return _sum(self._full, ref.spans)
        if ref not in self._known:  # many checkpoints hold the same value
            self._known[ref] = self._single_size(ref)
        return self._known[ref]

    def _single_size(self, ref: Inline | Cell) -> int:
        if isinstance(ref, Cell):
            own = Span(ref.log, ref.pos, ref.pos + 1)
            if not ref.uses or self._elements.missing(ref.needs):
                return _sum(self._full, (own,))
            data = self._elements.raw(ref.log, ref.pos)
        else:
            data = ref.data
        # (`uses` would not do: patches need elements too, and they are not part of the value.)
        size = len(data)
        for log, pos, length, _ in references(data) if ref.uses else ():
            if _covers(ref.uses, log, pos):
                size += _sum(self._full, (Span(log, pos, pos + 1),)) - length
        return size

    def stored_size(self, spans: Iterable[Span]) -> int:
        """About how many stored bytes these positions take, each counted once."""
        return _sum(self._stored, covering(spans))


class _Sums:
    """Sums over ranges of positions."""

    def __init__(self, sizes: dict[int, int]) -> None:
        self._places = sorted(sizes)
        self._sums = [0, *accumulate(sizes[pos] for pos in self._places)]

    def between(self, start: int, stop: int) -> int:
        first, last = bisect_left(self._places, start), bisect_left(self._places, stop)
        return self._sums[last] - self._sums[first]


_NOTHING = _Sums({})


def _sum(logs: Mapping[int, _Sums], spans: Iterable[Span]) -> int:
    return sum([logs.get(log, _NOTHING).between(start, stop) for log, start, stop in spans])


def _covers(spans: Sequence[Span], log: int, pos: int) -> bool:
    """Whether one of the spans, which are in order and apart, holds the position."""
    at = bisect_right(spans, (log, pos, _EVERYTHING)) - 1
    return at >= 0 and spans[at].log == log and pos < spans[at].stop


# -- whether it is sound -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """Something broken, and where. An empty place is the store itself."""

    problem: str
    thread: str | None = None
    namespace: str | None = None
    checkpoint: str | None = None

    def __str__(self) -> str:
        names = ("thread", "namespace", "checkpoint")
        place = ", ".join(f"{n} {v!r}" for n in names if (v := getattr(self, n)))
        return f"{place}: {self.problem}" if place else self.problem


@dataclass(frozen=True, slots=True)
class CheckReport:
    """How many threads were looked at, and all that is broken."""

    threads: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is broken."""
        return not self.findings


def damage() -> Operation[list[Finding]]:
    """What the store finds wrong with its own files."""
    reply = yield from fetch(ReadDamage())
    return [Finding(problem) for problem in cast("list[str]", reply)]


def threads_to_check() -> Operation[tuple[list[str], list[Finding]]]:
    """The threads that hold any row, or all that can be listed; and what was in the way."""
    try:
        found = yield from all_sizes()
    except CorruptionError as exc:
        return (yield from _all_names([Finding(exc.message)]))
    return [size.thread for size in found.threads], []


def _all_names(findings: list[Finding]) -> Operation[tuple[list[str], list[Finding]]]:
    names: list[str] = []
    while True:
        try:
            page = yield from fetch(FindThreads(names[-1] if names else None, _PAGE, empty=True))
        except CorruptionError as exc:
            return names, [*findings, Finding(f"not all threads can be listed: {exc.message}")]
        names += page
        if len(page) < _PAGE:
            return names, findings


def check_thread(engine: Engine, thread: str) -> Operation[list[Finding]]:
    """Verify every checksum, reference and span of a thread.

    The store may be written while it is read: what is told was found at every look.
    """
    findings = yield from _look(engine, thread)
    for _ in range(_LOOKS - 1):
        if findings:
            again = yield from _look(engine, thread)
            findings = [finding for finding in findings if finding in again]
    return findings


def _look(engine: Engine, thread: str) -> Operation[list[Finding]]:
    try:
        reply = yield from fetch(ReadThread(thread))
    except CorruptionError as exc:
        return [Finding(f"its rows cannot be read: {exc.message}", thread)]
    rows = cast("ThreadRows", reply)
    segments, findings = yield from _readable_segments(thread, rows)
    sound, broken = _check_segments(thread, segments)
    findings += broken
    findings += _check_places(thread, rows, segments)
    found = Elements(NO_CODEC, sound)
    for stored in rows.checkpoints:
        findings += _check_checkpoint(engine, thread, stored, found)
    for row in rows.orphans:
        findings += [
            Finding(problem, thread, row.ns or None, row.checkpoint_id)
            for problem in _problems(_write_refs([row]), found)
        ]
    return findings


def _readable_segments(
    thread: str, rows: ThreadRows
) -> Operation[tuple[list[Segment], list[Finding]]]:
    """All segments, or those of the logs that can be read, and what is wrong with the others."""
    segments: list[Segment] = []
    findings: list[Finding] = []
    try:
        return (yield from _all_segments(thread, rows)), findings
    except CorruptionError:
        pass  # then log by log
    for log in sorted({place.log for place in rows.segments}):
        try:
            segments += yield from fetch_segments(thread, (Span(log, 0, _EVERYTHING),))
        except CorruptionError as exc:
            findings.append(Finding(f"log {log} cannot be read: {exc.message}", thread))
    return segments, findings


def _check_segments(
    thread: str, segments: Iterable[Segment]
) -> tuple[list[Segment], list[Finding]]:
    """The segments that can be opened, and what is wrong with the others."""
    sound, findings = [], []
    stop: dict[int, int] = {}
    for segment in segments:
        where = f"segment {segment.start} of log {segment.log}"
        if segment.start < stop.get(segment.log, 0):
            findings.append(Finding(f"{where} overlaps the one before", thread))
        stop[segment.log] = segment.stop
        try:
            count = len(unpack(segment.data))
        except CodecError as exc:
            findings.append(Finding(f"{where}: {exc.message}", thread))
            continue
        if count != segment.count:
            findings.append(Finding(f"{where} holds {count} elements, not {segment.count}", thread))
            continue
        sound.append(segment)
    return sound, findings


def _check_places(thread: str, rows: ThreadRows, segments: list[Segment]) -> list[Finding]:
    there = {(s.log, s.start, s.count) for s in segments}
    return [
        Finding(f"segment {s.start} of log {s.log} cannot be read", thread)
        for s in rows.segments
        if (s.log, s.start, s.count) not in there
    ]


def _check_checkpoint(
    engine: Engine, thread: str, stored: StoredCheckpoint, found: Elements
) -> Iterator[Finding]:
    row = stored.row
    for problem in _checkpoint_problems(engine, row, stored, found):
        yield Finding(problem, thread, row.ns or None, row.id)


def _checkpoint_problems(
    engine: Engine, row: CheckpointRow, stored: StoredCheckpoint, found: Elements
) -> Iterator[str]:
    try:
        read, _ = read_manifest(stored)
    except ThreadkeepError as exc:
        yield exc.message
        read = Manifest(0)
    try:
        unpack_metadata(row.metadata, row.exact, engine.codec)
    except (ThreadkeepError, ValueError) as exc:
        yield f"metadata: {exc}"
    refs = [(f"channel {n!r}", e.ref) for n, e in read.entries.items() if e.ref is not None]
    yield from _problems(refs, found)
    yield from _problems(_write_refs(stored.writes), found)


def _write_refs(rows: Iterable[WriteRow]) -> Iterator[tuple[str, Ref | str]]:
    for row in rows:
        try:
            writes = unpack_writes(row)
        except ThreadkeepError as exc:
            yield f"writes of task {row.task_id!r}", exc.message
            continue
        for write in writes:
            yield f"write to {write.channel!r} of task {row.task_id!r}", write.ref


def _problems(refs: Iterable[tuple[str, Ref | str]], found: Elements) -> Iterator[str]:
    """What of the references cannot be read."""
    for name, ref in refs:
        if isinstance(ref, str):
            yield f"{name}: {ref}"
            continue
        missing = found.missing(ref.needs)
        if missing:
            places = ", ".join(f"{s.start} to {s.stop} of log {s.log}" for s in missing)
            yield f"{name}: elements {places} are missing"
        elif isinstance(ref, Cell):
            try:
                found.raw(ref.log, ref.pos)
            except ThreadkeepError as exc:
                yield f"{name}: {exc.message}"
