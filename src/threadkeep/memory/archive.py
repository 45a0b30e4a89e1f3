"""The archive of threads: stored records, and their messages found by id and by words.

The records are the archive. The index only makes finding quick. Any process may remove a thread
from the index, so its answers count only while it has all records of a conversation.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from threadkeep._core import arguments
from threadkeep._core.engine.operation import Operation
from threadkeep._core.lru import Lru
from threadkeep._run import driver
from threadkeep._run.delegate import Delegate
from threadkeep._stores.base import AsyncBackend, Backend
from threadkeep._stores.message_index import ArchiveIndex, Hit, ScanIndex, indexed, wanted
from threadkeep._stores.process_forks import FirstUse
from threadkeep.memory import records
from threadkeep.memory.policy import ArchivedMessage
from threadkeep.memory.records import Record

T = TypeVar("T")

_CACHED = 2048  # records, and views of checkpoints
_log = logging.getLogger("threadkeep.memory")


class Recent(Generic[T]):
    """LRU cache of values by thread and checkpoint id.

    It keeps a copy of the id: the saver detects the end of a run by the references to its id.
    """

    def __init__(self) -> None:
        self._values: Lru[tuple[str, bytes], T] = Lru(_CACHED)
        self._lock = threading.Lock()

    def get(self, thread: str, key: str) -> T | None:
        """Return a value, or None."""
        with self._lock:
            return self._values.get((thread, key.encode()))

    def put(self, thread: str, key: str, value: T) -> None:
        """Add a value."""
        with self._lock:
            self._values.put((thread, key.encode()), value)

    def pop(self, thread: str, key: str) -> None:
        """Drop a value."""
        with self._lock:
            self._values.drop((thread, key.encode()))

    def forget(self, thread: str) -> None:
        """Drop all values of a thread."""
        with self._lock:
            for at in [at for at in self._values if at[0] == thread]:
                self._values.drop(at)


def _is_encrypted(saver: BaseCheckpointSaver[Any]) -> bool:
    return isinstance(saver.serde, EncryptedSerializer)


def open_index(saver: BaseCheckpointSaver[Any]) -> ArchiveIndex:
    """Return the index of a saver's threads.

    It is in the saver's SQLite file or PostgreSQL schema. For other stores, for savers that
    encrypt, and for connections that your program opened, it is in the memory of this process.
    """
    backend = getattr(saver, "backend", None)
    if _is_encrypted(saver) or not isinstance(backend, Backend | AsyncBackend):
        return ScanIndex()
    return backend.message_index() or ScanIndex()


class Archive(Delegate):
    """A saver that stores records of threads next to their checkpoints."""

    def __init__(
        self, saver: BaseCheckpointSaver[Any], channel: str, index: ArchiveIndex | None
    ) -> None:
        super().__init__(saver)
        self.channel = channel
        self._own_index = index is None
        self._indexes: list[ArchiveIndex] = [] if index is None else [index]
        self._open_index = FirstUse(self._open_first)
        self._records: Recent[Record] = Recent()

    def _open_first(self) -> None:
        if not self._indexes:
            self._indexes.append(open_index(self._inner))

    def _call_threads(self, name: str, *args: Any, **options: Any) -> Operation[Any]:
        """Call a method of the wrapped saver's `threads`, or do nothing if it has none."""
        threads = getattr(self._inner, "threads", None)
        if threads is not None:
            method, variant = getattr(threads, name), getattr(threads, f"a{name}")
            both = partial(method, *args, **options), partial(variant, *args, **options)
            return (yield from driver.sync_or_async(*both))

    # -- records ---------------------------------------------------------------------

    def _record(self, thread: str, key: str) -> Operation[Record | None]:
        """Return a record, or None if it does not exist."""
        record = self._records.get(thread, key)
        if record is None:
            found = yield from self._call("get_tuple", records.place(thread, key))
            if found is None:
                return None
            record = records.from_tuple(found)
            self._records.put(thread, key, record)
        return record

    def _add(
        self, thread: str, before: Record | None, record: Record, run: object = None
    ) -> Operation[Record]:
        """Store a record, and add its messages to the index.

        `run` has read the thread, for a record whose checkpoint is not stored.
        """
        version = self._inner.get_next_version(None if before is None else before.version, None)
        record = replace(record, version=version)
        config, *more = records.to_put(thread, record, self.channel)
        config = config if run is None else arguments.saving_as(run, config)
        if record.parent is not None:
            config = arguments.referring_to(record.parent, config)
        yield from self._call("put", config, *more)
        self._records.put(thread, record.key, record)
        yield from self._index(thread, record)
        return record

    def _all_records(self, thread: str) -> Operation[dict[str, Record]]:
        """Return the records of a thread, by key."""
        config = records.place(thread)

        def call() -> list[CheckpointTuple]:
            return list(self._inner.list(config))

        async def acall() -> list[CheckpointTuple]:
            return [found async for found in self._inner.alist(config)]

        found = yield from driver.sync_or_async(call, acall)
        return {one.checkpoint["id"]: records.from_tuple(one) for one in found}

    def _chain(self, thread: str, record: Record | None) -> Operation[list[Record]]:
        """Return a record and its ancestors, oldest first."""
        if record is None:
            return []
        return records.chain((yield from self._all_records(thread)), record.key)

    def _archived(
        self, thread: str, record: Record | None, start: int = 0
    ) -> Operation[list[tuple[int, BaseMessage, Record]]]:
        """Return position, message and record of all archived messages from `start` on."""
        if record is not None and start:
            chain, at = [record], record
            while at.start > start and at.parent is not None:
                above = yield from self._record(thread, at.parent)
                if above is None:
                    break
                at = above
                chain.append(at)
            chain.reverse()
        else:
            chain = yield from self._chain(thread, record)
        return [one for one in records.archived(chain) if one[0] >= start]

    # -- the index -------------------------------------------------------------------

    @property
    def index(self) -> ArchiveIndex:
        """The index of archived messages. The first use may open it, which blocks.

        Once `serde` encrypts, no index of ours in the database receives plain text.
        """
        self._open_index()
        if self._own_index and _is_encrypted(self) and not isinstance(self._indexes[-1], ScanIndex):
            self._indexes.append(ScanIndex())
        return self._indexes[-1]

    def _index(self, thread: str, record: Record) -> Operation[bool]:
        """Add a record to an index with its parent, and return True if the index has the record."""
        edits, new = {}, {id: one for id, one in record.edits.items() if one is not None}
        if new and record.parent is not None:
            before = yield from self._record(thread, record.parent)
            found = {} if before is None else (yield from self._find(thread, before, [*new]))
            edits = {one.position: new[id] for id, one in found.items()}
        at, messages, after = record.start, record.messages, record.parent

        def add() -> bool:
            return self.index.add(thread, record.key, at, messages, edits=edits, after=after)

        is_added = bool((yield from self._ask_index(thread, add)))
        # (if the thread was removed before, nothing of it may stay)
        place = records.place(thread, record.key)
        if after is None and (yield from self._call("get_tuple", place)) is None:
            yield from self._ask_index(thread, lambda: self.index.remove(thread))
            return False
        return is_added

    def _indexed(self, thread: str, record: Record) -> Operation[bool]:
        """Add the missing records of a conversation to the index, and return True if it has all."""
        chain = [record]
        if record.parent and not (yield from self._has_indexed(thread, record.parent)):
            chain = yield from self._chain(thread, record)
        lacking: list[Record] = []
        for one in reversed(chain):
            if (yield from self._has_indexed(thread, one.key)):
                break
            lacking.append(one)
        for one in reversed(lacking):
            if not (yield from self._index(thread, one)):
                return False
        return True

    def _has_indexed(self, thread: str, key: str) -> Operation[bool | None]:
        return (yield from self._ask_index(thread, lambda: self.index.has(thread, key)))

    def _ask_index(self, thread: str, call: Callable[[], T]) -> Operation[T | None]:
        """Call a method of the index, or return None if it fails."""
        try:
            return (yield from driver.external(call))
        except Exception:  # noqa: BLE001 - the records can rebuild it
            _log.warning("The archive's index failed for thread %r.", thread, exc_info=True)
            return None

    def _hits(
        self, thread: str, record: Record, look: Callable[[], list[Hit]]
    ) -> Operation[list[Hit] | None]:
        """Return hits in the index, or None if it lacks a part of the conversation.

        Another process may remove the thread at any time (archiving to the cold store does so):
        hits count only if the newest record is still there after the search.
        """

        def looked() -> list[Hit] | None:
            found = look()
            return found if self.index.has(thread, record.key) else None

        found = yield from self._ask_index(thread, looked)
        if found is None and (yield from self._indexed(thread, record)):
            found = yield from self._ask_index(thread, looked)
        return found

    def _find(
        self, thread: str, record: Record, ids: Sequence[str]
    ) -> Operation[dict[str, ArchivedMessage]]:
        """Return the archived messages with these ids, in their present form."""
        if not ids or not record.stop:
            return {}

        def look() -> list[Hit]:
            return [hit for some in self.index.find(thread, ids).values() for hit in some]

        hits = yield from self._hits(thread, record, look)
        if hits is not None:
            found = yield from self._messages_of(thread, record, hits)
        else:
            archived, known = (yield from self._archived(thread, record)), set(ids)
            found = [as_archived(*one) for one in archived if one[1].id in known]
        return {str(one.message.id): one for one in found}

    def _searched(
        self, thread: str, record: Record, query: str, limit: int | None
    ) -> Operation[list[ArchivedMessage]]:
        """Return the archived messages that have all words of a query, newest first."""
        words = set(wanted(query))
        if not words:
            return []
        hits = yield from self._hits(thread, record, lambda: self.index.search(thread, query))
        if hits is not None:
            return (yield from self._messages_of(thread, record, hits, limit))
        archived = reversed((yield from self._archived(thread, record)))
        found = (one for one in archived if words.issubset(indexed(one[1]).split(" ")))
        return [as_archived(*one) for one in islice(found, limit)]

    def _messages_of(
        self, thread: str, record: Record, hits: Iterable[Hit], limit: int | None = None
    ) -> Operation[list[ArchivedMessage]]:
        """Return the messages of hits in a record's conversation, in their present form."""
        found: dict[int, ArchivedMessage] = {}
        for hit in hits:
            if limit is not None and len(found) >= limit:
                break
            own = yield from self._record(thread, hit.record)
            edited = record.edited.get(hit.id or "", hit.record)
            if own is None or hit.position in found or own.key != edited:
                continue
            if not (yield from self._continues(thread, record, own)):
                continue
            message = own.edits.get(hit.id or "") or own.messages[hit.position - own.start]
            found[hit.position] = as_archived(hit.position, message, own)
        return list(found.values())

    def _continues(self, thread: str, record: Record, other: Record) -> Operation[bool]:
        """Return True if `record` is `other`, or a descendant of it."""
        at: Record | None = record
        while at is not None and at.step > other.step:
            at = yield from self._record(thread, at.towards(other.step))
        return at is not None and at.key == other.key


def as_archived(position: int, message: BaseMessage, record: Record) -> ArchivedMessage:
    """Return an archived message for `search_messages`."""
    return ArchivedMessage(message, position, record.key, record.archived_at)
