"""Readers of the stores of LangGraph's own savers."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from threadkeep._core.codec import Codec
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.extras import extra
from threadkeep._stores.open import check_is_path, is_postgres, sqlite_path
from threadkeep._stores.options import described, from_url
from threadkeep._stores.postgres import PostgresOptions
from threadkeep._stores.sqlite.opening import MEMORY, path_of
from threadkeep.errors import InvalidArgumentError, OpenError
from threadkeep.threads.transfer.sources.base import (
    MemorySource,
    Payloads,
    Source,
    SourceCheckpoint,
    SourceWrite,
    own_store,
)
from threadkeep.threads.transfer.sources.sqlite import copy_of, open_sqlite

__all__ = ["Source", "SourceCheckpoint", "SourceWrite", "open_source"]

_HOME = "langgraph.checkpoint."
_HINT = (
    "Use the path or URL (sqlite:///, postgresql://) of a database of LangGraph's SqliteSaver or"
    " PostgresSaver, or one of these savers, or an InMemorySaver."
)


def open_source(source: Any, codec: Codec, key: str | bytes | None) -> Source:
    """Open a store of LangGraph's for reading."""
    if isinstance(getattr(source, "_store", None), LayeredBackend):
        raise own_store("The saver")
    if isinstance(source, BaseCheckpointSaver):
        return _of_saver(source, Payloads(codec, source.serde, key))
    if not isinstance(source, str | os.PathLike):
        raise InvalidArgumentError(f"Invalid source: {type(source).__name__}.", hint=_HINT)
    return _of_name(os.fspath(source), Payloads(codec, None, key))


def _of_name(name: str, payloads: Payloads) -> Source:
    if not isinstance(name, str):
        raise InvalidArgumentError("Invalid path: bytes.", hint=_HINT)
    if is_postgres(name):
        name, options = from_url(name, described(PostgresOptions))
        with extra("PostgreSQL", "postgres"):
            from threadkeep.threads.transfer.sources import postgres  # noqa: PLC0415 - an extra, only where it is used
        return postgres.open_postgres(name, payloads, options.get("schema"))
    if "://" in name:
        path = sqlite_path(name)
        if path is None:
            raise OpenError("This URL is not one of LangGraph's stores.", hint=_HINT)
        return open_sqlite(path, payloads)
    check_is_path(name)
    return open_sqlite(path_of(name), payloads)


def _of_saver(saver: BaseCheckpointSaver[Any], payloads: Payloads) -> Source:
    if isinstance(saver, InMemorySaver):
        return MemorySource(saver, payloads)
    homes = [cls.__module__.removeprefix(_HOME).partition(".")[0] for cls in type(saver).__mro__]
    if "sqlite" in homes:
        return _of_sqlite(saver, payloads)
    if "postgres" in homes:
        with extra("PostgreSQL", "postgres"):
            from threadkeep.threads.transfer.sources import postgres  # noqa: PLC0415 - as above
        return postgres.open_postgres(postgres.conninfo_of(_connection(saver)), payloads)
    raise InvalidArgumentError(f"{type(saver).__name__} cannot be read losslessly.", hint=_HINT)


def _of_sqlite(saver: BaseCheckpointSaver[Any], payloads: Payloads) -> Source:
    connection = _connection(saver)
    path = path_of(connection)
    if path != MEMORY:
        return open_sqlite(path, payloads)
    if not isinstance(connection, sqlite3.Connection):
        raise OpenError(
            "A database in memory cannot be read through an async saver.",
            hint="Copy it to a file first: VACUUM INTO 'file.db'.",
        )
    return copy_of(saver, payloads)


def _connection(saver: Any) -> Any:
    return saver.conn
