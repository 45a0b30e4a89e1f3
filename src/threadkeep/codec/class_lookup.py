"""Lookup of classes by the names in data.

A lookup reads dictionaries: it never imports, and never calls what data names. A class is found
only

- by its code in the built-in table, or
- because it was registered, or
- because its module is imported, or this process has stored instances of it, it is a data
  class, and either it is on the list of allowed classes or LangGraph's strict mode
  (LANGGRAPH_STRICT_MSGPACK) is off.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from langgraph.checkpoint.serde import _msgpack as _langgraph

from threadkeep.codec.format import CODES, HOMES, Reference, Tag, dotted, newer
from threadkeep.codec.introspection import kind_of
from threadkeep.errors import UnknownTypeError

if TYPE_CHECKING:
    from threadkeep.codec.registry import Registry

Table = dict[str, "ref[type]"]


def name_of(cls: type) -> str:
    """Return a class's name in data: "module:Qualified.Name"."""
    return f"{cls.__module__}:{cls.__qualname__}"


def imported(name: str) -> type | None:
    """Return the class of this name if its module is imported, without running anything."""
    module_name, _, qualname = name.partition(":")
    module = sys.modules.get(module_name)
    # No isinstance, and no getattr below: a stand-in for a module may import on any access.
    if not issubclass(type(module), ModuleType) or not qualname:
        return None
    scope = object.__getattribute__(module, "__dict__")
    if (whole := scope.get(qualname)) is not None:  # also "Generic[int]"
        return whole if isinstance(whole, type) else None
    found: Any = None
    for part in qualname.split("."):
        found = scope.get(part)
        if not isinstance(found, type):
            return None
        scope = vars(found)
    return found  # type: ignore[no-any-return]


class LocalClasses:
    """Weak table of classes that no name leads to: defined inside a function, or made by a call.

    It holds classes whose instances this process has stored. A function that is called again
    makes another class of the same name. The first one that is alive has that name in data,
    others the name and a number ("app:make.<locals>.Item#2"): within this process each value
    comes back as an instance of its very own class. Where that is gone, as it is in every other
    process, the name stands for the latest class.
    """

    def __init__(self) -> None:
        self._classes: Table = {}
        self._latest: Table = {}

    def name(self, cls: type, name: str) -> str:
        """Remember a class by its name, and return the name to store."""
        self._latest[name] = _weak(self._latest, name, cls)
        numbered, number = name, 1
        # (`setdefault` is atomic: of two threads with a class each, one is first.)
        while self._classes.setdefault(numbered, _weak(self._classes, numbered, cls))() is not cls:
            number += 1
            numbered = f"{name}#{number}"
        return numbered

    def find(self, name: str) -> type | None:
        """Return the class with this stored name, or else the latest one of the plain name."""
        for table, key in ((self._classes, name), (self._latest, name.partition("#")[0])):
            if (known := table.get(key)) is not None and (cls := known()) is not None:
                return cls
        return None


def _weak(table: Table, key: str, cls: type) -> ref[type]:
    """Return a reference to the class that is removed from the table with it."""

    def drop(dead: ref[type]) -> None:
        if table.get(key) is dead:
            del table[key]

    return ref(cls, drop)


class Finder(NamedTuple):
    """Class lookup of one codec: `allowed` holds (module, name) pairs."""

    registry: Registry
    allowed: frozenset[tuple[str, ...]] = frozenset()

    def extended(self, extra: Collection[tuple[str, ...]]) -> Finder:
        """Return a finder that allows these classes too."""
        return Finder(self.registry, self.allowed.union(extra))

    def find(self, reference: Reference, tag: Tag) -> type:
        """Return the class that data refers to, which must still be of the stored kind.

        Raises:
            UnknownTypeError: it is not allowed, not imported, gone, or of another kind.
        """
        cls, kind = self.look_up(reference)
        if kind is not tag:
            raise UnknownTypeError(
                f"{reference} was stored as {tag.name.lower()} and is something else now.",
                hint="Give the class its old form back, or register another one in its place: "
                f"threadkeep.register(NewClass, name={reference!r})",
            )
        return cls

    def look_up(self, reference: Reference) -> tuple[type, Tag]:
        """Return the class and its kind."""
        code = reference if isinstance(reference, int) else CODES.get(reference)
        if code is not None:
            cls = _by_code(code)
            kind = kind_of(cls)
            if kind is None:
                raise UnknownTypeError(f"{dotted(cls)} is not a data class any more.")
            return cls, kind
        name = str(reference)
        if (registered := self.registry.named(name)) is not None:
            return registered, kind_of(registered) or Tag.PLAIN
        return self._imported(name)

    def _imported(self, name: str) -> tuple[type, Tag]:
        if _langgraph.STRICT_MSGPACK_ENABLED and not self._is_listed(name):
            raise unknown(name, "is not registered, and LANGGRAPH_STRICT_MSGPACK is on")
        cls = imported(name) or self.registry.local.find(name)
        if cls is None:
            if (plain := name.partition("#")[0]) != name:
                return self.look_up(plain)
            raise unknown(name, "is not among the classes that this program has imported")
        kind = kind_of(cls)
        if kind is None:
            raise unknown(name, "is not a data class")
        return cls, kind

    def _is_listed(self, name: str) -> bool:
        """LangGraph lists classes by `__name__`, data has the qualified name."""
        module, _, qualname = name.partition("#")[0].partition(":")
        if module == "builtins":  # the only data classes there are exceptions
            return True
        return bool({(module, qualname), (module, qualname.rpartition(".")[2])} & self.allowed)


def unknown(name: str, why: str) -> UnknownTypeError:
    """Return the error that names a class and says how to allow it."""
    module, _, qualname = name.partition(":")
    if "<locals>" in qualname:
        hint = (
            "It was defined inside a function: define it at the top level of its module, and "
            f"allow that: threadkeep.register(TheClass, name={name!r})"
        )
    else:
        hint = (
            f"Allow it: from {module} import {qualname.partition('.')[0]}; "
            f"threadkeep.register({qualname}). "
            f"If it was moved or renamed: threadkeep.register(NewClass, name={name!r})"
        )
    return UnknownTypeError(f"The stored value is a {module}.{qualname}, which {why}.", hint=hint)


def _by_code(code: int) -> type:
    home = HOMES.get(code)
    if home is None:
        raise newer(f"The class number {code} of the stored value is unknown to this release.")
    cls = imported(home)
    if cls is None:
        raise UnknownTypeError(
            f"The stored value is a {home.replace(':', '.')}, which is not imported.",
            hint=f"Add to your program: import {home.partition(':')[0]}",
        )
    return cls
