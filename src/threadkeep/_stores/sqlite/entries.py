"""The registry as SQL; a thread has an entry where its row has a state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from threadkeep._core.engine.thread_entry import (
    ThreadEntry,
    ThreadStatus,
    checked,
    is_count,
    is_time,
    label_prefix,
)
from threadkeep._stores.sqlite.records import pack_id, unpack_any, wrong_types

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

    from threadkeep._core.engine.model import CopyThread
    from threadkeep._core.engine.thread_entry import (
        CountThreads,
        ReadEntry,
        SearchThreads,
        ThreadQuery,
    )

_RARE = 5000  # threads with a label; so few are looked at one by one

_COLUMNS = (
    "t.thread, t.number, t.state, t.created_at, t.updated_at, t.size, t.pinned, t.ttl,"
    " t.origin, t.origin_checkpoint, t.waits_at, t.deleted_at, t.revision"
)
_LABELS = "SELECT label FROM tk_labels WHERE thread = ? ORDER BY label"


# -- the head of a row ---------------------------------------------------------------

HEAP = """
CASE typeof(t.heap) WHEN 'integer' THEN t.heap WHEN 'null' THEN t.number ELSE coalesce((
    SELECT o.heap FROM tk_threads o WHERE o.thread = t.origin AND typeof(o.heap) = 'integer'
), t.number) END"""
"""The heap of a thread; if that number is damaged, the one of its origin, or its own."""

_HEAD = f"""
SELECT number, generation, deleted_at, coalesce(heap, number), {HEAP}
FROM tk_threads t WHERE thread = ?
"""


class ThreadHead(NamedTuple):
    """The part of a thread's own row that is no entry.

    `number` is None where it has none yet. `heap` is its segments'.
    """

    number: int | None
    generation: int
    deleted_at: int
    heap: int


_NO_HEAD = ThreadHead(None, 0, 0, 0)


def read_thread_head(db: sqlite3.Connection, thread: str, *, skip: bool = False) -> ThreadHead:
    """Look the thread up by its id. With `skip`, a damaged generation or tombstone is 0.

    A damaged heap is then the one that `HEAP` gives.

    Raises `CorruptionError`.
    """
    row = db.execute(_HEAD, (thread,)).fetchone()
    if row is None:
        return _NO_HEAD
    number, generation, deleted_at, heap = row[0], row[1] or 0, row[2] or 0, row[3]
    if not (is_count(generation) and is_time(deleted_at) and type(heap) is int):
        if not skip:
            raise wrong_types("tk_threads", thread)
        generation = generation if is_count(generation) else 0
        deleted_at = deleted_at if is_time(deleted_at) else 0
        heap = row[4]
    return ThreadHead(number, generation, deleted_at, heap)


# -- reading -------------------------------------------------------------------------

_ENTRY = f"""
SELECT {_COLUMNS} FROM tk_threads t
WHERE t.thread = ? AND (t.state IS NOT NULL OR t.created_at IS NOT NULL)
"""


def entry(db: sqlite3.Connection, read: ReadEntry) -> ThreadEntry | None:
    """The reply to a `ReadEntry`."""
    row = db.execute(_ENTRY, (read.thread,)).fetchone()
    return None if row is None else _entry(db, row)


def search(db: sqlite3.Connection, read: SearchThreads) -> list[ThreadEntry]:
    """The reply to a `SearchThreads`."""
    source, conditions, values = _where(db, read.query)
    order, sign = f"t.{read.order}", "<" if read.descending else ">"
    # (one that is damaged has no place in the order)
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
    """The reply to a `CountThreads`."""
    source, conditions, values = _where(db, read.query)
    sql = f"SELECT count(*) FROM {source} WHERE {' AND '.join(conditions)}"
    return int(db.execute(sql, values).fetchone()[0])


def _entry(db: sqlite3.Connection, row: tuple[Any, ...]) -> ThreadEntry:
    thread, number, state, created_at, updated_at, size, pinned, ttl, *rest = row
    origin, origin_checkpoint, waits_at, deleted_at, revision = rest
    if type(thread) is not str:
        raise wrong_types("tk_threads")
    entry = ThreadEntry(
        thread=thread,
        state=state,
        created_at=created_at,
        updated_at=updated_at,
        size=0 if size is None else size,
        labels=tuple([label for (label,) in db.execute(_LABELS, (number,))]),
        pinned=bool(pinned) if pinned in (None, 0, 1) else pinned,
        ttl=ttl,
        origin=None if origin is None else (origin, unpack_any(origin_checkpoint)),
        waits_at=unpack_any(waits_at),
        deleted_at=0 if deleted_at is None else deleted_at,
        revision=0 if revision is None else revision,
    )
    return checked(entry)


_WITH_LABEL = "(SELECT count(*) FROM (SELECT 1 FROM tk_labels WHERE label = ? LIMIT ?))"
_HAS_LABEL = "EXISTS (SELECT 1 FROM tk_labels l WHERE l.thread = t.number AND l.label = ?)"


def _where(db: sqlite3.Connection, query: ThreadQuery) -> tuple[str, list[str], list[Any]]:
    """Return the tables to search, the conditions, and the values for their parameters.

    From a rare label SQLite goes to the threads; a common one is looked for in each thread,
    in the order that is asked for, until there are enough. It cannot know by itself which.
    """
    labels = list(query.labels)
    rarest = _rare(db, labels)
    source, terms = "tk_threads t", list(_conditions(query))
    if rarest is not None:
        labels.remove(rarest)
        source = "tk_labels f CROSS JOIN tk_threads t"
        terms.insert(0, ("f.label = ? AND t.number = f.thread", (rarest,)))
    terms += [(_HAS_LABEL, (label,)) for label in labels]
    return source, [term for term, _ in terms], [value for _, some in terms for value in some]


def _rare(db: sqlite3.Connection, labels: Sequence[str]) -> str | None:
    """The label that fewest threads have, if they are few."""
    counts = {one: db.execute(f"SELECT {_WITH_LABEL}", (one, _RARE)).fetchone() for one in labels}
    rarest = min(counts, key=counts.__getitem__, default=None)
    return rarest if rarest is not None and counts[rarest] < (_RARE,) else None


def _conditions(query: ThreadQuery) -> Iterator[tuple[str, tuple[Any, ...]]]:
    if query.states:
        yield f"t.state IN ({', '.join('?' * len(query.states))})", query.states
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


# -- setting -------------------------------------------------------------------------

_IS_NEW = f"coalesce(state, '{ThreadStatus.DELETED}') = '{ThreadStatus.DELETED}'"
_SET = f"""
UPDATE tk_threads SET
    created_at = iif({_IS_NEW}, :created_at, created_at),
    updated_at = iif({_IS_NEW}, :updated_at, updated_at),
    waits_at = iif({_IS_NEW}, :waits_at, waits_at),
    size = coalesce(size, 0), state = :state, pinned = :pinned, ttl = :ttl, origin = :origin,
    origin_checkpoint = :origin_checkpoint, revision = coalesce(revision, 0) + 1
