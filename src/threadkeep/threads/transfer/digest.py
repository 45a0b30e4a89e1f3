"""Digests of checkpoints: 16 bytes, equal in every store (docs/design/0011-moving-threads.md).

A digest is the BLAKE2b hash of MessagePack of the fields that a reader can see and of the stored
elements of values. It does not depend on segments, addresses in logs, generations, the store's
numbers or the thread's id. Values are not decoded, so no class is needed.

Equal digests mean equal checkpoints. Different digests may still mean equal values: one checkpoint
may store a value whole and another one in parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeAlias

import ormsgpack

from threadkeep._core.codec.introspection import references
from threadkeep._core.engine.context import NO_CODEC, Keyframes, read_manifest
from threadkeep._core.engine.elements import Elements
from threadkeep._core.engine.lineage import CheckpointKey
from threadkeep._core.engine.model import (
    HIDDEN,
    CheckpointRow,
    Child,
    Segment,
    Span,
    StoredCheckpoint,
)
from threadkeep._core.engine.operation import Operation
from threadkeep._core.engine.refs import Inline, Manifest, Ref, Run
from threadkeep._core.engine.rows import Write, counting, manifest_of
from threadkeep._core.parts import parts_of
from threadkeep._run.driver import Runner, external, on
from threadkeep._stores.records import first_children
from threadkeep.errors import CorruptionError, ThreadkeepError
from threadkeep.threads.transfer.bundle_format import parsed_size
from threadkeep.threads.transfer.meter import QUIET, Meter
from threadkeep.threads.transfer.whole_thread import WholeThread, read_thread

Digests: TypeAlias = dict[CheckpointKey, bytes]

SIZE = 16  # bytes


def of_checkpoints(whole: WholeThread, meter: Meter = QUIET) -> Digests:
    """Compute the digest of each checkpoint of a thread, including hidden checkpoints."""
    found: Digests = {}
    ns = id = None
    try:
        digests = _Checkpoints(whole)
        for part in parts_of(whole.checkpoints, lambda _: 0):
            for row in part:
                ns, id = row.ns, row.id
                found[ns, id] = digests.checkpoint(row)
            meter.add(len(part))
    except ThreadkeepError as exc:
        exc.at(thread=whole.thread, namespace=ns or None, checkpoint=id)
        raise
    return found


def read(
    store: Runner, thread: str, meter: Meter, *, stub: bool = True, inputs: bool = True
) -> Operation[WholeThread]:
    """Read one state of a thread, with digests. Options as of `whole_thread.read_thread`."""
    reading = read_thread(thread, stub=stub, inputs=inputs, meter=meter)
    whole = yield from on(store, reading)
    return (yield from external(partial(digested, whole, meter)))


def digested(whole: WholeThread, meter: Meter = QUIET) -> WholeThread:
    """Return a thread with digests. Raises CorruptionError if it has others."""
    found = replace(whole, digests=tuple(of_checkpoints(whole, meter).values()))
    if whole.digests is not None:
        _compare(whole, found)
    return found


def verify_copy(store: Runner, whole: WholeThread, meter: Meter) -> Operation[None]:
    """Check that a store has all digests of a thread. More checkpoints may have been added."""
    _compare(whole, (yield from read(store, whole.thread, meter, stub=False)))


def _compare(expected: WholeThread, found: WholeThread) -> None:
    there = found.by_checkpoint
    for (ns, id), one in expected.by_checkpoint.items():
        if there.get((ns, id)) != one:
            raise CorruptionError(
                "The digest of a checkpoint differs from that of its source.",
                hint="Copy the thread again. If it fails again, check disks and memory for faults.",
                thread=expected.thread,
                namespace=ns or None,
                checkpoint=id,
            )


def _hash(value: Any) -> bytes:
    return _hash_bytes(ormsgpack.packb(value))


def _hash_bytes(data: bytes) -> bytes:
    return blake2b(data, digest_size=SIZE).digest()


class _Checkpoints:
    """Digests of a thread's checkpoints, which share the digests of values."""

    def __init__(self, whole: WholeThread) -> None:
        self._values = _Values(whole.segments, whole.spare)
        self._known: Keyframes = {}
        self._spare = whole.spare
        writes = groupby(whole.writes, attrgetter("ns", "checkpoint_id"))
        self._writes = {place: list(group) for place, group in writes}
        self._children = first_children(sorted(whole.checkpoints, key=attrgetter("id")))

    def checkpoint(self, row: CheckpointRow) -> bytes:
        key = self._values.segment(row.key_log, row.key_pos)
        if self._spare is not None:
            self._spare -= self._taken(row, self._spare)
        manifest, _ = read_manifest(StoredCheckpoint("", row, key), self._known)
        place = [row.ns, row.id, row.parent, bool(row.flags & HIDDEN)]
        metadata = [row.ts, row.metadata, row.exact]
        return _hash([place, metadata, self._manifest(manifest), *self._pending(row)])

    def _taken(self, row: CheckpointRow, spare: int) -> int:
        """Return the bytes that the checkpoint's keyframe takes, if it is new."""
        place, data = (row.key_log, row.key_pos), manifest_of(row)
        key = b"" if place in self._known else self._values.elements.raw(*place)
        taken = parsed_size(key, spare) + parsed_size(data, spare)
        if taken > spare:
            raise CorruptionError(f"A manifest of {len(key) + len(data)} bytes has too many parts.")
        return taken if key else 0  # (keyframes stay in memory)

    def _manifest(self, manifest: Manifest) -> list[Any]:
        entries = sorted(manifest.entries.items())
        channels = [[name, e.version, self._values.digest(e.ref)] for name, e in entries]
        seen = [[node, sorted(v.items())] for node, v in sorted(manifest.seen.items())]
        return [manifest.v, manifest.updated, manifest.extra, channels, seen]

    def _pending(self, row: CheckpointRow) -> tuple[list[Any], list[Any]]:
        """Return the pending writes that count, and the parent's writes that led here."""
        own = counting(self._writes.get((row.ns, row.id), ()), self._children.get((row.ns, row.id)))
        before = self._writes.get((row.ns, row.parent), ()) if row.parent is not None else ()
        led = counting(before, Child(row.id, row.run, row.seen))
        return [self._write(write) for write in own], [self._write(write) for write in led]

    def _write(self, write: Write) -> list[Any]:
        where = [write.task_id, write.task_path, write.idx, write.channel]
        return [*where, self._values.digest(write.ref)]


