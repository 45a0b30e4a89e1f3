"""Partial output of runs: the parts of a stream, and the checkpoints that hold them.

A stream is saved next to its thread, as checkpoints in a namespace of its own. A pending stream has
a row for each of its last saves, an ended one a single row without parts. Each row lists all parts,
but threadkeep's savers store only the new ones. Savers that cannot delete checkpoints have one row
per stream, which is replaced at each save and holds all parts as one text.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias

from langchain_core.messages import AIMessageChunk, BaseMessage, BaseMessageChunk
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint

from threadkeep._core import arguments, validation
from threadkeep._core.engine.model import OWN_NS
from threadkeep._core.engine.operation import Operation
from threadkeep._run.driver import sync_or_async
from threadkeep.errors import CodecError, NotFoundError, ThreadkeepError

StreamStatus: TypeAlias = Literal["pending", "completed", "discarded"]
PartKind: TypeAlias = Literal["text", "chunk", "message", "event", "values", "checkpoint"]

NAMESPACE = f"{OWN_NS}partial"
KEPT = 20  # ended streams per thread
LIVE: set[str] = set()
"""Ids of this process's streams that have not ended."""

_MOST = 200  # rows read from a saver that cannot delete them
_PARTS = "parts"
_SAID = ("stream", "status", "created", "saved", "completed")
"""Fields of `PartialRow` in the metadata."""
_BESIDE_TEXT = (
    "additional_kwargs",
    "response_metadata",
    "usage_metadata",
    "tool_call_chunks",
    "tool_calls",
    "name",
)


class Part(NamedTuple):
    """A piece of output. A "checkpoint" part drops the namespace's values before it."""

    kind: PartKind
    namespace: str
    node: str
    message: str
    value: Any


@dataclass(frozen=True, slots=True)
class PartialMessage:
    """A message as far as it was streamed."""

    id: str  # the same as in the state, once its node has ended
    node: str
    namespace: str  # the checkpoint namespace of the node, "" if unknown
    text: str
    message: BaseMessage  # with its partial tool calls


@dataclass(frozen=True, slots=True)
class PartialValues:
    """Values that a node has written to channels in an unfinished step."""

    node: str
    namespace: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PartialStream:
    """Output of a stream, as it was last saved. An ended stream has only its status and times.

    Args:
        id: the stream's id. Later streams have greater ids.
        status: "pending", "completed" or "discarded".
        created_at, saved_at: in UTC.
        completed_at: the end, in UTC, or None while the stream is pending.
        checkpoint_id: the thread's newest checkpoint at the first save.
        messages: in the order they began.
        events: custom events, in order.
        updates: values of channels, by node.
    """

    id: str
    status: StreamStatus
    created_at: datetime
    saved_at: datetime
    completed_at: datetime | None = None
    checkpoint_id: str | None = None
    messages: tuple[PartialMessage, ...] = ()
    events: tuple[Any, ...] = ()
    updates: tuple[PartialValues, ...] = ()

    @property
    def text(self) -> str:
        """The concatenated text of all messages."""
        return "".join([one.text for one in self.messages])

    @property
    def values(self) -> dict[str, Any]:
        """The newest value of each channel."""
        return {name: value for one in self.updates for name, value in one.values.items()}


# -- parts -----------------------------------------------------------------------------


def of_message(message: BaseMessage, namespace: str = "", node: str = "") -> Part | None:
    """Make a part of a message or a chunk, or None for an empty chunk."""
    content, name = message.content, message.id or ""
    if not isinstance(message, BaseMessageChunk):
        return Part("message", namespace, node, name, message)
    is_ai = isinstance(message, AIMessageChunk) and type(content) is str
    if is_ai and not any(getattr(message, field) for field in _BESIDE_TEXT):
        return Part("text", namespace, node, name, content) if content else None
    return Part("chunk", namespace, node, name, message)


def of_event(event: Any, namespace: str = "", node: str = "") -> Part:
    """Make a part of a copy of a custom event: nodes may change the object later."""
    with suppress(Exception):  # some objects refuse, and they are stored as they are at the save
        event = copy.deepcopy(event)
    return Part("event", namespace, node, "", event)


def merged(parts: Iterable[Part]) -> list[Part]:
    """Join consecutive pieces of the same message and kind, and leave other parts unchanged."""
    found: dict[Any, list[Part]] = {}
    for number, part in enumerate(parts):
        is_piece = part.kind in ("text", "chunk")
        found.setdefault(part[1:4] if is_piece else number, []).append(part)
    return [
        _joined([*row])
        for pieces in found.values()
        for _, row in groupby(pieces, attrgetter("kind"))
    ]


