"""Value references, and manifests: the version and value of every channel of a checkpoint.

References on the wire (MessagePack): bytes for a plain `Inline`, else a list that begins with the
kind: `[0, data, *uses]`, `[1, log, pos, *uses]`, `[2|3|4, *spans]`. A span is `log, start, length`,
and no value is nil. `[5, kind, *changes]` gives the spans as a difference to an older reference's
(see `_changes`).

A manifest is encoded against a *keyframe*, a whole manifest stored as a log element. Only
differences are kept, and channels and nodes are named by their number in the keyframe. On the wire
it is a list: `[v, updated, extra, gone, entries, gone_nodes, seen, newest]`, with `entries` flat
triples (channel, version, value reference or false for a removed value) and `seen` flat pairs
(node, [all?, channel, version, channel, version, ...]). An integer version is written as its
distance to `newest`, the greatest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import ormsgpack

from threadkeep._core.engine.model import Segment, SegmentInfo, Span
from threadkeep._core.engine.records import quick
from threadkeep.errors import CorruptionError

_INLINE, _CELL, LIST, TUPLE, DICT, _CHANGED = range(6)
_RUNS = frozenset((LIST, TUPLE, DICT))
_INTEGER = frozenset((int,))
_MANY_SPANS = 2  # from here on, spans are written as a difference to the older reference


@quick
class Inline(NamedTuple):
    """A small value: its bytes."""

    data: bytes
    uses: tuple[Span, ...] = ()

    @property
    def needs(self) -> tuple[Span, ...]:
        """The spans to fetch before the value can be read."""
        return self.uses


@quick
class Cell(NamedTuple):
    """A large single value: one element."""

    log: int
    pos: int
    uses: tuple[Span, ...] = ()

    @property
    def needs(self) -> tuple[Span, ...]:
        return (Span(self.log, self.pos, self.pos + 1), *self.uses)


@quick
class Run(NamedTuple):
    """A list, tuple or dict (`kind`): its elements, or its items, in order."""

    kind: int
    spans: tuple[Span, ...]

    @property
    def needs(self) -> tuple[Span, ...]:
        return self.spans


Ref: TypeAlias = Inline | Cell | Run


class Changed(NamedTuple):
    """A value as migrations make it: `functions` are applied in order.

    It takes the place of a `Ref` when values are read, and is never stored.
    """

    ref: Ref
    functions: tuple[partial[Any], ...]

    @property
    def needs(self) -> tuple[Span, ...]:
        """The spans of the stored value."""
        return self.ref.needs


def to_wire(ref: Ref | None, old: Ref | None = None) -> Any:
    """Return the MessagePack form of a reference, given an older reference of the channel."""
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
    """Return the reference that `to_wire` wrote, given the same older reference.

    Raises ValueError, TypeError or IndexError for anything else.
    """
    if wire is None:
        return None
    if isinstance(wire, bytes):
        return Inline(wire)
    kind, *rest = wire
    if kind in _RUNS and len(rest) == 3:  # noqa: PLR2004 - one span, as most have
        log, start, length = rest
        if type(log) is type(start) is type(length) is int:
            return Run(kind, (Span(log, start, start + length),))
    if kind == _INLINE and type(rest[0]) is bytes:
        return Inline(rest[0], _spans(_whole(rest[1:])))
    _whole(rest)
    if kind == _CELL:
        return Cell(rest[0], rest[1], _spans(rest[2:]))
    if kind == _CHANGED and rest[0] in _RUNS:
        return Run(rest[0], _changed(rest[1:], old.spans if isinstance(old, Run) else ()))
    if kind in _RUNS:
        return Run(kind, _spans(rest))
    raise ValueError(f"there is no reference of kind {kind!r}")


def _whole(numbers: list[Any]) -> list[int]:
    if not set(map(type, numbers)) <= _INTEGER:
        raise TypeError("an address that is not whole numbers")
    return numbers


def _changes(new: tuple[Span, ...], old: tuple[Span, ...]) -> list[int]:
    """Encode spans as ranges of the old (`first, count`) and new ones (`~log, start, length`)."""
    same = 0
    for span, before in zip(new, old, strict=False):
        if span is not before and span != before:
            break
        same += 1
    flat = [0, same] if same else []
    last = len(flat) - 1  # position of the count of the current range, if there is one
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
                raise IndexError("a range of spans that the older reference does not have")
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
    return sum([stop - start for _, start, stop in spans])


def elements_of(ref: Ref) -> int | None:
    """Return the number of elements of a list, tuple or dict that is stored as such."""
    return length(ref.spans) if isinstance(ref, Run) else None


def added(ref: Ref | None, old: Ref | None) -> list[int] | None:
    """Return the indexes of elements of a list that an older value of it lacks. None for all."""
    if ref == old:
        return []
    if not (isinstance(ref, Run) and isinstance(old, Run)):
        return None
    found, at = list[int](), 0
    for log, start, stop in ref.spans:
        new = start
        for span in old.spans:
            if span.log == log and span.start <= new:
                new = max(new, min(span.stop, stop))
        found += range(at + new - start, at + stop - start)
        at += stop - start
    return found


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


def after(old: Sequence[Span], new: Sequence[Span]) -> tuple[Span, ...]:
    """Return the elements of `new` that follow `old`, none if it does not begin with `old`."""
    if not old:
        return tuple(new)
    last = len(old) - 1
    if len(new) <= last or tuple(old[:last]) != tuple(new[:last]):
        return ()
    (log, start, stop), (new_log, new_start, end) = old[last], new[last]
    if (log, start) != (new_log, new_start) or end < stop:
        return ()
    rest = (Span(log, stop, end),) if end > stop else ()
    return (*rest, *new[last + 1 :])


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the same elements in as few spans as possible."""
    return joined((), spans)


