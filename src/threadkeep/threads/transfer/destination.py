"""Opens LangGraph's stores for writing: the saver, and a reader of the same database."""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep._core.codec import Codec
from threadkeep._core.engine.lineage import CheckpointKey
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.sqlite.opening import MEMORY
from threadkeep.errors import InvalidArgumentError, ReadOnlyError
from threadkeep.threads.transfer.opening import open_source, open_writer, path_of_store
from threadkeep.threads.transfer.sources import (
    LangGraphSource,
    MissingTablesError,
    Payloads,
    own_store,
)

_HINT = (
    "Use the path or URL (sqlite:///, postgresql://) of a database for LangGraph's SqliteSaver or"
    " PostgresSaver, or one of these savers, or an InMemorySaver."
)


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
            return Present(self._source.parents(thread), self._source.written(thread))
        finally:
            self._source.end()


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
            saver = open_writer(target, serde, stack)
            db = getattr(saver, "conn", None)
            if saver is not target and isinstance(db, sqlite3.Connection):
                # (after a power failure, another call writes the last commits again)
                db.execute("PRAGMA synchronous = NORMAL")
                stack.callback(db.execute, "PRAGMA wal_checkpoint")
            source = source or stack.enter_context(closing(open_source(target, codec, key, None)))
        return Destination(saver, source, serde, stack.pop_all())
    raise AssertionError  # (mypy: an ExitStack may swallow errors)


def _reader(target: Any, codec: Codec, key: str | bytes | None) -> LangGraphSource | None:
    """Open the store for reading; None if it has no file, or no tables."""
    path = path_of_store(target)
    if path not in (None, MEMORY) and not Path(str(path)).exists():
        return None
    try:
        return open_source(target, codec, key, None)
    except MissingTablesError:
        return None
