"""Pydantic models, of both generations, by their fields.

Only their payloads live here. Invariant: a model comes back without validation, by
filling a new instance's state; what is not a field (a cached property, say) is not kept.

A payload is `[class, fields, given, extra, private, unset]`, cut after the last part
that is not None. `given` says which fields were set explicitly: a number whose bits
stand for the stored fields in order and then for the extra ones, or a list of names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NoReturn

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from threadkeep.codec.failures import FinalError
from threadkeep.codec.format import Packer, Tag, Unpacker
from threadkeep.codec.state import layout

Encode = Callable[[Any, Packer], bytes]
_new = object.__new__
_set = object.__setattr__


def encode_model(reference: str | int) -> Encode:
    """A model of pydantic 2."""

    def encode(model: BaseModel, packer: Packer) -> bytes:
        declared = fields_of(type(model))
        fields = dict(model.__dict__)
        if fields.keys() != declared.keys():
            fields = {name: value for name, value in fields.items() if name in declared}
        extra = model.__pydantic_extra__
        given = _bits(model.__pydantic_fields_set__, [*fields, *(extra or ())])
        private = _private(model)
        unset = [name for name in declared if name not in fields] or None
        return packer.pack(_cut([reference, fields, given, extra, private, unset]))

    return encode


def decode_model(data: bytes, unpacker: Unpacker) -> BaseModel:
    """Rebuild a model of pydantic 2."""
    reference, fields, given, extra, private, unset = _parts(unpacker.unpack(data))
    cls: type[BaseModel] = unpacker.find(reference, Tag.PYDANTIC)
    given = _names(given, [*fields, *(extra or ())])
    declared = fields_of(cls)
    if fields.keys() != declared.keys():
        fields = _adapted(fields, declared, unset or ())
    model = _new(cls)
    _set(model, "__dict__", fields)
    _set(model, "__pydantic_fields_set__", given)
    if not cls.__pydantic_root_model__:  # there, both are attributes of the class
        _set(model, "__pydantic_extra__", extra)
        _set(model, "__pydantic_private__", private)
    return model


def fields_of(cls: type[BaseModel]) -> dict[str, Any]:
    """Return a model's fields by name, where this pydantic keeps them."""
    found = getattr(cls, "__pydantic_fields__", None)  # since 2.10; faster than the property
    return cls.model_fields if found is None else found


def _adapted(
    fields: dict[str, Any], declared: dict[str, Any], unset: Collection[str]
) -> dict[str, Any]:
    """Drop the fields that the class has lost, and give those it gained their own default."""
    state = {name: value for name, value in fields.items() if name in declared}
    for name, field in declared.items():
        if name not in fields and name not in unset:
            _add_default(state, name, field)
    return state


def _private(model: BaseModel) -> dict[str, Any] | None:
    private = model.__pydantic_private__
    if private is None:
        return None
    return {name: value for name, value in private.items() if value is not PydanticUndefined}


def _add_default(state: dict[str, Any], name: str, field: Any) -> None:
    """Give a field that was added after the value was stored its own default."""
    if field.is_required():
        return
    if getattr(field, "default_factory_takes_validated_data", False):
        state[name] = field.default_factory(state)
    else:
        state[name] = field.get_default(call_default_factory=True)


def encode_model_v1(reference: str | int) -> Encode:
    """A model of pydantic 1 (`pydantic.v1`): extra values stand among its fields."""

    def encode(model: Any, packer: Packer) -> bytes:
        cls = type(model)
        declared = cls.__fields__
        extras = cls.__config__.extra == "allow"
        fields = {k: v for k, v in model.__dict__.items() if extras or k in declared}
        given = _bits(model.__fields_set__, list(fields))
        private = _private_v1(model)
        unset = [name for name in declared if name not in fields] or None
        return packer.pack(_cut([reference, fields, given, None, private or None, unset]))

    return encode


def decode_model_v1(data: bytes, unpacker: Unpacker) -> Any:
    """Rebuild a model of pydantic 1."""
    reference, fields, given, _, private, unset = _parts(unpacker.unpack(data))
    cls: Any = unpacker.find(reference, Tag.PYDANTIC_V1)
    extras = cls.__config__.extra == "allow"
    state = {k: v for k, v in fields.items() if extras or k in cls.__fields__}
    for name in cls.__fields__.keys() - fields.keys() - set(unset or ()):
        if not cls.__fields__[name].required:
            state[name] = cls.__fields__[name].get_default()
    model = _new(cls)
    _set(model, "__dict__", state)
    _set(model, "__fields_set__", _names(given, list(fields)))
    for name, value in (private or {}).items():
        if name in cls.__private_attributes__:
            _set(model, name, value)
    return model


def _private_v1(model: Any) -> dict[str, Any]:
    """Private attributes are slots, some of which may not be set."""
    names = type(model).__private_attributes__
    found = ((name, getattr(model, name, PydanticUndefined)) for name in names)
    return {name: value for name, value in found if value is not PydanticUndefined}


# -- slots -----------------------------------------------------------------------------


def check_slots(cls: Any) -> None:
    """Refuse a model with slots of its own.

    Pydantic takes them for no part of the model: it copies, compares and pickles without.

    Raises:
        UnserializableError: it has some.
    """
    pydantics = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "pydantic"]
    known = set(cls.__private_attributes__).union(*[layout(base).slots for base in pydantics])
    own = sorted(layout(cls).slots.keys() - known)
    if own:
        _refuse_slots(cls, own)


def _refuse_slots(cls: type, own: list[str]) -> NoReturn:
    raise FinalError(
        f"{cls.__module__}.{cls.__qualname__} has __slots__ beside its fields: {', '.join(own)}.",
        hint="Make each a field, or a private attribute: _name: str = PrivateAttr().",
    )


# -- parts -----------------------------------------------------------------------------


def _cut(parts: list[Any]) -> list[Any]:
    while parts[-1] is None:
        parts.pop()
    return parts


def _parts(stored: list[Any]) -> list[Any]:
    return stored + [None] * (6 - len(stored))


def _bits(given: Iterable[str], names: Sequence[str]) -> int | list[str]:
    bits = {name: 1 << i for i, name in enumerate(names)}
    given = set(given)
    if given <= bits.keys():
        return sum(bits[name] for name in given)
    return sorted(given)


def _names(given: int | list[str], names: Sequence[str]) -> set[str]:
    if isinstance(given, list):
        return set(given)
    return {name for i, name in enumerate(names) if given >> i & 1}
