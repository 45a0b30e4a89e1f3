"""Registry of the classes that a program can store and load, and lookup by name.

A lookup never calls a name in data. A class is found if it is in the built-in table, whose modules
are imported if necessary, or was registered, or if all of these hold: its module is imported or
this process has stored instances of it, it is a data class, and it is allowed or LangGraph's strict
mode is off. Only from data that is known to come from programs with the store's keys, other data
classes are found, too, and imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, overload
from weakref import WeakSet, ref

from langgraph.checkpoint.serde import _msgpack as _langgraph

from threadkeep._core.codec import data_classes, langchain_types, subclasses, tables, values
from threadkeep._core.codec.format import (
    CODES,
    HOMES,
    ClassReference,
    Encode,
    Packer,
    Rule,
    Tag,
    dotted,
    newer,
)
from threadkeep._core.codec.introspection import MAX_CLASSES, kind_of, solid_base
from threadkeep.errors import (
    InvalidArgumentError,
    NewerShapeError,
    UnknownTypeError,
    UnserializableError,
)

Table = dict[str, "ref[type]"]
SHAPE = "@"
"""Between the name of a class and its shape, if that is not 1."""


def name_of(cls: type) -> str:
    """Return the name of a class in data: "module:Qualified.Name"."""
    return f"{cls.__module__}:{cls.__qualname__}"


def imported(name: str) -> type | None:
    """Return the class of this name if its module is imported, without running anything."""
    module_name, _, qualname = name.partition(":")
    module = sys.modules.get(module_name)
    # No isinstance or getattr: lazy modules may import on any access.
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

    Among classes with the same name, the first one alive has that name in data, and others get a
    number ("app:make.<locals>.Item#2"). If a numbered class is gone, as in every other process, its
    name stands for the latest class.
    """

    def __init__(self) -> None:
        self._classes: Table = {}
        self._latest: Table = {}

    def name(self, cls: type, name: str) -> str:
        """Remember a class by its name, and return the name to store."""
        self._latest[name] = _weak(self._latest, name, cls)
        numbered, number = name, 1
        # (`setdefault` is atomic, so two threads cannot take the same name.)
        while self._classes.setdefault(numbered, _weak(self._classes, numbered, cls))() is not cls:
            number += 1
            numbered = f"{name}#{number}"
        return numbered

    def find(self, name: str) -> type | None:
        """Return the class with this stored name, else the latest class of the plain name."""
        for table, key in ((self._classes, name), (self._latest, name.partition("#")[0])):
            if (known := table.get(key)) is not None and (cls := known()) is not None:
                return cls
        return None


def _weak(table: Table, key: str, cls: type) -> ref[type]:
    def drop(dead: ref[type]) -> None:
        if table.get(key) is dead:
            del table[key]

    return ref(cls, drop)


class Finder(NamedTuple):
    """Class lookup of one codec. `allowed` holds (module, name) pairs."""

    registry: Registry
    allowed: frozenset[tuple[str, ...]] = frozenset()

    def find(self, reference: ClassReference, tag: Tag) -> type:
        """Return the class that data refers to. It must still be of the stored kind."""
        cls, kind = self.look_up(reference)
        if kind is not tag:
            raise UnknownTypeError(
                f"{reference} was stored as {tag.name.lower()} and is another kind of class now.",
                hint="Restore the class, or register another one in its place: "
                f"threadkeep.register(NewClass, name={reference!r})",
            )
        return cls

    def look_up(self, reference: ClassReference) -> tuple[type, Tag]:
        code = reference if isinstance(reference, int) else CODES.get(reference)
        name = str(reference) if code is None else HOMES.get(code)
        if name is None:
            raise newer(f"The class number {code} of the stored value is unknown to this release.")
        if code is not None:
            cls = self._built_in(name)
        elif (registered := self.registry.named.get(name)) is not None:
            return registered, kind_of(registered) or Tag.PLAIN
        else:
            if _langgraph.STRICT_MSGPACK_ENABLED and not self._is_listed(name):
                raise unknown(name, "is not registered, and LANGGRAPH_STRICT_MSGPACK is on")
            found = imported(name) or self.registry.local.find(name)
            if found is None:
                if (plain := name.partition("#")[0]) != name:
                    return self.look_up(plain)
                raise unknown(name, "this program has not imported")
            cls = found
        kind = kind_of(cls)
        if kind is None:
            raise unknown(name, "is not a data class")
        return cls, kind

    def _built_in(self, name: str) -> type:
        """Return a class of `HOMES`, whose module is imported if necessary."""
        cls = imported(name)
        if cls is None:
            with suppress(ImportError):
                importlib.import_module(name.partition(":")[0])
            cls = imported(name)
        if cls is None:
            raise UnknownTypeError(
                f"The stored value is a {name.replace(':', '.')}, which is not installed.",
                hint="Install a release of langgraph and langchain-core that has it.",
            )
        return cls

    def foreign(self, reference: str) -> Foreign:
        """Return the registered `encode=` and `decode=` of a class."""
        found = self.registry.foreign.get(reference)
        if found is not None:
            return found
        if SHAPE in reference:
            raise newer_shape(*shape_in(reference), 1)
        name = reference.replace(":", ".")
        raise UnknownTypeError(
            f"The stored value is a {name}, whose decode= is not registered.",
            hint=f"threadkeep.register({reference.partition(':')[2]}, encode=..., decode=...)",
        )

    def _is_listed(self, name: str) -> bool:
        """Check the allowlist, which has `__name__`. Data has the qualified name."""
        module, _, qualname = name.partition("#")[0].partition(":")
        if module == "builtins":  # its only data classes are exceptions
            return True
        return bool({(module, qualname), (module, qualname.rpartition(".")[2])} & self.allowed)


