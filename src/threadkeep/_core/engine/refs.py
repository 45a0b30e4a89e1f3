"""Value references: how a manifest or a pending write refers to one value.

On the wire (MessagePack): bytes for a plain `Inline`, else a list that begins with the kind: `[0,
data, *uses]`, `[1, log, pos, *uses]`, `[2|3|4, *spans]`; a span is `log, start, length`; no value
at all is nil. `[5, kind, *changes]` gives the spans as a difference to those of an older reference
(see `_changes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from threadkeep._core.engine.model import Segment, SegmentInfo, Span

_INLINE, _CELL, LIST, TUPLE, DICT, _CHANGED = range(6)
_MANY_SPANS = 2  # from here on, spans are written as a difference to the older reference's


class Inline(NamedTuple):
    """A small value: its bytes."""

    data: bytes
    uses: tuple[Span, ...] = ()

    @property
    def needs(self) -> tuple[Span, ...]:
        """The spans to fetch before the value can be read."""
        return self.uses


class Cell(NamedTuple):
    """A large single value: one element."""

    log: int
    pos: int
    uses: tuple[Span, ...] = ()

    @property
    def needs(self) -> tuple[Span, ...]:
        """The spans to fetch before the value can be read."""
        return (Span(self.log, self.pos, self.pos + 1), *self.uses)


class Run(NamedTuple):
    """A list, tuple or dict (`kind`): its elements, or its items, in order."""

    kind: int
    spans: tuple[Span, ...]

    @property
    def needs(self) -> tuple[Span, ...]:
        """The spans to fetch before the value can be read."""
        return self.spans


Ref: TypeAlias = Inline | Cell | Run


def to_wire(ref: Ref | None, old: Ref | None = None) -> Any:
    """Return the form of a reference in a MessagePack document, beside an older one."""
    if ref is None:
        return None
    if isinstance(ref, Inline):  # (first, as most are)
        return [_INLINE, ref.data, *_flat(ref.uses)] if ref.uses else ref.data
    if isinstance(ref, Run):
        if isinstance(old, Run) and len(old.spans) >= _MANY_SPANS:
            return [_CHANGED, ref.kind, *_changes(ref.spans, old.spans)]
        return [ref.kind, *_flat(ref.spans)]
    return [_CELL, ref.log, ref.pos, *_flat(ref.uses)]


def from_wire(wire: Any, old: Ref | None = None) -> Ref | None:
    """Return the reference that `to_wire` wrote beside the same older one."""
    if wire is None:
        return None
    if isinstance(wire, bytes):
        return Inline(wire)
    kind = wire[0]
    if kind == _INLINE:
        return Inline(wire[1], _spans(wire[2:]))
    if kind == _CELL:
        return Cell(wire[1], wire[2], _spans(wire[3:]))
    if kind == _CHANGED:
        return Run(wire[1], _changed(wire[2:], old.spans if isinstance(old, Run) else ()))
    return Run(kind, _spans(wire[1:]))


def _changes(new: tuple[Span, ...], old: tuple[Span, ...]) -> list[int]:
    """Write spans as runs of the old ones (`first, count`) and new ones (`~log, start, length`)."""
    same = 0
    for span, before in zip(new, old, strict=False):
        if span is not before and span != before:
            break
        same += 1
    flat = [0, same] if same else []
    last = len(flat) - 1  # where the count of the run under way stands, if there is one
    where = {span: i for i, span in enumerate(old[same:], same)}
    for span in new[same:]:
        i = where.get(span)
        if i is None:
            flat += (~span.log, span.start, span.stop - span.start)
            last = -1
        elif last >= 0 and flat[last - 1] + flat[last] == i:
            flat[last] += 1
        else:
            flat += (i, 1)
            last = len(flat) - 1
    return flat


def _changed(flat: Sequence[int], old: tuple[Span, ...]) -> tuple[Span, ...]:
    spans: list[Span] = []
    at = 0
    while at < len(flat):
        if flat[at] < 0:
            spans.append(Span(~flat[at], flat[at + 1], flat[at + 1] + flat[at + 2]))
            at += 3
        else:
            run = old[flat[at] : flat[at] + flat[at + 1]]
            if len(run) != flat[at + 1]:
                raise IndexError("a run of spans that the older reference does not have")
            spans += run
            at += 2
    return tuple(spans)


def _flat(spans: Iterable[Span]) -> list[int]:
    return [n for log, start, stop in spans for n in (log, start, stop - start)]


def _spans(flat: Sequence[int]) -> tuple[Span, ...]:
    if len(flat) == 3:  # noqa: PLR2004 - one span, as most have
        log, start, length = flat
        return (Span(log, start, start + length),)
    triples = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    return tuple([Span(log, start, start + length) for log, start, length in triples])


def span_of(place: Segment | SegmentInfo) -> Span:
    """Return all positions of a segment."""
    return Span(place.log, place.start, place.start + place.count)


def length(spans: Iterable[Span]) -> int:
    """Count the elements of spans."""
    return sum([stop - start for _, start, stop in spans])


def cut(spans: Iterable[Span], start: int, stop: int) -> list[Span]:
    """Return the spans of the elements number `start <= i < stop`."""
    found, at = [], 0
    for span in spans:
        log, first, last = span
        end = at + last - first
        if start <= at < end <= stop:
            found.append(span)
        elif max(start, at) < min(stop, end):
            found.append(Span(log, first + max(start - at, 0), last - max(end - stop, 0)))
        elif at >= stop:
            break
        at = end
    return found


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the same elements in as few spans as can be."""
    out: list[Span] = []
    log = stop = -1  # where the last one ends
    for span in spans:
        if span[0] == log and span[1] == stop:
            out[-1] = Span(log, out[-1].start, span.stop)
        elif span[1] < span[2]:
            out.append(span)
        else:
            continue
        log, stop = span[0], span[2]
    return tuple(out)


def covering(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the positions that the spans name, each once, in (log, start) order."""
    out: list[Span] = []
    for span in sorted(spans):
        if out and out[-1].log == span.log and out[-1].stop >= span.start:
            if span.stop > out[-1].stop:
                out[-1] = Span(span.log, out[-1].start, span.stop)
        else:
            out.append(span)
    return tuple(out)
