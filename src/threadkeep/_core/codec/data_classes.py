"""Payloads of enums, named tuples, dataclasses, attrs, pydantic models and plain classes.

A payload begins with the class: its code or "module:qualified name". An instance is rebuilt from
its attributes without calling the class. Fields added to the class since then get the class's
default, and removed fields are dropped. The payload of a model is `[class, fields, fields_set,
extra, private, unset]`, cut after the last part that is not None. `fields_set` is a number (one bit
for each stored field in order, then for each extra one) or a list of names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy
from enum import Flag
from functools import lru_cache, partial
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from threadkeep._core.codec.format import (
    CODES,
    PLAIN,
    ClassReference,
    Decode,
    Encode,
    FinalError,
    Packer,
    Tag,
    Unpacker,
    dotted,
)
from threadkeep._core.codec.introspection import (
    MAX_CLASSES,
    layout,
    read_attributes,
    rebuild,
    set_attributes,
)
from threadkeep.errors import CorruptionError, UnknownTypeError, UnserializableError

# -- enums -----------------------------------------------------------------------------


def encode_enum(reference: ClassReference, cls: Any) -> Encode:
    """Encode members by name, combinations of flags by value."""
    members = vars(cls)["_member_map_"]

    def encode(member: Any, packer: Packer) -> bytes:
        if member._name_ in members:
            return packer.pack([reference, member._name_])
        if not issubclass(cls, Flag):
            raise UnserializableError(
                f"{member!r} is not a member that {cls.__qualname__} defines.",
                hint="Add it to the class as a named member.",
            )
        return packer.pack([reference, member._value_])

    return encode


def decode_enum(tag: Tag) -> Decode:
    """Look up the member. The standard library combines flags."""

    def decode(data: bytes, unpacker: Unpacker) -> Any:
        reference, member = unpacker.unpack(data)
        cls = unpacker.find(reference, tag)
        if tag is Tag.FLAG and type(member) is int:
            return combine_flags(cls, member)
        members = vars(cls)["_member_map_"]
        if member not in members:
            raise UnknownTypeError(
                f"{dotted(cls)} no longer has a member {member!r}.",
                hint=f"Add {member!r} to {cls.__qualname__} as an alias of its replacement.",
            )
        return members[member]

    return decode


def combine_flags(cls: type, value: int) -> Any:
    """Return the member or combination of members with this value."""
    known = vars(cls)["_value2member_map_"].get(value)
    # The standard hook of the enum protocol, even if the class overrides it.
    return Flag._missing_.__func__(cls, value) if known is None else known  # type: ignore[attr-defined]


def encode_namedtuple(reference: ClassReference, _: type) -> Encode:
    """Encode values by field name, so that fields may be added or moved."""

    def encode(value: Any, packer: Packer) -> bytes:
        fields = dict(zip(value._fields, tuple.__iter__(value), strict=True))
        own = read_attributes(value)
        return packer.pack([reference, fields, own] if own else [reference, fields])

    return encode


def decode_namedtuple(data: bytes, unpacker: Unpacker) -> Any:
    """Fill the tuple without calling the class's `__new__`."""
    reference, fields, *own = unpacker.parts(data)
    value = make_namedtuple(unpacker.find(reference, Tag.NAMEDTUPLE), fields)
    set_attributes(value, own[0] if own else {})
    return value


def make_namedtuple(cls: Any, fields: dict[str, Any]) -> Any:
    """Return a tuple of these fields, and the class's defaults for the others."""
    known = cls._field_defaults | fields
    missing = [name for name in cls._fields if name not in known]
    if missing:
        raise UnknownTypeError(
            f"{dotted(cls)} now has fields without a default "
            f"that the stored value lacks: {', '.join(missing)}.",
            hint="Give them defaults.",
        )
    return tuple.__new__(cls, [known[name] for name in cls._fields])


def encode_record(reference: ClassReference, cls: type) -> Encode:
    """Encode all attributes by name, and the names of declared fields that are not set."""
    declared = tuple(defaults_of(cls))

    def encode(value: Any, packer: Packer) -> bytes:
        own = read_attributes(value)
        unset = [name for name in declared if name not in own]
        return packer.pack([reference, own, unset] if unset else [reference, own])

    return encode


def decode_record(tag: Tag) -> Decode:
    """Fill an instance with its attributes without calling the class."""

    def decode(data: bytes, unpacker: Unpacker) -> Any:
        reference, own, *unset = unpacker.parts(data)
        value = rebuild(unpacker.find(reference, tag), own)
        add_defaults(value, own.keys() | set(_listed(unset[0]) if unset else ()))
        return value

    return decode


def _listed(value: Any) -> list[Any]:
    if type(value) is not list:
        raise CorruptionError("A stored object names its fields in no list.")
    return value


def add_defaults(value: Any, names: Collection[str]) -> None:
    """Set fields that are not among `names` to the class's default."""
    cls: type = type(value)
    defaults = defaults_of(cls).items()
    added = {name: make() for name, make in defaults if name not in names and make}
    if added:
        set_attributes(value, added)


@lru_cache(maxsize=MAX_CLASSES)
def defaults_of(cls: type) -> dict[str, Callable[[], Any] | None]:
    if (code := CODES.get(f"{cls.__module__}:{cls.__qualname__}")) in PLAIN:
        return {name: partial(copy, value) for name, value in PLAIN[code].items()}
    if dataclasses.is_dataclass(cls):
        return {field.name: _default(field) for field in dataclasses.fields(cls)}
    return {field.name: _default(field) for field in getattr(cls, "__attrs_attrs__", ())}


