"""What this process calls the generations of threads that may vanish.

A thread of Redis can be gone without anybody having deleted it: it expired, or the server came
back empty. If its next life had the same generations, a process that remembers the first would
build on rows that are not there. So a thread's generation begins at the moment of its birth, in
microseconds since 1970, which the script that makes it takes from the server.

Who made it knew it by the generation of a thread that is not there, and goes on to count from
that one; others know it as it is stored. Only these names live here. Invariant: no name means
two lives of one thread, also where its birth had to be forgotten: what is not there has another
name from then on.
"""

from __future__ import annotations

from typing import NamedTuple

_MOST = 10_000  # births of threads that are remembered
_APART = 2**32  # names of one life: a thread is not pruned more often than that
_NEVER = -1  # no thread has this generation


class _Birth(NamedTuple):
    name: int  # of the generation that a thread has before it is there
    stored: int


class Lives:
    """The births that this process has caused.

    It needs no lock: what two threads do at the same time makes at worst a name stale.
    """

    def __init__(self) -> None:
        self._births: dict[str, _Birth] = {}
        self._absent = 0

    def note(self, thread: str, birth: int) -> None:
        """Remember the birth of a thread that was just made."""
        self._births[thread] = _Birth(self._absent, birth)
        while len(self._births) > _MOST:
            self._forget(next(iter(self._births)))

    def stored(self, thread: str, name: int) -> int:
        """What the server knows the generation by."""
        birth = self._births.get(thread)
        if birth is not None and 0 <= name - birth.name < _APART:
            return birth.stored + name - birth.name
        if name < _APART:
            return 0 if name == self._absent else _NEVER
        return name

    def name(self, thread: str, stored: int) -> int:
        """What this process calls the generation that was read; 0 is stored of no thread."""
        birth = self._births.get(thread)
        if birth is not None:
            if 0 <= stored - birth.stored < _APART:
                return stored - birth.stored + birth.name
            self._forget(thread)
        return stored or self._absent

    def _forget(self, thread: str) -> None:
        self._births.pop(thread, None)
        self._absent -= _APART
