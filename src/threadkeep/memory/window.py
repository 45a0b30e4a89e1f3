"""The window of a conversation: which messages leave it, and which messages replace them.

Pure functions of lists of messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from json import dumps
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from threadkeep._core.texts import text_of
from threadkeep.memory.policy import Layers
from threadkeep.memory.summaries import Summary

if TYPE_CHECKING:
    from langgraph.graph.message import Messages

MARK = "threadkeep-memory:"  # a summary's message has the id MARK + the record's key
GROUP = "threadkeep-group:"
DETAILS = "threadkeep_memory"  # key in additional_kwargs of a summary's message
TITLES = {"en": "[Summary of the earlier conversation]", "zh": "[之前的对话总结]"}
_PATIENCE = 100  # messages after which a tool call no longer waits for its result
_REMOVE_ALL = "__remove_all__"  # as in `langgraph.graph.message`


def are_messages(value: object) -> TypeGuard[list[BaseMessage]]:
    """Return True for a list of messages."""
    return isinstance(value, list) and all(isinstance(one, BaseMessage) for one in value)


def is_marker(message: object) -> bool:
    """Return True for a message that memory has put into a view."""
    return isinstance(message, BaseMessage) and (message.id or "").startswith((MARK, GROUP))


def marked(message: BaseMessage) -> str | None:
    """Return the key of the record that a summary's message represents, or None."""
    id = message.id or ""
    return id.removeprefix(MARK) if id.startswith(MARK) else None


# -- messages that leave ---------------------------------------------------------------


def exchanges(messages: Sequence[BaseMessage]) -> list[list[int]]:
    """Return, for each tool call with results, its index and the indexes of the results."""
    found: dict[int, list[int]] = {}
    callers: dict[str, int] = {}
    for index, message in enumerate(messages):
        if isinstance(message, AIMessage):
            for call in (*message.tool_calls, *message.invalid_tool_calls):
                callers[call["id"] or ""] = index
        elif isinstance(message, ToolMessage) and message.tool_call_id in callers:
            found.setdefault(callers[message.tool_call_id], []).append(index)
    return [[first, *results] for first, results in sorted(found.items())]


def _waiting(messages: Sequence[BaseMessage]) -> list[int]:
    """Return the indexes of recent tool calls without a result."""
    answered = {one.tool_call_id for one in messages if isinstance(one, ToolMessage)}
    return [
        index
        for index, one in enumerate(messages)
        if len(messages) - index <= _PATIENCE and isinstance(one, AIMessage)
        if any(call["id"] not in answered for call in one.tool_calls)
    ]


