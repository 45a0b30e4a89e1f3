"""Create, find and change the entries of threads, and their public records.

The records hold plain values, which JSON can hold too (`as_json`).
"""

from __future__ import annotations

import json
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, TypeAlias, TypedDict, overload

from threadkeep._core import policies as policy
from threadkeep._core import validation
from threadkeep._core.engine import registration, thread_entry
from threadkeep._core.engine.cold_references import archive_of
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.model import OWN_NS
from threadkeep._core.engine.operation import CheckpointRef, Fetch, Operation
from threadkeep._core.engine.thread_entry import (
    REPAIR,
    Lifecycle,
    Mark,
    Order,
    ReadClock,
    ReadEntry,
    SearchThreads,
    ThreadEntry,
    ThreadQuery,
    ThreadStatus,
    is_archived,
    label_prefix,
    sound,
)
from threadkeep._core.policies import RECORD, Retention, check_policy
from threadkeep._core.validation import LONGEST, MICROSECOND, duration
from threadkeep.errors import InvalidArgumentError, ThreadExistsError, invalid

_log = logging.getLogger("threadkeep")

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
    """Filters of threads. All of them must match.

    state: a state, or a list of states to accept. Without it, all threads except deleted ones.
    status: one or a list of done, waiting, failed, unfinished, running and held.
    failed_node: the node that failed last.
    metadata: keys and values to match, compared as JSON (1 is not 1.0).
    tags: tags that the thread must have.
    created_after, updated_after: earliest moment, or how long ago at most.
    created_before, updated_before: latest moment (excluded), or how long ago at least.
    older_than: how long the thread was not updated, in seconds or as a timedelta.
    pinned: True for pinned threads.
    min_bytes: smallest size in bytes.
    forked_from: id of the origin of forks.
    id_prefix: beginning of the threads' ids.
    """

    state: str | Iterable[str] | None
    status: str | Iterable[str] | None
    failed_node: str | None
    metadata: Mapping[str, Any] | None
    tags: Iterable[str]
    created_after: When | None
    created_before: When | None
    updated_after: When | None
    updated_before: When | None
    older_than: timedelta | float | None
    pinned: bool | None
    min_bytes: int | None
    forked_from: str | None
    id_prefix: str


# -- searches ------------------------------------------------------------------------


def search(
    engine: Engine,
    order: OrderName,
    limit: int,
    cursor: str | None,
    wanted: Filters,
    words: tuple[str, ...] = (),
) -> Operation[ThreadPage]:
    field = _ORDERS.get(order.removeprefix("-")) if isinstance(order, str) else None
    if field is None:
        hint = f"Use {', '.join(_ORDERS)}; a minus in front reverses the order."
        raise invalid("order", order, hint)
    if type(limit) is not int or not 1 <= limit <= MOST:
        raise invalid("limit", limit, f"Use 1 to {MOST}, and read the next page by cursor.")
    kind: type = str if field == "thread" else int
    after = None if cursor is None else place_in(cursor, order, kind)
    now = yield from registration.clock()
    query = thread_query(engine.now(), wanted)._replace(now=now, words=words)
    entries = yield from registration.search(
        SearchThreads(query, field, order.startswith("-"), after, limit)
    )
    following = None
    if len(entries) == limit:
        following = cursor_to(order, getattr(entries[-1], field), entries[-1].thread)
    shown = [info(entry, now) for entry in entries if _is_shown(entry)]
    return ThreadPage(tuple(shown), following)


def by_name(engine: Engine, cursor: str | None, wanted: Filters) -> Operation[ThreadPage]:
    """Read the largest page of threads, sorted by id (see `Threads.scan`)."""
    return search(engine, "thread", MOST, cursor, wanted)


def _is_shown(entry: ThreadEntry) -> bool:
    """Return False for threadkeep's own threads and for damaged entries, which are logged."""
    if entry.damage:
        _log.warning("Thread %r is not listed: %s. %s", entry.thread, entry.damage, REPAIR)
    return not entry.damage and not entry.thread.startswith(OWN_NS)


def cursor_to(order: str, key: int | str, thread: str) -> str:
    """Return the cursor of a page in this order that ends with this thread."""
    place = json.dumps([order, key, thread])
    return urlsafe_b64encode(place.encode()).decode().rstrip("=")


