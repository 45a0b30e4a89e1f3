"""Remove checkpoints, in one change that also drops the segments that only they used.

Checkpoints that a kept DeltaChannel is rebuilt through stay, hidden. The change raises the
generation, so that no process uses removed segments from its memory. Positions never change: if
little of a segment is used, that part is written again at the same positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, cast

from threadkeep._core.codec import Codec
from threadkeep._core.engine import refs, thread_entry, thread_summary
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.lineage import (
    CheckpointKey,
    Lineage,
    Positions,
    checkpoint_key,
    counted_channels,
    needed,
    overlap,
    parts,
    positions,
    segment_key,
    snapshots_among,
    touches,
    write_key,
)
from threadkeep._core.engine.model import (
    HIDDEN,
    OWN_NS,
    Batch,
    CheckpointRow,
    DropThread,
    FindThreads,
    Segment,
    SegmentInfo,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.engine.operation import (
    Operation,
    commit,
    fetch,
    fetch_checkpoint,
    fetch_segments,
)
from threadkeep._core.engine.refs import Ref, covering, length, span_of
from threadkeep._core.engine.registration import ThreadSnapshot, optimistic, read_snapshot
from threadkeep._core.engine.rows import (
    created_at,
    heads,
    note_of,
    pack_writes,
    unpack_metadata,
    unpack_writes,
    visible,
    with_body,
    with_manifest,
)
from threadkeep._core.engine.thread_entry import EntryUpdate
from threadkeep.errors import StaleThreadError, invalid

SEGMENT_ROW = 64  # bytes of a segment's row besides its data, about
_PAGE = 200
_ORPHAN_AGE = 3600 * 1_000_000  # microseconds after which writes without a checkpoint are removed

Chooser: TypeAlias = Callable[[ThreadSnapshot], set[CheckpointKey]]


# -- threads and runs ------------------------------------------------------------------


def delete_thread(engine: Engine, thread: str) -> Operation[None]:
    """Remove a thread and leave a tombstone, which refuses late writes."""
    yield from commit(DropThread(thread, engine.now()))
    engine.working_set.forget(thread)


def prune(engine: Engine, threads: Sequence[str], strategy: str) -> Operation[None]:
    """Keep the newest, pinned and tagged checkpoints (`keep_latest`), or nothing (`delete`)."""
    if strategy not in ("keep_latest", "delete"):
        raise invalid("strategy", strategy, 'Use "keep_latest" or "delete".')
    for thread in threads:
        if strategy == "delete":
            yield from delete_thread(engine, thread)
        else:
            yield from _keep(engine, thread, _latest)


def delete_for_runs(engine: Engine, run_ids: Sequence[str]) -> Operation[None]:
    """Remove the checkpoints of some runs in every thread, with their writes."""
    runs = frozenset(run_ids)
    after: str | None = None
    while runs:
        threads: list[str] = yield from fetch(FindThreads(after, _PAGE, tuple(runs)))
        for thread in threads:
            yield from _keep(engine, thread, partial(_not_of_runs, engine.codec, runs))
        if len(threads) < _PAGE:
            return
        after = threads[-1]


def _latest(snapshot: ThreadSnapshot) -> set[CheckpointKey]:
    checkpoints, entry = snapshot.rows.checkpoints, snapshot.entry
    keys = set(map(checkpoint_key, visible(checkpoints)))
    own = {checkpoint_key(one) for one in checkpoints if one.row.ns.startswith(OWN_NS)}
    latest = {*heads(checkpoints).items(), *own}
    if entry is None:
        return latest
    marks = {(mark.checkpoint_ns, mark.checkpoint) for mark in thread_entry.marks_of(entry.labels)}
    return keys if entry.pinned else latest | (marks & keys)


def _not_of_runs(
    codec: Codec, runs: frozenset[str], snapshot: ThreadSnapshot
) -> set[CheckpointKey]:
    found = set()
    for stored in visible(snapshot.rows.checkpoints):
        run = unpack_metadata(stored.row.metadata, stored.row.exact, codec).get("run_id")
        if not isinstance(run, str) or run not in runs or stored.row.ns.startswith(OWN_NS):
            found.add(checkpoint_key(stored))
    return found


def delete_checkpoints(
    engine: Engine, thread: str, checkpoint_ids: Sequence[str], ns: str | None, *, sweep: bool
) -> Operation[int]:
    if not sweep and ns is not None:
        return (yield from _drop_rows(engine, thread, ns, checkpoint_ids))
    ids, removed = frozenset(checkpoint_ids), 0

    def choose(snapshot: ThreadSnapshot) -> set[CheckpointKey]:
        nonlocal removed
        keys = set(map(checkpoint_key, visible(snapshot.rows.checkpoints)))
        gone = {
            key
            for key in keys
            if key[1] in ids and (not key[0].startswith(OWN_NS) if ns is None else key[0] == ns)
        }
        removed = len(gone)
        return keys - gone

    if ids:
        yield from _keep(engine, thread, choose)
    return removed


def _drop_rows(
    engine: Engine, thread: str, ns: str, checkpoint_ids: Sequence[str]
) -> Operation[int]:
    """Remove rows that no DeltaChannel is rebuilt through. Their values stay in the store."""
    found = []
    for each in dict.fromkeys(checkpoint_ids):
        reply = yield from fetch_checkpoint(thread, ns, each)
        if reply.found is not None:
            found.append(reply.found)
    writes = [row for stored in found for row in stored.writes]
    rows: list[CheckpointRow | WriteRow] = [*(stored.row for stored in found), *writes]
    batch = Batch(
        thread,
        engine.now(),
        drop_checkpoints=tuple(map(checkpoint_key, found)),
        drop_writes=tuple(map(write_key, writes)),
        touch=EntryUpdate(-sum(map(thread_summary.row_size, rows))),
    )
    if found:
        yield from commit(batch)
    return len(found)


def _keep(engine: Engine, thread: str, choose: Chooser) -> Operation[None]:
    """Remove all checkpoints except the chosen ones and those that they are rebuilt through."""

    def build(snapshot: ThreadSnapshot) -> Operation[tuple[Batch, None]]:
        lineage = Lineage(snapshot.rows.checkpoints)
        keep = choose(snapshot)
        hidden = (yield from needed(engine, thread, lineage, keep)) - keep
        return thinning(engine, snapshot, lineage, keep, hidden), None

    return optimistic(engine, thread, build, partial(read_snapshot, stub=False))


# -- the change ------------------------------------------------------------------------


def thinning(
    engine: Engine,
    snapshot: ThreadSnapshot,
    lineage: Lineage,
    keep: set[CheckpointKey],
    hidden: set[CheckpointKey],
) -> Batch:
    """Build the change that removes all checkpoints except those in `keep` and `hidden`."""
    rows, stored, now = snapshot.rows, lineage.stored, engine.now()
    drop = [key for key in stored if key not in keep and key not in hidden]
    orphans = young(rows.orphans, now)
    stay = set(map(write_key, orphans))
    gone = [row for row in rows.orphans if write_key(row) not in stay]
    gone += [row for key in drop for row in stored[key].writes]
    used = positions(lineage, keep | hidden, orphans, snapshot.others)
    unused = [s for s in rows.segments if not touches(used, span_of(s))]
    left = [one for key, one in stored.items() if key in keep]
    for key in hidden:
        row = stored[key].row
        left.append(stored[key]._replace(row=row._replace(flags=row.flags | HIDDEN)))
    left.sort(key=checkpoint_key)
    return Batch(
        thread=snapshot.thread,
        now=now,
        generation=rows.generation,
        fences=snapshot.fences,
        drop_checkpoints=tuple(drop),
        drop_writes=tuple(map(write_key, gone)),
        hide_checkpoints=tuple([k for k in hidden if not stored[k].row.flags & HIDDEN]),
        drop_segments=tuple(map(segment_key, unused)),
        bump_generation=True,
        touch=thread_summary.of_rows(left, orphans, snapshot.segment_bytes(without=unused)),
    )


def all_writes(rows: ThreadRows) -> list[WriteRow]:
    """List all pending writes of a thread."""
    return [*rows.orphans, *[row for one in rows.checkpoints for row in one.writes]]


def young(orphans: Sequence[WriteRow], now: int) -> list[WriteRow]:
    """Select the writes whose checkpoint may still be saved."""
    made = [created_at(row.checkpoint_id) for row in orphans]
    oldest = now - _ORPHAN_AGE
    return [row for row, at in zip(orphans, made, strict=True) if at is None or at >= oldest]


# -- shorter segments ------------------------------------------------------------------


def shortened(
    engine: Engine, snapshot: ThreadSnapshot, batch: Batch, used: Positions, *, wholly: bool = False
) -> Operation[Batch]:
    """Extend a change that drops unused segments: rewrite those that are less than half used.

    With `wholly` every segment with an unused element is rewritten, even if that saves no space.
    """
    gone = set(batch.drop_segments)
    stay = [s for s in snapshot.rows.segments if segment_key(s) not in gone]
    dead = [s for s in stay if _is_dead(s, used, wholly=wholly)]
    # (no generation: a cache may hold the same positions in other segments)
    found = yield from fetch_segments(batch.thread, covering(map(span_of, dead)))
    by_key = {segment_key(segment): segment for segment in found}
    old, new, less = [], list[Segment](), 0
    for info in dead:
        segment = by_key.get(segment_key(info))
        if segment is None:
            raise StaleThreadError(thread=batch.thread)
        shorter = parts(segment, overlap(used, span_of(info)), engine.compression)
        gained = info.size - sum([len(part.data) for part in shorter])
        if wholly or gained > SEGMENT_ROW * (len(shorter) - 1):
            old.append(segment_key(info))
            new += shorter
            less += gained
    touch = cast("EntryUpdate", batch.touch)
    if snapshot.counts_segments:
        touch = touch._replace(size=touch.size - less)
    return batch._replace(
        drop_segments=(*batch.drop_segments, *old),
        segments=(*batch.segments, *new),
        touch=touch,
    )


def _is_dead(segment: SegmentInfo, used: Positions, *, wholly: bool) -> bool:
    return (1 if wholly else 2) * length(overlap(used, span_of(segment))) < segment.count


# -- checkpoints without the values of some channels -----------------------------------


class Emptied(NamedTuple):
    """Checkpoints after some values were removed, and the rows to write for that.

    `writes` replace the rows in `gone`. `values` counts the values removed.
    """

    lineage: Lineage
    checkpoints: tuple[CheckpointRow, ...] = ()
    writes: tuple[WriteRow, ...] = ()
    gone: tuple[WriteRow, ...] = ()
    values: int = 0

    def put_into(self, batch: Batch) -> Batch:
        """Add the replacement of the rows to a change."""
        drops = (*batch.drop_writes, *map(write_key, self.gone))
        return batch._replace(checkpoints=self.checkpoints, writes=self.writes, drop_writes=drops)


def droppable_channels(
    engine: Engine, thread: str, lineage: Lineage, names: Collection[str]
) -> Operation[tuple[frozenset[str], tuple[str, ...]]]:
    """Divide channels into those whose values may be removed and DeltaChannels.

    A DeltaChannel is counted in the metadata of some checkpoint, or its newest value is a
    snapshot. Channels without any value are left out.
    """
    if not names:
        return frozenset(), ()
    newest: dict[tuple[str, str], Ref] = {}  # by namespace and channel
    deltas: set[str] = set()
    for key in sorted(lineage.stored):
        deltas |= counted_channels(engine, lineage.stored[key])
        for channel, entry in lineage.manifest(key)[0].entries.items():
            if channel in names and entry.ref is not None:
                newest[key[0], channel] = entry.ref
    seeds = {ref for (_, channel), ref in newest.items() if channel not in deltas}
    snapshots = yield from snapshots_among(engine, thread, seeds)
    deltas |= {channel for (_, channel), ref in newest.items() if ref in snapshots}
    channels = {channel for _, channel in newest}
    return frozenset(channels - deltas), tuple(sorted(channels & deltas))


def without_values(
    lineage: Lineage, keys: Iterable[CheckpointKey], channels: frozenset[str]
) -> Emptied:
    """Remove the values of some channels from some checkpoints."""
    if not channels:
        return Emptied(lineage)
    checkpoints, writes, gone = list[CheckpointRow](), list[WriteRow](), list[WriteRow]()
    stored, children, count = dict(lineage.stored), lineage.children(), 0
    for key in sorted(keys):
        old = stored[key]
        row, values = _without_refs(lineage, key, channels)
        rows = _without_writes(old.writes, children.get(key, ()), channels)
        if values:
            checkpoints.append(row)
            count += values
        if rows != old.writes:
            gone += old.writes
            writes += rows
        stored[key] = old._replace(row=row, writes=rows)
    after = Lineage(stored.values())
    return Emptied(after, tuple(checkpoints), tuple(writes), tuple(gone), count)


def _without_refs(
    lineage: Lineage, key: CheckpointKey, channels: frozenset[str]
) -> tuple[CheckpointRow, int]:
    """Remove values from a checkpoint's row, and count them."""
    row, (read, keyframe) = lineage.stored[key].row, lineage.manifest(key)
    names = [name for name in read.entries.keys() & channels if read.entries[name].ref is not None]
    if not names:
        return row, 0
    removed = {name: read.entries[name]._replace(ref=None, removed=True) for name in names}
    data = refs.encode_manifest(
        read._replace(entries={**read.entries, **removed}), keyframe.manifest
    )
    return with_manifest(row, data), len(names)


def _without_writes(
    writes: tuple[WriteRow, ...], children: Sequence[CheckpointRow], channels: frozenset[str]
) -> tuple[WriteRow, ...]:
    """Remove values from a checkpoint's pending writes.

    Rewritten rows come last in the store. If several runs wrote or continued, the order of the
    rows decides which writes count, so nothing is removed then.
    """
    runs = {row.run for row in writes} | {row.run for row in children}
    if len(runs) > 1 or len(children) > 1:
        return writes
    found = []
    for row in writes:
        unpacked = unpack_writes(row)
        stay = [(w.idx, w.channel, w.ref) for w in unpacked if w.channel not in channels]
        if len(stay) != len(unpacked):
            body = pack_writes(stay, unpacked[0].shape, note_of(row))
            row = with_body(row, body)  # noqa: PLW2901 - the same row
        found.append(row)
    return tuple(found)