def leaving(
    messages: Sequence[BaseMessage], policy: Layers, collapsed: Sequence[range] = ()
) -> int:
    """Return the number of the oldest messages that leave the window now: 0, or at least a batch.

    A collapsed range counts as one message, and stays or leaves as a whole. With a limit of tokens
    a batch leaves as soon as the limit is exceeded, but no more than half of the messages that fit.
    """
    limit, tokens, used, cut = policy.max_tokens, policy.max_tokens is not None, 0, 0
    limit = policy.full_window if limit is None else limit
    follows = {index for span in collapsed for index in span[:-1]}
    for index in reversed(range(len(messages))):
        if index not in follows:
            used += policy.counter([messages[index]]) if tokens else 1
        if used > limit:
            cut = min(index + 1, len(messages) - 1)
            break
    if tokens and cut:
        cut = max(cut, min(policy.batch, (cut + len(messages)) // 2))
    for span in collapsed:
        cut = span.start if cut in span else cut
    cut = min([whole(messages, cut), *_waiting(messages)])
    return cut if tokens or cut >= policy.batch else 0


def whole(messages: Sequence[BaseMessage], cut: int) -> int:
    """Return the greatest cut up to this one that separates no tool call from its results."""
    for first, *_, last in reversed(exchanges(messages)):
        if first < cut <= last:
            cut = first
    return max(cut, 0)


def oldest(messages: Sequence[BaseMessage], size: int, most: int) -> int:
    """Count the oldest messages that form whole exchanges, at most `size`.

    A longer first exchange is returned alone, or cut at `most` messages.
    """
    cut = whole(messages, size)
    while not cut and size < most:
        size += 1
        cut = whole(messages, size)
    return cut or most


def full_groups(
    archived: Sequence[tuple[int, BaseMessage]], start: int, stop: int, size: int
) -> Iterator[tuple[int, int, list[BaseMessage]]]:
    """Yield start, stop and messages of each full group. The last group stays open.

    Args:
        archived: positions and messages from `start` on, without removed ones.
        start: position of the first group.
        stop: position after the last message.
        size: messages in a group, or another number if a tool call would lose its results.
    """
    while stop - start > size:
        archived = [one for one in archived if one[0] >= start]
        messages = [message for _, message in archived]
        inside = sum(at < start + size for at, _ in archived)
        cut = oldest(messages, inside, len(messages)) if inside else 0
        end = start + size
        if cut != inside:
            end = archived[cut][0] if cut < len(archived) else stop
        yield start, end, messages[:cut]
        start = end


def staying(messages: Sequence[BaseMessage], policy: Layers) -> list[BaseMessage]:
    """Return the messages that always stay in view: system messages and pinned ones.

    A tool call and its results stay together or leave together.
    """
    stay = {index for index, message in enumerate(messages) if stays(message, policy)}
    for indexes in exchanges(messages):
        if stay.intersection(indexes):
            stay.update(indexes)
    return [messages[index] for index in sorted(stay)]


def stays(message: BaseMessage, policy: Layers) -> bool:
    """Return True for a message that always stays in view."""
    return isinstance(message, SystemMessage) or policy.pinned(message)


# -- the view --------------------------------------------------------------------------


def summary_message(summary: Summary, language: str, made_of: Mapping[str, Any]) -> SystemMessage:
    """Return the message that replaces archived messages. `made_of` describes its source."""
    text = f"{TITLES[language]} {summary.content}".rstrip()
    details = {**made_of, **summary.to_dict()}
    return SystemMessage(text, id=MARK + made_of["record"], additional_kwargs={DETAILS: details})


def group_message(key: str, topic: str, text: str, language: str, count: int) -> HumanMessage:
    """Return the message that replaces a collapsed group.

    Some providers take a system message only at the beginning, so this one is the user's.
    """
    title = f"{topic}: {text}" if topic else text
    details = {"group": key, "message_count": count}
    content = f"{TITLES[language]} {title}"
    return HumanMessage(content, id=GROUP + key, additional_kwargs={DETAILS: details})


def same(one: BaseMessage, other: BaseMessage) -> bool:
    """Return True for messages that are equal except for their ids."""
    return one is other or digest_of(one) == digest_of(other)


def without_orphans(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages except tool calls without results, and results without calls."""
    paired = {index for indexes in exchanges(messages) for index in indexes}
    return [
        one
        for index, one in enumerate(messages)
        if index in paired or not (isinstance(one, ToolMessage) or getattr(one, "tool_calls", None))
    ]


def reads_as(one: BaseMessage, other: BaseMessage) -> bool:
    """Return True for messages of one type and text."""
    return one.type == other.type and text_of(one) == text_of(other)


def is_titled(message: BaseMessage) -> bool:
    """Return True for a message that reads as a summary."""
    return isinstance(message, SystemMessage) and text_of(message).startswith((*TITLES.values(),))


def digest_of(message: BaseMessage) -> str:
    """Return a hash of a message without its id."""
    fields = message.model_dump(exclude={"id", "artifact"})
    return sha256(dumps(fields, sort_keys=True, default=repr).encode()).hexdigest()[:32]


def with_id(message: BaseMessage) -> BaseMessage:
    """Return a message with an id: its own, or the hash of its contents."""
    return message if message.id else message.model_copy(update={"id": digest_of(message)})


def digest(before: str, messages: Iterable[BaseMessage]) -> str:
    """Return the hash of a conversation that continues one with the hash `before`."""
    for message in messages:
        before = sha256((before + digest_of(message)).encode()).hexdigest()[:32]
    return before


# -- a reducer -------------------------------------------------------------------------


def add_messages(left: Messages, right: Messages, **options: Any) -> Messages:
    """Add messages as LangGraph's `add_messages` does, and remove archived messages by id.

    LangGraph's reducer refuses `RemoveMessage` of an id that it does not see. With this reducer in
    the state's annotation, the removal reaches the archive. If a client sends back summaries of
    earlier turns with its messages, they are left out.
    """
    from langgraph.graph.message import add_messages as add  # noqa: PLC0415 - slow, and an extra

    if not isinstance(left, list) or not any(is_marker(one) for one in left):
        return add(left, right, **options)
    own = {getattr(one, "id", None) for one in left}
    given: list[Any] = right if isinstance(right, list) else [right]
    updates = [one for one in given if not is_marker(one) or one.id in own]
    seen = {getattr(one, "id", None) for one in (*left, *updates) if not _removes(one)}
    removed = [one.id for one in updates if _removes(one) and one.id not in seen]
    rest = [one for one in updates if not (_removes(one) and one.id in removed)]
    noted = [_with_removed(one, removed) if removed and is_marker(one) else one for one in left]
    return add(cast("Messages", noted), cast("Messages", rest), **options)


def _removes(message: object) -> TypeGuard[RemoveMessage]:
    return isinstance(message, RemoveMessage) and message.id != _REMOVE_ALL


def _with_removed(marker: Any, removed: Sequence[str | None]) -> BaseMessage:
    """Return a summary's message that also lists removed ids."""
    details: Mapping[str, Any] = marker.additional_kwargs.get(DETAILS, {})
    details = {**details, "removed": [*details.get("removed", ()), *removed]}
    kwargs = {**marker.additional_kwargs, DETAILS: details}
    copied: BaseMessage = marker.model_copy(update={"additional_kwargs": kwargs})
    return copied


def removed_by(messages: Iterable[BaseMessage]) -> list[str]:
    """Return the ids that the reducer has listed as removed."""
    found = [one.additional_kwargs.get(DETAILS, {}) for one in messages if is_marker(one)]
    return [str(id) for details in found for id in details.get("removed", ())]
