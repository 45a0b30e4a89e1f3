"""Open LangGraph's stores by a name, or the store of a saver."""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

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
from threadkeep.errors import InvalidArgumentError, OpenError
from threadkeep.keys import KeyRing
from threadkeep.threads.transfer.source_sqlite import open_sqlite, open_sqlite_saver
from threadkeep.threads.transfer.sources import (
    DatabaseSource,
    LangGraphSource,
    Payloads,
    needs,
    open_memory,
    own_store,
)

_HOME = "langgraph.checkpoint."
_HINT = (
    "Use the path or URL (sqlite:///, postgresql://) of a database of LangGraph's SqliteSaver or"
    " PostgresSaver, or one of these savers, or an InMemorySaver."
)
_BUSY_SECONDS = 30.0


def open_source(
    source: Any, codec: Codec, key: str | bytes | None, ring: KeyRing | None
) -> LangGraphSource:
    """Open a LangGraph store for reading.

    `key` is the source's own, `ring` are keys that it may also have.
    """
    if isinstance(getattr(source, "_store", None), LayeredBackend):
        raise own_store("The saver")
    if isinstance(source, BaseCheckpointSaver):
        return _of_saver(source, Payloads(codec, source.serde, key, ring))
    if not isinstance(source, str | os.PathLike):
        raise InvalidArgumentError(f"Invalid source: {type(source).__name__}.", hint=_HINT)
    return open_named(os.fspath(source), Payloads(codec, None, key, ring))


def open_named(name: str, payloads: Payloads) -> DatabaseSource:
    """Open a LangGraph database by its URL or path; see `open_source`."""
    if not isinstance(name, str):
        raise InvalidArgumentError("Invalid path: bytes.", hint=_HINT)
    database = named(name)
    if database == "postgres":
        name, options = from_url(name, described(PostgresOptions))
        with extra("PostgreSQL", "postgres"):
            from threadkeep.threads.transfer import source_postgres  # noqa: PLC0415 - an extra, only where it is used
        return source_postgres.open_postgres(name, payloads, options.get("schema"))
    if database == "sqlite" and "://" in name:
        return open_sqlite(path_in(name), payloads)
    if "://" in name:
        raise OpenError("This URL does not name a LangGraph store.", hint=_HINT)
    return open_sqlite(path_of(name), payloads)


def open_writer(
    store: Any, serde: SerializerProtocol | None, stack: ExitStack, *, shared: bool = False
) -> BaseCheckpointSaver[Any]:
    """Open LangGraph's own saver on a store, to write into its tables. Its calls may block.

    It has a connection of its own, except in memory, and creates missing tables. With `shared`,
    several threads may use it at once, it replaces lost connections, and PostgreSQL's tables have
    to exist.
    """
    path = path_of_store(store)
    if path == MEMORY:
        store.setup()
    if isinstance(store, InMemorySaver) or path == MEMORY:
        return store  # type: ignore[no-any-return]
    if path is not None:
        folder = Path(path).absolute().parent
        if not folder.is_dir():
            raise OpenError(f"There is no folder {folder}.", hint="Create it, or correct the path.")
        with needs("langgraph-checkpoint-sqlite", "write its tables"):
            from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: PLC0415 - only to write
        with mapped(path):
            db = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
            saver = SqliteSaver(stack.enter_context(closing(db)), serde=serde)
            saver.setup()
        return saver
    with extra("PostgreSQL", "postgres"):
        from threadkeep._stores.postgres.search_path import conninfo_of  # noqa: PLC0415 - an extra
        from threadkeep.threads.transfer import source_postgres  # noqa: PLC0415 - likewise
    options: Any = {}
    if isinstance(store, BaseCheckpointSaver):
        database = conninfo_of(store.conn)  # type: ignore[attr-defined]
    else:
        database, options = from_url(os.fspath(store), described(PostgresOptions))
    return source_postgres.open_saver(database, serde, stack, options.get("schema"), shared=shared)


def path_of_store(store: Any) -> str | None:
    """Return the path of LangGraph's SQLite database; None for another store."""
    if isinstance(store, BaseCheckpointSaver):
        return path_of(store.conn) if "sqlite" in homes_of(store) else None  # type: ignore[attr-defined]
    name = os.fspath(store)
    if not isinstance(name, str):
        raise InvalidArgumentError("Invalid path: bytes.", hint=_HINT)
    if "://" in name or named(name) == "postgres":
        return path_in(name) if named(name) == "sqlite" else None
    return path_of(name)


def homes_of(saver: object) -> list[str]:
    """Return the names of LangGraph's packages that a saver's classes are of."""
    return [
        cls.__module__.removeprefix(_HOME).partition(".")[0]
        for cls in type(saver).__mro__
        if cls.__module__.startswith(_HOME)
    ]


def _of_saver(saver: Any, payloads: Payloads) -> LangGraphSource:
    if isinstance(saver, InMemorySaver):
        return open_memory(saver, payloads)
    homes = homes_of(saver)
    if "sqlite" in homes:
        return open_sqlite_saver(saver, payloads)
    if "postgres" in homes:
        with extra("PostgreSQL", "postgres"):
            from threadkeep._stores.postgres.search_path import conninfo_of  # noqa: PLC0415 - as above
            from threadkeep.threads.transfer import source_postgres  # noqa: PLC0415 - likewise
        return source_postgres.open_postgres(conninfo_of(saver.conn), payloads)
    raise InvalidArgumentError(f"{type(saver).__name__} cannot be read losslessly.", hint=_HINT)