def place_in(cursor: object, order: str, *kinds: type) -> tuple[Any, str]:
    """Return the key, of any of these types, and the thread of a cursor for this order."""
    try:
        text = validation.text("cursor", cursor)
        own, key, name = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        is_ours = own == order and type(key) in kinds and type(name) is str
    except (ValueError, TypeError, RecursionError):
        is_ours = False
    if not is_ours:
        hint = "Use the cursor of the previous page, with the same order."
        raise invalid("cursor", cursor, hint)
    return key, name


def count(engine: Engine, wanted: Filters, *, unindexed: bool = False) -> Operation[int]:
    now = yield from registration.clock()
    query = thread_query(engine.now(), wanted)._replace(now=now, unindexed=unindexed)
    return (yield from registration.count(query))


def thread_query(now: int, filters: Filters) -> ThreadQuery:
    """Check filters, and make a query of them."""
    unknown = sorted(filters.keys() - Filters.__annotations__.keys())
    if unknown:
        raise invalid("filter", unknown[0], f"Filters are {', '.join(Filters.__annotations__)}.")
    pinned, node = filters.get("pinned"), filters.get("failed_node")
    if pinned is not None:
        validation.flag("pinned", pinned)
    size, origin = filters.get("min_bytes"), filters.get("forked_from")
    if size is not None and (type(size) is not int or not 0 <= size < LONGEST):
        raise invalid("min_bytes", size, "Use a number of bytes, 0 or more.")

    def moment(name: str) -> int | None:
        return _moment(name, filters.get(name), now)

    before, age = moment("updated_before"), filters.get("older_than")
    if age is not None:
        limit = now - duration("older_than", age) // MICROSECOND
        before = limit if before is None else min(before, limit)
    return ThreadQuery(
        states=_among("state", filters.get("state"), Lifecycle),
        statuses=_among("status", filters.get("status"), ThreadStatus),
        failed_node=None if node is None else validation.text("failed_node", node),
        labels=metadata_labels(filters.get("metadata") or {}) + tag_labels(filters.get("tags", ())),
        created=(moment("created_after"), moment("created_before")),
        updated=(moment("updated_after"), before),
        pinned=pinned,
        size=size,
        origin=None if origin is None else validation.thread_id(origin),
        prefix=validation.text("id_prefix", filters.get("id_prefix", "")),
    )


def _among(name: str, given: object, names: type[StrEnum]) -> tuple[str, ...]:
    """Return the given names, each once. Raises InvalidArgumentError for one that is unknown."""
    wanted = () if given is None else (given,) if isinstance(given, str) else given
    if not isinstance(wanted, Iterable):
        raise invalid(name, given, f"Use one of {', '.join(names)}, or a list of them.")
    found = tuple(dict.fromkeys(map(str, wanted)))
    for one in found:
        if one not in tuple(names):
            raise invalid(name, one, f"Use one of {', '.join(names)}.")
    return found


def _moment(name: str, value: object, now: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, timedelta):
        return now - value // MICROSECOND
    if not isinstance(value, datetime) or value.tzinfo is None:
        hint = "Use a datetime with a time zone, or a timedelta (how long ago)."
        raise invalid(name, value, hint)
    return (value - EPOCH) // MICROSECOND


# -- labels --------------------------------------------------------------------------


def tag_labels(tags: Iterable[str]) -> tuple[str, ...]:
    """Encode tags as labels."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise invalid("tags", tags, "Use a list of texts, even for one tag.")
    return tuple(dict.fromkeys([_label("tag", thread_entry.tag_label, _tag(tag)) for tag in tags]))


def _tag(value: object) -> str:
    if not (text := validation.text("tag", value)):
        raise invalid("tag", value, "Use a text that is not empty.")
    return text


def metadata_labels(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Encode metadata as labels."""
    if not validation.is_mapping(metadata):
        raise invalid("metadata", metadata, 'Use a dict, such as {"user_id": "u1"}.')
    found = []
    for key, value in metadata.items():
        what = f"metadata[{validation.text('key of metadata', key)!r}]"
        found.append(_label(what, thread_entry.metadata_label, key, value))
    return tuple(found)


def _label(what: str, make: Callable[..., str], *parts: Any) -> str:
    try:
        return make(*parts)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidArgumentError(
            f"Invalid {what}: {error}.",
            hint="Use JSON values without NUL characters, of at most"
            f" {thread_entry.MAX_LABEL_BYTES} bytes with their key."
            " Keep larger values in the state.",
        ) from None


