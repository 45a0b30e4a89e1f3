"""Codec of a program with migrations: reads older shapes of its classes, and writes the newest.

In data, a class of shape 2 or more is named "module:Qualified.Name@2".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from pydantic import BaseModel

from threadkeep._core.codec import data_classes, subclasses
from threadkeep._core.codec.codecs import PARTS, FormerSerde, NativeCodec, SerdeCodec
from threadkeep._core.codec.coders import Decoder
from threadkeep._core.codec.format import (
    OWN,
    ClassReference,
    Codec,
    Decode,
    Resolve,
    Tag,
    describe,
    dotted,
)
from threadkeep._core.codec.introspection import kind_of, rebuild, set_attributes
from threadkeep._core.codec.migrations import ClassPlan, Function, Migrations
from threadkeep._core.codec.registry import (
    DEFAULT_REGISTRY,
    SHAPE,
    Finder,
    Foreign,
    Registry,
    newer_shape,
    shape_in,
    unknown,
)
from threadkeep.errors import InvalidArgumentError, StateMigrationError


class ShapedRegistry(Registry):
    """The classes of another registry, named in data with their shapes."""

    def __init__(self, base: Registry, plans: Mapping[str, ClassPlan]) -> None:
        super().__init__()
        self.plans = plans
        self.by_bytes = {name.encode(): plan for name, plan in plans.items()}
        self.found_plans: dict[bytes, tuple[ClassPlan, int] | None] = {}
        self.named, self.foreign, self.local = base.named, base.foreign, base.local
        base.followers.add(self)

    def find_plan(self, reference: bytes) -> tuple[ClassPlan, int] | None:
        """Return the plan of a class in data and the stored shape, or None without migrations."""
        name, _, number = reference.partition(_AT)
        plan = self.by_bytes.get(name.partition(b"#")[0])
        found = plan and (plan, int(number) if number.isdigit() else 1)
        if len(self.found_plans) >= _MOST:
            self.found_plans.clear()
        self.found_plans[reference] = found
        return found

    def reference(self, name: str) -> str:
        plan = self.plans.get(name.partition("#")[0])
        return name if plan is None or plan.shape == 1 else f"{name}{SHAPE}{plan.shape}"


class ShapedFinder(Finder):
    """Class lookup that follows moves."""

    def look_up(self, reference: ClassReference) -> tuple[type, Tag]:
        plan = None if isinstance(reference, int) else self._plan(reference)
        if plan is None:
            return super().look_up(reference)
        target = plan.target
        if not isinstance(target, type):
            return super().look_up(shape_in(str(reference))[0] if target is None else target)
        kind = kind_of(target)
        if kind is None and self.registry.named.get(plan.name) is not target:
            raise unknown(plan.name, "is not a data class")
        return target, kind or Tag.PLAIN

    def foreign(self, reference: str) -> Foreign:
        plan = self._plan(reference)
        return super().foreign(reference if plan is None else plan.name)

    def _plan(self, reference: str) -> ClassPlan | None:
        name, shape = shape_in(reference)
        plans: Mapping[str, ClassPlan] = self.registry.plans  # type: ignore[attr-defined]  # ours
        plan = plans.get(name.partition("#")[0])
        if plan is not None and shape > plan.shape:
            raise newer_shape(name, shape, plan.shape)
        return plan


class ShapedDecoder(Decoder):
    """Decoder that applies migrations. `changed` counts the values that were stored otherwise."""

    __slots__ = ("changed",)

    decoders: ClassVar[Mapping[int, Decode]] = {}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.changed = 0


class ShapedCodec(NativeCodec):
    """`NativeCodec` with the migrations of a program."""

    decoder: ClassVar[type[Decoder]] = ShapedDecoder

    def __init__(
        self,
        registry: Registry = DEFAULT_REGISTRY,
        pickle_fallback: bool = False,  # noqa: FBT001, FBT002 - as `NativeCodec`
        allowed: Collection[tuple[str, ...]] | None = None,
    ) -> None:
        super().__init__(registry, pickle_fallback, allowed)
        self.finder = ShapedFinder(registry, self.finder.allowed)

    def renewed(self, data: bytes, resolve: Resolve | None = None) -> bytes | None:
        """Return the bytes of a value in the newest shapes, or None if it has them already.

        Elements that the value refers to become a part of it.
        """
        plans: dict[bytes, ClassPlan] = self.registry.by_bytes  # type: ignore[attr-defined]  # ours
        if not any(name in data for name in plans):
            return None
        decoder = ShapedDecoder(self.finder, self.pickle_fallback, resolve)
        value = decoder.decode(data)
        return self.encode(value) if decoder.changed else None


def codec_of(
    migrations: Migrations | None = None,
    serde: SerializerProtocol | None = None,
    *,
    pickle_fallback: bool = False,
    gets_keys: bool = False,
) -> Codec:
    """Return the codec of a saver or store with these options.

    A store that gets keys, and has an `EncryptedSerializer`, is leaving that serializer.
    """
    if gets_keys and isinstance(serde, EncryptedSerializer):
        return FormerSerde(serde, pickle_fallback=pickle_fallback)
    if serde is not None:
        return SerdeCodec(serde)
    if migrations is None:
        return NativeCodec(pickle_fallback=pickle_fallback)
    registry = ShapedRegistry(DEFAULT_REGISTRY, migrations._plans())  # noqa: SLF001 - ours
    return ShapedCodec(registry, pickle_fallback)


def check_migrations(options: Mapping[str, Any]) -> None:
    """Refuse migrations with a serializer."""
    if options.get("migrations") is not None and options.get("serde") is not None:
        raise InvalidArgumentError(
            "migrations= cannot be combined with serde=: a serializer's bytes do not name classes"
            " and their shapes.",
            hint="Leave out serde=, or migrate in the serializer. keys= encrypts values without"
            " a serializer.",
        )


# -- reading ---------------------------------------------------------------------------


_LONG = {0xD9: 1, 0xDA: 2}  # msgpack's marks of longer texts: bytes of the length
_AT = SHAPE.encode()
_MOST = 4096  # references that are remembered


def _name_in(data: bytes) -> bytes:
    """Return the class that a payload begins with, or no bytes if it is a code."""
    mark = data[1]
    if 0xA0 <= mark < 0xC0:  # noqa: PLR2004 - a short text
        return data[2 : mark - 0x9E]
    width = _LONG.get(mark, 0)
    size = int.from_bytes(data[2 : 2 + width], "big")
    return data[2 + width : 2 + width + size]


def _shaped(tag: Tag, decode: Decode) -> Decode:
    """Return a decoder of values of a data class that applies its migrations."""

    def read(data: bytes, decoder: ShapedDecoder) -> Any:
        registry: Any = decoder.finder.registry
        # (for a class without migrations, this is all that they cost)
        mark = data[1]
        full = data[2 : mark - 0x9E] if 0xA0 <= mark < 0xC0 else _name_in(data)  # noqa: PLR2004
        try:
            found = registry.found_plans[full]
        except KeyError:
            found = registry.find_plan(full)
        if found is None:
            return decode(data, decoder)
        plan, shape = found
        if shape > plan.shape:
            raise newer_shape(plan.name, shape, plan.shape)
        if shape == plan.shape and plan.target is None:
            return decode(data, decoder)
        decoder.changed += 1
        if shape == plan.shape and plan.target is not dict and _is_kept(decoder, full, tag):
            return decode(data, decoder)
        return _migrated(tag, decoder, plan, shape, decoder.parts(data))

    return read


def _is_kept(decoder: ShapedDecoder, reference: bytes, tag: Tag) -> bool:
    """Return True if a moved class is still of its kind."""
    return tag is Tag.FOREIGN or decoder.finder.look_up(reference.decode())[1] is tag


def _migrated(
    tag: Tag, decoder: ShapedDecoder, plan: ClassPlan, shape: int, parts: list[Any]
) -> Any:
    reference, *stored = parts
    fields = dict(PARTS[tag](*stored))
    for number, function in plan.steps:
        if number > shape:
            fields = _applied(plan, number, function, shape, fields)
    if plan.target is dict:
        return fields
    try:
        return _build(decoder, reference, tag, stored, fields)
    except OWN:
        raise
    except Exception as error:
        name = plan.name.replace(":", ".")
        raise StateMigrationError(
            f"The migrated value is no valid {name}: {describe(error)}.",
            hint=f"Correct the migrations of {name}. The stored value is unchanged: read it with"
            " saver.raw(config), or threadkeep state --raw.",
        ) from error


def _applied(
    plan: ClassPlan, number: int, function: Function | None, shape: int, fields: dict[str, Any]
) -> dict[str, Any]:
    name = plan.name.replace(":", ".")
    if function is None:
        raise StateMigrationError(
            f"No migration leads from shape {shape} of {name} to shape {number}.",
            hint=f'Register one: @migrations.type("{name}", version={number})',
        )
    try:
        found = function(fields)
    except OWN:
        raise
    except Exception as error:
        raise StateMigrationError(
            f"The migration of {name} to shape {number} failed: {describe(error)}.",
            hint="Correct the function. The stored value is unchanged: read it with"
            " saver.raw(config), or threadkeep state --raw.",
        ) from error
    if type(found) is not dict:
        raise StateMigrationError(
            f"The migration of {name} to shape {number} returned a {type(found).__name__}.",
            hint="Return a dict with the fields.",
        )
    return found


# -- building a value of its fields ------------------------------------------------------


def _build(
    decoder: ShapedDecoder, reference: str, tag: Tag, stored: list[Any], fields: dict[str, Any]
) -> Any:
    finder = decoder.finder
    if tag is Tag.FOREIGN:
        return finder.foreign(reference).decode(fields["value"])
    cls, kind = finder.look_up(reference)
    if kind is Tag.PYDANTIC:
        return _model(cls, stored if tag is Tag.PYDANTIC else [], fields)
    return _BUILDERS[kind](cls, fields)


def _model(cls: type[BaseModel], stored: list[Any], fields: dict[str, Any]) -> BaseModel:
    """Validate the fields, and keep private attributes and which fields were set."""
    declared = data_classes.fields_of(cls)
    if cls.model_config.get("extra") != "allow":
        fields = {name: value for name, value in fields.items() if name in declared}
    if cls.__pydantic_root_model__:
        return cls.model_validate(fields["root"])
    model = cls.model_validate(fields, by_alias=False, by_name=True)
    if stored:
        before, bits, extra, private = (stored + [None] * 4)[:4]
        known = [*before, *(extra or ())]
        were = data_classes.names_of(bits, known)
        unset = set(known) - were
        model.__pydantic_fields_set__.difference_update(unset)
        if private and model.__pydantic_private__ is not None:
            own = cls.__private_attributes__
            model.__pydantic_private__.update({n: v for n, v in private.items() if n in own})
    return model


def _record(cls: Any, fields: dict[str, Any]) -> Any:
    """Set the fields that the class declares, and its defaults for the others."""
    required: set[str] = set()
    if dataclasses.is_dataclass(cls) or hasattr(cls, "__attrs_attrs__"):
        declared = data_classes.defaults_of(cls)
        fields = {name: value for name, value in fields.items() if name in declared}
        required = {name for name, default in declared.items() if default is None}
    if missing := sorted(required - fields.keys()):
        raise TypeError(f"it lacks {', '.join(missing)}")
    value = rebuild(cls, fields)
    data_classes.add_defaults(value, fields.keys())
    return value


def _namedtuple(cls: Any, fields: dict[str, Any]) -> Any:
    return data_classes.make_namedtuple(
        cls, {name: fields[name] for name in cls._fields if name in fields}
    )


def _member(cls: Any, fields: dict[str, Any]) -> Any:
    name = fields["value"]
    if type(name) is int:
        return data_classes.combine_flags(cls, name)
    members = vars(cls)["_member_map_"]
    if name not in members:
        raise ValueError(f"{dotted(cls)} has no member {name!r}")
    return members[name]


def _subclass(cls: Any, fields: dict[str, Any]) -> Any:
    value = subclasses.make_subclass(cls, fields["value"])
    set_attributes(value, {name: one for name, one in fields.items() if name != "value"})
    return value


def _exception(cls: Any, fields: dict[str, Any]) -> Any:
    value = subclasses.make_exception(cls, tuple(fields["args"]))
    set_attributes(value, {name: one for name, one in fields.items() if name != "args"})
    return value


_BUILDERS: dict[Tag, Callable[[Any, dict[str, Any]], Any]] = {
    Tag.PYDANTIC_V1: lambda cls, fields: cls.parse_obj(fields),
    Tag.DATACLASS: _record,
    Tag.ATTRS: _record,
    Tag.PLAIN: _record,
    Tag.NAMEDTUPLE: _namedtuple,
    Tag.ENUM: _member,
    Tag.FLAG: _member,
    Tag.SUBCLASS: _subclass,
    Tag.EXCEPTION: _exception,
}

ShapedDecoder.decoders = {
    **Decoder.decoders,
    **{tag: _shaped(Tag(tag), Decoder.decoders[tag]) for tag in PARTS},
}
