"""The fast path: LangChain messages and documents, written by field numbers.

Only the reading and writing of the models in `wellknown.MODELS` lives here. Invariant:
an instance that is in any way unusual (extra or private attributes, missing fields)
is refused here and goes the general way of a model; the rest comes back exactly.

A payload is `[code, head, values...]`: the bits of `head` from the second on say which
fields differ from their default and follow in bit order; its first bit says that the
set of explicitly given fields is another one, and follows as a number of such bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import BaseModel

from threadkeep.codec.format import Packer, Unpacker
from threadkeep.codec.wellknown import MODELS, Always, KnownModel
from threadkeep.errors import CorruptionError, NewerFormatError

_new = object.__new__
_set = object.__setattr__
_MAX_SHAPES = 256  # per class; a program has a handful, hostile data could have thousands


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
        declared = self.cls.model_fields
        self.fields = tuple(
            (name, 1 << bit, *_blank(default))
            for bit, (name, default) in enumerate(model.fields)
            if name in declared
        )
        numbered = {name for name, _ in model.fields}
        # Fields that a newer langchain-core added: usual only at their default.
        self.unnumbered = tuple(name for name in declared if name not in numbered)
        self.size = len(declared)
        self.bits = {name: 1 << bit for bit, (name, _) in enumerate(model.fields)}
        self.shapes: dict[int, Shape] = {}

    def shape(self, mask: int) -> Shape:
        """Return the shape for these written fields."""
        found = self.shapes.get(mask)
        if found is None:
            if len(self.shapes) > _MAX_SHAPES:
                self.shapes.clear()
            found = self.shapes[mask] = self._make_shape(mask)
        return found

    def _make_shape(self, mask: int) -> Shape:
        if mask >> len(self.table):
            raise NewerFormatError(
                f"A stored {self.cls.__name__} has fields that this release does not know.",
                hint="Upgrade threadkeep: pip install --upgrade threadkeep",
            )
        names = tuple(name for name, bit in self.bits.items() if mask & bit)
        defaults = {name: default for name, default in self.table if name not in names}
        template = {name: defaults.get(name) for name in self.cls.model_fields}
        for name in self.unnumbered:
            template[name] = _class_default(self.cls, name)
        return Shape(
            template,
            tuple(name for name in template if template[name] is dict),
            tuple(name for name in template if template[name] is list),
            names,
            tuple(name for name in names if name not in template),
            frozenset(names),
        )


def encode(plan: Plan, model: BaseModel, packer: Packer) -> bytes | None:
    """Return the payload, or None if the instance is unusual."""
    state = model.__dict__
    extra = model.__pydantic_extra__
    if extra or extra != plan.extra or len(state) != plan.size:
        return None
    mask = 0
    values = [plan.code, 0]
    try:
        for name, bit, kind, blank in plan.fields:
            value = state[name]
            if value is blank or (type(value) is kind and value == blank):
                continue
            mask |= bit
            values.append(value)
    except KeyError:
        return None
    return _finish(plan, model, packer, mask, values)


def _finish(
    plan: Plan, model: BaseModel, packer: Packer, mask: int, values: list[Any]
) -> bytes | None:
    """Add what is beside the fields; None if that is unusual."""
    given = model.__pydantic_fields_set__
    head = mask << 1
    if given != plan.shape(mask).given:
        if not given <= plan.bits.keys():
            return None
        head |= 1
        values.append(sum(plan.bits[name] for name in given))
    values[1] = head
    if model.__pydantic_private__ is not None or (plan.unnumbered and not _usual(plan, model)):
        return None
    return packer.pack(values)


def decode(data: bytes, unpacker: Unpacker) -> BaseModel:
    """Rebuild an instance without validation, from its fields alone."""
    code, head, *values = unpacker.unpack(data)
    plan = PLANS.get(code)
    if plan is None:
        raise NewerFormatError(
            f"The stored value is of a class with number {code}, which this release does not know.",
            hint="Upgrade threadkeep: pip install --upgrade threadkeep",
        )
    shape = plan.shapes.get(head >> 1) or plan.shape(head >> 1)
    given = plan.shape(values.pop()).given if head & 1 else shape.given
    if len(values) != len(shape.names):
        raise CorruptionError(f"A stored {plan.cls.__name__} lacks some of its fields.")
    state = shape.template.copy()
    for name in shape.dicts:
        state[name] = {}
    for name in shape.lists:
        state[name] = []
    state.update(zip(shape.names, values, strict=True))
    for name in shape.gone:
        del state[name]
    model = _new(plan.cls)
    _set(model, "__dict__", state)
    _set(model, "__pydantic_fields_set__", set(given))
    _set(model, "__pydantic_extra__", None if plan.extra is None else {})
    _set(model, "__pydantic_private__", None)
    return model


def _blank(default: Any) -> tuple[type | None, Any]:
    """Return the type and the value of a default as the instance holds it."""
    if default is dict or default is list:
        return default, default()
    return (str, default) if isinstance(default, str) else (None, default)


def _usual(plan: Plan, model: BaseModel) -> bool:
    """Whether the fields without a number have the class's own default."""
    state = model.__dict__
    wanted = [_class_default(plan.cls, name) for name in plan.unnumbered]
    found = [state.get(name, Always) for name in plan.unnumbered]
    return all(type(a) is type(b) and a == b for a, b in zip(wanted, found, strict=True))


def _class_default(cls: type[BaseModel], name: str) -> Any:
    return cls.model_fields[name].get_default(call_default_factory=True)


PLANS = {code: Plan(code, model) for code, model in MODELS.items()}