def shape_in(reference: str) -> tuple[str, int]:
    """Return the name of a class in data without its shape, and the shape."""
    name, _, shape = reference.partition(SHAPE)
    return name, int(shape) if shape.isdigit() else 1


def newer_shape(what: str, stored: int, known: int) -> NewerShapeError:
    """Return the error for a value that a newer release of the program stored."""
    return NewerShapeError(
        f"The stored value has shape {stored} of {what.replace(':', '.')}, and this program knows"
        f" shape {known}.",
        hint="A newer release of your program stored it. Update this one, and open the saver or"
        " store with its migrations=.",
    )


def unknown(name: str, why: str) -> UnknownTypeError | NewerShapeError:
    """Return the error that names a class and says how to allow it."""
    if SHAPE in name:
        return newer_shape(*shape_in(name), 1)
    module, _, qualname = name.partition(":")
    if "<locals>" in qualname:
        hint = (
            "It was defined inside a function. Define it at the top level of its module, and "
            f"register it: threadkeep.register(TheClass, name={name!r})"
        )
    else:
        hint = (
            f"Allow it: from {module} import {qualname.partition('.')[0]}; "
            f"threadkeep.register({qualname}). "
            f"If it was moved or renamed: threadkeep.register(NewClass, name={name!r})"
        )
    return UnknownTypeError(f"The stored value is a {module}.{qualname}, which {why}.", hint=hint)


C = TypeVar("C", bound=type)

_BUILT_IN: dict[type, Rule] = {**values.RULES, **langchain_types.RULES}
"""Rules for types that are matched exactly."""

_DATA_CLASSES: dict[Tag, tuple[Callable[[ClassReference, Any], Encode], bool]] = {
    Tag.ENUM: (data_classes.encode_enum, False),
    Tag.FLAG: (data_classes.encode_enum, False),
    Tag.NAMEDTUPLE: (data_classes.encode_namedtuple, False),
    Tag.SUBCLASS: (subclasses.encode_subclass, False),
    Tag.EXCEPTION: (subclasses.encode_exception, False),
    Tag.PYDANTIC: (data_classes.encode_model, True),
    Tag.PYDANTIC_V1: (data_classes.encode_model_v1, True),
    Tag.DATACLASS: (data_classes.encode_record, True),
    Tag.ATTRS: (data_classes.encode_record, True),
    Tag.PLAIN: (data_classes.encode_record, True),
}
"""Tag -> the encoding of a class's instances, and whether these are shareable."""


