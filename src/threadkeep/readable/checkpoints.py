"""A checkpoint in short: where it stands, what made it, what comes next, what waits.

Invariant: it is told from the checkpoint alone; the graph is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from threadkeep.engine.thread_summary import (
    following,
    tasks,
)
from threadkeep.langgraph_internals import TASKS
from threadkeep.readable.values import plain


class Waiting(NamedTuple):
    """An interrupt that nobody has answered; `value` as JSON knows it."""

    task: str
    id: str | None
    value: Any


class View(NamedTuple):
    """A checkpoint in short.

    `time` is ISO 8601, as LangGraph stamps it. `next` names the nodes that are to run.
    `waiting`: what its tasks ask for and have no answer to; `failed`: the errors of tasks, as
    stored.
    """

    thread: str
    namespace: str
    id: str
    time: str
    source: str
    step: int | None
    next: tuple[str, ...]
    waiting: tuple[Waiting, ...]
    failed: tuple[str, ...]


def view(found: CheckpointTuple) -> View:
    """A checkpoint in short."""
    place, checkpoint = found.config["configurable"], found.checkpoint
    metadata, writes = found.metadata or {}, found.pending_writes or []
    return View(
        thread=str(place["thread_id"]),
        namespace=str(place.get("checkpoint_ns") or ""),
        id=str(checkpoint["id"]),
        time=str(checkpoint["ts"]),
        source=str(metadata.get("source", "")),
        step=metadata.get("step"),
        next=_next(checkpoint["channel_values"]),
        waiting=tuple(_waiting(writes)),
        failed=tuple(str(value) for _, channel, value in writes if channel == ERROR),
    )


def _next(values: dict[str, Any]) -> tuple[str, ...]:
    """The nodes that are to run, with those that tasks were sent to."""
    sent = [str(getattr(task, "node", task)) for task in values.get(TASKS) or ()]
    return tuple(dict.fromkeys([*following(values), *sent]))


def _waiting(writes: list[Any]) -> Iterator[Waiting]:
    waiting = tasks([(task, channel) for task, channel, _ in writes]).waiting
    for task, channel, value in writes:
        if channel == INTERRUPT and task in waiting:
            for one in value if isinstance(value, list | tuple) else (value,):
                asked = plain(getattr(one, "value", one))
                yield Waiting(str(task), getattr(one, "id", None), asked)
