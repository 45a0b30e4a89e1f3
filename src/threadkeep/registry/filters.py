"""Filters, orders, pages and labels that callers give, as records of the engine.

They are used by the operations behind `saver.threads` that create, find and change threads.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

from threadkeep import validation
from threadkeep.engine import registration, thread_entry
from threadkeep.engine.context import Engine
from threadkeep.engine.operation import CheckpointRef, Operation
from threadkeep.engine.thread_entry import (
    Order,
    SearchThreads,
    ThreadEntry,
    ThreadQuery,
    ThreadStatus,
    label_prefix,
)
from threadkeep.errors import InvalidArgumentError, ThreadExistsError, invalid
from threadkeep.registry.info import ThreadInfo, ThreadPage, info, micros
from threadkeep.retention.policy import LONGEST, MICROSECOND, duration

When: TypeAlias = datetime | timedelta
"""A moment with a time zone, or how long ago."""

MOST = 1000  # threads on a page

# fmt: off
OrderName: TypeAlias = Literal[
    "updated_at", "-updated_at", "created_at", "-created_at", "bytes", "-bytes", "thread", "-thread"
]
# fmt: on
_ORDERS: dict[str, Order] = {
    "updated_at": "updated_at",
    "created_at": "created_at",
    "bytes": "size",
    "thread": "thread",
}


class Filters(TypedDict, total=False):
    """Filters of threads; all that are given must match.

    state: one state, or several of which it is one; without, all but deleted threads.
    metadata: pieces of metadata that it has, compared as JSON (1 is not 1.0).
    tags: tags that it has.
    created_after, updated_after: not before this moment, or not longer ago than that.
    created_before, updated_before: before this moment, or longer ago than that.
    has_interrupt: whether an interrupt waits for an answer.
    pinned: whether it is pinned.
    min_bytes: how many bytes it holds at least.
    forked_from: the thread that it was forked from.
    """

    state: str | Iterable[str] | None
    metadata: Mapping[str, Any] | None
    tags: Iterable[str]
    created_after: When | None
    created_before: When | None
    updated_after: When | None
    updated_before: When | None
    has_interrupt: bool | None
    pinned: bool | None
    min_bytes: int | None
    forked_from: str | None


def thread_query(now: int, **filters: Unpack[Filters]) -> ThreadQuery:
    """Return the query that filters ask for."""
    unknown = sorted(filters.keys() - Filters.__annotations__.keys())
    if unknown:
        raise invalid("filter", unknown[0], f"Filters are {', '.join(Filters.__annotations__)}.")
    waits, pinned = filters.get("has_interrupt"), filters.get("pinned")
    for name, flag in (("has_interrupt", waits), ("pinned", pinned)):
        if flag is not None:
            validation.flag(name, flag)
    size, origin = filters.get("min_bytes"), filters.get("forked_from")
    if size is not None and (type(size) is not int or not 0 <= size < LONGEST):
        raise invalid("min_bytes", size, "Use a number of bytes, 0 or more.")
    return ThreadQuery(
        states=_states(filters.get("state")),
        labels=metadata_labels(filters.get("metadata") or {}) + tag_labels(filters.get("tags", ())),
        created=_between(
            now, "created", filters.get("created_after"), filters.get("created_before")
        ),
        updated=_between(
            now, "updated", filters.get("updated_after"), filters.get("updated_before")
        ),
        waits=waits,
        pinned=pinned,
        size=size,
        origin=None if origin is None else validation.thread_id(origin),
    )


def _states(value: str | Iterable[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    found = (value,) if isinstance(value, str) else tuple(value)
    for one in found:
        if one not in tuple(ThreadStatus):
            raise invalid("state", one, f"States are {', '.join(ThreadStatus)}.")
    return tuple(dict.fromkeys(map(str, found)))


def _between(
    now: int, name: str, after: When | None, before: When | None
) -> tuple[int | None, int | None]:
    return _moment(f"{name}_after", after, now), _moment(f"{name}_before", before, now)


def _moment(name: str, value: When | None, now: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, timedelta):
        return now - value // MICROSECOND
    if not isinstance(value, datetime) or value.tzinfo is None:
        hint = "Use a datetime with a time zone, or a timedelta: how long ago."
        raise invalid(name, value, hint)
    return micros(value)


# -- labels and ttl ------------------------------------------------------------------


def tag_labels(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the labels of tags."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise invalid("tags", tags, "Use a list of texts, for a single one too.")
    return tuple(dict.fromkeys([_label("tag", thread_entry.tag_label, _tag(tag)) for tag in tags]))


def _tag(value: object) -> str:
    if not (text := validation.text("tag", value)):
        raise invalid("tag", value, "Use a text of a character or more.")
    return text


def mark_labels(at: CheckpointRef, tags: Iterable[str] | None) -> tuple[str, ...]:
    """Return the labels of a checkpoint's tags, or (None) of its pin."""
    id = at.id or ""
    if tags is None:
        return (_label("pin", thread_entry.mark_label, at.ns, id),)
    found = [_label("tag", thread_entry.mark_label, at.ns, id, _tag(tag)) for tag in tags]
    return tuple(dict.fromkeys(found))


