"""Configs: which thread, namespace and checkpoint a call is about."""

from typing import Any

THREAD = "thread"


def at(thread: Any = THREAD, checkpoint: str | None = None, **configurable: Any) -> Any:
    """A config that names a thread, perhaps a checkpoint, perhaps more."""
    named = {"checkpoint_id": checkpoint} if checkpoint else {}
    return {"configurable": {"thread_id": thread, **named, **configurable}}
