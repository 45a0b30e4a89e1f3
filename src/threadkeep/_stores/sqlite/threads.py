"""The registry, and counts of the store, as SQL. A thread has an entry if its row has a state."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from threadkeep._core.engine.model import AFTER_OWN, OWN_NS
from threadkeep._core.engine.thread_entry import (
    LARGEST,
    WITH_CHECKPOINTS,
    ThreadEntry,
    ThreadStatus,
    checked,
    is_count,
    is_time,
)
from threadkeep._core.engine.usage import (
    DAY,
    HOUR,
    SAMPLED_ITEMS,
    ItemUsage,
    ReadUsage,
    StoreUsage,
    ThreadUsage,
    hours_of,
)
from threadkeep._stores.records import beyond
from threadkeep._stores.sqlite.records import unpack_any, unpack_tips, wrong_types

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence

    from threadkeep._core.engine.thread_entry import (
        CountThreads,
        ReadEntry,
        SearchThreads,
        ThreadQuery,
    )

_SCATTER = 2**32
_RARE = 5000  # a label that fewer threads have is looked up first

# The fields of a `ThreadEntry` (for its labels the thread's number), and its origin's checkpoint.
_COLUMNS = (
    "t.thread, t.state, t.created_at, t.updated_at, coalesce(t.size, 0), t.number,"
    " coalesce(t.pinned, 0), t.ttl, t.origin, t.waits_at, coalesce(t.deleted_at, 0),"
    " coalesce(t.revision, 0), t.origin_checkpoint"
)
_LABELS = "SELECT label FROM tk_labels WHERE thread = ? ORDER BY label"


# -- the head of a row ---------------------------------------------------------------

HEAP = """
CASE typeof(t.heap) WHEN 'integer' THEN t.heap WHEN 'null' THEN t.number ELSE coalesce((
    SELECT o.heap FROM tk_threads o WHERE o.thread = t.origin AND typeof(o.heap) = 'integer'
), t.number) END"""
"""The heap of a thread; if its number is damaged, the heap of its origin, or its own."""

_HEAD = f"""
SELECT number, generation, deleted_at, coalesce(heap, number), {HEAP}, tips, life
FROM tk_threads t WHERE thread = ?
"""


class ThreadHead(NamedTuple):
    """The part of a thread's own row that is not its entry; `number` is None for a new thread."""

    number: int | None
    generation: int
    deleted_at: int
    heap: int
    tips: tuple[int, ...] = ()
    life: int = 0


def read_thread_head(db: sqlite3.Connection, thread: str, *, skip: bool = False) -> ThreadHead:
    """Read the head of a thread.

    Raises `CorruptionError` for a damaged head. With `skip`, a damaged generation or tombstone is
    0, and a damaged heap is the one of `HEAP`.
    """
    row = db.execute(_HEAD, (thread,)).fetchone()
    if row is None:
        return ThreadHead(None, 0, 0, 0)
    number, generation, deleted_at, heap, life = row[0], row[1] or 0, row[2] or 0, row[3], row[6]
    if not (is_count(generation) and is_time(deleted_at) and type(heap) is type(life or 0) is int):
        if not skip:
            raise wrong_types("tk_threads", thread)
        generation = generation if is_count(generation) else 0
        deleted_at = deleted_at if is_time(deleted_at) else 0
        heap, life = row[4], life if type(life) is int else 0
    return ThreadHead(number, generation, deleted_at, heap, unpack_tips(row[5]), life or 0)


HOLDS_ROWS = """(EXISTS (SELECT 1 FROM tk_checkpoints c WHERE c.thread = t.number)
    OR EXISTS (SELECT 1 FROM tk_writes w WHERE w.thread = t.number)
    OR EXISTS (SELECT 1 FROM tk_heap_segments s WHERE s.thread = coalesce(t.heap, t.number)))"""
"""True for a thread `t` with any row."""


# -- reading -------------------------------------------------------------------------

_ENTRY = f"""
SELECT {_COLUMNS} FROM tk_threads t
WHERE t.thread = ? AND (t.state IS NOT NULL OR t.created_at IS NOT NULL)
"""


def entry(db: sqlite3.Connection, read: ReadEntry) -> ThreadEntry | None:
    """Answer a `ReadEntry`."""
    row = db.execute(_ENTRY, (read.thread,)).fetchone()
    return None if row is None else _entry(db, row)


