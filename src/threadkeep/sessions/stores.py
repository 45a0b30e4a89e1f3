"""`CheckpointStore`, the protocol of stores of sessions, and its stores in SQLite and memory."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import partial
from operator import attrgetter
from os import PathLike, fspath
from typing import Any, Protocol, Unpack, runtime_checkable

from langgraph.checkpoint.base.id import uuid6

from threadkeep._core.engine.operation import External, Operation
from threadkeep._run.driver import Closing, sync_and_async
from threadkeep._stores.options import listed
from threadkeep.errors import BackendError, InvalidArgumentError
from threadkeep.savers.options import SaverOptions, SqliteSaverOptions
from threadkeep.savers.saver import Saver
from threadkeep.savers.savers import MemorySaver, SqliteSaver
from threadkeep.sessions.checkpoint import Checkpoint, count, now, text
from threadkeep.sessions.checkpoint import session as session_of
from threadkeep.sessions.records import (
    Remembered,
    Saved,
    SaverRecords,
    SessionDraft,
    SessionPlace,
    closing,
    place,
    refuse,
)


@runtime_checkable
class CheckpointStore(Protocol):
    """A store for a `CheckpointManager`. Checkpoints are dicts, see `Checkpoint.to_dict`.

    Only the manager's async methods can use an `async def` method. A store may have both: `save`,
    and `asave` for awaiting callers. Awaiting callers run plain methods in a worker thread. A
    method raises an exception if it fails, and returns None or False for an unknown id.
    """

    def save(self, checkpoint: dict[str, Any]) -> Any:
        """Save a checkpoint. It replaces a checkpoint with its id. False means a failure."""

    def load(self, checkpoint_id: str) -> Any:
        """Return a checkpoint, or None if unknown. Ids are unique in the store."""

    def list_by_session(self, session_id: str) -> Any:
        """Return the checkpoints of a session, newest first."""

    def delete(self, checkpoint_id: str) -> Any:
        """Remove a checkpoint, or return False if unknown."""

    def get_latest(self, session_id: str) -> Any:
        """Return the newest checkpoint of a session, or None without checkpoints."""

    def cleanup_old_checkpoints(self, session_id: str, max_count: int) -> Any:
        """Keep the newest `max_count` checkpoints of a session, and return the number removed."""


class SaverCheckpointStore(Closing):
    """A `CheckpointStore` over a threadkeep saver, sync and async (`asave` and so on).

    `load` and `delete` search all sessions, unless you name the session. Failures raise errors of
    `threadkeep.errors`.
    """

    def __init__(self, saver: Saver) -> None:
        self.records = SaverRecords(saver)

    def _save(self, checkpoint: Mapping[str, Any]) -> Operation[str]:
        """Save a checkpoint, and return its id. A checkpoint without id gets one.

        A checkpoint saved again under its id keeps its `created_at`.

        Raises:
            InvalidArgumentError: a key is missing, or its value is invalid.
            UnserializableError: the state cannot be stored without loss.
        """
        found = Checkpoint.from_dict(checkpoint)
        its_id = None if checkpoint.get("id") is None else found.id
        created = None if checkpoint.get("created_at") is None else found.created_at
        names = (found.session_id, found.workflow_id)
        draft = SessionDraft(*names, found.state_data, found.metadata, its_id, created)
        return (yield from self.records.save(draft)).id

    save, asave = sync_and_async(_save)

    def _load(
        self, checkpoint_id: str, session_id: str | None = None
    ) -> Operation[dict[str, Any] | None]:
        """Return a checkpoint, or None if unknown."""
        its_id = text("checkpoint_id", checkpoint_id)
        for session in (yield from self._sessions(session_id)):
            found = yield from self.records.find(session, its_id)
            if found is not None:
                return found.to_dict()
        return None

    load, aload = sync_and_async(_load)

    def _sessions(self, session_id: str | None) -> Operation[list[str]]:
        if session_id is None:
            return (yield from self.records.sessions())
        return [session_of(session_id)]

    def _list_by_session(self, session_id: str) -> Operation[list[dict[str, Any]]]:
        """Return the checkpoints of a session, newest first."""
        found = yield from self.records.newest(session_of(session_id), None, None)
        return [one.to_dict() for one in found]

    list_by_session, alist_by_session = sync_and_async(_list_by_session)

    def _delete(self, checkpoint_id: str, session_id: str | None = None) -> Operation[bool]:
        """Remove a checkpoint, or return False if unknown."""
        its_id = text("checkpoint_id", checkpoint_id)
        for session in (yield from self._sessions(session_id)):
            if (yield from self.records.delete(session, its_id)):
                return True
        return False

    delete, adelete = sync_and_async(_delete)

    def _get_latest(self, session_id: str) -> Operation[dict[str, Any] | None]:
        """Return the newest checkpoint of a session, or None without checkpoints."""
        found = yield from self.records.newest(session_of(session_id), None, 1)
        return found[0].to_dict() if found else None

    get_latest, aget_latest = sync_and_async(_get_latest)

    def _cleanup_old_checkpoints(self, session_id: str, max_count: int) -> Operation[int]:
        """Keep the newest `max_count` checkpoints of a session, and return the number removed."""
        most = count("max_count", max_count)
        return (yield from self.records.cleanup(session_of(session_id), most, None))

    cleanup_old_checkpoints, acleanup_old_checkpoints = sync_and_async(_cleanup_old_checkpoints)

    def _close(self) -> Operation[None]:
        """Close the store. Idempotent. Later calls raise `ClosedError`."""
        return self.records.close()

    close, aclose = sync_and_async(_close)


class SQLiteCheckpointStore(SaverCheckpointStore):
    """Checkpoints of sessions in a SQLite file.

    Args:
        path: the file, or ":memory:".
        **options: as for `SqliteSaver`.

    Raises:
        OpenError: and its kinds, if the file cannot be opened.
    """

    @listed(SqliteSaverOptions)
    def __init__(self, path: str | PathLike[str], **options: Unpack[SqliteSaverOptions]) -> None:
        super().__init__(SqliteSaver(fspath(path), **options))


class MemoryCheckpointStore(SaverCheckpointStore):
    """Checkpoints of sessions in the memory of this process.

    Args:
        **options: as for `MemorySaver`.
    """

    @listed(SaverOptions)
    def __init__(self, **options: Unpack[SaverOptions]) -> None:
        super().__init__(MemorySaver(**options))

    def _clear(self) -> Operation[None]:
        """Remove the checkpoints of all sessions."""
        for session in (yield from self.records.sessions()):
            yield from self.records.cleanup(session, 0, None)

    clear, aclear = sync_and_async(_clear)


# -- a user's own store ------------------------------------------------------------------


class StoreRecords:
    """Checkpoints of sessions in a `CheckpointStore`, newest first (see `SaverRecords`)."""

    can_remove = True

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._remembered = Remembered()

    def save(self, draft: SessionDraft) -> Operation[Saved]:
        made = now()
        created = draft.created_at or made
        old = None if draft.id is None else (yield from self._load(draft.id))
        if old is not None:
            if (old.session_id, old.workflow_id) != (draft.session, draft.workflow):
                raise InvalidArgumentError(
                    f"Another session or workflow has the id {draft.id!r} already.",
                    hint="Use another id.",
                    thread=draft.session,
                )
            created = old.created_at
        checkpoint = Checkpoint(
            id=draft.id or str(uuid6()),
            session_id=draft.session,
            workflow_id=draft.workflow,
            state_data=draft.state,
            metadata=draft.metadata,
            created_at=created,
            updated_at=made,
        )
        known = self._remembered.get(draft.session)
        if known is None:
            known = len((yield from self.places(draft.session)))
        if (yield from self._call("save", checkpoint.to_dict())) is False:
            raise BackendError(
                f"{type(self._store).__name__}.save returned False.",
                hint="The checkpoint may not be saved. Let save raise the reason as an exception.",
                thread=draft.session,
                checkpoint=checkpoint.id,
            )
        self._remembered.put(known + 1, draft.session)
        return Saved(checkpoint.id, known + 1)

    def find(self, session: str, id: str) -> Operation[Checkpoint | None]:
        found = yield from self._load(id)
        return found if found is not None and found.session_id == session else None

    def _load(self, id: str) -> Operation[Checkpoint | None]:
        found = yield from self._call("load", id)
        return None if found is None else _read(found)

    def newest(
        self, session: str, workflow: str | None, limit: int | None
    ) -> Operation[list[Checkpoint]]:
        if limit == 1 and workflow is None:
            latest = yield from self._call("get_latest", session)
            return [] if latest is None else [_read(latest)]
        found = [*map(_read, (yield from self._call("list_by_session", session)))]
        found = [one for one in found if workflow in (None, one.workflow_id)]
        return sorted(found, key=attrgetter("created_at"), reverse=True)[:limit]

    def places(self, session: str, workflow: str | None = None) -> Operation[list[SessionPlace]]:
        """A store reads states as well."""
        found = yield from self.newest(session, workflow, None)
        return [place(one) for one in found]

    def remove(self, session: str, ids: Iterable[str]) -> Operation[int]:
        del session
        number = 0
        for id in ids:
            number += bool((yield from self._call("delete", id)))
        return number

    def delete(self, session: str, id: str) -> Operation[bool]:
        found = yield from self.find(session, id)
        return found is not None and bool((yield from self._call("delete", id)))

    def cleanup(self, session: str, most: int, workflow: str | None) -> Operation[int]:
        if workflow is None:
            return int((yield from self._call("cleanup_old_checkpoints", session, most)))
        places = yield from self.places(session, workflow)
        return (yield from self.remove(session, [one.id for one in places[most:]]))

    def _call(self, name: str, *args: Any) -> Operation[Any]:
        """Call a method of the store. Awaiting callers prefer its async variant."""
        method, variant = getattr(self._store, name), getattr(self._store, f"a{name}", None)
        if inspect.iscoroutinefunction(method):
            return (yield External(partial(refuse, self._store, name), partial(method, *args)))
        acall = None if variant is None else partial(variant, *args)
        return (yield External(partial(method, *args), acall))

    def close(self) -> Operation[None]:
        """Close the store."""
        return closing(self._store)


def _read(found: Mapping[str, Any]) -> Checkpoint:
    """Make a checkpoint from a store's dict, without unknown keys."""
    names = [one.name for one in fields(Checkpoint)]
    return Checkpoint.from_dict({name: found[name] for name in names if name in found})
