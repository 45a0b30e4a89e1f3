"""Layers and groups of a conversation together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig

from threadkeep._core import arguments
from threadkeep._run.layers.driver import Workflow, sync_and_async
from threadkeep.memory.archiving import effective_count
from threadkeep.memory.groups import MessageGroups
from threadkeep.memory.policy import LayerName
from threadkeep.memory.saver import LayeredCheckpointSaver


@dataclass(frozen=True, slots=True)
class SavedConversation:
    """The result of `save_checkpoint_optimized`.

    `effective_count` is the number of messages in which a collapsed group counts as one, and
    `layer` the deepest layer that it asks for.
    """

    config: RunnableConfig
    layer: LayerName
    messages: int
    effective_count: int


class IntegratedCheckpointManager:
    """Layers and groups together: a collapsed group counts as one message for the layers.

    Args:
        layered: the saver.
        groups: its groups; None for `layered.groups`.
    """

    def __init__(
        self, layered: LayeredCheckpointSaver, groups: MessageGroups | None = None
    ) -> None:
        self.layered = layered
        self.groups = groups if groups is not None else layered.groups

    def _save(self, config: RunnableConfig, messages: Iterable[Any]) -> Workflow[SavedConversation]:
        """Store a conversation as `LayeredCheckpointSaver.save`, and say which layer it is in.

        Raises:
            InvalidArgumentError: they are no messages.
        """
        stored = yield from self.layered._save(config, messages)  # noqa: SLF001 - it is made of it
        seen = yield from self.layered._found(arguments.place(stored).thread)  # noqa: SLF001
        count = effective_count(seen.record, len(seen.live))
        removed = 0 if seen.record is None else len(seen.record.removed)
        layer = self.layered.policy.layer(count)
        return SavedConversation(stored, layer, seen.stop - removed, count)

    save_checkpoint_optimized, asave_checkpoint_optimized = sync_and_async(_save)

    def _load(self, config: RunnableConfig) -> Workflow[list[Any]]:
        """Return the view of a thread; see `LayeredCheckpointSaver.load`."""
        return (yield from self.layered._load(config))  # noqa: SLF001 - it is made of it

    load, aload = sync_and_async(_load)
