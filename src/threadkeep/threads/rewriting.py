"""Rewriting the rows and elements of a thread in the shapes of the program, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from threadkeep._core.codec import FormerSerde, pack, unpack
from threadkeep._core.codec.shapes import ShapedCodec
from threadkeep._core.engine import elements, refs
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.draft import INLINE_MAX
from threadkeep._core.engine.elements import Elements
from threadkeep._core.engine.lineage import CheckpointKey, Lineage, by_log, write_key
from threadkeep._core.engine.logs import NEW_LOG_BITS
from threadkeep._core.engine.model import (
    CheckpointRow,
    Segment,
    Span,
    StoredCheckpoint,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.engine.refs import Cell, Changed, Inline, Manifest, Ref
from threadkeep._core.engine.rows import (
    note_of,
    pack_writes,
    unpack_writes,
    with_body,
    with_manifest,
)
from threadkeep._core.engine.snapshots import RawElement
from threadkeep.errors import StaleThreadError, ThreadkeepError
from threadkeep.threads.retention.apply import all_writes

Position: TypeAlias = tuple[int, int]
Renewing: TypeAlias = ShapedCodec | FormerSerde
"""A codec that returns stored values in another form."""


@dataclass(slots=True)
class Renewed:
    """The parts of a thread that change.

    Attributes:
        elements: the new form of elements, by log and position.
        rows: all rows, as they are afterwards. A write keeps its `seq`.
        checkpoints: keys of the checkpoints that change.
        writes: keys of the rows of writes that change.
        added: new elements, in logs of their own.
    """

    rows: ThreadRows
    elements: dict[Position, bytes] = field(default_factory=dict)
    checkpoints: list[CheckpointKey] = field(default_factory=list)
    writes: list[tuple[str, str, int]] = field(default_factory=list)
    added: list[Segment] = field(default_factory=list)

    @property
    def is_nothing(self) -> bool:
        """True if nothing has to be rewritten."""
        return not (self.elements or self.checkpoints or self.writes)


def renew(
    engine: Engine,
    codec: Renewing,
    thread: str,
    rows: ThreadRows,
    others: Sequence[ThreadRows],
    segments: Iterable[Segment],
) -> Renewed:
    """Rewrite the rows of a thread, and the elements that it or `others` refer to.

    Raises:
        StateMigrationError, UnknownTypeError: a value cannot be migrated, and the place is set.
        StaleThreadError: the segments do not belong to the rows.
    """
    work = _Work(engine, codec, thread, rows, Elements(codec, segments))
    spans = [span for one in (rows, *others) for span, _ in _values(one)]
    if work.found.missing(spans):
        raise StaleThreadError(thread=thread)
    work.renew_elements(by_log(spans))
    work.renew_rows()
    return work.result


def _values(rows: ThreadRows) -> Iterator[tuple[Span, tuple[StoredCheckpoint | WriteRow, str]]]:
    """Iterate over the positions of values, each with its row and channel."""
    lineage = Lineage(rows.checkpoints)
    for key, stored in lineage.stored.items():
        for name, entry in lineage.manifest(key)[0].entries.items():
            for span in entry.ref.needs if entry.ref is not None else ():
                yield span, (stored, name)
    for row in all_writes(rows):
        for write in unpack_writes(row):
            for span in write.ref.needs:
                yield span, (row, write.channel)


class _Work:
    def __init__(
        self, engine: Engine, codec: Renewing, thread: str, rows: ThreadRows, found: Elements
    ) -> None:
        self.engine, self.codec, self.thread = engine, codec, thread
        self.found = found
        self.lineage = Lineage(rows.checkpoints)
        self.result = Renewed(rows)
        self._made: dict[object, Ref] = {}  # values that functions of channels have changed
        self._bases: dict[tuple[str, str], RawElement] = {}  # the last of each channel
        self._log = engine.token(NEW_LOG_BITS)  # of new values

    # -- elements --------------------------------------------------------------------

    def renew_elements(self, used: Mapping[int, Sequence[Span]]) -> None:
        """Rewrite elements, and those that are patches of rewritten ones."""
        spans = [(log, span) for log, some in used.items() for span in some]
        places = [(log, pos) for log, span in spans for pos in range(span.start, span.stop)]
        new: dict[Position, bytes] = {}
        for place in places:
            with self._at(place):
                data = self._renewed(self.found.raw(*place))
            if data is not None:
                new[place] = data
        for place in places if new else ():
            base = self.found.base(*place)
            if place not in new and base not in new:
                continue
            data = new.get(place) or self.found.raw(*place)
            if base is not None:
                data = elements.patched(base, new.get(base) or self.found.raw(*base), data)
            self.result.elements[place] = data

    def _renewed(self, data: bytes) -> bytes | None:
        return self.codec.renewed(data, self.found.element)

    @contextmanager
    def _at(self, place: Position) -> Iterator[None]:
        """Name a checkpoint and channel that need the element in errors."""
        try:
            yield
        except ThreadkeepError as error:
            for span, (row, channel) in _values(self.result.rows):
                if span.log == place[0] and span.start <= place[1] < span.stop:
                    at = row.row if isinstance(row, StoredCheckpoint) else row
                    key = at.id if isinstance(at, CheckpointRow) else at.checkpoint_id
                    error.at(namespace=at.ns or None, checkpoint=key, channel=channel)
                    break
            error.at(thread=self.thread)
            raise

    # -- rows ------------------------------------------------------------------------

    def renew_rows(self) -> None:
        """Rewrite manifests, metadata and pending writes."""
        found = []
        for key, stored in self.lineage.stored.items():
            try:
                row = self._checkpoint(key, stored)
            except ThreadkeepError as error:
                error.at(thread=self.thread, namespace=key[0] or None, checkpoint=key[1])
                raise
            if row != stored.row:
                self.result.checkpoints.append(key)
            writes = tuple([self._write(write) for write in stored.writes])
            found.append(stored._replace(row=row, writes=writes))
        orphans = tuple([self._write(write) for write in self.result.rows.orphans])
        self.result.rows = self.result.rows._replace(checkpoints=tuple(found), orphans=orphans)

    def _checkpoint(self, key: CheckpointKey, stored: StoredCheckpoint) -> CheckpointRow:
        row, (read, keyframe) = stored.row, self.lineage.manifest(key)
        shapes = self.engine.shapes_in(row.ns)
        now = read if shapes is None else shapes.manifest(read)
        entries = {}
        for name, entry in now.entries.items():
            try:
                ref = entry.ref and self._ref((row.ns, name), entry.ref)
            except ThreadkeepError as error:
                error.at(channel=name)
                raise
            entries[name] = entry if ref is entry.ref else entry._replace(ref=ref)
        extra = now.extra and (self._renewed(now.extra) or now.extra)
        new = Manifest(now.v, entries, now.seen, now.updated, extra)
        new = new if shapes is None else shapes.marked(new)
        exact = row.exact and (self._renewed(row.exact) or row.exact)
        if new == read and exact == row.exact:
            return row
        data = refs.encode_manifest(new, keyframe.manifest)
        return with_manifest(row._replace(exact=exact), data)

    def _write(self, row: WriteRow) -> WriteRow:
        stored, shapes = unpack_writes(row), self.engine.shapes_in(row.ns)
        try:
            writes = stored if shapes is None else shapes.writes(stored)
            new = [
                (write.idx, write.channel, self._ref((row.ns, write.channel), write.ref))
                for write in writes
            ]
        except ThreadkeepError as error:
            ns, checkpoint = row.ns or None, row.checkpoint_id
            error.at(thread=self.thread, namespace=ns, checkpoint=checkpoint)
            raise
        shape = 1 if shapes is None else shapes.shape
        is_same = new == [(write.idx, write.channel, write.ref) for write in stored]
        if is_same and all(write.shape == shape for write in stored):
            return row
        self.result.writes.append(write_key(row))
        return with_body(row, pack_writes(new, shape, note_of(row)))

    def _ref(self, channel: tuple[str, str], ref: Ref) -> Ref:
        """Return the reference of a value in the present shapes."""
        if isinstance(ref, Changed):
            # (a value that several checkpoints share stays shared)
            key = ref.ref, tuple([(one.func, one.args) for one in ref.functions])
            if key not in self._made:
                self._made[key] = self._stored(channel, self.found.value(ref))
            return self._made[key]
        data = self._renewed(ref.data) if isinstance(ref, Inline) else None
        return ref if data is None else Inline(data, ref.needs)

    def _stored(self, channel: tuple[str, str], value: object) -> Ref:
        """Store a value that a channel's function returned, as an element of a new log."""
        data = self.codec.encode(value)
        if len(data) <= INLINE_MAX:
            return Inline(data)
        element, depth, uses, anchor = elements.patch_against(self._bases.get(channel), data)
        log, pos = self._log, len(self.result.added)
        self.result.added.append(Segment(log, pos, 1, pack([element], self.engine.compression)))
        self._bases[channel] = RawElement(data, log, pos, depth, uses, anchor)
        return Cell(log, pos, uses)


def with_elements(engine: Engine, segment: Segment, new: Mapping[Position, bytes]) -> Segment:
    """Return a segment with some elements replaced, or the same one if it has none of them."""
    raws = unpack(segment.data, segment.count)
    found = [new.get((segment.log, segment.start + n), raw) for n, raw in enumerate(raws)]
    if found == raws:
        return segment
    return segment._replace(data=pack(found, engine.compression))
