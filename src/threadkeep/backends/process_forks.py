"""Forks of this process (not of threads), told to everything that holds locks or connections.

Only the registry lives here. Invariant: what is watched is told before the fork, and after
it in both processes, in the opposite order.
"""

from __future__ import annotations

import os
import weakref
from functools import partial
from typing import Protocol


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
