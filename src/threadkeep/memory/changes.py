"""Changes of a layered conversation by hand: edits, pins, new summaries, splits, groups."""

# ruff: noqa: SLF001 - MessageGroups is a part of the saver

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast
from uuid import uuid4

from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from threadkeep._core import arguments, validation
from threadkeep._core.engine.operation import Operation
from threadkeep._run.driver import sync_and_async
from threadkeep.errors import StateError, ThreadNotFoundError, invalid
from threadkeep.memory import window
from threadkeep.memory.archiving import CHUNK, SeenCheckpoint, effective_count
from threadkeep.memory.records import POINTER, Group, Record, groups_of, with_groups
from threadkeep.memory.summaries import Summary
from threadkeep.memory.view import LayeredView, MessageList

Place = str | RunnableConfig
"""A thread's id, or a config that names a thread or a checkpoint."""

Groups: TypeAlias = list[Group]


class LayeredChanges(LayeredView):
    """A saver whose conversations you can change by hand. See `LayeredCheckpointSaver`."""

    def _edit(self, config: Place, messages: Iterable[BaseMessage]) -> Operation[RunnableConfig]:
        """Replace messages by id, including archived ones. Older checkpoints do not change.

        Returns:
            The config of the new checkpoint.

        Raises:
            ThreadNotFoundError: the thread does not exist.
            InvalidArgumentError: a message has no id, or the thread has no message with that id.
        """
        given = messages_of(messages)
        if not all(one.id for one in given):
            raise invalid("messages", given, "Give each message the id that it replaces.")
        return (yield from self._changed(config, {str(one.id): one for one in given}))

    edit, aedit = sync_and_async(_edit)

    def _remove(self, config: Place, ids: Iterable[str]) -> Operation[RunnableConfig]:
        """Remove messages by id, including archived ones. Older checkpoints do not change.

        Returns:
            The config of the new checkpoint.

        Raises:
            ThreadNotFoundError: the thread does not exist.
            InvalidArgumentError: the thread has no message with this id.
        """
        return (yield from self._changed(config, dict.fromkeys(validation.ids("ids", ids))))

    remove, aremove = sync_and_async(_remove)

    def _pin(self, config: Place, *ids: str, pinned: bool = True) -> Operation[RunnableConfig]:
        """Pin messages, so that they stay in view. A tool call is pinned with its results.

        Returns:
            The config of the new checkpoint.

        Raises:
            ThreadNotFoundError: the thread does not exist.
            InvalidArgumentError: the thread has no message with this id.
        """
        found = yield from self._full_messages(config)
        chosen = {str(one.id) for one in found if one.id in ids}
        for indexes in window.exchanges(found):
            exchange = {str(found[index].id) for index in indexes}
            chosen |= exchange if chosen & exchange else set()
        edits: dict[str, BaseMessage | None] = {}
        for one in found:
            if str(one.id) in chosen:
                marks = {**one.additional_kwargs, "pinned": pinned}
                edits[str(one.id)] = one.model_copy(update={"additional_kwargs": marks})
        return (yield from self._changed(config, {**dict.fromkeys(ids), **edits}))

    pin, apin = sync_and_async(_pin)

    def _changed(
        self, config: Place, edits: dict[str, BaseMessage | None]
    ) -> Operation[RunnableConfig]:
        """Store a checkpoint in which messages are replaced, or removed (None)."""
        seen = yield from self._found(config)
        live = [edits.get(str(one.id), one) for one in seen.live]
        missing = [id for id in edits if id not in {one.id for one in seen.live}]
        record = seen.record
        found = (yield from self._archived(seen.thread, record)) if missing else []
        known = {one.id for _, one, _ in found}
        archived = {id: edits[id] for id in missing if id in known}
        unknown = [id for id in missing if id not in known]
        if unknown:
            raise invalid("id", unknown[0], "Use the id of a message of this thread.")
        at, left = arguments.place(seen.found.config), [one for one in live if one is not None]
        if record is not None and archived:
            record = yield from self._edited(at, record, archived)
        if record is not None:
            record = yield from self._shifted(at, record, seen.live, left)
        return (yield from self._write(arguments.head(seen.thread), seen, left, record))

    def _full_messages(self, config: Place) -> Operation[list[BaseMessage]]:
        """Return all messages of a conversation in full, oldest first.

        Raises:
            ThreadNotFoundError: the thread or checkpoint does not exist.
        """
        seen = yield from self._found(config)
        found = yield from self._archived(seen.thread, seen.record)
        return [message for _, message, _ in found] + seen.live

    full_messages, afull_messages = sync_and_async(_full_messages)

    def _resummarize(self, config: Place) -> Operation[Summary | None]:
        """Make the summary again from the archived messages, for example after an edit.

        Calls the summarizer once for each 50 archived messages.

        Raises:
            ThreadNotFoundError: the thread does not exist.
            SummaryError: the summarizer failed, and the summary stays as it was.
        """
        seen = yield from self._found(config)
        record, summary = seen.record, None
        if record is None:
            return None
        found = yield from self._archived(seen.thread, record)
        messages = [message for _, message, _ in found]
        staying = {id(one) for one in window.staying(messages, self.policy)}
        rest = [one for one in messages if id(one) not in staying]
        for start in range(0, len(rest), CHUNK):
            summary = yield from self._ask(rest[start : start + CHUNK], summary)
        new = record.after(seen.key, summary=summary, is_stale=False)
        record = yield from self._add(seen.thread, record, new)
        yield from self._write(arguments.head(seen.thread), seen, seen.live, record)
        return summary

    resummarize, aresummarize = sync_and_async(_resummarize)

    def _split(self, config: Place, new_thread_id: str | None = None) -> Operation[RunnableConfig]:
        """Begin a new thread with the summary of this one, and link the two.

        The new thread's view is a summary of all messages, and the pinned messages. The metadata of
        the threads link them (`split_from`, `split_into`), if the saver keeps metadata of threads.

        Returns:
            The config of the new thread.

        Raises:
            ThreadNotFoundError: the thread does not exist.
            StateError: the thread has no messages, or the new one has checkpoints.
            SummaryError: the summarizer failed, and nothing was stored.
        """
        seen = yield from self._found(config)
        name = str(uuid4()) if new_thread_id is None else validation.thread_id(new_thread_id)
        new = arguments.head(name)
        run = object()
        if (yield from self._look(arguments.saving_as(run, new))) is not None:
            raise StateError("The new thread already has checkpoints.", thread=name)
        if not seen.stop:
            raise StateError("The thread has no messages to summarize.", thread=seen.thread)
        summary = None if seen.record is None else seen.record.summary
        if seen.live:
            summary = yield from self._ask(seen.live, summary)
        before = () if seen.record is None else seen.record.kept
        root = str(uuid6())
        seed = Record(
            key=root,
            root=root,
            summary=summary,
            model=self.summarizer.model,
            prompt_version=self.summarizer.prompt_version,
            kept=[*before, *map(window.with_id, window.staying(seen.live, self.policy))],
            origin=(seen.thread, seen.key),
            created_at=datetime.now(UTC).isoformat(),
        )
        seed = yield from self._add(name, None, seed, run)
        yield from self._write(new, None, [], seed, key=root)
        yield from self._call_threads("update", name, metadata={"split_from": seen.thread})
        yield from self._call_threads("update", seen.thread, metadata={"split_into": name})
        return new

    split, asplit = sync_and_async(_split)

    def _write(
        self,
        config: RunnableConfig,
        seen: SeenCheckpoint | None,
        live: list[BaseMessage],
        record: Record | None,
        *,
        key: str | None = None,
    ) -> Operation[RunnableConfig]:
        """Store a child of a checkpoint that has other messages and the same other channels."""
        before: Any = empty_checkpoint() if seen is None else seen.found.checkpoint
        metadata = {} if seen is None else seen.found.metadata
        versions = before["channel_versions"]
        version = self._inner.get_next_version(max(versions.values(), default=None), None)
        new = {self.channel: version}
        checkpoint = {
            **before,
            "id": key or str(uuid6()),
            "ts": datetime.now(UTC).isoformat(),
            "channel_values": {**before["channel_values"], self.channel: live},
            "channel_versions": {**versions, **new},
            "updated_channels": [self.channel],
        }
        more: dict[str, Any] = {"source": "update", "step": metadata.get("step", -2) + 1}
        more["parents"] = {}
        more[POINTER] = "" if record is None else record.key
        above = config if seen is None else seen.found.config
        if record is not None:
            above = arguments.referring_to(record.key, above)
        return cast("RunnableConfig", (yield from self._call("put", above, checkpoint, more, new)))

    def _found(self, config: Place) -> Operation[SeenCheckpoint]:
        """Return a stored checkpoint. For a head, archive the messages that are due first.

        Raises:
            ThreadNotFoundError: it does not exist.
        """
        place = config_of(config)
        seen = yield from self._look(place)
        if seen is None:
            raise ThreadNotFoundError(thread=arguments.place(place).thread)
        return seen if arguments.place(place).id else (yield from self._due(seen))


