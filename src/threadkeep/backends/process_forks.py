"""Forks of this process (not of threads), told to everything that holds locks or connections.

Only the registry lives here. Invariant: what is watched is told before the fork, and after
it in both processes, in the opposite order.

Something with connections of its own for each process: made when it is first needed.

Only that lives here. Invariants: it is made and closed once in a process; the child of a fork
never closes what its parent made, as the parent speaks over those connections.
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
    """Something that a fork must not catch in the middle of its work."""

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


class Closable(Protocol):
    """What can be closed."""

    def close(self) -> Any:
        """Close it."""


T = TypeVar("T", bound=Closable)


class PerProcess(Generic[T]):
    """The one of this process.

    Args:
        make: makes one. What it raises is passed on, and the next call tries again.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: T | None = None
        self._open = True
        self._parents: list[T] = []
        watch(self)

    def get(self) -> T:
        """It, made now if it has to be. `ClosedError` once this was closed."""
        with self._lock:
            if not self._open:
                raise ClosedError(hint="Open a new saver.")
            if self._made is None:
                self._made = self._make()
            return self._made

    def close(self) -> None:
        """Close it, if it was made. Idempotent."""
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