def before_end_of(prefix: str) -> tuple[str, tuple[str, ...]]:
    """Return a further condition that ends the threads that begin with `prefix`, and its value."""
    end = beyond(prefix)
    return ("", ()) if end is None else (" AND t.thread < ?", (end,))


def search(db: sqlite3.Connection, read: SearchThreads) -> list[ThreadEntry]:
    """Answer a `SearchThreads`."""
    source, conditions, values = _where(db, read.query)
    order, sign = f"t.{read.order}", "<" if read.descending else ">"
    if read.query.prefix and read.order != "thread":
        order = f"+{order}"  # (an index of times would walk through all threads)
    # (a damaged value has no place in the order)
    kinds = "('text')" if read.order == "thread" else "('integer', 'null')"
    conditions += ["typeof(t.thread) = 'text'", f"typeof({order}) IN {kinds}"]
    if read.after is not None:
        conditions.append(f"({order}, t.thread) {sign} (?, ?)")
        values += read.after
    down = " DESC" if read.descending else ""
    sql = (
        f"SELECT {_COLUMNS} FROM {source} WHERE {' AND '.join(conditions)}"
        f" ORDER BY {order}{down}, t.thread{down} LIMIT ?"
    )
    rows = db.execute(sql, (*values, read.limit)).fetchall()
    return [_entry(db, row) for row in rows]


def count(db: sqlite3.Connection, read: CountThreads) -> int:
    """Answer a `CountThreads`."""
    source, conditions, values = _where(db, read.query)
    sql = f"SELECT count(*) FROM {source} WHERE {' AND '.join(conditions)}"
    return int(db.execute(sql, values).fetchone()[0])


def _entry(db: sqlite3.Connection, row: tuple[Any, ...]) -> ThreadEntry:
    *fields, checkpoint = row
    entry: Any = ThreadEntry(*fields)
    if type(entry.thread) is not str:
        raise wrong_types("tk_threads")
    return checked(
        entry._replace(
            labels=tuple([label for (label,) in db.execute(_LABELS, (entry.labels,))]),
            pinned=bool(entry.pinned) if entry.pinned in (0, 1) else entry.pinned,
            origin=None if entry.origin is None else (entry.origin, unpack_any(checkpoint)),
            waits_at=unpack_any(entry.waits_at),
        )
    )


_WITH_LABEL = "(SELECT count(*) FROM (SELECT 1 FROM tk_labels WHERE label = ? LIMIT ?))"
_HAS_LABEL = "EXISTS (SELECT 1 FROM tk_labels l WHERE l.thread = t.number AND l.label = ?)"


def _where(db: sqlite3.Connection, query: ThreadQuery) -> tuple[str, list[str], list[Any]]:
    """Return the tables to search, the conditions, and their parameters.

    SQLite cannot know how frequent a label is. With a rare label, start from the label's threads;
    otherwise walk through the threads in the order of the search and check their labels.
    """
    labels = list(query.labels)
    rarest = _rare(db, labels)
    source, terms = "tk_threads t", list(_conditions(query))
    if query.prefix:
        end, last = before_end_of(query.prefix)
        terms.insert(0, (f"t.thread >= ?{end}", (query.prefix, *last)))
    if rarest is not None:
        labels.remove(rarest)
        source = "tk_labels f CROSS JOIN tk_threads t"
        terms.insert(0, ("f.label = ? AND t.number = f.thread", (rarest,)))
    terms += [(_HAS_LABEL, (label,)) for label in labels]
    return source, [term for term, _ in terms], [value for _, some in terms for value in some]


def _rare(db: sqlite3.Connection, labels: Sequence[str]) -> str | None:
    """Return the label of the fewest threads if it is rare."""
    counts = {one: db.execute(f"SELECT {_WITH_LABEL}", (one, _RARE)).fetchone() for one in labels}
    rarest = min(counts, key=counts.__getitem__, default=None)
    return rarest if rarest is not None and counts[rarest] < (_RARE,) else None


