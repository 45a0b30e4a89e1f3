"""Listing checkpoints, newest first, a page at a time.

Nothing is held open between pages. Each segment is decoded once for all checkpoints of a
page that share it, so that one message may be met in several of them. A filter is checked
here, whatever the backend made of it.

The history of DeltaChannels: their writes along the parent chain, and where it began.

For a checkpoint on the path, the writes that count are those that led to its child on
the path. A channel's walk ends at the nearest ancestor that stores a value for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple, cast

from threadkeep.engine.context import Engine, Keyframes, named, read_elements, read_manifest
from threadkeep.engine.elements import Elements, gc_paused
from threadkeep.engine.load import Loaded, assemble
from threadkeep.engine.manifest import Manifest
from threadkeep.engine.model import (
    FREE,
    Child,
    ReadCheckpoint,
    ReadPath,
    ScanCheckpoints,
    Span,
    StoredCheckpoint,
    ThreadState,
)
from threadkeep.engine.operation import CheckpointRef, Fetch, Operation, fetch, fetch_checkpoint
from threadkeep.engine.refs import Ref
from threadkeep.engine.rows import Write, counting, unpack_metadata
from threadkeep.errors import CorruptionError, StaleThreadError

_FIRST_PAGE = 32
_LARGEST_PAGE = 256
_SCALARS = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Listing:
    """What a `list` call asks for: `thread` None means every thread, `ns` None every namespace."""

    thread: str | None
    ns: str | None = None
    id: str | None = None
    before: str | None = None
    filter: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None


class Page(NamedTuple):
    """Some checkpoints, and the listing that goes on behind them; None at the end."""

    found: list[Loaded]
    rest: Cursor | None


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a listing goes on."""

    listing: Listing
    after: tuple[str, str, str] | None = None
    size: int = _FIRST_PAGE


def begin(listing: Listing) -> Cursor | None:
    """The start of a listing; None if it can hold nothing."""
    if listing.limit is not None and listing.limit <= 0:
        return None
    return Cursor(listing)


def page(engine: Engine, cursor: Cursor) -> Operation[Page]:
    """The next checkpoints of a listing.

    Raises:
        CorruptionError, UnknownTypeError: as `load` does, naming the checkpoint.
    """
    asked = cursor.listing
    size = cursor.size
    if asked.limit is not None and not asked.filter:
        size = min(size, asked.limit)
    rows, found = yield from _read(engine, cursor, size)
    limit = None if asked.limit is None else asked.limit - len(found)
    if len(rows) < size or limit == 0:
        return Page(found, None)
    last = rows[-1]
    after = (last.row.id, last.thread, last.row.ns)
    larger = min(cursor.size * 2, _LARGEST_PAGE)
    return Page(found, Cursor(replace(asked, limit=limit), after, larger))


def _read(
    engine: Engine, cursor: Cursor, size: int
) -> Operation[tuple[list[StoredCheckpoint], list[Loaded]]]:
    """A page's rows, and those that match with their values."""
    before: list[StoredCheckpoint] | None = None
    while True:
        rows = yield from _scan(cursor, size)
        try:
            found = yield from _assembled(engine, _matching(engine, cursor.listing, rows))
        except CorruptionError:
            # Segments may have been removed between the two reads: then the rows changed.
            if rows == before:
                raise
            before = rows
        else:
            return rows, found


def _matching(
    engine: Engine, asked: Listing, rows: Sequence[StoredCheckpoint]
) -> list[StoredCheckpoint]:
    return [row for row in rows if _matches(_metadata(engine, row), asked.filter)][: asked.limit]


def _scan(cursor: Cursor, size: int) -> Operation[list[StoredCheckpoint]]:
    asked = cursor.listing
    simple = {k: v for k, v in asked.filter.items() if isinstance(v, _SCALARS)}
    read = ScanCheckpoints(
        asked.thread, asked.ns, asked.id, asked.before, simple, cursor.after, size
    )
    reply = yield from fetch(read)
    return cast("list[StoredCheckpoint]", reply)


