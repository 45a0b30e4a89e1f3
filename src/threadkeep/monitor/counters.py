"""Counters of a saver: numbers that it keeps anyway, read when somebody asks."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of a saver since it was opened, in this process. See `Saver.counters`.

    Attributes:
        written_bytes: bytes that saves have stored.
        saved_bytes: bytes that they did not store, as the store had them already: one whole,
            uncompressed copy of the state per checkpoint, less what was written.
        working_set_hits: loads of runs that found values of their thread in memory.
        working_set_misses: loads of runs that did not.
        cache_hits: reads of segments that `cache=` or `hot=` answered.
        cache_misses: reads of segments of which the store answered some.
        conflicts: runs that left the head of another run behind (`Saver.forked_runs`).
        retries: calls of the store that were made again after a failure that passes.
        queued: saves that were acknowledged and are not stored yet (`write_behind=`).
        queued_bytes: bytes of these.
    """

    written_bytes: int = 0
    saved_bytes: int = 0
    working_set_hits: int = 0
    working_set_misses: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    conflicts: int = 0
    retries: int = 0
    queued: int = 0
    queued_bytes: int = 0

    def __add__(self, other: Counters) -> Counters:
        """Return the sums."""
        names = [one.name for one in fields(self)]
        return Counters(*[getattr(self, name) + getattr(other, name) for name in names])
