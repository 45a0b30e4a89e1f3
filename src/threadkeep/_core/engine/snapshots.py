"""Records of what this process saw or stored: loads, values, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from sys import getrefcount
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from threadkeep._core.codec import Codec
from threadkeep._core.engine.differences import SeenSequence
from threadkeep._core.engine.model import Segment, Span
from threadkeep._core.engine.refs import Manifest, Numbers, Ref
from threadkeep._core.engine.shadow import Shadow

_LEAST = 128  # entries before the first sweep


class LoadEntry:
    """One load, by the id that it returned."""

    __slots__ = ("flags", "id", "run", "seen")

    def __init__(self, id: str, run: int, seen: int, flags: int) -> None:
        self.id, self.run, self.seen, self.flags = id, run, seen, flags

    @property
    def ended(self) -> bool:
        """True if the program holds the id no more. Then it never will again."""
        return _references(self) <= _UNHELD


def _references(entry: LoadEntry) -> int:
    return getrefcount(entry.id)


def own_copy(text: str) -> str:
    """Return an equal text that is an object of its own, if it has two characters or more."""
    return text[:1] + text[1:]


_UNHELD = _references(LoadEntry(own_copy("id"), 1, 0, 0))
"""References to an id that only its entry holds: each version of Python counts in its own way."""


class Loads:
    """Table of loads, by the identity of the checkpoint ids that they returned.

    LangGraph carries the very `str` object that a load returned into the first `put` and into every
    `put_writes` on the checkpoint. An id that is not in the table, in a later `put` say, means that
    the run that put the parent continues.

    Invariants: nothing of ours but the entry holds the id, so the number of references tells if the
    program still does. Only operations that are atomic in CPython touch the table: no lock.
    """

    def __init__(self) -> None:
        self._entries: dict[int, LoadEntry] = {}
        self._room = _LEAST

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, text: str, run: int, seen: int, flags: int) -> str:
        """Remember a load; return its id, an object of its own if it has two characters or more."""
        if len(text) < 2:  # noqa: PLR2004 - see above
            return text
        found = own_copy(text)
        self._entries[id(found)] = LoadEntry(found, run, seen, flags)
        if len(self._entries) > self._room:
            self.sweep()
        return found

    def of(self, text: str | None) -> LoadEntry | None:
        """Return the load that returned this very object; None if none did."""
        entry = self._entries.get(id(text))
        return entry if entry is not None and entry.id is text else None

    def sweep(self) -> None:
        """Remove the entries that nobody holds. The next loads share the cost."""
        for key, entry in self._entries.copy().items():
            if entry.ended:
                self._entries.pop(key, None)
        self._room = max(_LEAST, 2 * len(self._entries))


LOADS = Loads()
"""The one table of the process: ids may pass from one saver to another."""


_PART_MOST = 64  # elements of one value by which it is found again
_NO_RAWS: Mapping[int, bytes] = MappingProxyType({})
_PART_OVER = 16  # bytes that such elements take at least, on average


class RunValue(NamedTuple):
    """A list, tuple or dict as last seen, and the spans it is stored in."""

    kind: int
    spans: tuple[Span, ...]
    seen: SeenSequence
    weight: int
    raws: Mapping[int, bytes] = _NO_RAWS  # opaque elements' bytes, by index

    @property
    def needs(self) -> tuple[Span, ...]:
        """The spans that the value is stored in."""
        return self.spans


class RawElement(NamedTuple):
    """Bytes stored as an element, in full."""

    data: bytes
    log: int
    pos: int
    depth: int = 0  # patches behind the last whole one
    uses: tuple[Span, ...] = ()  # positions that reading it needs beside its own
    anchor: RawElement | None = None  # an earlier version that the next patch may go back to

    @property
    def span(self) -> Span:
        """The element's own position."""
        return Span(self.log, self.pos, self.pos + 1)


class CellValue(NamedTuple):
    """A single value as last seen. `raw` is None for a value stored inline."""

    value: Any
    shadow: Shadow
    data: bytes
    uses: tuple[Span, ...]
    raw: RawElement | None
    weight: int

    @property
    def needs(self) -> tuple[Span, ...]:
        """The spans that the value, and what it refers to, is stored in."""
        return (*self.uses, self.raw.span) if self.raw is not None else self.uses


def cell_value(
    value: Any,
    shadow: Shadow,
    data: bytes,
    uses: tuple[Span, ...] = (),
    raw: RawElement | None = None,
) -> CellValue:
    """Return the record of a single value, with its weight."""
    anchor = None if raw is None else raw.anchor
    weight = len(data) if anchor is None else len(data) + len(anchor.data)
    return CellValue(value, shadow, data, uses, raw, weight)


ChannelValue: TypeAlias = RunValue | CellValue


class Keyframe(NamedTuple):
    """A whole manifest and where it is stored; `used` counts the checkpoints against it."""

    manifest: Manifest
    log: int
    pos: int
    used: int
    numbers: Numbers


class CheckpointSnapshot(NamedTuple):
    """A stored checkpoint with the values that this process knows of."""

    ns: str
    id: str
    flags: int
    manifest: Manifest
    keyframe: Keyframe
    values: Mapping[str, ChannelValue]
    data: bytes  # the manifest as stored, which tells a row that was replaced since
    codec: Codec  # what the values were decoded with: others may load other types
    owner: LoadEntry | None = None  # the load of the run that the values were lent to
    fresh: int = 0  # bytes that it does not share with the snapshot before it

    @property
    def weight(self) -> int:
        """About how many bytes the values stand for."""
        return sum([held.weight for held in self.values.values()])


class BatchSegments:
    """The segments of one batch, until it is committed."""

    __slots__ = ("committed", "segments")

    def __init__(self) -> None:
        self.segments: tuple[Segment, ...] = ()
        self.committed = False

    def holding(self, span: Span) -> list[Segment]:
        """Return the segments that hold some of the span."""
        log, start, stop = span
        return [s for s in self.segments if s.log == log and s.start < stop and start < s.stop]


class StoredObject(NamedTuple):
    """An object (a message, say) that was put into a log, found again by its identity."""

    value: Any
    shadow: Shadow
    span: Span
    size: int
    home: BatchSegments


class StoredValue(NamedTuple):
    """A whole value of a channel that was stored a moment ago, as a pending write say."""

    value: Any
    ref: Ref
    held: ChannelValue
    home: BatchSegments
    size: int  # bytes that were stored for it and for nothing before

    def parts(self) -> Iterable[tuple[int, Any]]:
        """Return the elements that the value is found again by, with their numbers."""
        if not isinstance(self.held, RunValue):
            return ()
        seen = self.held.seen
        if seen.size > _PART_MOST or self.held.weight < _PART_OVER * seen.size:
            return ()
        return enumerate(seen.items)

    def holds(self, value: Any) -> bool:
        """Return True if this is what the value is at this instant."""
        if isinstance(self.held, CellValue):
            return self.held.shadow.holds()
        seen = self.held.seen
        return not seen.shadow.is_opaque and seen.is_now(value)
