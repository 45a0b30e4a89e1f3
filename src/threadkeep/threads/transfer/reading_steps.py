"""Checkpoints of LangGraph's own databases: complete ones, and their trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from threadkeep._core.engine.operation import Operation
from threadkeep._core.engine.rows import created_at
from threadkeep._core.engine.thread_summary import following, state_channels, tasks
from threadkeep._core.langgraph_internals import TASKS
from threadkeep.threads.forks import BranchCheckpoint, Branches, tree
from threadkeep.threads.registry import EPOCH
from threadkeep.threads.transfer.sources import DatabaseSource, SourceStep, SourceWindow

T = TypeVar("T")

MOST = 200
"""Checkpoints without their values in one read."""
CHANNELS = ("channel_values", "channel_versions")
_WHOLE = "(state)"  # the channel of a checkpoint whose state cannot be read


def whole_ids(source: DatabaseSource, window: SourceWindow) -> list[SourceStep]:
    """Read a window, and all checkpoints of its last id, which several namespaces may have."""
    steps = source.steps(window)
    if len(steps) < window.limit or window.ns is not None:
        return steps
    last = source.steps(window._replace(id=steps[-1].id, before=None, limit=MOST))
    return [*[one for one in steps if one.id != last[0].id], *last]


def complete(id: str, checkpoint: Any) -> dict[str, Any]:
    """Return a checkpoint with all of its fields, whatever is stored."""
    is_whole = type(checkpoint) is dict and type(checkpoint.get("channel_values")) is dict
    found: dict[str, Any] = checkpoint if is_whole else {"channel_values": {_WHOLE: checkpoint}}
    parts = "channel_versions", "versions_seen"
    empty = {"v": 1, "id": id, "ts": time_of(id).isoformat(), **{name: {} for name in parts}}
    whole: dict[str, Any] = empty | {
        name: value
        for name, value in found.items()
        if isinstance(value, type(empty.get(name, value)))
    }
    return whole | {name: by_text(whole[name]) for name in CHANNELS}


def by_text(channels: Mapping[Any, T]) -> dict[str, T]:
    """Return channels by name. Any key may be stored as one."""
    return {str(name): value for name, value in channels.items()}


def mapping(value: Any) -> dict[str, Any]:
    """Return a dict, an empty one in place of another value."""
    return value if isinstance(value, dict) else {}


def time_of(id: str) -> datetime:
    """Return the time in a checkpoint's id, or 1970 if it has none."""
    return EPOCH + timedelta(microseconds=created_at(id) or 0)


def _of_tree(step: SourceStep) -> BranchCheckpoint:
    whole, names = complete(step.id, {**step.checkpoint, "channel_values": {}}), step.names or {}
    status, changed = tasks(step.written), whole.get("updated_channels")
    return BranchCheckpoint(
        step.id,
        step.parent,
        str(whole["ts"]),
        mapping(step.metadata),
        next=tuple(following(map(str, names))),
        has_sends=names.get(TASKS, 0) != 0,
        written=tuple(state_channels(map(str, changed if isinstance(changed, list) else ()))),
        interrupted=status.asked,
        waiting=status.waiting,
        failed=status.failed,
    )


def trees_of(
    read: Callable[[Callable[[DatabaseSource], list[SourceStep]]], Operation[list[SourceStep]]],
    thread: str,
    ns: str | None,
) -> Operation[dict[str, Branches]]:
    """Return the trees of a thread's namespaces, or of one, without their values."""
    shown: dict[str, dict[str, BranchCheckpoint]] = {}
    window = SourceWindow(thread, ns, None, None, MOST)
    while True:
        steps = yield from read(partial(whole_ids, window=window))
        for one in steps:
            shown.setdefault(one.ns, {})[one.id] = _of_tree(one)
        if len(steps) < window.limit:
            break
        window = window._replace(before=steps[-1].id)
    for ones in shown.values():
        for id in {one.parent for one in ones.values()} & ones.keys():
            ones[str(id)] = replace(ones[str(id)], waiting=())
    return {name: tree(thread, name, ones, {}) for name, ones in shown.items()}
