"""Tables of a threadkeep database, and the check that a file is one.

`application_id` marks a file as ours; `user_version` is the version of its tables.

The tables are built for small files (docs/design/0003-sqlite.md): ids are packed (`records`),
columns whose value is 0 are NULL, and rows lie in the primary key's own tree. Columns without
a type keep what is put in, text or bytes. The views show the same rows to people.
"""
# ruff: noqa: S608 - texts are put together from constants of this package only

from __future__ import annotations

from typing import TYPE_CHECKING

from threadkeep.backends.sqlite import records
from threadkeep.engine.thread_entry import ThreadStatus
from threadkeep.errors import NewerDatabaseError, NotOursError

if TYPE_CHECKING:
    import sqlite3

APPLICATION_ID = 0x74686B70  # "thkp", as `file` and `PRAGMA application_id` show it
VERSION = 1

TABLES = f"""
CREATE TABLE tk_threads (
    number INTEGER PRIMARY KEY,
    thread TEXT NOT NULL UNIQUE,
    generation INTEGER,
    deleted_at INTEGER,            -- microseconds since 1970; NULL: never
    state TEXT,                    -- NULL: the thread is not in the registry
    created_at INTEGER,
    updated_at INTEGER,
    size INTEGER,
    waits_at,
    revision INTEGER,
    pinned INTEGER,
    ttl INTEGER,
    origin TEXT,
    origin_checkpoint,
    heap INTEGER                   -- tk_heap_segments.thread of its segments; NULL: its own number
);
CREATE TABLE tk_checkpoints (
    thread INTEGER NOT NULL,       -- tk_threads.number, here and below
    ns TEXT NOT NULL,
    id NOT NULL,                   -- packed, as all ids
    parent,
    run INTEGER,
    seen INTEGER,
    flags INTEGER,                 -- 1 free, 2 nested, 4 hidden
    ts NOT NULL,                   -- microseconds since 1970, or text
    source TEXT,                   -- of plain metadata (see metadata.py)
    step INTEGER,
    metadata TEXT,                 -- JSON, where it is not plain
    exact BLOB,
    key_log INTEGER,
    key_pos INTEGER,
    manifest BLOB NOT NULL,
    PRIMARY KEY (thread, ns, id)
) WITHOUT ROWID;
CREATE TABLE tk_writes (
    thread INTEGER NOT NULL,
    ns TEXT NOT NULL,
    checkpoint NOT NULL,
    seq INTEGER NOT NULL,
    run INTEGER,
    seen INTEGER,
    task NOT NULL,
    path TEXT,
    body BLOB NOT NULL,
    PRIMARY KEY (thread, ns, checkpoint, seq)
) WITHOUT ROWID;
CREATE TABLE tk_heap_segments (
    thread INTEGER NOT NULL,       -- whose segments these are, see tk_threads.heap
    log INTEGER NOT NULL,
    start INTEGER NOT NULL,
    count INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (thread, log, start)
) WITHOUT ROWID;
CREATE TABLE tk_labels (
    thread INTEGER NOT NULL,
    beginning TEXT NOT NULL,       -- see engine/labels.py
    label TEXT NOT NULL,           -- JSON: a tag's text, or metadata's key and value
    PRIMARY KEY (thread, beginning)
) WITHOUT ROWID;
CREATE INDEX tk_labels_by_label ON tk_labels (label, thread);
CREATE INDEX tk_threads_by_update ON tk_threads (updated_at, thread)
    WHERE state <> '{ThreadStatus.DELETED}';
CREATE INDEX tk_threads_by_creation ON tk_threads (created_at, thread)
    WHERE state <> '{ThreadStatus.DELETED}';
CREATE INDEX tk_threads_by_state ON tk_threads (state, updated_at, thread);
CREATE INDEX tk_threads_by_origin ON tk_threads (origin) WHERE origin IS NOT NULL;
CREATE INDEX tk_threads_by_heap ON tk_threads (heap) WHERE heap IS NOT NULL;
CREATE INDEX tk_threads_by_ttl ON tk_threads (ttl) WHERE ttl IS NOT NULL;
"""


def _id_text(column: str) -> str:
    """SQL that shows a packed id as text (see `ids.unpack_id`)."""
    digits = f"lower(hex({column}))"
    places = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
    uuid = " || '-' || ".join(f"substr({digits}, {at}, {size})" for at, size in places)
    return (
        f"CASE WHEN typeof({column}) <> 'blob' THEN {column}"
        f" WHEN length({column}) = 16 THEN {uuid}"
        f" ELSE CAST(substr({column}, 17) AS TEXT) END"
    )