def _conditions(query: ThreadQuery) -> Iterator[tuple[str, tuple[Any, ...]]]:
    if query.states:  # (an index of states would walk through all threads)
        places = ", ".join("?" * len(query.states))
        yield f"{'+' * bool(query.prefix)}t.state IN ({places})", query.states
    else:
        yield f"t.state <> '{ThreadStatus.DELETED}'", ()
    for column, (first, last) in (("created_at", query.created), ("updated_at", query.updated)):
        if first is not None:
            yield f"t.{column} >= ?", (first,)
        if last is not None:
            yield f"t.{column} < ?", (last,)
    if query.waits is not None:
        yield f"t.waits_at IS {'NOT ' if query.waits else ''}NULL", ()
    if query.pinned is not None:
        yield f"t.pinned IS {'NOT ' if query.pinned else ''}NULL", ()
    if query.size is not None:
        yield "coalesce(t.size, 0) >= ?", (query.size,)
    if query.origin is not None:
        yield "t.origin = ?", (query.origin,)
    if query.rested is not None:
        yield "t.ttl IS NOT NULL AND t.updated_at + t.ttl < ?", (query.rested,)


# -- counts of the store -------------------------------------------------------------

# (compared in this way, a damaged id, a BLOB, is left out; `substr` takes twice as long)
_IS_USED = f"""t.state IN {WITH_CHECKPOINTS}
    AND (t.thread < '{OWN_NS}' OR t.thread >= '{AFTER_OWN}' AND t.thread < x'')
    AND typeof(t.updated_at) = 'integer' AND coalesce(t.size, 0) BETWEEN -{LARGEST} AND {LARGEST}"""
# (counting every row, then threadkeep's own, is quicker than leaving these out)
_ROWS = f"""(SELECT count(*) FROM {{0}}) - (
    SELECT count(*) FROM tk_threads o JOIN {{0}} r ON r.thread = o.number
    WHERE o.thread >= '{OWN_NS}' AND o.thread < '{AFTER_OWN}')"""
# (NOT INDEXED: an index would read the rows of nearly all threads, in another order than its own)
TOTALS = f"""
SELECT (SELECT page_count * page_size FROM pragma_page_count, pragma_page_size),
    count(*), coalesce(sum(t.size), 0),
    {_ROWS.format("tk_checkpoints")}, {_ROWS.format("tk_writes")},
    coalesce(sum(t.updated_at < :idle_since), 0),
    coalesce(sum(iif(t.updated_at < :idle_since, t.size, 0)), 0)
FROM tk_threads t NOT INDEXED WHERE {_IS_USED}
"""
_WRITES = "(SELECT count(*) FROM tk_writes w WHERE w.thread = t.number)"
_IS_RECENT = "c.ts >= :since AND typeof(c.ts) = 'integer'"
# The hours (their number, checkpoints and bytes), and the busiest threads.
# (a save may leave its thread's `updated_at` up to a second old)
ACTIVITY = f"""
WITH recent AS MATERIALIZED (
    SELECT t.number, t.thread, coalesce(t.size, 0) AS size, count(*) AS rows,
        sum({_IS_RECENT}) AS recent, t.updated_at
    FROM tk_threads t NOT INDEXED CROSS JOIN tk_checkpoints c
    WHERE t.updated_at >= :since - 1000000 AND {_IS_USED} AND c.thread = t.number
    GROUP BY t.number
)
SELECT NULL, (c.ts - :since) / {HOUR} AS hour, count(*), total(t.size * 1.0 / t.rows), NULL, NULL
FROM recent t CROSS JOIN tk_checkpoints c
WHERE t.recent AND c.thread = t.number AND {_IS_RECENT} GROUP BY hour
UNION ALL
SELECT * FROM (
    SELECT t.thread, t.size, t.rows, {_WRITES}, t.recent, t.updated_at FROM recent t
    WHERE t.recent ORDER BY t.recent DESC, t.thread LIMIT :most
)
"""
_SOME = f"""
SELECT t.thread, coalesce(t.size, 0),
    (SELECT count(*) FROM tk_checkpoints c WHERE c.thread = t.number), {_WRITES},
    (SELECT count(*) FROM tk_checkpoints c WHERE c.thread = t.number AND {_IS_RECENT}),
    t.updated_at
FROM tk_threads t NOT INDEXED WHERE {{which}} {_IS_USED} ORDER BY {{order}} LIMIT :most
"""
MOST_BYTES = _SOME.format(which="", order="t.size DESC, t.thread")
# (the multiplication scatters the numbers, which grow with time)
_SCATTERED = f"(t.number * 2654435761 % {_SCATTER})"
SAMPLE = _SOME.format(which=f"{_SCATTERED} < :below AND", order=_SCATTERED)
# The tables of items and cached results exist once a store or a cache was opened.
_TABLE_NAMES = "SELECT name FROM sqlite_master WHERE type = 'table'"
_ITEMS = """
SELECT (SELECT count(*) FROM tk_items),
    (SELECT count(*) FROM tk_items WHERE expires <= ?),
    (SELECT count(*) FROM tk_items WHERE pending IS NOT NULL),
    (SELECT count(*) FROM tk_item_vectors),
    (SELECT length(vector) FROM tk_item_vectors LIMIT 1)
"""
_BYTES = """
SELECT (SELECT total(length(CAST(value AS BLOB))) FROM tk_items)
    + (SELECT total(length(patch)) FROM tk_item_versions)
"""
# (`count` rows, spread evenly over all numbers)
_MEAN_BYTES = """
WITH RECURSIVE ends (first, last) AS (SELECT min(number), max(number) FROM tk_items),
    spread (at) AS (
        SELECT first FROM ends
        UNION ALL SELECT at + max((last - first) / :count, 1) FROM spread, ends
        WHERE at + max((last - first) / :count, 1) <= last)
SELECT avg(
    length(CAST(i.value AS BLOB))
    + (SELECT total(length(patch)) FROM tk_item_versions v WHERE v.ns = i.ns AND v.key = i.key))
FROM spread CROSS JOIN tk_items i
WHERE i.number = (SELECT number FROM tk_items WHERE number >= at ORDER BY number LIMIT 1)
"""
_ENTRIES = "SELECT count(*), total(size) FROM tk_cache WHERE size > 0"
_INDEX = re.compile(r"CREATE INDEX (\w+)[^;]*")


