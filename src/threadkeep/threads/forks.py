"""Forks of threads: `saver.threads.fork`.

Only the face lives here; what a fork takes over is decided in `forks.fork`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cmp_to_key
from typing import Any, Literal, TypeAlias

from langgraph.checkpoint.base.id import uuid6

from threadkeep import validation
from threadkeep.channel_versions import (
    compare_versions,
    next_version,
)
from threadkeep.engine.operation import Operation
from threadkeep.forks import (
    fork as forking,
)
from threadkeep.forks import (
    merge,
)
from threadkeep.forks.merge import (
    Merge,
    Strategy,
)
from threadkeep.threads import queries
from threadkeep.threads.info import ThreadInfo, info
from threadkeep.threads.running import Running

Merging: TypeAlias = Literal["theirs", "ours"] | Callable[[str, Any, Any, Any], Any] | Any
"""What becomes of a channel that both have changed: see `Forks.merge_fork`."""


class Forks(Running):
    """Threads that begin as others were."""

    def fork(
        self, thread: str, checkpoint_id: str | None = None, new_thread_id: str | None = None
    ) -> ThreadInfo:
        """Begin a thread with a checkpoint of another, and with all that led there.

        It is as the run that put that checkpoint left it: an interrupt that waited there waits in
        the fork too, and nodes that ran afterwards run again. Both go on by themselves. No
        values are copied where the store can share them (all but Redis), and either may be
        pruned and deleted.

        Args:
            thread: the other thread; it is not changed.
            checkpoint_id: a checkpoint of its root namespace; None for its head.
            new_thread_id: the fork's name; None for a new UUID.

        Returns:
            What is known of the fork: `forked`, with the other's metadata, without its tags.

        Raises:
            ThreadNotFoundError: the thread holds no checkpoints.
            CheckpointNotFoundError: it has no such checkpoint.
            ThreadExistsError: there is a thread of the new name that holds checkpoints.
        """
        return self._run(self._fork(thread, checkpoint_id, new_thread_id))

    async def afork(
        self, thread: str, checkpoint_id: str | None = None, new_thread_id: str | None = None
    ) -> ThreadInfo:
        """See `fork`."""
        return await self._arun(self._fork(thread, checkpoint_id, new_thread_id))

    def _fork(
        self, thread: str, checkpoint_id: str | None, new_thread_id: str | None
    ) -> Operation[ThreadInfo]:
        source = queries.thread(thread)
        target = str(uuid.uuid4()) if new_thread_id is None else queries.thread(new_thread_id)
        at = validation.checkpoint_id(checkpoint_id)
        entry = yield from forking.fork(self._engine, source, at, target)
        return info(entry)

    def merge_fork(
        self, fork: str, into: str, strategy: Merging | None = None, *, dry_run: bool = False
    ) -> Merge:
        """Bring what a fork has become into the thread that it was forked from.

        A channel that only the fork has changed since it began is taken from it; one that only
        the other has changed stays. The result is a new checkpoint behind the other's head, with
        source "update", which starts no node: what was to run next there is to run next still.
        The fork stays as it is.

        Args:
            fork: what `fork` has made.
            into: the thread that holds the checkpoint that the fork began with.
            strategy: for channels that both have changed: "theirs" (the fork's value), "ours", a
                function that is given the channel's name and its value at the beginning, here and
                in the fork (None where there is none) and returns the new one, or the graph, whose
                reducers are given what was written in the fork. None refuses.
            dry_run: whether to only tell what would be merged, and where the conflicts are.

        Raises:
            MergeConflictError: both have changed a channel, and there is no strategy.
            InvalidArgumentError: the fork is none of this thread; or a channel is a DeltaChannel,
                whose value only the graph can put together.
            CheckpointNotFoundError: the checkpoint that the fork began with was pruned.
            ThreadNotFoundError: one of the threads holds nothing.
        """
        return self._run(self._merge(fork, into, strategy, dry_run=dry_run))

    async def amerge_fork(
        self, fork: str, into: str, strategy: Merging | None = None, *, dry_run: bool = False
    ) -> Merge:
        """See `merge_fork`."""
        return await self._arun(self._merge(fork, into, strategy, dry_run=dry_run))

    def _merge(
        self, fork: str, into: str, strategy: Merging | None, *, dry_run: bool
    ) -> Operation[Merge]:
        how = _strategy(strategy)
        if dry_run and how is None:
            how = Strategy(side="ours")
        making = None if dry_run else _made
        return merge.merge(self._engine, queries.thread(fork), queries.thread(into), how, making)


def _strategy(given: Merging | None) -> Strategy | None:
    if given is None:
        return None
    if isinstance(given, str) and given in ("theirs", "ours"):
        return Strategy(side="theirs" if given == "theirs" else "ours")
    channels = getattr(given, "channels", None)
    if isinstance(channels, Mapping):  # (a graph can be called, too)
        return Strategy(reducers=channels)
    if not callable(given):
        hint = 'Give "theirs", "ours", a function, or the compiled graph.'
        validation.refuse("strategy", given, hint)
    return Strategy(resolve=given)


def _made(step: int, versions: Iterable[float | str]) -> merge.New:
    """A checkpoint's id and time, and a version after all of these."""
    newest = max(versions, key=cmp_to_key(compare_versions), default=None)
    now = datetime.now(UTC).isoformat()
    return merge.New(str(uuid6(clock_seq=step)), now, next_version(newest))
