"""Records of layered memory: messages that have left a thread's window, and their summary.

Each record is a checkpoint in a namespace of the thread. A record never changes: a new one
continues its parent. The metadata of the thread's own checkpoints name the record that they
continue, so every checkpoint keeps its view, and a fork continues from it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from threadkeep._core.engine.model import LAYERS_KEY, LAYERS_NS
from threadkeep._run.lazy_values import LazyValues, through
from threadkeep.memory import window
from threadkeep.memory.summaries import Summary

NS = LAYERS_NS
POINTER = LAYERS_KEY  # in the metadata of a thread's checkpoints: the record's key
CLAIM_SECONDS = 300.0  # after which another process may make a summary that was begun
JUMPS = (8, 64, 512, 4096, 32768)  # steps
_CLAIM, _FAILED = "claim", "failed"

GroupStatus = Literal["open", "summarized", "archived"]
RecordWrite: TypeAlias = tuple[list[tuple[str, Any]], str]  # a pending write and its task


def as_shown(found: CheckpointTuple, values: Mapping[str, Any] | None = None) -> CheckpointTuple:
    """Return a checkpoint with these channel values, and without the key of its record."""
    metadata: Any = {key: value for key, value in (found.metadata or {}).items() if key != POINTER}
    if values is None:
        return found._replace(metadata=metadata) if POINTER in (found.metadata or {}) else found
    checkpoint: Any = {**found.checkpoint, "channel_values": values}
    return found._replace(checkpoint=checkpoint, metadata=metadata)


def as_lazy(
    saver: Any, channel: str, found: CheckpointTuple, values: LazyValues
) -> CheckpointTuple:
    """Return a listed checkpoint with the values as a layered saver shows them."""
    names = [*values, channel] if (found.metadata or {}).get(POINTER) else values
    return as_shown(found, through(saver, found, values, channel, names))


@dataclass(frozen=True, slots=True)
class Group:
    """A contiguous range of a conversation, messages `start` to `stop`, with a topic.

    open: its messages are in view. summarized: its summary is in view, and counts as one message.
    archived: it has left the window, and the conversation's summary covers it.
    """

    key: str
    start: int
    stop: int
    topic: str = ""
    status: GroupStatus = "open"
    summary: str = ""
    by_hand: bool = False

    @property
    def messages(self) -> int:
        """Number of its messages."""
        return self.stop - self.start

    def has(self, position: int) -> bool:
        """Return True for a position in its range."""
        return self.start <= position < self.stop

    def as_json(self) -> dict[str, Any]:
        """Return the group as plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Record of messages that have left the window of a thread, and the state after it.

    The record adds:
        messages: messages `start` to `stop` of the conversation.
        edits: later changes of archived messages by id, None for a removed message.
        closed: groups that it fills.

    The state after it:
        edited: for each message that was ever changed, the record with the change.
        jumps: the nearest ancestors whose step is a multiple of 8, 64 and so on.
        kept: messages that stay in view.
        summary, digest, tokens: of all messages before `stop`.
        group_start: position at which the open group begins.
        groups: groups that were made by hand.
        removed: positions of removed messages.
    """

    key: str
    parent: str | None = None
    root: str = ""
    version: Any = None
    step: int = 0
    start: int = 0
    stop: int = 0
    messages: Sequence[BaseMessage] = ()
    edits: Mapping[str, BaseMessage | None] = field(default_factory=dict)
    edited: Mapping[str, str] = field(default_factory=dict)
    jumps: tuple[str, ...] = ()
    kept: Sequence[BaseMessage] = ()
    summary: Summary | None = None
    group_start: int = 0
    closed: tuple[Group, ...] = ()
    groups: tuple[Group, ...] = ()
    digest: str = ""
    tokens: int = 0
    removed: tuple[int, ...] = ()
    model: str = ""
    prompt_version: str = ""
    is_stale: bool = False
    suggested: tuple[str, ...] = ()
    origin: tuple[str, str] | None = None
    created_at: str = ""

    @property
    def archived_at(self) -> datetime:
        """Time at which it was made."""
        return datetime.fromisoformat(self.created_at)

    def after(
        self,
        root: str,
        *,
        messages: Sequence[BaseMessage] = (),
        edits: Mapping[str, BaseMessage | None] | None = None,
        closed: tuple[Group, ...] = (),
        **changes: Any,
    ) -> Record:
        """Return a record that continues this one, made at the thread's checkpoint `root`."""
        key, edits = str(uuid6()), edits or {}
        anew = [one.id for one in messages if one.id and one.id in self.edited]
        return replace(
            self,
            key=key,
            parent=self.key,
            root=root,
            step=self.step + 1,
            messages=messages,
            edits=edits,
            edited={**self.edited, **dict.fromkeys([*anew, *edits], key)},
            jumps=self._jumps(),
            start=self.stop,
            closed=closed,
            created_at=datetime.now(UTC).isoformat(),
            **changes,
        )

    def _jumps(self) -> tuple[str, ...]:
        """The jumps of a record that continues this one."""
        jumps = []
        for level, size in enumerate(JUMPS):
            if self.step % size == 0:
                jumps.append(self.key)
            elif level < len(self.jumps):
                jumps.append(self.jumps[level])
        return tuple(jumps)

    def towards(self, step: int) -> str:
        """Return the known ancestor that is nearest to the ancestor with this step."""
        for size, key in reversed([*zip(JUMPS, self.jumps, strict=False)]):
            if (self.step - 1) // size * size >= step:
                return key
        return str(self.parent)