def config_of(config: Place) -> RunnableConfig:
    """Return the config of a place, with its thread id as a str, as LangGraph passes it on."""
    if not validation.is_mapping(config):
        return arguments.head(config)
    at = arguments.place(config)
    return {**config, "configurable": {**config["configurable"], "thread_id": at.thread}}


def messages_of(messages: Iterable[Any]) -> list[BaseMessage]:
    """Return messages, given in any form that `convert_to_messages` takes."""
    try:
        return list(convert_to_messages(list(messages)))
    except (TypeError, ValueError, NotImplementedError) as error:
        hint = "Use messages, dicts with role and content, or pairs of role and text."
        raise invalid("messages", messages, hint) from error


class MessageGroups:
    """Groups of messages in the threads of a `LayeredCheckpointSaver`.

    Each method has an async variant. Each change is stored as a new checkpoint of the thread, and
    older checkpoints keep their groups.
    """

    def __init__(self, layered: LayeredChanges) -> None:
        self._layered = layered

    def __call__(self, config: Place) -> Groups:
        """Return the groups of a thread (see `list`)."""
        return self.list(config)

    def _list(self, config: Place) -> Operation[Groups]:
        """Return the groups of a thread in order. Together they are the whole conversation.

        Raises:
            ThreadNotFoundError: the thread or checkpoint does not exist.
        """
        seen = yield from self._layered._found(config)
        return (yield from self._of(seen))

    list, alist = sync_and_async(_list)

    def _of(self, seen: SeenCheckpoint) -> Operation[Groups]:
        chain = yield from self._layered._chain(seen.thread, seen.record)
        return groups_of(chain, seen.stop)

    def _count(self, config: Place) -> Operation[int]:
        """Return the number of messages. A collapsed group counts as one.

        Raises:
            ThreadNotFoundError: the thread or checkpoint does not exist.
        """
        seen = yield from self._layered._found(config)
        return effective_count(seen.record, len(seen.live))

    effective_count, aeffective_count = sync_and_async(_count)

    def _regroup(self, config: Place, ranges: Iterable[tuple[int, int, str]]) -> Operation[Groups]:
        """Set groups, each `(start, stop, topic)`. They replace groups by hand in these ranges.

        Returns:
            The groups of the thread.

        Raises:
            ThreadNotFoundError: the thread does not exist.
            InvalidArgumentError: a range is invalid, or separates a tool call from its results.
        """
        seen = yield from self._layered._found(config)
        new: list[Group] = []
        for start, stop, topic in ranges:
            yield from self._messages(seen, start, stop)
            status = "archived" if stop <= seen.behind else "open"
            key, topic_ = str(uuid4()), validation.text("topic", topic)
            group = Group(key, start, stop, topic_, status, by_hand=True)  # type: ignore[arg-type]  # one of its values
            new = with_groups(new, [group])
        return (yield from self._set(seen, new))

    regroup, aregroup = sync_and_async(_regroup)

    def _collapse(
        self, config: Place, start: int, stop: int, topic: str = "", summary: str | None = None
    ) -> Operation[Group]:
        """Show a summary in place of the messages from `start` to `stop`. They count as one.

        Args:
            config: the thread.
            start: position of the first message in the conversation.
            stop: position after the last one.
            topic: topic of the group, empty for the summary's own.
            summary: summary of the messages, or None to call the summarizer.

        Raises:
            ThreadNotFoundError: the thread does not exist.
            InvalidArgumentError: the range is invalid, or separates a tool call from its results.
            SummaryError: the summarizer failed, and nothing was stored.
        """
        seen = yield from self._layered._found(config)
        found = yield from self._messages(seen, start, stop)
        if summary is None:
            made = yield from self._layered._ask(found, None)
            summary, topic = made.content, topic or ", ".join(made.key_topics[:3])
        group = Group(str(uuid4()), start, stop, topic, "summarized", summary, by_hand=True)
        yield from self._set(seen, [group])
        return group

    collapse, acollapse = sync_and_async(_collapse)

    def _expand(self, config: Place, key: str) -> Operation[Group]:
        """Show the messages of a group again, also of an archived one.

        Stores nothing if the messages are in view already.

        Raises:
            ThreadNotFoundError: the thread does not exist.
            InvalidArgumentError: the thread has no such group.
        """
        seen = yield from self._layered._found(config)
        found = [one for one in (yield from self._of(seen)) if one.key == key]
        if not found:
            raise invalid("key", key, "Use the key of a group that groups(config) returned.")
        if found[0].status == "open":
            return found[0]
        group = replace(found[0], status="open", by_hand=True)
        yield from self._set(seen, [group])
        return group

    expand, aexpand = sync_and_async(_expand)

    def _set(self, seen: SeenCheckpoint, new: Sequence[Group]) -> Operation[Groups]:
        """Store a checkpoint with these groups, and the other groups by hand outside of them."""
        layered = self._layered
        before = seen.record or (yield from layered._first(seen))
        record = before.after(seen.key, groups=tuple(with_groups(before.groups, new)))
        record = yield from layered._add(seen.thread, before, record)
        config = yield from layered._write(arguments.head(seen.thread), seen, seen.live, record)
        return (yield from self._list(config))

    def _messages(self, seen: SeenCheckpoint, start: Any, stop: Any) -> Operation[MessageList]:
        """Return the messages of a range that separates no tool call from its results."""
        numbers = validation.is_count(start, 0) and validation.is_count(stop, 1)
        if not numbers or not start < stop <= seen.stop:
            hint = f"Use positions of the conversation: 0 <= start < stop <= {seen.stop}."
            raise invalid("range", (start, stop), hint)
        if start < seen.behind < stop:
            hint = f"Use a range before or after {seen.behind}, where the messages in full begin."
            raise invalid("range", (start, stop), hint)
        found: list[tuple[int, BaseMessage]] = list(enumerate(seen.live, seen.behind))
        if start < seen.behind:
            archived = yield from self._layered._archived(seen.thread, seen.record)
            found = [(position, message) for position, message, _ in archived]
        messages = [message for _, message in found]
        for edge in (start, stop):
            at = sum(1 for position, _ in found if position < edge)
            if at < len(messages) and window.whole(messages, at) != at:
                hint = "Use a range that has the results of all its tool calls."
                raise invalid("range", (start, stop), hint)
        return [message for position, message in found if start <= position < stop]
