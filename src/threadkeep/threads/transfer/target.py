"""Writes checkpoints through LangGraph's own savers, as LangGraph itself calls them.

Calls may block. A saver writes each call at once: a checkpoint, or the writes of one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep.threads.transfer.sources import SourceCheckpoint, SourceWrite


def put_checkpoint(
    saver: BaseCheckpointSaver[Any],
    thread: str,
    one: SourceCheckpoint,
    previous: Mapping[str, Any] | None = None,
) -> None:
    """Store a checkpoint without its writes.

    `previous` are the parent's channel versions, if the saver has stored the parent: values of
    these versions are not stored again. None stores all values.
    """
    versions = one.checkpoint["channel_versions"]
    known = previous or {}
    new = {name: version for name, version in versions.items() if known.get(name) != version}
    at = {"thread_id": thread, "checkpoint_ns": one.ns}
    if one.parent is not None:
        at["checkpoint_id"] = one.parent
    checkpoint: Any = one.checkpoint
    metadata: Any = one.metadata
    saver.put({"configurable": at}, checkpoint, metadata, new)


def put_writes(
    saver: BaseCheckpointSaver[Any], thread: str, ns: str, id: str, writes: Iterable[SourceWrite]
) -> None:
    """Store pending writes of a checkpoint, sorted by task, with one call per task.

    LangGraph numbers a task's writes by their position in the call.
    """
    at: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}
    for (path, task), own in groupby(writes, lambda one: (one.task_path, one.task_id)):
        pairs = [(one.channel, one.value) for one in _in_places(list(own))]
        saver.put_writes(at, pairs, task, path)


def _in_places(writes: Sequence[SourceWrite]) -> list[SourceWrite]:
    """Order a task's writes so that each takes the position of its index, if possible.

    Special writes have negative indices and may take any position.
    """
    special = [one for one in writes if one.idx < 0]
    placed: list[SourceWrite] = []
    for one in sorted([one for one in writes if one.idx >= 0], key=lambda one: one.idx):
        while len(placed) < one.idx and special:
            placed.append(special.pop(0))
        placed.append(one)
    return placed + special
