"""Several savers on one file that take turns, call by call.

As if each call of a run came from another process: what a saver remembers of the thread
is old whenever its turn comes.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple


class TakingTurns(BaseCheckpointSaver[Any]):
    """The sync API of the savers, each call on the next of them."""

    def __init__(self, savers: Sequence[Any]) -> None:
        super().__init__()
        self._turns = itertools.cycle(savers)

    def get_next_version(self, current: Any, channel: None) -> Any:
        return next(self._turns).get_next_version(current, channel)

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        return next(self._turns).get_tuple(config)

    def list(self, config: Any, **options: Any) -> Iterator[CheckpointTuple]:
        return next(self._turns).list(config, **options)

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        return next(self._turns).put(config, checkpoint, metadata, new_versions)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        next(self._turns).put_writes(config, writes, task_id, task_path)

    def get_delta_channel_history(self, *, config: Any, channels: Any) -> Any:
        return next(self._turns).get_delta_channel_history(config=config, channels=channels)

    def check(self) -> Any:
        return next(self._turns).check()
