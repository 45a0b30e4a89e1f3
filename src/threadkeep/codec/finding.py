"""Which class a name in the data stands for, if this program has allowed it.

Only the search lives here. Invariant: it reads tables and dictionaries; it never
imports, and never calls what the data names. A class is found only

- by its code in the built-in table, or
- because it was registered, or
- because its module is imported, or this process has stored instances of it, it is a data
  class, and either it is on the list of allowed classes or LangGraph's strict mode
  (LANGGRAPH_STRICT_MSGPACK) is off.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, NoReturn

from langgraph.checkpoint.serde import _msgpack as _langgraph

from threadkeep.codec.format import Tag
from threadkeep.codec.kinds import kind_of
from threadkeep.codec.registry import Registry, imported
from threadkeep.codec.wellknown import CODES, HOMES
from threadkeep.errors import NewerFormatError, UnknownTypeError


class Finder(NamedTuple):
    """Finds classes for one codec: `allowed` holds (module, name) pairs."""

    registry: Registry
    allowed: frozenset[tuple[str, ...]] = frozenset()

    def extended(self, extra: Collection[tuple[str, ...]]) -> Finder:
        """Return a finder that allows these classes too."""
        return Finder(self.registry, self.allowed.union(extra))

    def find(self, reference: str | int, tag: Tag) -> type:
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

    def look_up(self, reference: str | int) -> tuple[type, Tag]:
        """Return the class and its kind."""
        code = reference if isinstance(reference, int) else CODES.get(reference)
        if code is not None:
            cls = _well_known(code)
            return cls, kind_of(cls) or _no_data_class(cls)
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
        if module == "builtins":  # where only exceptions are of a kind
            return True
        return bool({(module, qualname), (module, qualname.rpartition(".")[2])} & self.allowed)


def unknown(name: str, why: str) -> UnknownTypeError:
    """Return the error that says which class is missing and how to allow it."""
    module, _, qualname = name.partition(":")
    if "<locals>" in qualname:
        return UnknownTypeError(
            f"The stored value is a {module}.{qualname}, which {why}.",
            hint="It was defined inside a function: define it at the top level of its module, and "
            f"allow that: threadkeep.register(TheClass, name={name!r})",
        )
    outer = qualname.partition(".")[0]
    return UnknownTypeError(
        f"The stored value is a {module}.{qualname}, which {why}.",
        hint=f"Allow it: from {module} import {outer}; threadkeep.register({qualname}). "
        f"If it was moved or renamed: threadkeep.register(NewClass, name={name!r})",
    )


def _well_known(code: int) -> type:
    homes = HOMES.get(code)
    if homes is None:
        raise NewerFormatError(
            f"The stored value is of a class with number {code}, which this release does not know.",
            hint="Upgrade threadkeep: pip install --upgrade threadkeep",
        )
    for home in homes:
        if (cls := imported(home)) is not None:
            return cls
    raise UnknownTypeError(
        f"The stored value is a {homes[0].replace(':', '.')}, which is not imported.",
        hint=f"Add to your program: import {homes[0].partition(':')[0]}",
    )


def _no_data_class(cls: type) -> NoReturn:
    raise UnknownTypeError(f"{cls.__module__}.{cls.__qualname__} is not a data class any more.")
