"""A MySQL or MariaDB server: statements sent over a pool of connections, and the driver's errors.

A call sends all of its statements at once, over a connection that no other call uses meanwhile. A
failed call closes its connection, so that the server rolls its transaction back.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from pymysql import err
from pymysql.connections import Connection
from pymysql.constants import CLIENT

from threadkeep import errors
from threadkeep._core.parts import parts_of
from threadkeep._core.texts import shown_url
from threadkeep._stores.base import Meaning, store_error
from threadkeep._stores.mysql import MysqlOptions
from threadkeep._stores.options import complete, unknown
from threadkeep._stores.process_forks import PerProcess
from threadkeep._stores.servers import Retrying, Source
from threadkeep._stores.sync_bridge import finish

T = TypeVar("T")
MysqlRows: TypeAlias = Sequence[tuple[Any, ...]]
VERSION = 1  # of the tables

# -- statements --------------------------------------------------------------------------


class Sql(NamedTuple):
    """An SQL text, with `%s` for each value. Texts are compared and stored as UTF-8."""

    sql: str
    values: tuple[Any, ...] = ()

    def text(self) -> bytes:
        """Return the text with its values."""
        return self.sql.encode() % tuple(map(_literal, self.values))


class Result(NamedTuple):
    """The rows that a statement returns; the number of rows it found or added; a new number."""

    rows: MysqlRows
    found: int
    number: int


def _literal(value: Any) -> bytes:
    if value is None:
        return b"NULL"
    if isinstance(value, int):
        return b"%d" % value
    data = value.encode() if isinstance(value, str) else value
    return b"_binary'%s'" % data.replace(b"\\", b"\\\\").replace(b"'", b"\\'")


def marks(values: Sequence[Any]) -> str:
    """Return the marks of some values; of records, each in parentheses; NULL without any."""
    one = f"({marks(values[0])})" if values and isinstance(values[0], tuple) else "%s"
    return ", ".join([one] * len(values)) or "NULL"


BEGIN, COMMIT = Sql("START TRANSACTION"), Sql("COMMIT")
ROLLBACK = Sql("ROLLBACK")
SNAPSHOT = (
    Sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"),
    Sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"),
)
_SESSION = """
SET SESSION sql_mode = 'STRICT_ALL_TABLES', innodb_lock_wait_timeout = %s,
    completion_type = 'NO_CHAIN', sql_safe_updates = 0,
    sql_select_limit = 18446744073709551615, max_sort_length = 1024;
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
SELECT @@max_allowed_packet
"""

# -- errors ------------------------------------------------------------------------------

_NO_TABLE, _PACKET, _TOO_LARGE, _CLIENT = 1146, 1153, 2020, 20
_CONFLICTS = (1020, 1062, 1213)
_LOST = (1053, 1158, 1159, 1160, 1161, 1927, 4031)  # and those of the client, from 2000 on
_UNREACHABLE = (errors.UnreachableError, "Check that the server runs and can be reached.")
_VALUE = (
    errors.InvalidArgumentError,
    "Ids are valid Unicode of at most 1,024 bytes, numbers fit in 64 bits.",
)
_MEANINGS: dict[int, Meaning] = {
    code: (kind, hint)
    for kind, hint, *codes in (
        (errors.UnreachableError, "Check the user, password and database.", 1044, 1045, 1049, 1698),
        (errors.UnreachableError, "Raise the server's max_connections.", 1040, 1203),
        (errors.ReadOnlyError, "Use the primary, as a user who may write.", 1142, 1290, 1836),
        (errors.DiskFullError, "Free space and retry: nothing was changed.", 1021, 1114),
        (errors.LockedError, "Other transactions keep these rows: retry.", 1205, *_CONFLICTS),
        (errors.InvalidArgumentError, "Raise max_allowed_packet.", _PACKET, _TOO_LARGE),
        (errors.StatementTimeoutError, "Raise the server's max_statement_time.", 1969, 3024),
        (*_VALUE, 1264, 1366, 1406),
    )
    for code in codes
}
DRIVER_ERRORS = (err.Error, OSError, UnicodeError)


def _code(error: BaseException) -> int:
    found = error.args[0] if isinstance(error, err.Error) and error.args else 0
    return found if isinstance(found, int) else 0


def _lost(error: BaseException) -> bool:
    code = _code(error)
    is_of_client = code // 100 == _CLIENT and code != _TOO_LARGE
    return is_of_client or code in _LOST or isinstance(error, OSError | err.InterfaceError)


def _passes(error: BaseException) -> bool:
    return _lost(error) or _code(error) in _CONFLICTS


@contextmanager
def _mapped(server: str) -> Iterator[None]:
    try:
        yield
    except DRIVER_ERRORS as error:
        meaning: Meaning = (errors.BackendError, "See the server's log.")
        if isinstance(error, UnicodeError):
            meaning = _VALUE
        elif _lost(error):
            meaning = _UNREACHABLE
        meaning = _MEANINGS.get(_code(error), meaning)
        raise store_error(meaning, server, str(error.args[-1] if error.args else error)) from error


# -- connections -------------------------------------------------------------------------

_FORM = "Use mysql://user:password@host:3306/database."
_PARAMETERS = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_identity")


def _read(url: str, timeout: float) -> dict[str, Any]:
    """Return PyMySQL's arguments for a URL."""
    try:
        parts = urlsplit(url)
        place = {"host": parts.hostname or "localhost", "port": parts.port or 3306}
        query = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError:  # (it may show the password)
        raise errors.OpenError("Invalid MySQL URL.", hint=_FORM) from None
    database = unquote(parts.path.removeprefix("/"))
    if not database:
        raise errors.OpenError(f"{shown_url(url)} names no database.", hint=_FORM)
    for name in query.keys() - {*_PARAMETERS}:
        raise unknown("MySQL", name, [*MysqlOptions.__annotations__, *_PARAMETERS])
    login = {"user": unquote(parts.username or "root"), "password": unquote(parts.password or "")}
    waits = dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), timeout)
    flags = CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS
    rest = {"database": database, "charset": "utf8mb4", "autocommit": True, "client_flag": flags}
    return {**query, **place, **login, **waits, **rest}


