"""A thread's row in `tk_threads`, and what a touch makes of it.

Pure: no SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from threadkeep.backends.sqlite.ids import pack_id, unpack_id
from threadkeep.engine.thread_entry import ThreadStatus

if TYPE_CHECKING:
    from threadkeep.engine.thread_entry import (
        Move,
        Touch,
    )

NOTHING, SIZE, TIME, ENTRY, NEW = range(5)
"""Changes of a thread's row: each includes those before it."""


@dataclass(slots=True)
class ThreadRow:
    """The columns that batches read and change; `number` is 0 where there is no row yet.

    `changed` tells what of it is not stored yet.
    """

    thread: str
    number: int = 0
    heap: int = 0
    generation: int = 0
    deleted_at: int | None = None
    created_at: int | None = None
    updated_at: int | None = None
    size: int = 0
    revision: int = 0
    state: str | None = None
    waits_at: bytes | str | None = None
    changed: int = NOTHING

    @property
    def has_entry(self) -> bool:
        """True if the registry knows the thread, and not as deleted."""
        return self.state is not None and self.state != ThreadStatus.DELETED

    def was_deleted(self, born: int) -> bool:
        """Return True if the thread was deleted after something of it was born."""
        return is_deleted(self.deleted_at, born)

    def tell(self, touch: Touch, now: int) -> None:
        """Apply a touch, but for its labels. See `Touch`."""
        if touch.size or touch.whole:
            self.size = touch.size + (0 if touch.whole else self.size)
            self.changed = self.changed or SIZE
        for move in touch.moves:
            if (self.state or "") in move.sources and self._is_past(move):
                self._move(move, now if touch.at is None else touch.at)
        late = self.updated_at is not None and touch.at and self.updated_at < touch.at
        if late and self.has_entry:
            self.updated_at = touch.at
            self.changed = max(self.changed, TIME)

    def _is_past(self, move: Move) -> bool:
        """Return True if nothing waits that the move does not end."""
        if self.waits_at is None:
            return True
        waits_at = unpack_id(self.waits_at)
        return waits_at < move.checkpoint or (move.same and waits_at == move.checkpoint)

    def _move(self, move: Move, at: int) -> None:
        if not self.has_entry:
            self.created_at = self.updated_at = at
        self.state = move.target
        self.waits_at = pack_id(move.checkpoint) if move.waits else None
        self.edited()

    def edited(self) -> None:
        """Note a change that a fence notices."""
        self.revision += 1
        self.changed = max(self.changed, ENTRY)


def is_deleted(deleted_at: int | None, born: int) -> bool:
    """Tell whether a thread was deleted after something of it was born."""
    return deleted_at is not None and deleted_at >= born
