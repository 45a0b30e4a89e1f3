"""The records that a difference is told in.

Only frozen records live here. Invariant: a record is complete in itself; the values in it
are the reader's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Path: TypeAlias = tuple[Any, ...]
"""Where in a value: positions of lists, keys of dicts, names of fields."""


@dataclass(frozen=True, slots=True)
class TextEdit:
    """In a text, `before` at position `before_at` became `after` at position `after_at`.

    Positions count characters from 0.
    """

    before_at: int
    after_at: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs.

    `kind`: "added", "removed", "changed", or "reordered" (a dict's keys, which `before` and
    `after` list). `before_at` and `after_at` say where in the value before and in the value
    after; of what was added or removed the other one says where it would stand. `before` is
    None for what was added, `after` for what was removed. `text` tells more of a text.
    """

    kind: Literal["added", "removed", "changed", "reordered"]
    before_at: Path
    after_at: Path
    before: Any = None
    after: Any = None
    text: tuple[TextEdit, ...] = ()


@dataclass(frozen=True, slots=True)
class DiffSide:
    """A checkpoint that was compared; `step` and `source` are of its metadata."""

    thread: str
    ns: str
    checkpoint: str
    time: str
    step: int | None
    source: str | None


@dataclass(frozen=True, slots=True)
class ChannelDiff:
    """What became of a channel.

    `kind`: "added" and "removed" mean its value, "version" that the value is the same under
    another version. A version is None where the checkpoint does not know the channel.
    `is_delta`: it is a DeltaChannel without a value in one of the checkpoints, which only
    its graph can rebuild. Then `changes` are those of what is stored instead, a dict of the
    last whole value (`"snapshot"`, if there is one) and the list of `"writes"` since.
    `is_internal`: LangGraph made the channel, not the graph's state.
    """

    channel: str
    kind: Literal["added", "removed", "changed", "version", "unchanged"]
    before_version: float | str | None
    after_version: float | str | None
    changes: tuple[Change, ...] = ()
    is_delta: bool = False
    is_internal: bool = False

    @property
    def is_same(self) -> bool:
        """Whether the value is the same, whatever its version."""
        return self.kind in ("version", "unchanged")