_CHANNELS = ("messages", "kept", "edits")
_OUTSIDE = ("key", "parent", "version", *_CHANNELS)
_PLAIN = tuple(one.name for one in fields(Record) if one.name not in _OUTSIDE)


def to_put(
    thread: str, record: Record, channel: str
) -> tuple[RunnableConfig, Any, Any, dict[str, Any]]:
    """Return the arguments of `put` that store a record of a channel."""
    plain = {name: _plain(getattr(record, name)) for name in _PLAIN}
    values = {
        "record": {**plain, "channel": channel},
        "messages": list(record.messages),
        "kept": list(record.kept),
        "edits": dict(record.edits),
    }
    versions = dict.fromkeys(values, record.version)
    checkpoint = {**empty_checkpoint(), "id": record.key, "channel_values": values}
    checkpoint["channel_versions"] = versions
    metadata = {"source": "update", "step": record.step, "parents": {"": record.root}}
    return place(thread, record.parent), checkpoint, metadata, dict(versions)


def _plain(value: Any) -> Any:
    """Return a part of a record as plain data."""
    if isinstance(value, Group):
        return value.as_json()
    if isinstance(value, Summary):
        return value.to_dict()
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def place(thread: str, key: str | None = None, ns: str = NS) -> RunnableConfig:
    """Return the config of a record or checkpoint, or of the newest one (None)."""
    configurable = {"thread_id": thread, "checkpoint_ns": ns}
    if key is not None:
        configurable["checkpoint_id"] = key
    return {"configurable": configurable}


def from_tuple(found: CheckpointTuple) -> Record:
    """Return the record that a checkpoint holds."""
    values, above = found.checkpoint["channel_values"], found.parent_config
    plain = _with_tuples({name: values["record"][name] for name in _PLAIN})
    for name in ("closed", "groups"):
        plain[name] = tuple(Group(**group) for group in plain[name])
    if plain["summary"] is not None:
        plain["summary"] = Summary(**_with_tuples(plain["summary"]))
    return Record(
        key=found.checkpoint["id"],
        parent=None if above is None else above["configurable"]["checkpoint_id"],
        version=found.checkpoint["channel_versions"]["record"],
        **plain | {name: values[name] for name in _CHANNELS},
    )


def _with_tuples(plain: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(one) if isinstance(one, list) else one for name, one in plain.items()}


# -- conversations ---------------------------------------------------------------------


def chain(records: Mapping[str, Record], key: str | None) -> list[Record]:
    """Return a record and its ancestors, oldest first."""
    found: list[Record] = []
    while key is not None and key in records:
        found.append(records[key])
        key = records[key].parent
    return found[::-1]


def archived(records: Sequence[Record]) -> Iterator[tuple[int, BaseMessage, Record]]:
    """Yield the position, message and record of all that a chain has archived, as edited later."""
    later: dict[str, BaseMessage | None] = {}
    found: list[tuple[int, BaseMessage, Record]] = []
    for record in reversed(records):  # (a removed id may come again)
        for position, message in reversed([*enumerate(record.messages, record.start)]):
            edited = later.get(message.id, message) if message.id else message
            if edited is not None:
                found.append((position, edited, record))
        later = {**record.edits, **later}
    yield from reversed(found)


