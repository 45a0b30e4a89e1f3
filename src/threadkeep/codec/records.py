"""Data classes that are not models: enums, named tuples, dataclasses, attrs, plain classes.

Only their payloads live here. Invariant: an instance is rebuilt from its attributes by
this module, never by a constructor; what a class gained since gets its own default, what
it lost is dropped.

Payloads begin with the class: its code (see `wellknown`) or "module:qualified name".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from copy import copy
from enum import Flag
from functools import lru_cache, partial
from typing import Any

from threadkeep.codec import state as attributes
from threadkeep.codec.format import Decode, Packer, Tag, Unpacker
from threadkeep.codec.kinds import MAX_CLASSES
from threadkeep.codec.wellknown import CODES, PLAIN
from threadkeep.errors import UnknownTypeError, UnserializableError

Encode = Callable[[Any, Packer], bytes]
Reference = str | int

# -- enums -----------------------------------------------------------------------------


def encode_enum(reference: Reference) -> Encode:
    """Members by name, combinations of flags by value."""

    def encode(member: Any, packer: Packer) -> bytes:
        cls = type(member)
        if member._name_ in vars(cls)["_member_map_"]:
            return packer.pack([reference, member._name_])
        if not issubclass(cls, Flag):
            raise UnserializableError(
                f"{member!r} is not one of the members that {cls.__qualname__} defines.",
                hint="Give it a name in the class.",
            )
        return packer.pack([reference, member._value_])

    return encode


def decode_enum(data: bytes, unpacker: Unpacker) -> Any:
    """Look the member up by its name; the class is not called."""
    reference, name = unpacker.unpack(data)
    cls = unpacker.find(reference, Tag.ENUM)
    return _member(cls, name)


def decode_flag(data: bytes, unpacker: Unpacker) -> Any:
    """As an enum, or combine the flags with the standard library's own code."""
    reference, value = unpacker.unpack(data)
    cls = unpacker.find(reference, Tag.FLAG)
    if type(value) is not int:
        return _member(cls, value)
    return combine_flags(cls, value)


def combine_flags(cls: type, value: int) -> Any:
    """Return the member or the combination of members with this value."""
    known = vars(cls)["_value2member_map_"].get(value)
    # The enum protocol's own hook in its standard form, whatever the class made of it.
    return Flag._missing_.__func__(cls, value) if known is None else known  # type: ignore[attr-defined]


def _member(cls: type, name: str) -> Any:
    members = vars(cls)["_member_map_"]
    if name not in members:
        raise UnknownTypeError(
            f"{cls.__module__}.{cls.__qualname__} has no member {name!r} any more.",
            hint=f"Add {name!r} to {cls.__qualname__}, an alias of the member that replaced it.",
        )
    return members[name]


# -- named tuples ----------------------------------------------------------------------


def encode_namedtuple(reference: Reference) -> Encode:
    """Values by field name, so that fields may be added or moved."""

    def encode(value: Any, packer: Packer) -> bytes:
        fields = dict(zip(value._fields, tuple.__iter__(value), strict=True))
        own = attributes.read(value)
        return packer.pack([reference, fields, own] if own else [reference, fields])

    return encode


def decode_namedtuple(data: bytes, unpacker: Unpacker) -> Any:
    """Fill the tuple; `__new__` of the class is not called."""
    reference, fields, *own = unpacker.unpack(data)
    value = make_namedtuple(unpacker.find(reference, Tag.NAMEDTUPLE), fields)
    attributes.fill(value, own[0] if own else {})
    return value


def make_namedtuple(cls: Any, fields: dict[str, Any]) -> Any:
    """Return the tuple of these fields; others get the class's default."""
    known = cls._field_defaults | fields
    missing = [name for name in cls._fields if name not in known]
    if missing:
        raise UnknownTypeError(
            f"{cls.__module__}.{cls.__qualname__} now has fields without a default "
            f"that the stored value lacks: {', '.join(missing)}.",
            hint="Give them a default.",
        )
    return tuple.__new__(cls, [known[name] for name in cls._fields])


# -- dataclasses, attrs, plain registered classes --------------------------------------


def encode_record(reference: Reference, cls: type) -> Encode:
    """All attributes by name, and the names of declared fields that are not set."""
    declared = tuple(_defaults(cls))

    def encode(value: Any, packer: Packer) -> bytes:
        own = attributes.read(value)
        unset = [name for name in declared if name not in own]
        return packer.pack([reference, own, unset] if unset else [reference, own])

    return encode


def decode_record(tag: Tag) -> Decode:
    """Fill an instance with its attributes; nothing of the class is called."""

    def decode(data: bytes, unpacker: Unpacker) -> Any:
        reference, own, *unset = unpacker.unpack(data)
        cls = unpacker.find(reference, tag)
        value = attributes.rebuild(cls, own)
        add_defaults(value, own.keys() | set(unset[0] if unset else ()))
        return value

    return decode


def add_defaults(value: Any, names: Collection[str]) -> None:
    """Give fields that are not among these the class's own default."""
    cls: type = type(value)
    defaults = _defaults(cls).items()
    added = {name: make() for name, make in defaults if name not in names and make}
    if added:
        attributes.fill(value, added)


@lru_cache(maxsize=MAX_CLASSES)
def _defaults(cls: type) -> dict[str, Callable[[], Any] | None]:
    """Field -> what makes its default, for fields that were added after a value was stored."""
    if dataclasses.is_dataclass(cls):
        return {field.name: _dataclass_default(field) for field in dataclasses.fields(cls)}
    if (code := CODES.get(f"{cls.__module__}:{cls.__qualname__}")) in PLAIN:
        return {name: partial(copy, value) for name, value in PLAIN[code].items()}
    return {field.name: _attrs_default(field) for field in getattr(cls, "__attrs_attrs__", ())}


def _dataclass_default(field: Any) -> Callable[[], Any] | None:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory  # type: ignore[no-any-return]
    return None if field.default is dataclasses.MISSING else lambda: field.default


def _attrs_default(field: Any) -> Callable[[], Any] | None:
    default = field.default
    if type(default).__name__ == "Factory":
        return None if default.takes_self else default.factory
    return None if type(default).__name__ == "_Nothing" else lambda: default
