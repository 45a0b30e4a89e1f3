"""LayeredCheckpointSaver: conversations that stay as short as their window, and lose nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import uuid4

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep._core import arguments, validation
from threadkeep._run.layers import driver
from threadkeep._run.layers.driver import Workflow, sync_and_async
from threadkeep._stores.message_index import ArchiveIndex
from threadkeep.errors import InvalidArgumentError, invalid
from threadkeep.memory import records, window
from threadkeep.memory.archive import as_archived
from threadkeep.memory.changes import LayeredChanges, Place, config_of, ids_of, messages_of
from threadkeep.memory.groups import MessageGroups, groups_of
from threadkeep.memory.policy import ArchivedMessage, Layer, LayerName, Layers, Suggestion, Usage
from threadkeep.memory.records import Record
from threadkeep.memory.summaries import Summary
from threadkeep.memory.summarizers import as_summarizer
from threadkeep.memory.times import with_zone
from threadkeep.memory.view import LayeredView


class LayeredCheckpointSaver(LayeredChanges):
    """A saver that shows graphs the newest messages and a summary of what came before.

    Nothing is lost: what leaves the window is archived in the same thread, and is found again by
    `full_messages` and `search_messages`. All else is as with the saver inside, whose attributes
    this one has. A `config` may be the id of a thread, or name a checkpoint. Methods have async
    variants: `alayers` of `layers`, and so on.

    Args:
        saver: any LangGraph saver; closed with this one.
        policy: limits of the layers.
        summarizer: a chat model, a `Summarizer`, or a function of `(messages, previous)`; None for
            `ExtractiveSummarizer()`, which needs no model.
        channel: the channel that holds the messages.
        language: "en" or "zh": the title of the summary's message.
        index: where archived messages are searched; None for one beside the saver's own tables.
        background: summaries are made beside the turn that needs them; that turn and those until
            the summary is there see all messages. Otherwise the turn waits.
        on_suggestion: called with each `ArchiveSuggestion` and `SplitSuggestion`.

    Raises:
        InvalidArgumentError: an argument is invalid.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any],
        policy: Layers | None = None,
        summarizer: object = None,
        channel: str = "messages",
        *,
        language: str = "en",
        index: ArchiveIndex | None = None,
        background: bool = False,
        on_suggestion: Callable[[Suggestion], None] | None = None,
    ) -> None:
        if not isinstance(saver, BaseCheckpointSaver):
            raise invalid("saver", saver, "Use a LangGraph saver, such as SqliteSaver(path).")
        if isinstance(saver, LayeredView):
            raise invalid("saver", saver, "Use the saver inside it: it has layers already.")
        if policy is not None and not isinstance(policy, Layers):
            raise invalid("policy", policy, "Use Layers(...).")
        if not isinstance(channel, str) or not channel:
            raise invalid("channel", channel, 'Use the name of a channel, such as "messages".')
        if language not in window.LANGUAGES:
            raise invalid("language", language, 'Use "en" or "zh".')
        super().__init__(
            saver,
            policy=policy or Layers(),
            summarizer=as_summarizer(summarizer),
            channel=channel,
            language=language,
            index=index,
            background=validation.flag("background", background),
            on_suggestion=on_suggestion,
        )

    # -- without a graph -------------------------------------------------------------

    def _save(self, config: Place, messages: Iterable[Any]) -> Workflow[RunnableConfig]:
        """Store the messages of a conversation as the thread's new checkpoint.

        Args:
            config: names the thread; its id will do.
            messages: all of them, or those that `load` returned with the new ones behind.
                What `convert_to_messages` takes: messages, dicts, pairs of role and text.

        Returns:
            The config of the checkpoint.

        Raises:
            InvalidArgumentError: they are no messages, or begin with an older summary.
        """
        head = arguments.head(arguments.place(config_of(config)).thread)
        given = _recognised(messages_of(messages), (yield from self._load(head)))
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
            record, rest = _behind(record, given)
            live = _with_ids(rest, seen.live)
        stored = yield from self._write(head, seen, live, record)
        yield from self._get_tuple(head)  # (what is due leaves the window)
        return stored

    save, asave = sync_and_async(_save)

    def _load(self, config: Place) -> Workflow[list[BaseMessage]]:
        """Return the view of a thread: a summary of what came before, and the newest messages.

        An empty list if the thread has none.
        """
        found = yield from self._get_tuple(config_of(config))
        values = {} if found is None else found.checkpoint["channel_values"]
        return list(values.get(self.channel) or [])

    load, aload = sync_and_async(_load)

    # -- originals -------------------------------------------------------------------

    def _full_messages(self, config: Place) -> Workflow[list[BaseMessage]]:
        """Return all messages of a conversation, as they were written, oldest first.

        Raises:
            ThreadNotFoundError: there is no such thread or checkpoint.
        """
        seen = yield from self._found(config)
        if seen.record is None:
            return seen.live
        found = yield from self._archived(seen.thread, seen.record)
        return [message for _, message, _ in found] + seen.live

    full_messages, afull_messages = sync_and_async(_full_messages)

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
    ) -> Workflow[list[ArchivedMessage]]:
        """Return archived messages that match all that is asked for.

        Args:
            config: names the thread, or a checkpoint of it; an id will do.
            query: words that a message has, all of them; the newest messages come first then.
            key: the key of a layer or group; see `layers` and `groups`.
            ids: ids of messages.
            after: only those after this time (see `ArchivedMessage.time`), or behind this position.
            before: only those before this time, or before this position.
            limit: the most to return.

        Raises:
            ThreadNotFoundError: there is no such thread.
            InvalidArgumentError: a filter is invalid.
        """
        count, places = validation.limit(limit), (_edge(after), _edge(before))
        chosen = None if ids is None else set(ids_of(ids))
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

    # -- what there is ---------------------------------------------------------------

    def _layers(self, config: Place) -> Workflow[list[Layer]]:
        """Return the layers of a thread, oldest first: groups in the archive, summary, full.

        Raises:
            ThreadNotFoundError: there is no such thread or checkpoint.
        """
        seen = yield from self._found(config)
        record, found = seen.record, list[Layer]()
        if record is not None:
            chain = records.chain((yield from self._all_records(seen.thread)), record.key)
            for group in groups_of(chain, record.stop):
                group = replace(group, stop=min(group.stop, record.stop))  # noqa: PLW2901
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

    def _usage(self, config: Place) -> Workflow[Usage]:
        """Return the messages and tokens of a conversation, and of what a graph sees of it.

        Raises:
            ThreadNotFoundError: there is no such thread or checkpoint.
        """
        seen = yield from self._found(config)
        view = yield from self._view(seen, seen.record, seen.live)
        shown = self._messages(view)
        archived = 0 if seen.record is None else seen.record.tokens
        tokens = archived + self.policy.counter(seen.live)
        removed = 0 if seen.record is None else len(seen.record.removed)
        return Usage(seen.stop - removed, tokens, len(shown), self.policy.counter(shown))

    usage, ausage = sync_and_async(_usage)

    def _summary(self, config: Place) -> Workflow[Summary | None]:
        """Return the summary of what has left the window; None if nothing has.

        Raises:
            ThreadNotFoundError: there is no such thread or checkpoint.
        """
        seen = yield from self._found(config)
        return None if seen.record is None else seen.record.summary

    summary, asummary = sync_and_async(_summary)

    @property
    def groups(self) -> MessageGroups:
        """Groups of messages of threads: `groups(config)` lists them, its methods change them."""
        return MessageGroups(self)

    # -- the rest --------------------------------------------------------------------

    def _delete_thread(self, thread_id: str) -> Workflow[None]:
        """Remove a thread, with its layers and what the index has of it."""
        yield from super()._delete_thread(thread_id)
        yield from self._forget(str(validation.thread_in(thread_id)))

    delete_thread, adelete_thread = sync_and_async(_delete_thread)

    def _erase(self, thread_id: str, **options: Any) -> Workflow[Any]:
        """Erase a thread as `threads.erase` does, and what the index has of it."""
        threads = getattr(self._inner, "threads", None)
        if threads is None:
            raise InvalidArgumentError(
                f"{type(self._inner).__name__} cannot erase threads.", hint="Use delete_thread()."
            )
        thread_id = validation.thread_id(thread_id)
        yield from self._forget(thread_id)
        erase = partial(threads.erase, thread_id, **options)
        return (
            yield from driver.sync_or_async(erase, partial(threads.aerase, thread_id, **options))
        )

    erase, aerase = sync_and_async(_erase)

    def _prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> Workflow[None]:
        """See `BaseCheckpointSaver`. The archive of a thread that is kept stays whole."""
        threads: Any = validation.threads_in(thread_ids)
        if strategy != "delete" and not hasattr(self._inner, "delete_checkpoints"):
            for thread in threads:
                yield from self._refuse_archived(str(thread))
        yield from super()._prune(threads, strategy=strategy)
        if strategy == "delete":
            for thread in threads:
                yield from self._forget(str(thread))

    prune, aprune = sync_and_async(_prune)

    def _refuse_archived(self, thread: str) -> Workflow[None]:
        """Refuse a thread with archived messages."""
        if (yield from self._call("get_tuple", records.place(thread))) is not None:
            raise InvalidArgumentError(
                f"{type(self._inner).__name__} would prune archived messages, too.",
                hint="Use a saver of threadkeep inside, or delete_thread().",
                thread=thread,
            )

    def _forget(self, thread: str) -> Workflow[None]:
        for cache in (self._views, self._records):
            cache.forget(thread)
        for index in self._indexes:
            yield from driver.external(partial(index.remove, thread))


