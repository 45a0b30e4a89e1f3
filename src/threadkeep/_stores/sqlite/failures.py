"""Driver errors as threadkeep errors. No other module looks at SQLite's result codes."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from threadkeep import errors
from threadkeep._stores.failures import Meaning, store_error

if TYPE_CHECKING:
    from collections.abc import Iterator

# What sqlite3 raises for values that it cannot bind: numbers over 64 bits, text that is
# no UTF-8; and what our own unpacking of damaged ids raises.
DRIVER_ERRORS = (sqlite3.Error, OverflowError, UnicodeError)

DAMAGED = (
    "`threadkeep check FILE` says what is damaged, `threadkeep repair` puts it right where that can"
    " be done; else restore a backup."
)
_MEANINGS: dict[int, Meaning] = {
    sqlite3.SQLITE_BUSY: (
        errors.LockedError,
        "Another process keeps a write transaction open on {path}: end it, or raise busy_timeout.",
    ),
    sqlite3.SQLITE_LOCKED: (
        errors.LockedError,
        "Another connection keeps a table of {path} locked.",
    ),
    sqlite3.SQLITE_READONLY: (
        errors.ReadOnlyError,
        "Reading still works. To write, this process needs write access to {path} and its folder.",
    ),
    sqlite3.SQLITE_PERM: (errors.ReadOnlyError, "This process may not access {path}."),
    sqlite3.SQLITE_FULL: (
        errors.DiskFullError,
        "Free some space where {path} is and do it again: nothing was changed.",
    ),
    sqlite3.SQLITE_IOERR: (
        errors.BackendError,
        "Check the disk of {path}, and that no other program removed the file.",
    ),
    sqlite3.SQLITE_CORRUPT: (errors.CorruptionError, DAMAGED),
    # Our statements are constant: what SQLite cannot compile are tables that are not ours.
    sqlite3.SQLITE_ERROR: (errors.CorruptionError, DAMAGED),
    sqlite3.SQLITE_NOTADB: (
        errors.CorruptionError,
        "The start of {path} was overwritten: restore a backup.",
    ),
    sqlite3.SQLITE_TOOBIG: (
        errors.InvalidArgumentError,
        "SQLite stores at most about 1 GB in one value: keep larger ones outside the state.",
    ),
}


def tells_of_damage(error: Exception) -> bool:
    """Return True if one of `DRIVER_ERRORS` means damage."""
    return isinstance(mapped(error, ""), errors.CorruptionError)


def is_undecodable(error: Exception) -> bool:
    """Return True if a text that was read is not UTF-8."""
    return isinstance(error, UnicodeDecodeError) or "decode to UTF-8" in str(error)


def mapped(error: Exception, path: str) -> errors.ThreadkeepError:
    """Return the driver's error as ours."""
    if is_undecodable(error):
        return errors.CorruptionError(f"{path} holds text that is not UTF-8.", hint=DAMAGED)
    if not isinstance(error, sqlite3.Error):
        return errors.InvalidArgumentError(
            f"SQLite cannot store this value: {error}",
            hint="Ids must be valid Unicode, numbers must fit in 64 bits.",
        )
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return errors.ClosedError(hint="Open a new one.")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    kind, hint = _MEANINGS.get(code, (errors.BackendError, "The database is {path}."))
    return store_error((kind, hint.format(path=path)), "SQLite", str(error))


@contextmanager
def named(path: str) -> Iterator[None]:
    """Raise the driver's errors as ours."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise mapped(error, path) from error
