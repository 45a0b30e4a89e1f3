"""Rows of streams: checkpoints in a namespace of their own, beside those of their thread.

A pending stream has a row for each of its last saves, an ended one a single row without parts. Each
row holds all parts: threadkeep's savers store what is new. Savers that cannot delete checkpoints
have one row a stream, which is put again, with all parts as one text.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint

from threadkeep._core import arguments, validation
from threadkeep._core.engine.model import OWN_NS
from threadkeep._run.layers.driver import Workflow, sync_or_async
from threadkeep.errors import CodecError, NotFoundError, ThreadkeepError
from threadkeep.threads.streams.parts import (
    Part,
    PartialStream,
    StreamStatus,
    as_text,
    fold,
    merged,
)

NAMESPACE = f"{OWN_NS}partial"
KEPT = 20  # ended streams of a thread
_MOST = 200  # rows that are read of a saver that cannot delete them
_PARTS = "parts"
_SAID = ("stream", "status", "created", "saved", "completed")  # fields of a row in its metadata

LIVE: set[str] = set()
"""The streams of this process that have not ended."""


class Row(NamedTuple):
    """A stored row. Times are ISO 8601 texts."""

    id: str
    stream: str
    status: StreamStatus
    created: str
    saved: str
    completed: str | None = None
    root: str | None = None  # the checkpoint of the graph that the output builds on
    parts: Sequence[Any] = ()


def now() -> str:
    """Return the time in UTC."""
    return datetime.now(UTC).isoformat()


def new_id() -> str:
    """Return a checkpoint id. Later ones are greater."""
    return empty_checkpoint()["id"]


def newest(rows: Iterable[Row]) -> dict[str, Row]:
    """Return the newest row of each stream, of rows that come the newest first."""
    found: dict[str, Row] = {}
    for row in rows:
        found.setdefault(row.stream, row)
    return found


def thread_of(config: RunnableConfig | str) -> str:
    """Return the id of the thread that a config names; a thread's id will do."""
    if validation.is_mapping(config):
        return arguments.place(config).thread
    return validation.thread_id(config)


class Rows:
    """The rows of a thread's streams, in any saver."""

    def __init__(self, saver: Any, config: RunnableConfig | str) -> None:
        self._saver = saver
        self.thread = thread_of(config)
        self.deletes = callable(getattr(saver, "delete_checkpoints", None))

    def read(self) -> Workflow[list[Row]]:
        """Return all rows, the newest first."""
        limit = None if self.deletes else _MOST
        config = self._config()
        found = yield from sync_or_async(
            lambda: list(self._saver.list(config, limit=limit)),
            partial(_collected, self._saver, config, limit),
        )
        rows = [self._row(one) for one in found]
        return sorted(rows, key=lambda row: (row.stream, row.id), reverse=True)

    def read_heads(self) -> Workflow[list[Row]]:
        """Return all rows, the newest first; savers that can delete read no parts."""
        if not self.deletes:
            return (yield from self.read())
        threads = self._saver.threads
        call, acall = [
            partial(method, self.thread, NAMESPACE)
            for method in (threads.branches, threads.abranches)
        ]
        try:
            tree = yield from sync_or_async(call, acall)
        except NotFoundError:
            return []
        rows = [_row(one.id, one.metadata) for one in tree.checkpoints.values()]
        return sorted(rows, key=lambda row: (row.stream, row.id), reverse=True)

    def head(self) -> Workflow[str | None]:
        """Return the id of the newest checkpoint of the graph itself."""
        config = {"configurable": {"thread_id": self.thread, "checkpoint_ns": ""}}
        found = yield from self._call("get_tuple", config)
        return None if found is None else str(found.checkpoint["id"])

    def put(self, row: Row, parent: str | None) -> Workflow[None]:
        """Store a row; `parent` is the row that it continues."""
        checkpoint = {**empty_checkpoint(), "id": row.id}
        if row.parts:
            parts: Any = list(row.parts) if self.deletes else self._packed(row.parts)
            # (a version of its own, as LangGraph's savers find values by channel and version)
            version = len(row.parts) if self.deletes else f"1.{row.stream}"
            checkpoint["channel_values"] = {_PARTS: parts}
            checkpoint["channel_versions"] = {_PARTS: version}
        metadata = {
            "source": "update",
            "step": len(row.parts),
            "parents": {"": row.root} if row.root else {},
            **{name: getattr(row, name) for name in _SAID},
        }
        versions = checkpoint["channel_versions"]
        yield from self._call("put", self._config(parent), checkpoint, metadata, versions)

    def delete(self, ids: Sequence[str], *, sweep: bool = False) -> Workflow[None]:
        """Remove rows, where the saver can; with `sweep` also values of those removed before."""
        if ids and self.deletes:
            call = {"ns": NAMESPACE, "sweep": sweep}
            yield from self._call("delete_checkpoints", self.thread, ids, **call)

    def partial(self) -> Workflow[list[PartialStream]]:
        """Return the streams of the thread, the newest first."""
        found = [_stream(row) for row in newest((yield from self.read())).values()]
        over = {one.id for one in [one for one in found if one.status != "pending"][KEPT:]}
        return [one for one in found if one.id not in over]

    def discard(self, stream: str | None = None) -> Workflow[int]:
        """Discard a pending stream of the thread, or (None) all; return how many there were."""
        rows = yield from self.read_heads()
        found = [
            one._replace(status="discarded", completed=now())
            for one in newest(rows).values()
            if one.status == "pending" and stream in (None, one.stream)
        ]
        gone, old = yield from self.end(rows, found)
        yield from self.delete([*gone, *old], sweep=True)
        return len(found)

    def end(
        self, rows: Sequence[Row], ended: Sequence[Row]
    ) -> Workflow[tuple[list[str], list[str]]]:
        """Store the last rows of streams; return the ids of rows that are not needed any more.

        Those of streams that end, and those of old streams, which are many or none.

        Args:
            rows: those that are stored.
            ended: one of each stream that ends, with its last status.
        """
        before = newest(rows)
        last = {name: one.id for name, one in before.items() if one.status != "pending"}
        for row in ended:
            parent = before[row.stream].id if row.stream in before and self.deletes else None
            own_id = row.stream if parent is None else new_id()
            yield from self.put(row._replace(id=own_id, parts=()), parent)
            last[row.stream] = own_id
        names = sorted(last, reverse=True)
        old = {last[stream] for stream in names[KEPT:]} if len(names) > 2 * KEPT else set()
        gone = [one.id for one in rows if one.stream in last and one.id != last[one.stream]]
        return gone, [one.id for one in rows if one.id in old]

    def _call(self, name: str, *args: Any, **options: Any) -> Workflow[Any]:
        method, variant = getattr(self._saver, name), getattr(self._saver, f"a{name}")
        call, acall = partial(method, *args, **options), partial(variant, *args, **options)
        return (yield from sync_or_async(call, acall))

    def _config(self, parent: str | None = None) -> RunnableConfig:
        place = {"thread_id": self.thread, "checkpoint_ns": NAMESPACE}
        return {"configurable": place if parent is None else {**place, "checkpoint_id": parent}}

    def _row(self, found: CheckpointTuple) -> Row:
        parts = found.checkpoint["channel_values"].get(_PARTS) or ()
        if isinstance(parts, str):
            kind, _, data = parts.partition(":")
            parts = self._saver.serde.loads_typed((kind, base64.b64decode(data)))
        return _row(found.checkpoint["id"], found.metadata)._replace(parts=parts)

    def _packed(self, parts: Sequence[Any]) -> str:
        kind, data = self._saver.serde.dumps_typed([tuple(part) for part in parts])
        return f"{kind}:{base64.b64encode(data).decode()}"