def _all_labels(found: Iterable[str], thread: str) -> tuple[str, ...]:
    """Combine a thread's labels, and check their number."""
    together = tuple(sorted({label_prefix(label): label for label in found}.values()))
    is_record, is_mark = thread_entry.is_record_label, thread_entry.is_mark_label
    own = [label for label in together if is_mark(label) or not is_record(label)]
    if len(own) > thread_entry.MAX_LABELS:
        raise InvalidArgumentError(
            f"A thread can have at most {thread_entry.MAX_LABELS} tags and metadata keys,"
            " including the tags and pins of its checkpoints.",
            thread=thread,
        )
    return together


# -- entries -------------------------------------------------------------------------


def create(
    engine: Engine,
    thread: str,
    metadata: Mapping[str, Any] | None,
    tags: Iterable[str],
    ttl: timedelta | float | None,
    *,
    exist_ok: bool,
) -> Operation[ThreadInfo]:
    name = validation.thread_id(thread)
    labels = _all_labels(metadata_labels(metadata or {}) + tag_labels(tags), name)
    idle = None if ttl is None else duration("ttl", ttl) // MICROSECOND
    try:
        return info((yield from registration.create(engine, name, labels, idle)), engine.now())
    except ThreadExistsError:
        entry = (yield from registration.read(name)) if exist_ok else None
        if entry is None:
            raise
        return info(entry, engine.now())


def get(thread: str) -> Operation[ThreadInfo | None]:
    name = validation.thread_id(thread)
    found, now = yield Fetch([ReadEntry(name), ReadClock(name)])
    entry = sound(found)
    return None if entry is None else info(entry, now)


def update(
    engine: Engine, thread: str, metadata: Mapping[str, Any], ttl: timedelta | float | None
) -> Operation[ThreadInfo]:
    removed = set(map(label_prefix, metadata_labels(metadata)))
    added = metadata_labels({k: v for k, v in metadata.items() if v is not None})
    idle = duration("ttl", ttl) // MICROSECOND if ttl else None

    def updated(entry: ThreadEntry) -> ThreadEntry:
        stay = [label for label in entry.labels if label_prefix(label) not in removed]
        labels = _all_labels((*stay, *added), entry.thread)
        return entry._replace(labels=labels, ttl=entry.ttl if ttl is None else idle)

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
    if checkpoint is None:
        return _labelled(engine, thread, tag_labels(tags), add=add)
    at = validation.place(validation.thread_id(thread), ns, checkpoint)
    labels = [_label("tag", thread_entry.mark_label, at.ns, at.id, _tag(tag)) for tag in tags]
    return _labelled(engine, thread, labels, at, add=add)


def pin(
    engine: Engine, thread: str, checkpoint: str | None, ns: str, *, pinned: bool
) -> Operation[ThreadInfo]:
    if checkpoint is None:
        return _changed(engine, thread, lambda entry: entry._replace(pinned=pinned))
    at = validation.place(validation.thread_id(thread), ns, checkpoint)
    label = _label("pin", thread_entry.mark_label, at.ns, at.id)
    return _labelled(engine, thread, [label], at, add=pinned)


def _labelled(
    engine: Engine,
    thread: str,
    labels: Sequence[str],
    at: CheckpointRef | None = None,
    *,
    add: bool,
) -> Operation[ThreadInfo]:
    """Add labels to a thread or an existing checkpoint, or remove them."""

    def labelled(entry: ThreadEntry) -> ThreadEntry:
        others = [label for label in entry.labels if label not in labels]
        found = _all_labels((*others, *(labels if add else ())), entry.thread)
        return entry._replace(labels=found)

    return _changed(engine, thread, labelled, at if add else None)


def _changed(
    engine: Engine,
    thread: str,
    change: Callable[[ThreadEntry], ThreadEntry],
    at: CheckpointRef | None = None,
) -> Operation[ThreadInfo]:
    entry = yield from registration.change(engine, validation.thread_id(thread), change, at)
    return info(entry, engine.now())


