"""Checkpoints put by hand, for suites that talk to a saver and not through a graph."""

from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint

from kit.places import THREAD


def place(thread: Any = THREAD, checkpoint: str | None = None, ns: str = "") -> Any:
    """A config as `put` and `put_writes` want it."""
    named = {"checkpoint_id": checkpoint} if checkpoint else {}
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, **named}}


def checkpoint(values: dict[str, Any] | None = None, **versions: Any) -> Checkpoint:
    """A new checkpoint; channels without a version get version 1."""
    made = empty_checkpoint()
    made["channel_values"] = dict(values or {})
    made["channel_versions"] = {**dict.fromkeys(values or {}, 1), **versions}
    return made


def metadata(step: int = 0, **more: Any) -> Any:
    return {"source": "loop", "step": step, "parents": {}, **more}


async def aput(
    saver: Any, config: Any, values: dict[str, Any] | None = None, **versions: Any
) -> Any:
    """Put a checkpoint below the one that the config names; the new one's config."""
    made = checkpoint(values, **versions)
    return await saver.aput(config, made, metadata(), made["channel_versions"])


def put(saver: Any, config: Any, values: dict[str, Any] | None = None, **versions: Any) -> Any:
    """See `aput`."""
    made = checkpoint(values, **versions)
    return saver.put(config, made, metadata(), made["channel_versions"])


def say(saver: Any, thread: Any, said: Any = "hello", **more: Any) -> Any:
    """Put a checkpoint with one message, or another value; with more metadata."""
    message = HumanMessage(said, id="m") if type(said) is str else said
    made = checkpoint({"messages": [message]})
    return saver.put(place(thread), made, {**metadata(1), **more}, made["channel_versions"])


def value_at(saver: Any, config: Any, channel: str = "value") -> Any:
    return saver.get_tuple(config).checkpoint["channel_values"][channel]
