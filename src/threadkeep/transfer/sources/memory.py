"""What LangGraph's InMemorySaver holds.

Only reading its three dicts (`storage`, `writes`, `blobs`, which are public) lives here: its
methods do not tell the path of a write's task, which gives writes their order.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, writes_sort_key
from langgraph.checkpoint.memory import InMemorySaver

from threadkeep.transfer.sources.base import Found, FoundWrite, Place
from threadkeep.transfer.sources.payloads import Payloads, named

_EMPTY = "empty"


class MemorySource:
    """See `Source`."""

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

    def parents(self, thread: str) -> dict[Place, str | None]:
        """See `Source.parents`."""
        found = dict(self._saver.storage[self._keys.get(thread, thread)])
        return {
            (ns, checkpoint): parent or None
            for ns, rows in found.items()
            for checkpoint, (_, _, parent) in list(rows.items())
        }

    def begin(self) -> None:
        """See `Source.begin`: what is read of a checkpoint is never changed, only replaced."""

    def end(self) -> None:
        """See `Source.begin`."""

    def checkpoints(self, thread: str) -> Generator[Found, None, None]:
        """See `Source.checkpoints`."""
        key = self._keys.get(thread, thread)
        namespaces = {ns: dict(found) for ns, found in dict(self._saver.storage[key]).items()}
        for ns in sorted(namespaces):
            for checkpoint, row in sorted(namespaces[ns].items()):
                with named(thread, ns, checkpoint):
                    found = self._found(key, ns, checkpoint, *row)
                yield found

    def _found(
        self, key: Any, ns: str, checkpoint: str, stored: Any, metadata: Any, parent: str | None
    ) -> Found:
        writes, value = self._writes(key, ns, checkpoint), self._payloads.value(*stored)
        blobs = self._blobs(key, ns, value["channel_versions"])
        values = {channel: self._payloads.value(*blob) for channel, blob in blobs.items()}
        size = len(stored[1]) + sum([len(blob[1]) for blob in blobs.values()])
        own = self._payloads.value(*metadata)
        whole = {**value, "channel_values": values}
        return Found(ns, checkpoint, parent or None, whole, own, writes, size)

    def _blobs(self, key: Any, ns: str, versions: dict[str, Any]) -> dict[str, tuple[str, bytes]]:
        found = {c: self._saver.blobs.get((key, ns, c, version)) for c, version in versions.items()}
        return {c: blob for c, blob in found.items() if blob is not None and blob[0] != _EMPTY}

    def _writes(self, key: Any, ns: str, checkpoint: str) -> list[FoundWrite]:
        rows = [
            FoundWrite(task, path, idx, channel, stored)
            for (_, idx), (task, channel, stored, path) in dict(
                self._saver.writes.get((key, ns, checkpoint), {})
            ).items()
        ]
        rows.sort(key=lambda row: writes_sort_key(row.task_path, row.task_id, row.idx))
        return [row._replace(value=self._payloads.value(*row.value)) for row in rows]

    def saver(self) -> BaseCheckpointSaver[Any]:
        """See `Source.saver`."""
        return self._saver

    def close(self) -> None:
        """See `Source.close`: it is the caller's."""
