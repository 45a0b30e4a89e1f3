"""Opens LangGraph's stores, by a name or as the store of a saver: to read, or to write."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, cast

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep._core.codec import Codec
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.external import extra
from threadkeep._stores.open import named
from threadkeep._stores.options import described, from_url
from threadkeep._stores.postgres import PostgresOptions
from threadkeep._stores.sqlite import path_in
from threadkeep._stores.sqlite.failures import named as mapped
from threadkeep._stores.sqlite.opening import MEMORY, path_of
from threadkeep.errors import (
    InvalidArgumentError,
    LockedError,
    OpenError,
    ThreadkeepError,
    UnreachableError,
)
from threadkeep.keys import KeyRing
from threadkeep.threads.transfer.source_memory import MemorySource
from threadkeep.threads.transfer.source_sqlite import open_sqlite
from threadkeep.threads.transfer.sources import (
    DatabaseSource,
    LangGraphSource,
    MissingTablesError,
    Payloads,
    needs,
    own_store,
)

S = TypeVar("S", bound=LangGraphSource)
T = TypeVar("T")

_HOME = "langgraph.checkpoint."
_HINT = (
    "Use the path or URL (sqlite:///, postgresql://) of a database of LangGraph's SqliteSaver or"
    " PostgresSaver, or one of these savers, or an InMemorySaver."
)
_BUSY_SECONDS = 30.0


class _Location(NamedTuple):
    """A store: the path of a file or the server's connection string, and the saver if given."""

    kind: str  # "memory", "sqlite" or "postgres"
    place: str
    schema: str | None = None
    saver: Any = None


def _located(store: Any) -> _Location:
    if isinstance(getattr(store, "_store", None), LayeredBackend):
        raise own_store("The saver")
    if isinstance(store, InMemorySaver):
        return _Location("memory", MEMORY, saver=store)
    if isinstance(store, BaseCheckpointSaver):
        modules = [cls.__module__ for cls in type(store).__mro__]
        homes = {
            name.removeprefix(_HOME).partition(".")[0] for name in modules if name.startswith(_HOME)
        }
        connection: Any = getattr(store, "conn", None)
        if "sqlite" in homes:
            return _Location("sqlite", path_of(connection), saver=store)
        if "postgres" in homes:
            with extra("PostgreSQL", "postgres"):
                from threadkeep._stores.postgres.search_path import conninfo_of  # noqa: PLC0415 - an extra, only when it is used
            return _Location("postgres", conninfo_of(connection), saver=store)
        problem = f"{type(store).__name__} cannot be read losslessly."
        raise InvalidArgumentError(problem, hint=_HINT)
    name = os.fspath(store) if isinstance(store, os.PathLike) else store
    if not isinstance(name, str):
        raise InvalidArgumentError(f"Invalid store: {type(name).__name__}.", hint=_HINT)
    database = named(name)
    if database == "postgres":
        url, options = from_url(name, described(PostgresOptions))
        return _Location("postgres", url, options.get("schema"))
    if "://" in name and database != "sqlite":
        raise OpenError("This URL does not name a LangGraph store.", hint=_HINT)
    return _Location("sqlite", path_in(name) if "://" in name else path_of(name))


def _postgres() -> Any:
    with extra("PostgreSQL", "postgres"):
        from threadkeep.threads.transfer import source_postgres  # noqa: PLC0415 - an extra, only when it is used
    return source_postgres


# -- to read ---------------------------------------------------------------------------


def open_source(
    source: Any, codec: Codec, key: str | bytes | None, ring: KeyRing | None
) -> LangGraphSource:
    """Open a LangGraph store for reading.

    `key` is the source's own, `ring` are keys that it may also have.
    """
    at = _located(source)
    return _opened(at, Payloads(codec, at.saver and at.saver.serde, key, ring))


def open_named(name: str, payloads: Payloads) -> DatabaseSource:
    """Open a LangGraph database by its URL or path (see `open_source`)."""
    return cast("DatabaseSource", _opened(_located(name), payloads))