def partial_of(saver: Any, thread: RunnableConfig | str) -> Workflow[list[PartialStream]]:
    """See `Saver.partial`."""
    return Rows(saver, thread).partial()


def discard_of(saver: Any, thread: RunnableConfig | str, stream: str | None) -> Workflow[int]:
    """See `Saver.discard_partial`."""
    return Rows(saver, thread).discard(stream)


def _row(id: str, said: Any) -> Row:
    """Return the row of a checkpoint's metadata."""
    return Row(id, **{name: said.get(name) for name in _SAID}, root=said["parents"].get(""))


async def _collected(saver: Any, config: Any, limit: int | None) -> list[CheckpointTuple]:
    return [one async for one in saver.alist(config, limit=limit)]


class StreamRows(Rows):
    """The rows of one stream that is under way."""

    def __init__(self, saver: Any, config: RunnableConfig | str, max_pending: int) -> None:
        super().__init__(saver, config)
        self.id = new_id()
        self._created = now()
        self._max_pending = max_pending
        self._root: str | None = None
        self._parts: list[tuple[Any, ...]] = []
        self._ids: list[str] = []

    def append(self, parts: Iterable[Part]) -> Workflow[None]:
        """Save parts behind those that are saved; durable on return, as the saver is."""
        found = merged(parts)
        if self._root is None:
            self._root = yield from self.head()
        try:
            stored = yield from self._save(found)
        except (CodecError, TypeError):
            try:
                stored = yield from self._save(map(self._storable, found))
            except (CodecError, TypeError):
                stored = yield from self._save(map(as_text, found))
        self._parts = stored
        if len(self._ids) > self._max_pending:
            with suppress(ThreadkeepError):  # what stays goes later
                yield from self.delete(self._ids[:-1])
                self._ids = self._ids[-1:]

    def _storable(self, part: Part) -> Part:
        try:
            self._saver.serde.dumps_typed(part.value)
        except Exception:  # noqa: BLE001 - it may be anything
            return as_text(part)
        return part

    def _save(self, parts: Iterable[Part]) -> Workflow[list[tuple[Any, ...]]]:
        stored = [*self._parts, *[tuple(part) for part in parts]]
        parent = self._ids[-1] if self._ids and self.deletes else None
        own_id = self.id if parent is None else new_id()
        yield from self.put(self._own("pending")._replace(id=own_id, parts=stored), parent)
        if own_id not in self._ids[-1:]:
            self._ids.append(own_id)
        return stored

    def stop(self, status: StreamStatus) -> Workflow[None]:
        """Store the end of the stream. One that is completed takes the place of dead ones.

        Those are pending, were last saved before this one began, and are none of this process.
        """
        rows = yield from self.read_heads()
        ended = [self._own(status)._replace(completed=now())]
        if status == "completed":
            ended += [
                one._replace(status="discarded", completed=now())
                for one in newest(rows).values()
                if one.status == "pending" and one.saved < self._created
                if one.stream not in LIVE
            ]
        gone, old = yield from self.end(rows, ended)
        with suppress(ThreadkeepError):  # what stays goes with the next stream
            yield from self.delete([*gone, *old], sweep=bool(old))

    def _own(self, status: StreamStatus) -> Row:
        return Row(self.id, self.id, status, self._created, now(), root=self._root)


def _stream(row: Row) -> PartialStream:
    created, saved = datetime.fromisoformat(row.created), datetime.fromisoformat(row.saved)
    ended = None if row.completed is None else datetime.fromisoformat(row.completed)
    parts = fold(row.parts)
    return PartialStream(row.stream, row.status, created, saved, ended, row.root, *parts)