class MysqlSession(Connection):  # type: ignore[misc] # (untyped)
    """A connection that one call uses.

    Attributes:
        most: bytes of statements that the server takes at once.
    """

    most = 1024

    def run(self, statements: Sequence[Sql]) -> list[Result]:
        """Return the result of each statement. As many as fit are sent at once.

        A failed one is the last.
        """
        texts = [one.text() + b";" for one in statements]
        found: list[Result] = []
        for part in parts_of(texts, len, len(texts), self.most):
            found += self._results(b"".join(part)[:-1])
        return found

    def _results(self, text: bytes) -> Iterator[Result]:
        if len(text) > self.most:  # (the server would close the connection)
            raise err.DataError(_PACKET, f"{len(text)} bytes exceed max_allowed_packet")
        cursor = self.cursor()
        cursor.execute(text)
        while True:
            rows: Any = cursor.fetchall() if cursor.description else ()
            yield Result(rows, cursor.rowcount, cursor.lastrowid or 0)
            if not cursor.nextset():
                return

    def rows(self, sql: str, *values: Any) -> MysqlRows:
        """Return the rows of a query."""
        return self.run([Sql(sql, values)])[0].rows


class _Pool:
    """The idle connections of a process."""

    def __init__(self, arguments: dict[str, Any], size: int, timeout: float) -> None:
        self._arguments, self._timeout = arguments, timeout
        self._idle: list[MysqlSession] = []
        self._free, self._open = threading.Semaphore(size), True

    @contextmanager
    def session(self) -> Iterator[MysqlSession]:
        """Lend a connection. If the call fails, it is closed, and so are those that are idle."""
        if not self._free.acquire(timeout=self._timeout):
            raise errors.UnreachableError(
                f"No connection became free in {self._timeout:g} seconds.",
                hint="Raise max_connections, or find the calls that keep connections busy.",
            )
        try:
            session = self._idle.pop() if self._idle else self._connected()
            try:
                yield session
            except BaseException:
                self._clear(session)
                raise
            self._idle.append(session)
            if not self._open:
                self._clear()
        finally:
            self._free.release()

    def _connected(self) -> MysqlSession:
        session = MysqlSession(**self._arguments)
        wait = max(int(self._timeout / 2), 1)  # (seconds: less than the client waits)
        ((size,),) = session.run([Sql(_SESSION, (wait,))])[-1].rows
        session.most = size - 2  # (with the byte of the command, it is less)
        return session

    def _clear(self, *sessions: MysqlSession) -> None:
        idle, self._idle = self._idle, []
        for session in (*idle, *sessions):
            with suppress(*DRIVER_ERRORS):
                session.close()

    def close(self) -> None:
        """Close idle connections now, others after their calls."""
        self._open = False
        self._clear()


class MysqlServer(Retrying[Source]):
    """A database on a server. Its tables are made at the first use.

    Raises:
        InvalidArgumentError: an option is unknown or invalid.
        OpenError: the URL cannot be read.
    """

    def __init__(self, url: str, options: MysqlOptions) -> None:
        super().__init__(Source(), DRIVER_ERRORS, _passes, _lost)
        found = complete("MySQL", MysqlOptions, options)
        arguments = _read(url, found["timeout"])
        make = partial(_Pool, arguments, found["max_connections"], found["timeout"])
        self._pools = PerProcess(make)
        place = "{unix_socket}" if "unix_socket" in arguments else "{host}:{port}"
        self._server = f"MySQL at {place}".format(**arguments)
        self._is_checked = False

    def _is_final(self, error: Exception) -> bool:
        return not _passes(error) or (_lost(error) and not self._is_checked)

    def call(self, do: Callable[[MysqlSession], T]) -> T:
        """Return the result of a call over a connection. It may be repeated."""

        async def once() -> T:
            with self._pools.get().session() as session:
                if not self._is_checked:
                    _check(session)
                    self._is_checked = True
                return do(session)

        with _mapped(self._server):
            return finish(self.retried(once))

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._pools.close()


_FIRST = "INSERT IGNORE INTO tk_store VALUES (%s, %s, 0)"


def _check(session: MysqlSession) -> None:
    """Check the version of the tables; make them if there are none."""
    version = None
    try:
        ((version,),) = session.rows("SELECT MAX(version) FROM tk_store")
    except err.Error as error:
        if _code(error) != _NO_TABLE:
            raise
    if version is None:  # (also if another process has not finished, or never will)
        schema = Sql(files(__package__).joinpath("schema.sql").read_text())
        session.run([schema, Sql(_FIRST, (VERSION, secrets.token_hex(16)))])
    elif version > VERSION:
        sentence = f"The tables have version {version}; this release knows {VERSION}."
        raise errors.NewerDatabaseError(sentence, hint="Upgrade threadkeep.")
