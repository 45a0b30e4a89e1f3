"""Records of layered memory: what has left a thread's window, and what stands for it.

Each is a checkpoint in a namespace of the thread. A record is never changed: it continues its
parent, and the thread's own checkpoints name, in their metadata, the record that they continue.
So every checkpoint has the view that it had, and a fork continues from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from threadkeep._core.engine.model import LAYERS_KEY, LAYERS_NS
from threadkeep.memory import window
from threadkeep.memory.summaries import Summary

NS = LAYERS_NS
POINTER = LAYERS_KEY  # in the metadata of a thread's checkpoints: the record's key
CLAIM_SECONDS = 300.0  # after which somebody else may make a summary that was begun
JUMPS = (8, 64, 512, 4096, 32768)  # steps
_CLAIM, _FAILED = "claim", "failed"

GroupStatus = Literal["open", "summarized", "archived"]


@dataclass(frozen=True, slots=True)
class Group:
    """A contiguous range of a conversation: messages `start` to `stop`, of which a topic tells.

    open: its messages are in view. summarized: its summary is in view, and counts as one message.
    archived: it is behind the window, and a part of the summary of the conversation.
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
        """Return True for a position of its range."""
        return self.start <= position < self.stop

    def as_json(self) -> dict[str, Any]:
        """Return the group as plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Record of what has left the window of a thread.

    `messages` are those from `start` to `stop` of the conversation; `edits` are later changes of
    archived ones, None for one that was removed, and `edited` names, for each message that was
    ever changed, the record with the change. `jumps` are the nearest ancestors whose step is a
    multiple of 8, 64 and so on. `closed` are the groups that it fills. All else is the state after
    it: `kept` messages, which stay in view; `summary` of all before `stop`; `group_start`, where
    the open group begins; `groups` that were made by hand; `digest` of all before `stop`; the
    positions that were `removed`.
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

    def after(self, root: str, **changes: Any) -> Record:
        """Return a record that continues this one, made at a checkpoint of the thread's root."""
        key, edits = str(uuid6()), changes.pop("edits", {})
        messages = changes.pop("messages", ())
        anew = [one.id for one in messages if one.id in self.edited]
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
            closed=changes.pop("closed", ()),
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
        """Return the ancestor that is the nearest to one of this step, of those known here."""
        for size, key in reversed([*zip(JUMPS, self.jumps, strict=False)]):
            if (self.step - 1) // size * size >= step:
                return key
        return str(self.parent)


def first(root: str, found: CheckpointTuple) -> Record:
    """Return the record that a thread's others continue. It is the same for all processes."""
    return Record(key=root, root=root, created_at=found.checkpoint["ts"])


_PLAIN = (
    *("start", "stop", "group_start", "digest", "tokens", "model", "prompt_version"),
    *("is_stale", "step", "created_at", "root"),
)


def to_put(
    thread: str, record: Record, channel: str
) -> tuple[RunnableConfig, Any, Any, dict[str, Any]]:
    """Return the arguments of `put` that store a record of a channel."""
    plain: dict[str, Any] = {name: getattr(record, name) for name in _PLAIN}
    plain["channel"] = channel
    plain["edited"], plain["jumps"] = dict(record.edited), list(record.jumps)
    plain["suggested"], plain["removed"] = list(record.suggested), list(record.removed)
    plain["origin"] = None if record.origin is None else list(record.origin)
    plain["groups"] = [group.as_json() for group in record.groups]
    plain["closed"] = [group.as_json() for group in record.closed]
    plain["summary"] = None if record.summary is None else record.summary.to_dict()
    values = {
        "record": plain,
        "messages": list(record.messages),
        "kept": list(record.kept),
        "edits": dict(record.edits),
    }
    versions = dict.fromkeys(values, record.version)
    checkpoint = {**empty_checkpoint(), "id": record.key, "channel_values": values}
    checkpoint["channel_versions"] = versions
    metadata = {"source": "update", "step": record.step, "parents": {"": record.root}}
    return place(thread, record.parent), checkpoint, metadata, dict(versions)


