"""Records of what this process saw or stored: values, checkpoints, and where they lie.

Only immutable records live here (and `Home`, which a commit settles). Invariant: a record
holds a value together with its shadow, so that a change in place since then is noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from threadkeep.codec import Codec
from threadkeep.engine.loads import LoadEntry
from threadkeep.engine.manifest import Manifest, Numbers
from threadkeep.engine.model import Segment, Span
from threadkeep.engine.refs import Ref
from threadkeep.engine.sequence import Seen
from threadkeep.engine.shadow import Shadow

_PART_MOST = 64  # elements of one value by which it is found again
_NO_RAWS: Mapping[int, bytes] = MappingProxyType({})
_PART_OVER = 16  # bytes that such elements take at least, on average


class HeldRun(NamedTuple):
    """A list, tuple or dict as last seen, and the spans it is stored in."""

    kind: int
    spans: tuple[Span, ...]
    seen: Seen
    weight: int
    raws: Mapping[int, bytes] = _NO_RAWS  # opaque elements' bytes, by index

    @property
    def needs(self) -> tuple[Span, ...]:
        """Where the value is stored."""
        return self.spans


class Raw(NamedTuple):
    """Bytes stored as an element: in full `depth` patches behind the last whole one.

    `uses` are the positions that reading it needs beside its own; `anchor` is an earlier
    version that the next patch may go back to when the chain has grown long.
    """

    data: bytes
    log: int
    pos: int
    depth: int = 0
    uses: tuple[Span, ...] = ()
    anchor: Raw | None = None

    @property
    def span(self) -> Span:
        """The element's own position."""
        return Span(self.log, self.pos, self.pos + 1)


class HeldCell(NamedTuple):
    """A single value as last seen. `raw` is None for a value stored inline.

    `weight` is about how many bytes this stands for.
    """

    value: Any
    shadow: Shadow
    data: bytes
    uses: tuple[Span, ...]
    raw: Raw | None
    weight: int

    @property
    def needs(self) -> tuple[Span, ...]:
        """Where the value, and what it refers to, is stored."""
        return (*self.uses, self.raw.span) if self.raw is not None else self.uses


def cell(
    value: Any, shadow: Shadow, data: bytes, uses: tuple[Span, ...] = (), raw: Raw | None = None
) -> HeldCell:
    """Return the record of a single value, with its weight."""
    anchor = None if raw is None else raw.anchor
    weight = len(data) if anchor is None else len(data) + len(anchor.data)
    return HeldCell(value, shadow, data, uses, raw, weight)


Held: TypeAlias = HeldRun | HeldCell


class Keyframe(NamedTuple):
    """A whole manifest and where it is stored; `used` counts the checkpoints against it.

    `numbers` are those that its channels and nodes go by.
    """

    manifest: Manifest
    log: int
    pos: int
    used: int
    numbers: Numbers


class State(NamedTuple):
    """A stored checkpoint with the values that this process knows of.

    `data` is the manifest as stored, which tells a row that was replaced since. `codec`
    is the one that the values were decoded with: who may load other types gets others.
    `owner` is the load of the run that these very objects were lent to; None where that is
    not known, and then they are not lent again. `fresh` are the bytes
    of what it does not share with the state before it.
    """

    ns: str
    id: str
    flags: int
    manifest: Manifest
    keyframe: Keyframe
    held: Mapping[str, Held]
    data: bytes
    codec: Codec
    owner: LoadEntry | None = None
    fresh: int = 0

    @property
    def weight(self) -> int:
        """About how many bytes this stands for."""
        return sum([held.weight for held in self.held.values()])


class Home:
    """The segments that one batch carries, and whether it was committed."""

    __slots__ = ("committed", "segments")

    def __init__(self) -> None:
        self.segments: tuple[Segment, ...] = ()
        self.committed = False

    def holding(self, span: Span) -> list[Segment]:
        """The segments that some of the span lies in."""
        log, start, stop = span
        return [s for s in self.segments if s.log == log and s.start < stop and start < s.stop]


class Placed(NamedTuple):
    """An object (a message, say) that was put into a log, found again by its identity."""

    value: Any
    shadow: Shadow
    span: Span
    size: int
    home: Home


class Known(NamedTuple):
    """A whole value of a channel that was stored a moment ago, as a pending write say.

    `size` are the bytes that were stored for it and for nothing before.
    """

    value: Any
    ref: Ref
    held: Held
    home: Home
    size: int

    def parts(self) -> Iterable[tuple[int, Any]]:
        """The elements that the value is found again by, each with its number."""
        if not isinstance(self.held, HeldRun):
            return ()
        seen = self.held.seen
        if seen.size > _PART_MOST or self.held.weight < _PART_OVER * seen.size:
            return ()
        return enumerate(seen.items)

    def holds(self, value: Any) -> bool:
        """Whether what was stored is what the value is at this instant."""
        if isinstance(self.held, HeldCell):
            return self.held.shadow.holds()
        seen = self.held.seen
        return not seen.shadow.is_opaque and seen.is_now(value)
