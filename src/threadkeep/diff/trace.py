"""Versions of a channel, up the chain of parents: manifests are read, values never."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from threadkeep import validation
from threadkeep.engine.context import (
    Engine,
    Keyframes,
    named,
    not_found,
    read_manifest,
    unless_hidden,
)
from threadkeep.engine.listing import FIRST_STRETCH, LONGEST_STRETCH, stretch
from threadkeep.engine.manifest import ChannelEntry, Version, same_version
from threadkeep.engine.model import HIDDEN, StoredCheckpoint, ThreadState
from threadkeep.engine.operation import CheckpointRef, Operation, fetch_checkpoint
from threadkeep.engine.rows import unpack_metadata, unpack_time
from threadkeep.errors import StaleThreadError


@dataclass(frozen=True, slots=True)
class ChannelVersion:
    """Version of a channel, and the checkpoint that first had it.

    Attributes:
        version: the version.
        checkpoint: the checkpoint's id.
        time: its ISO time.
        step: of its metadata; None where that has none.
        source: likewise.
        has_value: the channel was not empty there. A DeltaChannel is, except at its snapshots.
        is_first: False where an older checkpoint with this version was pruned; then this is the
            oldest that is left.
    """

    version: Version
    checkpoint: str
    time: str
    step: int | None
    source: str | None
    has_value: bool
    is_first: bool


def versions(
    engine: Engine, thread: str, channel: str, ns: str, limit: int | None, checkpoint: str | None
) -> Operation[list[ChannelVersion]]:
    """Check the arguments of `Threads.versions`, and read the versions."""
    place = validation.place(thread, ns, checkpoint)
    name = validation.text("channel", channel, place)
    return _versions(engine, place, name, validation.limit(limit))


def _versions(
    engine: Engine, place: CheckpointRef, channel: str, limit: int | None
) -> Operation[list[ChannelVersion]]:
    generation = -1
    while True:
        target = yield from fetch_checkpoint(place.thread, place.ns, place.id)
        stored = unless_hidden(target.found)
        if stored is None:
            raise not_found(place)
        try:
            found = yield from _trace(place._replace(id=stored.row.id), channel, limit, target)
        except StaleThreadError:
            # Ancestors were removed meanwhile: the path may have been cut short.
            if target.generation == generation:
                raise
            generation = target.generation
        else:
            return [_version(engine, since) for since in found[:limit]]


class _Since(NamedTuple):
    """Oldest visible checkpoint so far with a version."""

    stored: StoredCheckpoint
    entry: ChannelEntry
    is_first: bool


class _Trace:
    """Versions found on the way up; `goes_on`: the last one may be older still."""

    def __init__(self, channel: str) -> None:
        self.found: list[_Since] = []
        self.goes_on = False
        self._channel = channel
        self._known: Keyframes = {}

    def add(self, stored: StoredCheckpoint) -> None:
        """Add the next ancestor."""
        with named(stored):
            entry = read_manifest(stored, self._known)[0].entries.get(self._channel)
        hidden = bool(stored.row.flags & HIDDEN)
        if entry is None or entry.version is None:
            self.goes_on = False
        elif self.goes_on and same_version(entry.version, self.found[-1].entry.version):
            if hidden:
                self.end_unseen()
            else:
                self.found[-1] = _Since(stored, entry, is_first=True)
        else:
            self.goes_on = not hidden
            if not hidden:
                self.found.append(_Since(stored, entry, is_first=True))

    def end_unseen(self) -> None:
        """Note that the last version began where nothing can be read any more."""
        if self.goes_on:
            self.found[-1] = self.found[-1]._replace(is_first=False)

    def has(self, limit: int | None) -> bool:
        """Return True if so many versions are found with their beginnings."""
        return limit is not None and len(self.found) - self.goes_on >= limit


def _trace(
    place: CheckpointRef, channel: str, limit: int | None, target: ThreadState
) -> Operation[list[_Since]]:
    trace, met = _Trace(channel), set[str]()
    at, size = place.id, FIRST_STRETCH
    while at is not None and not trace.has(limit):
        rows, state = yield from stretch(place, at, size)
        if state.generation != target.generation:
            raise StaleThreadError(thread=place.thread)
        before = len(met)
        for stored in rows:
            if stored.row.id not in met:  # (a stretch begins with the last one of the one before)
                met.add(stored.row.id)
                trace.add(stored)
        cut = len(rows) < size
        if cut and rows and rows[-1].row.parent is not None:
            trace.end_unseen()
        at = None if cut or len(met) == before else rows[-1].row.id
        size = min(size * 2, LONGEST_STRETCH)
    return trace.found


def _version(engine: Engine, since: _Since) -> ChannelVersion:
    row = since.stored.row
    with named(since.stored):
        metadata = unpack_metadata(row.metadata, row.exact, engine.codec)
    return ChannelVersion(
        version=since.entry.version,
        checkpoint=row.id,
        time=unpack_time(row.ts),
        step=metadata.get("step"),
        source=metadata.get("source"),
        has_value=since.entry.ref is not None,
        is_first=since.is_first,
    )
