"""LangChain messages and documents, encoded by field numbers: the fast path of the codec.

A payload is `[code, head, values...]`. The bits of `head` from the second on mark the fields that
differ from their default, and their values follow in bit order. The first bit is set if a different
set of fields was set explicitly, which then follows as one more number of such bits. Unusual
instances (extra values, missing fields) are encoded as any other model. Every save and load runs
this loop, so a message's six common fields are written out.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from langchain_core import messages as _messages
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from pydantic import BaseModel

from threadkeep._core.codec.data_classes import encode_model, fields_of
from threadkeep._core.codec.format import Packer, Rule, Tag, Unpacker, newer
from threadkeep.errors import CorruptionError


class Always:
    """Marker for a field without a default, which is always written."""


class FieldTable(NamedTuple):
    """Fields of a model in bit order, and the default of its extra values. Append-only.

    A default is None, a str, or a type: an empty dict or list, or `Always`. Defaults never change.
    """

    cls: type
    fields: tuple[tuple[str, Any], ...]
    extra: dict[str, Any] | None


def _message(
    name: str,
    kind: str,
    own: tuple[tuple[str, Any], ...] = (),
    late: tuple[tuple[str, Any], ...] = (),
) -> FieldTable:
    """Return the fields of a message, most used first: low bits make short numbers."""
    first: tuple[tuple[str, Any], ...] = (("content", Always), ("id", None))
    common = (
        ("name", None),
        ("response_metadata", dict),
        ("additional_kwargs", dict),
        ("type", kind),
    )
    return FieldTable(getattr(_messages, name), (*first, *own, *common, *late), {})


_AI = (("tool_calls", list), ("usage_metadata", None))
_AI_LATE = (("invalid_tool_calls", list),)
_AI_CHUNK_LATE = (*_AI_LATE, ("tool_call_chunks", list), ("chunk_position", None))
_TOOL = (("tool_call_id", Always),)
_TOOL_LATE = (("status", "success"), ("artifact", None))
_ROLE = (("role", Always),)

MODELS: dict[int, FieldTable] = {
    1: _message("HumanMessage", "human"),
    2: _message("AIMessage", "ai", _AI, _AI_LATE),
    3: _message("ToolMessage", "tool", _TOOL, _TOOL_LATE),
    4: _message("SystemMessage", "system"),
    5: _message("RemoveMessage", "remove"),
    6: _message("ChatMessage", "chat", _ROLE),
    7: _message("FunctionMessage", "function"),
    8: _message("HumanMessageChunk", "HumanMessageChunk"),
    9: _message("AIMessageChunk", "AIMessageChunk", _AI, _AI_CHUNK_LATE),
    10: _message("ToolMessageChunk", "ToolMessageChunk", _TOOL, _TOOL_LATE),
    11: _message("SystemMessageChunk", "SystemMessageChunk"),
    12: _message("ChatMessageChunk", "ChatMessageChunk", _ROLE),
    13: _message("FunctionMessageChunk", "FunctionMessageChunk"),
    14: FieldTable(
        Document,
        (("page_content", Always), ("metadata", dict), ("id", None), ("type", "Document")),
        None,
    ),
}
"""Class code -> the fields of a model that is written by field numbers."""

_new = object.__new__
# The slots of every pydantic model, set without its `__setattr__`.
_SLOTS = vars(BaseModel)
_set_fields = _SLOTS["__dict__"].__set__
_set_fields_set = _SLOTS["__pydantic_fields_set__"].__set__
_set_extra = _SLOTS["__pydantic_extra__"].__set__
_set_private = _SLOTS["__pydantic_private__"].__set__
_MAX_SHAPES = 256  # per class: programs have a handful, hostile data could have thousands


class Field(NamedTuple):
    """A field, its bit, and its default: this object, or an equal object of this type."""

    name: str
    bit: int
    kind: type | None
    blank: Any


class Shape(NamedTuple):
    """Common part of all instances with the same encoded fields."""

    template: dict[str, Any]
    dicts: tuple[str, ...]
    lists: tuple[str, ...]
    names: tuple[str, ...]
    gone: tuple[str, ...]
    fields_set: frozenset[str]


def portable_build(
    cls: type[BaseModel],
    shape: Shape,
    values: list[Any],
    first: int,
    fields_set: AbstractSet[str],
    has_extra: bool,  # noqa: FBT001 - as the compiled twin
) -> BaseModel:
    """Return an instance with the fields of a shape, and these values from `first` on."""
    template, dicts, lists, names, gone, _ = shape
    state = template.copy()
    for name in dicts:
        state[name] = {}
    for name in lists:
        state[name] = []
    state.update(zip(names, values[first:], strict=True))
    for name in gone:
        del state[name]
    model = _new(cls)
    _set_fields(model, state)
    _set_fields_set(model, set(fields_set))
    _set_extra(model, {} if has_extra else None)
    _set_private(model, None)
    return model


class FieldCodec:
    """Encoding of one known class, prepared once from its table."""

    def __init__(self, code: int, model: FieldTable) -> None:
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
        # Fields added by a newer langchain-core: usual only at their default.
        self.unnumbered = tuple(name for name in declared if name not in self.bits)
        self.shapes: dict[int, Shape] = {}
        self.fields_set: dict[int, AbstractSet[str]] = {}  # of each shape, for `encode`

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
        """Pack the values, or None if something besides the fields is unusual."""
        head = mask << 1
        fields_set = model.__pydantic_fields_set__
        shape = self.shapes.get(mask) or self.shape(mask)
        if fields_set != shape.fields_set:
            if not fields_set <= self.bits.keys():
                return None
            head |= 1
            values.append(sum(map(self.bits.__getitem__, fields_set)))
        if self.unnumbered and not self.is_usual(model):
            return None
        values[1] = head
        return packer.pack(values)

    def decode(self, head: int, values: list[Any], first: int = 0) -> BaseModel:
        """Rebuild an instance without validation, from its fields alone: `values[first:]`."""
        shape = self.shapes.get(head >> 1) or self.shape(head >> 1)
        fields_set = self.shape(values.pop()).fields_set if head & 1 else shape.fields_set
        if len(values) - first != len(shape.names):
            raise CorruptionError(f"A stored {self.cls.__name__} lacks some of its fields.")
        model: BaseModel = build(self.cls, shape, values, first, fields_set, self.extra is not None)
        return model

    def shape(self, mask: int) -> Shape:
        if (found := self.shapes.get(mask)) is not None:
            return found
        if mask >> len(self.table):
            raise newer(f"A stored {self.cls.__name__} has fields unknown to this release.")
        names = tuple(name for name, bit in self.bits.items() if mask & bit)
        defaults = {name: default for name, default in self.table if name not in names}
        template = {name: defaults.get(name) for name in fields_of(self.cls)}
        for name in self.unnumbered:
            template[name] = self.default(name)
        if len(self.shapes) > _MAX_SHAPES:
            self.shapes.clear()
            self.fields_set.clear()
        found = self.shapes[mask] = Shape(
            template,
            tuple(name for name in template if template[name] is dict),
            tuple(name for name in template if template[name] is list),
            names,
            tuple(name for name in names if name not in template),
            frozenset(names),
        )
        self.fields_set[mask] = found.fields_set
        return found

    def is_usual(self, model: BaseModel) -> bool:
        """Return True if the fields without a number have the class's default."""
        pairs = [(self.default(n), model.__dict__.get(n, Always)) for n in self.unnumbered]
        return all(type(a) is type(b) and a == b for a, b in pairs)

    def default(self, name: str) -> Any:
        """Return the class's own default of a field."""
        return fields_of(self.cls)[name].get_default(call_default_factory=True)


