"""Public records of threads. They hold plain values, which JSON can hold too (`as_json`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, overload

from threadkeep._core.engine import thread_entry
from threadkeep._core.engine.cold_references import archive_of
from threadkeep._core.engine.thread_entry import Mark, ThreadEntry, ThreadStatus, is_archived
from threadkeep._core.policies import retention as policy
from threadkeep._core.policies.retention import Retention
from threadkeep._core.validation import MICROSECOND

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """Entry of a thread in the registry.

    Args:
        id: its name.
        state: its state; see `ThreadStatus`.
        created_at, updated_at: in UTC; the second may be late by a second.
        bytes: about what its rows and segments hold, as stored.
        metadata: what `create` and `update` said, and the configs of its runs.
        tags: in order.
        pinned: True if retention leaves it alone.
        ttl: how long it may be idle before retention removes it; None for ever.
        forked_from: the thread and checkpoint that it was forked from.
        waits_at: the checkpoint at which an interrupt waits for an answer.
        deleted_at: when it was deleted the last time.
        retention_json: its own retention, if it has one; see `retention`.
        marks: the checkpoints that have tags or a pin, each with these.
        archived_bytes: what it takes in the cold store; None where it is not archived.
        offloaded_bytes: what of its values is there while it is in use, about: what is not needed
            any more is counted until it is removed.
    """

    id: str
    state: ThreadStatus
    created_at: datetime
    updated_at: datetime
    bytes: int
    metadata: dict[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    pinned: bool = False
    ttl: timedelta | None = None
    forked_from: tuple[str, str] | None = None
    waits_at: str | None = None
    deleted_at: datetime | None = None
    retention_json: Mapping[str, Any] | None = None
    marks: tuple[Mark, ...] = ()
    archived_bytes: int | None = None
    offloaded_bytes: int = 0

    @property
    def has_interrupt(self) -> bool:
        """True if an interrupt waits for an answer."""
        return self.waits_at is not None

    @property
    def retention(self) -> Retention | None:
        """Its own retention, if it has one.

        Raises:
            NewerFormatError, CorruptionError: it cannot be read.
        """
        return None if self.retention_json is None else policy.read(self.retention_json)

    def as_json(self) -> dict[str, Any]:
        """Return it as values that JSON can hold; times as ISO 8601, the ttl in seconds."""
        data = {one.name: getattr(self, one.name) for one in fields(self)}
        data["retention"] = data.pop("retention_json")
        data["state"] = str(self.state)
        data["ttl"] = None if self.ttl is None else self.ttl.total_seconds()
        for name in ("created_at", "updated_at", "deleted_at"):
            data[name] = None if data[name] is None else data[name].isoformat()
        for name in ("tags", "forked_from"):
            data[name] = None if data[name] is None else list(data[name])
        data["marks"] = [{**mark._asdict(), "tags": list(mark.tags)} for mark in self.marks]
        return data


@dataclass(frozen=True, slots=True)
class ThreadPage(Sequence[ThreadInfo]):
    """A sequence of threads, and the `cursor` of the next page; None at the end."""

    threads: tuple[ThreadInfo, ...]
    cursor: str | None

    def __len__(self) -> int:
        """Return the number of threads on this page."""
        return len(self.threads)

    @overload
    def __getitem__(self, index: int) -> ThreadInfo: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ThreadInfo, ...]: ...
    def __getitem__(self, index: int | slice) -> ThreadInfo | tuple[ThreadInfo, ...]:
        """Return one of the threads, or several."""
        return self.threads[index]


def info(entry: ThreadEntry) -> ThreadInfo:
    """Return the public record of an entry."""
    archive = archive_of(entry)
    return ThreadInfo(
        id=entry.thread,
        state=ThreadStatus(entry.state),
        created_at=EPOCH + entry.created_at * MICROSECOND,
        updated_at=EPOCH + entry.updated_at * MICROSECOND,
        bytes=max(entry.size, 0),
        metadata=thread_entry.metadata_of(entry.labels),
        tags=thread_entry.tags_of(entry.labels),
        pinned=entry.pinned,
        ttl=None if entry.ttl is None else entry.ttl * MICROSECOND,
        forked_from=entry.origin,
        waits_at=entry.waits_at,
        deleted_at=EPOCH + entry.deleted_at * MICROSECOND if entry.deleted_at else None,
        retention_json=thread_entry.find_record(entry.labels, policy.RECORD),
        marks=thread_entry.marks_of(entry.labels),
        archived_bytes=archive.size if archive is not None and is_archived(entry) else None,
        offloaded_bytes=0 if archive is None else max(archive.offloaded, 0),
    )
