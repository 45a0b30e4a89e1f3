"""The first change of a program without keys, which a store with encrypted rows refuses."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Protocol

from threadkeep._core import tenants
from threadkeep._core.engine.model import FindThreads
from threadkeep._core.engine.operation import Commit, CommitMany, Operation
from threadkeep._run.driver import arun, run
from threadkeep._stores.process_forks import PerLoop
from threadkeep.errors import NotSetUpError, WrongKeyError

WITH_KEYS = "Open it with keys= (in the shell: TK_KEYS or THREADKEEP_KEYS_FILE)."
CHANGING = frozenset[type]((Commit, CommitMany))
"""The requests that wait for the check."""


class StoreOfThreads(Protocol):
    """A `LayeredBackend` of threads."""

    @property
    def backend(self) -> Any:
        """The backend, as this view shows it."""

    @property
    def whole(self) -> Any:
        """The view that shows the threads of all tenants."""


class FirstChange:
    """State of a store before its first change. All views of the store share it.

    Keys are not asked for here: with keys, the first change reads the same record to find them (see
    `StoreKeys.prepare`).

    Args:
        threads: the threads next to a store of other rows, or None for a store of threads.
        is_due: False if no program makes changes through it.
    """

    def __init__(self, threads: StoreOfThreads | None = None, *, is_due: bool = True) -> None:
        self._threads = threads
        self.is_due = is_due
        self._turns = PerLoop(asyncio.Lock)

    def check(self, store: StoreOfThreads) -> None:
        """Check a store (see `check_is_plain`)."""
        run(check_is_plain(self._threads or store))
        self.is_due = False

    async def acheck(self, store: StoreOfThreads) -> None:
        """Async variant of `check`: of the first changes of a loop, one asks."""
        async with self._turns.here():
            if self.is_due:
                await arun(check_is_plain(self._threads or store))
                self.is_due = False


def check_is_plain(store: StoreOfThreads) -> Operation[None]:
    """Check that a store without keys has no encrypted rows.

    Raises:
        WrongKeyError: it has the record of an encrypted store (design note 0026).
    """
    whole = store.whole
    if whole.backend.keys is not None:
        return
    with suppress(NotSetUpError):  # (items and cached results may have tables of their own)
        read = FindThreads(None, 1, empty=True, prefix=tenants.STORE)  # (cheaper than its rows)
        (found,) = yield whole.external("fetch", (read,))
        if found:
            raise WrongKeyError(
                "Rows of this store are encrypted, and no keys were given.",
                hint=WITH_KEYS,
            )
