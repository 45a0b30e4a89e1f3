"""Operations behind `saver.threads`: entries of threads, their labels, searches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from threadkeep import validation
from threadkeep.engine import registration
from threadkeep.engine.context import Engine
from threadkeep.engine.operation import (
    CheckpointRef,
    Operation,
)
from threadkeep.engine.thread_entry import ThreadEntry, label_prefix
from threadkeep.errors import ThreadExistsError
from threadkeep.registry import filters
from threadkeep.registry.filters import Filters, OrderName
from threadkeep.registry.info import ThreadInfo, ThreadPage, info


def create(
    engine: Engine,
    thread: str,
    metadata: Mapping[str, Any] | None,
    tags: Iterable[str],
    ttl: timedelta | float | None,
    *,
    exist_ok: bool,
) -> Operation[ThreadInfo]:
    """See `Threads.create`."""
    name = validation.thread_id(thread)
    labels = filters.metadata_labels(metadata or {}) + filters.tag_labels(tags)
    labels, rest = filters.checked_labels(labels, name), filters.ttl(ttl)
    try:
        entry = yield from registration.create(engine, name, labels, rest)
    except ThreadExistsError:
        found = (yield from registration.read(name)) if exist_ok else None
        if found is None:
            raise
        entry = found
    return info(entry)


def get(thread: str) -> Operation[ThreadInfo | None]:
    """See `Threads.get`."""
    entry = yield from registration.read(validation.thread_id(thread))
    return None if entry is None else info(entry)


def update(
    engine: Engine, thread: str, metadata: Mapping[str, Any], ttl: timedelta | float | None
) -> Operation[ThreadInfo]:
    """See `Threads.update`."""
    removed = filters.metadata_labels({k: v for k, v in metadata.items() if v is None})
    added = filters.metadata_labels({k: v for k, v in metadata.items() if v is not None})
    rest = filters.ttl(ttl) if ttl else None

    def updated(entry: ThreadEntry) -> ThreadEntry:
        gone = set(map(label_prefix, removed))
        stay = [label for label in entry.labels if label_prefix(label) not in gone]
        labels = filters.checked_labels((*stay, *added), entry.thread)
        return entry._replace(labels=labels, ttl=entry.ttl if ttl is None else rest)

    return _changed(engine, thread, updated)


def tag(
    engine: Engine,
    thread: str,
    tags: tuple[str, ...],
    checkpoint: str | None,
    ns: str,
    *,
    add: bool,
) -> Operation[ThreadInfo]:
    """See `Threads.tag` and `Threads.untag`."""
    if checkpoint is None:
        return _labelled(engine, thread, filters.tag_labels(tags), add=add)
    place = validation.place(validation.thread_id(thread), ns, checkpoint)
    return _labelled(engine, thread, filters.mark_labels(place, tags), place, add=add)


def pin(
    engine: Engine, thread: str, checkpoint: str | None, ns: str, *, pinned: bool
) -> Operation[ThreadInfo]:
    """See `Threads.pin` and `Threads.unpin`."""
    if checkpoint is None:
        return _changed(engine, thread, lambda entry: entry._replace(pinned=pinned))
    place = validation.place(validation.thread_id(thread), ns, checkpoint)
    return _labelled(engine, thread, filters.mark_labels(place, None), place, add=pinned)


def _labelled(
    engine: Engine,
    thread: str,
    labels: tuple[str, ...],
    at: CheckpointRef | None = None,
    *,
    add: bool,
) -> Operation[ThreadInfo]:
    """Add labels, of a checkpoint that is there, or remove them."""

    def labelled(entry: ThreadEntry) -> ThreadEntry:
        others = [label for label in entry.labels if label not in labels]
        found = filters.checked_labels((*others, *(labels if add else ())), entry.thread)
        return entry._replace(labels=found)

    return _changed(engine, thread, labelled, at if add else None)


def _changed(
    engine: Engine,
    thread: str,
    change: Callable[[ThreadEntry], ThreadEntry],
    at: CheckpointRef | None = None,
) -> Operation[ThreadInfo]:
    entry = yield from registration.change(engine, validation.thread_id(thread), change, at)
    return info(entry)


def search(
    engine: Engine, order: OrderName, limit: int, cursor: str | None, wanted: Filters
) -> Operation[ThreadPage]:
    """See `Threads.search`."""
    query = filters.query(engine.now(), **wanted)
    entries = yield from registration.search(filters.page(query, order, limit, cursor))
    more = filters.cursor_after(entries[-1], order) if len(entries) == limit else None
    return ThreadPage(tuple(map(info, entries)), more)


def count(engine: Engine, wanted: Filters) -> Operation[int]:
    """See `Threads.count`."""
    return registration.count(filters.query(engine.now(), **wanted))