class MessageCodec(FieldCodec):
    """Encoding of a message: `content`, `id`, own fields, common fields, late own fields."""

    def __init__(self, code: int, model: FieldTable) -> None:
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
        if model.__pydantic_fields_set__ != self.fields_set.get(mask) or self.unnumbered:
            return self.finish(model, packer, mask, values)
        values[1] = mask << 1
        return packer.pack(values)


def decode(data: bytes, unpacker: Unpacker) -> BaseModel:
    values = unpacker.parts(data)
    codec = FIELD_CODECS.get(values[0])
    if codec is None:
        raise newer(f"The model number {values[0]} of the stored value is unknown to this release.")
    return codec.decode(values[1], values, 2)


def _blank(default: Any) -> tuple[type | None, Any]:
    if default is dict or default is list:
        return default, default()
    return (str, default) if isinstance(default, str) else (None, default)


def _rule(codec: FieldCodec) -> Rule:
    general = Rule(Tag.PYDANTIC, encode_model(codec.code, codec.cls), shareable=True)
    return Rule(Tag.KNOWN, codec.encode, shareable=True, otherwise=general)


FIELD_CODECS = {
    code: (MessageCodec if issubclass(model.cls, BaseMessage) else FieldCodec)(code, model)
    for code, model in MODELS.items()
}
RULES = {codec.cls: _rule(codec) for codec in FIELD_CODECS.values()}


try:
    from threadkeep._core.codec._reading import build
except ImportError:  # it could not be compiled
    build = portable_build
