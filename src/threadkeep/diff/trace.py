"""The versions that a channel went through, up the chain of parents.

Only rows and manifests are read. Invariant: a round trip reads a stretch of the path,
never a single checkpoint, and a path that leads back to itself ends there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from threadkeep.engine.context import (
    Engine,
    Keyframes,
    named,
    not_found,
    read_manifest,
    unless_hidden,
)
from threadkeep.engine.listing import (
    FIRST_STRETCH,
    LONGEST_STRETCH,
    stretch,
)
from threadkeep.engine.manifest import ChannelEntry, Version, same_version
from threadkeep.engine.model import HIDDEN, StoredCheckpoint, ThreadState
from threadkeep.engine.operation import (
    CheckpointRef,
    Operation,
    fetch_checkpoint,
)
from threadkeep.engine.rows import unpack_metadata, unpack_time
from threadkeep.errors import StaleThreadError


@dataclass(frozen=True, slots=True)
class ChannelVersion:
    """A version of a channel, and the checkpoint that first had it.

    `time` is the checkpoint's ISO time, `step` and `source` are of its metadata (None where
    that has none). `has_value`: the channel was not empty there; a DeltaChannel is, but at
    its snapshots. `is_first` is False where an older checkpoint that had this version was
    pruned: then this is the oldest of those left.
    """

    version: Version
    checkpoint: str
    time: str
    step: int | None
    source: str | None
    has_value: bool
    is_first: bool


def versions(
    engine: Engine, place: CheckpointRef, channel: str, limit: int | None
) -> Operation[list[ChannelVersion]]:
    """The channel's versions on the way to the place, newest first; None for all of them.

    Raises:
        ThreadNotFoundError, CheckpointNotFoundError: there is no such place.
        CorruptionError: a manifest is damaged.
    """
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
            return [_told(engine, since) for since in found[:limit]]


class _Since(NamedTuple):
    """The oldest visible checkpoint so far that has a version."""

    stored: StoredCheckpoint
    entry: ChannelEntry
    is_first: bool


class _Trace:
    """What a walk up the path has found; `goes_on`: the last version may be older still."""

    def __init__(self, channel: str) -> None:
        self.found: list[_Since] = []
        self.goes_on = False
        self._channel = channel
        self._known: Keyframes = {}

    def add(self, stored: StoredCheckpoint) -> None:
        """Look at the next ancestor."""
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
        """The version under way began where nobody can look any more."""
        if self.goes_on:
            self.found[-1] = self.found[-1]._replace(is_first=False)

    def has(self, limit: int | None) -> bool:
        """Whether so many versions are found with their beginnings."""
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
        for stored in _new(rows, met):
            trace.add(stored)
        cut = len(rows) < size
        if cut and rows and rows[-1].row.parent is not None:
            trace.end_unseen()
        at = None if cut or len(met) == before else rows[-1].row.id
        size = min(size * 2, LONGEST_STRETCH)
    return trace.found


def _new(rows: Iterable[StoredCheckpoint], met: set[str]) -> Iterator[StoredCheckpoint]:
    """Those that were not met before (the first of a stretch was the last of the one before)."""
    for stored in rows:
        if stored.row.id not in met:
            met.add(stored.row.id)
            yield stored


def _told(engine: Engine, since: _Since) -> ChannelVersion:
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
