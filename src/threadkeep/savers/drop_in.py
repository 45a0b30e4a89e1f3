"""Attributes that programs read from LangGraph's savers and stores."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from os import PathLike
from typing import Any, ClassVar

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from threadkeep._core.known_names import HINTS, KnownNames

_CONN = (
    "threadkeep opens its own connections to a path or URL. Give it the connection, pool or client"
    " of your program, or open one beside it."
)
_LOOP = "It was opened outside an event loop. Its async methods work in every loop."
_PIPELINED = "Calls are always pipelined."
_TABLES = "Use setup(), or the command threadkeep migrate: the tables are threadkeep's."


class _Lock(asyncio.Lock):
    """A lock for `async with`, and another one for `with`, as LangGraph's classes have either."""

    def __init__(self) -> None:
        super().__init__()
        self._blocking = threading.Lock()

    def __enter__(self) -> None:
        self._blocking.acquire()

    def __exit__(self, *error: object) -> None:
        self._blocking.release()


class DropIn(KnownNames):
    """Attributes of LangGraph's classes. The errors of others name their replacement."""

    conn: Any
    """The connection, pool or client that you gave, missing if you gave a path or URL."""

    loop: asyncio.AbstractEventLoop
    """The event loop in which you opened this, missing outside one. Any loop may use it."""

    def _offer(self, given: Any, backend: Any) -> None:
        """Set the attributes that depend on the arguments of the constructor."""
        if not isinstance(given, str | PathLike):
            self.conn = given
        if (lock := getattr(backend, "given_lock", None)) is not None:
            self.lock = lock
        with suppress(RuntimeError):
            self.loop = asyncio.get_running_loop()

    @cached_property
    def lock(self) -> Any:
        """A lock for your own use. Calls over your PostgreSQL connection take it, too."""
        return _Lock()


class SaverAttributes(DropIn):
    """Attributes of LangGraph's savers."""

    _hints: ClassVar[Mapping[str, str]] = HINTS | {
        "MIGRATIONS": _TABLES,
        "blobs": "Use the channel_values of saver.get_tuple(config).",
        "conn": _CONN,
        "cursor": "Use saver.list and saver.threads, or a cursor of your own connection.",
        "loop": _LOOP,
        "pipe": _PIPELINED,
        "storage": "Use saver.list(None), saver.threads.search() or saver.delete_thread(id).",
        "supports_pipeline": _PIPELINED,
        "writes": "Use the pending_writes of saver.get_tuple(config).",
    }

    @cached_property
    def jsonplus_serde(self) -> JsonPlusSerializer:
        """LangGraph's serializer. `serde` is the one that the saver uses."""
        return JsonPlusSerializer()


class StoreAttributes(DropIn):
    """Attributes of LangGraph's stores."""

    _hints: ClassVar[Mapping[str, str]] = HINTS | {
        "MIGRATIONS": _TABLES,
        "VECTOR_MIGRATIONS": _TABLES,
        "_data": "Use store.search(()), store.list_namespaces() or store.erase(prefix).",
        "conn": _CONN,
        "loop": _LOOP,
        "pipe": _PIPELINED,
        "supports_pipeline": _PIPELINED,
    }