def _joined(pieces: Sequence[Part]) -> Part:
    first, values = pieces[0], [piece.value for piece in pieces]
    if len(pieces) == 1:
        return first
    return first._replace(value="".join(values) if first.kind == "text" else _sum(values))


def _sum(chunks: Sequence[Any]) -> Any:
    """Add chunks up to one message, or to their text if LangChain cannot merge them."""
    try:
        return chunks[0] + list(chunks[1:]) if len(chunks) > 1 else chunks[0]
    except Exception:  # noqa: BLE001 - LangChain raises various kinds
        return AIMessageChunk(content="".join(map(text_of, chunks)), id=chunks[0].id)


def as_text(part: Part) -> Part:
    """Replace a value that cannot be stored with its text or `repr`."""
    if part.kind == "event":
        return part._replace(value=repr(part.value))
    if part.kind == "values":
        return part._replace(value={name: repr(value) for name, value in part.value.items()})
    if part.kind in ("chunk", "message"):
        return part._replace(kind="text", value=text_of(part.value))
    return part


def text_of(message: BaseMessage) -> str:
    """Join the text blocks of a message's content."""
    blocks = [message.content] if isinstance(message.content, str) else message.content
    found = [block if isinstance(block, str) else block.get("text") for block in blocks]
    return "".join([text for text in found if isinstance(text, str)])


def is_in(namespace: str, other: str) -> bool:
    """True if `other` is the namespace, or one of its subgraphs' namespaces."""
    return not namespace or other == namespace or other.startswith(f"{namespace}|")


def fold(
    rows: Iterable[Sequence[Any]],
) -> tuple[tuple[PartialMessage, ...], tuple[Any, ...], tuple[PartialValues, ...]]:
    """Combine stored parts into messages, events and values."""
    pieces: dict[Any, list[Part]] = {}
    events: list[Any] = []
    updates: list[PartialValues] = []
    for number, row in enumerate(rows):
        part = Part(*row)
        if part.kind == "event":
            events.append(part.value)
        elif part.kind == "values":
            updates.append(PartialValues(part.node, part.namespace, part.value))
        elif part.kind == "checkpoint":
            updates = [one for one in updates if not is_in(part.namespace, one.namespace)]
        elif part.kind == "message":  # replaces its chunks
            pieces[part[1:4] if part.message else number] = [part]
        else:
            pieces.setdefault(part[1:4], []).append(part)
    return tuple([_message(found) for found in pieces.values()]), tuple(events), tuple(updates)


def _message(pieces: Sequence[Part]) -> PartialMessage:
    _, namespace, node, name, _ = pieces[0]
    found: list[BaseMessage] = [
        AIMessageChunk(content=part.value, id=name or None) if part.kind == "text" else part.value
        for part in pieces
    ]
    return PartialMessage(name, node, namespace, "".join(map(text_of, found)), _sum(found))


# -- rows ------------------------------------------------------------------------------


class PartialRow(NamedTuple):
    """A stored row. Times are ISO 8601 texts."""

    id: str
    stream: str
    status: StreamStatus
    created: str
    saved: str
    completed: str | None = None
    root: str | None = None  # the graph's newest checkpoint at the first save
    parts: Sequence[Any] = ()


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _new_id() -> str:
    return empty_checkpoint()["id"]


def _row(id: str, said: Any) -> PartialRow:
    return PartialRow(id, **{name: said.get(name) for name in _SAID}, root=said["parents"].get(""))


def _newest_first(rows: Iterable[PartialRow]) -> list[PartialRow]:
    return sorted(rows, key=lambda row: (row.stream, row.id), reverse=True)


def _newest(rows: Iterable[PartialRow]) -> dict[str, PartialRow]:
    """Find the newest row of each stream. `rows` come newest first."""
    found: dict[str, PartialRow] = {}
    for row in rows:
        found.setdefault(row.stream, row)
    return found


def thread_of(config: RunnableConfig | str) -> str:
    """Return the thread id that a config names, or the id itself."""
    if validation.is_mapping(config):
        return arguments.place(config).thread
    return validation.thread_id(config)


