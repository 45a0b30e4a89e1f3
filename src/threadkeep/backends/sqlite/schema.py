"""Tables of a threadkeep database, and the check that a file is one.

`application_id` marks a file as ours; `user_version` is the version of its tables.

The tables (`schema.sql`) are built for small files (docs/design/0003-sqlite.md): ids are packed
(`records`), columns whose value is 0 are NULL, and rows lie in the primary key's own tree. Columns
without a type keep what is put in, text or bytes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from threadkeep.errors import NewerDatabaseError, NotOursError

if TYPE_CHECKING:
    import sqlite3

APPLICATION_ID = 0x74686B70  # "thkp", as `file` and `PRAGMA application_id` show it
VERSION = 1

_FUNCTIONS = {  # of the views
    "id_text": """CASE WHEN typeof({0}) <> 'blob' THEN {0} WHEN length({0}) <> 16
        THEN CAST(substr({0}, 17) AS TEXT)
        ELSE lower(hex(substr({0}, 1, 4)) || '-' || hex(substr({0}, 5, 2)) || '-'
            || hex(substr({0}, 7, 2)) || '-' || hex(substr({0}, 9, 2)) || '-'
            || hex(substr({0}, 11))) END""",
    "time_text": """CASE WHEN typeof({0}) <> 'integer' THEN {0}
        ELSE strftime('%Y-%m-%dT%H:%M:%S', {0} / 1000000, 'unixepoch')
            || printf('.%06d+00:00', {0} % 1000000) END""",
}


def is_ours(db: sqlite3.Connection, path: str) -> bool:
    """Tell whether the database has our tables; False where it is empty."""
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
            for statement in _statements():
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _statements() -> list[str]:
    text = Path(__file__).with_suffix(".sql").read_text("utf-8")
    for name, sql in _FUNCTIONS.items():
        text = re.sub(rf"\b{name}\((\w+\.\w+)\)", sql.format(r"\1"), text)
    return text.split(";\n")


def _not_ours(path: str, names: set[str]) -> NotOursError:
    import shlex  # noqa: PLC0415 - seldom needed

    if {"checkpoints", "writes"} <= names:
        return NotOursError(
            f"{path} is a database of LangGraph's own SQLite saver, not of threadkeep.",
            hint="It is left as it is. Give threadkeep a file of its own, and bring the threads"
            f" there: threadkeep adopt {shlex.quote(path)} sqlite:///new.db",
        )
    some = ", ".join(sorted(names)[:3]) or "nothing"
    return NotOursError(
        f"{path} is a database of another program: it holds {some}.",
        hint="It is left as it is. Give threadkeep a file of its own.",
    )
