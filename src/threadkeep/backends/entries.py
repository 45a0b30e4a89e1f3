"""Whether an entry is one that is looked for, where the store itself cannot tell.

Only this predicate lives here, one logic for the stores that hold entries as records.
"""

from __future__ import annotations

from threadkeep.engine.thread_entry import (
    ThreadEntry,
    ThreadQuery,
    ThreadStatus,
)


def is_meant(entry: ThreadEntry, query: ThreadQuery) -> bool:
    """Whether the entry is as the query says."""
    return (
        (entry.state in query.states if query.states else entry.state != ThreadStatus.DELETED)
        and set(query.labels) <= set(entry.labels)
        and _is_between(entry.created_at, query.created)
        and _is_between(entry.updated_at, query.updated)
        and query.waits in (None, entry.waits_at is not None)
        and query.pinned in (None, entry.pinned)
        and (query.size is None or entry.size >= query.size)
        and (query.origin is None or (entry.origin or ("",))[0] == query.origin)
        and (query.rested is None or _has_rested(entry, query.rested))
    )


def _is_between(at: int, limits: tuple[int | None, int | None]) -> bool:
    first, last = limits
    return (first is None or at >= first) and (last is None or at < last)


def _has_rested(entry: ThreadEntry, now: int) -> bool:
    return entry.ttl is not None and entry.updated_at + entry.ttl < now
