"""The fast path: LangChain messages and documents, written by field numbers.

Only the reading and writing of the models in `wellknown.MODELS` lives here. Invariant:
an instance that is in any way unusual (extra values, missing fields) is refused here and
goes the general way of a model; the rest comes back exactly.

A payload is `[code, head, values...]`: the bits of `head` from the second on say which
fields differ from their default and follow in bit order; its first bit says that the
set of explicitly given fields is another one, and follows as a number of such bits.

This is the hot loop of every save and load: it takes 0.4 us beside the packing, which
is why a message's six common fields are written out instead of looped over.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage
from pydantic import BaseModel

from threadkeep.codec.format import Packer, Unpacker
from threadkeep.codec.models import fields_of
from threadkeep.codec.wellknown import MODELS, Always, KnownModel
from threadkeep.errors import CorruptionError, NewerFormatError

_new = object.__new__
# The slots that every pydantic model has, set past its own `__setattr__`.
_SLOTS = vars(BaseModel)
_set_fields = _SLOTS["__dict__"].__set__
_set_given = _SLOTS["__pydantic_fields_set__"].__set__
_set_extra = _SLOTS["__pydantic_extra__"].__set__
_set_private = _SLOTS["__pydantic_private__"].__set__
_MAX_SHAPES = 256  # per class; a program has a handful, hostile data could have thousands


class Field(NamedTuple):
    """A field, its bit, and its default: the very object, or an equal one of this type."""

    name: str
    bit: int
    kind: type | None
    blank: Any


class Shape(NamedTuple):
    """What instances with the same written fields have in common."""

    template: dict[str, Any]
    dicts: tuple[str, ...]
    lists: tuple[str, ...]
    names: tuple[str, ...]
    gone: tuple[str, ...]
    given: frozenset[str]


class Plan:
    """How one known class is written and read, worked out once from its table."""

    def __init__(self, code: int, model: KnownModel) -> None:
        self.code = code
        self.cls: type[BaseModel] = model.cls
        self.extra = model.extra
        self.table = model.fields
        declared = fields_of(self.cls)
        self.bits = {name: 1 << bit for bit, (name, _) in enumerate(model.fields)}
        self.fields = tuple(
            Field(name, self.bits[name], *_blank(default))
            for name, default in model.fields
            if name in declared
        )
        # Fields that a newer langchain-core added: usual only at their default.
        self.unnumbered = tuple(name for name in declared if name not in self.bits)
        self.shapes: dict[int, Shape] = {}
        self.given: dict[int, AbstractSet[str]] = {}  # of each shape, at hand for `encode`

    def encode(self, model: BaseModel, packer: Packer) -> bytes | None:
        """Return the payload, or None if the instance is unusual."""
        if model.__pydantic_extra__ != self.extra:
            return None
        mask = 0
        values: list[Any] = [self.code, 0]
        state = model.__dict__
        for name, bit, kind, blank in self.fields:
            value = state.get(name, self)
            if value is blank or (type(value) is kind and value == blank):
                continue
            if value is self:
                return None
            mask |= bit
            values.append(value)
        return self.finish(model, packer, mask, values)

    def finish(
        self, model: BaseModel, packer: Packer, mask: int, values: list[Any]
    ) -> bytes | None:
        """Pack the values after what is beside the fields; None if that is unusual."""
        head = mask << 1
        given = model.__pydantic_fields_set__
        shape = self.shapes.get(mask) or self.shape(mask)
        if given != shape.given:
            if not given <= self.bits.keys():
                return None
            head |= 1
            values.append(sum(map(self.bits.__getitem__, given)))
        if self.unnumbered and not self.is_usual(model):
            return None
        values[1] = head
        return packer.pack(values)

    def decode(self, head: int, values: list[Any]) -> BaseModel:
        """Rebuild an instance without validation, from its fields alone."""
        shape = self.shapes.get(head >> 1) or self.shape(head >> 1)
        given = self.shape(values.pop()).given if head & 1 else shape.given
        template, dicts, lists, names, gone, _ = shape
        if len(values) != len(names):
            raise CorruptionError(f"A stored {self.cls.__name__} lacks some of its fields.")
        state = template.copy()
        for name in dicts:
            state[name] = {}
        for name in lists:
            state[name] = []
        for name, value in zip(names, values):  # noqa: B905 - checked above, 0.1 us cheaper
            state[name] = value
        for name in gone:
            del state[name]
        model = _new(self.cls)
        _set_fields(model, state)
        _set_given(model, set(given))
        _set_extra(model, None if self.extra is None else {})
        _set_private(model, None)
        return model

    def shape(self, mask: int) -> Shape:
        """Return the shape for these written fields."""
        found = self.shapes.get(mask)
        if found is None:
            if len(self.shapes) > _MAX_SHAPES:
                self.shapes.clear()
                self.given.clear()
            found = self.shapes[mask] = self._make_shape(mask)
            self.given[mask] = found.given
        return found

    def _make_shape(self, mask: int) -> Shape:
        if mask >> len(self.table):
            raise NewerFormatError(
                f"A stored {self.cls.__name__} has fields that this release does not know.",
                hint="Upgrade threadkeep: pip install --upgrade threadkeep",
            )
        names = tuple(name for name, bit in self.bits.items() if mask & bit)
        defaults = {name: default for name, default in self.table if name not in names}
        template = {name: defaults.get(name) for name in fields_of(self.cls)}
        for name in self.unnumbered:
            template[name] = self.default(name)
        return Shape(
            template,
            tuple(name for name in template if template[name] is dict),
            tuple(name for name in template if template[name] is list),
            names,
            tuple(name for name in names if name not in template),
            frozenset(names),
        )

    def is_usual(self, model: BaseModel) -> bool:
        """Whether the fields without a number have the class's own default."""
        wanted = [self.default(name) for name in self.unnumbered]
        found = [model.__dict__.get(name, Always) for name in self.unnumbered]
        return all(type(a) is type(b) and a == b for a, b in zip(wanted, found, strict=True))

    def default(self, name: str) -> Any:
        """Return the class's own default of a field."""
        return fields_of(self.cls)[name].get_default(call_default_factory=True)


