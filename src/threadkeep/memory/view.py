"""Loading and saving through the window: the saver's methods that a graph calls.

A checkpoint stores the messages in full and, in its metadata, the key of the record that holds what
came before. Loading puts the view together; saving takes it apart again. So what a graph is shown
is never stored as the conversation, and the conversation is never loaded to show a graph its view.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from threadkeep import arguments
from threadkeep.engine.model import OWN_NS
from threadkeep.engine.operation import CheckpointRef
from threadkeep.layers import driver
from threadkeep.layers.driver import Workflow, both
from threadkeep.memory import window
from threadkeep.memory.archiving import Archiving, Recent, Seen
from threadkeep.memory.records import POINTER, Group, Record


Messages: TypeAlias = list[BaseMessage]


@dataclass(frozen=True, slots=True)
class View:
    """What a run was shown, and what it stands for.

    `stored` is the checkpoint's own record, and `record` the one that the view was made of, whose
    message the run knows by `mark`. `carried` are archived messages that it sees, by id, and
    `hidden` the messages in full that it does not see, by group.
    """

    live: Sequence[BaseMessage] = ()
    stored: Record | None = None
    record: Record | None = None
    mark: str | None = None
    carried: Mapping[str, BaseMessage | None] = field(default_factory=dict)
    hidden: Mapping[str, Sequence[BaseMessage]] = field(default_factory=dict)


_NOTHING = View()


class LayeredView(Archiving):
    """A saver that shows graphs a view of long conversations. See `LayeredCheckpointSaver`."""

    def __init__(
        self, saver: BaseCheckpointSaver[Any], *, channel: str, language: str, **options: Any
    ) -> None:
        super().__init__(saver, **options)
        self.channel = channel
        self._language = language
        self._views: Recent[View] = Recent()

    # -- loading ---------------------------------------------------------------------

    def _get_tuple(self, config: RunnableConfig) -> Workflow[CheckpointTuple | None]:
        """Return a checkpoint with the view of its messages. See `BaseCheckpointSaver`.

        The thread's head may get a new summary first; any other checkpoint has the one it had.
        """
        found: CheckpointTuple | None = yield from self._call("get_tuple", config)
        seen = None if found is None else (yield from self._seen(found))
        if found is None or seen is None:
            return found
        record, live = seen.record, seen.live
        if arguments.place(config).id is None and not found.pending_writes:
            record, live = yield from self._advance(seen)
        view = yield from self._view(seen, record, live)
        self._views.put(seen.thread, seen.key, view)
        return self._shown(seen, view)

    get_tuple, aget_tuple = both(_get_tuple)

    def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, each with the view that it had. See `BaseCheckpointSaver`."""
        for found in self._inner.list(config, **options):
            if self._is_listed(found, config):
                yield driver.run(self._listed(found))

    async def alist(
        self, config: RunnableConfig | None, **options: Any
    ) -> AsyncIterator[CheckpointTuple]:
        """Async variant of `list`."""
        async for found in self._inner.alist(config, **options):
            if self._is_listed(found, config):
                yield await driver.arun(self._listed(found))

    def _is_listed(self, found: CheckpointTuple, config: RunnableConfig | None) -> bool:
        own = str(found.config["configurable"].get("checkpoint_ns") or "").startswith(OWN_NS)
        return not own or (config is not None and "checkpoint_ns" in config["configurable"])

    def _listed(self, found: CheckpointTuple) -> Workflow[CheckpointTuple]:
        seen = yield from self._seen(found)
        if seen is None:
            return found
        return self._shown(seen, (yield from self._view(seen, seen.record, seen.live)))

    def _look(self, config: RunnableConfig) -> Workflow[Seen | None]:
        """Return a checkpoint as it is stored; None if there is none."""
        found: CheckpointTuple | None = yield from self._call("get_tuple", config)
        return None if found is None else (yield from self._seen(found, always=True))

    def _seen(self, found: CheckpointTuple, *, always: bool = False) -> Workflow[Seen | None]:
        """Return what a checkpoint stores; None where memory has no part in it."""
        thread, ns, _ = arguments.place(found.config)
        live = found.checkpoint["channel_values"].get(self.channel)
        pointer = dict(found.metadata or {}).get(POINTER)
        if ns or not (window.are_messages(live) or live is None):
            return None
        if live is None and pointer is None and not always:
            return None
        record = None if pointer is None else (yield from self._record(thread, str(pointer)))
        return Seen(found, thread, live or [], record)

    def _shown(self, seen: Seen, view: View) -> CheckpointTuple:
        """The checkpoint as a graph sees it."""
        found = seen.found
        values = {**found.checkpoint["channel_values"], self.channel: self._messages(view)}
        metadata = {key: value for key, value in found.metadata.items() if key != POINTER}
        checkpoint: Any = {**found.checkpoint, "channel_values": values}
        shown: Any = metadata
        return found._replace(checkpoint=checkpoint, metadata=shown)

    def _view(
        self, seen: Seen, record: Record | None, live: Sequence[BaseMessage]
    ) -> Workflow[View]:
        """Return the view of some messages behind a record."""
        if record is None:
            return View(seen.live, seen.record)
        carried = {str(one.id): one.model_copy() for one in record.kept}
        expanded = [g for g in record.groups if g.status == "open" and g.stop <= record.stop]
        for group in expanded:
            found = yield from self._archived(seen.thread, record, group.start)
            for position, message, _ in found:
                if position < group.stop:
                    carried[str(message.id)] = message
        hidden = {
            group.key: [one for at, one in enumerate(live, record.stop) if _in(group, at)]
            for group in record.groups
            if group.status == "summarized"
        }
        return View(live, seen.record, record, record.key, carried, hidden)

    def _messages(self, view: View) -> Messages:
        """The messages of a view, in order."""
        record = view.record
        if record is None:
            return [*view.live]
        head = [one for one in view.carried.values() if one is not None]
        found: Messages = [one for one in head if isinstance(one, SystemMessage)]
        if record.summary is not None:
            arguments_ = record.key, record.summary, self._language, record.stop
            found.append(window.summary_message(*arguments_))
        found += [one for one in head if not isinstance(one, SystemMessage)]
        groups = {group.key: group for group in record.groups}
        owners = {id(one): key for key, some in view.hidden.items() for one in some}
        shown: set[str] = set()
        for one in view.live:
            key = owners.get(id(one))
            if key is None:
                found.append(one)
            elif key not in shown:
                shown.add(key)
                group = groups[key]
                told = (key, group.topic, group.summary, self._language, group.messages)
                found.append(window.group_message(*told))
        return found

    # -- saving ----------------------------------------------------------------------

    def _put(
        self, config: RunnableConfig, checkpoint: Any, metadata: Any, new_versions: Any
    ) -> Workflow[Any]:
        """Store a checkpoint, with the messages that the view stood for. See `Saver.put`."""
        at = arguments.place(config)
        if at.ns:
            return (yield from self._call("put", config, checkpoint, metadata, new_versions))
        view = yield from self._view_of(at)
        shown = checkpoint["channel_values"].get(self.channel)
        if not window.are_messages(shown):
            view, live = _NOTHING if shown is not None else view, shown
        elif self.channel in (new_versions or {}):
            view = yield from self._restored(at, view, shown)
            live = [*view.live]
        else:  # (nobody has written: it is stored as its parent is)
            live = list(view.live if view.stored is view.record else (yield from self._stored(at)))
        pointer = view.record if self.channel in (new_versions or {}) else view.stored
        values = dict(checkpoint["channel_values"])
        if live is not None:
            values[self.channel] = live
        more = dict(metadata)
        if pointer is not None:
            more[POINTER] = pointer.key
        stored = yield from self._call(
            "put", config, {**checkpoint, "channel_values": values}, more, new_versions
        )
        self._views.put(at.thread, str(checkpoint["id"]), view)
        return stored

    put, aput = both(_put)

    def _view_of(self, at: CheckpointRef) -> Workflow[View]:
        """Return the view that a run was shown which continues from a checkpoint."""
        if at.id is None:
            return _NOTHING
        view = self._views.get(at.thread, at.id)
        if view is not None:
            return view
        seen = yield from self._look(_config(at))
        if seen is None:
            return _NOTHING
        return (yield from self._view(seen, seen.record, seen.live))

    def _stored(self, at: CheckpointRef) -> Workflow[Messages]:
        """Return the messages that a checkpoint stores."""
        seen = yield from self._look(_config(at))
        return [] if seen is None else seen.live

    def _restored(
        self, at: CheckpointRef, view: View, shown: Sequence[BaseMessage]
    ) -> Workflow[View]:
        """Return the view with the messages that a run has made of it.

        What it changed or removed of archived messages becomes a record.
        """
        record, mark = yield from self._continued(at, view, shown)
        if record is None:
            return View([one for one in shown if not window.is_marker(one)])
        present = {one.id for one in shown}
        known = {one.id for one in view.live}
        carried = dict(view.carried)
        gone = [id for id in window.removed_by(shown) if id not in carried]
        edits: dict[str, BaseMessage | None] = {
            id: None for id, one in carried.items() if one is not None and id not in present
        }
        live: Messages = []
        for one in shown:
            key = one.id or ""
            if key.startswith(window.GROUP):
                live += view.hidden.get(key.removeprefix(window.GROUP), ())
            elif key in carried:
                before = carried[key]
                if before is None or not window.same(one, before):
                    edits[key] = one
            elif not window.is_marker(one):
                live.append(one)
        fresh = [one.id for one in live if one.id and one.id not in known]
        found = yield from self._find(at.thread, record, [*fresh, *gone])
        edits.update({id: None for id in gone if id in found})
        edits.update({one.id: one for one in live if one.id in found})
        if edits:
            record = yield from self._edited(at, record, edits)
            carried.update(edits)
        live = [one for one in live if one.id not in found]
        record = yield from self._shifted(at, record, view.live, live)
        return View(live, record, record, mark, carried, view.hidden)

    def _shifted(
        self,
        at: CheckpointRef,
        record: Record,
        before: Sequence[BaseMessage],
        live: Sequence[BaseMessage],
    ) -> Workflow[Record]:
        """Return the record with groups that begin earlier, where messages before were removed."""
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

    def _continued(
        self, at: CheckpointRef, view: View, shown: Sequence[BaseMessage]
    ) -> Workflow[tuple[Record | None, str | None]]:
        """Return the record that a run's messages continue, and the key that they name it by.

        A summary that was removed together with all that was in view takes what it stands for
        along; one that was removed alone does not.
        """
        mark = next((key for one in shown if (key := window.marked(one)) is not None), None)
        if mark is not None and mark != view.mark:
            return (yield from self._record(at.thread, mark)), mark
        seen = {one.id for one in view.live} | set(view.carried)
        if mark is None and not any(one.id in seen for one in shown):
            return None, None
        return view.record, view.mark

    def _edited(
        self, at: CheckpointRef, record: Record, edits: Mapping[str, BaseMessage | None]
    ) -> Workflow[Record]:
        """Store changes of archived messages; return the record."""
        kept = [edits.get(str(one.id), one) for one in record.kept]
        new = record.after(
            at.id or record.root,
            edits=dict(edits),
            kept=[one for one in kept if one is not None],
            is_stale=True,
        )
        return (yield from self._add(at.thread, record, new))


def _in(group: Group, position: int) -> bool:
    return group.start <= position < group.stop


def _config(at: CheckpointRef) -> RunnableConfig:
    configurable = {"thread_id": at.thread, "checkpoint_ns": at.ns, "checkpoint_id": at.id}
    return {"configurable": configurable}
