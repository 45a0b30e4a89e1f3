"""Rules that several stores apply to records: tips, entries of the registry, segments."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import nlargest, nsmallest
from itertools import chain, groupby
from operator import attrgetter, gt, lt
from os import urandom
from typing import Any, TypeAlias, TypeVar, cast

import ormsgpack

from threadkeep._core.engine import model, thread_summary
from threadkeep._core.engine.heads import NO_LOGS, Head, RowsKey
from threadkeep._core.engine.thread_entry import (
    DUE,
    HELD_UNTIL,
    REPAIR,
    Lifecycle,
    SearchThreads,
    ThreadEntry,
    ThreadQuery,
    status_of,
    wrong_in,
)
from threadkeep.errors import CorruptionError, NotSetUpError, SegmentTakenError

R = TypeVar("R", bound=tuple[Any, ...])  # a record

# -- texts ---------------------------------------------------------------------------


def pack_text(text: str) -> str:
    r"""Replace NUL by `\x01\x01`, and `\x01` by `\x01\x02`: texts sort as before."""
    if text.isprintable() or ("\0" not in text and "\1" not in text):
        return text
    return text.replace("\1", "\1\2").replace("\0", "\1\1")


def unpack_text(stored: str) -> str:
    """Reverse `pack_text`."""
    if "\1" not in stored:
        return stored
    return stored.replace("\1\1", "\0").replace("\1\2", "\1")


def beyond(prefix: str) -> str | None:
    """Return the first text after all that begin with `prefix`, or None if there is none."""
    rest = prefix.rstrip(chr(_LAST))
    if not rest:
        return None
    code = ord(rest[-1]) + 1
    return rest[:-1] + chr(_AFTER_SURROGATES if code == _FIRST_SURROGATE else code)


_LAST, _FIRST_SURROGATE, _AFTER_SURROGATES = 0x10FFFF, 0xD800, 0xE000


# -- tips ----------------------------------------------------------------------------


def tie(changes: Iterable[model.Change]) -> None:
    """Prepare changes that one transaction commits (see `Link`)."""
    tip = new_tip()
    for change in changes:
        link = getattr(change, "link", None)  # (changes of items and results have none)
        if link is not None:
            link.tie(tip)


def confirm(changes: Iterable[model.Change], refusals: Iterable[object]) -> None:
    """Note which changes are committed: those without a refusal."""
    for change, refusal in zip(changes, refusals, strict=True):
        link = getattr(change, "link", None)
        if refusal is None and link is not None:
            link.committed()


def tip_of(change: model.Change) -> int:
    """Return the tip of a change, or a new one if it has none."""
    link = getattr(change, "link", None)
    return new_tip() if link is None or not link.tip else int(link.tip)


def new_tip() -> int:
    """Return a random tip."""
    # (not of `random`, which forked processes and seeds repeat)
    return int.from_bytes(urandom(8), "big") >> 2 or 1


# -- heads ---------------------------------------------------------------------------


COLUMNS = (
    *[name for name in Head._fields if name not in {"number", "lists_all", "gaps"}],
    "origin_checkpoint",
)
"""The columns of a thread's own row, in every store that has columns."""


def columns_of(head: Head) -> dict[str, Any]:
    """Return the values of a head's columns, `logs` packed."""
    columns: dict[str, Any] = dict(zip(Head._fields, head, strict=True))
    columns["logs"] = pack_logs(head)
    columns["origin"], columns["origin_checkpoint"] = head.origin or (None, None)
    return columns


def head_of(columns: dict[str, Any], number: RowsKey) -> Head:
    """Return a head of the values of its columns, damaged ones as they are.

    A missing one has its default. `logs` becomes None if it is damaged.
    """
    origin, checkpoint = columns.get("origin"), columns.pop("origin_checkpoint", None)
    columns["origin"] = None if origin is None else (origin, checkpoint)
    try:
        columns["lists_all"], *flat = ormsgpack.unpackb(columns["logs"] or _NO_LOGS)
        columns["logs"] = dict(zip(flat[::2], flat[1::2], strict=True))
    except (ValueError, TypeError):
        columns["logs"], columns["lists_all"] = None, False
    return Head(number=number, **columns)


_NO_LOGS = ormsgpack.packb([False])


def mended(head: Head, heap: RowsKey, seq: int, newest: str | None) -> Head:
    """Return a damaged head with safe values, except in its entry.

    Args:
        head: the head as it is stored.
        heap: its heap.
        seq: the largest of its writes.
        newest: the greatest id of its checkpoints of the root namespace.
    """
    wrong = wrong_in(head)
    fields: dict[str, Any] = {
        name: new_tip() >> 1 for name in ("generation", "life", "revision") if name in wrong
    }
    if not {"holder", "lease_until", "attempts"}.isdisjoint(wrong):
        fields.update(holder=None, lease_until=DUE, attempts=0)
    if "deleted_at" in wrong:
        fields["deleted_at"] = 0
    fields.update(seq=seq, newest=newest, logs=NO_LOGS, lists_all=False, origin=None)
    return head._replace(heap=heap, **fields)


