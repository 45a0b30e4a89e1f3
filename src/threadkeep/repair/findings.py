"""What can be found wrong with a store, as records.

Only they live here: what is told to people, and what one look at a thread has gathered. Invariant:
names of kinds stay, as quarantine files hold them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from threadkeep.engine.lineage import (
    CheckpointKey,
    Lineage,
    Search,
)
from threadkeep.engine.model import Segment, Span, ThreadRows
from threadkeep.engine.thread_entry import ThreadEntry

WriteKey: TypeAlias = tuple[str, str, int]  # namespace, checkpoint id, seq
SegmentKey: TypeAlias = tuple[int, int, int]  # log, start, count


class Kind(StrEnum):
    """What kind of damage a finding is; the names stay."""

    STORE = "store"  # what the store finds wrong with its own files or tables
    UNREADABLE = "unreadable"  # rows that the store cannot give
    SEGMENT = "segment"  # a stored run of elements
    CHECKPOINT = "checkpoint"  # a checkpoint's row
    METADATA = "metadata"  # a checkpoint's metadata
    KEYFRAME = "keyframe"  # what a checkpoint's manifest is written against
    VALUE = "value"  # a channel's value in a checkpoint
    WRITE = "write"  # what a task wrote
    DELTA = "delta"  # a DeltaChannel that is rebuilt through something broken
    UNKNOWN = "unknown"  # no damage: of a newer release, or encrypted
    AWAY = "away"  # no damage: in the cold store, which is not known here
    REGISTRY = "registry"  # no damage: what is known of the thread does not fit its rows


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, and where. An empty place is the store itself."""

    problem: str
    thread: str | None = None
    namespace: str | None = None
    checkpoint: str | None = None
    channel: str | None = None
    kind: Kind = Kind.STORE

    def __str__(self) -> str:
        names = ("thread", "namespace", "checkpoint", "channel")
        place = ", ".join(f"{n} {v!r}" for n in names if (v := getattr(self, n)))
        return f"{place}: {self.problem}" if place else self.problem


NOTES = frozenset({Kind.AWAY, Kind.REGISTRY})
"""Kinds that are no damage."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """How many threads were looked at, all that is broken, and what else was noticed.

    `notes` are no damage: entries of the registry that do not fit their thread's rows, and threads
    with values in a cold store that is not known here.
    """

    threads: int
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is broken."""
        return not self.findings


@dataclass(slots=True)
class Examined:
    """What one look at a thread has found.

    `damaged` are the segments that cannot be read, with their bytes where the store gives them,
    `away` those whose bytes are in a cold store that is not known here;
    `lineage` holds the checkpoints whose manifest can be read; `lost` are the channels of each
    whose values cannot. `broken` are all checkpoints that cannot be loaded as they were.
    """

    thread: str
    rows: ThreadRows
    entry: ThreadEntry | None = None
    findings: list[Finding] = field(default_factory=list)
    segments: dict[SegmentKey, Segment] = field(default_factory=dict)
    damaged: dict[SegmentKey, Segment | None] = field(default_factory=dict)
    away: dict[SegmentKey, Span] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=lambda: Lineage(()))
    lost: dict[CheckpointKey, set[str]] = field(default_factory=dict)
    broken: set[CheckpointKey] = field(default_factory=set)
    broken_writes: set[WriteKey] = field(default_factory=set)
    rebuilt: list[Search] = field(default_factory=list)  # what DeltaChannels are looked for

    def tell(
        self, kind: Kind, problem: str, key: CheckpointKey | None = None, channel: str = ""
    ) -> None:
        """Add a finding."""
        ns, checkpoint = key or (None, None)
        self.findings.append(
            Finding(problem, self.thread, ns or None, checkpoint, channel or None, kind)
        )

    def hides(self, table: str) -> bool:
        """Whether there are rows of this table that nobody can make sense of."""
        return any(row.table == table for row in self.rows.unreadable)

    @property
    def is_unknown(self) -> bool:
        """Whether there is something that a newer release, a key or a cold store may tell."""
        kinds = {finding.kind for finding in self.findings}
        return Kind.UNKNOWN in kinds or (Kind.AWAY in kinds and not kinds <= NOTES)
