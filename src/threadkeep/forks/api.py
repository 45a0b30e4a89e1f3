"""Operations behind `saver.threads`: fork, merge, branches."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cmp_to_key
from typing import Any, Literal, TypeAlias

from langgraph.checkpoint.base.id import uuid6

from threadkeep import validation
from threadkeep.arguments import (
    compare_versions,
    next_version,
)
from threadkeep.engine.context import Engine
from threadkeep.engine.operation import Operation
from threadkeep.errors import invalid
from threadkeep.forks import branches as trees
from threadkeep.forks import fork as forking
from threadkeep.forks import merge as merging
from threadkeep.forks.branches import Branches
from threadkeep.forks.merge import Merge, Strategy
from threadkeep.registry.info import (
    ThreadInfo,
    info,
)

MergeStrategy: TypeAlias = Literal["theirs", "ours"] | Callable[[str, Any, Any, Any], Any] | Any
"""The value of a channel that both threads have changed: see `Threads.merge_fork`."""


def fork(
    engine: Engine, thread: str, checkpoint_id: str | None, new_thread_id: str | None
) -> Operation[ThreadInfo]:
    """See `Threads.fork`."""
    source = validation.thread_id(thread)
    target = str(uuid.uuid4()) if new_thread_id is None else validation.thread_id(new_thread_id)
    at = validation.checkpoint_id(checkpoint_id)
    return info((yield from forking.fork(engine, source, at, target)))


def merge(
    engine: Engine, fork: str, into: str, strategy: MergeStrategy | None, *, dry_run: bool
) -> Operation[Merge]:
    """See `Threads.merge_fork`."""
    how = _strategy(strategy)
    if dry_run and how is None:
        how = Strategy(side="ours")
    making = None if dry_run else _new_checkpoint
    return merging.merge(
        engine, validation.thread_id(fork), validation.thread_id(into), how, making
    )


def _strategy(value: MergeStrategy | None) -> Strategy | None:
    if value is None:
        return None
    if isinstance(value, str) and value in ("theirs", "ours"):
        return Strategy(side="theirs" if value == "theirs" else "ours")
    channels = getattr(value, "channels", None)
    if isinstance(channels, Mapping):  # (a graph can be called, too)
        return Strategy(reducers=channels)
    if not callable(value):
        hint = 'Use "theirs", "ours", a function, or the compiled graph.'
        raise invalid("strategy", value, hint)
    return Strategy(resolve=value)


def _new_checkpoint(step: int, versions: Iterable[float | str]) -> merging.New:
    """Return a checkpoint's id and time, and a version after all of these."""
    newest = max(versions, key=cmp_to_key(compare_versions), default=None)
    now = datetime.now(UTC).isoformat()
    return merging.New(str(uuid6(clock_seq=step)), now, next_version(newest))


def branches(engine: Engine, thread: str, ns: str) -> Operation[Branches]:
    """See `Threads.branches`."""
    place = validation.place(thread, ns)
    return trees.branches(engine, place.thread, place.ns)


def all_branches(engine: Engine, thread: str) -> Operation[dict[str, Branches]]:
    """See `Threads.branches_by_ns`."""
    return trees.all_branches(engine, validation.place(thread).thread)