WHERE number = :number
"""
_DROP_LABELS = "DELETE FROM tk_labels WHERE thread = ?"
_ADD_LABEL = "INSERT OR REPLACE INTO tk_labels (thread, beginning, label) VALUES (?, ?, ?)"


def replace_entry(db: sqlite3.Connection, number: int, entry: ThreadEntry) -> None:
    """Let the thread be registered so; see `Batch.entry`."""
    origin, checkpoint = entry.origin or (None, None)
    columns = {
        "number": number,
        "origin": origin,
        "origin_checkpoint": None if checkpoint is None else pack_id(checkpoint),
        "waits_at": None if entry.waits_at is None else pack_id(entry.waits_at),
        "pinned": 1 if entry.pinned else None,
    }
    db.execute(_SET, {**entry._asdict(), **columns})
    db.execute(_DROP_LABELS, (number,))
    rows = [(number, label_prefix(label), label) for label in entry.labels]
    db.executemany(_ADD_LABEL, rows)


_REVISION = "SELECT revision FROM tk_threads WHERE number = ? AND state IS NOT NULL"


def revision(db: sqlite3.Connection, number: int) -> int:
    """The revision of a thread's entry; 0 without one."""
    row = db.execute(_REVISION, (number,)).fetchone()
    return int(row[0] or 0) if row else 0


_RAISE_REVISION = """
UPDATE tk_threads SET revision = coalesce(revision, 0) + 1
WHERE number = ? AND state IS NOT NULL
"""


def raise_revision(db: sqlite3.Connection, number: int) -> None:
    """Let an entry that was read before not be taken for the present one."""
    db.execute(_RAISE_REVISION, (number,))


_FORGET = f"""
UPDATE tk_threads SET
    state = CASE WHEN :now THEN '{ThreadStatus.DELETED}' END, created_at = nullif(:now, 0),
    updated_at = nullif(:now, 0), size = NULL, waits_at = NULL, pinned = NULL, ttl = NULL,
    origin = NULL, origin_checkpoint = NULL, revision = coalesce(revision, 0) + 1
WHERE number = :number
"""


def forget(db: sqlite3.Connection, number: int, now: int) -> None:
    """Let the registry say that the thread was deleted, or (`now` 0) nothing."""
    db.execute(_FORGET, {"number": number, "now": now})
    db.execute(_DROP_LABELS, (number,))


_COPY = """
UPDATE tk_threads SET
    (state, created_at, updated_at, size, waits_at, ttl) = (
        SELECT s.state, iif(s.state IS NULL, NULL, :now), iif(s.state IS NULL, NULL, :now), s.size,
            s.waits_at, coalesce(tk_threads.ttl, s.ttl)
        FROM tk_threads s WHERE s.number = :source),
    revision = coalesce(revision, 0) + 1
WHERE number = :target
"""
_COPY_LABELS = """
INSERT OR IGNORE INTO tk_labels (thread, beginning, label)
SELECT ?, beginning, label FROM tk_labels WHERE thread = ?
"""


def copy_entry(db: sqlite3.Connection, source: int, target: int, change: CopyThread) -> None:
    """Register a copy; see `CopyThread`."""
    db.execute(_COPY, {"source": source, "target": target, "now": change.now})
    db.execute(_COPY_LABELS, (target, source))
