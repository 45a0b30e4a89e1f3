"""Changes that wait to be committed together, and what became of each.

Only the line in which they wait lives here; who commits, and when, is decided by those who
use it. Invariants: a change stays in the line until it is settled or its caller has gone, so
that none is lost where a caller is interrupted; it is only gone over while nobody adds to it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from itertools import islice

from threadkeep.engine.model import Change
from threadkeep.errors import ThreadkeepError


class Ticket:
    """A change that waits, and what became of it."""

    __slots__ = ("change", "done", "error", "withdrawn")

    def __init__(self, change: Change) -> None:
        self.change = change
        self.done = False
        self.withdrawn = False  # its caller was interrupted while it waited
        self.error: ThreadkeepError | None = None

    def settle(self, error: ThreadkeepError | None) -> None:
        """Note what became of it."""
        self.error = error
        self.done = True

    @property
    def waits(self) -> bool:
        """Whether it is still to be committed."""
        return not self.done and not self.withdrawn


class Line:
    """Tickets in the order in which they came."""

    def __init__(self) -> None:
        self.tickets: deque[Ticket] = deque()
        self._lock = threading.Lock()  # held for moments only

    def add(self, tickets: Sequence[Ticket]) -> None:
        """Let them wait behind the others."""
        with self._lock:
            self.tickets.extend(tickets)

    def first(self, most: int) -> list[Ticket]:
        """Those in front that are still to be committed."""
        with self._lock:
            found = list(islice(self.tickets, most))
        return [ticket for ticket in found if ticket.waits]

    def sweep(self) -> None:
        """Take those in front that are not waiting any more away."""
        with self._lock:
            while self.tickets and not self.tickets[0].waits:
                self.tickets.popleft()

    def somebody_waits(self) -> bool:
        """Whether anything is to be committed."""
        with self._lock:
            return any(ticket.waits for ticket in self.tickets)

    def __len__(self) -> int:
        return len(self.tickets)
