"""A saver whose async methods call the sync API of another one.

Suites that only call async methods run the sync API through it. The async `list` is
drained inside one call, as a thread that calls the sync API would do.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple


class SyncFace(BaseCheckpointSaver[Any]):
    """Async in name, the sync API of `inner` in fact."""

    def __init__(self, inner: BaseCheckpointSaver[Any]) -> None:
        super().__init__()
        self.inner = inner

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self.inner.get_next_version(current, channel)

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        return self.inner.get_tuple(config)

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[CheckpointTuple]:
        for found in self.inner.list(config, **options):
            yield found

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        return self.inner.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: Any, writes: Any, task_id: str, task_path: str = ""
    ) -> None:
        self.inner.put_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        self.inner.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Any) -> None:
        self.inner.delete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.inner.copy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
        self.inner.prune(thread_ids, strategy=strategy)

    async def aget_delta_channel_history(self, *, config: Any, channels: Any) -> Any:
        return self.inner.get_delta_channel_history(config=config, channels=channels)


FACES: dict[str, Callable[[Any], Any]] = {"async": lambda saver: saver, "sync": SyncFace}
"""Wrappers that run a suite on a saver's async API, or its sync API."""