def _default(field: Any) -> Callable[[], Any] | None:
    factory, default = getattr(field, "default_factory", dataclasses.MISSING), field.default
    if factory is not dataclasses.MISSING:
        return factory  # type: ignore[no-any-return]
    if type(default).__name__ == "Factory":  # of attrs
        return None if default.takes_self else default.factory
    is_required = default is dataclasses.MISSING or type(default).__name__ == "_Nothing"
    return None if is_required else lambda: default


_new = object.__new__
_set = object.__setattr__


def encode_model(reference: ClassReference, cls: type) -> Encode:
    """Encode fields, private attributes and extra values of a model of pydantic 2."""
    _check_slots(cls)

    def encode(model: BaseModel, packer: Packer) -> bytes:
        declared = fields_of(type(model))
        fields = dict(model.__dict__)
        if fields.keys() != declared.keys():
            fields = {name: value for name, value in fields.items() if name in declared}
        extra = model.__pydantic_extra__
        fields_set = _bits(model.__pydantic_fields_set__, [*fields, *(extra or ())])
        private = model.__pydantic_private__
        if private is not None:
            private = _without_undefined(private)
        unset = [name for name in declared if name not in fields] or None
        return packer.pack(_cut([reference, fields, fields_set, extra, private, unset]))

    return encode


def decode_model(data: bytes, unpacker: Unpacker) -> BaseModel:
    reference, fields, fields_set, extra, private, unset = _parts(unpacker.parts(data))
    cls: type[BaseModel] = unpacker.find(reference, Tag.PYDANTIC)
    fields_set = names_of(fields_set, [*fields.keys(), *(extra.keys() if extra else ())])
    declared = fields_of(cls)
    if fields.keys() != declared.keys():
        stored, fields = fields, {n: value for n, value in fields.items() if n in declared}
        for name, field in declared.items():
            if name in stored or name in (unset or ()) or field.is_required():
                continue
            if getattr(field, "default_factory_takes_validated_data", False):
                fields[name] = field.default_factory(fields)
            else:
                fields[name] = field.get_default(call_default_factory=True)
    model = _new(cls)
    _set(model, "__dict__", fields)
    _set(model, "__pydantic_fields_set__", fields_set)
    if not cls.__pydantic_root_model__:  # there, both are attributes of the class
        _set(model, "__pydantic_extra__", extra)
        _set(model, "__pydantic_private__", private)
    return model


def fields_of(cls: type[BaseModel]) -> dict[str, Any]:
    found = getattr(cls, "__pydantic_fields__", None)  # since 2.10, faster than the property
    return cls.model_fields if found is None else found


def encode_model_v1(reference: ClassReference, cls: Any) -> Encode:
    """Encode a model of `pydantic.v1`, where extra values are fields too."""
    _check_slots(cls)

    def encode(model: Any, packer: Packer) -> bytes:
        declared = cls.__fields__
        fields = _fields_v1(cls, model.__dict__)
        fields_set = _bits(model.__fields_set__, list(fields))
        # Private attributes are slots. Some may not be set.
        slots = cls.__private_attributes__
        private = _without_undefined({n: getattr(model, n, PydanticUndefined) for n in slots})
        unset = [name for name in declared if name not in fields] or None
        return packer.pack(_cut([reference, fields, fields_set, None, private or None, unset]))

    return encode


def decode_model_v1(data: bytes, unpacker: Unpacker) -> Any:
    reference, fields, fields_set, _, private, unset = _parts(unpacker.parts(data))
    cls: Any = unpacker.find(reference, Tag.PYDANTIC_V1)
    state = _fields_v1(cls, fields)
    for name in cls.__fields__.keys() - fields.keys() - set(_listed(unset or [])):
        if not cls.__fields__[name].required:
            state[name] = cls.__fields__[name].get_default()
    model = _new(cls)
    _set(model, "__dict__", state)
    _set(model, "__fields_set__", names_of(fields_set, list(fields)))
    for name, value in (private or {}).items():
        if name in cls.__private_attributes__:
            _set(model, name, value)
    return model


def _fields_v1(cls: Any, state: dict[str, Any]) -> dict[str, Any]:
    extras = cls.__config__.extra == "allow"
    return {name: value for name, value in state.items() if extras or name in cls.__fields__}


def _check_slots(cls: Any) -> None:
    """Refuse a model with slots of its own: pydantic does not copy or compare them."""
    pydantics = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "pydantic"]
    known = set(cls.__private_attributes__).union(*[layout(base).slots for base in pydantics])
    own = sorted(layout(cls).slots.keys() - known)
    if own:
        raise FinalError(
            f"{dotted(cls)} has __slots__ besides its fields: {', '.join(own)}.",
            hint="Make each one a field or a private attribute: _name: str = PrivateAttr().",
        )


def _without_undefined(private: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in private.items() if value is not PydanticUndefined}


def _cut(parts: list[Any]) -> list[Any]:
    while parts[-1] is None:
        parts.pop()
    return parts


def _parts(stored: list[Any]) -> list[Any]:
    return stored + [None] * (6 - len(stored))


def _bits(fields_set: Iterable[str], names: Sequence[str]) -> int | list[str]:
    bits = {name: 1 << i for i, name in enumerate(names)}
    fields_set = set(fields_set)
    if fields_set <= bits.keys():
        return sum(bits[name] for name in fields_set)
    return sorted(fields_set)


def names_of(fields_set: int | list[str], names: Sequence[str]) -> set[str]:
    if isinstance(fields_set, list):
        return set(fields_set)
    return {name for i, name in enumerate(names) if fields_set >> i & 1}
