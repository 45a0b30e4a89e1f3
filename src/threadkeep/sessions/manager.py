"""Managers of sessions' checkpoints, over any saver or store, and automatic saves of workflows."""

from __future__ import annotations

import functools
import inspect
import logging
import pickle
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, closing
from datetime import timedelta
from functools import partial
from hashlib import blake2b
from typing import Any, TypeAlias, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep._core.engine.operation import External, Operation
from threadkeep._run.driver import Closing, sync_and_async
from threadkeep.errors import (
    CheckpointNotFoundError,
    ClosedError,
    InvalidArgumentError,
    invalid,
)
from threadkeep.savers.savers import open_saver
from threadkeep.sessions import checkpoint as valid
from threadkeep.sessions.checkpoint import Checkpoint, CheckpointConfig, as_type
from threadkeep.sessions.records import SaverRecords, SessionDraft, SessionPlace, surplus
from threadkeep.sessions.stores import CheckpointStore, SaverCheckpointStore, StoreRecords

F = TypeVar("F", bound=Callable[..., Any])
SaverOrStore: TypeAlias = BaseCheckpointSaver[Any] | CheckpointStore

_REMOVE_EVERY = 100  # saves of a session without `max_checkpoints`
_CHANGE = "state_change"

_log = logging.getLogger("threadkeep")


