"""The floor: a saver that keeps references to the objects it is given and does nothing else.

What LangGraph needs for a turn beside it is LangGraph's own time: nothing that stores
can be faster. Invariant: no value is copied or encoded; only the containers that
LangGraph changes after handing them over, or after getting them back, are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    get_checkpoint_metadata,
    writes_sort_key,
)


class Kept(NamedTuple):
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    parent: str | None


class Namespace:
    """The checkpoints of one thread and namespace, and the writes on them."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}
        self.writes: dict[str, dict[tuple[str, int], tuple[str, PendingWrite]]] = {}
        self.head = ""


def place(config: RunnableConfig, checkpoint_id: str) -> RunnableConfig:
    given = config["configurable"]
    return {
        "configurable": {
            "thread_id": given["thread_id"],
            "checkpoint_ns": given.get("checkpoint_ns", ""),
            "checkpoint_id": checkpoint_id,
        }
    }


def lent(checkpoint: Checkpoint) -> Checkpoint:
    """The same values in containers of their own: LangGraph changes these four."""
    copy = checkpoint.copy()
    copy["channel_values"] = dict(checkpoint["channel_values"])
    copy["channel_versions"] = dict(checkpoint["channel_versions"])
    copy["versions_seen"] = {k: dict(v) for k, v in checkpoint["versions_seen"].items()}
    return copy


class ReferenceSaver(BaseCheckpointSaver[int]):
    """Keeps its arguments. Not for use: a value changed later changes in the past too."""

    def __init__(self) -> None:
        super().__init__()
        self.namespaces: dict[tuple[str, str], Namespace] = {}

    def _namespace(self, config: RunnableConfig) -> Namespace:
        given = config["configurable"]
        key = (given["thread_id"], given.get("checkpoint_ns", ""))
        return self.namespaces.setdefault(key, Namespace())

    def _tuple(self, config: RunnableConfig, at: Namespace, checkpoint_id: str) -> CheckpointTuple:
        kept = at.kept[checkpoint_id]
        writes = at.writes.get(checkpoint_id, {})
        order = sorted(writes, key=lambda k: writes_sort_key(writes[k][0], *k))
        return CheckpointTuple(
            place(config, checkpoint_id),
            lent(kept.checkpoint),
            kept.metadata.copy(),
            place(config, kept.parent) if kept.parent else None,
            [writes[k][1] for k in order],
        )

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.get_tuple(config)

    async def aput(self, *given: Any, **named: Any) -> RunnableConfig:
        return self.put(*given, **named)

    async def aput_writes(self, *given: Any, **named: Any) -> None:
        self.put_writes(*given, **named)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        at = self._namespace(config)
        wanted = config["configurable"].get("checkpoint_id") or at.head
        return self._tuple(config, at, wanted) if wanted in at.kept else None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        if config is None or filter or before:
            raise NotImplementedError("the floor only lists the newest checkpoints of a thread")
        at = self._namespace(config)
        for checkpoint_id in sorted(at.kept, reverse=True)[:limit]:
            yield self._tuple(config, at, checkpoint_id)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,  # noqa: ARG002 - every value is kept
    ) -> RunnableConfig:
        at = self._namespace(config)
        at.kept[checkpoint["id"]] = Kept(
            lent(checkpoint),
            get_checkpoint_metadata(config, metadata),
            config["configurable"].get("checkpoint_id"),
        )
        at.head = max(at.head, checkpoint["id"])
        return place(config, checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        at = self._namespace(config).writes.setdefault(config["configurable"]["checkpoint_id"], {})
        for position, (channel, value) in enumerate(list(writes)):  # a deque of the task's
            key = (task_id, WRITES_IDX_MAP.get(channel, position))
            if key[1] < 0 or key not in at:
                at[key] = (task_path, (task_id, channel, value))
