"""Parts of a stream, and the buffer that decides when to save them. No I/O and no clock.

A part is stored as a tuple. The text that came since the last save is stored as one part for each
message.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias

from langchain_core.messages import AIMessageChunk, BaseMessage, BaseMessageChunk

StreamStatus: TypeAlias = Literal["pending", "completed", "discarded"]
Kind: TypeAlias = Literal["text", "chunk", "message", "event", "values", "checkpoint"]

_FULL = 4  # times `max_bytes` that may wait before the stream does
_SMALL = 64  # bytes that a part takes beside its value, about
_FIRST_SAVE = 0.1  # seconds that the first save is expected to take
_BESIDE_TEXT = (
    "additional_kwargs",
    "response_metadata",
    "usage_metadata",
    "tool_call_chunks",
    "tool_calls",
    "name",
)


class Part(NamedTuple):
    """A piece of output. A "checkpoint" says that values of its namespace are in a checkpoint."""

    kind: Kind
    namespace: str
    node: str
    message: str
    value: Any


@dataclass(frozen=True, slots=True)
class PartialMessage:
    """A message as far as it was streamed."""

    id: str  # the same as in the state, once its node has ended
    node: str
    namespace: str  # the checkpoint namespace of the node; "" where it is not known
    text: str
    message: BaseMessage  # with its parts of tool calls


@dataclass(frozen=True, slots=True)
class PartialValues:
    """Values that a node has written to channels in a step that has not ended."""

    node: str
    namespace: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PartialStream:
    """Output of a stream, as it was last saved. Of an ended one, its status and times are left.

    Args:
        id: the stream's id; those of later streams are greater.
        status: "pending", "completed" or "discarded".
        created_at, saved_at: in UTC.
        completed_at: the end, in UTC; None while it is pending.
        checkpoint_id: the thread's newest checkpoint at the first save: the output builds on it.
        messages: in the order in which they began.
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
        """The text of all messages, one after the other."""
        return "".join([one.text for one in self.messages])

    @property
    def values(self) -> dict[str, Any]:
        """The values of all updates by channel; the last one counts."""
        return {name: value for one in self.updates for name, value in one.values.items()}


# -- recording -------------------------------------------------------------------------


def of_message(message: BaseMessage, namespace: str = "", node: str = "") -> Part | None:
    """Return the part for a message or a chunk of one; None for an empty chunk."""
    content, name = message.content, message.id or ""
    if not isinstance(message, BaseMessageChunk):
        return Part("message", namespace, node, name, message)
    is_ai = isinstance(message, AIMessageChunk) and type(content) is str
    if is_ai and not any(getattr(message, field) for field in _BESIDE_TEXT):
        return Part("text", namespace, node, name, content) if content else None
    return Part("chunk", namespace, node, name, message)


def of_event(event: Any, namespace: str = "", node: str = "") -> Part:
    """Return the part for a custom event, which is copied: nodes use objects again."""
    try:
        event = copy.deepcopy(event)
    except Exception:  # noqa: BLE001 - some objects refuse; what is stored is what it is then
        return Part("event", namespace, node, "", event)
    return Part("event", namespace, node, "", event)


def merged(parts: Iterable[Part]) -> list[Part]:
    """Join the pieces of each message, those of a kind in a row; all else stays as it is."""
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
    first = pieces[0]
    if len(pieces) == 1:
        return first
    if first.kind == "text":
        return first._replace(value="".join([piece.value for piece in pieces]))
    return first._replace(value=_sum([piece.value for piece in pieces]))


def _sum(chunks: Sequence[Any]) -> Any:
    """Return chunks as one message; where they do not add up, their text."""
    try:
        return chunks[0] + list(chunks[1:]) if len(chunks) > 1 else chunks[0]
    except Exception:  # noqa: BLE001 - as of values that LangChain cannot merge
        return AIMessageChunk(content="".join(map(text_of, chunks)), id=chunks[0].id)


def as_text(part: Part) -> Part:
    """Return the part with the `repr` of a value that cannot be stored."""
    if part.kind == "event":
        return part._replace(value=repr(part.value))
    if part.kind == "values":
        return part._replace(value={name: repr(value) for name, value in part.value.items()})
    if part.kind in ("chunk", "message"):
        return part._replace(kind="text", value=text_of(part.value))
    return part


def text_of(message: BaseMessage) -> str:
    """Return the text of a message's content, without other blocks."""
    blocks = [message.content] if isinstance(message.content, str) else message.content
    found = [block if isinstance(block, str) else block.get("text") for block in blocks]
    return "".join([text for text in found if isinstance(text, str)])


