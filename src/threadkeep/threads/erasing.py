"""`erase`: threads that are to leave nothing behind.

Only the checks of what is asked for live here; the steps are `erasures`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from threadkeep import validation
from threadkeep.erasure import erase
from threadkeep.erasure.erase import EraseReport
from threadkeep.errors import InvalidArgumentError
from threadkeep.store import workflows
from threadkeep.store.workflows import Plan
from threadkeep.threads import queries
from threadkeep.threads.running import Running
from threadkeep.transfer.portable import Progress


class Erasing(Running):
    """Removing threads so that no byte of them is left."""

    def erase(
        self,
        thread: str | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        forks: bool = False,
        rewrite: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> EraseReport:
        """Remove threads, and every byte of them that this store and this program hold.

        As `delete_thread`, a tombstone stays. Then what is kept at hand is cleared, and the
        store's files are scrubbed, also of what was removed before. Cut off anywhere, it is done
        again in the same way: the files are scrubbed also where no rows are left to remove.

        Args:
            thread: the name of one; or
            metadata: what all of them have, as `search` compares it. One of the two.
            forks: erase also the threads that were forked from these, and theirs, which hold what
                they took. Without it the report names them.
            rewrite: on PostgreSQL, write the tables anew (VACUUM FULL), which nobody can use
                meanwhile. SQLite's file always is, while others go on reading.
            dry_run: change nothing, and tell what would go.
            progress: called with what is being done, how much is done, and how much there is.

        Raises:
            InvalidArgumentError: neither or both were given, or metadata that is empty.
            ThreadNotFoundError: there never was such a thread; nothing was done.
            UnfinishedErasureError: a place was not cleared, or a thread among several was not
                removed: `report` says what was done, the message what to do before erasing again.
            ConflictError, CorruptionError: it shares segments with a thread that is written all
                the time, or damaged; no place was cleared.
            BackendError: the store failed; erase again.
        """
        return workflows.run(self._erase(thread, metadata, progress, forks, rewrite, dry_run))

    async def aerase(
        self,
        thread: str | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        forks: bool = False,
        rewrite: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> EraseReport:
        """See `erase`."""
        plan = self._erase(thread, metadata, progress, forks, rewrite, dry_run)
        return await workflows.arun(plan)

    def _erase(
        self,
        thread: str | None,
        metadata: Mapping[str, Any] | None,
        progress: Progress | None,
        forks: bool,  # noqa: FBT001 - as the public methods have it
        rewrite: bool,  # noqa: FBT001 - as above
        dry_run: bool,  # noqa: FBT001 - as above
    ) -> Plan[EraseReport]:
        for name, flag in (("forks", forks), ("rewrite", rewrite), ("dry_run", dry_run)):
            if type(flag) is not bool:
                validation.refuse(name, flag, "Give True or False.")
        if (thread is None) == (metadata is None):
            raise InvalidArgumentError(
                "Which threads are to be erased is not said, or said twice.",
                hint='Give a thread\'s name, or metadata={"user_id": ...}.',
            )
        labels = () if thread is not None else _labels(metadata)
        return (
            yield from erase.erase(
                self._store,
                self._engine,
                None if thread is None else queries.thread(thread),
                labels,
                forks=forks,
                rewrite=rewrite,
                dry_run=dry_run,
                progress=progress,
            )
        )


def _labels(metadata: object) -> tuple[str, ...]:
    """The labels that are meant: of one piece of metadata at least."""
    if not metadata or not isinstance(metadata, Mapping):
        validation.refuse("metadata", metadata, 'Say which threads: {"user_id": "u1"}.')
    return queries.metadata_labels(metadata)
