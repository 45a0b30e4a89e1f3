"""The index of messages in a SQLite file: changes in the transaction of a move."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from typing import Any

from threadkeep._core.engine.heads import Move
from threadkeep._stores.sqlite.opening import statements, transaction
from threadkeep._stores.sqlite.records import bound_id

# No second copy of the words, in versions of SQLite that can delete without it.
_DELETES = sqlite3.sqlite_version_info >= (3, 43)
CONTENTLESS = ", content = '', contentless_delete = 1" if _DELETES else ""
_OF_THREAD = "SELECT rowid FROM threadkeep_words WHERE rowid >= ?1 << 24 AND rowid < (?1 + 1) << 24"
_LAST = f"{_OF_THREAD} ORDER BY rowid DESC LIMIT 1"
_INDEXED = "DELETE FROM threadkeep_unindexed WHERE thread = ? AND (? OR reach IS ?)"

_VOCABULARY = """
CREATE VIRTUAL TABLE temp.threadkeep_vocabulary USING fts5vocab('main', 'threadkeep_words', 'row')
"""
_IS_THERE = "SELECT 1 FROM sqlite_master WHERE name = 'threadkeep_words'"
_CHECK = "INSERT INTO threadkeep_words (threadkeep_words) VALUES ('integrity-check')"
# (a change that fails within a trigger may have another error)
_OF_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR)
_log = logging.getLogger("threadkeep")


def add(db: sqlite3.Connection, number: int, move: Move) -> None:
    """Add the words of a move whose head is set already. The first ones create the tables."""
    try:
        _add(db, number, move)
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        create(db)
        _add(db, number, move)


def _add(db: sqlite3.Connection, number: int, move: Move) -> None:
    words: Any = move.words
    if words.whole:
        db.execute(f"DELETE FROM threadkeep_words WHERE rowid IN ({_OF_THREAD})", (number,))
    if words.messages:
        last = db.execute(_LAST, (number,)).fetchone()
        first = last[0] + 1 if last else number << 24
        rows = [*enumerate(words.messages, first)]
        db.executemany("INSERT INTO threadkeep_words (rowid, words) VALUES (?, ?)", rows)
    newest = None if move.old.newest is None else bound_id(move.old.newest)
    db.execute(_INDEXED, (number, words.whole, newest))


def is_removed(db: sqlite3.Connection, error: Exception) -> bool:
    """Remove the index if a change failed because it is damaged, and return True.

    Saves and deletions are worth more. All threads count as not indexed then.
    """
    if _code(error) not in _OF_DAMAGE:
        return False
    try:
        with transaction(db):
            if not _is_damaged(db, _CHECK):
                return False
            drop(db)
    except sqlite3.Error:
        return False
    _log.warning("The index of messages was damaged, and is removed. Run threads.index().")
    return True


def _is_damaged(db: sqlite3.Connection, question: str) -> bool:
    """Ask the index. Without one, it is not damaged."""
    try:
        db.execute(question).fetchall()
    except sqlite3.DatabaseError as error:
        return _code(error) == sqlite3.SQLITE_CORRUPT
    return False


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def problems(db: sqlite3.Connection) -> Iterator[str]:
    """Yield a sentence if the index is damaged."""
    (was,) = db.execute("PRAGMA query_only").fetchone()
    try:
        db.execute("PRAGMA query_only = OFF")  # (the table is no part of the file)
        db.execute(_VOCABULARY)
        if _is_damaged(db, "SELECT sum(cnt) FROM temp.threadkeep_vocabulary"):
            yield "the index of messages is damaged: run threadkeep index --again"
        db.execute("DROP TABLE temp.threadkeep_vocabulary")
    except sqlite3.OperationalError:
        pass  # (this SQLite has no FTS5)
    finally:
        db.execute(f"PRAGMA query_only = {was}")


def create(db: sqlite3.Connection) -> None:
    """Create the tables and triggers, if there are none. No thread is indexed then."""
    if not db.execute(_IS_THERE).fetchall():
        for statement in statements("message_words.sql"):
            db.execute(statement.replace("{option}", CONTENTLESS))


def drop(db: sqlite3.Connection) -> None:
    """Remove the tables and triggers."""
    for name in ("begun", "moved", "removed"):
        db.execute(f"DROP TRIGGER IF EXISTS threadkeep_words_{name}")
    for name in ("words", "unindexed"):
        db.execute(f"DROP TABLE IF EXISTS threadkeep_{name}")
