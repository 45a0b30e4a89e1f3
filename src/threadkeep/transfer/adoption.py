"""What a store has of a thread that is adopted from another saver.

Only the comparison with what is there lives here, without the values: checkpoints with the
same id, parent, time, metadata and versions of all channels are the same to LangGraph.
Nothing is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias, cast

from threadkeep.engine.context import (
    Engine,
    Keyframes,
    read_manifest,
)
from threadkeep.engine.differences import alike
from threadkeep.engine.manifest import Manifest
from threadkeep.engine.model import HIDDEN, ReadThread, StoredCheckpoint, ThreadRows
from threadkeep.engine.operation import (
    CheckpointRef,
    Operation,
    fetch,
)
from threadkeep.engine.rows import unpack_metadata, unpack_time, unpack_writes

Key: TypeAlias = tuple[str, str]  # a namespace and a checkpoint's id


class Present:
    """The checkpoints of a thread that are there, hidden ones too."""

    def __init__(self, engine: Engine, rows: ThreadRows) -> None:
        self.deleted_at = rows.deleted_at
        self._engine = engine
        self._known: Keyframes = {}
        self._stored = {(s.row.ns, s.row.id): s for s in rows.checkpoints}

    @property
    def is_empty(self) -> bool:
        """Whether there is no checkpoint."""
        return not self._stored

    def has(self, ns: str, checkpoint: str) -> bool:
        """Whether a checkpoint is there."""
        return (ns, checkpoint) in self._stored

    def hides(self, ns: str, checkpoint: str) -> bool:
        """Whether a checkpoint is there, but was pruned."""
        stored = self._stored.get((ns, checkpoint))
        return stored is not None and bool(stored.row.flags & HIDDEN)

    def went_apart(self, theirs: Mapping[Key, str | None]) -> bool:
        """Whether both went on: each has checkpoints that came after what they have in common.

        Args:
            theirs: the other one's checkpoints by namespace and id, and their parents.
        """
        if self._stored.keys() <= theirs.keys():
            return False
        newest = max([checkpoint for _, checkpoint in self._shared(theirs)], default="")
        return any(checkpoint > newest for _, checkpoint in theirs.keys() - self._stored.keys())

    def _shared(self, theirs: Mapping[Key, str | None]) -> set[Key]:
        """Those of theirs that are here, or that led here and were pruned."""
        found = set()
        for (ns, checkpoint), stored in self._stored.items():
            for start in (checkpoint, stored.row.parent):
                step = start
                while step is not None and (ns, step) in theirs and (ns, step) not in found:
                    found.add((ns, step))
                    step = theirs[ns, step]
        return found

    def newest_shared(self, theirs: Collection[Key]) -> str | None:
        """The newest checkpoint of the root namespace that both show; None where there is none."""
        both = [key for key in self._stored if key in theirs and not self.hides(*key)]
        return max([checkpoint for ns, checkpoint in both if not ns], default=None)

    def is_same(
        self, place: CheckpointRef, parent: str | None, checkpoint: Mapping[str, Any], metadata: Any
    ) -> bool:
        """Whether a checkpoint that is there is this one.

        Raises:
            CorruptionError: the one that is there is damaged.
        """
        stored = self._stored[place.ns, str(place.id)]
        row = stored.row
        read, _ = read_manifest(stored, self._known)
        own = unpack_metadata(row.metadata, row.exact, self._engine.codec)
        return (
            row.parent == parent
            and unpack_time(row.ts) == checkpoint.get("ts", "")
            and alike(self._engine.codec, own, metadata)
            and _shape(read) == _shape_of(checkpoint)
        )

    def lacks(self, ns: str, checkpoint: str, writes: Iterable[tuple[str, int]]) -> set[Any]:
        """Which pending writes of a checkpoint are not there, each a task's id and an index."""
        return set(writes) - _writes(self._stored.get((ns, checkpoint)))


def present(engine: Engine, thread: str) -> Operation[Present]:
    """What is there of a thread."""
    rows = yield from fetch(ReadThread(thread))
    return Present(engine, cast("ThreadRows", rows))


def _writes(stored: StoredCheckpoint | None) -> set[tuple[str, int]]:
    rows = stored.writes if stored is not None else ()
    return {(row.task_id, write.idx) for row in rows for write in unpack_writes(row)}


def _shape(read: Manifest) -> tuple[Any, ...]:
    versions = {c: repr(e.version) for c, e in read.entries.items() if e.version is not None}
    seen = {node: _texts(found) for node, found in read.seen.items()}
    return versions, {c for c, e in read.entries.items() if e.ref is not None}, seen


def _shape_of(checkpoint: Mapping[str, Any]) -> tuple[Any, ...]:
    seen = {node: _texts(found) for node, found in checkpoint.get("versions_seen", {}).items()}
    return _texts(checkpoint["channel_versions"]), set(checkpoint["channel_values"]), seen


def _texts(versions: Mapping[str, Any]) -> dict[str, str]:
    return {name: repr(version) for name, version in versions.items()}