def _time_text(column: str) -> str:
    """SQL that shows microseconds since 1970 as ISO text."""
    seconds = f"strftime('%Y-%m-%dT%H:%M:%S', {column} / 1000000, 'unixepoch')"
    return (
        f"CASE WHEN typeof({column}) = 'integer'"
        f" THEN {seconds} || printf('.%06d+00:00', {column} % 1000000) ELSE {column} END"
    )


# The label's text between the key and the closing bracket.
_VALUE = "substr(l.label, length(l.beginning) + 4, length(l.label) - length(l.beginning) - 4)"

VIEWS = f"""
CREATE VIEW threads AS SELECT
    t.thread AS thread_id,
    (SELECT count(*) FROM tk_checkpoints c WHERE c.thread = t.number) AS checkpoints,
    (SELECT count(*) FROM tk_writes w WHERE w.thread = t.number) AS writes,
    (SELECT coalesce(sum(length(s.data)), 0) FROM tk_heap_segments s
        WHERE s.thread = coalesce(t.heap, t.number)) AS segment_bytes,
    {_time_text("t.deleted_at")} AS deleted_at,
    t.state AS state,
    {_time_text("t.created_at")} AS created_at,
    {_time_text("t.updated_at")} AS updated_at,
    coalesce(t.size, 0) AS bytes,
    (SELECT json_group_array(json(l.label)) FROM tk_labels l
        WHERE l.thread = t.number AND substr(l.label, 1, 1) = '"') AS tags,
    (SELECT json_group_object(json_extract(l.label, '$[0]'), json({_VALUE})) FROM tk_labels l
        WHERE l.thread = t.number AND substr(l.label, 1, 1) = '[') AS metadata,
    coalesce(t.pinned, 0) AS pinned,
    t.ttl / 1000000 AS ttl_seconds,
    t.origin AS forked_from,
    {_id_text("t.origin_checkpoint")} AS forked_from_checkpoint,
    {_id_text("t.waits_at")} AS waits_at_checkpoint
FROM tk_threads t;
CREATE VIEW checkpoints AS SELECT
    t.thread AS thread_id,
    c.ns AS checkpoint_ns,
    {_id_text("c.id")} AS checkpoint_id,
    {_id_text("c.parent")} AS parent_checkpoint_id,
    {_time_text("c.ts")} AS ts,
    {records.METADATA} AS metadata,
    coalesce(c.flags & 4, 0) <> 0 AS hidden,
    length(c.manifest) AS manifest_bytes
FROM tk_checkpoints c JOIN tk_threads t ON t.number = c.thread;
CREATE VIEW writes AS SELECT
    t.thread AS thread_id,
    w.ns AS checkpoint_ns,
    {_id_text("w.checkpoint")} AS checkpoint_id,
    w.seq AS seq,
    {_id_text("w.task")} AS task_id,
    coalesce(w.path, '') AS task_path,
    length(w.body) AS bytes
FROM tk_writes w JOIN tk_threads t ON t.number = w.thread;
CREATE VIEW segments AS SELECT
    t.thread AS thread_id,
    s.log AS log,
    s.start AS start,
    s.count AS count,
    length(s.data) AS bytes
FROM tk_heap_segments s JOIN tk_threads t ON coalesce(t.heap, t.number) = s.thread;
"""


def is_ours(db: sqlite3.Connection, path: str) -> bool:
    """Tell whether the database has our tables; False where it is empty.

    Raises:
        NotOursError: it has other tables.
        NewerDatabaseError: its tables are of a later version.
    """
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    if not names and application in (0, APPLICATION_ID):
        return False
    if application != APPLICATION_ID:
        raise _not_ours(path, names)
    if version > VERSION:
        raise NewerDatabaseError(
            f"{path} has tables of version {version}; this release knows version {VERSION}.",
            hint="Upgrade threadkeep: pip install --upgrade threadkeep.",
        )
    return True


def create(db: sqlite3.Connection, path: str) -> None:
    """Make the tables, unless another process has just made them."""
    db.execute("BEGIN")
    try:
        # In an empty file this takes the write lock, and is written with the tables.
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        if not is_ours(db, path):
            for statement in (TABLES + VIEWS).split(";\n"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _not_ours(path: str, names: set[str]) -> NotOursError:
    import shlex  # noqa: PLC0415 - seldom needed

    if {"checkpoints", "writes"} <= names:
        return NotOursError(
            f"{path} is a database of LangGraph's own SQLite saver, not of threadkeep.",
            hint="It is left as it is. Use a file of its own for threadkeep, and bring the threads"
            f" there: threadkeep adopt {shlex.quote(path)} sqlite:///new.db",
        )
    some = ", ".join(sorted(names)[:3]) or "nothing"
    return NotOursError(
        f"{path} is a database of another program: it holds {some}.",
        hint="It is left as it is. Use a file of its own for threadkeep.",
    )
