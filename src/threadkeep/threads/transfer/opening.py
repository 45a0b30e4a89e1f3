"""Open LangGraph's stores by a name, or the store of a saver."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from threadkeep._core.codec import Codec
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.external import extra
from threadkeep._stores.open import named
from threadkeep._stores.options import described, from_url
from threadkeep._stores.postgres import PostgresOptions
from threadkeep._stores.sqlite import path_in
from threadkeep._stores.sqlite.opening import path_of
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


@contextmanager
def open_writer(source: str | BaseCheckpointSaver[Any]) -> Iterator[BaseCheckpointSaver[Any]]:
    """Open LangGraph's own saver on a database, to write into its tables. Its calls block.

    It has connections of its own, except in memory. The tables must be there.
    """
    if isinstance(source, InMemorySaver):
        yield source
        return
    name = source if isinstance(source, str) else None
    if name is None:
        conn: Any = getattr(source, "conn", None)
        if "sqlite" in homes_of(source):
            name = path_of(conn)
        else:
            from threadkeep.threads.transfer import source_postgres  # noqa: PLC0415 - an extra

            name = source_postgres.conninfo_of(conn)
    serde = None if isinstance(source, str) else source.serde
    if named(name) == "postgres":
        with extra("PostgreSQL", "postgres"):
            from threadkeep.threads.transfer import source_postgres  # noqa: PLC0415 - an extra
        name, options = from_url(name, described(PostgresOptions))
        with source_postgres.pooled_saver(name, serde, options.get("schema")) as saver:
            yield saver
    else:
        with needs("langgraph-checkpoint-sqlite", "write into LangGraph's tables"):
            from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: PLC0415 - an extra
        file = path_in(name) if "://" in name else path_of(name)
        with closing(sqlite3.connect(file, check_same_thread=False, timeout=30)) as db:
            yield SqliteSaver(db, serde=serde)


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
            from threadkeep.threads.transfer import source_postgres  # noqa: PLC0415 - as above
        return source_postgres.open_postgres(source_postgres.conninfo_of(saver.conn), payloads)
    raise InvalidArgumentError(f"{type(saver).__name__} cannot be read losslessly.", hint=_HINT)
