"""Automatic saves of a workflow: by steps, by events, and where the state has changed."""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, closing
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

from threadkeep._core.engine.operation import External
from threadkeep._run.driver import Workflow, sync_and_async
from threadkeep.errors import invalid
from threadkeep.sessions import checkpoint as valid
from threadkeep.sessions.checkpoint import as_type
from threadkeep.sessions.manager import CheckpointManager

F = TypeVar("F", bound=Callable[..., Any])

_CHANGE = "state_change"


class AutoSaver:
    """Saves the state of one workflow of a session, as the manager's configuration says.

    Holds two counters and a digest of the state that was saved last; nothing needs to be closed.
    For one task or thread at a time. Each method has an async variant: `astep` of `step`.

    Args:
        manager: the manager.
        session_id: the session.
        workflow_id: the workflow.

    Raises:
        InvalidArgumentError: an id is no text, or the manager is none.
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
    ) -> Workflow[str | None]:
        """Count a step, and save the state if its turn has come.

        That is upon an event of `trigger_conditions`, `save_interval` steps after the last save,
        or, with "state_change" among the conditions, if the state is not the one last saved. To
        tell costs a pickle of the state at each step.

        Args:
            state: the state after the step.
            event: what happened in it; one of `EVENTS`, or of the configuration's `events`.
            metadata: what to say of the checkpoint, beside its `step` and `event`.

        Returns:
            The id of the checkpoint; None if nothing was saved.

        Raises:
            InvalidArgumentError: the event is unknown.
            ThreadkeepError: as `CheckpointManager.create_checkpoint`. The next step tries again.
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

    def _save(self, state: Any, metadata: Mapping[str, Any] | None = None) -> Workflow[str | None]:
        """Save the state now, also with `auto_save=False`.

        Returns:
            The id of the checkpoint; None if the configuration has `enabled=False`.

        Raises:
            ThreadkeepError: as `CheckpointManager.create_checkpoint`.
        """
        now = self._watched(state)
        return (yield from self._put(state, {"event": "manual", **valid.metadata(metadata)}, now))

    save, asave = sync_and_async(_save)

    def _watched(self, state: Any) -> bytes | None:
        """Return a digest, where changes count."""
        return _digest(state) if _CHANGE in self.manager.config.trigger_conditions else None

    def _put(self, state: Any, metadata: dict[str, Any], now: bytes | None) -> Workflow[str | None]:
        names, metadata = (self.session_id, self.workflow_id), {**metadata, "step": self.steps}
        create, acreate = self.manager.create_checkpoint, self.manager.acreate_checkpoint
        saved: str | None = yield External(
            partial(create, *names, state, metadata), partial(acreate, *names, state, metadata)
        )
        self._unsaved, self._saved = 0, now
        return saved

    def _restore(self, type: Any = None) -> Workflow[Any]:
        """Return the newest state, and continue with its step; None if there is none.

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

    def _finish(self, state: Any) -> Workflow[None]:
        """Save the state with which a loop has ended, if it was not saved."""
        config = self.manager.config
        if self._unsaved and config.enabled and config.auto_save:
            yield from self._save(state, {"event": "end"})

    finish, afinish = sync_and_async(_finish)


def _digest(state: Any) -> bytes | None:
    """Return a digest of a state; None for one that cannot be told from others."""
    try:
        return blake2b(pickle.dumps(state, pickle.HIGHEST_PROTOCOL), digest_size=16).digest()
    except Exception:  # noqa: BLE001 - the state's own classes may raise anything
        return None


def checkpointed(session: AutoSaver, event: str | None = None) -> Callable[[F], F]:
    """Decorate a function or a loop, so that each of its states is a step of a session.

    Of a function, sync or async, each call is a step, and what it returns is the state. Of a
    generator, sync or async, each state that it yields is a step, which is saved before the caller
    gets it; when the generator ends or is left, the last one is saved in any case. Not so after an
    error in it, which may leave the state half changed.

    Args:
        session: where to save.
        event: the event of each step; see `AutoSaver.step`.

    Raises:
        InvalidArgumentError: the session is no `AutoSaver`.
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

        @functools.wraps(function)
        def loop(*args: Any, **options: Any) -> Iterator[Any]:
            yield from _steps(session, function(*args, **options), event)

        @functools.wraps(function)
        async def aloop(*args: Any, **options: Any) -> AsyncIterator[Any]:
            async with aclosing(_asteps(session, function(*args, **options), event)) as states:
                async for state in states:
                    yield state

        if inspect.isasyncgenfunction(function):
            return aloop
        if inspect.isgeneratorfunction(function):
            return loop
        return acall if inspect.iscoroutinefunction(function) else call

    return decorate


def _steps(session: AutoSaver, states: Any, event: str | None) -> Iterator[Any]:
    state = None
    with closing(states):
        for state in states:
            session.step(state, event)
            try:
                yield state
            except GeneratorExit:
                session.finish(state)
                raise
    if state is not None:
        session.finish(state)


async def _asteps(session: AutoSaver, states: Any, event: str | None) -> AsyncGenerator[Any, None]:
    state = None
    async with aclosing(states):
        async for state in states:
            await session.astep(state, event)
            try:
                yield state
            except GeneratorExit:
                await session.afinish(state)
                raise
    if state is not None:
        await session.afinish(state)
