"""Reader of LangGraph's InMemorySaver.

Its three public dicts are read (`storage`, `writes`, `blobs`): its methods do not return the path
of a write's task, which gives writes their order.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, writes_sort_key
from langgraph.checkpoint.memory import InMemorySaver

from threadkeep.transfer.sources.base import Payloads, Source, SourceCheckpoint, SourceWrite, naming
from threadkeep.transfer.whole_thread import CheckpointKey

_EMPTY = "empty"


class MemorySource(Source):
    """See `Source`. What is read of a checkpoint is never changed there, only replaced."""

    def __init__(self, saver: InMemorySaver, payloads: Payloads) -> None:
        self._saver = saver
        self._payloads = payloads
        self._keys: dict[str, Any] = {}  # a thread's id may be no text there

    def threads(self) -> dict[str, int]:
        """See `Source.threads`."""
        self._keys = {str(key): key for key in list(self._saver.storage)}
        counts = {name: self._count(key) for name, key in sorted(self._keys.items())}
        return {name: count for name, count in counts.items() if count}

    def _count(self, key: Any) -> int:
        return sum(map(len, list(self._saver.storage.get(key, {}).values())))

    def parents(self, thread: str) -> dict[CheckpointKey, str | None]:
        """See `Source.parents`."""
        found = dict(self._saver.storage[self._keys.get(thread, thread)])
        return {
            (ns, checkpoint): parent or None
            for ns, rows in found.items()
            for checkpoint, (_, _, parent) in list(rows.items())
        }

    def begin(self) -> None:
        """See `Source.begin`."""

    def end(self) -> None:
        """See `Source.end`."""

    def close(self) -> None:
        """See `Source.close`: the saver is the caller's."""

    def checkpoints(self, thread: str) -> Generator[SourceCheckpoint, None, None]:
        """See `Source.checkpoints`."""
        key = self._keys.get(thread, thread)
        namespaces = {ns: dict(found) for ns, found in dict(self._saver.storage[key]).items()}
        for ns in sorted(namespaces):
            for checkpoint, row in sorted(namespaces[ns].items()):
                with naming(thread, ns, checkpoint):
                    found = self._found(key, ns, checkpoint, *row)
                yield found

    def _found(
        self, key: Any, ns: str, checkpoint: str, stored: Any, metadata: Any, parent: str | None
    ) -> SourceCheckpoint:
        writes, value = self._writes(key, ns, checkpoint), self._payloads.value(*stored)
        blobs = self._blobs(key, ns, value["channel_versions"])
        values = {channel: self._payloads.value(*blob) for channel, blob in blobs.items()}
        size = len(stored[1]) + sum([len(blob[1]) for blob in blobs.values()])
        own = self._payloads.value(*metadata)
        whole = {**value, "channel_values": values}
        return SourceCheckpoint(ns, checkpoint, parent or None, whole, own, writes, size)

    def _blobs(self, key: Any, ns: str, versions: dict[str, Any]) -> dict[str, tuple[str, bytes]]:
        found = {c: self._saver.blobs.get((key, ns, c, version)) for c, version in versions.items()}
        return {c: blob for c, blob in found.items() if blob is not None and blob[0] != _EMPTY}

    def _writes(self, key: Any, ns: str, checkpoint: str) -> list[SourceWrite]:
        rows = [
            SourceWrite(task, path, idx, channel, stored)
            for (_, idx), (task, channel, stored, path) in dict(
                self._saver.writes.get((key, ns, checkpoint), {})
            ).items()
        ]
        rows.sort(key=lambda row: writes_sort_key(row.task_path, row.task_id, row.idx))
        return [row._replace(value=self._payloads.value(*row.value)) for row in rows]

    def saver(self) -> BaseCheckpointSaver[Any]:
        """See `Source.saver`."""
        return self._saver
