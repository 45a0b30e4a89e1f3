"""Table of loads, by the identity of the checkpoint ids that they returned.

Each load returns an id that is a `str` object of its own. LangGraph carries that very object
into the first `put` and into every `put_writes` on the checkpoint, for graphs, subgraphs and
state updates alike; so these calls find the load they come from. To everybody else the id is
text like any other. An id that is not in the table, in a later `put` say, means that the run
that put the parent goes on.

Invariants: an entry holds its id, so no other object can have the same identity while it is
here; and nothing else of ours does, so the number of references tells whether the program
still holds it. Entries that nobody holds are removed as the table grows. Only operations that
are atomic in CPython touch the table: it needs no lock, and a fork may copy it at any time.
"""

from __future__ import annotations

from sys import getrefcount

_LEAST = 128  # entries before the first sweep


class LoadEntry:
    """One load, as the id that it returned remembers it.

    `run` is the load's token (never 0), `seen` the `seq` of the newest write it returned,
    `flags` (see `model`) tell how what comes of it is to be fenced.
    """

    __slots__ = ("flags", "id", "run", "seen")

    def __init__(self, id: str, run: int, seen: int, flags: int) -> None:
        self.id, self.run, self.seen, self.flags = id, run, seen, flags

    @property
    def ended(self) -> bool:
        """Whether the program holds the id no more. Then it never will again."""
        return _references(self) <= _UNHELD


def _references(entry: LoadEntry) -> int:
    return getrefcount(entry.id)


def copied(text: str) -> str:
    """An equal text that is an object of its own, if it has two characters or more."""
    return text[:1] + text[1:]


_UNHELD = _references(LoadEntry(copied("id"), 1, 0, 0))
"""References to an id that only its entry holds: each version of Python counts in its own way."""


class Loads:
    """The loads whose ids the program holds, and some whose ids it holds no more.

    These are at most as many again, or 128.
    """

    def __init__(self) -> None:
        self._entries: dict[int, LoadEntry] = {}
        self._room = _LEAST

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, text: str, run: int, seen: int, flags: int) -> str:
        """Remember a load; the id to return.

        An id of one character is not remembered: Python has one object for all of these.
        """
        if len(text) < 2:  # noqa: PLR2004 - see above
            return text
        found = copied(text)
        self._entries[id(found)] = LoadEntry(found, run, seen, flags)
        if len(self._entries) > self._room:
            self.sweep()
        return found

    def of(self, text: str | None) -> LoadEntry | None:
        """The load that returned this very object; None if none did."""
        entry = self._entries.get(id(text))
        return entry if entry is not None and entry.id is text else None

    def sweep(self) -> None:
        """Remove the entries that nobody holds. What it costs is shared by the next loads."""
        for key, entry in self._entries.copy().items():
            if entry.ended:
                self._entries.pop(key, None)
        self._room = max(_LEAST, 2 * len(self._entries))


LOADS = Loads()
"""The one table of the process: ids may pass from one saver to another."""