class _Values:
    """Digests of values. The digests of elements are computed once for each segment."""

    def __init__(self, segments: Sequence[Segment], spare: int | None) -> None:
        self._segments = {(s.log, s.start): s for s in segments}
        self.elements = Elements(NO_CODEC, segments, spare)
        self._digests: dict[tuple[int, int], bytes] = {}  # by segment, one after the other
        self._known: dict[Ref, bytes] = {}
        self._spans: dict[tuple[int, int], bytes] = {}  # by their log and start

    def segment(self, log: int, pos: int) -> Segment:
        """Find the segment that holds a position. Raises CorruptionError."""
        start, _ = self.elements.part(log, pos)
        return self._segments[log, start]

    def digest(self, ref: Ref | None) -> bytes | None:
        """Compute the digest of a value, or None if there is no value."""
        if ref is None:
            return None
        if isinstance(ref, Run):
            return _hash([ref.kind, b"".join(map(self._of_span, ref.spans))])
        if ref not in self._known:  # many checkpoints hold the same value
            data = ref.data if isinstance(ref, Inline) else self.elements.raw(ref.log, ref.pos)
            self._known[ref] = _hash(self._parts(data, ref.uses))
        return self._known[ref]

    def _parts(self, data: bytes, uses: Sequence[Span]) -> list[bytes]:
        """Split a value's bytes, with digests of elements in place of their addresses."""
        parts, at = [], 0
        for log, pos, size, start in references(data) if uses else ():
            if start >= at and any(log == s.log and s.start <= pos < s.stop for s in uses):
                parts += [data[at:start], self._of_span(Span(log, pos, pos + 1))]
                at = start + size
        return [*parts, data[at:]]

    def _of_span(self, span: Span) -> bytes:
        """Return the digests of a span's elements."""
        known = self._spans.get(span[:2], b"")  # (the next checkpoint's list is longer)
        at, parts = span.start + len(known) // SIZE, [known]
        while at < span.stop:
            segment = self.segment(span.log, at)
            first, at = at - segment.start, min(segment.stop, span.stop)
            parts.append(self._of_segment(segment)[first * SIZE : (at - segment.start) * SIZE])
        if len(parts) > 1:
            known = self._spans[span[:2]] = b"".join(parts)
        return known[: (span.stop - span.start) * SIZE]

    def _of_segment(self, segment: Segment) -> bytes:
        place = segment.log, segment.start
        if place not in self._digests:
            positions = range(segment.start, segment.stop)
            raws = [self.elements.raw(segment.log, pos) for pos in positions]
            self._digests[place] = b"".join(map(_hash_bytes, raws))
        return self._digests[place]
