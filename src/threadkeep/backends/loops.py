"""Resources of event loops: one for each, let go of once its loop has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from threadkeep.backends import process_forks
from threadkeep.errors import ClosedError

T = TypeVar("T")


class PerLoop(Generic[T]):
    """One object for each event loop, made when the loop first needs it."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[asyncio.AbstractEventLoop, T] = {}

    def here(self) -> T:
        """Return the one of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._made.get(loop)
        if found is None:
            for ended in [known for known in tuple(self._made) if known.is_closed()]:
                self._made.pop(ended, None)
            found = self._made[loop] = self._make()
        return found


_closing: set[asyncio.Task[None]] = set()  # an event loop holds its tasks weakly


class LoopConnections(Generic[T]):
    """Connections of each event loop, opened when the loop first needs them.

    The child of a fork never closes what its parent opened, as the parent speaks over it.
    """

    def __init__(self) -> None:
        self._open = True
        self._loops: dict[asyncio.AbstractEventLoop, T] = {}
        self._parents: list[Any] = []  # (what is collected would be closed)
        process_forks.watch(self)

    def _begin(self) -> T:
        """Open connections for the running loop."""
        raise NotImplementedError

    async def _end(self, made: T) -> None:
        """Close the connections of the running loop."""
        raise NotImplementedError

    def _abandon(self, made: T) -> None:
        """Let go of the connections of a loop that has ended."""

    def _has_failed(self, made: T) -> bool:
        """Return True if they could not be opened, so that the next call tries again."""
        del made  # (most are opened later, when they are first used)
        return False

    def here(self) -> T:
        """Return the connections of the running loop. `ClosedError` once this was closed."""
        if not self._open:
            raise ClosedError(hint="Open a new saver.")
        loop = asyncio.get_running_loop()
        made = self._loops.get(loop)
        if made is None or self._has_failed(made):
            for ended in [known for known in tuple(self._loops) if known.is_closed()]:
                self._drop(ended)
            made = self._loops[loop] = self._begin()
        return made

    def _drop(self, ended: asyncio.AbstractEventLoop) -> None:
        made = self._loops.pop(ended, None)  # (other threads have loops of their own)
        if made is not None:
            self._abandon(made)

    async def close(self) -> None:
        """Close the connections of all event loops. Idempotent."""
        here = asyncio.get_running_loop()
        self.close_elsewhere(here)
        made = self._loops.pop(here, None)
        if made is not None:
            await self._end(made)

    def close_elsewhere(self, here: asyncio.AbstractEventLoop | None = None) -> None:
        """Close the connections of all event loops but one."""
        self._open = False
        for loop in tuple(self._loops):
            if loop is here:
                continue
            if loop.is_closed():
                self._drop(loop)
            elif made := self._loops.pop(loop, None):
                loop.call_soon_threadsafe(self._begin_to_end, made)

    def _begin_to_end(self, made: T) -> None:
        task = asyncio.get_running_loop().create_task(self._end(made))
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    def before_fork(self) -> None:
        """See `Watched.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """See `Watched.after_fork`."""
        if in_child:
            self._parents.append(self._loops)
            self._loops = {}
