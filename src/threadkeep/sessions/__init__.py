"""Checkpoints of workflows that are not LangGraph's, by session and workflow."""

try:
    from threadkeep.sessions.config import EVENTS, CheckpointConfig
except ImportError as error:
    raise ImportError(f"{error}: use pip install 'threadkeep[sessions]'") from error
from threadkeep.sessions.auto_save import AutoSaver, checkpointed
from threadkeep.sessions.checkpoint import Checkpoint
from threadkeep.sessions.manager import CheckpointManager
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
