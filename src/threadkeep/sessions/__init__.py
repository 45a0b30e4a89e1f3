"""Checkpoints of workflows outside LangGraph, by session and workflow."""

try:
    from threadkeep.sessions.checkpoint import EVENTS, Checkpoint, CheckpointConfig
except ImportError as error:
    from threadkeep._stores.external import how_to_install

    raise ImportError(f"{error}. {how_to_install('sessions')}") from error
from threadkeep.sessions.manager import AutoSaver, CheckpointManager, checkpointed
from threadkeep.sessions.stores import (
    CheckpointStore,
    MemoryCheckpointStore,
    SQLiteCheckpointStore,
)

__all__ = [
    "EVENTS",
    "AutoSaver",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointManager",
    "CheckpointStore",
    "MemoryCheckpointStore",
    "SQLiteCheckpointStore",
    "checkpointed",
]
