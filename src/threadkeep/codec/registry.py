"""Which classes a program can store, and which it has allowed to be loaded.

Only the registry and the search for a class by name live here. Invariant: looking a
class up reads dictionaries; it never imports, and never calls what data names.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, overload

from threadkeep.codec import arrays, timestamps, values
from threadkeep.codec.format import Packer, Rule, Tag
from threadkeep.codec.kinds import MAX_CLASSES, kind_of, solid_base
from threadkeep.codec.local_classes import LocalClasses
from threadkeep.codec.rules import BUILT_IN, data_rule, encode_foreign
from threadkeep.codec.wellknown import CODES
from threadkeep.errors import InvalidArgumentError, UnserializableError

C = TypeVar("C", bound=type)


class Foreign(NamedTuple):
    """A class that the program encodes and decodes itself."""

    cls: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class Registry:
    """The classes that a program has registered, by name, and the rule for every type met."""

    def __init__(self) -> None:
        self._named: dict[str, type] = {}
        self._foreign: dict[str, Foreign] = {}
        self.local = LocalClasses()
        self.rules: dict[type, Rule | None] = {}
        self._forget()

    def register(
        self,
        cls: type,
        *,
        encode: Callable[[Any], Any] | None = None,
        decode: Callable[[Any], Any] | None = None,
        name: str | None = None,
    ) -> None:
        """See `threadkeep.register`."""
        _check_registrable(cls, encode, decode)
        for known_as in {name_of(cls), _check_name(name) if name else name_of(cls)}:
            if encode and decode:
                self._foreign[known_as] = Foreign(cls, encode, decode)
            else:
                self._named[known_as] = cls
        self._forget()

    def register_module(self, name: str) -> None:
        """See `threadkeep.register_module`."""
        for cls in _classes_of(name, vars(_import(name))):
            if kind_of(cls) is not None:
                self._named[name_of(cls)] = cls
        self._forget()

    def named(self, name: str) -> type | None:
        """Return the class registered under this name."""
        return self._named.get(name)

    def foreign(self, name: str) -> Foreign | None:
        """Return the program's own encoding registered under this name."""
        return self._foreign.get(name)

    def rule(self, cls: type) -> Rule | None:
        """Return how instances of exactly this type are written, None if they cannot be."""
        try:
            return self.rules[cls]
        except KeyError:
            if len(self.rules) > MAX_CLASSES:
                self._forget()
            rule = self.rules[cls] = self._make_rule(cls)
            return rule

    def _forget(self) -> None:
        """Start over with the built-in rules: what was worked out may have changed."""
        self.rules = dict(BUILT_IN)

    def _make_rule(self, cls: type) -> Rule | None:
        name = name_of(cls)
        if (foreign := self._foreign.get(name)) and foreign.cls is cls:
            return Rule(Tag.FOREIGN, encode_foreign(name, foreign.encode), shareable=True)
        if rule := arrays.rule_for(cls) or timestamps.rule_for(cls) or values.rule_for(cls):
            return rule
        tag = kind_of(cls) or (Tag.PLAIN if self._named.get(name) is cls else None)
        if tag is None:
            return None
        found = self.named(name) or imported(name)
        if found is None:
            return data_rule(cls, tag, self.local.name(cls, name))
        if found is not cls:
            raise _not_the_one(cls)
        rule = data_rule(cls, tag, CODES.get(name, name))
        return rule if name in self._named else _while_found(rule, cls)


DEFAULT_REGISTRY = Registry()
"""What `threadkeep.register` fills and every saver uses."""


@overload
def register(cls: C, *, name: str | None = ...) -> C: ...
@overload
def register(
    cls: C,
    *,
    encode: Callable[[Any], Any],
    decode: Callable[[Any], Any],
    name: str | None = ...,
) -> C: ...
@overload
def register(*, name: str | None = ...) -> Callable[[C], C]: ...


