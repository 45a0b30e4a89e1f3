"""`adopt`: threads from LangGraph's own savers.

Only the checks of what is asked for live here; the steps are `transfer.adopting`'s.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep.errors import InvalidArgumentError
from threadkeep.store import workflows
from threadkeep.store.workflows import Plan
from threadkeep.threads.exchanging import ids
from threadkeep.threads.running import Running, quiet
from threadkeep.transfer import adopting
from threadkeep.transfer.adopting import Adopted, Wishes
from threadkeep.transfer.portable import Progress
from threadkeep.transfer.sources import open_source


class Adopting(Running):
    """Threads of LangGraph's own savers."""

    def adopt(
        self,
        source: str | os.PathLike[str] | BaseCheckpointSaver[Any],
        threads: str | Iterable[str] | None = None,
        *,
        replace: bool = False,
        as_fork: bool = False,
        verify: bool = False,
        key: str | bytes | None = None,
        progress: Progress | None = None,
    ) -> Adopted:
        """Bring threads here that LangGraph's SqliteSaver, PostgresSaver or InMemorySaver holds.

        All of them: namespaces, parents, metadata, versions, pending writes. The source is
        only read, each thread as one state, also while it is written. Done again, it
        brings what has come since, or goes on where it was cut off.

        A thread that has gone on here and in the source, or holds one of its checkpoints in
        another state, is left alone and listed in `conflicts`, unless one of `replace` and
        `as_fork` is given.

        Args:
            source: the URL or path of LangGraph's database, or the saver.
            threads: the id of one or the ids of several; None for all but those that were
                deleted here.
            replace: put the source's thread in the place of one that has gone another way.
            as_fork: bring the source's thread into a fork of one that has gone another way,
                "<thread>-adopted", which begins with the newest checkpoint that both have.
            verify: compare every checkpoint as LangGraph's saver gives it with what this one
                gives. Needs that saver's library.
            key: the key of encrypted values (LANGGRAPH_AES_KEY), 16, 24 or 32 bytes; a saver
                brings its own.
            progress: called with what is being done, how many checkpoints are done, and how
                many there are.

        Raises:
            NotLangGraphError: the source is another program's, or threadkeep's own.
            OpenError, InvalidArgumentError: the source cannot be opened, or is none; both of
                `replace` and `as_fork` are given.
            ThreadNotFoundError: the source has no such thread.
            WrongKeyError: a value is encrypted, and the key is missing or another one.
            UnknownTypeError: a value is of a class that this program has not imported or
                allowed; the error names the checkpoint and the line that helps.
            CorruptionError: something is damaged, or not what LangGraph's saver gives.
        """
        wishes = Wishes(verify, replace, as_fork)
        plan = self._adopt(source, threads, wishes, key, progress)
        done = workflows.run(plan)
        self._store.flush()
        return done

    async def aadopt(
        self,
        source: str | os.PathLike[str] | BaseCheckpointSaver[Any],
        threads: str | Iterable[str] | None = None,
        *,
        replace: bool = False,
        as_fork: bool = False,
        verify: bool = False,
        key: str | bytes | None = None,
        progress: Progress | None = None,
    ) -> Adopted:
        """See `adopt`."""
        wishes = Wishes(verify, replace, as_fork)
        plan = self._adopt(source, threads, wishes, key, progress)
        done = await workflows.arun(plan)
        await self._store.aflush()
        return done

    def _adopt(
        self,
        source: str | os.PathLike[str] | BaseCheckpointSaver[Any],
        threads: str | Iterable[str] | None,
        wishes: Wishes,
        key: str | bytes | None,
        progress: Progress | None,
    ) -> Plan[Adopted]:
        if wishes.replace and wishes.as_fork:
            raise InvalidArgumentError(
                "Both replace and as_fork are given.", hint="Give one of them."
            )
        opening = partial(open_source, source, self._engine.codec, key)
        told = progress or quiet
        return adopting.adopt(self._store, self._engine, opening, ids(threads), wishes, told)