class SharedSource(Generic[S]):
    """A source for one call at a time, opened at the first one, and again after a lost connection.

    Args:
        opened: opens it.
        lost: errors besides UnreachableError after which a call is repeated.
    """

    def __init__(self, opened: Callable[[], S], *lost: type[ThreadkeepError]) -> None:
        self._opened = opened
        self._lost: tuple[type[ThreadkeepError], ...] = (UnreachableError, *lost)
        self._source: S | None = None
        self.lock = threading.Lock()

    def read(self, call: Callable[[S], T], seconds: float = -1) -> T:
        """Read one state. Raises LockedError if other calls take longer than so many seconds."""
        if not self.lock.acquire(timeout=seconds):
            raise LockedError("Other reads of this store take too long.", hint="Try again later.")
        try:
            source = self._current()
            try:
                return self._in_one_state(source, call)
            except self._lost:
                self.forget()
                return self._in_one_state(self._current(), call)
        finally:
            self.lock.release()

    def _current(self) -> S:
        if self._source is not None and not self._source.is_current():
            self.forget()
        self._source = self._source or self._opened()
        return self._source

    def _in_one_state(self, source: S, call: Callable[[S], T]) -> T:
        source.begin()
        try:
            return call(source)
        finally:
            source.end()

    def forget(self) -> None:
        """Close the source, which the next call opens again. Needs the lock."""
        source, self._source = self._source, None
        if source is not None:
            source.close()


def _opened(at: _Location, payloads: Payloads) -> LangGraphSource:
    if at.kind == "memory":
        return MemorySource(at.saver, payloads)
    if at.kind == "sqlite":
        return open_sqlite(at.place, payloads, at.saver)
    source: LangGraphSource = _postgres().open_postgres(at.place, payloads, at.schema)
    return source


# -- to write --------------------------------------------------------------------------


def open_writer(
    store: Any, serde: SerializerProtocol | None, stack: ExitStack, *, shared: bool = False
) -> BaseCheckpointSaver[Any]:
    """Open LangGraph's own saver on a store, to write into its tables. Its calls may block.

    It has a connection of its own, except in memory, and creates missing tables. With `shared`,
    several threads may use it at once, it replaces lost connections, and PostgreSQL's tables have
    to exist.
    """
    at = _located(store)
    saver: BaseCheckpointSaver[Any]
    if at.place == MEMORY and at.saver is not None:
        if at.kind == "sqlite":
            at.saver.setup()
        saver = at.saver
    elif at.kind == "sqlite":
        folder = Path(at.place).absolute().parent
        if not folder.is_dir():
            raise OpenError(f"There is no folder {folder}.", hint="Create it, or correct the path.")
        with needs("langgraph-checkpoint-sqlite", "write its tables"):
            from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: PLC0415 - only to write
        with mapped(at.place):
            db = sqlite3.connect(at.place, timeout=_BUSY_SECONDS, check_same_thread=False)
            saver = SqliteSaver(stack.enter_context(closing(db)), serde=serde)
            saver.setup()
    else:
        saver = _postgres().open_saver(at.place, serde, stack, at.schema, shared=shared)
    return saver


def open_destination(
    target: Any, codec: Codec, key: str | bytes | None, stack: ExitStack, *, create: bool
) -> tuple[LangGraphSource, BaseCheckpointSaver[Any]]:
    """Open a LangGraph store for writing, by its name or by a saver, as a source and a saver.

    Missing files and tables are created with `create`. Otherwise nothing is written, and the saver
    is of another store. `key` encrypts the values.
    """
    at = _located(target)
    payloads = Payloads(codec, at.saver and at.saver.serde, key)
    empty = InMemorySaver()
    source: LangGraphSource = MemorySource(empty, payloads)
    saver: BaseCheckpointSaver[Any] = empty
    is_new = at.kind == "sqlite" and at.place != MEMORY and not Path(at.place).exists()
    if not is_new:
        try:
            source = stack.enter_context(closing(_opened(at, payloads)))
        except MissingTablesError:
            is_new = True
    if create:
        saver = open_writer(target, payloads.serde, stack)
        db = getattr(saver, "conn", None)
        if saver is not target and isinstance(db, sqlite3.Connection):
            # (after a power failure, another call writes the last commits again)
            db.execute("PRAGMA synchronous = NORMAL")
            stack.callback(db.execute, "PRAGMA wal_checkpoint")
        if is_new:
            source = stack.enter_context(closing(_opened(at, payloads)))
    return source, saver
