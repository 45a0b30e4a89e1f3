"""Classes that no name leads to: those defined inside a function, or made by a call.

Only the table of them lives here. Invariant: it is weak, and holds only classes whose
instances this process has stored, so that a name in the data finds nothing else.
"""

from __future__ import annotations

from weakref import ref

Table = dict[str, "ref[type]"]


class LocalClasses:
    """Weak table of such classes by the names that data has for them.

    A function that is called again makes another class of the same name. The first one
    that is alive goes by that name, others by the name and a number ("app:make.<locals>.Item#2"):
    within this process each value comes back as an instance of its very own class. Where
    that is gone, as it is in every other process, the name stands for the latest class.
    """

    def __init__(self) -> None:
        self._classes: Table = {}
        self._latest: Table = {}

    def name(self, cls: type, name: str) -> str:
        """Return what data has for the class of this name, and remember both."""
        self._latest[name] = _held(self._latest, name, cls)
        numbered, number = name, 1
        # (A step of the interpreter: of two threads with a class each, one is first.)
        while self._classes.setdefault(numbered, _held(self._classes, numbered, cls))() is not cls:
            number += 1
            numbered = f"{name}#{number}"
        return numbered

    def find(self, name: str) -> type | None:
        """Return the class that data names, or else the latest one of that name."""
        for table, key in ((self._classes, name), (self._latest, name.partition("#")[0])):
            if (held := table.get(key)) is not None and (cls := held()) is not None:
                return cls
        return None


def _held(table: Table, key: str, cls: type) -> ref[type]:
    """A reference to the class that leaves the table with it."""

    def drop(dead: ref[type]) -> None:
        if table.get(key) is dead:
            del table[key]

    return ref(cls, drop)
