"""The window of a conversation: which messages leave it, what takes their place, and back.

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

MARK = "threadkeep-memory:"  # the id of a summary's message: this, and the record's key
GROUP = "threadkeep-group:"
DETAILS = "threadkeep_memory"  # in additional_kwargs of a summary's message
_TITLES = {"en": "[Summary of the earlier conversation]", "zh": "[之前的对话总结]"}
LANGUAGES = tuple(_TITLES)
_PATIENCE = 100  # messages after which no result of a tool call is expected any more
_REMOVE_ALL = "__remove_all__"  # as `langgraph.graph.message` has it


def are_messages(value: object) -> TypeGuard[list[BaseMessage]]:
    """Return True for a list of messages."""
    return isinstance(value, list) and all(isinstance(one, BaseMessage) for one in value)


def marked(message: BaseMessage) -> str | None:
    """Return the key of the record that a summary's message stands for; None for any other."""
    id = message.id or ""
    return id.removeprefix(MARK) if id.startswith(MARK) else None


def name_of(message: BaseMessage) -> str | None:
    """Return the key of a record or group that a message stands for; None for any other."""
    return message.id.split(":")[1] if message.id and is_marker(message) else None


def is_marker(message: BaseMessage) -> bool:
    """Return True for a message that memory has put into a view."""
    return (message.id or "").startswith((MARK, GROUP))


# -- what leaves -----------------------------------------------------------------------


def exchanges(messages: Sequence[BaseMessage]) -> list[list[int]]:
    """Return the indexes of each tool call that has results, and of these, in order."""
    found: dict[int, list[int]] = {}
    callers: dict[str, int] = {}
    for index, message in enumerate(messages):
        if isinstance(message, AIMessage):
            for call in (*message.tool_calls, *message.invalid_tool_calls):
                callers[call["id"] or ""] = index
        elif isinstance(message, ToolMessage) and message.tool_call_id in callers:
            found.setdefault(callers[message.tool_call_id], []).append(index)
    return [[first, *results] for first, results in sorted(found.items())]


def waiting(messages: Sequence[BaseMessage]) -> list[int]:
    """Return the indexes of tool calls of which a result may still come."""
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
    """Return the number of the oldest messages that leave the window now: a batch or more.

    A collapsed range of messages counts as one, and stays or leaves as a whole. With a limit of
    tokens a batch leaves as soon as the limit is exceeded, but no more than half of what fits.
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
    cut = min([whole(messages, cut), *waiting(messages)])
    return cut if tokens or cut >= policy.batch else 0


def whole(messages: Sequence[BaseMessage], cut: int) -> int:
    """Return the greatest cut, not after this one, that separates no tool call from its results."""
    for first, *_, last in reversed(exchanges(messages)):
        if first < cut <= last:
            cut = first
    return max(cut, 0)


def oldest(messages: Sequence[BaseMessage], size: int, most: int) -> int:
    """Return the number of the oldest messages that are whole exchanges, and `size` or fewer.

    If the first exchange alone is longer, it is that exchange, or `most` messages.
    """
    cut = whole(messages, size)
    while not cut and size < most:
        size += 1
        cut = whole(messages, size)
    return cut or most


def full_groups(
    archived: Sequence[tuple[int, BaseMessage]], start: int, stop: int, size: int
) -> Iterator[tuple[int, int, list[BaseMessage]]]:
    """Yield start, stop and messages of each group of a size that others follow before `stop`.

    Args:
        archived: positions and messages from `start` on, without those that were removed.
        start: position of the first group.
        stop: position behind the last message.
        size: of a group. One that would separate a tool call from its results has another size.
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
    """Return those of the leaving messages that stay in view: system messages and pinned ones.

    Of a tool call and its results all stay, or none.
    """
    stay = {index for index, message in enumerate(messages) if stays(message, policy)}
    for indexes in exchanges(messages):
        if stay.intersection(indexes):
            stay.update(indexes)
    return [messages[index] for index in sorted(stay)]


def stays(message: BaseMessage, policy: Layers) -> bool:
    """Return True for a message that stays in view for good."""
    return isinstance(message, SystemMessage) or policy.pinned(message)


# -- the view --------------------------------------------------------------------------


def summary_message(summary: Summary, language: str, made_of: Mapping[str, Any]) -> SystemMessage:
    """Return the message that stands for what has left the window; `made_of` says what that is."""
    text = f"{_TITLES[language]} {summary.content}".rstrip()
    details = {**made_of, **summary.to_dict()}
    return SystemMessage(text, id=MARK + made_of["record"], additional_kwargs={DETAILS: details})