def weight(value: Any, depth: int = 10) -> int:
    """Return about how many bytes a value takes."""
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, BaseMessage):
        value = [value.content]
    elif isinstance(value, Mapping):
        value = [*value, *value.values()]
    if not depth or not isinstance(value, list | tuple | set | frozenset):
        return _SMALL
    return _SMALL + sum([weight(each, depth - 1) for each in value])


# -- reading ---------------------------------------------------------------------------


def fold(
    rows: Iterable[Sequence[Any]],
) -> tuple[tuple[PartialMessage, ...], tuple[Any, ...], tuple[PartialValues, ...]]:
    """Return the messages, events and values that stored parts add up to."""
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
            updates = [one for one in updates if not _is_in(part.namespace, one.namespace)]
        elif part.kind == "message":  # in place of its chunks
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


# -- when to save ----------------------------------------------------------------------


class Buffer:
    """The parts that wait for a save. Times are seconds of any clock that only goes forward.

    A save begins so early that it ends before the oldest part is `interval` old, by the time that
    the last one took.
    """

    def __init__(self, interval: float, max_bytes: int) -> None:
        self._interval = interval
        self._max_bytes = max_bytes
        self._waiting: list[Part] = []
        self._taken: list[Part] = []
        self._bytes = self._taken_bytes = 0
        self._oldest = 0.0  # when the first of those that wait came
        self._began = 0.0
        self._cost = min(_FIRST_SAVE, interval / 10)
        self._not_before = 0.0  # after a failure
        self._saved_values: set[str] = set()  # namespaces with some that no checkpoint holds yet

    @property
    def is_empty(self) -> bool:
        """True if nothing waits."""
        return not self._waiting and not self._taken

    @property
    def is_full(self) -> bool:
        """True if the stream has to wait."""
        return self._bytes + self._taken_bytes >= _FULL * self._max_bytes

    @property
    def bytes(self) -> int:
        """About how many bytes wait, those of the save under way among them."""
        return self._bytes + self._taken_bytes

    def add(self, part: Part, now: float) -> bool:
        """Add a part. Return True if the time of the next save has changed."""
        is_first, before = not self._waiting, self._bytes
        if is_first:
            self._oldest = now
        self._waiting.append(part)
        self._bytes += _SMALL + weight(part.value)
        return is_first or before < self._max_bytes <= self._bytes

    def drop_values(self, namespace: str) -> Part | None:
        """Drop values that are in a checkpoint now, those of subgraphs too.

        Returns:
            The part that says so of those that were saved; None if none were.
        """
        before, self._waiting = self._waiting, []
        for part in before:
            if part.kind == "values" and _is_in(namespace, part.namespace):
                self._bytes -= _SMALL + weight(part.value)
            else:
                self._waiting.append(part)
        saved = self._saved_values | _with_values(self._taken)
        self._saved_values = {one for one in self._saved_values if not _is_in(namespace, one)}
        is_known = any(_is_in(namespace, one) for one in saved)
        return Part("checkpoint", namespace, "", "", None) if is_known else None

    def delay(self, now: float) -> float | None:
        """Return the seconds until the next save; None while nothing waits."""
        if not self._waiting:
            return None
        if self._bytes >= self._max_bytes:
            return max(0.0, self._not_before - now)
        lead = min(self._interval / 2, 2 * self._cost)
        return max(0.0, self._oldest + self._interval - lead - now, self._not_before - now)

    def take(self, now: float) -> list[Part]:
        """Return what waits: a save begins, which `saved` or `failed` ends."""
        self._taken, self._waiting = self._waiting, []
        self._taken_bytes, self._bytes = self._bytes, 0
        self._began = now
        return self._taken

    def saved(self, now: float) -> None:
        """End a save."""
        self._saved_values |= _with_values(self._taken)
        self._taken, self._taken_bytes = [], 0
        self._cost = now - self._began

    def failed(self, now: float) -> None:
        """End a save that failed: its parts wait again, until an interval later."""
        self._waiting = [*self._taken, *self._waiting]
        self._bytes += self._taken_bytes
        self._taken, self._taken_bytes = [], 0
        self._oldest, self._not_before = self._began, now + self._interval


def _is_in(namespace: str, other: str) -> bool:
    return not namespace or other == namespace or other.startswith(f"{namespace}|")


def _with_values(parts: Iterable[Part]) -> set[str]:
    return {part.namespace for part in parts if part.kind == "values"}
