"""Opens LangGraph's stores for writing: the saver, and a reader of the same database."""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep._core.codec import Codec
from threadkeep._core.engine.lineage import CheckpointKey
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.external import extra
from threadkeep._stores.open import named
from threadkeep._stores.options import described, from_url
from threadkeep._stores.postgres import PostgresOptions
from threadkeep._stores.sqlite import path_in
from threadkeep._stores.sqlite.failures import named as mapped
from threadkeep._stores.sqlite.opening import MEMORY, path_of
from threadkeep.errors import InvalidArgumentError, ReadOnlyError
from threadkeep.threads.transfer.opening import homes_of, open_source
from threadkeep.threads.transfer.sources import (
    DatabaseSource,
    LangGraphSource,
    MissingTablesError,
    Payloads,
    needs,
    own_store,
)

_HINT = (
    "Use the path or URL (sqlite:///, postgresql://) of a database for LangGraph's SqliteSaver or"
    " PostgresSaver, or one of these savers, or an InMemorySaver."
)
_BUSY_SECONDS = 30.0


class Present(NamedTuple):
    """A thread there: each checkpoint's parent, and the task and index of each of its writes."""

    parents: dict[CheckpointKey, str | None]
    writes: dict[CheckpointKey, set[tuple[str, int]]]


class Destination:
    """A LangGraph store to write to. Calls may block.

    Attributes:
        serde: the serializer of its values.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any] | None,
        source: LangGraphSource | None,
        serde: SerializerProtocol,
        stack: ExitStack,
    ) -> None:
        self._saver = saver
        self._source = source
        self.serde = serde
        self._stack = stack

    @property
    def saver(self) -> BaseCheckpointSaver[Any]:
        """LangGraph's own saver, unless it was opened for reading."""
        if self._saver is None:
            raise ReadOnlyError
        return self._saver

    def close(self) -> None:
        """Release everything. Idempotent."""
        self._stack.close()

    def threads(self) -> dict[str, int]:
        """Count the checkpoints of each thread."""
        return {} if self._source is None else self._source.threads()

    def present(self, thread: str) -> Present:
        """Return a thread as it is there, without reading values."""
        if self._source is None:
            return Present({}, {})
        self._source.begin()
        try:
            return Present(self._source.parents(thread), _written(self._source, thread))
        finally:
            self._source.end()


def _written(source: LangGraphSource, thread: str) -> dict[CheckpointKey, set[tuple[str, int]]]:
    found: dict[CheckpointKey, set[tuple[str, int]]] = {}
    if isinstance(source, DatabaseSource):
        text = f"SELECT checkpoint_ns, checkpoint_id, task_id, idx FROM {source.writes}"  # noqa: S608 - constants
        for ns, checkpoint, task, idx in source.rows(
            f"{text} WHERE thread_id = {source.mark}", (thread,)
        ):
            found.setdefault((ns, checkpoint), set()).add((task, idx))
    else:
        for one in source.checkpoints(thread):
            found[one.ns, one.id] = {(write.task_id, write.idx) for write in one.writes}
    return found


def open_destination(
    target: Any, codec: Codec, key: str | bytes | None, *, create: bool
) -> Destination:
    """Open a LangGraph store for writing, by its name or by a saver.

    Missing files and tables are created with `create`; otherwise nothing is written. `key` encrypts
    the values.
    """
    if isinstance(getattr(target, "_store", None), LayeredBackend):
        raise own_store("The saver")
    if not isinstance(target, BaseCheckpointSaver | str | os.PathLike):
        raise InvalidArgumentError(f"Invalid target: {type(target).__name__}.", hint=_HINT)
    serde = target.serde if isinstance(target, BaseCheckpointSaver) else None
    serde = Payloads(codec, serde, key).serde
    with ExitStack() as stack:
        source = _reader(target, codec, key)
        if source is not None:
            stack.callback(source.close)
        saver = None
        if create:
            saver = _saver(target, serde, stack)
            source = source or stack.enter_context(closing(open_source(target, codec, key, None)))
        return Destination(saver, source, serde, stack.pop_all())
    raise AssertionError  # (mypy: an ExitStack may swallow errors)


def _reader(target: Any, codec: Codec, key: str | bytes | None) -> LangGraphSource | None:
    """Open the store for reading; None if it has no file, or no tables."""
    path = _path_of(target)
    if path not in (None, MEMORY) and not Path(str(path)).exists():
        return None
    try:
        return open_source(target, codec, key, None)
    except MissingTablesError:
        return None


def _path_of(target: Any) -> str | None:
    """Return the path of a SQLite database; None for another store."""
    if isinstance(target, BaseCheckpointSaver):
        return path_of(target.conn) if "sqlite" in homes_of(target) else None  # type: ignore[attr-defined]
    name = os.fspath(target)
    if not isinstance(name, str):
        raise InvalidArgumentError("Invalid path: bytes.", hint=_HINT)
    if "://" in name or named(name) == "postgres":
        return path_in(name) if named(name) == "sqlite" else None
    return path_of(name)


def _saver(target: Any, serde: SerializerProtocol, stack: ExitStack) -> BaseCheckpointSaver[Any]:
    """Return LangGraph's saver for the store, with a connection of its own, and its tables."""
    path = _path_of(target)
    if isinstance(target, InMemorySaver) or path == MEMORY:
        if path == MEMORY:
            target.setup()
        return target  # type: ignore[no-any-return]
    if path is not None:
        with needs("langgraph-checkpoint-sqlite", "write its tables"):
            from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: PLC0415 - only here
        with mapped(path):
            db = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
            saver = SqliteSaver(stack.enter_context(closing(db)), serde=serde)
            saver.setup()
            # (after a power failure, another call writes the last commits again)
            db.execute("PRAGMA synchronous = NORMAL")
            stack.callback(db.execute, "PRAGMA wal_checkpoint")
        return saver
    with extra("PostgreSQL", "postgres"):
        from threadkeep.threads.transfer import source_postgres  # noqa: PLC0415 - an extra
    if isinstance(target, BaseCheckpointSaver):
        return source_postgres.open_saver(source_postgres.conninfo_of(target.conn), serde, stack)  # type: ignore[attr-defined]
    name, options = from_url(os.fspath(target), described(PostgresOptions))
    return source_postgres.open_saver(name, serde, stack, options.get("schema"))
