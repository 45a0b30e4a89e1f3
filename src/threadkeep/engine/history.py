"""The history of DeltaChannels: their writes along the parent chain, and where it began.

For a checkpoint on the path, the writes that count are those that led to its child on
the path. A channel's walk ends at the nearest ancestor that stores a value for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from threadkeep.engine.calls import Fetch, Operation, Place, fetch_checkpoint
from threadkeep.engine.context import (
    Engine,
    Keyframes,
    named,
    read_elements,
    read_manifest,
)
from threadkeep.engine.manifest import Manifest
from threadkeep.engine.model import (
    Child,
    ReadCheckpoint,
    ReadPath,
    Span,
    StoredCheckpoint,
    ThreadState,
)
from threadkeep.engine.refs import Ref
from threadkeep.engine.rows import Write, counting
from threadkeep.errors import CorruptionError, StaleThreadError

FIRST_STRETCH = 32
LONGEST_STRETCH = 512


@dataclass(frozen=True, slots=True)
class Step:
    """An ancestor on the path: its manifest, and its writes that led to the next one."""

    stored: StoredCheckpoint
    manifest: Manifest
    writes: list[Write]


@dataclass(frozen=True, slots=True)
class ChannelHistory:
    """A channel's writes, oldest first, and the references of its seed, if it has one."""

    writes: list[Write]
    seed: Ref | None


def steps(rows: Sequence[StoredCheckpoint]) -> Iterator[Step]:
    """The ancestors in rows that begin with a target, nearest first."""
    known: Keyframes = {}
    for below, stored in pairwise(rows):
        row = below.row
        with named(stored):
            read, _ = read_manifest(stored, known)
            writes = counting(stored.writes, Child(row.id, row.run, row.seen))
        yield Step(stored, read, writes)


def delta_history(
    engine: Engine, place: Place, channels: Sequence[str]
) -> Operation[dict[str, dict[str, Any]]]:
    """What `get_delta_channel_history` returns: per channel `writes`, and `seed` if there is one.

    Raises:
        CorruptionError, UnknownTypeError: as `load` does.
    """
    generation = -1
    while True:
        reply = yield from fetch_checkpoint(place.thread, place.ns, place.id)
        try:
            return (yield from _history(engine, place, channels, reply))
        except (CorruptionError, StaleThreadError):
            # Checkpoints or segments may have been removed meanwhile: then look again.
            if reply.generation == generation:
                raise
            generation = reply.generation


def _history(
    engine: Engine, place: Place, channels: Sequence[str], target: ThreadState
) -> Operation[dict[str, dict[str, Any]]]:
    found = yield from walk(place, dict.fromkeys(channels), target)
    refs = [write.ref for one in found.values() for write in one.writes]
    refs += [one.seed for one in found.values() if one.seed is not None]
    spans: list[Span] = [span for ref in refs for span in ref.needs]
    elements, _ = yield from read_elements(engine, place.thread, spans, target.generation)
    result: dict[str, dict[str, Any]] = {}
    for channel, one in found.items():
        writes = [(w.task_id, w.channel, elements.value(w.ref)) for w in one.writes]
        result[channel] = {"writes": writes}
        if one.seed is not None:
            result[channel]["seed"] = elements.value(one.seed)
    return result


def walk(
    place: Place, channels: dict[str, None], target: ThreadState
) -> Operation[dict[str, ChannelHistory]]:
    """The channels' histories: up the path until each has found its seed, or to the root.

    Raises:
        StaleThreadError: checkpoints were removed meanwhile, and the path may be cut short.
    """
    writes: dict[str, list[Write]] = {channel: [] for channel in channels}
    seeds: dict[str, Ref | None] = {}
    at, size = target.found.row.id if target.found else None, FIRST_STRETCH
    met: set[str] = set()
    while at is not None and len(seeds) < len(writes):
        rows, state = yield from stretch(place, at, size)
        if state.generation != target.generation:
            raise StaleThreadError(thread=place.thread)
        before = len(met)
        for step in _until_met(steps(rows), met):
            _gather(step, writes, seeds)
            if len(seeds) == len(writes):
                break
        at = rows[-1].row.id if len(rows) == size and len(met) > before else None
        size = min(size * 2, LONGEST_STRETCH)
    return {c: ChannelHistory(list(reversed(w)), seeds.get(c)) for c, w in writes.items()}


def stretch(
    place: Place, at: str, size: int
) -> Operation[tuple[list[StoredCheckpoint], ThreadState]]:
    """A part of the path, and how the thread stood after it was read."""
    path = ReadPath(place.thread, place.ns, at, size)
    rows, state = yield Fetch((path, ReadCheckpoint(place.thread, place.ns, at)))
    return rows, state


def _until_met(found: Iterator[Step], met: set[str]) -> Iterator[Step]:
    """The steps up to one that was met before: a checkpoint may be put as its own ancestor."""
    for step in found:
        if step.stored.row.id in met:
            return
        met.add(step.stored.row.id)
        yield step


def _gather(step: Step, writes: dict[str, list[Write]], seeds: dict[str, Ref | None]) -> None:
    """Add one ancestor's part to each channel that is still looking."""
    for write in reversed(step.writes):
        if write.channel in writes and write.channel not in seeds:
            writes[write.channel].append(write)
    for channel in writes:
        entry = step.manifest.entries.get(channel)
        if channel not in seeds and entry is not None and entry.ref is not None:
            seeds[channel] = entry.ref