def _is_between(
    one: ArchivedMessage, after: datetime | int | None, before: datetime | int | None
) -> bool:
    """Return True if a message is between two times or positions."""

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


def _recognised(given: list[BaseMessage], view: list[BaseMessage]) -> list[BaseMessage]:
    """Return the messages; those of a view that came back without ids have its ids again.

    Raises:
        InvalidArgumentError: they begin with another summary: it would become a message.
    """
    if any(window.is_marker(one) for one in given) or not any(map(window.is_marker, view)):
        return given
    pairs = [*zip(given, view, strict=False)]
    if len(given) >= len(view) and all(window.reads_as(one, other) for one, other in pairs):
        return [*view, *given[len(view) :]]
    if any(window.is_titled(one) for one in given):
        hint = "Use the messages that load(config) returned last, with the new ones behind."
        raise invalid("messages", given, hint)
    return given


def _with_ids(given: Sequence[BaseMessage], before: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The messages, each with an id: that of the equal one before, or a new one."""
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


def _behind(
    record: Record | None, given: list[BaseMessage]
) -> tuple[Record | None, list[BaseMessage]]:
    """Return the record and the messages behind it; no record if they are others before."""
    if record is None or window.digest("", given[: record.stop]) != record.digest:
        return None, given
    return record, given[record.stop :]