def longest(some: Iterable[Record], messages: Sequence[BaseMessage]) -> Record | None:
    """Return the record that archives the most of the messages that a conversation begins with.

    A conversation from which messages were removed begins with others, even if they look the same.
    """
    found, digest, stop = None, "", 0
    for record in sorted(some, key=lambda one: (one.stop, one.key)):
        if record.stop <= len(messages):
            digest = window.digest(digest, messages[stop : record.stop])
            stop = record.stop
            found = record if record.digest == digest and not record.removed else found
    return found


# -- groups ----------------------------------------------------------------------------


def groups_of(chain: Sequence[Record], stop: int) -> list[Group]:
    """Return the groups of a conversation that ends at `stop`, in order.

    Groups that were made by hand replace the parts of other groups that they cover.
    """
    if not chain:
        return [Group("full", 0, stop)] if stop else []
    newest = chain[-1]
    found = [group for record in chain for group in record.closed]
    content = newest.summary.content if newest.summary is not None else ""
    if newest.stop > newest.group_start:
        key = f"{newest.key}/summary"  # (the record's own key may be of messages in another group)
        found.append(Group(key, newest.group_start, newest.stop, "", "summarized", content))
    if stop > newest.stop:
        found.append(Group("full", newest.stop, stop))
    by_hand = [
        replace(group, status="archived")
        if group.status == "summarized" and group.stop <= newest.stop
        else group
        for group in newest.groups
    ]
    return with_groups(found, by_hand)


def with_groups(groups: Sequence[Group], others: Sequence[Group]) -> list[Group]:
    """Return groups in order, after others have replaced the parts that they cover."""
    left = list(groups)
    for other in others:
        left = [
            replace(one, start=start, stop=stop)
            for one in left
            for start, stop in (
                (one.start, min(one.stop, other.start)),
                (max(one.start, other.stop), one.stop),
            )
            if start < stop
        ]
    return sorted([*left, *others], key=lambda group: group.start)


# -- claims ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SummaryClaim:
    """The right to continue a record with a summary, stored as a pending write on that record.

    Every saver keeps the first of two writes of one task, so one process holds each claim.
    """

    attempt: int
    owner: str

    def write(self) -> RecordWrite:
        """Return the write that claims, and its task."""
        deadline = time.time() + CLAIM_SECONDS
        return [(_CLAIM, {"owner": self.owner, "until": deadline})], f"{_CLAIM}-{self.attempt}"

    def failure(self) -> RecordWrite:
        """Return the write that gives the claim up, and its task."""
        return [(_FAILED, self.owner)], f"{_FAILED}-{self.attempt}"

    def is_held(self, found: CheckpointTuple | None) -> bool:
        """Return False if another process has claimed first."""
        claims, _ = _claims(found)
        return bool(claims.get(self.attempt, {"owner": self.owner})["owner"] == self.owner)


def open_claim(
    found: CheckpointTuple | None, owner: str, *, is_continued: bool
) -> SummaryClaim | None:
    """Return the claim to try, or None while another process holds one.

    A claim ends when it is given up, when it expires, or when the record is continued.
    """
    claims, failed = _claims(found)
    newest = max(claims, default=-1)
    claim = claims.get(newest)
    if claim is not None and newest not in failed and not is_continued:
        if claim["owner"] == owner:  # (it was cancelled)
            return SummaryClaim(newest, owner)
        if claim["until"] > time.time():
            return None
    return SummaryClaim(newest + 1, owner)


def _claims(found: CheckpointTuple | None) -> tuple[dict[int, dict[str, Any]], set[int]]:
    """The claims on a record by attempt, and the attempts that were given up."""
    writes = (found.pending_writes or []) if found is not None else []

    def attempts(kind: str) -> dict[int, Any]:
        own = {task: value for task, channel, value in writes if channel == kind}
        return {int(task.rpartition("-")[2]): value for task, value in own.items()}

    return attempts(_CLAIM), set(attempts(_FAILED))
