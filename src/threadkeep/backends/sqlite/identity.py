"""The name by which a database is told from all others, its copies too.

Only that lives here. Invariant: a file that was copied, by whatever means, has another name from
the first time that somebody asks: it is not where the name was given.

SQLite has no such name, and a table of ours is copied with the file. So what the file system
calls the file is noted beside it: its inode, and which file system that is. A file that is moved
within one keeps the name.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from threadkeep.backends.sqlite.failures import named

if TYPE_CHECKING:
    from threadkeep.backends.sqlite.connections import Connections

_TABLE = "CREATE TABLE IF NOT EXISTS tk_identity (identity TEXT NOT NULL, place TEXT NOT NULL)"
_READ = "SELECT identity FROM tk_identity WHERE place = ?"
_NAME = "INSERT INTO tk_identity (identity, place) VALUES (?, ?)"


def identity(connections: Connections) -> str:
    """Return the database's name, given now where it has none. Raises as a commit does."""
    with connections.write_lock, named(connections.path):
        db, place = connections.writer(), _place(connections)
        with suppress(sqlite3.OperationalError):  # there is no such table yet
            if found := db.execute(_READ, (place,)).fetchone():
                return str(found[0])
        if connections.read_only:
            return secrets.token_hex(16)  # nothing lies under it, and nothing will
        db.execute("BEGIN IMMEDIATE")
        try:
            db.execute(_TABLE)
            found = db.execute(_READ, (place,)).fetchone()  # another process may have been faster
            if not found:
                found = (secrets.token_hex(16),)
                db.execute("DELETE FROM tk_identity")
                db.execute(_NAME, (*found, place))
            db.execute("COMMIT")
        finally:
            connections.rest_writer()
        return str(found[0])


def _place(connections: Connections) -> str:
    if connections.in_memory:
        return ""
    file = Path(connections.path).stat()
    system = os.statvfs(connections.path).f_fsid if hasattr(os, "statvfs") else file.st_dev
    return f"{system}-{file.st_ino}"
