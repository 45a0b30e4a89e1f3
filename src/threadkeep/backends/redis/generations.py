"""Generations of threads that may vanish, under names of this process.

A thread of Redis can be gone without anybody having deleted it: it expired, or the server came
back empty. If its next life had the same generations, a process that remembers the first would
build on missing rows. So a thread's generation begins at the moment of its birth, in microseconds
since 1970, which the script that makes it takes from the server.

Who found a thread missing, and then wrote to it, goes on to count from the generation of missing
threads; others know it as it is stored. What is written under that one is built on nothing, so
that it does not matter who makes the thread first. No name means two lives of one thread: once a
life was forgotten, missing threads have another name.
"""

from __future__ import annotations

from typing import NamedTuple

_MOST = 10_000  # threads whose lives are remembered
_APART = 2**32  # names of one life: a thread is not pruned more often than that
NEVER = -1
"""A generation that no thread has."""


class _Life(NamedTuple):
    name: int  # of the generation that a thread has before it is there
    stored: int  # what that one is called where it is stored


class Generations:
    """Generations of threads whose beginning this process has seen.

    It needs no lock: what two threads do at the same time makes at worst a name stale.
    """

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._absent = 0

    def began(self, thread: str, stored: int) -> None:
        """Remember the life of a thread that was just made."""
        if thread in self._lives:
            self._forget(thread)
        self._remember(thread, stored)

    def joined(self, thread: str, name: int | None, stored: int) -> None:
        """Remember the life of a thread that somebody else made while it was missing here."""
        if name == self._absent and thread not in self._lives:
            self._remember(thread, stored)

    def _remember(self, thread: str, stored: int) -> None:
        self._lives[thread] = _Life(self._absent, stored)
        while len(self._lives) > _MOST:
            self._forget(next(iter(self._lives)))

    def stored(self, thread: str, name: int) -> int | None:
        """Return the generation as the server knows it; None where any will do."""
        life = self._lives.get(thread)
        if life is not None and 0 <= name - life.name < _APART:
            return life.stored + name - life.name
        if name < _APART:
            return None if name == self._absent and life is None else NEVER
        return name

    def name(self, thread: str, stored: int) -> int:
        """Return this process's name of a stored generation; 0 is stored of no thread."""
        life = self._lives.get(thread)
        if life is not None:
            if 0 <= stored - life.stored < _APART:
                return stored - life.stored + life.name
            self._forget(thread)
        return stored or self._absent

    def _forget(self, thread: str) -> None:
        self._lives.pop(thread, None)
        self._absent -= _APART