def _metadata(engine: Engine, stored: StoredCheckpoint) -> dict[str, Any]:
    return unpack_metadata(stored.row.metadata, stored.row.exact, engine.codec)


def _matches(metadata: dict[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(metadata.get(key) == value for key, value in wanted.items())


def _assembled(engine: Engine, rows: Sequence[StoredCheckpoint]) -> Operation[list[Loaded]]:
    """The checkpoints with their values, thread by thread."""
    found: dict[int, Loaded] = {}
    for thread in dict.fromkeys(row.thread for row in rows):
        mine = [(i, row) for i, row in enumerate(rows) if row.thread == thread]
        loaded = yield from _of_thread(engine, thread, [row for _, row in mine])
        found |= {i: one for (i, _), one in zip(mine, loaded, strict=True)}
    return [found[i] for i in range(len(rows))]


def _of_thread(
    engine: Engine, thread: str, rows: Sequence[StoredCheckpoint]
) -> Operation[list[Loaded]]:
    opened: list[tuple[StoredCheckpoint, Manifest, list[Write]]] = []
    spans: set[Span] = set()
    known: Keyframes = {}
    for stored in rows:
        with named(stored):
            read, _ = read_manifest(stored, known)
            writes = counting(stored.writes, stored.child)
        spans.update(read.needs(), *[write.ref.needs for write in writes])
        opened.append((stored, read, writes))
    elements, _ = yield from read_elements(engine, thread, spans)
    with gc_paused():
        return [_loaded(engine, elements, *one) for one in opened]


def _loaded(
    engine: Engine,
    elements: Elements,
    stored: StoredCheckpoint,
    read: Manifest,
    writes: list[Write],
) -> Loaded:
    with named(stored):
        return assemble(engine, stored, read, elements, writes, {}, FREE)


FIRST_STRETCH = 32
LONGEST_STRETCH = 512


@dataclass(frozen=True, slots=True)
class PathStep:
    """An ancestor on the path: its manifest, and its writes that led to the next one."""

    stored: StoredCheckpoint
    manifest: Manifest
    writes: list[Write]


@dataclass(frozen=True, slots=True)
class ChannelHistory:
    """A channel's writes, oldest first, and the references of its seed, if it has one."""

    writes: list[Write]
    seed: Ref | None


def steps(rows: Sequence[StoredCheckpoint]) -> Iterator[PathStep]:
    """The ancestors in rows that begin with a target, nearest first."""
    known: Keyframes = {}
    for below, stored in pairwise(rows):
        row = below.row
        with named(stored):
            read, _ = read_manifest(stored, known)
            writes = counting(stored.writes, Child(row.id, row.run, row.seen))
        yield PathStep(stored, read, writes)


def delta_history(
    engine: Engine, place: CheckpointRef, channels: Sequence[str]
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
    engine: Engine, place: CheckpointRef, channels: Sequence[str], target: ThreadState
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
    place: CheckpointRef, channels: dict[str, None], target: ThreadState
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
    place: CheckpointRef, at: str, size: int
) -> Operation[tuple[list[StoredCheckpoint], ThreadState]]:
    """A part of the path, and how the thread stood after it was read."""
    path = ReadPath(place.thread, place.ns, at, size)
    rows, state = yield Fetch((path, ReadCheckpoint(place.thread, place.ns, at)))
    return rows, state


def _until_met(found: Iterator[PathStep], met: set[str]) -> Iterator[PathStep]:
    """The steps up to one that was met before: a checkpoint may be put as its own ancestor."""
    for step in found:
        if step.stored.row.id in met:
            return
        met.add(step.stored.row.id)
        yield step


def _gather(step: PathStep, writes: dict[str, list[Write]], seeds: dict[str, Ref | None]) -> None:
    """Add one ancestor's part to each channel that is still looking."""
    for write in reversed(step.writes):
        if write.channel in writes and write.channel not in seeds:
            writes[write.channel].append(write)
    for channel in writes:
        entry = step.manifest.entries.get(channel)
        if channel not in seeds and entry is not None and entry.ref is not None:
            seeds[channel] = entry.ref
