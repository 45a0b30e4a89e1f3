"""Everything that a saver holds, in a form that can be compared between savers.

Only what must differ between two runs is taken away: random ids (checkpoints, tasks,
interrupts, messages without an id of their own) get names by order of first
appearance, so that two forms are equal when their ids correspond one to one; times
become "<ts>"; a channel version becomes its sequence number, the part that orders it
along one path. Tuples become lists and mappings plain ones, because LangGraph's own
savers give lists and dicts back; the order of a mapping's keys stays.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple
from pydantic import BaseModel

RANDOM_ID = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b"
)
NULL_TASK_ID = "00000000-0000-0000-0000-000000000000"


class Canon:
    """One comparison form: names that were given once stay.

    `raced_ids` is for graphs whose messages get their ids from the reducer: LangGraph
    sets them while the writes that hold the same messages are being saved, so that
    there, and only there, the ids are left out.
    """

    def __init__(self, *, raced_ids: bool = False) -> None:
        self._names: dict[str, str] = {NULL_TASK_ID: "<null>"}
        self._raced_ids = raced_ids
        self._in_write = False

    def text(self, value: str) -> str:
        return RANDOM_ID.sub(self._name, value)

    def _name(self, found: re.Match[str]) -> str:
        return self._names.setdefault(found[0], f"<id {len(self._names)}>")

    def knows(self, value: str) -> bool:
        return all(found in self._names for found in RANDOM_ID.findall(value))

    def value(self, value: Any) -> Any:
        """Any value, types told apart where Python's `==` would not (1, 1.0, True)."""
        if isinstance(value, Enum):
            return (type(value).__name__, value.value)
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bool | float):
            return (type(value).__name__, repr(value))
        if isinstance(value, BaseException):
            return self.text(repr(value))
        if isinstance(value, Mapping):
            return ["dict", *((self.value(k), self.value(v)) for k, v in value.items())]
        return self._composite(value)

    def _composite(self, value: Any) -> Any:
        if isinstance(value, BaseModel):
            unsure = {"id"} if self._in_write and isinstance(value, BaseMessage) else set()
            fields = {k: v for k, v in value if k not in unsure}
            return (type(value).__name__, self.value(fields))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
            return (type(value).__name__, self.value(fields))
        if hasattr(value, "__slots__") and type(value).__module__ == "langgraph.types":
            fields = {n: getattr(value, n, None) for n in sorted(value.__slots__)}
            return (type(value).__name__, self.value(fields))
        if isinstance(value, tuple) and hasattr(value, "_asdict"):
            return (type(value).__name__, self.value(value._asdict()))
        if isinstance(value, set | frozenset):
            return ("set", sorted((self.value(v) for v in value), key=repr))
        if isinstance(value, Iterable) and not isinstance(value, bytes):
            return [self.value(v) for v in value]
        return value

    def written(self, value: Any) -> Any:
        """A value of a write, or the input."""
        self._in_write = self._raced_ids
        try:
            return self.value(value)
        finally:
            self._in_write = False

    def table(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """A mapping whose order means nothing: channels, metadata."""
        return {self.text(k): self.value(value[k]) for k in sorted(value)}

    def channels(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The channel values of a checkpoint."""
        return {
            k: self.written(values[k]) if k == "__start__" else self.value(values[k])
            for k in sorted(values)
        }

    def place(self, config: Mapping[str, Any] | None) -> Any:
        """Return a config's own keys; keys with "__" are a saver's or LangGraph's."""
        if config is None:
            return None
        named = {k: v for k, v in config["configurable"].items() if not k.startswith("__")}
        return {
            **self.table({k: v for k, v in config.items() if k != "configurable"}),
            "configurable": self.table(named),
        }

    def entry(self, found: CheckpointTuple) -> dict[str, Any]:
        """One checkpoint with its pending writes."""
        checkpoint = dict(found.checkpoint)
        datetime.fromisoformat(checkpoint.pop("ts"))
        values = checkpoint.pop("channel_values")
        versions = checkpoint.pop("channel_versions")
        seen = checkpoint.pop("versions_seen")
        return {
            "place": self.place(found.config),
            "parent": self.place(found.parent_config),
            "metadata": self.table(found.metadata),
            "values": self.channels(values),
            "versions": _sequence_numbers(versions),
            "seen": {n: _sequence_numbers(v) for n, v in sorted(seen.items())},
            "checkpoint": self.table(checkpoint),
            "writes": [self.written(list(w)) for w in found.pending_writes or ()],
        }

    def entries(self, found: Iterable[CheckpointTuple]) -> list[dict[str, Any]]:
        """All checkpoints: threads by id, parents' namespaces before children's, newest first."""
        by_place: dict[tuple[str, str], list[CheckpointTuple]] = {}
        for entry in found:
            configurable = entry.config["configurable"]
            place = (str(configurable["thread_id"]), configurable["checkpoint_ns"])
            by_place.setdefault(place, []).append(entry)
        out = []
        while by_place:
            place = min(by_place, key=self._turn)
            out += [self.entry(e) for e in by_place.pop(place)]
        return out

    def _turn(self, place: tuple[str, str]) -> tuple[Any, ...]:
        thread, ns = place
        unknown = not self.knows(ns)
        return (thread, ns.count("|"), unknown, ns if unknown else self.text(ns))

    def snapshot(self, state: Any) -> dict[str, Any]:
        """One `StateSnapshot`, the states of its subgraphs included."""
        return {
            "config": self.place(state.config),
            "parent": self.place(state.parent_config),
            "values": self.value(state.values),
            "next": list(state.next),
            "metadata": self.table(state.metadata) if state.metadata else None,
            "tasks": [self._task(t) for t in state.tasks],
            "interrupts": self.value(state.interrupts),
        }

    def _task(self, task: Any) -> dict[str, Any]:
        inner = task.state
        nested = (
            self.snapshot(inner)
            if hasattr(inner, "values") and hasattr(inner, "next")
            else (self.place(inner))
        )
        return {
            "id": self.text(task.id),
            "name": task.name,
            "path": self.value(task.path),
            "error": None if task.error is None else self.value(task.error),
            "interrupts": self.value(task.interrupts),
            "state": nested,
            "result": self.written(task.result),
        }


def _sequence_numbers(versions: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(str(v).split(".")[0]) for name, v in sorted(versions.items())}
