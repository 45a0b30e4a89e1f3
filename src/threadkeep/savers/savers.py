"""Savers by name: each is a `Saver` that makes its own backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep._stores.open import open_backend, open_in
from threadkeep._stores.sqlite import Database, SqliteBackend
from threadkeep.savers.options import check_options, pop_options
from threadkeep.savers.saver import Saver

if TYPE_CHECKING:
    pass


class MemorySaver(Saver):
    """A saver that keeps everything in this process, in place of LangGraph's `InMemorySaver`.

    Args:
        **options: those of `Saver`.

    Raises:
        InvalidArgumentError: an option is unknown or invalid.
    """

    def __init__(self, **options: Any) -> None:
        check_options(options)
        super().__init__(open_backend("memory://"), **options)


class SqliteSaver(Saver):
    """A saver on one SQLite file, in place of LangGraph's `SqliteSaver` and `AsyncSqliteSaver`.

    Args:
        conn: the file's path, or a connection of sqlite3 or aiosqlite, of which the file is
            taken; it stays the caller's, who closes it.
        synchronous: "full": a commit survives a power cut; "normal": it survives a crash
            of the process, and a power cut may take the last commits.
        busy_timeout: seconds to wait for another process that is writing.
        **options: those of `Saver`.

    Raises:
        OpenError: and its kinds, if the file cannot be opened. In an event loop, which opening
            would block, `async with`, `asetup()` or the first use raises it.
        InvalidArgumentError: an option is unknown or invalid; nothing was opened.
    """

    def __init__(
        self,
        conn: Database,
        *,
        synchronous: Literal["full", "normal"] = "full",
        busy_timeout: float = 30.0,
        **options: Any,
    ) -> None:
        check_options(options)
        backend = SqliteBackend(conn, synchronous=synchronous, busy_timeout=busy_timeout)
        super().__init__(backend, **options)

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> Self:
        """Open a file (or ":memory:"); use it under `with` or `async with`."""
        return cls(conn_string, **options)


class PostgresSaver(Saver):
    """A saver on a PostgreSQL database, in place of LangGraph's `PostgresSaver`.

    Sync and async methods each have connections of their own kind, from pools that are
    opened when they are first needed. Call `setup()` once before the first use, or run
    `threadkeep migrate URL`; with `partition_by`, every month.

    Args:
        conn: a URL (or another conninfo of libpq), or a pool or connection of psycopg,
            which stays the caller's, who closes it. With an async one, only the async
            methods work. While a transaction of the program's is open on a connection,
            nothing can be saved over it.
        pipe: a pipeline of psycopg on that connection; not needed, as calls are pipelined
            where it helps.
        serde: see `Saver`; here by position too, as programs give it.
        **options: those of `Saver`, and `schema` (where the tables are, "threadkeep"),
            `min_size` and `max_size` (connections of a pool, 1 and 16), `timeout` (seconds
            to wait for a free one, 30), `prepare_threshold` (after how many uses a
            statement is prepared, 5; None for never), `statement_timeout` (seconds; None
            for the server's own), `application_name` ("threadkeep"), `partition_by` ("month":
            `setup()` keeps checkpoints in a partition for each month, makes those of this month
            and the next three, and drops past ones that hold nothing any more; None: it leaves
            the table as it is).

    Raises:
        OpenError: the URL cannot be read, or psycopg is not installed.
        InvalidArgumentError: an option is unknown or invalid, or a pool was given
            with a pipe; nothing was opened.
    """

    def __init__(
        self,
        conn: Any,
        pipe: Any = None,
        serde: SerializerProtocol | None = None,
        **options: Any,
    ) -> None:
        options["serde"] = serde
        own = pop_options(options)
        super().__init__(open_in("postgres", conn, pipe, **options), **own)

    @classmethod
    def from_conn_string(cls, conn_string: str, *, pipeline: bool = False, **options: Any) -> Self:
        """Open the database of a URL; use it under `with` or `async with`.

        Args:
            conn_string: the URL.
            pipeline: has no effect: calls are pipelined where it helps.
            **options: those of `PostgresSaver`.
        """
        del pipeline
        return cls(conn_string, **options)


class AsyncPostgresSaver(PostgresSaver):
    """`PostgresSaver`, in place of LangGraph's `AsyncPostgresSaver`: `setup` is awaited."""

    async def setup(self) -> None:  # type: ignore[override] # as the class that it replaces
        """Make or migrate the tables; see `Saver.setup`."""
        await self.asetup()


class RedisSaver(Saver):
    """A saver on a Redis or Valkey server (6.2 or newer, no modules), or on a cluster.

    Sync and async methods each have connections of their own kind, opened when they are first
    needed. What survives a crash of the server is a matter of its settings: see
    docs/operating-redis.md.

    Args:
        redis_url: a URL (`redis://`, `rediss://`, `unix://`, `redis+cluster://`), or a client
            of redis-py (also of a cluster, also async), which stays the caller's, who closes
            it. With an async one, sync methods are for other threads than that of its event
            loop.
        **options: those of `Saver`, and `prefix` (of all keys' names, "tk"), `ttl` (seconds
            that a thread lives on from each write; None for ever, the default),
            `ttl_refresh_on_read` (whether from each read as well, False), `max_connections`
            (16), `timeout` (seconds to wait for a free connection or an answer, 30).

    Raises:
        OpenError: the URL cannot be read, or redis-py is not installed.
        InvalidArgumentError: an option is unknown or invalid, or the client has
            `decode_responses`; nothing was opened.
    """

    def __init__(self, redis_url: Any, **options: Any) -> None:
        own = pop_options(options)
        super().__init__(open_in("redis", redis_url, **options), **own)

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> Self:
        """Open the server of a URL; use it under `with` or `async with`."""
        return cls(conn_string, **options)


def open_saver(url: str, **options: Any) -> Saver:
    """Open the store that a URL names; use it under `with` or `async with`.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite:///:memory:`,
            `postgresql://user:password@host:5432/database`,
            `redis://user:password@host:6379/0`, `redis+cluster://host:6379` or `memory://`.
        **options: those of `Saver`, and those of the backend (see `SqliteSaver`,
            `PostgresSaver` and `RedisSaver`).

    Raises:
        OpenError: the scheme is unknown, or the store cannot be opened.
        InvalidArgumentError: an option is unknown or invalid; nothing was opened.
    """
    own = pop_options(options)
    return Saver(open_backend(url, **options), **own)


AsyncRedisSaver = RedisSaver
AsyncSqliteSaver = SqliteSaver
InMemorySaver = MemorySaver