def place(thread: str, key: str | None = None) -> RunnableConfig:
    """Return the config of a record, or (None) of the newest one."""
    configurable = {"thread_id": thread, "checkpoint_ns": NS}
    if key is not None:
        configurable["checkpoint_id"] = key
    return {"configurable": configurable}


def from_tuple(found: CheckpointTuple) -> Record:
    """Return the record that a checkpoint holds."""
    values = found.checkpoint["channel_values"]
    plain = values["record"]
    above = found.parent_config
    return Record(
        key=found.checkpoint["id"],
        parent=None if above is None else above["configurable"]["checkpoint_id"],
        version=found.checkpoint["channel_versions"]["record"],
        messages=values["messages"],
        kept=values["kept"],
        edits=values["edits"],
        summary=_summary(plain["summary"]),
        closed=tuple(Group(**group) for group in plain["closed"]),
        groups=tuple(Group(**group) for group in plain["groups"]),
        edited=plain["edited"],
        jumps=tuple(plain["jumps"]),
        suggested=tuple(plain["suggested"]),
        removed=tuple(plain["removed"]),
        origin=None if plain["origin"] is None else tuple(plain["origin"]),
        **{name: plain[name] for name in _PLAIN},
    )


def _summary(plain: dict[str, Any] | None) -> Summary | None:
    if plain is None:
        return None
    fields: dict[str, Any] = {
        name: tuple(one) if isinstance(one, list) else one for name, one in plain.items()
    }
    return Summary(**fields)


# -- a conversation --------------------------------------------------------------------


def chain(records: Mapping[str, Record], key: str | None) -> list[Record]:
    """Return a record and those that it continues, oldest first."""
    found: list[Record] = []
    while key is not None and key in records:
        found.append(records[key])
        key = records[key].parent
    return found[::-1]


def archived(records: Sequence[Record]) -> Iterator[tuple[int, BaseMessage, Record]]:
    """Yield the position, message and record of what a chain has archived, with all edits made."""
    later: dict[str, BaseMessage | None] = {}
    found: list[tuple[int, BaseMessage, Record]] = []
    for record in reversed(records):  # (an id that was removed may come again)
        for position, message in reversed([*enumerate(record.messages, record.start)]):
            edited = later.get(message.id, message) if message.id else message
            if edited is not None:
                found.append((position, edited, record))
        later = {**record.edits, **later}
    yield from reversed(found)


def longest(some: Iterable[Record], messages: Sequence[BaseMessage]) -> Record | None:
    """Return the record of the most messages that a conversation begins with."""
    found, digest, stop = None, "", 0
    for record in sorted(some, key=lambda one: (one.stop, one.key)):
        if record.stop <= len(messages):
            digest = window.digest(digest, messages[stop : record.stop])
            stop = record.stop
            found = record if record.digest == digest else found
    return found


# -- claims ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SummaryClaim:
    """The right to continue a record with a summary, as a pending write on that record.

    Of two writes of one task the first counts, in every saver: so one of all processes has it.
    """

    attempt: int
    owner: str

    def write(self) -> tuple[list[tuple[str, Any]], str]:
        """Return the write that claims, and its task."""
        deadline = time.time() + CLAIM_SECONDS
        return [(_CLAIM, {"owner": self.owner, "until": deadline})], f"{_CLAIM}-{self.attempt}"

    def failure(self) -> tuple[list[tuple[str, Any]], str]:
        """Return the write that gives the claim up, and its task."""
        return [(_FAILED, self.owner)], f"{_FAILED}-{self.attempt}"

    def is_held(self, found: CheckpointTuple | None) -> bool:
        """Return False if somebody else has claimed first."""
        claims, _ = _claims(found)
        return bool(claims.get(self.attempt, {"owner": self.owner})["owner"] == self.owner)


def open_claim(
    found: CheckpointTuple | None, owner: str, *, is_continued: bool
) -> SummaryClaim | None:
    """Return the claim to try; None while somebody else is at it.

    A claim is over when it was given up, when its time is over, or when the record was continued.
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
