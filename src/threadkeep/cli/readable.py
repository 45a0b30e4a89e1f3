"""Readable forms of values, messages and checkpoints.

Invariant: a value of any type has a readable form, and none is changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import INTERRUPT
from rich.console import RenderableType
from rich.padding import Padding

from threadkeep._core.codec.codecs import CLASS, Raw
from threadkeep.cli.terminal import compact, line, plural, text
from threadkeep.threads.diff import plain
from threadkeep.threads.messages import Message
from threadkeep.threads.steps import Step, step_of

# -- values ------------------------------------------------------------------------------

_CONTAINERS = (Mapping, Sequence, AbstractSet)
_TEXTS = (str, bytes, bytearray, memoryview)  # sequences that are single values


def kind(value: Any) -> str:
    """Return the type of a value in a few words: `list of 3`, `str`, `AIMessage`."""
    if isinstance(value, Raw):
        return f"{value[CLASS]} (raw)"
    name = type(value).__name__
    if isinstance(value, _CONTAINERS) and not isinstance(value, _TEXTS):
        return f"{name} of {len(value)}"
    return name


def size_as_json(value: Any) -> int:
    """Return the number of bytes of a value as UTF-8 JSON."""
    return len(json.dumps(plain(value), ensure_ascii=False).encode("utf-8", "surrogatepass"))


# -- checkpoints -------------------------------------------------------------------------


def summarize(found: CheckpointTuple) -> dict[str, Any]:
    """Return a summary of a checkpoint as JSON, made without its graph.

    `time` is ISO 8601, `next` the nodes to run, `waiting` the interrupts without an answer,
    `failed` the errors of tasks.
    """
    step = step_of(found)
    return {
        "thread": str(found.config["configurable"]["thread_id"]),
        "namespace": step.ns,
        "checkpoint": step.id,
        "time": step.time,
        "source": step.source,
        "step": step.number,
        "next": list(step.next),
        "waiting": list(_waiting(step, found.pending_writes or ())),
        "failed": list(step.errors),
    }


def _waiting(step: Step, writes: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for task, channel, value in writes:
        if channel == INTERRUPT and task in step.waiting:
            for one in value if isinstance(value, list | tuple) else (value,):
                question = plain(getattr(one, "value", one))
                yield {"task": str(task), "id": getattr(one, "id", None), "value": question}


# -- drawing -----------------------------------------------------------------------------

_LINES, _CHARACTERS = 20, 2_000  # shown of one text, unless --full
_ROLES = {"human": "bold green", "user": "bold green", "ai": "bold cyan", "tool": "bold magenta"}


def cut(value: str, *, full: bool) -> Padding:
    """Indent a text, shortened with a note if it is long."""
    shown = "\n".join(value[:_CHARACTERS].split("\n")[:_LINES])
    if not full and shown != value:
        value = f"{shown}\n... {plural(len(value) - len(shown), 'more character')} (--full)"
    return indented(value)


def indented(value: str) -> Padding:
    """Indent a text."""
    return Padding(text(value), (0, 0, 0, 2))


def message_lines(
    messages: Iterable[Message], *, full: bool, note: str = ""
) -> Iterator[RenderableType]:
    """Yield the lines of messages, each after an empty line. `note` follows the role."""
    for message in messages:
        yield ""
        yield line(
            (message.role, _ROLES.get(message.role, "bold")),
            message.name or "",
            (f"[{message.tool_call_id}]" if message.tool_call_id else "", "dim"),
            (message.status if message.status not in (None, "success") else "", "red"),
            (note, "dim"),
        )
        if message.text:
            yield cut(message.text, full=full)
        for call in message.tool_calls:
            id = f" [{call.id}]" if call.id else ""
            yield cut(f"calls {call.name} {compact(call.args)}{id}", full=full)
