"""Records of the engine, sealed and opened (design note 0026)."""

from __future__ import annotations

import json
from typing import NamedTuple, TypeAlias

import ormsgpack

from threadkeep._core.engine.model import (
    HIDDEN,
    Batch,
    CheckpointRow,
    Segment,
    StoredCheckpoint,
    WriteRow,
)
from threadkeep._core.engine.rows import PLAIN_METADATA
from threadkeep._core.sealing import Sealer, place
from threadkeep._core.tenants import FAMILY
from threadkeep.errors import CodecError

_ABSENT = b""  # in a place, where it differs from an empty text


class Relative(NamedTuple):
    """The group of a thread that rows were copied from, and the greatest copied checkpoint id."""

    group: bytes
    last: str


Family: TypeAlias = tuple[Relative, ...]


def family_thread(thread: str) -> str:
    """Return the name of the separate thread whose pending writes are a thread's family.

    Nothing lists or counts it. Each write is stored before the rows that need it.
    """
    return f"{FAMILY} {thread}"


def clue(sealer: Sealer, run_id: str) -> str:
    """Return the digest that stands for a run's id in a sealed store."""
    return sealer.digest("run_id", run_id).hex()


class RowSealer:
    """Seals and opens the rows of one thread.

    Args:
        sealer: of the tenant.
        thread: the thread's id.
        family: the groups of other threads that its rows may have.
    """

    def __init__(self, sealer: Sealer, thread: str, family: Family = ()) -> None:
        self._sealer = sealer
        self._thread = thread
        self._group = sealer.group(thread)
        self._family = family

    # -- segments ----------------------------------------------------------------------

    def segment(self, row: Segment) -> Segment:
        """Seal a segment."""
        data = self._sealer.seal(row.data, place("segment", *row[:3]), self._group)
        return row._replace(data=data)

    def opened_segment(self, row: Segment) -> Segment:
        """Open a segment. Raises TamperedDataError, WrongKeyError."""
        return row._replace(data=self._open(row.data, place("segment", *row[:3])))

    # -- rows --------------------------------------------------------------------------

    def checkpoint(self, row: CheckpointRow) -> CheckpointRow:
        """Seal a checkpoint's manifest and metadata."""
        plain = PLAIN_METADATA.fullmatch(row.metadata)
        metadata = row.metadata if plain is None else [plain[1], int(plain[2])]
        content = ormsgpack.packb([row.manifest, metadata, *_given(row.exact)])
        sealed = self._sealer.seal(content, _place_of_checkpoint(row), self._group)
        return row._replace(manifest=sealed, metadata=self._clues(row.metadata), exact=None)

    def opened_checkpoint(self, row: CheckpointRow) -> CheckpointRow:
        """Open a checkpoint. Raises TamperedDataError, WrongKeyError."""
        content = self._open(row.manifest, _place_of_checkpoint(row), row.id)
        manifest, metadata, *exact = ormsgpack.unpackb(content)
        if isinstance(metadata, list):
            metadata = _PLAIN.format(*metadata)
        return row._replace(manifest=manifest, metadata=metadata, exact=exact[0] if exact else None)

    def write(self, row: WriteRow) -> WriteRow:
        """Seal the writes of a task."""
        return row._replace(body=self._sealer.seal(row.body, _place_of_write(row), self._group))

    def opened_write(self, row: WriteRow) -> WriteRow:
        """Open the writes of a task. Raises TamperedDataError, WrongKeyError."""
        return row._replace(body=self._open(row.body, _place_of_write(row), row.checkpoint_id))

    def opened(self, stored: StoredCheckpoint) -> StoredCheckpoint:
        """Open a checkpoint as read, with its keyframe and writes."""
        keyframe = stored.keyframe
        return stored._replace(
            row=self.opened_checkpoint(stored.row),
            keyframe=None if keyframe is None else self.opened_segment(keyframe),
            writes=tuple([self.opened_write(row) for row in stored.writes]),
        )

    def batch(self, batch: Batch) -> Batch:
        """Seal the rows of a batch."""
        return batch._replace(
            segments=tuple([self.segment(row) for row in batch.segments]),
            checkpoints=tuple([self.checkpoint(row) for row in batch.checkpoints]),
            writes=tuple([self.write(row) for row in batch.writes]),
        )

    # -- names -------------------------------------------------------------------------

    def _clues(self, metadata: str) -> str:
        """Return metadata that stores can search: the run's id, as a digest."""
        run_id = json.loads(metadata).get("run_id") if '"run_id"' in metadata else None
        return json.dumps({"run_id": clue(self._sealer, run_id)} if isinstance(run_id, str) else {})

    # -- families ----------------------------------------------------------------------

    def family_row(self, family: Family) -> WriteRow:
        """Return the row of `family_thread` that names the thread's family."""
        row = WriteRow("", FAMILY, 0, 0, FAMILY, "", ormsgpack.packb([*map(tuple, family)]))
        return self.write(row)

    def family_of(self, row: WriteRow) -> Family:
        """Return the family that a row names. Raises TamperedDataError, WrongKeyError."""
        return tuple([Relative(*one) for one in ormsgpack.unpackb(self.opened_write(row).body)])

    def _open(self, sealed: bytes, where: bytes, checkpoint: str = "") -> bytes:
        """Open a value of this thread, or one that was copied into it."""
        groups = [one.group for one in self._family if checkpoint <= one.last]
        try:
            return self._sealer.open(sealed, where, [self._group, *groups])
        except CodecError as error:
            error.at(thread=self._thread, checkpoint=checkpoint)
            raise


_PLAIN = '{{"source":"{}","step":{},"parents":{{}}}}'  # sealed as its two values


def _given(value: bytes | None) -> tuple[bytes, ...]:
    return () if value is None else (value,)


def _place_of_checkpoint(row: CheckpointRow) -> bytes:
    parent = _ABSENT if row.parent is None else row.parent
    at = (row.ns, row.id, parent, row.run, row.seen, row.flags & ~HIDDEN, row.ts)
    return place("checkpoint", *at, row.key_log, row.key_pos)


def _place_of_write(row: WriteRow) -> bytes:
    return place("write", row.ns, row.checkpoint_id, row.run, row.seen, row.task_id, row.task_path)
