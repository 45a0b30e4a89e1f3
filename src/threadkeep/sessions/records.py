"""Checkpoints of sessions in a LangGraph saver.

A session is a thread, and a workflow is a checkpoint namespace: every store has an index on both.
Each key of a dict is a channel, so that only changes are stored. Any other state is one channel.
Checkpoint ids sort by time. A user's own id is stored in the metadata.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6

from threadkeep._core.engine.operation import External, Operation
from threadkeep._core.lru import Lru
from threadkeep._stores.process_forks import ResetInChild
from threadkeep.errors import CodecError, InvalidArgumentError, NotFoundError, ThreadkeepError
from threadkeep.sessions.checkpoint import Checkpoint, as_dict, now

_MOST_REMEMBERED = 20_000  # workflows and sessions, some 400 bytes each
_MOST_CHANNELS = 64  # keys of a dict that is divided into channels
_ROOT = "__root__"  # the channel of a state that is not divided
_PAGE = 32


class SessionDraft(NamedTuple):
    """A checkpoint to be saved. Without `id` or `created_at` it gets new ones."""

    session: str
    workflow: str
    state: Any
    metadata: dict[str, Any]
    id: str | None = None
    created_at: datetime | None = None


class Saved(NamedTuple):
    """The id of a saved checkpoint, and its number in the session, or 0 if it replaced another."""

    id: str
    number: int


class SessionPlace(NamedTuple):
    """The saver's or store's id of a checkpoint, and the fields that limits depend on."""

    id: str
    workflow: str
    created_at: datetime
    name: str  # the id shown to the user
    is_marked: bool = False  # it has a tag or pin, or its session has a pin


def place(found: Checkpoint) -> SessionPlace:
    """Return the place of a checkpoint whose id is the store's."""
    return SessionPlace(found.id, found.workflow_id, found.created_at, found.id)


def surplus(
    places: Iterable[SessionPlace], most: int | None, since: datetime | None
) -> list[SessionPlace]:
    """Return the places beyond the limits. `places` come newest first.

    The newest checkpoint of each workflow and marked checkpoints stay.
    """
    found, workflows = list[SessionPlace](), set[str]()
    for number, place in enumerate(places):
        is_over = most is not None and number >= most
        is_old = since is not None and place.created_at < since
        if (is_over or is_old) and place.workflow in workflows and not place.is_marked:
            found.append(place)
        workflows.add(place.workflow)
    return found


class WorkflowHead(NamedTuple):
    """The newest checkpoint of a workflow, and the version of its channels."""

    id: str | None
    version: Any


class Remembered(ResetInChild):
    """LRU cache of heads by session and workflow, and of checkpoint numbers by session."""

    def _reset(self) -> None:
        self._lock = threading.Lock()  # never held during I/O
        self._values: Lru[tuple[str, str], Any] = Lru(_MOST_REMEMBERED)

    def get(self, session: str, workflow: str = "") -> Any:
        """Return a head, or a session's number, or None if unknown."""
        with self._lock:
            return self._values.get((session, workflow))

    def put(self, value: Any, session: str, workflow: str = "") -> None:
        """Cache a head or a number, unless a newer one is cached."""
        with self._lock:
            known = self._values.get((session, workflow))
            if known is None or known <= value:
                self._values.put((session, workflow), value)

    def count(self, session: str, number: int) -> int:
        """Return the number of the session's next checkpoint, greater than `number`."""
        with self._lock:
            newest = max(self._values.get((session, "")) or 0, number)
            return int(self._values.put((session, ""), newest + 1))

    def forget(self, session: str, workflow: str) -> None:
        """Drop the cached head and number."""
        with self._lock:
            self._values.drop((session, workflow))
            self._values.drop((session, ""))


