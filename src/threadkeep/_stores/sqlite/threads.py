"""The registry, and counts of the store, as SQL. A thread has an entry if its row has a state."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from threadkeep._core.engine import thread_entry
from threadkeep._core.engine.heads import Head, entry_of
from threadkeep._core.engine.model import AFTER_OWN, OWN_NS
from threadkeep._core.engine.thread_entry import (
    LARGEST,
    WITH_CHECKPOINTS,
    Lifecycle,
    ThreadEntry,
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
from threadkeep._stores.records import (
    Term,
    begins_with,
    is_rare,
    not_indexed,
    query_terms,
    terms_of,
)
from threadkeep._stores.sqlite.records import SELECTED, head_of, read_head

_SCATTER = 2**32
_RARE = 5000  # a label that fewer threads have is looked up first

_LABELS = "SELECT label FROM tk_labels WHERE thread = ?"


HOLDS_ROWS = """(EXISTS (SELECT 1 FROM tk_checkpoints c WHERE c.thread = t.number)
    OR EXISTS (SELECT 1 FROM tk_writes w WHERE w.thread = t.number)
    OR EXISTS (SELECT 1 FROM tk_heap_segments s WHERE s.thread = coalesce(t.heap, t.number)))"""
"""True for a thread `t` with any row."""


# -- reading -------------------------------------------------------------------------


def entry(db: sqlite3.Connection, read: thread_entry.ReadEntry) -> ThreadEntry | None:
    """Answer a `ReadEntry`."""
    return _entry(db, read_head(db, read.thread))


def search(db: sqlite3.Connection, read: thread_entry.SearchThreads) -> list[ThreadEntry]:
    """Answer a `SearchThreads`."""
    source, terms = _source(db, read.query)
    order, sign = f"t.{read.order}", "<" if read.descending else ">"
    if (read.query.prefix or is_rare(read.query)) and read.order != "thread":
        order = f"+{order}"  # (an index of times would walk through all threads)
    # (a damaged value has no place in the order)
    kinds = "('text')" if read.order == "thread" else "('integer', 'null')"
    terms += [("typeof(t.thread) = 'text'", ()), (f"typeof({order}) IN {kinds}", ())]
    if read.after is not None:
        terms.append((f"({order}, t.thread) {sign} (?, ?)", read.after))
    where, values = terms_of(terms)
    down = " DESC" if read.descending else ""
    sql = (
        f"SELECT {SELECTED} FROM {source} WHERE {where}"
        f" ORDER BY {order}{down}, t.thread{down} LIMIT ?"
    )
    rows = db.execute(sql.replace("%s", "?"), (*values, read.limit)).fetchall()
    found = [_entry(db, head_of(row)) for row in rows]
    return [one for one in found if one is not None]


def count(db: sqlite3.Connection, read: thread_entry.CountThreads) -> int:
    """Answer a `CountThreads`."""
    source, terms = _source(db, read.query)
    where, values = terms_of(terms)
    sql = f"SELECT count(*) FROM {source} WHERE {where}".replace("%s", "?")
    return int(db.execute(sql, values).fetchone()[0])


def _entry(db: sqlite3.Connection, head: Head) -> ThreadEntry | None:
    return entry_of(head, labels_of(db, head))


def labels_of(db: sqlite3.Connection, head: Head) -> list[str]:
    """Return the labels of a thread."""
    return [label for (label,) in db.execute(_LABELS, (head.number,))]


_WITH_LABEL = "(SELECT count(*) FROM (SELECT 1 FROM tk_labels WHERE label = ? LIMIT ?))"
_HAS_INDEX = "SELECT 1 FROM sqlite_master WHERE name = 'threadkeep_words'"
_OF_WORDS = "SELECT rowid >> 24 FROM threadkeep_words WHERE threadkeep_words MATCH ?"
_UNINDEXED = f"""(t.number IN (SELECT thread FROM threadkeep_unindexed)
    AND +t.state IN {WITH_CHECKPOINTS})"""
_WITH_WORDS = f"""SELECT count(*) FROM (
    SELECT 1 FROM ({_OF_WORDS.replace("?", ":words")} LIMIT :limit)
    UNION ALL SELECT 1 FROM (SELECT 1 FROM threadkeep_unindexed LIMIT :limit))"""
_HAS_LABEL = "EXISTS (SELECT 1 FROM tk_labels l WHERE l.thread = t.number AND l.label = ?)"


def _source(db: sqlite3.Connection, query: thread_entry.ThreadQuery) -> tuple[str, list[Term]]:
    """Return the tables to search, and the conditions.

    SQLite cannot know how frequent a label or word is. With a rare one, start from its threads, and
    otherwise walk through the threads in the order of the search and check their labels and words.
    """
    if (query.words or query.unindexed) and not db.execute(_HAS_INDEX).fetchone():
        raise not_indexed()
    labels = list(query.labels)
    rarest = _rare(db, labels)
    source, terms = "tk_threads t", [*begins_with("t.thread", query.prefix), *_conditions(query)]
    if query.words:
        terms.append(_word_term(db, query))
    if rarest is not None:
        labels.remove(rarest)
        source = "tk_labels f CROSS JOIN tk_threads t"
        terms.insert(0, ("f.label = ? AND t.number = f.thread", (rarest,)))
    return source, [*terms, *[(_HAS_LABEL, (label,)) for label in labels]]


def _rare(db: sqlite3.Connection, labels: Sequence[str]) -> str | None:
    """Return the label of the fewest threads if it is rare."""
    counts = {one: db.execute(f"SELECT {_WITH_LABEL}", (one, _RARE)).fetchone() for one in labels}
    rarest = min(counts, key=counts.__getitem__, default=None)
    return rarest if rarest is not None and counts[rarest] < (_RARE,) else None


def _word_term(db: sqlite3.Connection, query: thread_entry.ThreadQuery) -> Term:
    words = " ".join([f'"{word}"' for word in query.words])
    is_rare = db.execute(_WITH_WORDS, {"words": words, "limit": _RARE}).fetchone() < (_RARE,)
    term = f"t.number IN ({_OF_WORDS}) OR {_UNINDEXED}"
    return term if is_rare else term.replace("t.number IN", "+t.number IN"), (words,)


def _conditions(query: thread_entry.ThreadQuery) -> Iterator[Term]:
    if query.states:  # (an index of states would walk through all threads)
        places = ", ".join("?" * len(query.states))
        yield f"{'+' * bool(query.prefix)}t.state IN ({places})", query.states
    else:
        yield f"t.state <> '{Lifecycle.DELETED}'", ()
    if query.unindexed:
        yield _UNINDEXED, ()
    for text, values in query_terms(query):
        term = text.replace("{rest}", "t.updated_at + t.ttl").replace("{time}", "?")
        yield term.replace("t.pinned IS TRUE", "t.pinned IS NOT NULL"), values


# -- counts of the store -------------------------------------------------------------

# (compared in this way, a damaged id, a BLOB, is left out. `substr` takes twice as long)
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
    + (SELECT total(length(patch)) FROM tk_item_versions v WHERE v.path = i.path AND v.key = i.key))
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