def group_message(key: str, topic: str, text: str, language: str, count: int) -> HumanMessage:
    """Return the message that stands for a collapsed group.

    (Some providers take a system message at the beginning only.)
    """
    title = f"{topic}: {text}" if topic else text
    details = {"group": key, "message_count": count}
    content = f"{_TITLES[language]} {title}"
    return HumanMessage(content, id=GROUP + key, additional_kwargs={DETAILS: details})


def same(one: BaseMessage, other: BaseMessage) -> bool:
    """Return True for equal messages; those that differ in their ids alone are equal."""
    return one is other or digest_of(one) == digest_of(other)


def without_orphans(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages without tool calls that have no result, and results of no call."""
    whole = {index for indexes in exchanges(messages) for index in indexes}
    return [
        one
        for index, one in enumerate(messages)
        if index in whole or not (isinstance(one, ToolMessage) or getattr(one, "tool_calls", None))
    ]


def reads_as(one: BaseMessage, other: BaseMessage) -> bool:
    """Return True for messages of one kind that say the same, whatever else they carry."""
    return one.type == other.type and text_of(one) == text_of(other)


def is_titled(message: BaseMessage) -> bool:
    """Return True for a message that reads as a summary."""
    return isinstance(message, SystemMessage) and text_of(message).startswith((*_TITLES.values(),))


def digest_of(message: BaseMessage) -> str:
    """Return a hash of what a message says, but for its id."""
    fields = message.model_dump(exclude={"id", "artifact"})
    return sha256(dumps(fields, sort_keys=True, default=repr).encode()).hexdigest()[:32]


def with_id(message: BaseMessage) -> BaseMessage:
    """Return a message with an id: its own, or one that is made of its contents."""
    return message if message.id else message.model_copy(update={"id": digest_of(message)})


def digest(before: str, messages: Iterable[BaseMessage]) -> str:
    """Return the hash of a conversation that continues one with the hash `before`."""
    for message in messages:
        before = sha256((before + digest_of(message)).encode()).hexdigest()[:32]
    return before


# -- a reducer -------------------------------------------------------------------------


def add_messages(left: Messages, right: Messages, **options: Any) -> Messages:
    """Add messages as LangGraph's `add_messages` does, and let archived ones be removed by id.

    LangGraph's reducer refuses `RemoveMessage` of an id that it does not see. With this one in the
    state's annotation, such a removal reaches the archive, if there is one. Summaries of earlier
    turns that come back with the messages of a client are left out.
    """
    from langgraph.graph.message import add_messages as add  # noqa: PLC0415 - slow, and an extra

    if not isinstance(left, list) or not any(_is_marker(one) for one in left):
        return add(left, right, **options)
    own = {getattr(one, "id", None) for one in left}
    given: list[Any] = right if isinstance(right, list) else [right]
    updates = [one for one in given if not _is_marker(one) or one.id in own]
    seen = {getattr(one, "id", None) for one in (*left, *updates) if not _removes(one)}
    removed = [one.id for one in updates if _removes(one) and one.id not in seen]
    rest = [one for one in updates if not (_removes(one) and one.id in removed)]
    return add(cast("Messages", _noted(left, removed)), cast("Messages", rest), **options)


def _is_marker(message: object) -> bool:
    return isinstance(message, BaseMessage) and is_marker(message)


def _removes(message: object) -> TypeGuard[RemoveMessage]:
    return isinstance(message, RemoveMessage) and message.id != _REMOVE_ALL


def _noted(messages: Sequence[Any], removed: Sequence[str | None]) -> list[Any]:
    """The messages, in which the summary's one says what else was removed."""
    if not removed:
        return list(messages)
    return [_with_removed(one, removed) if _is_marker(one) else one for one in messages]


def _with_removed(marker: BaseMessage, removed: Sequence[str | None]) -> BaseMessage:
    details: Mapping[str, Any] = marker.additional_kwargs.get(DETAILS, {})
    more = [*details.get("removed", ()), *removed]
    return marker.model_copy(
        update={
            "additional_kwargs": {**marker.additional_kwargs, DETAILS: {**details, "removed": more}}
        }
    )


def removed_by(messages: Iterable[BaseMessage]) -> list[str]:
    """Return the ids that the reducer has noted as removed."""
    found = [one.additional_kwargs.get(DETAILS, {}) for one in messages if is_marker(one)]
    return [str(id) for details in found for id in details.get("removed", ())]
