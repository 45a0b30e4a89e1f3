"""CheckpointManager: checkpoints of sessions over any saver, or over a store of the user's."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeAlias

from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep._run.driver import Closing, Workflow, sync_and_async
from threadkeep.errors import (
    CheckpointNotFoundError,
    ClosedError,
    InvalidArgumentError,
    invalid,
)
from threadkeep.savers.savers import open_saver
from threadkeep.sessions import checkpoint as valid
from threadkeep.sessions.checkpoint import Checkpoint, as_type
from threadkeep.sessions.config import CheckpointConfig
from threadkeep.sessions.records import Place, SaverRecords, SessionDraft, surplus
from threadkeep.sessions.stores import (
    CheckpointStore,
    SaverCheckpointStore,
    StoreRecords,
)

SaverOrStore: TypeAlias = BaseCheckpointSaver[Any] | CheckpointStore

_REMOVE_EVERY = 100  # saves of a session, where there is no `max_checkpoints`

_log = logging.getLogger("threadkeep")


class CheckpointManager(Closing):
    """Checkpoints by session and workflow, newest first, in a saver or in a store.

    Each method has an async variant: `acreate_checkpoint` of `create_checkpoint`, and so on. What
    is beyond the limits of the configuration is listed no more. It is removed once in
    `max_checkpoints` saves of a session, unless the saver cannot remove single checkpoints.

    Args:
        saver: a saver of threadkeep, another LangGraph saver, or a `CheckpointStore`; closed with
            the manager. None opens the store that the configuration names.
        config: the configuration; None for `CheckpointConfig()`.

    Raises:
        InvalidArgumentError: an argument is neither.
        OpenError: the configured store cannot be opened.
    """

    def __init__(
        self, saver: SaverOrStore | None = None, config: CheckpointConfig | None = None
    ) -> None:
        self.config = CheckpointConfig() if config is None else config
        if not isinstance(self.config, CheckpointConfig):
            raise invalid("config", config, "Use a CheckpointConfig; from_dict makes one.")
        self._records = _records(open_saver(self.config.store_url) if saver is None else saver)
        self._is_closed = False

    # -- saving ----------------------------------------------------------------------

    def _create_checkpoint(
        self,
        session_id: str,
        workflow_id: str,
        state: Any,
        metadata: Mapping[str, Any] | None = None,
        *,
        checkpoint_id: str | None = None,
    ) -> Workflow[str | None]:
        """Save the state of a workflow; durable on return, as far as the saver is.

        Args:
            session_id: the session.
            workflow_id: the workflow.
            state: any value that the saver can store, else an object with `to_dict` whose class
                has `from_dict`: it is stored as that dict. Of a dict, only the keys that changed
                are stored, and of these only what changed.
            metadata: what to say of the checkpoint.
            checkpoint_id: an id of your own. If the session has it, its checkpoint is replaced,
                and keeps its `created_at`.

        Returns:
            The checkpoint's id; None if the configuration has `enabled=False`.

        Raises:
            InvalidArgumentError: an argument is invalid, or the id is one of another workflow.
            UnserializableError: the state cannot be stored so that it comes back exactly.
            ThreadDeletedError: the session was deleted since its last save; the next one begins it
                anew.
        """
        records = self._open()
        draft = SessionDraft(
            valid.session(session_id),
            valid.workflow(workflow_id),
            state,
            valid.metadata(metadata),
            None if checkpoint_id is None else valid.text("checkpoint_id", checkpoint_id),
        )
        if not self.config.enabled:
            return None
        saved = yield from records.save(draft)
        if saved.number and saved.number % (self.config.max_checkpoints or _REMOVE_EVERY) == 0:
            yield from self._apply_limits(draft.session)
        return saved.id

    create_checkpoint, acreate_checkpoint = sync_and_async(_create_checkpoint)

    def _apply_limits(self, session: str) -> Workflow[None]:
        """Remove what is beyond the limits. A failure is logged: the save itself was made."""
        if not self._is_limited or not self._records.can_remove:
            return
        try:
            places = yield from self._records.places(session)
            ids = [one.id for one in self._surplus(places)]
            yield from self._records.remove(session, ids)
        except Exception:  # noqa: BLE001 - a store of the user's may raise anything
            _log.warning("Old checkpoints of session %r were not removed.", session, exc_info=True)

    @property
    def _is_limited(self) -> bool:
        return (self.config.max_checkpoints, self.config.retention_days) != (None, None)

    def _surplus(self, places: list[Place]) -> list[Place]:
        days = self.config.retention_days
        since = None if days is None else valid.now() - timedelta(days=days)
        return surplus(places, self.config.max_checkpoints, since)

    # -- reading ---------------------------------------------------------------------

    def _get_checkpoint(self, session_id: str, checkpoint_id: str) -> Workflow[Checkpoint | None]:
        """Return a checkpoint of a session; None if the session has none with this id.

        Raises:
            InvalidArgumentError: an id is no text.
            CorruptionError, UnknownTypeError: the state cannot be read back as it was.
        """
        its_id = valid.text("checkpoint_id", checkpoint_id)
        return (yield from self._open().find(valid.session(session_id), its_id))

    get_checkpoint, aget_checkpoint = sync_and_async(_get_checkpoint)

    def _list_checkpoints(
        self, session_id: str, workflow_id: str | None = None, *, limit: int | None = None
    ) -> Workflow[list[Checkpoint]]:
        """Return the checkpoints of a session, newest first.

        Args:
            session_id: the session.
            workflow_id: only those of this workflow.
            limit: the most to return.

        Raises:
            InvalidArgumentError: an argument is invalid.
            CorruptionError, UnknownTypeError: a state cannot be read back as it was.
        """
        session = valid.session(session_id)
        workflow = None if workflow_id is None else valid.workflow(workflow_id)
        most = None if limit is None else valid.count("limit", limit)
        found = yield from self._open().newest(session, workflow, most)
        if not self._is_limited or len(found) <= 1:  # (the newest of a workflow stays)
            return found
        places = yield from self._records.places(session)
        left = {one.name for one in {*places} - {*self._surplus(places)}}
        return [one for one in found if one.id in left]

    list_checkpoints, alist_checkpoints = sync_and_async(_list_checkpoints)

    def _get_latest_checkpoint(
        self, session_id: str, workflow_id: str | None = None
    ) -> Workflow[Checkpoint | None]:
        """Return the newest checkpoint of a session, or of a workflow of it; None if there is none.

        Raises:
            InvalidArgumentError: an id is no text.
            CorruptionError, UnknownTypeError: the state cannot be read back as it was.
        """
        found = yield from self._list_checkpoints(session_id, workflow_id, limit=1)
        return found[0] if found else None

    get_latest_checkpoint, aget_latest_checkpoint = sync_and_async(_get_latest_checkpoint)

    def _restore_from_checkpoint(
        self, session_id: str, checkpoint_id: str, type: Any = None
    ) -> Workflow[Any]:
        """Return the state of a checkpoint: the object itself, in a fresh copy.

        Args:
            session_id: the session.
            checkpoint_id: the checkpoint.
            type: a type that the state is made into, unless it is one already: a dataclass, a
                pydantic model, a TypedDict, any type that pydantic can validate, or a class with
                `from_dict`.

        Raises:
            CheckpointNotFoundError: the session has no such checkpoint.
            InvalidArgumentError: an id is no text, or the state does not fit the type.
            CorruptionError, UnknownTypeError: the state cannot be read back as it was.
        """
        found = yield from self._get_checkpoint(session_id, checkpoint_id)
        if found is None:
            raise CheckpointNotFoundError(
                "The session has no such checkpoint.",
                hint="list_checkpoints(session_id) returns those it has.",
                thread=str(session_id),
                checkpoint=str(checkpoint_id),
            )
        return as_type(found.state_data, type)

    restore_from_checkpoint, arestore_from_checkpoint = sync_and_async(_restore_from_checkpoint)

    # -- removing --------------------------------------------------------------------

    def _delete_checkpoint(self, session_id: str, checkpoint_id: str) -> Workflow[bool]:
        """Remove a checkpoint of a session; False if the session has none with this id.

        Raises:
            InvalidArgumentError: an id is no text, or the saver cannot remove single checkpoints.
        """
        its_id = valid.text("checkpoint_id", checkpoint_id)
        return (yield from self._open().delete(valid.session(session_id), its_id))

    delete_checkpoint, adelete_checkpoint = sync_and_async(_delete_checkpoint)

    def _cleanup_old_checkpoints(
        self, session_id: str, max_count: int, workflow_id: str | None = None
    ) -> Workflow[int]:
        """Keep the newest checkpoints of a session, or of a workflow of it, and remove the others.

        Those with a pin or a tag are removed as well.

        Returns:
            The number of checkpoints removed.

        Raises:
            InvalidArgumentError: an argument is invalid, or the saver cannot remove single
                checkpoints.
        """
        session, most = valid.session(session_id), valid.count("max_count", max_count)
        workflow = None if workflow_id is None else valid.workflow(workflow_id)
        return (yield from self._open().cleanup(session, most, workflow))

    cleanup_old_checkpoints, acleanup_old_checkpoints = sync_and_async(_cleanup_old_checkpoints)

    # -- life ------------------------------------------------------------------------

    def _open(self) -> SaverRecords | StoreRecords:
        if self._is_closed:
            raise ClosedError("The manager has been closed.", hint="Make another one.")
        return self._records

    def _close(self) -> Workflow[None]:
        """Close the manager and its saver or store. Idempotent; later calls raise `ClosedError`."""
        if not self._is_closed:
            yield from self._records.close()
            self._is_closed = True

    close, aclose = sync_and_async(_close)


def _records(owned: object) -> SaverRecords | StoreRecords:
    if isinstance(owned, SaverCheckpointStore):
        return owned.records
    if isinstance(owned, BaseCheckpointSaver):
        return SaverRecords(owned)
    if isinstance(owned, CheckpointStore):
        return StoreRecords(owned)
    raise InvalidArgumentError(
        f"{type(owned).__name__} is neither a LangGraph saver nor a CheckpointStore.",
        hint="A store has save, load, list_by_session, delete, get_latest and"
        " cleanup_old_checkpoints.",
    )
