"""`repair`: what is broken is taken out of threads, so that the rest of them loads.

Only the checks of what is asked for live here; the steps are `repairs`'.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from threadkeep.errors import InvalidArgumentError
from threadkeep.repair import repair
from threadkeep.repair.repair import RepairReport
from threadkeep.store import workflows
from threadkeep.store.workflows import Plan
from threadkeep.threads.exchanging import ids
from threadkeep.threads.running import Running
from threadkeep.transfer.portable import Progress


class Repairing(Running):
    """Taking out what is broken."""

    def repair(
        self,
        threads: str | Iterable[str] | None = None,
        *,
        file: str | os.PathLike[str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> RepairReport:
        """Take out of threads what cannot be read, into a file, so that the rest of them loads.

        A checkpoint of which anything cannot be read is taken out as a whole; the newest sound
        one is the head then, and a thread without one is empty. Nothing leaves the store before
        it is on the disk, byte by byte. What is sound stays as it is, and a sound thread is not
        written to. Programs may use the store meanwhile; cut off anywhere, it is done again with
        another file.

        Args:
            threads: the id of one or the ids of several; None for all.
            file: the quarantine file (`.tkq`), which must not be there yet; it is made if
                anything is taken out. Not needed for a dry run.
            dry_run: change nothing, and say what would be done.
            progress: called with what is being done, how much is done, and how much there is.

        Raises:
            InvalidArgumentError: no file was given, or the ids are none.
            ThreadNotFoundError: one of them is not there; nothing was changed.
            OpenError, DiskFullError: the file is there already, or cannot be written.
            ConflictError: a thread is written all the time.
        """
        return workflows.run(self._repair(threads, file, dry_run, progress))

    async def arepair(
        self,
        threads: str | Iterable[str] | None = None,
        *,
        file: str | os.PathLike[str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> RepairReport:
        """See `repair`."""
        return await workflows.arun(self._repair(threads, file, dry_run, progress))

    def _repair(
        self,
        threads: str | Iterable[str] | None,
        file: str | os.PathLike[str] | None,
        dry_run: bool,  # noqa: FBT001 - as the public methods have it
        progress: Progress | None,
    ) -> Plan[RepairReport]:
        names, store = ids(threads), self._store.beneath()
        if file is None and not dry_run:
            raise InvalidArgumentError(
                "No file was given for what is taken out.",
                hint='Give file="quarantine.tkq", or dry_run=True to see what would be done.',
            )
        path = None if file is None or dry_run else Path(file)
        return (yield from repair.repair(store, self._engine, names, path, progress=progress))
