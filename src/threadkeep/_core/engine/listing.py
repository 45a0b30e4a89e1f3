"""Listing checkpoints a page at a time, newest first, and the history of DeltaChannels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from threadkeep._core.engine.context import Engine, Keyframes, named, read_elements, read_manifest
from threadkeep._core.engine.elements import gc_paused
from threadkeep._core.engine.fields import field, is_path
from threadkeep._core.engine.load import Loaded, assemble
from threadkeep._core.engine.manifest import Manifest
from threadkeep._core.engine.model import (
    FREE,
    OWN_NS,
    CheckpointRow,
    Child,
    ReadCheckpoint,
    ReadPath,
    ScanCheckpoints,
    Span,
    StoredCheckpoint,
    ThreadState,
)
from threadkeep._core.engine.operation import (
    CheckpointRef,
    Fetch,
    Operation,
    fetch,
    fetch_checkpoint,
)
from threadkeep._core.engine.refs import Ref
from threadkeep._core.engine.rows import Write, counting, unpack_metadata
from threadkeep.errors import CorruptionError, StaleThreadError

_LARGEST_PAGE = 256
_SCALARS = (str, int, float, bool, type(None))


class Listing(NamedTuple):
    """A `list` call: `thread` None means every thread, `ns` None every namespace."""

    thread: str | None
    ns: str | None = None
    id: str | None = None
    before: str | None = None
    filter: Mapping[str, Any] = MappingProxyType({})
    limit: int | None = None
    after: tuple[str, str, str] | None = None
    size: int = 32


class Page(NamedTuple):
    """Some checkpoints, and the listing that continues behind them; None at the end."""

    found: list[Loaded]
    rest: Listing | None


def begin(listing: Listing) -> Listing | None:
    """Return the listing; None if it can hold nothing."""
    return None if listing.limit is not None and listing.limit <= 0 else listing


def page(engine: Engine, listing: Listing) -> Operation[Page]:
    """Return the next checkpoints of a listing."""
    size, limit = listing.size, listing.limit
    if limit is not None and not listing.filter:
        size = min(size, limit)
    rows, found = yield from _read(engine, listing, size)
    limit = None if limit is None else limit - len(found)
    if len(rows) < size or limit == 0:
        return Page(found, None)
    last = rows[-1]
    after = (last.row.id, last.thread, last.row.ns)
    larger = min(listing.size * 2, _LARGEST_PAGE)
    return Page(found, listing._replace(limit=limit, after=after, size=larger))


def _read(
    engine: Engine, listing: Listing, size: int
) -> Operation[tuple[list[StoredCheckpoint], list[Loaded]]]:
    """Return a page's rows, and those that match with their values."""
    thread, ns, id, before, wanted, limit, after, _ = listing
    simple = {k: v for k, v in wanted.items() if isinstance(v, _SCALARS) and not is_path(k)}
    scan = ScanCheckpoints(thread, ns, id, before, simple, after, size)
    previous: list[StoredCheckpoint] | None = None
    while True:
        rows = cast("list[StoredCheckpoint]", (yield from fetch(scan)))
        try:
            matching = []
            for one in rows:
                if ns is None and one.row.ns.startswith(OWN_NS):
                    continue
                metadata = unpack_metadata(one.row.metadata, one.row.exact, engine.codec)
                if all(field(metadata, key) == value for key, value in wanted.items()):
                    matching.append(one)
            matching = matching[:limit]
            loaded: dict[tuple[str, str, str], Loaded] = {}
            for name in dict.fromkeys(one.thread for one in matching):
                mine = [one for one in matching if one.thread == name]
                for item in (yield from _of_thread(engine, name, mine)):
                    loaded[item.thread, item.ns, item.id] = item
            found = [loaded[one.thread, one.row.ns, one.row.id] for one in matching]
        except CorruptionError:
            # Segments may have been removed between the two reads: then the rows changed.
            if rows == previous:
                raise
            previous = rows
        else:
            return rows, found


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
    loaded: list[Loaded] = []
    with gc_paused():
        for stored, read, writes in opened:
            with named(stored):
                loaded.append(assemble(engine, stored, read, elements, writes, {}, FREE))
    return loaded


FIRST_STRETCH = 32
LONGEST_STRETCH = 512


class ChannelHistory(NamedTuple):
    """A channel's writes, oldest first, and the reference of its seed, if it has one."""

    writes: list[Write]
    seed: Ref | None


def delta_history(
    engine: Engine, place: CheckpointRef, channels: Sequence[str]
) -> Operation[dict[str, dict[str, Any]]]:
    """Return each channel's `writes`, and the `seed`: of its nearest ancestor with a value."""
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
    """Walk up the path until each channel has found its seed, or to the root.

    Raises StaleThreadError where checkpoints were removed meanwhile.
    """
    writes: dict[str, list[Write]] = {channel: [] for channel in channels}
    seeds: dict[str, Ref | None] = {}
    at, size = target.found.row.id if target.found else None, FIRST_STRETCH
    met: set[str] = set()
    while at is not None and len(seeds) < len(writes):
        rows, state = yield from stretch(place, at, size)
        if state.generation != target.generation:
            raise StaleThreadError(thread=place.thread)
        at = rows[-1].row.id if len(rows) == size else None
        known: Keyframes = {}
        for below, stored in pairwise(rows):
            if stored.row.id in met:  # a checkpoint may be its own ancestor
                at = None
                break
            met.add(stored.row.id)
            _gather(below.row, stored, known, writes, seeds)
            if len(seeds) == len(writes):
                break
        size = min(size * 2, LONGEST_STRETCH)
    return {c: ChannelHistory(list(reversed(w)), seeds.get(c)) for c, w in writes.items()}


def stretch(
    place: CheckpointRef, at: str, size: int
) -> Operation[tuple[list[StoredCheckpoint], ThreadState]]:
    """Return a part of the path, and the thread's state after it was read."""
    path = ReadPath(place.thread, place.ns, at, size)
    rows, state = yield Fetch((path, ReadCheckpoint(place.thread, place.ns, at)))
    return rows, state


def _gather(
    below: CheckpointRow,
    stored: StoredCheckpoint,
    known: Keyframes,
    writes: dict[str, list[Write]],
    seeds: dict[str, Ref | None],
) -> None:
    """Add an ancestor's value, and its writes that led to the checkpoint below."""
    with named(stored):
        read, _ = read_manifest(stored, known)
        led = counting(stored.writes, Child(below.id, below.run, below.seen))
    for write in reversed(led):
        if write.channel in writes and write.channel not in seeds:
            writes[write.channel].append(write)
    for channel in writes:
        entry = read.entries.get(channel)
        if channel not in seeds and entry is not None and entry.ref is not None:
            seeds[channel] = entry.ref