class SaverRecords:
    """Checkpoints of sessions in a saver, newest first."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self.saver: Any = saver
        self.can_remove = hasattr(saver, "delete_checkpoints")
        self._remembered = Remembered()

    # -- saving ----------------------------------------------------------------------

    def save(self, draft: SessionDraft) -> Operation[Saved]:
        """Save a checkpoint. It replaces a checkpoint with its id, and keeps the `created_at`.

        A state that cannot be stored is stored as its `to_dict()`.
        """
        try:
            return (yield from self._save(draft))
        except (CodecError, TypeError):
            plain = as_dict(draft.state)
            if plain is None:
                raise
        return (yield from self._save(draft._replace(state=plain)))

    def _save(self, draft: SessionDraft) -> Operation[Saved]:
        session, workflow = draft.session, draft.workflow
        old = None if draft.id is None else (yield from self._find(session, draft.id))
        if old is not None:
            return (yield from self._replace(draft, old))
        head, number = yield from self._newest(session, workflow)
        number = self._remembered.count(session, number)
        own_id = str(uuid6())
        metadata = {"source": "update", "step": number, "workflow_id": workflow}
        if draft.id is not None:
            metadata["id"] = draft.id
        version = self.saver.get_next_version(head.version, None)
        created = draft.created_at or now()
        yield from self._put(draft, WorkflowHead(own_id, version), head.id, created, metadata)
        self._remembered.put(WorkflowHead(own_id, version), session, workflow)
        if draft.id is not None and self.can_remove:  # other processes may save the same id now
            with suppress(ThreadkeepError):  # (they remove duplicates too)
                same = yield from self._tuples(session, workflow, None, filter={"id": draft.id})
                yield from self.remove(session, [one.checkpoint["id"] for one in same[1:]])
        return Saved(draft.id or own_id, number)

    def _replace(self, draft: SessionDraft, old: CheckpointTuple) -> Operation[Saved]:
        """Replace a checkpoint with the same id, in one commit."""
        if workflow_of(old) != draft.workflow:
            raise InvalidArgumentError(
                f"The workflow {workflow_of(old)!r} has the id {draft.id!r} already.",
                hint="Use another id, or the same workflow_id.",
                thread=draft.session,
            )
        version = self.saver.get_next_version(_version(old), None)
        head = WorkflowHead(old.checkpoint["id"], version)
        above: Any = {} if old.parent_config is None else old.parent_config["configurable"]
        metadata: dict[str, Any] = {**old.metadata, "updated_at": now().isoformat()}
        metadata.pop("metadata", None)
        created = datetime.fromisoformat(old.checkpoint["ts"])
        yield from self._put(draft, head, above.get("checkpoint_id"), created, metadata)
        newest = self._remembered.get(draft.session, draft.workflow)
        if newest is not None and newest.id == head.id:
            self._remembered.put(head, draft.session, draft.workflow)
        return Saved(_id(old), 0)

    def _put(
        self,
        draft: SessionDraft,
        head: WorkflowHead,
        parent: str | None,
        created: datetime,
        metadata: dict[str, Any],
    ) -> Operation[None]:
        values = _values(draft.state)
        versions = dict.fromkeys(values, head.version)
        checkpoint = {
            "v": 1,
            "id": head.id,
            "ts": created.isoformat(),
            "channel_values": values,
            "channel_versions": versions,
            "versions_seen": {},
            "updated_channels": [*values],  # (a saver may not keep the order of channels)
        }
        if draft.metadata:
            metadata["metadata"] = draft.metadata
        config = _config(draft.session, draft.workflow, parent)
        try:
            yield from self._call("put", config, checkpoint, metadata, versions)
        except BaseException:
            self._remembered.forget(draft.session, draft.workflow)
            raise

    def _newest(self, session: str, workflow: str) -> Operation[tuple[WorkflowHead, int]]:
        """Find the workflow's head, and the number of the session's newest checkpoint."""
        head: WorkflowHead | None = self._remembered.get(session, workflow)
        number: int | None = self._remembered.get(session)
        if number is None:
            found = yield from self._tuples(session, None, 1)
            number = found[0].metadata.get("step", 0) if found else 0
            if not found or workflow_of(found[0]) == workflow:
                head = _head(found)
        if head is None:
            head = _head((yield from self._tuples(session, workflow, 1)))
        return head, number

    # -- reading ---------------------------------------------------------------------

    def find(self, session: str, id: str) -> Operation[Checkpoint | None]:
        """Return a checkpoint of the session."""
        found = yield from self._find(session, id)
        return None if found is None else _checkpoint(found)

    def _find(self, session: str, id: str) -> Operation[CheckpointTuple | None]:
        """Look for a checkpoint id, then for a user's own id."""
        found = yield from self._tuples(session, None, 1, id=id)
        if not found or _id(found[0]) != id:
            found = yield from self._tuples(session, None, 1, filter={"id": id})
        return found[0] if found else None

    def newest(
        self, session: str, workflow: str | None, limit: int | None
    ) -> Operation[list[Checkpoint]]:
        """Return the newest checkpoints of a session, or of a workflow of it."""
        return [*map(_checkpoint, (yield from self._tuples(session, workflow, limit)))]

    def _tuples(
        self,
        session: str,
        workflow: str | None,
        limit: int | None,
        *,
        id: str | None = None,
        filter: dict[str, Any] | None = None,
    ) -> Operation[list[CheckpointTuple]]:
        """Return the newest checkpoints of a session, without checkpoints of graphs."""
        # (LangGraph's own savers may list one namespace after another)
        size = limit if self.can_remove or workflow is not None else None
        config, found = _config(session, workflow, id), list[CheckpointTuple]()
        options: dict[str, Any] = {"filter": filter}
        while True:
            page = yield from self._listed("list", config, **options, limit=size)
            found += [one for one in page if workflow_of(one) is not None]
            if limit is None or size is None or len(found) >= limit or len(page) < size:
                found.sort(key=lambda one: one.checkpoint["id"], reverse=True)
                return found[:limit]
            options["before"], size = page[-1].config, max(limit - len(found), _PAGE)

    def sessions(self) -> Operation[list[str]]:
        """Return the ids of all threads."""
        return [one.id for one in (yield from self._listed("threads.scan"))]

    # -- removing --------------------------------------------------------------------

    def places(self, session: str, workflow: str | None = None) -> Operation[list[SessionPlace]]:
        """List the places of all checkpoints, newest first (threadkeep savers read no state)."""
        if not self.can_remove:
            return [place(one) for one in (yield from self.newest(session, workflow, None))]
        try:
            if workflow is None:
                trees = yield from self._call("threads.branches_by_ns", session)
            else:
                trees = {workflow: (yield from self._call("threads.branches", session, workflow))}
            thread = yield from self._call("threads.get", session)
        except NotFoundError:
            return []
        marked = {mark.checkpoint for mark in thread.marks}
        found = [
            SessionPlace(
                one.id,
                ns,
                datetime.fromisoformat(one.time),
                one.metadata.get("id") or one.id,
                thread.pinned or one.id in marked,
            )
            for ns, tree in trees.items()
            for one in tree.checkpoints.values()
            if ns and one.metadata.get("workflow_id") == ns
        ]
        return sorted(found, reverse=True)

    def remove(self, session: str, ids: Sequence[str]) -> Operation[int]:
        """Remove checkpoints in one commit, and return their number."""
        if not ids:
            return 0
        number: int = yield from self._call("delete_checkpoints", session, ids, None)
        return number

    def delete(self, session: str, id: str) -> Operation[bool]:
        """Remove a checkpoint of the session, or return False if the session has no such id."""
        self._require_removal()
        found = yield from self._find(session, id)
        if found is None:
            return False
        same = yield from self._tuples(session, workflow_of(found), None, filter={"id": id})
        ids = [one.checkpoint["id"] for one in same or [found]]
        return (yield from self.remove(session, ids)) > 0

    def cleanup(self, session: str, most: int, workflow: str | None) -> Operation[int]:
        """Keep the newest `most` checkpoints, and return the number removed."""
        self._require_removal()
        places = yield from self.places(session, workflow)
        return (yield from self.remove(session, [one.id for one in places[most:]]))

    def _require_removal(self) -> None:
        if not self.can_remove:
            raise InvalidArgumentError(
                f"{type(self.saver).__name__} cannot remove single checkpoints.",
                hint="Use a threadkeep saver. delete_thread(session_id) removes a whole session.",
            )

    # -- the saver -------------------------------------------------------------------

    def _call(self, name: str, *args: Any) -> Operation[Any]:
        """Call a method of the saver, or of its `threads`."""
        method, variant = _both(self.saver, name)
        return (yield External(partial(method, *args), partial(variant, *args)))

    def _listed(self, name: str, *args: Any, **options: Any) -> Operation[Any]:
        """Call a method, and collect its items."""
        method, variant = _both(self.saver, name)

        async def listed() -> list[Any]:
            return [one async for one in variant(*args, **options)]

        return (yield External(lambda: list(method(*args, **options)), listed))

    def close(self) -> Operation[None]:
        """Close the saver."""
        return closing(self.saver)


