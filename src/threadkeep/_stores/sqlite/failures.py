"""The driver's errors, mapped to threadkeep's errors."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from threadkeep import errors
from threadkeep._stores.base import Meaning, store_error

if TYPE_CHECKING:
    from collections.abc import Iterator

# sqlite3 raises the last two for values that it cannot bind: numbers over 64 bits, invalid Unicode.
# So does our own unpacking of damaged ids.
DRIVER_ERRORS = (sqlite3.Error, OverflowError, UnicodeError)

DAMAGED = (
    "`threadkeep check FILE` lists the damage, `threadkeep repair` mends it if possible; otherwise"
    " restore a backup."
)
_MEANINGS: dict[int, Meaning] = {
    sqlite3.SQLITE_BUSY: (
        errors.LockedError,
        "Another process keeps a write transaction open on {path}: end it, or raise busy_timeout.",
    ),
    sqlite3.SQLITE_LOCKED: (
        errors.LockedError,
        "Another connection keeps a table of {path} locked: end its transaction.",
    ),
    sqlite3.SQLITE_READONLY: (
        errors.ReadOnlyError,
        "Reading works. To write, give this process write access to {path} and its folder.",
    ),
    sqlite3.SQLITE_PERM: (errors.ReadOnlyError, "Give this process access to {path}."),
    sqlite3.SQLITE_FULL: (
        errors.DiskFullError,
        "Free space on the disk of {path} and retry: nothing was changed.",
    ),
    sqlite3.SQLITE_IOERR: (
        errors.BackendError,
        "Check the disk of {path}, and that no other program removed the file.",
    ),
    sqlite3.SQLITE_CORRUPT: (errors.CorruptionError, DAMAGED),
    # (our statements are constant, so the tables must be damaged)
    sqlite3.SQLITE_ERROR: (errors.CorruptionError, DAMAGED),
    sqlite3.SQLITE_NOTADB: (
        errors.CorruptionError,
        "The beginning of {path} was overwritten: restore a backup.",
    ),
    # (only readers with a limit on statements: see `threads.transfer.source_sqlite`)
    sqlite3.SQLITE_INTERRUPT: (
        errors.StatementTimeoutError,
        "{path} is too large for this question: ask for less.",
    ),
    sqlite3.SQLITE_TOOBIG: (
        errors.InvalidArgumentError,
        "SQLite stores at most about 1 GB in one value: keep larger values outside the state.",
    ),
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