class CheckpointManager(Closing):
    """Checkpoints by session and workflow, newest first, in a saver or in a store.

    Each method has an async variant: `acreate_checkpoint` for `create_checkpoint`, and so on.
    Checkpoints beyond the limits of the configuration are not listed. They are removed once in
    `max_checkpoints` saves of a session, unless the saver cannot remove single checkpoints.

    Args:
        saver: a threadkeep saver, another LangGraph saver, or a `CheckpointStore`, closed with the
            manager. None opens the store that the configuration names.
        config: the configuration, or None for `CheckpointConfig()`.
        checkpoint_store: another name of `saver`.

    Raises:
        InvalidArgumentError: an argument has another type.
        OpenError: the configured store cannot be opened.
    """

    def __init__(
        self,
        saver: SaverOrStore | None = None,
        config: CheckpointConfig | None = None,
        *,
        checkpoint_store: SaverOrStore | None = None,
    ) -> None:
        self.config = CheckpointConfig() if config is None else config
        if not isinstance(self.config, CheckpointConfig):
            raise invalid("config", config, "Use a CheckpointConfig; from_dict makes one.")
        owned = checkpoint_store if saver is None else saver
        self._records = _records(open_saver(self.config.store_url) if owned is None else owned)
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
    ) -> Operation[str | None]:
        """Save the state of a workflow, as durably as the saver does.

        Args:
            session_id: the session.
            workflow_id: the workflow.
            state: any value that the saver can store, or else an object with `to_dict`, which is
                stored as that dict. For a dict, only the changes of changed keys are stored.
            metadata: metadata of the checkpoint.
            checkpoint_id: your own id. A checkpoint of the session with this id is replaced, and
                keeps its `created_at`.

        Returns:
            The checkpoint's id, or None if the configuration has `enabled=False`.

        Raises:
            InvalidArgumentError: an argument is invalid, or another workflow has the id.
            UnserializableError: the state cannot be stored without loss.
            ThreadDeletedError: the session was deleted since its last save, and the next save
                starts a new session.
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

    def _apply_limits(self, session: str) -> Operation[None]:
        """Remove checkpoints beyond the limits. A failure is logged, as the save succeeded."""
        if not self._is_limited or not self._records.can_remove:
            return
        try:
            places = yield from self._records.places(session)
            ids = [one.id for one in self._surplus(places)]
            yield from self._records.remove(session, ids)
        except Exception:  # noqa: BLE001 - a user's store may raise anything
            _log.warning("Old checkpoints of session %r were not removed.", session, exc_info=True)

    @property
    def _is_limited(self) -> bool:
        return (self.config.max_checkpoints, self.config.retention_days) != (None, None)

    def _surplus(self, places: list[SessionPlace]) -> list[SessionPlace]:
        days = self.config.retention_days
        since = None if days is None else valid.now() - timedelta(days=days)
        return surplus(places, self.config.max_checkpoints, since)

    # -- reading ---------------------------------------------------------------------

    def _get_checkpoint(self, session_id: str, checkpoint_id: str) -> Operation[Checkpoint | None]:
        """Return a checkpoint of a session, or None if the session has no such id.

        Raises:
            InvalidArgumentError: an id is not text.
            CorruptionError, UnknownTypeError: the state cannot be read back.
        """
        its_id = valid.text("checkpoint_id", checkpoint_id)
        return (yield from self._open().find(valid.session(session_id), its_id))

    get_checkpoint, aget_checkpoint = sync_and_async(_get_checkpoint)

    def _list_checkpoints(
        self, session_id: str, workflow_id: str | None = None, *, limit: int | None = None
    ) -> Operation[list[Checkpoint]]:
        """Return the checkpoints of a session, newest first.

        Args:
            session_id: the session.
            workflow_id: return only checkpoints of this workflow.
            limit: the largest number of checkpoints to return.

        Raises:
            InvalidArgumentError: an argument is invalid.
            CorruptionError, UnknownTypeError: a state cannot be read back.
        """
        session = valid.session(session_id)
        workflow = None if workflow_id is None else valid.workflow(workflow_id)
        most = None if limit is None else valid.count("limit", limit)
        found = yield from self._open().newest(session, workflow, most)
        if not self._is_limited or len(found) <= 1:  # (the newest one always stays)
            return found
        places = yield from self._records.places(session)
        left = {one.name for one in {*places} - {*self._surplus(places)}}
        return [one for one in found if one.id in left]

    list_checkpoints, alist_checkpoints = sync_and_async(_list_checkpoints)

    def _get_latest_checkpoint(
        self, session_id: str, workflow_id: str | None = None
    ) -> Operation[Checkpoint | None]:
        """Return the newest checkpoint of a session or one workflow, or None without checkpoints.

        Raises:
            InvalidArgumentError: an id is not text.
            CorruptionError, UnknownTypeError: the state cannot be read back.
        """
        found = yield from self._list_checkpoints(session_id, workflow_id, limit=1)
        return found[0] if found else None

    get_latest_checkpoint, aget_latest_checkpoint = sync_and_async(_get_latest_checkpoint)

    def _restore_from_checkpoint(
        self, session_id: str, checkpoint_id: str, type: Any = None
    ) -> Operation[Any]:
        """Return a fresh copy of the state of a checkpoint.

        Args:
            session_id: the session.
            checkpoint_id: the checkpoint.
            type: the type to convert the state to: a dataclass, a pydantic model, a TypedDict, any
                type that pydantic can validate, or a class with `from_dict`.

        Raises:
            CheckpointNotFoundError: the session has no such checkpoint.
            InvalidArgumentError: an id is not text, or the state does not fit the type.
            CorruptionError, UnknownTypeError: the state cannot be read back.
        """
        found = yield from self._get_checkpoint(session_id, checkpoint_id)
        if found is None:
            raise CheckpointNotFoundError(
                "The session has no such checkpoint.",
                hint="List its checkpoints: list_checkpoints(session_id).",
                thread=str(session_id),
                checkpoint=str(checkpoint_id),
            )
        return as_type(found.state_data, type)

    restore_from_checkpoint, arestore_from_checkpoint = sync_and_async(_restore_from_checkpoint)

    # -- removing --------------------------------------------------------------------

    def _delete_checkpoint(self, session_id: str, checkpoint_id: str) -> Operation[bool]:
        """Remove a checkpoint of a session, or return False if the session has no such id.

        Raises:
            InvalidArgumentError: an id is not text, or the saver cannot remove single checkpoints.
        """
        its_id = valid.text("checkpoint_id", checkpoint_id)
        return (yield from self._open().delete(valid.session(session_id), its_id))

    delete_checkpoint, adelete_checkpoint = sync_and_async(_delete_checkpoint)

    def _cleanup_old_checkpoints(
        self, session_id: str, max_count: int, workflow_id: str | None = None
    ) -> Operation[int]:
        """Remove all but the newest checkpoints of a session or of one workflow.

        Checkpoints with a pin or a tag are removed too.

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
            raise ClosedError("The manager is closed.", hint="Create another CheckpointManager.")
        return self._records

    def _close(self) -> Operation[None]:
        """Close the manager and its saver or store. Idempotent. Later calls raise `ClosedError`."""
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


