"""Checkpoints that stay without the values of some channels.

Only the making of such rows lives here. Invariant: a row says the same as before of all else, a
version of the channel included; what a DeltaChannel is rebuilt through is never taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from threadkeep.engine import manifest as manifests
from threadkeep.engine.context import Engine
from threadkeep.engine.lineage import (
    CheckpointKey,
    Lineage,
    counted_channels,
    snapshots_among,
)
from threadkeep.engine.model import Batch, CheckpointRow, StoredCheckpoint, WriteRow
from threadkeep.engine.operation import Operation
from threadkeep.engine.refs import Ref
from threadkeep.engine.rows import pack_writes, unpack_writes, with_body, with_manifest


class Emptied(NamedTuple):
    """The checkpoints with the new ones among them, and what makes the new of the old ones.

    So many `values` were taken out; the channels that are `whole` were left alone.
    """

    lineage: Lineage
    rows: tuple[CheckpointRow, ...] = ()
    writes: tuple[WriteRow, ...] = ()
    gone: tuple[WriteRow, ...] = ()
    values: int = 0
    whole: tuple[str, ...] = ()

    def put_into(self, batch: Batch) -> Batch:
        """The batch, which brings the new rows too, in place of the old ones."""
        drops = tuple([(row.ns, row.checkpoint_id, row.seq) for row in self.gone])
        writes = (*batch.drop_writes, *drops)
        return batch._replace(checkpoints=self.rows, writes=self.writes, drop_writes=writes)


def bare_channels(
    engine: Engine, thread: str, lineage: Lineage, wanted: Collection[str]
) -> Operation[tuple[frozenset[str], tuple[str, ...]]]:
    """Those of the channels whose values may be taken out, and those that are DeltaChannels.

    A DeltaChannel is counted in the metadata of some checkpoint, or its newest value is a
    snapshot. A channel without any value is neither.
    """
    newest: dict[tuple[str, str], Ref] = {}
    for key in sorted(lineage.stored) if wanted else ():
        entries = lineage.manifest(key)[0].entries
        for channel in entries.keys() & wanted:
            ref = entries[channel].ref
            newest |= {(key[0], channel): ref} if ref is not None else {}
    there = {channel for _, channel in newest}
    deltas = _counted(engine, lineage.stored.values()) & there if newest else set()
    asked = {ref for (_, channel), ref in newest.items() if channel not in deltas}
    found = yield from snapshots_among(engine, thread, asked)
    deltas |= {channel for (_, channel), ref in newest.items() if ref in found}
    return frozenset(there - deltas), tuple(sorted(deltas))


def _counted(engine: Engine, checkpoints: Iterable[StoredCheckpoint]) -> set[str]:
    return {channel for stored in checkpoints for channel in counted_channels(engine, stored)}


def without_values(
    lineage: Lineage, keys: Iterable[CheckpointKey], bare: frozenset[str], whole: tuple[str, ...]
) -> Emptied:
    """The same checkpoints, those of these keys without values of the channels that are `bare`."""
    changed: dict[CheckpointKey, StoredCheckpoint] = {}
    count, gone = 0, list[WriteRow]()
    children = lineage.children() if bare else {}
    for key in sorted(keys) if bare else ():
        old = lineage.stored[key]
        new, taken = _with_manifest(lineage, key, bare)
        count += taken
        new = _with_writes(new, children.get(key, ()), bare)
        gone += old.writes if new.writes is not old.writes else ()
        if new is not old:
            changed[key] = new
    if not changed:
        return Emptied(lineage, whole=whole)
    rows = tuple([new.row for key, new in changed.items() if new.row != lineage.stored[key].row])
    writes = [row for row in changed.values() if row.writes is not _old(lineage, row).writes]
    added = tuple([row for stored in writes for row in stored.writes])
    after = Lineage({**lineage.stored, **changed}.values())
    return Emptied(after, rows, added, tuple(gone), count, whole)


def _old(lineage: Lineage, stored: StoredCheckpoint) -> StoredCheckpoint:
    return lineage.stored[stored.row.ns, stored.row.id]


# -- the checkpoint ------------------------------------------------------------------


def _with_manifest(
    lineage: Lineage, key: CheckpointKey, bare: frozenset[str]
) -> tuple[StoredCheckpoint, int]:
    """The checkpoint without the values, and how many these are."""
    stored, (read, keyframe) = lineage.stored[key], lineage.manifest(key)
    taken = [name for name in read.entries.keys() & bare if read.entries[name].ref is not None]
    if not taken:
        return stored, 0
    removed = {name: read.entries[name]._replace(ref=None, removed=True) for name in taken}
    data = manifests.encode(read._replace(entries={**read.entries, **removed}), keyframe.manifest)
    row = with_manifest(stored.row, data)
    return stored._replace(row=row), len(taken)


# -- its writes ----------------------------------------------------------------------


def _with_writes(
    stored: StoredCheckpoint, children: Sequence[CheckpointRow], bare: frozenset[str]
) -> StoredCheckpoint:
    """The checkpoint whose pending writes bring no such values either.

    Rows that are stored anew come last. That matters where runs differ: which of their writes
    count is told by their order. There they stay.
    """
    runs = {row.run for row in stored.writes} | {row.run for row in children}
    if len(runs) > 1 or len(children) > 1:
        return stored
    writes = tuple([_bare_row(row, bare) for row in stored.writes])
    return stored if writes == stored.writes else stored._replace(writes=writes)


def _bare_row(row: WriteRow, bare: frozenset[str]) -> WriteRow:
    found = unpack_writes(row)
    stay = [(write.idx, write.channel, write.ref) for write in found if write.channel not in bare]
    if len(stay) == len(found):
        return row
    return with_body(row, pack_writes(stay))
