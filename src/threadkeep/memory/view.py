"""Loading and saving through the window: the saver's methods that a graph calls.

A checkpoint stores the messages in full, and the key of the record of all earlier messages in its
metadata. Loading makes a view of both without loading the archive, and saving takes it apart again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from threadkeep._core import arguments
from threadkeep._core.engine.operation import CheckpointRef, Operation
from threadkeep._run import driver
from threadkeep._run.driver import sync_and_async
from threadkeep._run.lazy_values import LazyValues, is_lazy, one_lazily
from threadkeep.errors import CorruptionError
from threadkeep.memory import records, window
from threadkeep.memory.archive import Recent
from threadkeep.memory.archiving import Archiving, SeenCheckpoint
from threadkeep.memory.records import POINTER, Record
from threadkeep.memory.summaries import Summary

MessageList: TypeAlias = list[BaseMessage]


@dataclass(frozen=True, slots=True)
class View:
    """The view that a run loaded, and the messages that it represents.

    Attributes:
        live: the messages in full.
        stored: the checkpoint's own record.
        record: the record that the view was made of.
        mark: the key in the id of its summary's message.
        carried: archived messages in the view, by id, None for a removed one.
        hidden: messages in full that a collapsed group replaces, by group.
    """

    live: Sequence[BaseMessage] = ()
    stored: Record | None = None
    record: Record | None = None
    mark: str | None = None
    carried: Mapping[str, BaseMessage | None] = field(default_factory=dict)
    hidden: Mapping[str, Sequence[BaseMessage]] = field(default_factory=dict)


_NOTHING = View()
_ANCESTORS = 64  # searched for a record
_log = logging.getLogger("threadkeep.memory")


class LayeredView(Archiving):
    """A saver that shows graphs a view of long conversations. See `LayeredCheckpointSaver`."""

    _language: str
    _views: Recent[tuple[View, ...]]

    # -- loading ---------------------------------------------------------------------

    def _get_tuple(
        self,
        config: RunnableConfig,
        *,
        channels: Sequence[str] | None = None,
        values: Literal["eager", "lazy"] = "eager",
    ) -> Operation[CheckpointTuple | None]:
        """Return a checkpoint with the view of its messages. See `Saver.get_tuple`.

        Without `channels`, the thread's head may get a new summary first. Every other checkpoint
        keeps its own.
        """
        if channels is None and is_lazy(values):
            return (yield from one_lazily(self, config))
        if channels is not None:
            part = yield from self._inner_tuple(config, channels)
            if part is None or self.channel not in channels:
                return part and records.as_shown(part)
            return (yield from self._listed(part))
        found: CheckpointTuple | None = yield from self._call("get_tuple", config)
        seen = None if found is None else (yield from self._seen(found))
        if found is None or seen is None:
            return found and records.as_shown(found)
        is_head = arguments.place(config).id is None
        after = (yield from self._due(seen)) if is_head else seen
        view = yield from self._view(after, seen.record)
        others = self._views.get(seen.thread, seen.key) or ()
        views = (view, *(one for one in others if one.mark != view.mark))
        self._views.put(seen.thread, seen.key, views)
        for name in (view.mark, *view.hidden) if view.mark is not None else ():
            self._views.put(seen.thread, str(name), (view,))
        return self._shown(seen, view)

    get_tuple, aget_tuple = sync_and_async(_get_tuple)

    def _due(self, seen: SeenCheckpoint) -> Operation[SeenCheckpoint]:
        """Archive the messages of a head that are due, and return the state after that.

        No messages leave while a task has pending writes, which may refer to them.
        """
        if any(channel == self.channel for _, channel, _ in seen.found.pending_writes or ()):
            return seen
        try:
            return (yield from self._advance(seen))
        except Exception:  # noqa: BLE001 - the turn continues, for example on a read-only store
            _log.warning("The layers of thread %r stay as they are.", seen.thread, exc_info=True)
            return seen

    def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, each with its view. See `BaseCheckpointSaver`."""
        for found in super().list(config, **options):
            yield driver.run(self._listed(found))

    async def alist(
        self, config: RunnableConfig | None, **options: Any
    ) -> AsyncIterator[CheckpointTuple]:
        """Async variant of `list`."""
        async for found in super().alist(config, **options):
            yield await driver.arun(self._listed(found))

    def _listed(self, found: CheckpointTuple) -> Operation[CheckpointTuple]:
        lazy: Any = found.checkpoint["channel_values"]
        if isinstance(lazy, LazyValues):
            return records.as_lazy(self, self.channel, found, lazy)
        seen = yield from self._seen(found)
        if seen is None:
            return records.as_shown(found)
        return self._shown(seen, (yield from self._view(seen, seen.record)))

    def _look(self, config: RunnableConfig) -> Operation[SeenCheckpoint | None]:
        """Return a checkpoint as it is stored, or None."""
        found: CheckpointTuple | None = yield from self._call("get_tuple", config)
        return None if found is None else (yield from self._seen(found, always=True))

    def _seen(
        self, found: CheckpointTuple, *, always: bool = False
    ) -> Operation[SeenCheckpoint | None]:
        """Return the stored parts of a checkpoint.

        None for subgraphs, other types of channels, and (unless `always`) if it has no messages.
        """
        thread, ns, _ = arguments.place(found.config)
        live = found.checkpoint["channel_values"].get(self.channel)
        pointer = _pointer(found)
        if ns or not (window.are_messages(live) or live is None):
            return None
        if live is None and not pointer and not always:
            return None
        if pointer is None and live:
            pointer = yield from self._inherited(found, live)
        record = (yield from self._record(thread, pointer)) if pointer else None
        if record is None and pointer:
            raise CorruptionError(
                f"The record {pointer} of archived messages is missing.",
                hint="Use the wrapped saver to read the checkpoint without its archive.",
                thread=thread,
                checkpoint=found.checkpoint["id"],
            )
        return SeenCheckpoint(found, thread, live or [], record)

    def _inherited(self, found: CheckpointTuple, live: MessageList) -> Operation[str | None]:
        """Return the record of the nearest layered ancestor of a checkpoint saved without layers.

        None if the checkpoint shares no message with that ancestor: it begins a new conversation.
        """
        thread = arguments.place(found.config).thread
        if (yield from self._call("get_tuple", records.place(thread))) is None:
            return None
        for _ in range(_ANCESTORS):
            above: CheckpointTuple | None = None
            if found.parent_config is not None:
                above = yield from self._call("get_tuple", found.parent_config)
            if above is None:
                return None
            found, pointer = above, _pointer(above)
            if pointer is not None:
                before = found.checkpoint["channel_values"].get(self.channel) or ()
                ids = {getattr(one, "id", None) for one in before}
                return pointer if any(one.id in ids for one in live) else None
        return None

    def _shown(self, seen: SeenCheckpoint, view: View) -> CheckpointTuple:
        """The checkpoint as a graph sees it."""
        values = seen.found.checkpoint["channel_values"]
        return records.as_shown(seen.found, {**values, self.channel: self._messages(view)})

    def _view(self, seen: SeenCheckpoint, stored: Record | None) -> Operation[View]:
        """Return the view of a record and the messages after it. `stored` is the checkpoint's."""
        record, live = seen.record, seen.live
        if record is None:
            return View(live, stored)
        carried = {str(one.id): one.model_copy() for one in record.kept}
        expanded = [g for g in record.groups if g.status == "open" and g.stop <= record.stop]
        for group in expanded:
            found = yield from self._archived(seen.thread, record, group.start)
            for position, message, _ in found:
                if position < group.stop:
                    carried[str(message.id)] = message
        hidden = {
            group.key: [one for at, one in enumerate(live, record.stop) if group.has(at)]
            for group in record.groups
            if group.status == "summarized"
        }
        return View(live, stored, record, record.key, carried, hidden)

    def _messages(self, view: View) -> MessageList:
        """The messages of a view, in order."""
        record = view.record
        if record is None:
            return [*view.live]
        head = [one for one in view.carried.values() if one is not None]
        found: MessageList = [one for one in head if isinstance(one, SystemMessage)]
        if record.summary is not None:
            made_of = {
                "record": record.key,
                "stop": record.stop,
                "digest": record.digest,
                "model": record.model,
                "prompt_version": record.prompt_version,
            }
            found.append(window.summary_message(record.summary, self._language, made_of))
        found += [one for one in head if not isinstance(one, SystemMessage)]
        groups = {group.key: group for group in record.groups}
        owners = {id(one): key for key, some in view.hidden.items() for one in some}
        for one in view.live:
            key = owners.get(id(one))
            if key is None:
                found.append(one)
            elif group := groups.pop(key, None):  # (its first message)
                texts = (group.topic, group.summary, self._language)
                found.append(window.group_message(key, *texts, group.messages))
        return found

    # -- conversations that others store ---------------------------------------------

    def _view_for(
        self, config: RunnableConfig, messages: Sequence[BaseMessage]
    ) -> Operation[MessageList]:
        """Return the view of a conversation that you have in memory.

        Messages that leave the window are archived. No checkpoint is stored.

        Args:
            config: the thread, and the checkpoint that the run is at, if any.
            messages: the whole conversation, or a loaded view followed by new messages.
        """
        at = arguments.place(config)
        given = [window.with_id(one) for one in messages]
        checkpoint: Any = {**empty_checkpoint(), "id": at.id or str(uuid6())}
        found = CheckpointTuple(config, checkpoint, {})
        run = object() if at.id is None else None
        record, live = yield from self._taken_apart(at, given, run)
        seen = yield from self._advance(SeenCheckpoint(found, at.thread, live, record, run=run))
        view = yield from self._view(seen, record)
        present = {one.id: one for one in given}
        return self._messages(replace(view, carried={id: present.get(id) for id in view.carried}))

    view, aview = sync_and_async(_view_for)

    def _taken_apart(
        self, at: CheckpointRef, given: MessageList, run: object
    ) -> Operation[tuple[Record | None, MessageList]]:
        """Return the record that messages begin with, and the messages in full after it."""
        names = [_name_of(one) for one in given if window.is_marker(one)]
        if not names:
            record = yield from self._beginning(at.thread, given, run)
            return record, given[0 if record is None else record.stop :]
        view = yield from self._view_named(at, given, names)
        live: MessageList = []
        for one in given:
            if window.is_marker(one):
                live += view.hidden.get(_name_of(one), ())
            elif one.id not in view.carried:
                live.append(one)
        return view.record, live

    def _view_named(
        self, at: CheckpointRef, given: MessageList, names: Sequence[str]
    ) -> Operation[View]:
        """Return the view whose summary and groups have these names.

        The run's checkpoint may not be stored yet: its view is the loaded one then.
        """
        loaded = [views[0] for name in names if (views := self._views.get(at.thread, name))]
        view = loaded[0] if loaded else (yield from self._view_of(at, given))
        if view.record is None and (record := (yield from self._record(at.thread, names[0]))):
            return View(record=record, carried={str(one.id): one for one in record.kept})
        return view

    def _beginning(self, thread: str, given: MessageList, run: object) -> Operation[Record | None]:
        """Return the record that archives the most of the messages that have left the window."""
        before, config = given[: self._leaving(None, given)], records.place(thread)
        config = config if run is None else arguments.saving_as(run, config)
        newest = yield from self._call("get_tuple", config)
        if newest is None:
            return None
        record = records.longest([records.from_tuple(newest)], before)
        if record is None:
            record = records.longest((yield from self._all_records(thread)).values(), before)
        return record

    # -- saving ----------------------------------------------------------------------

    def _put(
        self, config: RunnableConfig, checkpoint: Any, metadata: Any, new_versions: Any
    ) -> Operation[Any]:
        """Store a checkpoint with the messages that its view represents. See `Saver.put`."""
        at = arguments.place(config)
        if at.ns:
            return (yield from self._call("put", config, checkpoint, metadata, new_versions))
        shown = checkpoint["channel_values"].get(self.channel)
        is_new = self.channel in (new_versions or {})
        live: Sequence[BaseMessage] | None = None
        if shown is None:
            view = yield from self._view_of(at, ())
        elif not window.are_messages(shown):
            view = _NOTHING
        else:
            view = yield from self._view_of(at, shown)
            if is_new:
                view = yield from self._restored(at, view, shown)
                live = view.live
            elif view.stored is view.record:
                live = view.live
            else:  # (the channel has not changed since: store it as in the parent)
                seen = yield from self._look(records.place(at.thread, at.id, at.ns))
                live = [] if seen is None else seen.live
        pointer = view.record if is_new else view.stored
        values = dict(checkpoint["channel_values"])
        if live is not None:
            values[self.channel] = [*live]
        more = dict(metadata)
        if pointer is not None:
            more[POINTER] = pointer.key
            config = arguments.referring_to(pointer.key, config)
        elif live:
            more[POINTER] = ""
        stored = yield from self._call(
            "put", config, {**checkpoint, "channel_values": values}, more, new_versions
        )
        self._views.put(at.thread, str(checkpoint["id"]), (view,))
        if at.id is not None:
            self._views.pop(at.thread, at.id)  # (another run would read it)
        return stored

    put, aput = sync_and_async(_put)

    def _view_of(self, at: CheckpointRef, shown: Sequence[BaseMessage]) -> Operation[View]:
        """Return the view from which a run has made these messages.

        A checkpoint may have been loaded twice, with an older summary and a newer one.
        """
        if at.id is None:
            return _NOTHING
        marks = {key for one in shown if (key := window.marked(one)) is not None}
        ids = {one.id for one in shown}
        views = self._views.get(at.thread, at.id) or ()
        if views and (len(views) > 1 or not marks or views[0].mark in marks):

            def likeness(view: View) -> tuple[bool, int]:
                return view.mark in marks, -len(ids ^ {one.id for one in self._messages(view)})

            return max(views, key=likeness)
        seen = yield from self._look(records.place(at.thread, at.id, at.ns))
        if seen is None:
            return _NOTHING
        for mark in marks:
            record = yield from self._record(at.thread, mark)
            if record is not None:
                live = seen.live[record.stop - seen.behind :] if record.stop >= seen.behind else []
                marked = replace(seen, record=record, live=live)
                return (yield from self._view(marked, seen.record))
        return (yield from self._view(seen, seen.record))

    def _restored(
        self, at: CheckpointRef, view: View, shown: Sequence[BaseMessage]
    ) -> Operation[View]:
        """Return a view changed by a run. Changes of archived messages become a record."""
        record = view.record
        present = {one.id for one in shown}
        known = {one.id for one in view.live}
        mark = view.mark and window.MARK + view.mark
        seen = {mark, *known, *view.carried, *(window.GROUP + key for key in view.hidden)}
        if record is None or not present & seen:  # (all messages in view were removed)
            return View((yield from self._unmarked(at, shown)))
        carried = dict(view.carried)
        gone = [id for id in window.removed_by(shown) if id not in carried]
        edits: dict[str, BaseMessage | None] = {
            id: None for id, one in carried.items() if one is not None and id not in present
        }
        hidden = {str(one.id): one for some in view.hidden.values() for one in some}
        behind = {str(one.id): one for one in shown if one.id in hidden}
        live: MessageList = []
        for one in shown:
            key = one.id or ""
            if key.startswith(window.GROUP):
                some = view.hidden.get(key.removeprefix(window.GROUP), ())
                live += [behind.get(str(each.id), each) for each in some if each.id not in gone]
            elif key in hidden:
                continue
            elif key in carried:
                before = carried[key]
                if before is None or not window.same(one, before):
                    edits[key] = one
            elif key != mark:
                live.append(one)
        live = yield from self._unmarked(at, live)
        fresh = [one.id for one in live if one.id and one.id not in known]
        found = yield from self._find(at.thread, record, [*fresh, *gone])
        edits.update({id: None for id in gone if id in found})
        edits.update(
            {
                str(one.id): one
                for one in live
                if one.id in found and not window.same(one, found[one.id].message)
            }
        )
        if edits:
            record = yield from self._edited(at, record, edits)
            carried.update(edits)
        live = [one for one in live if one.id not in found]
        record = yield from self._shifted(at, record, view.live, live)
        return View(live, record, record, view.mark, carried, view.hidden)

    def _unmarked(self, at: CheckpointRef, shown: Sequence[BaseMessage]) -> Operation[MessageList]:
        """Return messages without stale summaries of this thread, as subgraphs may keep them.

        The summary of another thread becomes an ordinary message.
        """
        found: MessageList = []
        for one in shown:
            if not window.is_marker(one):
                found.append(one)
            elif (yield from self._record(at.thread, window.marked(one) or at.thread)) is None:
                found.append(one.model_copy(update={"id": str(uuid4())}))
        return found

    def _shifted(
        self,
        at: CheckpointRef,
        record: Record,
        before: Sequence[BaseMessage],
        live: Sequence[BaseMessage],
    ) -> Operation[Record]:
        """Return the record with its groups moved, if messages before them were removed."""
        if not record.groups:
            return record
        left = {one.id for one in live}
        gone = [record.stop + at for at, one in enumerate(before) if one.id not in left]

        def moved(position: int) -> int:
            return position - sum(1 for each in gone if each < position)

        groups = [
            replace(group, start=moved(group.start), stop=moved(group.stop))
            for group in record.groups
        ]
        groups = [group for group in groups if group.start < group.stop]
        if tuple(groups) == record.groups:
            return record
        new = record.after(at.id or record.root, groups=tuple(groups))
        return (yield from self._add(at.thread, record, new))

    def _edited(
        self, at: CheckpointRef, record: Record, edits: Mapping[str, BaseMessage | None]
    ) -> Operation[Record]:
        """Store changes of archived messages, and return the new record."""
        kept = {str(one.id): one for one in record.kept}
        for id, one in edits.items():
            if one is None:
                kept.pop(id, None)
            elif id in kept or window.stays(one, self.policy):
                kept[id] = one
        staying = window.staying(list(kept.values()), self.policy)
        found = yield from self._find(at.thread, record, list({*kept, *edits}))
        at_end = {id: record.stop + number for number, id in enumerate(kept)}
        places = at_end | {id: one.position for id, one in found.items()}
        staying = window.without_orphans(sorted(staying, key=lambda one: places[str(one.id)]))
        gone = [found[id] for id, one in edits.items() if one is None and id in found]
        is_unmarked = record.summary is None and len(staying) + len(gone) < len(record.kept)
        new = record.after(
            at.id or record.root,
            edits=dict(edits),
            kept=staying,  # (without a summary, `save` would take a partial view for the whole)
            summary=Summary("", message_count=record.stop) if is_unmarked else record.summary,
            removed=(*record.removed, *(one.position for one in gone)),
            is_stale=True,
        )
        return (yield from self._add(at.thread, record, new))


def _pointer(found: CheckpointTuple) -> str | None:
    """Return the key of a checkpoint's record, "" for none, None if saved without layers."""
    pointer = dict(found.metadata or {}).get(POINTER)
    return pointer if isinstance(pointer, str) else None


def _name_of(marker: BaseMessage) -> str:
    """Return the key of the record or group that a message of memory represents."""
    return str(marker.id).split(":")[1]