# -- automatic saves -------------------------------------------------------------------


class AutoSaver:
    """Saves the state of one workflow of a session, according to the manager's configuration.

    Use it in one task or thread at a time. It need not be closed. Each method has an async variant:
    `astep` for `step`, and so on.

    Args:
        manager: the manager.
        session_id: the session.
        workflow_id: the workflow.

    Raises:
        InvalidArgumentError: an id is not text, or the manager is not a `CheckpointManager`.
    """

    def __init__(self, manager: CheckpointManager, session_id: str, workflow_id: str) -> None:
        if not isinstance(manager, CheckpointManager):
            raise invalid("manager", manager, "Use CheckpointManager(saver).")
        self.manager = manager
        self.session_id = valid.session(session_id)
        self.workflow_id = valid.workflow(workflow_id)
        self.steps = 0
        """Number of steps so far."""
        self._unsaved = 0  # steps since the last save
        self._saved: bytes | None = None

    def _step(
        self, state: Any, event: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> Operation[str | None]:
        """Count a step, and save the state if it is time to save.

        It saves after an event of `trigger_conditions`, `save_interval` steps after the last save,
        or, with "state_change" among the conditions, if the state differs from the last saved
        state. The comparison pickles the state at each step.

        Args:
            state: the state after the step.
            event: an event of the step, from `EVENTS` or the configuration's `events`.
            metadata: metadata of the checkpoint, in addition to its `step` and `event`.

        Returns:
            The id of the checkpoint, or None if nothing was saved.

        Raises:
            InvalidArgumentError: the event is unknown.
            ThreadkeepError: as `CheckpointManager.create_checkpoint`. The next step retries.
        """
        config = self.manager.config
        if event is not None:
            config.check_event(event)
        self.steps += 1
        self._unsaved += 1
        if not (config.enabled and config.auto_save):
            return None
        now = self._watched(state)
        if event in config.trigger_conditions:
            reason = event
        elif self._unsaved >= config.save_interval:
            reason = "interval"
        elif _CHANGE in config.trigger_conditions and (now is None or now != self._saved):
            reason = _CHANGE
        else:
            return None
        return (yield from self._put(state, {"event": reason, **valid.metadata(metadata)}, now))

    step, astep = sync_and_async(_step)

    def _save(self, state: Any, metadata: Mapping[str, Any] | None = None) -> Operation[str | None]:
        """Save the state now, even with `auto_save=False`.

        Returns:
            The id of the checkpoint, or None if the configuration has `enabled=False`.

        Raises:
            ThreadkeepError: as `CheckpointManager.create_checkpoint`.
        """
        now = self._watched(state)
        return (yield from self._put(state, {"event": "manual", **valid.metadata(metadata)}, now))

    save, asave = sync_and_async(_save)

    def _watched(self, state: Any) -> bytes | None:
        """Compute a digest if changes of the state trigger saves."""
        return _digest(state) if _CHANGE in self.manager.config.trigger_conditions else None

    def _put(
        self, state: Any, metadata: dict[str, Any], now: bytes | None
    ) -> Operation[str | None]:
        names, metadata = (self.session_id, self.workflow_id), {**metadata, "step": self.steps}
        create, acreate = self.manager.create_checkpoint, self.manager.acreate_checkpoint
        saved: str | None = yield External(
            partial(create, *names, state, metadata), partial(acreate, *names, state, metadata)
        )
        self._unsaved, self._saved = 0, now
        return saved

    def _restore(self, type: Any = None) -> Operation[Any]:
        """Return the newest state, and continue at its step, or None without checkpoints.

        Args:
            type: see `CheckpointManager.restore_from_checkpoint`.

        Raises:
            ThreadkeepError: as `CheckpointManager.restore_from_checkpoint`.
        """
        manager, options = self.manager, {"workflow_id": self.workflow_id}
        found = yield External(
            partial(manager.get_latest_checkpoint, self.session_id, **options),
            partial(manager.aget_latest_checkpoint, self.session_id, **options),
        )
        if found is None:
            return None
        step = found.metadata.get("step")
        self.steps = step if isinstance(step, int) else self.steps
        state = as_type(found.state_data, type)
        self._unsaved, self._saved = 0, self._watched(state)
        return state

    restore, arestore = sync_and_async(_restore)

    def _finish(self, state: Any) -> Operation[None]:
        """Save the last state of a loop, if it was not saved."""
        config = self.manager.config
        if self._unsaved and config.enabled and config.auto_save:
            yield from self._save(state, {"event": "end"})

    finish, afinish = sync_and_async(_finish)


def _digest(state: Any) -> bytes | None:
    """Compute a digest of a state, or None if it cannot be pickled."""
    try:
        return blake2b(pickle.dumps(state, pickle.HIGHEST_PROTOCOL), digest_size=16).digest()
    except Exception:  # noqa: BLE001 - the state's classes may raise anything
        return None


def checkpointed(session: AutoSaver, event: str | None = None) -> Callable[[F], F]:
    """Decorate a function or a loop, so that each state is a step of a session.

    Each call of a function, sync or async, is a step. The function returns the state. Each state
    that a generator, sync or async, yields is a step, saved before the caller gets the state. When
    the generator ends or is closed, the last state is always saved, but not after an error in the
    generator, which may leave the state half changed.

    Args:
        session: the saver of the session.
        event: the event of each step (see `AutoSaver.step`).

    Raises:
        InvalidArgumentError: the session is not an `AutoSaver`.
    """
    if not isinstance(session, AutoSaver):
        raise invalid("session", session, "Use @checkpointed(AutoSaver(...)).")

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            state = function(*args, **options)
            session.step(state, event)
            return state

        @functools.wraps(function)
        async def acall(*args: Any, **options: Any) -> Any:
            state = await function(*args, **options)
            await session.astep(state, event)
            return state

        if inspect.isasyncgenfunction(function):
            return _aloop(session, function, event)
        if inspect.isgeneratorfunction(function):
            return _loop(session, function, event)
        return acall if inspect.iscoroutinefunction(function) else call

    return decorate


def _loop(session: AutoSaver, function: Any, event: str | None) -> Any:
    @functools.wraps(function)
    def loop(*args: Any, **options: Any) -> Iterator[Any]:
        state = None
        with closing(function(*args, **options)) as states:
            for state in states:
                session.step(state, event)
                try:
                    yield state
                except GeneratorExit:
                    session.finish(state)
                    raise
        if state is not None:
            session.finish(state)

    return loop


def _aloop(session: AutoSaver, function: Any, event: str | None) -> Any:
    @functools.wraps(function)
    async def loop(*args: Any, **options: Any) -> AsyncIterator[Any]:
        state = None
        async with aclosing(function(*args, **options)) as states:
            async for state in states:
                await session.astep(state, event)
                try:
                    yield state
                except GeneratorExit:
                    await session.afinish(state)
                    raise
        if state is not None:
            await session.afinish(state)

    return loop