class Foreign(NamedTuple):
    """A class that the program encodes and decodes itself."""

    cls: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class Registry:
    """The classes that a program has registered, by name, and the rule of every type met."""

    def __init__(self) -> None:
        self.named: dict[str, type] = {}
        self.foreign: dict[str, Foreign] = {}
        self.local = LocalClasses()
        self.rules: dict[type, Rule | None] = {}
        self.followers = WeakSet[Registry]()  # registries that name the same classes otherwise
        self._forget()

    def register(
        self,
        cls: type,
        *,
        encode: Callable[[Any], Any] | None = None,
        decode: Callable[[Any], Any] | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(cls, type):
            raise InvalidArgumentError(
                f"{cls!r} is not a class.", hint="Register the class of the values to be stored."
            )
        if (encode is None) != (decode is None):
            raise InvalidArgumentError("encode and decode must be given together.")
        if cls in _BUILT_IN or cls.__module__ == "builtins":
            raise InvalidArgumentError(f"threadkeep has a built-in form of {cls.__qualname__}.")
        if encode is None and kind_of(cls) is None and solid_base(cls) is not object:
            raise InvalidArgumentError(
                f"{cls.__qualname__} has state besides its attributes.",
                hint=f"threadkeep.register({cls.__qualname__}, encode=..., decode=...)",
            )
        if name is not None and not all(name.partition(":")):
            raise InvalidArgumentError(
                f"Invalid name: {name!r}.", hint="Use the form 'module:Qualified.Name'."
            )
        for key in {name_of(cls), name or name_of(cls)}:
            if encode and decode:
                self.foreign[key] = Foreign(cls, encode, decode)
            else:
                self.named[key] = cls
        self._forget()

    def register_module(self, name: str) -> None:
        try:
            module = importlib.import_module(name)
        except (ImportError, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"The module {name!r} cannot be imported: {error}.",
                hint="Use the full name of a module of your program, such as 'app.models'.",
            ) from error
        for cls in _classes_of(name, vars(module)):
            if kind_of(cls) is not None:
                self.named[name_of(cls)] = cls
        self._forget()

    def reference(self, name: str) -> str:
        """Return the name of a class as data has it."""
        return name

    def rule(self, cls: type) -> Rule | None:
        """Return the rule for instances of exactly this type, or None if they cannot be stored."""
        try:
            return self.rules[cls]
        except KeyError:
            if len(self.rules) > MAX_CLASSES:
                self._forget()
            rule = self.rules[cls] = self._make_rule(cls)
            return rule

    def _forget(self) -> None:
        """Drop all rules except the built-in ones, as a registration may change them."""
        self.rules = dict(_BUILT_IN)
        for follower in self.followers:
            follower._forget()  # noqa: SLF001 - of this class

    def _make_rule(self, cls: type) -> Rule | None:
        name = name_of(cls)
        if (foreign := self.foreign.get(name)) and foreign.cls is cls:
            own, stored = foreign.encode, self.reference(name)
            return Rule(Tag.FOREIGN, lambda value, packer: packer.pack([stored, own(value)]), True)  # noqa: FBT003
        if rule := values.rule_for(cls) or tables.rule_for(cls):
            return rule
        tag = kind_of(cls) or (Tag.PLAIN if self.named.get(name) is cls else None)
        if tag is None:
            return None
        found = self.named.get(name) or imported(name)
        if found is None:
            return _data_rule(cls, tag, self.reference(self.local.name(cls, name)))
        if found is not cls:
            raise _replaced(cls)
        rule = _data_rule(cls, tag, CODES.get(name) or self.reference(name))
        return rule if name in self.named else _while_found(rule, cls)


DEFAULT_REGISTRY = Registry()
"""The registry that `threadkeep.register` fills and every saver uses."""


@overload
def register(cls: C, *, name: str | None = ...) -> C: ...
@overload
def register(
    cls: C,
    encode: Callable[[Any], Any],
    decode: Callable[[Any], Any],
    *,
    name: str | None = ...,
) -> C: ...
@overload
def register(*, name: str | None = ...) -> Callable[[C], C]: ...


def register(
    cls: C | None = None,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
    *,
    name: str | None = None,
) -> C | Callable[[C], C]:
    """Allow a class to be stored and loaded. Also usable as a decorator.

    Args:
        cls: the class. Data classes (pydantic, dataclass, attrs, enum, named tuple) need no
            more, and neither do plain Python classes fully described by their attributes.
        encode: for other classes: function from an instance to a value that can be stored.
        decode: function from that value to the instance. Give both or neither. It must be able
            to read all values stored so far.
        name: another name of the class in stored data, as "module:Qualified.Name": its name
            before it was moved or renamed.

    Raises:
        InvalidArgumentError: the class cannot be registered. The message says why.
    """

    def add(cls: C) -> C:
        DEFAULT_REGISTRY.register(cls, encode=encode, decode=decode, name=name)
        return cls

    return add if cls is None else add(cls)


def register_module(name: str) -> None:
    """Allow every data class that a module defines to be loaded.

    Args:
        name: the full name of the module, which is imported if necessary.

    Raises:
        InvalidArgumentError: the module does not exist, or cannot be imported.
    """
    DEFAULT_REGISTRY.register_module(name)


def _data_rule(cls: type, tag: Tag, reference: ClassReference) -> Rule:
    encoding, shareable = _DATA_CLASSES[tag]
    return Rule(tag, encoding(reference, cls), shareable)


def _while_found(rule: Rule, cls: type) -> Rule:
    """Return a rule that refuses instances once the class's name leads to another class.

    For example, after a module was reloaded, an old instance would come back as an instance of the
    new class.
    """
    encode, name = rule.encode, name_of(cls)
    home, inside, modules = cls.__module__, cls.__qualname__, sys.modules
    module = modules[home]
    scope = object.__getattribute__(module, "__dict__")

    def encode_if_found(value: Any, packer: Packer) -> bytes | None:
        # (The quick check first: this runs for every value of a class of the program.)
        here = scope.get(inside) is cls and modules.get(home) is module
        if not here and imported(name) is not cls:
            raise _replaced(cls)
        return encode(value, packer)

    return rule._replace(encode=encode_if_found)


def _replaced(cls: type) -> UnserializableError:
    return UnserializableError(
        f"{dotted(cls)} is another class now: this value would come back as something else.",
        hint="Create the value again from the new class, or rename the new class.",
    )


def _classes_of(module: str, scope: Mapping[str, Any], outer: str = "") -> Iterator[type]:
    for name, found in scope.items():
        if not isinstance(found, type) or found.__module__ != module:
            continue
        if not outer or found.__qualname__ == f"{outer}.{name}":  # not just a reference to it
            yield found
            yield from _classes_of(module, vars(found), found.__qualname__)
