"""Forks of threads: `saver.threads.fork`.

Only the face lives here; what a fork takes over is decided in `engine.operations.forking`.
"""

from __future__ import annotations

import uuid

from threadkeep import checks
from threadkeep.engine.calls import Operation
from threadkeep.engine.operations import forking
from threadkeep.threads import asked
from threadkeep.threads.info import ThreadInfo, info
from threadkeep.threads.running import Running


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
        source = asked.thread(thread)
        target = str(uuid.uuid4()) if new_thread_id is None else asked.thread(new_thread_id)
        at = checks.checkpoint_id(checkpoint_id)
        entry = yield from forking.fork(self._engine, source, at, target)
        return info(entry)
