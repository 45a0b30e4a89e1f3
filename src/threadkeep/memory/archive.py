"""The archive of threads: records that are stored, read, and found by id and by words.

The records are the archive. The index finds them quickly, and counts only while it has all records
of a conversation: anybody may remove a thread from it, in any process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from threadkeep._run.delegate import Delegate
from threadkeep._run.layers import driver
from threadkeep._run.layers.driver import Workflow
from threadkeep._stores.base import AsyncBackend, Backend
from threadkeep._stores.first_use import FirstUse
from threadkeep._stores.message_index import (
    ArchiveIndex,
    Hit,
    ScanIndex,
    indexed,
    wanted,
)
from threadkeep.memory import records
from threadkeep.memory.policy import ArchivedMessage
from threadkeep.memory.recent import Recent
from threadkeep.memory.records import Record

_log = logging.getLogger("threadkeep.memory")


def _is_encrypted(saver: BaseCheckpointSaver[Any]) -> bool:
    return isinstance(saver.serde, EncryptedSerializer)


def open_index(saver: BaseCheckpointSaver[Any]) -> ArchiveIndex:
    """Return the index of a saver's threads.

    It is in the saver's own SQLite file or PostgreSQL schema. For other stores, and if the saver
    encrypts or its connections are the program's own, it is in this process's memory.
    """
    backend = getattr(saver, "backend", None)
    if _is_encrypted(saver) or not isinstance(backend, Backend | AsyncBackend):
        return ScanIndex()
    return backend.message_index() or ScanIndex()


class Archive(Delegate):
    """A saver with records of threads beside their checkpoints."""

    def __init__(
        self, saver: BaseCheckpointSaver[Any], *, channel: str, index: ArchiveIndex | None
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

    # -- records ---------------------------------------------------------------------

    def _record(self, thread: str, key: str) -> Workflow[Record | None]:
        """Return a record; None if it does not exist."""
        record = self._records.get(thread, key)
        if record is None:
            found = yield from self._call("get_tuple", records.place(thread, key))
            if found is None:
                return None
            record = records.from_tuple(found)
            self._records.put(thread, key, record)
        return record

    def _add(self, thread: str, before: Record | None, record: Record) -> Workflow[Record]:
        """Store a record, and what it archives in the index."""
        version = self._inner.get_next_version(None if before is None else before.version, None)
        record = replace(record, version=version)
        yield from self._call("put", *records.to_put(thread, record, self.channel))
        self._records.put(thread, record.key, record)
        yield from self._index(thread, record)
        return record

    def _all_records(self, thread: str) -> Workflow[dict[str, Record]]:
        """Return the records of a thread, by key."""
        config = records.place(thread)

        def call() -> list[CheckpointTuple]:
            return list(self._inner.list(config))

        async def acall() -> list[CheckpointTuple]:
            return [found async for found in self._inner.alist(config)]

        found = yield from driver.sync_or_async(call, acall)
        return {one.checkpoint["id"]: records.from_tuple(one) for one in found}

    def _back_to(self, thread: str, record: Record, start: int) -> Workflow[list[Record]]:
        """Return a record and those that it continues, back to a position, oldest first."""
        chain, at = [record], record
        while at.start > start and at.parent is not None:
            above = yield from self._record(thread, at.parent)
            if above is None:
                break
            at = above
            chain.append(at)
        return chain[::-1]

    def _archived(
        self, thread: str, record: Record, start: int = 0
    ) -> Workflow[list[tuple[int, BaseMessage, Record]]]:
        """Return what is archived up to a record from a position on, with positions and records."""
        if start:
            chain = yield from self._back_to(thread, record, start)
        else:
            chain = records.chain((yield from self._all_records(thread)), record.key)
        return [one for one in records.archived(chain) if one[0] >= start]

    # -- the index -------------------------------------------------------------------

    @property
    def index(self) -> ArchiveIndex:
        """The index. Once `serde` encrypts, no index of ours in the database gets plain text.

        It may have to be opened, which blocks.
        """
        self._open_index()
        if self._own_index and _is_encrypted(self) and not isinstance(self._indexes[-1], ScanIndex):
            self._indexes.append(ScanIndex())
        return self._indexes[-1]

    def _index(self, thread: str, record: Record) -> Workflow[bool]:
        """Add a record to the index, if that has the record before; return True if it is there."""
        edits, new = {}, {id: one for id, one in record.edits.items() if one is not None}
        if new and record.parent is not None:
            before = yield from self._record(thread, record.parent)
            found = {} if before is None else (yield from self._find(thread, before, [*new]))
            edits = {one.position: new[id] for id, one in found.items()}
        messages, after = record.messages, record.parent

        def add(thread: str, key: str) -> bool:
            return self.index.add(thread, key, record.start, messages, edits=edits, after=after)

        return bool((yield from self._asked(thread, add, record.key)))

    def _indexed(self, thread: str, record: Record) -> Workflow[bool]:
        """Add to the index what it lacks of a conversation; return True if it has all now."""
        chain = [record]

        def has(thread: str, key: str) -> bool:
            return self.index.has(thread, key)

        if record.parent and not (yield from self._asked(thread, has, record.parent)):
            chain = records.chain((yield from self._all_records(thread)), record.key)
        lacking: list[Record] = []
        for one in reversed(chain):
            if (yield from self._asked(thread, has, one.key)):
                break
            lacking.append(one)
        for one in reversed(lacking):
            if not (yield from self._index(thread, one)):
                return False
        return True

    def _asked(self, thread: str, call: Callable[..., Any], *args: Any) -> Workflow[Any]:
        """Call a method of the index; None if it fails: it can be made again from the records."""
        try:
            return (yield from driver.external(partial(call, thread, *args)))
        except Exception:  # noqa: BLE001 - the records have all that it has
            _log.warning("The archive's index failed for thread %r.", thread, exc_info=True)
            return None

    def _hits(
        self, thread: str, record: Record, look: Callable[[str], list[Hit]]
    ) -> Workflow[list[Hit] | None]:
        """Return what the index finds; None if it does not have all of a conversation.

        Others may remove the thread from the index at any time, as an archive in the cold store
        does. So what was found counts only if the newest record is there after.
        """

        def looked(_: str) -> list[Hit] | None:
            found = look(thread)
            return found if self.index.has(thread, record.key) else None

        found: list[Hit] | None = yield from self._asked(thread, looked)
        if found is None and (yield from self._indexed(thread, record)):
            found = yield from self._asked(thread, looked)
        return found

    def _find(
        self, thread: str, record: Record, ids: Sequence[str]
    ) -> Workflow[dict[str, ArchivedMessage]]:
        """Return the archived messages with these ids, as they are now."""
        if not ids or not record.stop:
            return {}

        def look(thread: str) -> list[Hit]:
            return [hit for some in self.index.find(thread, ids).values() for hit in some]

        hits = yield from self._hits(thread, record, look)
        if hits is not None:
            found = yield from self._messages_of(thread, record, hits)
        else:
            wanted = set(ids)
            found = yield from self._scanned(thread, record, lambda one: one.id in wanted)
        return {str(one.message.id): one for one in found}

    def _searched(
        self, thread: str, record: Record, query: str, limit: int | None
    ) -> Workflow[list[ArchivedMessage]]:
        """Return the archived messages that have all words of a query, newest first."""
        words = set(wanted(query))
        if not words:
            return []
        hits = yield from self._hits(thread, record, lambda one: self.index.search(one, query))
        if hits is not None:
            return (yield from self._messages_of(thread, record, hits, limit))
        has_all = lambda one: words <= set(indexed(one).split(" "))  # noqa: E731
        found = yield from self._scanned(thread, record, has_all)
        return found[::-1][:limit]

    def _scanned(
        self, thread: str, record: Record, is_wanted: Callable[[BaseMessage], bool]
    ) -> Workflow[list[ArchivedMessage]]:
        """Return some archived messages, as the records alone have them, oldest first."""
        archived = yield from self._archived(thread, record)
        return [as_archived(*one) for one in archived if is_wanted(one[1])]

    def _messages_of(
        self, thread: str, record: Record, hits: Iterable[Hit], limit: int | None = None
    ) -> Workflow[list[ArchivedMessage]]:
        """Return the messages of hits that a record's conversation has, as they are now."""
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

    def _continues(self, thread: str, record: Record, other: Record) -> Workflow[bool]:
        """Return True if a record is another one, or continues it."""
        at: Record | None = record
        while at is not None and at.step > other.step:
            at = yield from self._record(thread, at.towards(other.step))
        return at is not None and at.key == other.key


def as_archived(position: int, message: BaseMessage, record: Record) -> ArchivedMessage:
    """Return a message of the archive, as `search_messages` returns it."""
    return ArchivedMessage(message, position, record.key, record.archived_at)
