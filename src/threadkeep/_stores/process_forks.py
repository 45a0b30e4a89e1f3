"""State and connections of each process and event loop, opening at first use, and forks."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from threadkeep.errors import ClosedError


class WatchedMethods:
    """Methods of an object that must not be forked in the middle of its work."""

    def before_fork(self) -> None:
        """Finish work in progress. Called in the parent before the fork."""

    def after_fork(self, *, in_child: bool) -> None:
        """Continue in the parent, or start afresh in the child, which has only this thread."""


_watched: weakref.WeakSet[Any] = weakref.WeakSet()
_at_rest: list[Any] = []  # from just before a fork until just after
watch = _watched.add
"""Call an object's `WatchedMethods` at each fork, for as long as it lives."""


def _before() -> None:
    for thing in tuple(_watched):
        thing.before_fork()
        _at_rest.append(thing)


def _after(*, in_child: bool) -> None:
    while _at_rest:
        _at_rest.pop().after_fork(in_child=in_child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before,
        after_in_parent=partial(_after, in_child=False),
        after_in_child=partial(_after, in_child=True),
    )


class ResetInChild(WatchedMethods):
    """State under a lock, which the child of a fork makes again.

    Another thread may be changing the state at the fork, and does not exist in the child.
    """

    def __init__(self) -> None:
        self._reset()
        watch(self)

    def _reset(self) -> None:
        """Make the state, with its locks."""

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._reset()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop running in this thread, or None. Blocking calls would stall it."""
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


class FirstUse(ResetInChild):
    """Opens something once: at construction, or in an event loop at its first use.

    Call it before each use, in a thread that may block. After a failure, the next call retries.

    Args:
        do: opens it, and may block.

    Raises:
        Exception: `do` failed, and no event loop runs in this thread.
    """

    def __init__(self, do: Callable[[], None]) -> None:
        self._do: Callable[[], None] | None = do
        super().__init__()
        if running_loop() is None:
            self()

    def _reset(self) -> None:
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Open it if it is not open."""
        if self._do is not None:
            with self._lock:
                if self._do is not None:
                    self._do()
                    self._do = None


T = TypeVar("T")


class PerProcess(Generic[T]):
    """One closable object for each process, made at its first use.

    The child of a fork never closes its parent's object: the parent still uses the connections.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: Any = None
        self._open = True
        self._parents: list[T] = []
        watch(self)

    def get(self) -> T:
        """Return the object of this process. Raises `ClosedError` after `close`."""
        with self._lock:
            if not self._open:
                raise ClosedError(hint="Open a new one.")
            if self._made is None:
                self._made = self._make()
            made: T = self._made
            return made

    def renew(self) -> None:
        """Make another one at the next use. The present one is not closed."""
        with self._lock:
            self._made = None

    def close(self) -> None:
        """Close the object of this process, if it was made. Idempotent."""
        with self._lock:
            self._open = False
            made, self._made = self._made, None
        if made is not None:
            made.close()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child and self._made is not None:
            self._parents.append(self._made)  # (collecting it would close it)
            self._made = None
        self._lock.release()


class PerLoop(Generic[T]):
    """One object for each event loop, made when the loop first needs it."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._loops: dict[asyncio.AbstractEventLoop, T] = {}

    def _drop(self, ended: asyncio.AbstractEventLoop) -> None:
        """Drop the object of a loop that has ended."""
        self._loops.pop(ended, None)

    def _has_failed(self, made: T) -> bool:
        """Return True if making it failed, so that the next call tries again."""
        del made  # (most connections open later, at their first use)
        return False

    def here(self) -> T:
        """Return the running loop's object."""
        loop = asyncio.get_running_loop()
        made = self._loops.get(loop)
        if made is None or self._has_failed(made):
            for ended in [known for known in tuple(self._loops) if known.is_closed()]:
                self._drop(ended)
            made = self._loops[loop] = self._make()
        return made


_closing: set[asyncio.Task[None]] = set()  # an event loop holds its tasks weakly


class LoopConnections(PerLoop[T], WatchedMethods):
    """Connections of each event loop, opened when the loop first needs them.

    The child of a fork never closes its parent's connections: the parent still uses them.
    """

    def __init__(self) -> None:
        super().__init__(self._begin)
        self._open = True
        self._parents: list[Any] = []  # (collecting them would close them)
        watch(self)

    def _begin(self) -> T:
        """Open connections for the running loop."""
        raise NotImplementedError

    async def _end(self, made: T) -> None:
        """Close the connections of the running loop."""
        raise NotImplementedError

    def _abandon(self, made: T) -> None:
        """Discard the connections of a loop that has ended."""

    def here(self) -> T:
        """Return the connections of the running loop. Raises `ClosedError` after `close`."""
        if not self._open:
            raise ClosedError(hint="Open a new one.")
        return super().here()

    def _drop(self, ended: asyncio.AbstractEventLoop) -> None:
        made = self._loops.pop(ended, None)  # (other threads close theirs)
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
        """Close the connections of all event loops except `here`."""
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

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._parents.append(self._loops)
            self._loops = {}
