"""The registry in memory: what a change makes of a thread's entry.

Only functions on single threads and entries may live here. Invariant: an entry is replaced,
never changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from threadkeep.engine.thread_entry import (
    Move,
    ThreadEntry,
    ThreadStatus,
    Touch,
    label_prefix,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from threadkeep.backends.memory.rows import Thread


def entry_of(thread: Thread) -> ThreadEntry | None:
    """The thread's entry, as it is read."""
    if thread.entry is None:
        return None
    return thread.entry._replace(
        size=thread.size, deleted_at=thread.deleted_at, revision=thread.revision
    )


def replace_entry(thread: Thread, entry: ThreadEntry) -> None:
    """Let the thread be registered so; see `Batch.entry`."""
    known = thread.entry
    if known is not None and known.state != ThreadStatus.DELETED:
        times = (known.created_at, known.updated_at)
        entry = entry._replace(created_at=times[0], updated_at=times[1], waits_at=known.waits_at)
    thread.entry = entry._replace(labels=_joined(entry.labels))
    thread.revision += 1


def touch(thread: Thread, name: str, touched: Touch, now: int) -> None:
    """Let the thread's entry say what was done; see `Touch`."""
    thread.size = touched.size if touched.whole else thread.size + touched.size
    for move in touched.moves:
        _move(thread, name, move, now if touched.at is None else touched.at)
    entry = thread.entry
    if entry is None or entry.state == ThreadStatus.DELETED:
        return
    if touched.at is not None:
        entry = entry._replace(updated_at=max(entry.updated_at, touched.at))
    if touched.labels:
        thread.revision += 1
        entry = entry._replace(labels=_joined((*entry.labels, *touched.labels)))
    thread.entry = entry


def _move(thread: Thread, name: str, move: Move, at: int) -> None:
    entry = thread.entry
    if (entry.state if entry else "") not in move.sources:
        return
    waits_at = entry.waits_at if entry else None
    if waits_at is not None and not _is_later(move, waits_at):
        return
    if entry is None or entry.state == ThreadStatus.DELETED:
        entry = ThreadEntry(name, move.target, at, at)
    waits = move.checkpoint if move.waits else None
    thread.entry = entry._replace(state=move.target, waits_at=waits)
    thread.revision += 1


def _is_later(move: Move, waits_at: str) -> bool:
    return move.checkpoint > waits_at or (move.same and move.checkpoint == waits_at)


def bury(thread: Thread, name: str, before: Thread) -> None:
    """Leave the entry of a deleted thread, if it has a tombstone."""
    thread.revision = before.revision + 1
    if thread.deleted_at:
        thread.entry = ThreadEntry(name, ThreadStatus.DELETED, thread.deleted_at, thread.deleted_at)


def copy_entry(copy: Thread, name: str, source: Thread, target: Thread, now: int) -> None:
    """Register a copy; see `CopyThread`."""
    copy.size, copy.revision = source.size, target.revision + 1
    if source.entry is None:
        return
    own = target.entry or ThreadEntry(name, "", now, now)
    copy.entry = source.entry._replace(
        thread=name,
        created_at=now,
        updated_at=now,
        labels=_joined((*source.entry.labels, *own.labels)),
        pinned=own.pinned,
        ttl=source.entry.ttl if own.ttl is None else own.ttl,
        origin=own.origin,
    )


def _joined(labels: Iterable[str]) -> tuple[str, ...]:
    """The labels in order; of those with the same beginning the last."""
    return tuple(sorted({label_prefix(label): label for label in labels}.values()))