class MessagePlan(Plan):
    """A message: its own fields come in two parts, around those that all messages have.

    `content` and `id` are first, then what this class often has, then the other common
    fields, then what it rarely has: a short number tells which of them are written.
    """

    def __init__(self, code: int, model: KnownModel) -> None:
        super().__init__(code, model)
        names = [field.name for field in self.fields]
        name, kind = names.index("name"), names.index("type")
        self.own = self.fields[2:name]
        self.late = self.fields[kind + 1 :]
        self.common_bits = tuple(field.bit for field in self.fields[name : kind + 1])
        self.type = self.fields[kind].blank

    def encode(self, model: BaseModel, packer: Packer) -> bytes | None:  # noqa: C901 - see the module's docstring
        """Return the payload, or None if the instance is unusual."""
        extra = model.__pydantic_extra__
        if extra or extra is None:
            return None
        state = model.__dict__
        mask = 1
        try:
            values = [self.code, 0, state["content"]]
            if (value := state["id"]) is not None:
                mask = 3
                values.append(value)
            for name, bit, kind, blank in self.own:
                value = state[name]
                if value is not blank and (type(value) is not kind or value != blank):
                    mask |= bit
                    values.append(value)
            name_bit, metadata_bit, kwargs_bit, type_bit = self.common_bits
            if (value := state["name"]) is not None:
                mask |= name_bit
                values.append(value)
            if (value := state["response_metadata"]) or type(value) is not dict:
                mask |= metadata_bit
                values.append(value)
            if (value := state["additional_kwargs"]) or type(value) is not dict:
                mask |= kwargs_bit
                values.append(value)
            value = state["type"]
            if value is not self.type and (type(value) is not str or value != self.type):
                mask |= type_bit
                values.append(value)
            for name, bit, kind, blank in self.late:
                value = state[name]
                if value is not blank and (type(value) is not kind or value != blank):
                    mask |= bit
                    values.append(value)
        except KeyError:
            return None
        if model.__pydantic_fields_set__ != self.given.get(mask) or self.unnumbered:
            return self.finish(model, packer, mask, values)
        values[1] = mask << 1
        return packer.pack(values)


def decode(data: bytes, unpacker: Unpacker) -> BaseModel:
    """Rebuild an instance of a known class."""
    values = unpacker.unpack(data)
    plan = PLANS.get(values[0])
    if plan is None:
        raise NewerFormatError(
            f"The stored value is a model with number {values[0]}, unknown to this release.",
            hint="Upgrade threadkeep: pip install --upgrade threadkeep",
        )
    return plan.decode(values[1], values[2:])


def _blank(default: Any) -> tuple[type | None, Any]:
    """Return the type and the value of a default as the instance holds it."""
    if default is dict or default is list:
        return default, default()
    return (str, default) if isinstance(default, str) else (None, default)


def _plan(code: int, model: KnownModel) -> Plan:
    usual = {"content", "id", "response_metadata", "additional_kwargs", "name", "type"}
    is_message = issubclass(model.cls, BaseMessage) and usual <= fields_of(model.cls).keys()
    return (MessagePlan if is_message else Plan)(code, model)


PLANS = {code: _plan(code, model) for code, model in MODELS.items()}
"""Code -> how its class is written."""