def usage(db: sqlite3.Connection, read: ReadUsage) -> StoreUsage:
    """Answer a `ReadUsage`."""
    values = {**read._asdict(), "since": read.now - DAY}
    totals = db.execute(TOTALS, values).fetchone()
    largest = _threads(db.execute(MOST_BYTES, values))
    active = db.execute(ACTIVITY, values).fetchall()
    hours = hours_of([row[1:4] for row in active if row[0] is None])
    busiest = _threads([row for row in active if row[0] is not None])
    sample = _sample(db, values)
    parts: list[Any] = [hours, largest, busiest, sample, _missing(db)]
    return StoreUsage(*totals, *parts)


def _threads(rows: Iterable[tuple[Any, ...]]) -> tuple[ThreadUsage, ...]:
    return tuple([ThreadUsage(*row) for row in rows])


def _sample(db: sqlite3.Connection, values: dict[str, int]) -> tuple[ThreadUsage, ...]:
    """Return the threads with the smallest scattered numbers."""
    most = values["most"]
    (last,) = db.execute("SELECT coalesce(max(number), 1) FROM tk_threads").fetchone()
    # (first among some five times as many as wanted, which need not be compared with all others)
    for below in (_SCATTER * most * 5 // last, _SCATTER):
        found = _threads(db.execute(SAMPLE, {**values, "below": below}))
        if len(found) == most or below >= _SCATTER:
            break
    return found


def item_usage(db: sqlite3.Connection, now: int) -> ItemUsage:
    """Count items and cached results. See `Backend.item_usage`."""
    tables = {name for (name,) in db.execute(_TABLE_NAMES)}
    found = ItemUsage()
    if "tk_items" in tables:
        items, expired, waiting, vectors, length = db.execute(_ITEMS, (now,)).fetchone()
        is_sampled = items > SAMPLED_ITEMS
        if is_sampled:
            (mean,) = db.execute(_MEAN_BYTES, {"count": SAMPLED_ITEMS}).fetchone()
            size = mean * items
        else:
            (size,) = db.execute(_BYTES).fetchone()
        found = ItemUsage(items, round(size), expired, waiting, vectors * (length or 0))
        found = found._replace(items_sampled=is_sampled)
    if "tk_cache" in tables:
        entries, held = db.execute(_ENTRIES).fetchone()
        found = found._replace(cache_entries=entries, cache_bytes=round(held))
    return found


def _missing(db: sqlite3.Connection) -> tuple[str, ...]:
    schema = Path(__file__).with_name("schema.sql").read_text("utf-8")
    there = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    wanted = [(found[1], found[0]) for found in _INDEX.finditer(schema)]
    return tuple([" ".join(text.split()) for name, text in wanted if name not in there])
