"""The tables of a threadkeep database, and whether a file is one.

Only DDL and the check of a file's identity live here. Invariant: a file is ours when
its `application_id` says so; `user_version` is the version of these tables.

Space is the aim (docs/design/0003-sqlite.md): ids are packed (`ids.py`), columns whose
value is 0 are NULL, and rows lie in the primary key's own tree. Columns without a type
keep what is put in, text or bytes. The views show the same rows to people.
"""
# ruff: noqa: S608 - texts are put together from constants of this package only

from __future__ import annotations

from typing import TYPE_CHECKING

from threadkeep.backends.sqlite import metadata
from threadkeep.errors import NewerDatabaseError, NotOursError

if TYPE_CHECKING:
    import sqlite3

APPLICATION_ID = 0x74686B70  # "thkp", as `file` and `PRAGMA application_id` show it
VERSION = 1

TABLES = """
CREATE TABLE tk_threads (
    number INTEGER PRIMARY KEY,
    thread TEXT NOT NULL UNIQUE,
    generation INTEGER,
    deleted_at INTEGER             -- microseconds since 1970; NULL: never
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
CREATE TABLE tk_segments (
    thread INTEGER NOT NULL,
    log INTEGER NOT NULL,
    start INTEGER NOT NULL,
    count INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (thread, log, start)
) WITHOUT ROWID;
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


VIEWS = f"""
CREATE VIEW threads AS SELECT
    t.thread AS thread_id,
    (SELECT count(*) FROM tk_checkpoints c WHERE c.thread = t.number) AS checkpoints,
    (SELECT count(*) FROM tk_writes w WHERE w.thread = t.number) AS writes,
    (SELECT coalesce(sum(length(s.data)), 0) FROM tk_segments s WHERE s.thread = t.number)
        AS segment_bytes,
    {_time_text("t.deleted_at")} AS deleted_at
FROM tk_threads t;
CREATE VIEW checkpoints AS SELECT
    t.thread AS thread_id,
    c.ns AS checkpoint_ns,
    {_id_text("c.id")} AS checkpoint_id,
    {_id_text("c.parent")} AS parent_checkpoint_id,
    {_time_text("c.ts")} AS ts,
    {metadata.TEXT} AS metadata,
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
FROM tk_segments s JOIN tk_threads t ON t.number = s.thread;
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
    db.execute("BEGIN IMMEDIATE")
    try:
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
    if {"checkpoints", "writes"} <= names:
        return NotOursError(
            f"{path} is a database of LangGraph's own SQLite saver, not of threadkeep.",
            hint="Give threadkeep a file of its own; the other one is left as it is.",
        )
    some = ", ".join(sorted(names)[:3]) or "nothing"
    return NotOursError(
        f"{path} is a database of another program: it holds {some}.",
        hint="Give threadkeep a file of its own; the other one is left as it is.",
    )
