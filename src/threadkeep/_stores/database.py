"""A database that makes moves: the base class of a store of rows. See `_core.engine.heads`.

The rules of changes are the same for all databases (`_core.engine.rules`). A database answers reads
and makes moves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from threadkeep._core.engine.heads import Head, Move
from threadkeep._core.engine.model import Change
from threadkeep._stores.base import AsyncBackend, Backend
from threadkeep._stores.committing import (
    Ask,
    Asking,
    Heads,
    MakeMoves,
    awaited,
    committing,
    plain_moves,
)
from threadkeep._stores.sync_bridge import finish, result
from threadkeep.errors import ThreadkeepError

T = TypeVar("T")


class _Commits:
    """Attributes of blocking and awaited databases."""

    commits_groups = True

    shares_heaps = True
    """Threads can share segments, so that a fork copies none. Otherwise each `Head.heap` is 0."""

    def __init__(self, known: Heads | None = None) -> None:
        self.heads = Heads() if known is None else known
        """Heads that this process has read or made, as hints. `fetch` may add those it reads."""

    async def _committed(self: Any, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        moves, retries = plain_moves(self.heads, changes), self.retries
        made = await result(self.make(moves)) if moves else []
        if moves and None not in made:
            self.heads.keep(cast("list[Head]", made))
            return [None] * len(changes)
        steps = committing(
            self.heads,
            changes,
            [*zip(moves, made, strict=True)],
            shares_heaps=self.shares_heaps,
            has_lost=lambda: self.retries != retries,
        )
        refusals, known = await self.carried_out(steps, was_refused=bool(moves))
        self.heads.keep(known)
        found: list[ThreadkeepError | None] = refusals
        return found

    async def carried_out(self, steps: Asking[T], *, was_refused: bool) -> T:
        """Run the steps of a commit. `was_refused`: a move of the same commit was refused."""
        del was_refused
        return await awaited(steps, self._answer)

    async def _answer(self: Any, request: Ask | MakeMoves) -> Any:
        if isinstance(request, MakeMoves):
            return await result(self.make(request.moves))
        return await result(self.fetch(request.reads))


class Database(_Commits, Backend):
    """A store of rows, for blocking calls."""

    @abstractmethod
    def fetch(self, reads: Sequence[Any]) -> list[Any]:
        """Answer each read, in order, from one view of the store. See `derived`.

        The reads are from `Backend.fetch`, and from the rules, from `ReadHead` to
        `ReadEnds`. The docstring of each read names its reply.
        """

    @abstractmethod
    def make(self, moves: Sequence[Move]) -> list[Head | None]:
        """Make moves of different threads, each all or nothing, and return when they are durable.

        Of several moves, each only adds rows, and replaces segments.

        Returns:
            For each the new head, with its `number`, or None if the move was refused. See `Move`.

        Raises:
            LockedError, ReadOnlyError, DiskFullError, BackendError: the store failed.
        """

    def commit(self, change: Change) -> None:
        """Make the change, all or nothing. See `Backend.commit`."""
        (refused,) = self.commit_many([change])
        if refused is not None:
            try:
                raise refused
            finally:
                del refused  # its traceback holds this frame: no cycle

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """Make each change. See `Backend.commit_many`."""
        return finish(self._committed(changes))


class AsyncDatabase(_Commits, AsyncBackend):
    """A store of rows for awaiting calls, with the methods of `Database`."""

    @abstractmethod
    async def fetch(self, reads: Sequence[Any]) -> list[Any]:
        """See `Database.fetch`."""

    @abstractmethod
    async def make(self, moves: Sequence[Move]) -> list[Head | None]:
        """See `Database.make`."""

    async def commit(self, change: Change) -> None:
        (refused,) = await self.commit_many([change])
        if refused is not None:
            raise refused

    async def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        return await self._committed(changes)
