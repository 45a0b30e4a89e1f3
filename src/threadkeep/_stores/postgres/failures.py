"""Errors of the driver and refusals of the schema's functions, as errors of threadkeep.

Codes: appendix A of PostgreSQL's manual, and our own TK001 (migrations), TK002 (partitions).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout

from threadkeep import errors
from threadkeep._core.engine.model import Change
from threadkeep._stores.failures import REFUSALS, Meaning, store_error
from threadkeep._stores.postgres.statement import Rows, unpack_text

DRIVER_ERRORS = (psycopg.Error, UnicodeError)
NO_RIGHT = "42501"
"""The error code of a right that the role lacks."""

_OWNER = "Migrate as a user who owns the schema, or who may CREATE one in this database."
_SET_UP = (
    "Call setup() once, or run `threadkeep migrate URL`, as a user who may create tables;"
    " schema= says where they are."
)
# By error code, or its first three or two characters.
_MEANINGS: dict[str, Meaning] = {
    **dict.fromkeys(("42P01", "42883", "42703", "3F000"), (errors.NotSetUpError, _SET_UP)),
    "3D000": (errors.UnreachableError, "Create the database, or name another one in the URL."),
    "28": (errors.UnreachableError, "Check the user and the password in the URL."),
    "57014": (
        errors.StatementTimeoutError,
        "Raise statement_timeout, or look for what holds locks.",
    ),
    "53100": (errors.DiskFullError, "Free some space on the server and retry: nothing changed."),
    "53": (errors.BackendError, "The server lacks resources: look into its log."),
    "25006": (
        errors.ReadOnlyError,
        "Add target_session_attrs=read-write to the URL, so that a server that writes is chosen.",
    ),
    NO_RIGHT: (
        errors.ReadOnlyError,
        "Grant this user USAGE on the schema and its sequence, and all changes of its tables.",
    ),
    "TK001": (
        errors.BackendError,
        "ALTER ROLE ... SET default_transaction_isolation = 'read committed' for this user.",
    ),
    "TK002": (
        errors.BackendError,
        "Leave partition_by out, or keep their definitions, take them off, migrate, and make them.",
    ),
    "42P07": (
        errors.BackendError,
        "Attach it again if it is a detached partition, else take another schema: ?schema=NAME.",
    ),
    "40": (errors.LockedError, "Others kept changing the same rows: retry."),
    "55P03": (errors.LockedError, "Another transaction keeps rows locked: end it."),
    "08": (
        errors.UnreachableError,
        "Look whether the server runs, can be reached and lets this user in.",
    ),
    "57": (errors.UnreachableError, "The server is shutting down or starting: retry later."),
    "22": (errors.InvalidArgumentError, "Ids must be valid Unicode, numbers must fit in 64 bits."),
    "54": (
        errors.InvalidArgumentError,
        "PostgreSQL takes ids of 2,000 bytes together, values of 1 GB.",
    ),
    "XX001": (errors.CorruptionError, "Restore a backup: the server finds its files damaged."),
    "XX002": (errors.CorruptionError, "Rebuild the index that the message names: REINDEX."),
}
# After these a commit may be retried: it is idempotent.
_PASSING = ("08", "40", "57P")


def passes(error: BaseException) -> bool:
    """Return True if a retry may succeed: a lost connection, a conflict with others."""
    if not isinstance(error, psycopg.Error) or isinstance(error, PoolTimeout | PoolClosed):
        return False
    code = error.sqlstate
    if code is None:
        return isinstance(error, psycopg.OperationalError)
    return code.startswith(_PASSING)


def lost_connection(error: BaseException) -> bool:
    """Return True if the connection is lost, and others may be too."""
    code = getattr(error, "sqlstate", None) or "08"
    return passes(error) and not code.startswith("40")


def mapped(error: Exception, server: str, *, migrating: bool = False) -> errors.ThreadkeepError:
    """Map a driver's error; while tables are made (`migrating`), other rights are needed."""
    if isinstance(error, PoolClosed):
        return errors.ClosedError(hint="Open a new one.")
    if isinstance(error, PoolTimeout):
        return errors.UnreachableError(
            f"No connection to {server} became free: {error}.",
            hint="Raise max_size, or look for what keeps connections busy; while the server"
            " is down, none is free.",
        )
    if not isinstance(error, psycopg.Error):
        return errors.InvalidArgumentError(
            f"PostgreSQL cannot store this text: {error}", hint="Ids must be valid Unicode."
        )
    code = error.sqlstate or ""
    meaning = _meaning(error, code)
    if migrating and code == NO_RIGHT:
        meaning = (meaning[0], _OWNER)
    message = error.diag.message_primary or " ".join(str(error).split())
    return store_error(meaning, server, message)


@contextmanager
def mapped_errors(server: str, *, migrating: bool = False) -> Iterator[None]:
    """Raise the driver's errors as ours: see `mapped`."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise mapped(error, server, migrating=migrating) from error


def _meaning(error: psycopg.Error, code: str) -> Meaning:
    if not code:
        if isinstance(error, psycopg.OperationalError):
            return _MEANINGS["08"]
        if isinstance(error, psycopg.DataError):
            return _MEANINGS["22"]
    for prefix in (code, code[:3], code[:2]):
        if prefix in _MEANINGS:
            return _MEANINGS[prefix]
    return errors.BackendError, "Look into the server's log."


def refusal(rows: Rows, change: Change) -> errors.ThreadkeepError | None:
    """Return the error that a function of the schema answered with; None if it made the change."""
    kind, *place = rows[0][:3]
    if not kind:
        return None
    ns, checkpoint = (unpack_text(text) if text else None for text in place or (None, None))
    return REFUSALS[kind](thread=change.thread, namespace=ns, checkpoint=checkpoint)