def partial_of(saver: Any, thread: RunnableConfig | str) -> Operation[list[PartialStream]]:
    rows = yield from PartialRows(saver, thread).read()
    found = [_stream(row) for row in _newest(rows).values()]
    over = {one.id for one in [one for one in found if one.status != "pending"][KEPT:]}
    return [one for one in found if one.id not in over]


def _stream(row: PartialRow) -> PartialStream:
    created, saved = datetime.fromisoformat(row.created), datetime.fromisoformat(row.saved)
    ended = None if row.completed is None else datetime.fromisoformat(row.completed)
    parts = fold(row.parts)
    return PartialStream(row.stream, row.status, created, saved, ended, row.root, *parts)


def discard_of(saver: Any, thread: RunnableConfig | str, stream: str | None) -> Operation[int]:
    stored = PartialRows(saver, thread)
    rows = yield from stored.read_heads()
    found = [
        one._replace(status="discarded", completed=_now())
        for one in _newest(rows).values()
        if one.status == "pending" and stream in (None, one.stream)
    ]
    gone, old = yield from stored.end(rows, found)
    yield from stored.delete([*gone, *old], sweep=True)
    return len(found)


class PartialRows:
    """The rows of a thread's streams, in any saver."""

    def __init__(self, saver: Any, config: RunnableConfig | str) -> None:
        self._saver = saver
        self.thread = thread_of(config)
        self.deletes = callable(getattr(saver, "delete_checkpoints", None))

    def read(self) -> Operation[list[PartialRow]]:
        """Read all rows, newest first."""
        limit, config = None if self.deletes else _MOST, self._config()

        async def collected() -> list[CheckpointTuple]:
            return [one async for one in self._saver.alist(config, limit=limit)]

        found = yield from sync_or_async(
            lambda: list(self._saver.list(config, limit=limit)), collected
        )
        return _newest_first(map(self._row, found))

    def read_heads(self) -> Operation[list[PartialRow]]:
        """Read all rows, newest first, without parts if the saver can delete checkpoints."""
        if not self.deletes:
            return (yield from self.read())
        try:
            tree = yield from self._call(self._saver.threads, "branches", self.thread, NAMESPACE)
        except NotFoundError:
            return []
        return _newest_first([_row(one.id, one.metadata) for one in tree.checkpoints.values()])

    def head(self) -> Operation[str | None]:
        """Return the id of the graph's newest checkpoint."""
        config = {"configurable": {"thread_id": self.thread, "checkpoint_ns": ""}}
        found = yield from self._call(self._saver, "get_tuple", config)
        return None if found is None else str(found.checkpoint["id"])

    def put(self, row: PartialRow, parent: str | None) -> Operation[None]:
        """Store a row. `parent` is the id of the row before it."""
        checkpoint = {**empty_checkpoint(), "id": row.id}
        if row.parts:
            parts: Any = list(row.parts) if self.deletes else self._packed(row.parts)
            # (LangGraph's savers store one value per thread, channel and version)
            version = len(row.parts) if self.deletes else f"1.{row.stream}"
            checkpoint["channel_values"] = {_PARTS: parts}
            checkpoint["channel_versions"] = {_PARTS: version}
        metadata = {
            "source": "update",
            "step": len(row.parts),
            "parents": {"": row.root} if row.root else {},
            **{name: getattr(row, name) for name in _SAID},
        }
        put = (self._config(parent), checkpoint, metadata, checkpoint["channel_versions"])
        yield from self._call(self._saver, "put", *put)

    def delete(self, ids: Sequence[str], *, sweep: bool = False) -> Operation[None]:
        """Remove rows, if the saver can, with `sweep` also unreferenced values of earlier ones."""
        if ids and self.deletes:
            options = {"checkpoint_ns": NAMESPACE, "sweep": sweep}
            yield from self._call(self._saver, "delete_checkpoints", self.thread, ids, **options)

    def end(
        self, rows: Sequence[PartialRow], ended: Sequence[PartialRow]
    ) -> Operation[tuple[list[str], list[str]]]:
        """Store the last rows of streams.

        Args:
            rows: the stored rows.
            ended: one row, with its last status, of each stream that ends.

        Returns:
            The ids of rows to remove: of the ended streams, and of the oldest streams. The second
            list is empty until `KEPT` more streams than `KEPT` have ended.
        """
        before = _newest(rows)
        last = {name: one.id for name, one in before.items() if one.status != "pending"}
        for row in ended:
            parent = before[row.stream].id if row.stream in before and self.deletes else None
            own_id = row.stream if parent is None else _new_id()
            yield from self.put(row._replace(id=own_id, parts=()), parent)
            last[row.stream] = own_id
        names = sorted(last, reverse=True)
        old = {last[stream] for stream in names[KEPT:]} if len(names) > 2 * KEPT else set()
        gone = [one.id for one in rows if one.stream in last and one.id != last[one.stream]]
        return gone, [one.id for one in rows if one.id in old]

    def _call(self, owner: Any, name: str, *args: Any, **options: Any) -> Operation[Any]:
        method, variant = getattr(owner, name), getattr(owner, f"a{name}")
        call, acall = partial(method, *args, **options), partial(variant, *args, **options)
        return (yield from sync_or_async(call, acall))

    def _config(self, parent: str | None = None) -> RunnableConfig:
        place = {"thread_id": self.thread, "checkpoint_ns": NAMESPACE}
        return {"configurable": place if parent is None else {**place, "checkpoint_id": parent}}

    def _row(self, found: CheckpointTuple) -> PartialRow:
        parts = found.checkpoint["channel_values"].get(_PARTS) or ()
        if isinstance(parts, str):
            kind, _, data = parts.partition(":")
            parts = self._saver.serde.loads_typed((kind, base64.b64decode(data)))
        return _row(found.checkpoint["id"], found.metadata)._replace(parts=parts)

    def _packed(self, parts: Sequence[Any]) -> str:
        kind, data = self._saver.serde.dumps_typed([tuple(part) for part in parts])
        return f"{kind}:{base64.b64encode(data).decode()}"


