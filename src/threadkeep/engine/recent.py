"""Values that a thread stored a moment ago, found again by identity.

A message comes first as its task's pending write and then in its channel, sometimes the
other way round: the second time it need not be encoded. Invariant: what is found is the
very object that was stored, its shadow holds, and everything is bounded by number and
by bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from threadkeep.engine.open_logs import Lock, OpenLogs
from threadkeep.engine.snapshots import (
    Known,
    Placed,
)

_PLACED = 512  # objects remembered by identity
_KNOWN = 64  # whole values remembered by identity
_BYTES = 1024 * 1024  # what either may take, but for the newest of them
_LEAST = 2
_KEPT = 64  # positions kept for objects that are not final yet


class Recent:
    """The values of one thread that were stored last."""

    def __init__(self, lock: Lock, logs: OpenLogs) -> None:
        self._lock = lock
        self._logs = logs
        self._placed: OrderedDict[int, Placed] = OrderedDict()
        self._known: OrderedDict[tuple[str, int], Known] = OrderedDict()
        self._parts: OrderedDict[tuple[str, int], tuple[Known, int]] = OrderedDict()
        self._kept: OrderedDict[int, tuple[Any, int, int]] = OrderedDict()
        self._placed_bytes = self._known_bytes = 0

    @property
    def weight(self) -> int:
        """About how many bytes the values stand for."""
        return self._placed_bytes + self._known_bytes

    def clear(self) -> None:
        """Forget all of them. The caller holds the lock."""
        for values in (self._placed, self._known, self._parts, self._kept):
            values.clear()
        self._placed_bytes = self._known_bytes = 0

    # -- finding -----------------------------------------------------------------------

    def placed(self, value: Any) -> Placed | None:
        """Where this very object is stored, if it was and has not changed since."""
        found = self._placed.get(id(value))
        return found if found and found.value is value and found.shadow.holds() else None

    def all_placed(self, values: list[Any]) -> list[Placed] | None:
        """Return the places of these very objects, unchanged or not; None if one is not stored."""
        found = []
        for value in values:
            one = self._placed.get(id(value))
            if one is None or one.value is not value:
                return None
            found.append(one)
        return found

    def has_any(self, values: list[Any]) -> bool:
        """Return True if one of these objects was stored, or has a position kept for it."""
        placed, kept = self._placed, self._kept
        for value in values:
            name = id(value)
            if name in placed or name in kept:
                return True
        return False

    def is_known(self, channel: str, value: Any) -> bool:
        """Return True if this very value of the channel was stored, unchanged or not."""
        found = self._known.get((channel, id(value)))
        return found is not None and found.value is value

    def known(self, channel: str, value: Any) -> Known | None:
        """How the value of the channel was stored, if it has not changed since."""
        found = self._known.get((channel, id(value)))
        return found if found and found.value is value and found.holds(value) else None

    def known_part(self, channel: str, item: Any) -> tuple[Known, int] | None:
        """A list, tuple or dict that was stored for the channel, and where `item` is in it."""
        return self._parts.get((channel, id(item)))

    # -- remembering -------------------------------------------------------------------

    def remember(self, placed: list[Placed], known: list[tuple[str, Known]]) -> None:
        """Remember where values were put, the last few of them. The caller holds the lock."""
        for item in placed:
            name = id(item.value)
            before = self._placed.pop(name, None)
            self._placed[name] = item
            self._placed_bytes += item.size - (before.size if before is not None else 0)
        for channel, value in known:
            self._forget_known(channel, self._known.pop((channel, id(value.value)), None))
            self._known[channel, id(value.value)] = value
            self._known_bytes += value.size
            for offset, item in value.parts():
                self._parts[channel, id(item)] = (value, offset)
        if len(self._placed) > _PLACED or self._placed_bytes > _BYTES:
            self._drop_placed()
        if len(self._known) > _KNOWN or self._known_bytes > _BYTES:
            self._drop_known()

    def _drop_placed(self) -> None:
        while _too_much(len(self._placed), _PLACED, self._placed_bytes):
            _, gone = self._placed.popitem(last=False)
            self._placed_bytes -= gone.size

    def _drop_known(self) -> None:
        while _too_much(len(self._known), _KNOWN, self._known_bytes):
            (channel, _), gone = self._known.popitem(last=False)
            self._forget_known(channel, gone)

    def _forget_known(self, channel: str, value: Known | None) -> None:
        if value is None:
            return
        self._known_bytes -= value.size
        for _, item in value.parts():
            if self._parts.get((channel, id(item)), (None,))[0] is value:
                del self._parts[channel, id(item)]

    # -- positions kept for objects that are not final yet -----------------------------

    def reserve_for(self, ns: str, channel: str, value: Any) -> None:
        """Keep the next position of the channel's log for an object that is not final yet."""
        place = self._logs.reserve(ns, channel, 1)
        with self._lock:
            self._kept[id(value)] = (value, *place)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)

    def kept_for(self, value: Any) -> tuple[int, int] | None:
        """Give up the log and position that were kept for the object, if any were."""
        with self._lock:
            kept = self._kept.pop(id(value), None)
        return kept[1:] if kept is not None and kept[0] is value else None


def _too_much(count: int, most: int, size: int) -> bool:
    return count > most or (count > _LEAST and size > _BYTES)
