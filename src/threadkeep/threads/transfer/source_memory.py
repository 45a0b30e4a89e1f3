"""Reader of LangGraph's InMemorySaver."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, writes_sort_key
from langgraph.checkpoint.memory import InMemorySaver

from threadkeep._core.engine.lineage import CheckpointKey
from threadkeep.threads.transfer.sources import (
    LangGraphSource,
    Payloads,
    SourceCheckpoint,
    SourceState,
    SourceWrite,
    naming,
)


class MemorySource(LangGraphSource):
    """The three dicts of an InMemorySaver: its methods do not return the paths of tasks.

    The saver replaces the objects in these dicts, and never changes them.
    """

    def __init__(self, saver: InMemorySaver, payloads: Payloads) -> None:
        super().__init__(payloads)
        self._saver = saver
        self._keys: dict[str, Any] = {}  # (there an id may have any type)

    @property
    def place(self) -> tuple[str, str]:
        return "memory", str(id(self._saver))

    def threads(self) -> dict[str, int]:
        self._keys = {str(key): key for key in list(self._saver.storage)}
        counts = {name: self._count(key) for name, key in sorted(self._keys.items())}
        return {name: count for name, count in counts.items() if count}

    def state(self, thread: str) -> SourceState:
        self.threads()
        key = self._keys.get(thread, thread)
        writes = [one for place, one in list(self._saver.writes.items()) if place[0] == key]
        rows = [(idx, task, row) for one in writes for (task, idx), row in list(one.items())]
        replaced = sorted([f"{task} {idx} {row}" for idx, task, row in rows if idx < 0])
        plain = sum([idx >= 0 for idx, _, _ in rows])
        return SourceState(self._count(key), plain, "\n".join(replaced))

    def _count(self, key: Any) -> int:
        return sum(map(len, list(self._saver.storage.get(key, {}).values())))

    def parents(self, thread: str) -> dict[CheckpointKey, str | None]:
        found = dict(self._saver.storage[self._keys.get(thread, thread)])
        return {
            (ns, checkpoint): parent or None
            for ns, rows in found.items()
            for checkpoint, (_, _, parent) in list(rows.items())
        }

    def written(self, thread: str, first: str = "") -> dict[CheckpointKey, set[tuple[str, int]]]:
        key, writes = self._keys.get(thread, thread), self._saver.writes
        places = [place for place in self.parents(thread) if place[1] >= first]
        return {place: set(writes.get((key, *place), ())) for place in places}

    def checkpoints(self, thread: str, first: str = "") -> Generator[SourceCheckpoint, None, None]:
        key = self._keys.get(thread, thread)
        namespaces = {ns: dict(found) for ns, found in dict(self._saver.storage[key]).items()}
        for ns in sorted(namespaces):
            for checkpoint, row in sorted(namespaces[ns].items()):
                if checkpoint < first:
                    continue
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
        return {c: blob for c, blob in found.items() if blob is not None and blob[0] != "empty"}

    def _writes(self, key: Any, ns: str, checkpoint: str) -> list[SourceWrite]:
        rows = dict(self._saver.writes.get((key, ns, checkpoint), {}))
        writes = [
            SourceWrite(task, path, idx, channel, self._payloads.value(*stored))
            for (_, idx), (task, channel, stored, path) in rows.items()
        ]
        return sorted(writes, key=lambda one: writes_sort_key(one.task_path, one.task_id, one.idx))

    def saver(self) -> BaseCheckpointSaver[Any]:
        return self._saver
