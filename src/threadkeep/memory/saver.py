"""LayeredCheckpointSaver: conversations as short as their window, without losing a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import uuid4

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep._core import arguments, validation
from threadkeep._core.engine.operation import Operation
from threadkeep._run import driver
from threadkeep._run.driver import sync_and_async
from threadkeep._stores.message_index import ArchiveIndex
from threadkeep.errors import InvalidArgumentError, invalid
from threadkeep.memory import records, window
from threadkeep.memory.archive import Recent, as_archived
from threadkeep.memory.archiving import Background, effective_count
from threadkeep.memory.changes import (
    LayeredChanges,
    MessageGroups,
    Place,
    config_of,
    messages_of,
)
from threadkeep.memory.policy import (
    ArchivedMessage,
    Layer,
    LayerName,
    Layers,
    Suggestion,
    Usage,
    with_zone,
)
from threadkeep.memory.summaries import Summary
from threadkeep.memory.summarizers import as_summarizer
from threadkeep.memory.view import LayeredView


class LayeredCheckpointSaver(LayeredChanges):
    """A saver that shows graphs the newest messages and a summary of the older ones.

    Nothing is lost: messages that leave the window are archived in the same thread, and
    `full_messages` and `search_messages` find them again. Everything else works as with the wrapped
    saver, whose attributes this one has. A `config` may be a thread's id, or name a checkpoint.
    Methods have async variants: `alayers` of `layers`, and so on.

    Args:
        saver: any LangGraph saver, closed with this one.
        policy: limits of the layers.
        summarizer: a chat model, a `Summarizer`, or a function of `(messages, previous)`, or None
            for `ExtractiveSummarizer()`, which needs no model.
        channel: the channel that holds the messages.
        base_saver: another name of `saver`.
        language: "en" or "zh": language of the title of the summary's message.
        index: index for searching archived messages, or None for one in the saver's own store.
        background: make summaries in the background. Until a summary is ready, turns see all
            messages. Otherwise the turn waits.
        on_suggestion: called with each `ArchiveSuggestion` and `SplitSuggestion`.

    Raises:
        InvalidArgumentError: an argument is invalid.
    """

    def __init__(  # noqa: PLR0913 - they are given by name
        self,
        saver: BaseCheckpointSaver[Any] | None = None,
        policy: Layers | None = None,
        summarizer: object = None,
        channel: str = "messages",
        *,
        base_saver: BaseCheckpointSaver[Any] | None = None,
        language: str = "en",
        index: ArchiveIndex | None = None,
        background: bool = False,
        on_suggestion: Callable[[Suggestion], None] | None = None,
    ) -> None:
        saver = base_saver if saver is None else saver
        if not isinstance(saver, BaseCheckpointSaver):
            raise invalid("saver", saver, "Use a LangGraph saver, such as SqliteSaver(path).")
        if isinstance(saver, LayeredView):
            raise invalid("saver", saver, "Use the saver that it wraps: this one has layers.")
        if policy is not None and not isinstance(policy, Layers):
            raise invalid("policy", policy, "Use Layers(...).")
        if not isinstance(channel, str) or not channel:
            raise invalid("channel", channel, 'Use the name of a channel, such as "messages".')
        if language not in window.TITLES:
            raise invalid("language", language, 'Use "en" or "zh".')
        self.policy = policy or Layers()
        self.summarizer = as_summarizer(summarizer)
        self._language = language
        self._views = Recent()
        self._owner = uuid4()
        self._is_background = validation.flag("background", background)
        self._background = Background()
        self._on_suggestion = on_suggestion
        super().__init__(saver, channel, index)

    # -- without a graph -------------------------------------------------------------

    def _save(self, config: Place, messages: Iterable[Any]) -> Operation[RunnableConfig]:
        """Store the messages of a conversation as the thread's new checkpoint.

        Args:
            config: the thread's id, or a config that names it.
            messages: all messages, or the view from `load` followed by new messages, in any form
                that `convert_to_messages` takes: messages, dicts, pairs of role and text.

        Returns:
            The config of the checkpoint.

        Raises:
            InvalidArgumentError: these are not messages, or they begin with an older summary.
        """
        head = arguments.head(arguments.place(config_of(config)).thread)
        given = _recognized(messages_of(messages), (yield from self._load(head)))
        seen = yield from self._look(head)
        record = None if seen is None else seen.record
        if seen is None:
            live = _with_ids(given, ())
        elif any(window.is_marker(one) for one in given):
            at = arguments.place(seen.found.config)
            view = yield from self._view_of(at, given)
            view = yield from self._restored(at, view, _with_ids(given, ()))
            record, live = view.record, [*view.live]
        else:
            record = None if record is None else records.longest([record], given)
            given = given if record is None else given[record.stop :]
            live = _with_ids(given, seen.live)
        stored = yield from self._write(head, seen, live, record)
        yield from self._get_tuple(head)  # (archives the messages that are due)
        return stored

    save, asave = sync_and_async(_save)

    def _load(self, config: Place) -> Operation[list[BaseMessage]]:
        """Return the view of a thread: a summary of the older messages, and the newest ones.

        An empty list if the thread has no messages.
        """
        found = yield from self._get_tuple(config_of(config))
        values = {} if found is None else found.checkpoint["channel_values"]
        return list(values.get(self.channel) or [])

    load, aload = sync_and_async(_load)

    # -- reading ---------------------------------------------------------------------

    def _search_messages(
        self,
        config: Place,
        *,
        query: str | None = None,
        key: str | None = None,
        ids: Iterable[str] | None = None,
        after: datetime | int | None = None,
        before: datetime | int | None = None,
        limit: int | None = None,
    ) -> Operation[list[ArchivedMessage]]:
        """Return the archived messages that match all filters.

        Args:
            config: the thread's id, or a config that names the thread or a checkpoint.
            query: words that a message has, all of them. The newest messages come first then.
            key: the key of a layer or group (see `layers` and `groups`).
            ids: ids of messages.
            after: only messages after this time (see `ArchivedMessage.time`) or position.
            before: only messages before this time or position.
            limit: the greatest number of messages to return.

        Raises:
            ThreadNotFoundError: the thread does not exist.
            InvalidArgumentError: a filter is invalid.
        """
        count, places = validation.limit(limit), (_edge(after), _edge(before))
        chosen = None if ids is None else set(validation.ids("ids", ids))
        seen = yield from self._found(config)
        record = seen.record
        if record is None or not record.stop:
            return []
        if query is not None:
            words = validation.text("query", query)
            is_last = key is None and chosen is None and places == (None, None)
            few = count if is_last else None
            found = yield from self._searched(seen.thread, record, words, few)
        elif chosen is not None:
            by_id = yield from self._find(seen.thread, record, list(chosen))
            found = sorted(by_id.values(), key=lambda one: one.position)
        else:
            archived = yield from self._archived(seen.thread, record)
            found = [as_archived(*one) for one in archived]
        if key is not None:
            groups = yield from self.groups._of(seen)  # noqa: SLF001 - a part of this
            ranges = [range(one.start, one.stop) for one in groups if one.key == key]
            found = [m for m in found if m.key == key or any(m.position in r for r in ranges)]
        if chosen is not None:
            found = [one for one in found if one.message.id in chosen]
        return [one for one in found if _is_between(one, *places)][:count]

    search_messages, asearch_messages = sync_and_async(_search_messages)

    def _layers(self, config: Place) -> Operation[list[Layer]]:
        """Return the layers of a thread, oldest first: groups in the archive, summary, full.

        Raises:
            ThreadNotFoundError: the thread or checkpoint does not exist.
        """
        seen = yield from self._found(config)
        record, found = seen.record, list[Layer]()
        if record is not None:
            chain = yield from self._chain(seen.thread, record)
            for each in records.groups_of(chain, record.stop):
                group = replace(each, stop=min(each.stop, record.stop))
                count = group.messages - sum(map(group.has, record.removed))
                if count <= 0:
                    continue
                own = next((one for one in chain if one.stop >= group.stop), record)
                name: LayerName = "archive" if group.start < record.group_start else "summary"
                layer = Layer(name, count, group.key, own.archived_at, group.summary)
                found.append(layer)
        found.append(Layer("full", len(seen.live)))
        return found

    layers, alayers = sync_and_async(_layers)

    def _usage(self, config: Place) -> Operation[Usage]:
        """Return the messages and tokens of a conversation, and of a graph's view of it.

        Raises:
            ThreadNotFoundError: the thread or checkpoint does not exist.
        """
        seen = yield from self._found(config)
        view = yield from self._view(seen, seen.record)
        shown = self._messages(view)
        archived = 0 if seen.record is None else seen.record.tokens
        tokens = archived + self.policy.counter(seen.live)
        return Usage(seen.stop - seen.removed, tokens, len(shown), self.policy.counter(shown))

    usage, ausage = sync_and_async(_usage)

    def _summary(self, config: Place) -> Operation[Summary | None]:
        """Return the summary of the messages that have left the window, or None.

        Raises:
            ThreadNotFoundError: the thread or checkpoint does not exist.
        """
        seen = yield from self._found(config)
        return None if seen.record is None else seen.record.summary

    summary, asummary = sync_and_async(_summary)

    @property
    def groups(self) -> MessageGroups:
        """Groups of messages: `groups(config)` lists them, its methods change them."""
        return MessageGroups(self)

    # -- deletion --------------------------------------------------------------------

    def _delete_thread(self, thread_id: str) -> Operation[None]:
        """Delete a thread, its layers, and its messages in the index."""
        yield from super()._delete_thread(thread_id)
        yield from self._forget(str(validation.thread_in(thread_id)))

    delete_thread, adelete_thread = sync_and_async(_delete_thread)

    def _erase(self, thread_id: str, **options: Any) -> Operation[Any]:
        """Erase a thread as `threads.erase` does, and its messages in the index."""
        if not hasattr(self._inner, "threads"):
            raise InvalidArgumentError(
                f"{type(self._inner).__name__} cannot erase threads.", hint="Use delete_thread()."
            )
        thread_id = validation.thread_id(thread_id)
        yield from self._forget(thread_id)
        return (yield from self._call_threads("erase", thread_id, **options))

    erase, aerase = sync_and_async(_erase)

    def _prune(
        self, thread_ids: Sequence[str], *, strategy: str = "keep_latest"
    ) -> Operation[None]:
        """Threads that are kept keep their whole archive."""
        threads: Any = validation.threads_in(thread_ids)
        if strategy != "delete" and not hasattr(self._inner, "delete_checkpoints"):
            for thread in map(str, threads):
                if (yield from self._call("get_tuple", records.place(thread))) is not None:
                    raise InvalidArgumentError(
                        f"{type(self._inner).__name__} would also prune archived messages.",
                        hint="Wrap a threadkeep saver, or use delete_thread().",
                        thread=thread,
                    )
        yield from super()._prune(threads, strategy=strategy)
        if strategy == "delete":
            for thread in threads:
                yield from self._forget(str(thread))

    prune, aprune = sync_and_async(_prune)

    def _forget(self, thread: str) -> Operation[None]:
        for cache in (self._views, self._records):
            cache.forget(thread)
        for index in self._indexes:
            yield from driver.external(partial(index.remove, thread))


def _is_between(
    one: ArchivedMessage, after: datetime | int | None, before: datetime | int | None
) -> bool:
    def at(edge: datetime | int) -> Any:
        return one.position if isinstance(edge, int) else one.time

    return (after is None or at(after) > after) and (before is None or at(before) < before)


def _edge(value: datetime | int | None) -> datetime | int | None:
    """Return a position, or a time with its zone."""
    if value is None or validation.is_count(value, 0):
        return value
    if not isinstance(value, datetime):
        raise invalid("after or before", value, "Use a datetime, or a position.")
    return with_zone(value)


def _recognized(given: list[BaseMessage], view: list[BaseMessage]) -> list[BaseMessage]:
    """Return messages. If they begin with a view that has lost its ids, restore its ids.

    Raises:
        InvalidArgumentError: they begin with another summary, which would become a message.
    """
    if any(window.is_marker(one) for one in given) or not any(map(window.is_marker, view)):
        return given
    pairs = [*zip(given, view, strict=False)]
    if len(given) >= len(view) and all(window.reads_as(one, other) for one, other in pairs):
        return [*view, *given[len(view) :]]
    if any(window.is_titled(one) for one in given):
        hint = "Use the messages that load(config) returned last, followed by the new ones."
        raise invalid("messages", given, hint)
    return given


def _with_ids(given: Sequence[BaseMessage], before: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return messages with ids. An equal message at the same position before keeps its id."""
    found = []
    for index, message in enumerate(given):
        own = before[index] if index < len(before) else None
        if own is not None and window.same(message, own) and message.id in (None, own.id):
            found.append(own)
        elif message.id is None:
            found.append(message.model_copy(update={"id": str(uuid4())}))
        else:
            found.append(message)
    return found


