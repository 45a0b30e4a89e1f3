"""The driver's errors, mapped to threadkeep's errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from threadkeep import errors
from threadkeep._stores.base import Meaning, store_error

# sqlite3 raises the last two for values that it cannot bind: numbers over 64 bits, invalid Unicode.
# So does our own unpacking of damaged ids.
DRIVER_ERRORS = (sqlite3.Error, OverflowError, UnicodeError)

DAMAGED = (
    "`threadkeep check FILE` lists the damage, `threadkeep repair` mends it if possible; otherwise"
    " restore a backup."
)
_END = "Another process keeps a write transaction open on {path}: end it, or raise busy_timeout."
_TABLE = "Another connection keeps a table of {path} locked: end its transaction."
_WRITE = "Reading works. To write, give this process write access to {path} and its folder."
_ACCESS = "Give this process access to {path}."
_SPACE = "Free space on the disk of {path} and retry: nothing was changed."
_DISK = "Check the disk of {path}, and that no other program removed the file."
_BEGINNING = "The beginning of {path} was overwritten: restore a backup."
_QUESTION = "{path} is too large for this question: ask for less."
_VALUE = "SQLite stores at most about 1 GB in one value: keep larger values outside the state."
_MEANINGS: dict[int, Meaning] = {
    sqlite3.SQLITE_BUSY: (errors.LockedError, _END),
    sqlite3.SQLITE_LOCKED: (errors.LockedError, _TABLE),
    sqlite3.SQLITE_READONLY: (errors.ReadOnlyError, _WRITE),
    sqlite3.SQLITE_PERM: (errors.ReadOnlyError, _ACCESS),
    sqlite3.SQLITE_FULL: (errors.DiskFullError, _SPACE),
    sqlite3.SQLITE_IOERR: (errors.BackendError, _DISK),
    sqlite3.SQLITE_CORRUPT: (errors.CorruptionError, DAMAGED),
    # (our statements are constant, so the tables must be damaged)
    sqlite3.SQLITE_ERROR: (errors.CorruptionError, DAMAGED),
    sqlite3.SQLITE_NOTADB: (errors.CorruptionError, _BEGINNING),
    # (only readers with a limit on statements: see `threads.transfer.source_sqlite`)
    sqlite3.SQLITE_INTERRUPT: (errors.StatementTimeoutError, _QUESTION),
    sqlite3.SQLITE_TOOBIG: (errors.InvalidArgumentError, _VALUE),
}


def tells_of_damage(error: Exception) -> bool:
    """Return True for an error of `DRIVER_ERRORS` that means damage."""
    return isinstance(mapped(error, ""), errors.CorruptionError)


def is_busy(error: Exception) -> bool:
    """Return True if another connection held a lock for longer than the timeout."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def is_undecodable(error: Exception) -> bool:
    """Return True if a stored text is not UTF-8."""
    return isinstance(error, UnicodeDecodeError) or "decode to UTF-8" in str(error)


def mapped(error: Exception, path: str) -> errors.ThreadkeepError:
    """Map a driver's error."""
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
    """Map the driver's errors."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise mapped(error, path) from error


@contextmanager
def lenient(db: sqlite3.Connection) -> Iterator[None]:
    """Read text that is not UTF-8 as a type that no column has."""
    plain, db.text_factory = db.text_factory, _text_or_bytes
    try:
        yield
    finally:
        db.text_factory = plain


class _NotUtf8(bytes):
    """A text of a damaged row."""


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _NotUtf8(data)