def joined(first: Iterable[Span], then: Iterable[Span]) -> tuple[Span, ...]:
    """Return the elements of both in as few spans as possible (`first` already are)."""
    out = [*first]
    log, start, stop = out[-1] if out else (-1, 0, -1)
    for span in then:
        if span[0] == log and span[1] == stop:
            stop = span[2]
            out[-1] = Span(log, start, stop)
        elif span[1] < span[2]:
            out.append(span)
            log, start, stop = span
    return tuple(out)


def covering(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the positions of the spans, each once, in (log, start) order."""
    out: list[Span] = []
    for span in sorted(spans):
        if out and out[-1].log == span.log and out[-1].stop >= span.start:
            if span.stop > out[-1].stop:
                out[-1] = Span(span.log, out[-1].start, span.stop)
        else:
            out.append(span)
    return tuple(out)


Version: TypeAlias = int | float | str | None
Versions: TypeAlias = dict[str, Version]
_NONE: Mapping[str, Any] = MappingProxyType({})


@quick
class ChannelEntry(NamedTuple):
    """A channel's version and value, or None if the channel is empty."""

    version: Version
    ref: Ref | None
    removed: bool = False  # its value was removed by retention

    @property
    def is_empty(self) -> bool:
        """True if there never was a value: the channel is empty, or a DeltaChannel."""
        return self.ref is None and not self.removed


@quick
class Manifest(NamedTuple):
    """A checkpoint without its identity: format `v`, channels, and versions seen by nodes."""

    v: Any  # (an int, as LangGraph saves it, and kept as it is)
    entries: Mapping[str, ChannelEntry] = _NONE
    seen: Mapping[str, Versions] = _NONE
    updated: list[str] | bool | None = False  # `updated_channels`, or False if absent
    extra: bytes | None = None  # keys of other LangGraph releases, encoded

    def needs(self) -> Iterable[Span]:
        return (span for entry in self.entries.values() if entry.ref for span in entry.ref.needs)


EMPTY = Manifest(0, {}, {})


Numbers: TypeAlias = tuple[Mapping[str, int], Mapping[str, int]]  # of a keyframe's channels, nodes


def numbers(keyframe: Manifest) -> Numbers:
    """Number a keyframe's channels and nodes."""
    channels = {name: number for number, name in enumerate(keyframe.entries)}
    return channels, {name: number for number, name in enumerate(keyframe.seen)}


def encode_manifest(
    manifest: Manifest, keyframe: Manifest = EMPTY, known: Numbers | None = None
) -> bytes:
    """Encode a manifest as a difference to `keyframe`. `known` are its numbers."""
    v, entries, seen, updated, extra = manifest
    channels, nodes = numbers(keyframe) if known is None else known
    if isinstance(updated, list):
        updated = [*map(channels.get, updated, updated)]  # type: ignore[list-item]  # wire form
    parts = (entries, seen, keyframe.entries, keyframe.seen, channels, nodes, to_wire)
    changed = difference(*parts) or portable_difference(*parts)
    return ormsgpack.packb([v, updated, extra, *changed])


def portable_difference(
    entries: Mapping[str, ChannelEntry],
    seen: Mapping[str, Versions],
    known: Mapping[str, ChannelEntry],
    known_seen: Mapping[str, Versions],
    channels: Mapping[str, int],
    nodes: Mapping[str, int],
    to_wire: Callable[[Ref | None, Ref | None], Any],
) -> list[Any]:
    """Return the last five parts of the list. The compiled twin returns None if unusual."""
    whole = [entry.version for entry in entries.values() if type(entry.version) is int]
    newest = max(whole) if whole and min(whole) >= 0 else 0
    changed: list[Any] = []
    for name, entry in entries.items():
        old = known.get(name)
        version, ref, removed = entry
        # (Versions first: most differ, and comparing a reference may take long.)
        if entry is old or (
            old is not None and same_version(version, old.version) and entry[1:] == old[1:]
        ):
            continue
        to = False if removed else to_wire(ref, None if old is None else old.ref)
        changed += (channels.get(name, name), _distance(version, newest), to)
    seen_now: list[Any] = []
    for node, versions in seen.items():
        before = known_seen.get(node)
        if before is versions or (before is not None and _same(versions, before)):
            continue
        seen_now += (nodes.get(node, node), _seen_wire(versions, before, channels, newest))
    return [_gone(channels, entries), changed, _gone(nodes, seen), seen_now, newest]


def _gone(numbers: Mapping[str, int], now: Mapping[str, Any]) -> list[int]:
    if numbers.keys() <= now.keys():
        return []
    return [number for name, number in numbers.items() if name not in now]


def _distance(version: Version, newest: int) -> Version:
    return newest - version if type(version) is int else version


def sharing(
    seen: Mapping[str, Mapping[str, Version]], before: Mapping[str, Versions]
) -> dict[str, Versions]:
    """Copy the versions seen by nodes, reusing the previous checkpoint's if equal."""
    shared: dict[str, Versions] = {}
    for node, versions in seen.items():
        old = before.get(node)
        if old is None or versions != old:
            shared[node] = dict(versions)
        else:
            shared[node] = old if _same(versions, old) else dict(versions)
    return shared


def decode_manifest(data: bytes, keyframe: Manifest = EMPTY) -> Manifest:
    """Decode a manifest that was encoded against the same keyframe."""
    try:
        return _decoded(ormsgpack.unpackb(data), keyframe)
    except (ValueError, TypeError, IndexError, KeyError) as exc:
        raise CorruptionError("A checkpoint's manifest is damaged.") from exc


def _decoded(parts: list[Any], keyframe: Manifest) -> Manifest:
    v, updated, extra, gone, entries_wire, gone_nodes, seen_wire, newest = parts
    if type(v) is not int or not (extra is None or type(extra) is bytes):
        raise TypeError("a format that is no number, or other keys that are no bytes")
    names, nodes = list(keyframe.entries), list(keyframe.seen)
    entries = _without(keyframe.entries, gone)
    flat = iter(entries_wire)
    for key, version, wire in zip(flat, flat, flat, strict=True):
        name = names[key] if isinstance(key, int) else key
        at = newest - version if type(version) is int else version
        if wire is None or wire is False:
            entries[name] = ChannelEntry(at, None, wire is False)
        elif type(wire) is bytes:  # (most)
            entries[name] = ChannelEntry(at, Inline(wire))
        else:
            known = keyframe.entries.get(name)
            entries[name] = ChannelEntry(at, from_wire(wire, known and known.ref))
    seen = _without(keyframe.seen, gone_nodes)
    flat = iter(seen_wire)
    for key, wire in zip(flat, flat, strict=True):
        node = nodes[key] if isinstance(key, int) else key
        versions = {} if wire[0] else dict(keyframe.seen.get(node, _NONE))
        told = iter(wire)
        next(told)
        for channel, version in zip(told, told, strict=True):
            name = names[channel] if isinstance(channel, int) else channel
            versions[name] = newest - version if type(version) is int else version
        seen[node] = versions
    if isinstance(updated, list):
        updated = [names[key] if isinstance(key, int) else key for key in updated]
    return Manifest(v, entries, seen, updated, extra)


def _without(old: Mapping[str, Any], gone: Sequence[int]) -> dict[str, Any]:
    if not gone:
        return dict(old)
    names = list(old)
    dropped = {names[number] for number in gone}
    return {name: value for name, value in old.items() if name not in dropped}


def _same(a: Mapping[str, Version], b: Versions) -> bool:
    if a != b:
        return False
    for name, version in a.items():  # noqa: SIM110 - half the time of `all`, for every save
        if type(version) is not type(b[name]):
            return False
    return True


def _seen_wire(
    new: Versions, old: Versions | None, channels: Mapping[str, int], newest: int
) -> list[Any]:
    """Return the versions that changed, or all of them if some were removed."""
    whole = old is None or not old.keys() <= new.keys()
    wire: list[Any] = [whole]
    for name, version in new.items():
        if whole or old is None or name not in old or not same_version(version, old[name]):
            wire += (channels.get(name, name), _distance(version, newest))
    return wire


def same_version(a: Version, b: Version) -> bool:
    """Return True for the same version. 1 and 1.0 are two."""
    return a == b and type(a) is type(b)


difference: Callable[..., list[Any] | None]
try:
    from threadkeep._core.engine._wire import difference
except ImportError:  # it could not be compiled
    difference = portable_difference