def metadata_labels(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the labels of metadata."""
    if not validation.is_mapping(metadata):
        raise invalid("metadata", metadata, 'Use a dict, such as {"user_id": "u1"}.')
    names = [validation.text("key of metadata", key) for key in metadata]
    return tuple(
        [
            _label(f"metadata[{name!r}]", thread_entry.metadata_label, name, value)
            for name, value in zip(names, metadata.values(), strict=True)
        ]
    )


def _label(what: str, make: Callable[..., str], *parts: Any) -> str:
    try:
        return make(*parts)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidArgumentError(
            f"Invalid {what}: {error}.",
            hint="Use JSON values without NUL characters, of at most"
            f" {thread_entry.MAX_LABEL_BYTES} bytes with their key;"
            " larger ones belong into the state.",
        ) from None


def checked_labels(found: Iterable[str], name: str) -> tuple[str, ...]:
    """Return all labels of a thread, if they are not too many."""
    together = tuple(sorted({thread_entry.label_prefix(label): label for label in found}.values()))
    own = [
        one
        for one in together
        if thread_entry.is_mark_label(one) or not thread_entry.is_record_label(one)
    ]
    if len(own) > thread_entry.MAX_LABELS:
        raise InvalidArgumentError(
            f"A thread has at most {thread_entry.MAX_LABELS} tags and pieces of metadata,"
            " with the tags and pins of its checkpoints.",
            thread=name,
        )
    return together


def microseconds(value: timedelta | float | None) -> int | None:
    """Return a ttl in microseconds."""
    return None if value is None else duration("ttl", value) // MICROSECOND


# -- pages ---------------------------------------------------------------------------


def page(query: ThreadQuery, order: OrderName, limit: int, cursor: str | None) -> SearchThreads:
    """Return the search for one page."""
    name = _ORDERS.get(order.removeprefix("-")) if isinstance(order, str) else None
    if name is None:
        hint = f"Orders are {', '.join(_ORDERS)}, and these with a minus."
        raise invalid("order", order, hint)
    if type(limit) is not int or not 1 <= limit <= MOST:
        raise invalid("limit", limit, f"Use 1 to {MOST}, and go on by cursor.")
    after = None if cursor is None else _after(cursor, order)
    return SearchThreads(query, name, order.startswith("-"), after, limit)


def cursor_after(entry: ThreadEntry, order: OrderName) -> str:
    """Return the cursor behind an entry."""
    place = [order, getattr(entry, _ORDERS[order.removeprefix("-")]), entry.thread]
    return urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def _after(cursor: object, order: str) -> tuple[int | str, str]:
    kind: type = str if order.removeprefix("-") == "thread" else int
    try:
        text = validation.text("cursor", cursor)
        own, value, name = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        is_ours = own == order and type(value) is kind and type(name) is str
    except (ValueError, TypeError):
        is_ours = False
    if not is_ours:
        hint = "Use the cursor of the page before, with the same order."
        raise invalid("cursor", cursor, hint)
    return value, name


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
    labels = metadata_labels(metadata or {}) + tag_labels(tags)
    labels, rest = checked_labels(labels, name), microseconds(ttl)
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
    removed = metadata_labels({k: v for k, v in metadata.items() if v is None})
    added = metadata_labels({k: v for k, v in metadata.items() if v is not None})
    rest = microseconds(ttl) if ttl else None

    def updated(entry: ThreadEntry) -> ThreadEntry:
        gone = set(map(label_prefix, removed))
        stay = [label for label in entry.labels if label_prefix(label) not in gone]
        labels = checked_labels((*stay, *added), entry.thread)
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
        return _labelled(engine, thread, tag_labels(tags), add=add)
    place = validation.place(validation.thread_id(thread), ns, checkpoint)
    return _labelled(engine, thread, mark_labels(place, tags), place, add=add)


def pin(
    engine: Engine, thread: str, checkpoint: str | None, ns: str, *, pinned: bool
) -> Operation[ThreadInfo]:
    """See `Threads.pin` and `Threads.unpin`."""
    if checkpoint is None:
        return _changed(engine, thread, lambda entry: entry._replace(pinned=pinned))
    place = validation.place(validation.thread_id(thread), ns, checkpoint)
    return _labelled(engine, thread, mark_labels(place, None), place, add=pinned)


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
        found = checked_labels((*others, *(labels if add else ())), entry.thread)
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
    query = thread_query(engine.now(), **wanted)
    entries = yield from registration.search(page(query, order, limit, cursor))
    more = cursor_after(entries[-1], order) if len(entries) == limit else None
    return ThreadPage(tuple(map(info, entries)), more)


def count(engine: Engine, wanted: Filters) -> Operation[int]:
    """See `Threads.count`."""
    return registration.count(thread_query(engine.now(), **wanted))
