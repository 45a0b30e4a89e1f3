"""What is read of LangGraph's stores: records, and the protocol of whatever reads them.

Only these live here. Invariant: a source is never changed, not even migrated.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from langgraph.checkpoint.base import BaseCheckpointSaver

Place: TypeAlias = tuple[str, str]
"""The namespace and id of a checkpoint."""


class FoundWrite(NamedTuple):
    """A pending write, with the index that it has in its task."""

    task_id: str
    task_path: str
    idx: int
    channel: str
    value: Any


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint as LangGraph's own saver gives it; `size` is about its bytes as read."""

    ns: str
    id: str
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: list[FoundWrite] = field(default_factory=list)
    size: int = 0


class Source(Protocol):
    """A store of LangGraph's. Not for several threads at a time; calls may block."""

    def threads(self) -> dict[str, int]:
        """How many checkpoints each thread has, by its id, in order."""

    def parents(self, thread: str) -> dict[Place, str | None]:
        """The parent of each checkpoint of a thread, by namespace and id; reads no values."""

    def begin(self) -> None:
        """What is read from now on is one state."""

    def end(self) -> None:
        """See `begin`; harmless where nothing was begun."""

    def checkpoints(self, thread: str) -> Generator[Found, None, None]:
        """A thread's checkpoints, by namespace and id, in ascending order.

        Raises:
            UnknownTypeError, CorruptionError, WrongKeyError: a value cannot be read; the
                error names the checkpoint.
            OpenError, BackendError: the store failed.
        """

    def saver(self) -> BaseCheckpointSaver[Any]:
        """LangGraph's own saver, reading the same state.

        Raises:
            OpenError: its library is not installed.
        """

    def close(self) -> None:
        """Release everything. Idempotent."""
