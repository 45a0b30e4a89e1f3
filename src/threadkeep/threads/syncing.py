"""`sync`: this store's threads into another store, as far as they are not there.

Only the checks of what is asked for live here; the steps are `transfer.syncing`'s.
"""

from __future__ import annotations

from collections.abc import Iterable

from threadkeep.errors import InvalidArgumentError
from threadkeep.store import workflows
from threadkeep.store.opened import OpenStore
from threadkeep.store.workflows import Plan
from threadkeep.threads.exchanging import ids
from threadkeep.threads.running import Running, quiet
from threadkeep.transfer import syncing
from threadkeep.transfer.portable import Progress
from threadkeep.transfer.syncing import Synced, Wishes


class Syncing(Running):
    """Threads into another store."""

    def sync(
        self,
        other: OpenStore,
        threads: str | Iterable[str] | None = None,
        *,
        replace: bool = False,
        delete: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Synced:
        """Bring the threads of this store into another one of any kind.

        Only what is not there is written: new threads, and the checkpoints and pending writes
        that came since. Each thread that was written is compared on both sides, by the digest
        of every checkpoint. Cut off anywhere, it goes on when it is done again.

        Args:
            other: the saver of the other store.
            threads: the id of one or the ids of several; None for all.
            replace: put this store's thread in the place of one that has gone another way.
            delete: delete threads there that were deleted here.
            dry_run: change nothing, and say what would be done.
            progress: called with what is being done, how much is done, and how much there is.

        Raises:
            InvalidArgumentError: the other is no saver of threadkeep, or is this store.
            ThreadNotFoundError: there is no such thread here.
            CorruptionError: a thread is damaged, or did not arrive as it is here.
            ConflictError: a thread is written there all the time.
        """
        wishes = Wishes(replace, delete, dry_run)
        return workflows.run(self._sync(other, threads, wishes, progress or quiet))

    async def async_(
        self,
        other: OpenStore,
        threads: str | Iterable[str] | None = None,
        *,
        replace: bool = False,
        delete: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Synced:
        """See `sync`, of which this is the twin that is awaited (`async` is Python's own word)."""
        wishes = Wishes(replace, delete, dry_run)
        return await workflows.arun(self._sync(other, threads, wishes, progress or quiet))

    def _sync(
        self,
        other: OpenStore,
        threads: str | Iterable[str] | None,
        wishes: Wishes,
        progress: Progress,
    ) -> Plan[Synced]:
        if not isinstance(other, OpenStore):
            raise InvalidArgumentError(
                f"{type(other).__name__} is no saver of threadkeep.",
                hint="Open the other store: threadkeep.open_saver(url).",
            )
        if other.is_same_store(self._store):
            raise InvalidArgumentError("The other store is this one.", hint="Give another saver.")
        return syncing.sync(self._store.beneath(), other.beneath(), ids(threads), wishes, progress)
