"""The index of messages in a SQLite file: changes in the transaction of a move."""

from __future__ import annotations

import sqlite3
from typing import Any

from threadkeep._core.engine.heads import Move
from threadkeep._stores.sqlite.opening import statements
from threadkeep._stores.sqlite.records import bound_id

# No second copy of the words, in versions of SQLite that can delete without it.
_DELETES = sqlite3.sqlite_version_info >= (3, 43)
CONTENTLESS = ", content = '', contentless_delete = 1" if _DELETES else ""
_OF_THREAD = "SELECT rowid FROM threadkeep_words WHERE rowid >= ?1 << 24 AND rowid < (?1 + 1) << 24"
_LAST = f"{_OF_THREAD} ORDER BY rowid DESC LIMIT 1"
_INDEXED = "DELETE FROM threadkeep_unindexed WHERE thread = ? AND (? OR reach IS ?)"


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
