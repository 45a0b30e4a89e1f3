r"""SQL statements, their values as PostgreSQL stores and takes them, and errors in answer.

PostgreSQL cannot store a NUL in text: `pack_text` escapes it. In JSON, the escapes are replaced in
the same way.

Error codes: appendix A of PostgreSQL's manual, and our own TK001 (migrations).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg import pq
from psycopg.adapt import AdaptersMap, Dumper, PyFormat
from psycopg.types.numeric import Int8
from psycopg_pool import PoolClosed, PoolTimeout

from threadkeep import errors
from threadkeep._core.engine.rows import PLAIN_METADATA
from threadkeep._stores.base import Meaning, store_error
from threadkeep._stores.records import pack_text, unpack_text

Rows: TypeAlias = list[tuple[Any, ...]]


class Statement(NamedTuple):
    """An SQL text, with `{schema}` for the schema's quoted name, and its parameters.

    With `keep=False`, the server plans it each time because the plan depends on the values.
    """

    sql: str
    values: tuple[Any, ...] = ()
    keep: bool = True


class Query(NamedTuple):
    """The statements that answer a read, and a function from their rows to the reply."""

    statements: tuple[Statement, ...]
    reply: Callable[[Sequence[Rows]], Any]


def single(sql: str, values: tuple[Any, ...], reply: Callable[[Rows], Any]) -> Query:
    """Return a query of one statement."""
    return Query((Statement(sql, values),), lambda results: reply(results[0]))


def first_value(rows: Rows) -> Any:
    """Return the first value of the first row."""
    return rows[0][0]


# -- text ----------------------------------------------------------------------------

_JSON_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\u000([01])")
_ESCAPED = {"0": "\\u0001\\u0001", "1": "\\u0001\\u0002"}


def pack_optional(text: str | None) -> str | None:
    """Escape a text or None."""
    return None if text is None else pack_text(text)


def unpack_optional(stored: str | None) -> str | None:
    """Reverse `pack_optional`."""
    return None if stored is None else unpack_text(stored)


def pack_json(text: str) -> str:
    """Escape the texts in a JSON text."""
    if "\\u000" not in text:
        return text
    return _JSON_ESCAPE.sub(lambda found: found[1] + _ESCAPED[found[2]], text)


# -- metadata --------------------------------------------------------------------------

# jsonb reorders keys and adds spaces. The most frequent form is rebuilt from the jsonb. Any other
# text is stored next to it.
_STORED = re.compile(r'\{"step": (-?[0-9]+), "source": "([a-z]+)", "parents": \{\}\}')


def pack_metadata(text: str) -> tuple[str, str | None]:
    """Return the values of the columns `metadata` and `metadata_text`."""
    return pack_json(text), None if PLAIN_METADATA.fullmatch(text) else pack_text(text)


def unpack_metadata(stored: str, text: str | None) -> str:
    """Return the original metadata of the two columns."""
    if text is not None:
        return unpack_text(text)
    plain = _STORED.fullmatch(stored)
    if plain is None:  # (edited by hand)
        return stored
    return f'{{"source":"{plain[2]}","step":{plain[1]},"parents":{{}}}}'


# -- arrays in binary form, column by column -------------------------------------------

_HEAD = Struct("!iiIii").pack  # dimensions, flags, type of the elements, length, first index
_NONE = Struct("!iiI").pack  # an array without elements has no dimensions
_LENGTH = Struct("!i").pack
_NUMBER = Struct("!iq").pack  # with its length
_NULL = _LENGTH(-1)
_TRUE, _FALSE = _LENGTH(1) + b"\1", _LENGTH(1) + b"\0"


_NUMBER_DUMPER = psycopg.adapters.get_dumper(Int8, PyFormat.BINARY)


class Array(bytes):
    """A parameter in binary form, such as an array. The statement's text casts it to its type."""

    __slots__ = ()


class _ArrayDumper(Dumper):
    format = pq.Format.BINARY

    def dump(self, obj: Array) -> bytes:
        return obj


class Number(int):
    """A bigint parameter, whatever its size: so the statement is prepared only once.

    psycopg's own class runs Python code for each number.
    """

    __slots__ = ()


def register_types(adapters: AdaptersMap) -> None:
    """Enable parameters of these types for the owner of these adapters."""
    adapters.register_dumper(Array, _ArrayDumper)
    adapters.register_dumper(Number, _NUMBER_DUMPER)


def array(kind: str, column: Sequence[Any]) -> Array:
    """Encode a column, which may hold None."""
    oid, encode, empty = _KINDS[kind]
    return Array(_HEAD(1, 0, oid, len(column), 1) + encode(column)) if column else empty


def _numbers(column: Iterable[int | None]) -> bytes:
    return b"".join([_NULL if value is None else _NUMBER(8, value) for value in column])


def _texts(column: Iterable[str | None]) -> bytes:
    return _bytes([None if value is None else value.encode() for value in column])


def _bytes(column: Iterable[bytes | None]) -> bytes:
    parts: list[bytes] = []
    for value in column:
        if value is None:
            parts.append(_NULL)
        else:
            parts += (_LENGTH(len(value)), value)
    return b"".join(parts)


def _booleans(column: Iterable[bool | None]) -> bytes:
    return b"".join([_NULL if one is None else _TRUE if one else _FALSE for one in column])


_KINDS: dict[str, tuple[int, Callable[[Any], bytes], Array]] = {
    kind: (oid, encode, Array(_NONE(0, 0, oid)))
    for kind, oid, encode in (
        *(("bigint", 20, _numbers), ("text", 25, _texts)),
        *(("bytea", 17, _bytes), ("boolean", 16, _booleans), ("timestamptz", 1184, _bytes)),
    )
}


# -- times in binary form ----------------------------------------------------------------

