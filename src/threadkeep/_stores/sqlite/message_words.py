"""The index of messages in a SQLite file: changes in the transaction of a move, and reads."""

from __future__ import annotations

import sqlite3
from typing import Any

from threadkeep._core.engine.heads import Move
from threadkeep._core.engine.model import FindUnindexed, FindWords
from threadkeep._stores.records import begins_with, terms_of
from threadkeep._stores.sqlite.opening import statements
from threadkeep._stores.sqlite.records import bound_id

# No second copy of the words, in versions of SQLite that can delete without it.
_DELETES = sqlite3.sqlite_version_info >= (3, 43)
CONTENTLESS = ", content = '', contentless_delete = 1" if _DELETES else ""
_OF_THREAD = "SELECT rowid FROM threadkeep_words WHERE rowid >= ?1 << 24 AND rowid < (?1 + 1) << 24"
_LAST = f"{_OF_THREAD} ORDER BY rowid DESC LIMIT 1"
_INDEXED = "DELETE FROM threadkeep_unindexed WHERE thread = ? AND (? OR reach IS ?)"
_IS_MADE = "SELECT 1 FROM sqlite_master WHERE name = 'threadkeep_words'"
_FOUND = """
SELECT w.rowid, t.thread FROM threadkeep_words w JOIN tk_threads t ON t.number = w.rowid >> 24
WHERE w.threadkeep_words MATCH ? AND w.rowid < ? AND {where} ORDER BY w.rowid DESC LIMIT ?
"""
_UNINDEXED = """
FROM threadkeep_unindexed u JOIN tk_threads t ON t.number = u.thread
WHERE t.state IN ('active', 'forked') AND {where}
"""


def add(db: sqlite3.Connection, number: int, move: Move) -> None:
    """Add the words of a move whose head is set already. The first ones create the tables."""
    try:
        _add(db, number, move)
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        for statement in statements("message_words.sql"):
            db.execute(statement.replace("{option}", CONTENTLESS))
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


def drop(db: sqlite3.Connection) -> None:
    """Remove the tables and triggers."""
    for name in ("begun", "moved", "removed"):
        db.execute(f"DROP TRIGGER IF EXISTS threadkeep_words_{name}")
    for name in ("words", "unindexed"):
        db.execute(f"DROP TABLE IF EXISTS threadkeep_{name}")


def found(db: sqlite3.Connection, read: FindWords) -> list[tuple[int, str]] | None:
    """Answer a `FindWords`."""
    if not db.execute(_IS_MADE).fetchone():
        return None
    where, values = terms_of(begins_with("t.thread", read.prefix))
    words = " ".join(f'"{word}"' for word in read.words)
    after = 2**63 - 1 if read.after is None else read.after
    text = _FOUND.replace("{where}", where.replace("%s", "?"))
    return db.execute(text, (words, after, *values, read.limit)).fetchall()


def unindexed(db: sqlite3.Connection, read: FindUnindexed) -> tuple[int, list[str]] | None:
    """Answer a `FindUnindexed`."""
    if not db.execute(_IS_MADE).fetchone():
        return None
    where, values = terms_of(begins_with("t.thread", read.prefix))
    text = _UNINDEXED.replace("{where}", where.replace("%s", "?"))
    (count,) = db.execute(f"SELECT count(*) {text}", values).fetchone()
    newest = f"SELECT t.thread {text} ORDER BY t.updated_at DESC LIMIT ?"
    return count, [name for (name,) in db.execute(newest, (*values, read.limit))]
