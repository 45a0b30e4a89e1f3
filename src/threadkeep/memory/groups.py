"""Groups of messages: contiguous ranges of a conversation, each with a topic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias
from uuid import uuid4

from langchain_core.messages import BaseMessage

from threadkeep._core import arguments, validation
from threadkeep._run.layers.driver import Workflow, sync_and_async
from threadkeep.errors import invalid
from threadkeep.memory import records, window
from threadkeep.memory.archiving import SeenCheckpoint, effective_count
from threadkeep.memory.changes import LayeredChanges, Place
from threadkeep.memory.records import Group, Record

Groups: TypeAlias = list[Group]


def groups_of(chain: Sequence[Record], stop: int) -> Groups:
    """Return the groups of a conversation that ends at a position, in order.

    Those that were made by hand take the place of others: what is left of these is theirs.
    """
    if not chain:
        return [Group("full", 0, stop)] if stop else []
    newest = chain[-1]
    found = [group for record in chain for group in record.closed]
    told = newest.summary.content if newest.summary is not None else ""
    if newest.stop > newest.group_start:
        key = f"{newest.key}/summary"  # (the record's own may have messages of another group)
        found.append(Group(key, newest.group_start, newest.stop, "", "summarized", told))
    if stop > newest.stop:
        found.append(Group("full", newest.stop, stop))
    for group in newest.groups:
        found = [rest for one in found for rest in _without(one, group)]
    by_hand = [
        replace(group, status="archived")
        if group.status == "summarized" and group.stop <= newest.stop
        else group
        for group in newest.groups
    ]
    return sorted([*found, *by_hand], key=lambda group: group.start)


def _without(group: Group, other: Group) -> list[Group]:
    """Return the parts of a group that another one leaves."""
    parts = (group.start, min(group.stop, other.start)), (max(group.start, other.stop), group.stop)
    return [replace(group, start=start, stop=stop) for start, stop in parts if start < stop]


class MessageGroups:
    """Groups of messages of the threads of a `LayeredCheckpointSaver`.

    Each method has an async variant. What they change is stored as a new checkpoint of the thread;
    older ones keep their groups.
    """

    def __init__(self, layered: LayeredChanges) -> None:
        self._layered = layered

    def __call__(self, config: Place) -> Groups:
        """Return the groups of a thread; see `list`."""
        return self.list(config)

    def _list(self, config: Place) -> Workflow[Groups]:
        """Return the groups of a thread, in order; together they are the whole conversation.

        Raises:
            ThreadNotFoundError: there is no such thread or checkpoint.
        """
        seen = yield from self._layered._found(config)  # noqa: SLF001 - a part of it
        return (yield from self._of(seen))

    list, alist = sync_and_async(_list)

    def _of(self, seen: SeenCheckpoint) -> Workflow[Groups]:
        chain: Sequence[Record] = ()
        if seen.record is not None:
            known = yield from self._layered._all_records(seen.thread)  # noqa: SLF001 - likewise
            chain = records.chain(known, seen.record.key)
        return groups_of(chain, seen.stop)

    def _count(self, config: Place) -> Workflow[int]:
        """Return the effective number of messages: a collapsed group counts as one.

        Raises:
            ThreadNotFoundError: there is no such thread or checkpoint.
        """
        seen = yield from self._layered._found(config)  # noqa: SLF001 - a part of it
        return effective_count(seen.record, len(seen.live))

    effective_count, aeffective_count = sync_and_async(_count)

    def _regroup(self, config: Place, ranges: Iterable[tuple[int, int, str]]) -> Workflow[Groups]:
        """Set the groups of ranges, each `(start, stop, topic)`; groups by hand there are replaced.

        Returns:
            The groups of the thread.

        Raises:
            ThreadNotFoundError: there is no such thread.
            InvalidArgumentError: a range is invalid, or separates a tool call from its results.
        """
        seen = yield from self._layered._found(config)  # noqa: SLF001 - a part of it
        new: list[Group] = []
        for start, stop, topic in ranges:
            yield from _checked(self._layered, seen, start, stop)
            status = "archived" if stop <= _stop(seen) else "open"
            key, topic_ = str(uuid4()), validation.text("topic", topic)
            group = Group(key, start, stop, topic_, status, by_hand=True)  # type: ignore[arg-type]  # one of its values
            new = [rest for one in new for rest in _without(one, group)] + [group]
        return (yield from self._set(seen, new))

    regroup, aregroup = sync_and_async(_regroup)

    def _collapse(
        self, config: Place, start: int, stop: int, topic: str = "", summary: str | None = None
    ) -> Workflow[Group]:
        """Show a summary in place of the messages from `start` to `stop`; they count as one.

        Args:
            config: the thread.
            start: position of the first message in the conversation.
            stop: position behind the last one.
            topic: of the group; empty for that of the summary.
            summary: of the messages; None: the summarizer makes it.

        Raises:
            ThreadNotFoundError: there is no such thread.
            InvalidArgumentError: the range is invalid, or separates a tool call from its results.
            SummaryError: the summarizer failed; nothing was done.
        """
        layered = self._layered
        seen = yield from layered._found(config)  # noqa: SLF001 - a part of it
        found = yield from _checked(layered, seen, start, stop)
        if summary is None:
            made = yield from layered._ask(found, None)  # noqa: SLF001 - likewise
            summary, topic = made.content, topic or ", ".join(made.key_topics[:3])
        group = Group(str(uuid4()), start, stop, topic, "summarized", summary, by_hand=True)
        yield from self._set(seen, [group])
        return group

    collapse, acollapse = sync_and_async(_collapse)

    def _expand(self, config: Place, key: str) -> Workflow[Group]:
        """Show the messages of a group again, also those of an archived one.

        Nothing is stored where they are shown already.

        Raises:
            ThreadNotFoundError: there is no such thread.
            InvalidArgumentError: it has no such group.
        """
        seen = yield from self._layered._found(config)  # noqa: SLF001 - a part of it
        found = [one for one in (yield from self._of(seen)) if one.key == key]
        if not found:
            raise invalid("key", key, "Use the key of a group, as groups(config) shows it.")
        if found[0].status == "open":
            return found[0]
        group = replace(found[0], status="open", by_hand=True)
        yield from self._set(seen, [group])
        return group

    expand, aexpand = sync_and_async(_expand)

    def _set(self, seen: SeenCheckpoint, new: Sequence[Group]) -> Workflow[Groups]:
        """Store a checkpoint with these groups, and of those by hand what they leave."""
        layered = self._layered
        before = seen.record or (yield from layered._first(seen))  # noqa: SLF001 - a part of it
        old = list(before.groups)
        for group in new:
            old = [rest for one in old for rest in _without(one, group)]
        record = before.after(seen.key, groups=tuple(sorted([*old, *new], key=lambda g: g.start)))
        record = yield from layered._add(seen.thread, before, record)  # noqa: SLF001 - likewise
        config = yield from layered._write(  # noqa: SLF001 - likewise
            arguments.head(seen.thread), seen, seen.live, record
        )
        return (yield from self._list(config))


def _stop(seen: SeenCheckpoint) -> int:
    return seen.record.stop if seen.record is not None else 0


def _checked(
    layered: LayeredChanges, seen: SeenCheckpoint, start: Any, stop: Any
) -> Workflow[list[BaseMessage]]:
    """Return the messages of a range that separates no tool call from its results."""
    numbers = validation.is_count(start, 0) and validation.is_count(stop, 1)
    if not numbers or not start < stop <= seen.stop:
        hint = f"Use positions of the conversation: 0 <= start < stop <= {seen.stop}."
        raise invalid("range", (start, stop), hint)
    behind = _stop(seen)
    if start < behind < stop:
        hint = f"Use a range on one side of {behind}, where the messages in full begin."
        raise invalid("range", (start, stop), hint)
    found: list[tuple[int, BaseMessage]] = list(enumerate(seen.live, behind))
    if start < behind and seen.record is not None:
        archived = yield from layered._archived(seen.thread, seen.record)  # noqa: SLF001 - a part of it
        found = [(position, message) for position, message, _ in archived]
    messages = [message for _, message in found]
    for edge in (start, stop):
        at = sum(1 for position, _ in found if position < edge)
        if at < len(messages) and window.whole(messages, at) != at:
            hint = "Use a range that has the results of all its tool calls."
            raise invalid("range", (start, stop), hint)
    return [message for position, message in found if start <= position < stop]
