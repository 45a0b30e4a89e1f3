"""What the names of channels and of writes tell of a step, without any value.

Pure functions: which nodes come next, which channels of the state were written, which tasks
asked, wait or failed. Invariant: this is the only place that says what "an interrupt waits" means.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from threadkeep.langgraph_internals import (
    BRANCH,
    ERROR_SOURCE,
    NO_TASK,
    START,
    is_internal,
)

_CONTROL = frozenset({ERROR, ERROR_SOURCE, INTERRUPT, RESUME})


class Tasks(NamedTuple):
    """The tasks of a step by what they wrote, in the order of their first write.

    `asked` called `interrupt()`; `waiting` are those of them that have not ended since;
    `failed` left an error.
    """

    asked: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def tasks(writes: Iterable[tuple[str, str]]) -> Tasks:
    """How the tasks of a step stand, by the task and channel of each write that counts.

    The rule is LangGraph's: a task has ended if it wrote anything but what says how it fares. An
    answer alone ends nothing, as the task may ask again. (`langgraph.pregel._task_status`)
    """
    channels: dict[str, set[str]] = {}
    for task, channel in writes:
        if task != NO_TASK:
            channels.setdefault(task, set()).add(channel)
    asked = [task for task, wrote in channels.items() if INTERRUPT in wrote]
    return Tasks(
        asked=tuple(asked),
        waiting=tuple([task for task in asked if channels[task] <= _CONTROL]),
        failed=tuple([task for task, wrote in channels.items() if ERROR in wrote]),
    )


def own(channels: Iterable[str]) -> list[str]:
    """Of these channels those of the state; the others are LangGraph's, and say what runs next."""
    return [name for name in channels if not is_internal(name)]


def following(channels: Iterable[str]) -> list[str]:
    """The nodes that are to run, by the channels that hold something; without what was sent."""
    held = list(channels)
    nodes = [name.removeprefix(BRANCH) for name in held if name.startswith(BRANCH)]
    return [START, *nodes] if START in held else nodes
