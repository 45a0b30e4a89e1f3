"""`tier`: all threads where they belong, by age and size.

Only the face lives here; `tiers.tiering` says what can be said, `tiers.moving` does it.
"""

from __future__ import annotations

from collections.abc import Iterable

from threadkeep import validation
from threadkeep.cold.offload import Offloaded
from threadkeep.cold.tiering import Archived, Tiering, TierReport, tier
from threadkeep.store import workflows
from threadkeep.store.workflows import Plan
from threadkeep.threads.running import Running
from threadkeep.transfer.portable import Progress

__all__ = ["Archived", "Offloaded", "Placing", "TierReport"]


class Placing(Running):
    """Threads where they belong."""

    def tier(
        self,
        tiering: Tiering | None = None,
        *,
        threads: Iterable[str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> TierReport:
        """Move threads, and old values of threads in use, into the cold store (`cold=`).

        Runs may be under way. What was interrupted can be done again. Pinned threads stay.

        Args:
            tiering: what goes; None for the saver's own (`tiering=`), or else the defaults: a
                thread that was neither written nor brought back for a day is archived; of others
                go values of more than 64 KB that only checkpoints older than a day need.
            threads: look at these alone.
            dry_run: move nothing, and tell what would go.
            progress: called with what is being done, how much is done, and how much there is.

        Raises:
            InvalidArgumentError: it is no Tiering, or the saver was opened without `cold=`.
            ThreadNotFoundError: one of the threads is not there; nothing was moved.
            OpenError, BackendError: the cold store refused, or failed; what was moved is moved.
        """
        return workflows.run(self._tier(tiering, threads, progress, dry_run=dry_run))

    async def atier(
        self,
        tiering: Tiering | None = None,
        *,
        threads: Iterable[str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> TierReport:
        """See `tier`."""
        return await workflows.arun(self._tier(tiering, threads, progress, dry_run=dry_run))

    def _tier(
        self,
        given: Tiering | None,
        threads: Iterable[str] | None,
        progress: Progress | None,
        *,
        dry_run: bool,
    ) -> Plan[TierReport]:
        names = None if threads is None else validation.ids("threads", threads)
        if given is not None and not isinstance(given, Tiering):
            validation.refuse("tiering", given, "Give a threadkeep.Tiering, such as Tiering().")
        tiering = given or self._store.tiering or Tiering()
        cold = None if dry_run else (yield from self._cold("move threads"))
        store = self._store.beneath()
        moved = tier(store, cold, self._engine, tiering, names, progress=progress)
        return (yield from moved)