# SQL between times and numbers costs the server more than all else in planning a statement.
_TIME = Struct("!q").pack
_EPOCH = 946_684_800_000_000  # microseconds from 1970 to 2000, where PostgreSQL's begin
_INFINITE = (-(2**63), 2**63 - 1)


def pack_time(micros: int | None) -> Array | None:
    """Encode a time in microseconds since 1970. The smallest and largest number are infinite."""
    if micros is None:
        return None
    return Array(_TIME(micros if micros in _INFINITE else micros - _EPOCH))


def unpack_time(sent: bytes | None) -> int | None:
    """Reverse `pack_time`, given the result of `timestamptz_send`."""
    if sent is None:
        return None
    found = int.from_bytes(sent, "big", signed=True)
    return found if found in _INFINITE else found + _EPOCH


# -- errors ----------------------------------------------------------------------------

DRIVER_ERRORS = (psycopg.Error, UnicodeError)
NO_RIGHT = "42501"
"""The error code of a missing privilege."""
_PREPARED = '"_pg3_'  # the beginning of psycopg's names of prepared statements, in errors
_OTHER_ROWS = "ExecWithCheckOptions"  # the server's function that finds a row against a policy

_OWNER = "Migrate as a user who owns the schema, or who may CREATE one in this database."
_SET_UP = (
    "Call setup() once, or run `threadkeep migrate URL`, as a user who may create tables. If they"
    " exist, name their schema with schema=."
)
# By error code, or its first three or two characters.
_MEANINGS: dict[str, Meaning] = {
    **dict.fromkeys(("42P01", "42883", "42703", "3F000"), (errors.NotSetUpError, _SET_UP)),
    "3D000": (errors.UnreachableError, "Create the database, or name another one in the URL."),
    "28": (errors.UnreachableError, "Check the user and the password in the URL."),
    "57014": (
        errors.StatementTimeoutError,
        "Raise statement_timeout, or find the session that holds locks.",
    ),
    "53100": (errors.DiskFullError, "Free space on the server and retry: nothing was changed."),
    "53": (errors.BackendError, "The server lacks resources: see its log."),
    "25006": (
        errors.ReadOnlyError,
        "Add target_session_attrs=read-write to the URL, to connect to the primary server.",
    ),
    NO_RIGHT: (
        errors.ReadOnlyError,
        "Grant this user USAGE on the schema and its sequence, and all rights on its tables.",
    ),
    # (a role of one tenant: see roles.py)
    _OTHER_ROWS: (
        errors.ReadOnlyError,
        "Use for_tenant() with this role's tenant, or the operator's URL: also to begin with keys.",
    ),
    _PREPARED: (
        errors.BackendError,
        "Pass prepare_threshold=None (in a URL: none) behind PgBouncer before 1.21 or its like.",
    ),
    "TK001": (
        errors.BackendError,
        "ALTER ROLE ... SET default_transaction_isolation = 'read committed' for this user.",
    ),
    "42P07": (
        errors.BackendError,
        "Attach it again if it is a detached partition, else use another schema: ?schema=NAME.",
    ),
    "40": (errors.LockedError, "Other transactions kept changing the same rows: retry."),
    "55P03": (errors.LockedError, "Another transaction keeps rows locked: end it."),
    "08": (
        errors.UnreachableError,
        "Check that the server runs, that it can be reached, and that it accepts this user.",
    ),
    "57": (errors.UnreachableError, "The server is shutting down or starting: retry later."),
    "22": (errors.InvalidArgumentError, "Ids must be valid Unicode, numbers must fit in 64 bits."),
    "54": (
        errors.InvalidArgumentError,
        "PostgreSQL takes ids of 2,000 bytes together, values of 1 GB.",
    ),
    "XX001": (errors.CorruptionError, "Restore a backup: the server reports damaged files."),
    "XX002": (errors.CorruptionError, "Rebuild the index named in the message: REINDEX."),
}
# (a commit is idempotent, so it may be retried)
_PASSING = ("08", "25P03", "40", "57P")


def passes(error: BaseException) -> bool:
    """Return True if a retry may succeed: after a lost connection or a conflict with others."""
    if not isinstance(error, psycopg.Error) or isinstance(error, PoolTimeout | PoolClosed):
        return False
    code = error.sqlstate
    if _PREPARED in str(error):
        return False
    if code is None:
        return isinstance(error, psycopg.OperationalError)
    return code.startswith(_PASSING)


def lost_connection(error: BaseException) -> bool:
    """Return True if the connection is lost (so others may be, too)."""
    code = getattr(error, "sqlstate", None) or "08"
    return passes(error) and not code.startswith("40")


def mapped(error: Exception, server: str, *, migrating: bool = False) -> errors.ThreadkeepError:
    """Map a driver's error. `migrating` needs other privileges than using the tables."""
    if isinstance(error, PoolClosed):
        return errors.ClosedError(hint="Open a new one.")
    if isinstance(error, PoolTimeout):
        return errors.UnreachableError(
            f"No connection to {server} became free: {error}.",
            hint="Check that the server runs. If it does, raise max_size, or find the calls that"
            " keep connections busy.",
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
    """Map the driver's errors: see `mapped`."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise mapped(error, server, migrating=migrating) from error


def _meaning(error: psycopg.Error, code: str) -> Meaning:
    if _PREPARED in str(error):
        return _MEANINGS[_PREPARED]
    if not code:
        if isinstance(error, psycopg.OperationalError):
            return _MEANINGS["08"]
        if isinstance(error, psycopg.DataError):
            return _MEANINGS["22"]
    for prefix in (error.diag.source_function, code, code[:3], code[:2]):
        if prefix in _MEANINGS:
            return _MEANINGS[prefix]
    return errors.BackendError, "See the server's log."