def retain(engine: Engine, thread: str, policy: Retention | None) -> Operation[ThreadInfo]:
    if policy is not None and check_policy(policy).max_count is not None:
        raise InvalidArgumentError(
            "max_count limits the threads of a store: one thread cannot have it.",
            hint="Use threads.gc(...).",
        )

    def update(entry: ThreadEntry) -> ThreadEntry:
        labels = thread_entry.without_record(entry.labels, RECORD)
        if policy is not None:
            labels += (thread_entry.record_label(RECORD, policy.as_json()),)
        return entry._replace(labels=tuple(sorted(labels)))

    return _changed(engine, thread, update)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """Entry of a thread in the registry.

    Args:
        id: the thread's id.
        state: the thread's state, such as "active" or "archived".
        created_at, updated_at: times in UTC. `updated_at` may be late by a second.
        bytes: approximate size of the rows and segments in the store.
        metadata: metadata of `create` and `update`, and of the configs of runs.
        tags: tags, sorted.
        pinned: True if retention must not remove anything.
        ttl: idle time after which retention deletes the thread, or None for no limit.
        forked_from: thread and checkpoint that it was forked from.
        status: what the thread's newest checkpoint shows, or None if nothing was saved.
        status_checkpoint: id of the checkpoint at which a task failed or asks, or None.
        failed_node: node that failed last, or None.
        worker: name of the worker whose guard holds the thread, or held it when it died.
        lease_until: end of its lease, or None without one.
        attempts: deaths and failures of guarded runs since the last checkpoint.
        deleted_at: time of the last deletion.
        retention_json: the thread's own retention, if any (see `retention`).
        marks: checkpoints with tags or a pin.
        archived_bytes: size of the archive in the cold store, or None if not archived.
        offloaded_bytes: approximate size of offloaded values. Unused ones count until they are
            removed.
    """

    id: str
    state: Lifecycle
    created_at: datetime
    updated_at: datetime
    bytes: int
    metadata: dict[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    pinned: bool = False
    ttl: timedelta | None = None
    forked_from: tuple[str, str] | None = None
    status: ThreadStatus | None = None
    status_checkpoint: str | None = None
    failed_node: str | None = None
    worker: str | None = None
    lease_until: datetime | None = None
    attempts: int = 0
    deleted_at: datetime | None = None
    retention_json: Mapping[str, Any] | None = None
    marks: tuple[Mark, ...] = ()
    archived_bytes: int | None = None
    offloaded_bytes: int = 0

    @property
    def retention(self) -> Retention | None:
        """The thread's own retention, if any.

        Raises:
            NewerFormatError: a newer release wrote it.
            CorruptionError: it is damaged.
        """
        return None if self.retention_json is None else policy.read(self.retention_json)

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON values: times as ISO 8601 text, the ttl in seconds."""
        data = {one.name: getattr(self, one.name) for one in fields(self)}
        data["retention"] = data.pop("retention_json")
        data["state"], data["status"] = str(self.state), self.status and str(self.status)
        data["ttl"] = None if self.ttl is None else self.ttl.total_seconds()
        for name in ("created_at", "updated_at", "deleted_at", "lease_until"):
            data[name] = None if data[name] is None else data[name].isoformat()
        for name in ("tags", "forked_from"):
            data[name] = None if data[name] is None else list(data[name])
        data["marks"] = [_mark_data(mark) for mark in self.marks]
        return data


def _mark_data(mark: Mark) -> dict[str, Any]:
    place = {"ns": mark.checkpoint_ns, "checkpoint": mark.checkpoint}
    return {**place, "tags": list(mark.tags), "pinned": mark.pinned}


@dataclass(frozen=True, slots=True)
class ThreadPage(Sequence[ThreadInfo]):
    """A sequence of threads, with the `cursor` of the next page (None on the last page)."""

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
        """Return one thread, or several."""
        return self.threads[index]


def info(entry: ThreadEntry, now: int) -> ThreadInfo:
    """Convert an entry to its public record, at the store's time."""
    holder = None if entry.holder is None else thread_entry.worker_of(entry.holder)
    until = None if holder is None else entry.lease_until
    archive = archive_of(entry)
    return ThreadInfo(
        id=entry.thread,
        state=Lifecycle(entry.state),
        created_at=EPOCH + entry.created_at * MICROSECOND,
        updated_at=EPOCH + entry.updated_at * MICROSECOND,
        bytes=max(entry.size, 0),
        metadata=thread_entry.metadata_of(entry.labels),
        tags=thread_entry.tags_of(entry.labels),
        pinned=entry.pinned,
        ttl=None if entry.ttl is None else entry.ttl * MICROSECOND,
        forked_from=entry.origin,
        status=thread_entry.status_of(entry, now),
        status_checkpoint=entry.status_at,
        failed_node=entry.failed_node,
        worker=holder,
        lease_until=None if until is None else EPOCH + until * MICROSECOND,
        attempts=entry.attempts,
        deleted_at=EPOCH + entry.deleted_at * MICROSECOND if entry.deleted_at else None,
        retention_json=thread_entry.find_record(entry.labels, policy.RECORD),
        marks=thread_entry.marks_of(entry.labels),
        archived_bytes=archive.size if archive is not None and is_archived(entry) else None,
        offloaded_bytes=0 if archive is None else max(archive.offloaded, 0),
    )
