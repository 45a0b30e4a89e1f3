"""Changes of a layered conversation by hand: edits, pins, new summaries, splits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast
from uuid import uuid4

from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from threadkeep._core import arguments, validation
from threadkeep._run.layers import driver
from threadkeep._run.layers.driver import Workflow, sync_and_async
from threadkeep.errors import StateError, ThreadNotFoundError, invalid
from threadkeep.memory import window
from threadkeep.memory.archiving import CHUNK, SeenCheckpoint
from threadkeep.memory.records import POINTER, Record
from threadkeep.memory.summaries import Summary
from threadkeep.memory.view import LayeredView

Place = str | RunnableConfig
"""A thread, by its id, or a config of it, which may name a checkpoint."""


class LayeredChanges(LayeredView):
    """A saver whose conversations can be changed by hand. See `LayeredCheckpointSaver`."""

    def _edit(self, config: Place, messages: Iterable[BaseMessage]) -> Workflow[RunnableConfig]:
        """Replace messages by id, archived ones too. Older checkpoints keep what they had.

        Returns:
            The config of the new checkpoint.

        Raises:
            ThreadNotFoundError: there is no such thread.
            InvalidArgumentError: a message has no id, or the thread has none of that id.
        """
        given = messages_of(messages)
        if not all(one.id for one in given):
            raise invalid("messages", given, "Use messages with the ids of those to replace.")
        return (yield from self._changed(config, {str(one.id): one for one in given}))

    edit, aedit = sync_and_async(_edit)

    def _remove(self, config: Place, ids: Iterable[str]) -> Workflow[RunnableConfig]:
        """Remove messages by id, archived ones too. Older checkpoints keep what they had.

        Raises:
            ThreadNotFoundError: there is no such thread.
            InvalidArgumentError: the thread has no message of such an id.
        """
        return (yield from self._changed(config, dict.fromkeys(ids_of(ids))))

    remove, aremove = sync_and_async(_remove)

    def _pin(self, config: Place, *ids: str, pinned: bool = True) -> Workflow[RunnableConfig]:
        """Pin messages: they stay in view, whatever leaves the window.

        Raises:
            ThreadNotFoundError: there is no such thread.
            InvalidArgumentError: the thread has no message of such an id.
        """
        found = yield from self._full_messages(config)
        chosen = {str(one.id): one for one in found if one.id in ids}
        for indexes in window.exchanges(found):  # (of a tool call all is pinned, or nothing)
            exchange = {str(found[index].id): found[index] for index in indexes}
            chosen |= exchange if chosen.keys() & exchange.keys() else {}
        chosen = {str(one.id): one for one in found if str(one.id) in chosen}
        for id, one in chosen.items():
            marks = {**one.additional_kwargs, "pinned": pinned}
            chosen[id] = one.model_copy(update={"additional_kwargs": marks})
        missing = dict.fromkeys(id for id in ids if id not in chosen)
        return (yield from self._changed(config, {**chosen, **missing}))

    pin, apin = sync_and_async(_pin)

    def _changed(
        self, config: Place, edits: dict[str, BaseMessage | None]
    ) -> Workflow[RunnableConfig]:
        """Store a checkpoint in which messages are replaced, or (None) removed."""
        seen = yield from self._found(config)
        live = [edits.get(str(one.id), one) for one in seen.live]
        missing = [id for id in edits if id not in {one.id for one in seen.live}]
        record, archived = seen.record, dict[str, BaseMessage | None]()
        if record is not None and missing:
            found = yield from self._archived(seen.thread, record)
            there = {one.id for _, one, _ in found}
            archived = {id: edits[id] for id in missing if id in there}
        unknown = [id for id in missing if id not in archived]
        if unknown:
            raise invalid("id", unknown[0], "Use the id of a message of this thread.")
        at, left = arguments.place(seen.found.config), [one for one in live if one is not None]
        if record is not None and archived:
            record = yield from self._edited(at, record, archived)
        if record is not None:
            record = yield from self._shifted(at, record, seen.live, left)
        return (yield from self._write(arguments.head(seen.thread), seen, left, record))

    def _resummarize(self, config: Place) -> Workflow[Summary | None]:
        """Make the summary anew from the archived messages, as after an edit of one of them.

        Asks the summarizer once for each 50 messages of the archive.

        Raises:
            ThreadNotFoundError: there is no such thread.
            SummaryError: the summarizer failed; the summary stays.
        """
        seen = yield from self._found(config)
        record = seen.record
        if record is None:
            return None
        found = yield from self._archived(seen.thread, record)
        summary = yield from self._folded([message for _, message, _ in found])
        new = record.after(seen.key, summary=summary, is_stale=False)
        record = yield from self._add(seen.thread, record, new)
        yield from self._write(arguments.head(seen.thread), seen, seen.live, record)
        return summary

    def _folded(self, messages: Sequence[BaseMessage]) -> Workflow[Summary | None]:
        """Return the summary of messages, a part of them at a time."""
        summary: Summary | None = None
        staying = {id(one) for one in window.staying(messages, self.policy)}
        told = [one for one in messages if id(one) not in staying]
        for start in range(0, len(told), CHUNK):
            summary = yield from self._ask(told[start : start + CHUNK], summary)
        return summary

    resummarize, aresummarize = sync_and_async(_resummarize)

    def _split(self, config: Place, new_thread_id: str | None = None) -> Workflow[RunnableConfig]:
        """Begin a new thread with the summary of this one, and link the two.

        The new thread's view is the summary alone, of all messages. The threads' metadata link them
        (`split_from`, `split_into`), where the saver keeps metadata of threads.

        Returns:
            The config of the new thread.

        Raises:
            ThreadNotFoundError: there is no such thread.
            StateError: it has no messages, or the new one has checkpoints.
            SummaryError: the summarizer failed; nothing was done.
        """
        seen = yield from self._found(config)
        name = str(uuid4()) if new_thread_id is None else validation.thread_id(new_thread_id)
        new = arguments.head(name)
        if (yield from self._look(new)) is not None:
            raise StateError("The new thread has checkpoints already.", thread=name)
        if not seen.stop:
            raise StateError("The thread has no messages to summarise.", thread=seen.thread)
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
        seed = yield from self._add(name, None, seed)
        yield from self._write(new, None, [], seed, key=root)
        threads = getattr(self._inner, "threads", None)
        if threads is not None:
            for one, link in (
                (name, {"split_from": seen.thread}),
                (seen.thread, {"split_into": name}),
            ):
                update = partial(threads.update, one, metadata=link)
                yield from driver.sync_or_async(
                    update, partial(threads.aupdate, one, metadata=link)
                )
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
    ) -> Workflow[RunnableConfig]:
        """Store a checkpoint behind another one that has these messages, and all else of it."""
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
        return cast("RunnableConfig", (yield from self._call("put", above, checkpoint, more, new)))

    def _found(self, config: Place) -> Workflow[SeenCheckpoint]:
        """Return a checkpoint as it is stored; of a head, after what is due has left the window.

        Raises:
            ThreadNotFoundError: there is none.
        """
        place = config_of(config)
        seen = yield from self._look(place)
        if seen is None:
            raise ThreadNotFoundError(thread=arguments.place(place).thread)
        if arguments.place(place).id is None:
            record, live = yield from self._due(seen)
            seen = replace(seen, record=record, live=live)
        return seen


def config_of(config: Place) -> RunnableConfig:
    """Return the config of a place; LangGraph passes ids of threads on as texts."""
    if not validation.is_mapping(config):
        return arguments.head(config)
    at = arguments.place(config)
    return {**config, "configurable": {**config["configurable"], "thread_id": at.thread}}


def ids_of(ids: Iterable[str]) -> list[str]:
    """Return ids as a list; a single text is none."""
    if isinstance(ids, str):
        raise invalid("ids", ids, "Use a list of ids.")
    return list(validation.ids("ids", list(ids)))


def messages_of(messages: Iterable[Any]) -> list[BaseMessage]:
    """Return messages, of whatever `convert_to_messages` takes."""
    try:
        return list(convert_to_messages(list(messages)))
    except (TypeError, ValueError, NotImplementedError) as error:
        hint = "Use messages, dicts with role and content, or pairs of role and text."
        raise invalid("messages", messages, hint) from error