class StreamRows(PartialRows):
    """The rows of one running stream."""

    def __init__(self, saver: Any, config: RunnableConfig | str, max_pending: int) -> None:
        super().__init__(saver, config)
        self.id = _new_id()
        self._created = _now()
        self._max_pending = max_pending
        self._run = object()
        configurable = {} if isinstance(config, str) else config.get("configurable", {})
        self._guard = {one: configurable[one] for one in (arguments.GUARD,) if one in configurable}
        self._root: str | None = None
        self._parts: list[tuple[Any, ...]] = []
        self._ids: list[str] = []

    def begin(self) -> Operation[None]:
        """Read the thread: rows of this stream belong to its present life."""
        if self.deletes:
            yield from self._call(self._saver, "get_tuple", self._config())

    def _config(self, parent: str | None = None) -> RunnableConfig:
        config = super()._config(parent)
        config["configurable"].update(self._guard)
        return arguments.saving_as(self._run, config)

    def append(self, parts: Iterable[Part]) -> Operation[None]:
        """Save more parts, as durably as the saver does."""
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
            with suppress(ThreadkeepError):  # the next save removes the rows
                yield from self.delete(self._ids[:-1])
                self._ids = self._ids[-1:]

    def _storable(self, part: Part) -> Part:
        try:
            self._saver.serde.dumps_typed(part.value)
        except Exception:  # noqa: BLE001 - the value's class may raise anything
            return as_text(part)
        return part

    def _save(self, parts: Iterable[Part]) -> Operation[list[tuple[Any, ...]]]:
        stored = [*self._parts, *[tuple(part) for part in parts]]
        parent = self._ids[-1] if self._ids and self.deletes else None
        own_id = self.id if parent is None else _new_id()
        yield from self.put(self._status_row("pending")._replace(id=own_id, parts=stored), parent)
        if own_id not in self._ids[-1:]:
            self._ids.append(own_id)
        return stored

    def stop(self, status: StreamStatus) -> Operation[None]:
        """Store the end of the stream. A completed stream discards the thread's dead streams.

        A dead stream is pending, was last saved before this stream began, and does not run in this
        process.
        """
        rows = yield from self.read_heads()
        ended = [self._status_row(status)._replace(completed=_now())]
        if status == "completed":
            ended += [
                one._replace(status="discarded", completed=_now())
                for one in _newest(rows).values()
                if one.status == "pending" and one.saved < self._created
                if one.stream not in LIVE
            ]
        gone, old = yield from self.end(rows, ended)
        with suppress(ThreadkeepError):  # the next stream removes the rows
            yield from self.delete([*gone, *old], sweep=bool(old))

    def _status_row(self, status: StreamStatus) -> PartialRow:
        return PartialRow(self.id, self.id, status, self._created, _now(), root=self._root)