def _both(owner: Any, path: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return a method and its async variant."""
    *parts, name = path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    return getattr(owner, name), getattr(owner, f"a{name}")


def _config(session: str, workflow: str | None, id: str | None) -> dict[str, Any]:
    parts = {"thread_id": session, "checkpoint_ns": workflow, "checkpoint_id": id}
    return {"configurable": {name: value for name, value in parts.items() if value is not None}}


def _id(found: CheckpointTuple) -> str:
    metadata: Any = found.metadata
    id: str = metadata.get("id") or found.checkpoint["id"]
    return id


def workflow_of(found: CheckpointTuple) -> str | None:
    """Return the workflow that saved a checkpoint, or None for a checkpoint of a graph."""
    metadata: Any = found.metadata
    ns: str = found.config["configurable"].get("checkpoint_ns") or ""
    return ns if ns and metadata.get("workflow_id") == ns else None


def _head(found: Sequence[CheckpointTuple]) -> WorkflowHead:
    if not found:
        return WorkflowHead(None, None)
    return WorkflowHead(found[0].checkpoint["id"], _version(found[0]))


def _version(found: CheckpointTuple) -> Any:
    return next(iter(found.checkpoint["channel_versions"].values()), None)


def _values(state: Any) -> dict[str, Any]:
    """Divide a state into channels: the keys of a dict, or the whole state."""
    is_divided = (
        type(state) is dict
        and len(state) <= _MOST_CHANNELS
        and _ROOT not in state
        and all(type(name) is str for name in state)
    )
    return state if is_divided else {_ROOT: state}


def _state(found: CheckpointTuple) -> Any:
    values = found.checkpoint["channel_values"]
    if _ROOT in values:
        return values[_ROOT]
    return {name: values[name] for name in found.checkpoint.get("updated_channels") or values}


def _checkpoint(found: CheckpointTuple) -> Checkpoint:
    metadata: Any = found.metadata
    created = datetime.fromisoformat(found.checkpoint["ts"])
    updated = metadata.get("updated_at")
    return Checkpoint(
        id=_id(found),
        session_id=found.config["configurable"]["thread_id"],
        workflow_id=str(workflow_of(found)),
        state_data=_state(found),
        metadata=metadata.get("metadata", {}),
        created_at=created,
        updated_at=created if updated is None else datetime.fromisoformat(updated),
    )


def closing(owned: Any) -> Operation[None]:
    """Close a saver or store, if it can be closed."""
    close: Callable[[], Any] = getattr(owned, "close", lambda: None)
    aclose: Callable[[], Any] = getattr(owned, "aclose", close)

    async def end() -> None:
        done = aclose()
        if inspect.isawaitable(done):
            await done

    is_async = inspect.iscoroutinefunction(close)
    yield External(partial(refuse, owned, "close") if is_async else close, end)


def refuse(owner: object, name: str) -> None:
    """Refuse to call an async method from a blocking method."""
    raise InvalidArgumentError(
        f"{type(owner).__name__}.{name} is async.",
        hint="Use the manager's async methods: acreate_checkpoint, aclose and so on.",
    )
