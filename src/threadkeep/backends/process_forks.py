"""Forks of this process (not of threads): whatever holds locks or connections is told of them.

It is told before the fork, and after it in both processes, in the opposite order.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from threadkeep.errors import ClosedError


class Watched(Protocol):
    """An object that a fork must not catch in the middle of its work."""

    def before_fork(self) -> None:
        """Come to rest; called in the process that is about to fork."""

    def after_fork(self, *, in_child: bool) -> None:
        """Go on in the parent; start afresh in the child, whose other threads are gone."""


_watched: weakref.WeakSet[Watched] = weakref.WeakSet()
_at_rest: list[Watched] = []  # from just before a fork until just after


def watch(thing: Watched) -> None:
    """Tell `thing` of forks of the process for as long as it lives."""
    _watched.add(thing)


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


class ResetInChild:
    """Base of state under a lock that the child of a fork makes anew.

    Another thread may be in the middle of a change at the fork, and is not there in the child.
    """

    def __init__(self) -> None:
        self._reset()
        watch(self)

    def _reset(self) -> None:
        """Make the state, with its locks."""

    def before_fork(self) -> None:
        """See `Watched.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """See `Watched.after_fork`."""
        if in_child:
            self._reset()


class Closable(Protocol):
    """Anything with `close`."""

    def close(self) -> Any:
        """Close it."""


T = TypeVar("T", bound=Closable)


class PerProcess(Generic[T]):
    """An object with connections of its own in each process, made at its first use.

    The child of a fork never closes its parent's, as the parent goes on using them.

    Args:
        make: makes one. Its errors are raised, and the next call tries again.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: T | None = None
        self._open = True
        self._parents: list[T] = []
        watch(self)

    def get(self) -> T:
        """Return the object of this process. Raises `ClosedError` after `close`."""
        with self._lock:
            if not self._open:
                raise ClosedError(hint="Open a new saver.")
            if self._made is None:
                self._made = self._make()
            return self._made

    def close(self) -> None:
        """Close the object of this process, if it was made. Idempotent."""
        with self._lock:
            self._open = False
            made, self._made = self._made, None
        if made is not None:
            made.close()

    def before_fork(self) -> None:
        """See `Watched.before_fork`."""
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        """See `Watched.after_fork`."""
        if in_child and self._made is not None:
            self._parents.append(self._made)  # (what is collected would be closed)
            self._made = None
        self._lock.release()
