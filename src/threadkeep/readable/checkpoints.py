"""A checkpoint in short: where it stands, what made it, what comes next, what waits.

Invariant: it is told from the checkpoint alone; the graph is not known here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from threadkeep.langgraph_names import BRANCH, START, TASKS
from threadkeep.readable.values import plain

_SPECIAL = (INTERRUPT, RESUME, ERROR)


class Waiting(NamedTuple):
    """An interrupt that nobody has answered; `value` as JSON knows it."""

    task: str
    id: str | None
    value: Any


class View(NamedTuple):
    """A checkpoint in short.

    `time` is ISO 8601, as LangGraph stamps it. `next` names the nodes that are to run, `written`
    the state's channels that the step before wrote. `interrupted`: whether a node stopped
    to ask, answered since or not; `waiting`: what is asked and not answered. `failed`: the
    errors of tasks, as stored. `parents`: the checkpoints that a subgraph's stands under, by
    namespace.
    """

    thread: str
    namespace: str
    id: str
    parent: str | None
    time: str
    source: str
    step: int | None
    next: tuple[str, ...]
    written: tuple[str, ...]
    interrupted: bool
    waiting: tuple[Waiting, ...]
    failed: tuple[str, ...]
    parents: dict[str, str]


def view(found: CheckpointTuple) -> View:
    """A checkpoint in short."""
    place, parent = found.config["configurable"], found.parent_config
    checkpoint, metadata = found.checkpoint, found.metadata or {}
    values, writes = checkpoint["channel_values"], found.pending_writes or []
    return View(
        thread=str(place["thread_id"]),
        namespace=str(place.get("checkpoint_ns") or ""),
        id=str(checkpoint["id"]),
        parent=None if parent is None else str(parent["configurable"]["checkpoint_id"]),
        time=str(checkpoint["ts"]),
        source=str(metadata.get("source", "")),
        step=metadata.get("step"),
        next=_next(values),
        written=tuple(own(checkpoint.get("updated_channels") or ())),
        interrupted=any(channel == INTERRUPT for _, channel, _ in writes),
        waiting=tuple(_waiting(writes)),
        failed=tuple(str(value) for _, channel, value in writes if channel == ERROR),
        parents={str(ns): str(id) for ns, id in (metadata.get("parents") or {}).items()},
    )


def own(channels: Collection[str]) -> list[str]:
    """Of these channels those of the state; the others are LangGraph's, and say what runs next."""
    return [name for name in channels if not name.startswith(BRANCH) and name not in (START, TASKS)]


def _next(values: dict[str, Any]) -> tuple[str, ...]:
    """The nodes that are to run: those channels are empty again one step later."""
    nodes = [name.removeprefix(BRANCH) for name in values if name.startswith(BRANCH)]
    sent = [str(getattr(task, "node", task)) for task in values.get(TASKS) or ()]
    return tuple(dict.fromkeys([*([START] if START in values else []), *nodes, *sent]))


def _waiting(writes: list[Any]) -> list[Waiting]:
    """The interrupts of tasks that have not ended: those that have wrote something else."""
    ended = {task for task, channel, _ in writes if channel not in _SPECIAL}
    return [
        Waiting(str(task), getattr(one, "id", None), plain(getattr(one, "value", one)))
        for task, channel, value in writes
        if channel == INTERRUPT and task not in ended
        for one in (value if isinstance(value, list | tuple) else (value,))
    ]
