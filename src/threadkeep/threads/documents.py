"""JSON documents of threadkeep's own, stored in a store of threads.

A document is the body of one pending write of a separate thread without checkpoints, which nothing
lists or counts. One change replaces it. Every store can hold it, and no save reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, cast

from threadkeep._core.codec import Codec
from threadkeep._core.engine.model import (
    OWN_NS,
    Batch,
    DropThread,
    ReadThread,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.engine.operation import Operation, fetch
from threadkeep._core.engine.refs import Inline
from threadkeep._core.engine.rows import pack_writes, unpack_writes, with_body
from threadkeep.errors import CodecError, CorruptionError

UNREADABLE = (CodecError, CorruptionError, ValueError, TypeError, LookupError, AttributeError)
"""Errors of documents that are damaged, or of another release."""


class Author(Protocol):
    """A codec of documents, and a clock: an `Engine`, for example."""

    @property
    def codec(self) -> Codec:
        """Encodes the JSON text."""

    @property
    def now(self) -> Callable[[], int]:
        """Returns microseconds since 1970."""


def thread_of(name: str) -> str:
    """Return the hidden thread of a document."""
    return f"{OWN_NS}{name}"


def read(author: Author, thread: str) -> Operation[tuple[Any, int | None]]:
    """Return a document and its thread's generation, each None if missing or unreadable."""
    generation = None
    with suppress(*UNREADABLE):
        rows = cast("ThreadRows", (yield from fetch(ReadThread(thread, stub=True))))
        generation = rows.generation
        for row in rows.orphans:
            ref = unpack_writes(row)[0].ref
            return json.loads(author.codec.decode(cast("Inline", ref).data)), generation
    return None, generation


def replaced(author: Author, thread: str, document: Any, generation: int | None) -> DropThread:
    """Return the change that stores a document in place of the one read with this generation.

    It raises `StaleThreadError` if the document was replaced or removed since. None replaces any.
    """
    value = Inline(author.codec.encode(json.dumps(document)))
    row = WriteRow(thread, thread, 0, 0, thread, "", b"")
    row = with_body(row, pack_writes([(0, thread, value)]))
    return DropThread(thread, 0, generation, rows=Batch(thread, author.now(), writes=(row,)))


def removed(thread: str) -> DropThread:
    """Return the change that removes a document, and refuses those that others now replace."""
    return DropThread(thread, 0)  # (also if there is none: it raises the generation)
