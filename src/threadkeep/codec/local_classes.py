"""Classes that no name leads to: those defined inside a function, or made by a call.

Only the table of them lives here. Invariant: it is weak, and holds only classes whose
instances this process has stored, so that a name in the data finds nothing else.
"""

from __future__ import annotations

from threading import Lock
from weakref import WeakValueDictionary


class LocalClasses:
    """Weak table of such classes by the names that data has for them.

    A function that is called again makes another class of the same name. The first one
    that is alive goes by that name, others by the name and a number ("app:make.<locals>.Item#2"):
    within this process each value comes back as an instance of its very own class. Where
    that is gone, as it is in every other process, the name stands for the latest class.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._classes: WeakValueDictionary[str, type] = WeakValueDictionary()
        self._latest: WeakValueDictionary[str, type] = WeakValueDictionary()

    def name(self, cls: type, name: str) -> str:
        """Return what data has for the class of this name, and remember both."""
        with self._lock:
            numbered, number = name, 1
            while self._classes.setdefault(numbered, cls) is not cls:
                number += 1
                numbered = f"{name}#{number}"
            self._latest[name] = cls
        return numbered

    def find(self, name: str) -> type | None:
        """Return the class that data names, or else the latest one of that name."""
        with self._lock:
            found = self._classes.get(name)
            return self._latest.get(name.partition("#")[0]) if found is None else found