def register(
    cls: C | None = None,
    *,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
    name: str | None = None,
) -> C | Callable[[C], C]:
    """Allow a class to be stored and loaded; also usable as a decorator.

    Args:
        cls: the class. Data classes (pydantic, dataclass, attrs, enum, named tuple) need
            no more; neither does a plain Python class that its attributes describe.
        encode: for a foreign class: instance -> a value that can be stored.
        decode: and back. Both or neither; they must stay able to read what was stored.
        name: another name that stored data has for the class, as "module:Qualified.Name":
            where it lived before it was moved or renamed.

    Raises:
        InvalidArgumentError: this cannot be registered so; the message says what can.
    """

    def add(cls: C) -> C:
        DEFAULT_REGISTRY.register(cls, encode=encode, decode=decode, name=name)
        return cls

    return add if cls is None else add(cls)


def register_module(name: str) -> None:
    """Allow every data class that a module defines to be loaded.

    Args:
        name: the module's full name; it is imported now if it is not yet.

    Raises:
        InvalidArgumentError: there is no such module, or it cannot be imported.
    """
    DEFAULT_REGISTRY.register_module(name)


def _while_found(rule: Rule, cls: type) -> Rule:
    """The rule, for as long as the class's name leads to this class and no other.

    (A module that is reloaded, or a cell that is run again, makes another of the name: an
    old instance would come back as one of those.)
    """
    encode, name = rule.encode, name_of(cls)
    home, inside, modules = cls.__module__, cls.__qualname__, sys.modules
    module = modules[home]
    scope = object.__getattribute__(module, "__dict__")

    def encode_if_found(value: Any, packer: Packer) -> bytes | None:
        # (The short way first: this is done for every value of a class of the program's.)
        here = scope.get(inside) is cls and modules.get(home) is module
        if not here and imported(name) is not cls:
            raise _not_the_one(cls)
        return encode(value, packer)

    return rule._replace(encode=encode_if_found)


# -- names -----------------------------------------------------------------------------


def name_of(cls: type) -> str:
    """Return the name that data has for a class: "module:Qualified.Name"."""
    return f"{cls.__module__}:{cls.__qualname__}"


def imported(name: str) -> type | None:
    """Return the class of this name if its module is imported, without running anything."""
    module_name, _, qualname = name.partition(":")
    module = sys.modules.get(module_name)
    # Not isinstance, nor getattr below: what stands in for a module may import when it is
    # asked for an attribute, its class included.
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


def _classes_of(module: str, scope: Mapping[str, Any], outer: str = "") -> Iterator[type]:
    """Yield the classes that a module defines, those inside classes too."""
    for name, found in scope.items():
        if not isinstance(found, type) or found.__module__ != module:
            continue
        if not outer or found.__qualname__ == f"{outer}.{name}":  # not a mere reference
            yield found
            yield from _classes_of(module, vars(found), found.__qualname__)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"The module {name!r} cannot be imported: {error}.",
            hint="Give the full name of a module of your program, such as 'app.models'.",
        ) from error


# -- refusals --------------------------------------------------------------------------


def _not_the_one(cls: type) -> UnserializableError:
    return UnserializableError(
        f"{cls.__module__}.{cls.__qualname__} is another class by now than this value's: "
        "it would come back as something else.",
        hint="Make the value anew from the new class, or give that another name.",
    )


def _check_name(name: str) -> str:
    module, colon, qualname = name.partition(":")
    if not (module and colon and qualname):
        raise InvalidArgumentError(f"{name!r} is not of the form 'module:Qualified.Name'.")
    return name


def _check_registrable(cls: Any, encode: object, decode: object) -> None:
    if not isinstance(cls, type):
        raise InvalidArgumentError(
            f"{cls!r} is not a class.", hint="Register the class of the values to be stored."
        )
    if (encode is None) != (decode is None):
        raise InvalidArgumentError("encode and decode must be given together.")
    if cls in BUILT_IN or cls.__module__ == "builtins":
        raise InvalidArgumentError(f"threadkeep has its own form for {cls.__qualname__}.")
    if encode is None and kind_of(cls) is None and solid_base(cls) is not object:
        raise InvalidArgumentError(
            f"{cls.__qualname__} is not described by its attributes alone.",
            hint=f"threadkeep.register({cls.__qualname__}, encode=..., decode=...)",
        )