def pack_logs(head: Head) -> bytes:
    """Pack the logs that a head lists."""
    return ormsgpack.packb([head.lists_all, *chain.from_iterable(head.logs.items())])


def pack_record(record: Head | model.CheckpointRow | model.WriteRow | model.Segment) -> bytes:
    """Pack a record with the names of its fields, for a database of keys and values."""
    fields: dict[str, Any] = dict(zip(record._fields, record, strict=True))
    fields.pop("gaps", None)
    return ormsgpack.packb(fields, option=ormsgpack.OPT_NON_STR_KEYS)


def unpack_record(kind: type[R], data: bytes) -> R:
    """Reverse `pack_record`. Missing fields have their defaults. Damage is a CorruptionError."""
    try:
        found = ormsgpack.unpackb(data, option=ormsgpack.OPT_NON_STR_KEYS)
        fields = {n: tuple(v) if type(v) is list else v for n, v in found.items()}
        return cast("R", cast("Any", kind)(**fields))
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptionError(f"A stored {kind.__name__} is damaged.", hint=REPAIR) from error


# -- segments ------------------------------------------------------------------------


class Log:
    """The segments of one log, which never overlap, and their sorted `starts`. Not locked."""

    __slots__ = ("segments", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.segments: dict[int, model.Segment] = {}

    def put(self, segment: model.Segment) -> bool:
        """Add a segment. False if the same one exists. Raises `SegmentTakenError` on overlap."""
        starts = self.starts
        at = bisect_left(starts, segment.stop)
        last = self.segments[starts[at - 1]] if at else None
        if last is not None and last.stop > segment.start:
            if last == segment:
                return False
            raise SegmentTakenError(f"Log {segment.log} holds other bytes at {segment.start}.")
        self.segments[segment.start] = segment  # first: an interrupt may come between the two
        starts.insert(at, segment.start)
        return True

    def drop(self, start: int, count: int) -> model.Segment | None:
        """Remove and return a segment, or return None if it does not exist."""
        segment = self.segments.get(start)
        if segment is None or segment.count != count:
            return None
        del self.starts[bisect_left(self.starts, start)], self.segments[start]
        return segment

    def has(self, start: int, count: int) -> bool:
        """Return True if this segment exists."""
        segment = self.segments.get(start)
        return segment is not None and segment.count == count

    def between(self, start: int, stop: int) -> Iterator[model.Segment]:
        """Yield the segments that overlap the positions `start <= p < stop`."""
        first = max(bisect_right(self.starts, start) - 1, 0)
        for at in self.starts[first : bisect_left(self.starts, stop)]:
            segment = self.segments[at]
            if segment.stop > start:
                yield segment


def between(logs: dict[int, Log], spans: Iterable[model.Span]) -> list[model.Segment]:
    """Return the segments that overlap the spans, each once, in (log, start) order."""
    found: dict[tuple[int, int], model.Segment] = {}
    for number, start, stop in spans:
        if number in logs and start < stop:
            for segment in logs[number].between(start, stop):
                found[number, segment.start] = segment
    return [found[key] for key in sorted(found)]


# -- the registry --------------------------------------------------------------------


def matches(entry: ThreadEntry, query: ThreadQuery) -> bool:
    """Return True if the entry matches the query."""
    return (
        (entry.state in query.states if query.states else entry.state != Lifecycle.DELETED)
        and set(query.labels) <= set(entry.labels)
        and _is_in_range(entry.created_at, query.created)
        and _is_in_range(entry.updated_at, query.updated)
        and (not query.statuses or status_of(entry, query.now) in query.statuses)
        and (query.due is None or (entry.lease_until or HELD_UNTIL) <= query.due)
        and query.failed_node in (None, entry.failed_node)
        and query.pinned in (None, entry.pinned)
        and (query.size is None or entry.size >= query.size)
        and (query.origin is None or (entry.origin or ("",))[0] == query.origin)
        and (query.rested is None or _has_rested(entry, query.rested))
        and entry.thread.startswith(query.prefix)
    )


def _is_in_range(at: int, limits: tuple[int | None, int | None]) -> bool:
    first, last = limits
    return (first is None or at >= first) and (last is None or at < last)


def _has_rested(entry: ThreadEntry, now: int) -> bool:
    return entry.ttl is not None and entry.updated_at + entry.ttl < now


Term: TypeAlias = tuple[str, Sequence[Any]]
"""A condition of SQL, and its values."""


def terms_of(terms: Iterable[Term]) -> tuple[str, tuple[Any, ...]]:
    """Return terms as one condition, and their values."""
    found = [*terms]
    where = " AND ".join([f"({term})" for term, _ in found]) or "TRUE"
    return where, tuple([value for _, values in found for value in values])


def begins_with(column: str, prefix: str) -> Iterator[Term]:
    """Yield conditions, which a B-tree finds, for a column that begins with `prefix`."""
    for sign, limit in ((">=", prefix), ("<", beyond(prefix))):
        if limit:
            yield f"{column} {sign} %s", (limit,)


def page_terms(column: str, read: model.FindThreads | model.ReadSizes) -> list[Term]:
    """Return the conditions on the threads of a page. `column` has their ids."""
    later: list[Term] = [] if read.after is None else [(f"{column} > %s", (read.after,))]
    return [*later, *begins_with(column, read.prefix)]


def query_terms(query: ThreadQuery) -> list[Term]:
    """Return conditions of SQL on the columns of a thread `t`, with their values.

    All of a query but its states, labels and prefix. `{time}` stands for a parameter that is a
    time, and `{rest}` for the time until which a thread rests.
    """
    (created_from, created_to), (updated_from, updated_to) = query.created, query.updated
    terms = (
        *(("t.created_at >= {time}", created_from), ("t.created_at < {time}", created_to)),
        *(("t.updated_at >= {time}", updated_from), ("t.updated_at < {time}", updated_to)),
        ("(t.pinned IS TRUE) = %s", query.pinned),
        ("t.status = 'failed' AND t.failed_node = %s", query.failed_node),
        ("t.lease_until <= %s", query.due),
        *(("coalesce(t.size, 0) >= %s", query.size), ("t.origin = %s", query.origin)),
        ("t.ttl IS NOT NULL AND {rest} < {time}", query.rested),
    )
    found: list[Term] = [(term, (value,)) for term, value in terms if value is not None]
    if query.statuses:
        found.append((_status_term(query.statuses, query.now), ()))
    return found


def not_indexed() -> NotSetUpError:
    """Return the error of a query for words in a store that has never indexed a message."""
    return NotSetUpError(
        "The store has no index of messages.", hint='Open it with search="messages".'
    )


def is_rare(query: ThreadQuery) -> bool:
    """Return True if few threads match, in no order of an index."""
    return query.due is not None or not _ORDERED.issuperset(query.statuses)


_ORDERED = {"done", "waiting", "failed"}
_WITHOUT_STATUS = ("created", "deleted")


def _status_term(statuses: Collection[str], now: int) -> str:
    """Return a condition on the status, as `status_of` decides it."""
    is_saved = f"t.status IS NULL AND t.state NOT IN {_WITHOUT_STATUS}"
    has_lease = f"(t.lease_until < {HELD_UNTIL} AND (t.lease_until <= {now} OR t.holder IS NULL))"
    is_free = f"(t.lease_until IS NULL OR {has_lease})"
    terms = {
        "done": f"{is_saved} AND t.lease_until IS NULL",
        "running": f"t.lease_until > {now} AND t.holder IS NOT NULL",
        "held": f"t.lease_until = {HELD_UNTIL} AND t.holder IS NULL",
    }
    stored = ", ".join([f"'{one}'" for one in statuses if one not in terms])
    found = [terms[one] for one in statuses if one in terms]
    found += [f"t.status IN ({stored}) AND {is_free}"] if stored else []
    if "unfinished" in statuses:
        found.append(f"{is_saved} AND {has_lease}")
    return " OR ".join([f"({one})" for one in found])


def first_entries(read: SearchThreads, entries: Iterable[ThreadEntry]) -> list[ThreadEntry]:
    """Return the page that a search asks for, of entries that match it."""
    first, is_after = (nlargest, lt) if read.descending else (nsmallest, gt)
    place, after = attrgetter(read.order, "thread"), read.after
    if after is not None:
        entries = [entry for entry in entries if is_after(place(entry), after)]
    return first(read.limit, entries, key=place)


def run_id(row: model.CheckpointRow) -> object:
    """Return the `run_id` in a checkpoint's metadata, or None."""
    return thread_summary.shown(row).get("run_id")


# -- checkpoints ---------------------------------------------------------------------


def first_children(rows: Iterable[model.CheckpointRow]) -> dict[tuple[str, str], model.Child]:
    """Return, by (ns, parent), the first child with a greater id. Rows are in ascending order."""
    children: dict[tuple[str, str], model.Child] = {}
    for row in rows:
        if row.parent is not None and row.id > row.parent:
            children.setdefault((row.ns, row.parent), model.Child(row.id, row.run, row.seen))
    return children


def with_writes(
    thread: str,
    rows: Sequence[model.CheckpointRow],
    keyframes: Iterable[model.Segment | None],
    writes: Iterable[model.WriteRow],
) -> tuple[tuple[model.StoredCheckpoint, ...], tuple[model.WriteRow, ...]]:
    """Return a thread's checkpoints, and the writes without one, all in ascending order."""
    key = attrgetter("ns", "checkpoint_id")
    by_place = {at: tuple(group) for at, group in groupby(writes, key)}
    children = first_children(rows)
    checkpoints = [
        model.StoredCheckpoint(
            thread,
            row,
            keyframe,
            by_place.pop((row.ns, row.id), ()),
            children.get((row.ns, row.id)),
        )
        for row, keyframe in zip(rows, keyframes, strict=True)
    ]
    return tuple(checkpoints), tuple([row for group in by_place.values() for row in group])