@dataclass(frozen=True, slots=True)
class SavedConversation:
    """The result of `save_checkpoint_optimized`.

    Attributes:
        config: the config of the checkpoint.
        layer: the deepest layer of the conversation.
        messages: the number of its messages.
        effective_count: the number of its messages. A collapsed group counts as one.
    """

    config: RunnableConfig
    layer: LayerName
    messages: int
    effective_count: int


class IntegratedCheckpointManager:
    """Layers and groups together: a collapsed group counts as one message for the layers.

    Args:
        layered: the saver.
        groups: its groups, or None for `layered.groups`.
    """

    def __init__(
        self, layered: LayeredCheckpointSaver, groups: MessageGroups | None = None
    ) -> None:
        self.layered = layered
        self.groups = groups if groups is not None else layered.groups

    def _save(
        self, config: RunnableConfig, messages: Iterable[Any]
    ) -> Operation[SavedConversation]:
        """Store a conversation as `LayeredCheckpointSaver.save` does, and report its layer.

        Raises:
            InvalidArgumentError: these are not messages.
        """
        stored = yield from self.layered._save(config, messages)  # noqa: SLF001 - its own saver
        seen = yield from self.layered._found(arguments.place(stored).thread)  # noqa: SLF001 - likewise
        count = effective_count(seen.record, len(seen.live))
        layer = self.layered.policy.layer(count)
        return SavedConversation(stored, layer, seen.stop - seen.removed, count)

    save_checkpoint_optimized, asave_checkpoint_optimized = sync_and_async(_save)

    def _load(self, config: RunnableConfig) -> Operation[list[Any]]:
        """Return the view of a thread (see `LayeredCheckpointSaver.load`)."""
        return (yield from self.layered._load(config))  # noqa: SLF001 - its own saver

    load, aload = sync_and_async(_load)
