"""Copying a thread inside the store.

Invariant: a copy holds no element that its own rows do not refer to: it goes on without whatever
its source shares with others, or has let go of.
"""

from __future__ import annotations

from contextlib import suppress

from threadkeep.engine.context import Engine
from threadkeep.engine.model import CopyThread
from threadkeep.engine.operation import (
    Operation,
    commit,
)
from threadkeep.erasure.rows import swept
from threadkeep.errors import ConflictError, CorruptionError, InvalidArgumentError


def copy_thread(engine: Engine, source: str, target: str) -> Operation[None]:
    """Copy a thread inside the store; an absent source copies nothing.

    Raises:
        ThreadExistsError: the target holds checkpoints.
        InvalidArgumentError: source and target are the same thread.
    """
    if source == target:
        raise InvalidArgumentError("A thread cannot be copied onto itself.", thread=source)
    yield from commit(CopyThread(source, target, engine.now()))
    yield from trim(engine, target)


def trim(engine: Engine, thread: str) -> Operation[None]:
    """Take out of a new copy, or of a fork where the store copies, what it does not refer to."""
    # (Damaged rows do not tell what that is; whoever writes there already is not kept waiting.)
    with suppress(CorruptionError, ConflictError):
        yield from swept(engine, thread, alone=True)
    engine.working_set.forget(thread)
