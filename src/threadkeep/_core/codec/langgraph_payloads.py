"""LangGraph's own payloads, read only: the formats of `JsonPlusSerializer`.

Nothing that the data names is imported. Only the closed list below is called, LangGraph's
`Interrupt`, and the validation of models that this program has allowed. Values come back as
LangGraph would return them, except that a class that cannot be found raises `UnknownTypeError`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Flag
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

import ormsgpack
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from pydantic import BaseModel, SecretBytes, SecretStr

from threadkeep._core.codec import data_classes, subclasses, values
from threadkeep._core.codec.codecs import CLASS, NativeCodec, Raw, RawCodec
from threadkeep._core.codec.coders import Decoder
from threadkeep._core.codec.format import CODES, Decode, Tag, describe
from threadkeep._core.codec.introspection import (
    ADDRESSES,
    PATHS,
    rebuild,
    set_attributes,
    solid_base,
)
from threadkeep._core.codec.langchain_types import MODELS
from threadkeep._core.codec.registry import Finder, name_of, unknown
from threadkeep._core.codec.values import make_path, make_pattern, make_zone_info
from threadkeep._core.lru import Lru
from threadkeep.errors import CorruptionError, ThreadkeepError, UnknownTypeError


class Shared:
    """Cache of the latest decoded objects by their bytes, up to `most` bytes as stored.

    Neighbouring checkpoints hold mostly the same messages. No object is used twice in one payload.
    """

    def __init__(self, most: int = 32 << 20) -> None:
        self._objects: Lru[tuple[int, bytes, int], Any] = Lru(sys.maxsize, most)
        self._met: dict[tuple[int, bytes], int] = {}

    def begin(self) -> None:
        """Start another payload."""
        self._met = {}

    def object(self, tag: int, data: bytes, make: Callable[[int, bytes], Any]) -> Any:
        """Return the cached object of these bytes, or make it."""
        count = self._met[tag, data] = self._met.get((tag, data), -1) + 1
        key = tag, data, count
        value = self._objects.get(key)
        if value is None:
            value = self._objects.put(key, make(tag, data))
            self._objects.weigh(key, len(data))
        return value


def decode_langgraph(
    type_: str, data: bytes, codec: NativeCodec, shared: Shared | None = None
) -> Any:
    """Decode a payload with this type tag, as `JsonPlusSerializer.dumps_typed` wrote it.

    Objects in a `shared` cache must not be changed. With a `RawCodec`, an object that cannot be
    made is a `Raw`, and so is a pickle.
    """
    if type_ == "null":
        return None
    if type_ in ("bytes", "bytearray"):
        return bytes(data) if type_ == "bytes" else bytearray(data)
    if shared is not None:
        shared.begin()
    is_raw = isinstance(codec, RawCodec)
    decoder = (RawLangGraphDecoder if is_raw else LangGraphDecoder)(codec, shared)
    if type_ == "msgpack":
        return decoder.unpack(data)
    if type_ == "pickle":
        return Raw({CLASS: type_, "bytes": len(data)}) if is_raw else decoder.unpickle(data)
    if type_ == "json":
        return _read_json(data, _revive_or_raw if is_raw else _revive, codec.finder)
    raise UnknownTypeError(
        f"The payload has the type {type_!r}, which LangGraph's plain serializer does not write.",
        hint="Decrypt or decode it with the serializer that wrote it: serde.loads_typed.",
    )


class LangGraphDecoder(Decoder):
    """Decoder of LangGraph's msgpack: plain values, and its extension codes 0 to 7."""

    __slots__ = ("shared",)

    options: ClassVar[int | None] = ormsgpack.OPT_NON_STR_KEYS

    def __init__(self, codec: NativeCodec, shared: Shared | None) -> None:
        super().__init__(codec.finder, codec.pickle_fallback)
        self.shared = shared

    def on_extension(self, tag: int, data: bytes) -> Any:
        """Only top-level objects are shared."""
        if self.shared is None or self.depth:
            return super().on_extension(tag, data)
        return self.shared.object(tag, data, super().on_extension)


class RawLangGraphDecoder(LangGraphDecoder):
    """Decoder that returns a `Raw` for each object that it cannot make."""

    __slots__ = ("unpacked",)

    def unpack(self, data: bytes) -> Any:
        """Keeps the parts of an object until its class is looked up."""
        self.unpacked = super().unpack(data)
        return self.unpacked

    def extension(self, tag: int, data: bytes) -> Any:
        before, self.unpacked = (self.depth, self.levels), None
        try:
            return super().extension(tag, data)
        except ThreadkeepError:
            self.failure = None
            self.depth, self.levels = before
            parts = self.unpacked
            if type(parts) is not list or len(parts) < _PARTS:
                return Raw({CLASS: f"extension {tag}", "bytes": len(data)})
            return _raw(".".join(map(str, (*parts[:2], *parts[3:4]))), parts[2])


_PARTS = 3  # of an object: module, name, arguments


def _raw(name: str, stored: Any) -> Raw:
    """Return an object as it is stored, by the name of its class."""
    return Raw({CLASS: name, **(stored if type(stored) is dict else {"value": stored})})


def _reader(arguments: Callable[[Any], tuple[list[Any], Any]]) -> Decode:
    """Return a decoder of a class and its arguments, which `arguments` extracts."""

    def read(data: bytes, decoder: Decoder) -> Any:
        module, name, stored = decoder.parts(data)[:3]
        return construct(decoder.finder, module, name, *arguments(stored))

    return read


_read_fields = _reader(lambda fields: ([], fields))  # the method that made a dump may follow


def _read_method(data: bytes, decoder: Decoder) -> Any:
    """Decode a method call. LangGraph writes only this one."""
    module, name, arg, method = decoder.unpack(data)
    if (module, name, method) != ("datetime", "datetime", "fromisoformat"):
        raise UnknownTypeError(f"The payload asks to call {module}.{name}.{method}.")
    return datetime.fromisoformat(arg)


LangGraphDecoder.decoders = {
    0: _reader(lambda argument: ([argument], {})),
    1: _reader(lambda arguments: (arguments, {})),
    2: _read_fields,
    3: _read_method,
    4: _read_fields,
    5: _read_fields,
    6: lambda data, decoder: values.make_array(*decoder.parts(data)),
    7: lambda data, decoder: _DeltaSnapshot(decoder.unpack(data)),
}


def construct(finder: Finder, module: str, name: str, args: list[Any], fields: Any) -> Any:
    """Return the value that a payload describes by a class and its arguments."""
    if type(args) is not list or type(fields) is not dict:
        raise CorruptionError(f"The arguments of a stored {module}.{name} are no list and dict.")
    known = _CLOSED.get((module, name))
    if known is not None:
        return known(*args, **fields)
    v1 = sys.modules.get("pydantic.v1.types")
    if v1 is not None and module == v1.__name__ and name in ("SecretStr", "SecretBytes"):
        return vars(v1)[name](*args)
    path = f"{module}:{name}"
    cls, kind = finder.look_up(path)
    if kind is Tag.PLAIN and path not in CODES and finder.registry.named.get(path) is None:
        raise unknown(path, "is stored as a dump that only the class itself can read")
    return _FILLERS[kind](cls, args, fields)


def _of_list(cls: type, items: Any = (), *rest: Any) -> Any:
    """Return a container of a list: other values may never end, as networks."""
    if type(items) not in (list, tuple):
        raise CorruptionError(f"A stored {cls.__name__} is made of no list.")
    return cls(items, *rest)


_CLOSED: dict[tuple[str, str], Callable[..., Any]] = {
    ("builtins", "set"): partial(_of_list, set),
    ("builtins", "frozenset"): partial(_of_list, frozenset),
    ("collections", "deque"): partial(_of_list, deque),
    ("uuid", "UUID"): UUID,
    ("decimal", "Decimal"): Decimal,
    ("datetime", "date"): date,
    ("datetime", "time"): time,
    ("datetime", "timedelta"): timedelta,
    ("datetime", "timezone"): timezone,
    ("zoneinfo", "ZoneInfo"): make_zone_info,
    ("re", "compile"): make_pattern,
    ("pydantic.types", "SecretStr"): SecretStr,
    ("pydantic.types", "SecretBytes"): SecretBytes,
    **{("ipaddress", cls.__name__): cls for cls in ADDRESSES},
    # Python 3.13 moved the classes, so payloads have either name.
    **{
        (home, cls.__name__): partial(make_path, cls)
        for cls in PATHS
        for home in ("pathlib", "pathlib._local")
    },
}


def _fill_enum(cls: Any, args: list[Any], _: Any) -> Any:
    """Find a member by value, as LangGraph writes it, or combine flags."""
    (value,) = args
    for member in vars(cls)["_member_map_"].values():
        if type(member.value) is type(value) and member.value == value:
            return member
    if issubclass(cls, Flag):
        return data_classes.combine_flags(cls, value)
    if isinstance(value, list):  # msgpack turned a tuple into a list
        return _fill_enum(cls, [tuple(value)], {})
    raise unknown(name_of(cls), f"has no member with value {value!r}")


def _fill_subclass(cls: Any, args: list[Any], _: Any) -> Any:
    base = solid_base(cls)
    build = _CLOSED.get((base.__module__, base.__name__))
    plain = args[0] if build is None else subclasses.plain_value(build(*args))
    return subclasses.make_subclass(cls, plain)


def _fill_exception(cls: Any, args: list[Any], fields: Any) -> Any:
    """Rebuild an exception. LangGraph writes only dataclasses, of others the `repr`."""
    if not dataclasses.is_dataclass(cls):
        raise unknown(name_of(cls), "is not a data class")
    value = subclasses.make_exception(cls, tuple(args))
    set_attributes(value, dict(fields))
    return value


_INTERRUPT = "langgraph.types:Interrupt"


def _fill_record(cls: type, args: list[Any], fields: Any) -> Any:
    """Set the fields. LangGraph has its own forms of `Send`, `Item` and old interrupts."""
    own = dict(fields)
    if name_of(cls) == _INTERRUPT and "id" not in own:  # (before 0.6: its namespace gives the id)
        return cls(**own)
    if cls.__name__ == "Send" and args:
        own = dict(zip(("node", "arg", "timeout"), args, strict=False))
    elif cls.__name__ in ("Item", "SearchItem"):
        own["namespace"] = _of_list(tuple, own["namespace"])
        for name in ("created_at", "updated_at"):
            if isinstance(own[name], str):
                own[name] = datetime.fromisoformat(own[name])
    value = rebuild(cls, own)
    data_classes.add_defaults(value, own.keys())
    return value


def _fill_model(cls: Any, _: list[Any], fields: Any) -> Any:
    """Validate the fields, as LangGraph does: a dump has lost the types inside the model.

    This runs code of a class that was allowed for loading, never code from the data.
    """
    is_v1 = not issubclass(cls, BaseModel)
    try:
        return cls(**fields) if is_v1 else cls.model_validate(fields)
    except ValueError:  # of both releases, a ValidationError is one
        return cls.construct(**fields) if is_v1 else cls.model_construct(**fields)


_FILLERS: dict[Tag, Callable[[Any, list[Any], Any], Any]] = {
    Tag.ENUM: _fill_enum,
    Tag.FLAG: _fill_enum,
    Tag.NAMEDTUPLE: lambda cls, _, fields: data_classes.make_namedtuple(cls, fields),
    Tag.SUBCLASS: _fill_subclass,
    Tag.EXCEPTION: _fill_exception,
    Tag.DATACLASS: _fill_record,
    Tag.ATTRS: _fill_record,
    Tag.PLAIN: _fill_record,
    Tag.PYDANTIC: _fill_model,
    Tag.PYDANTIC_V1: _fill_model,
}


_BY_NAME = {model.cls.__name__: model.cls for model in MODELS.values()}


def _read_json(data: bytes, revive: Callable[[dict[str, Any], Finder], Any], finder: Finder) -> Any:
    try:
        return json.loads(data, object_hook=lambda value: revive(value, finder))
    except (ThreadkeepError, MemoryError):
        raise
    except Exception as error:
        raise CorruptionError(f"The JSON payload cannot be read: {describe(error)}.") from error


def _revive(value: dict[str, Any], finder: Finder) -> Any:
    """Return the object that an envelope describes, or any other dict as it is."""
    version, kind, path = value.get("lc"), value.get("type"), value.get("id")
    if version not in (1, 2) or kind is None or not isinstance(path, list) or not path:
        return value
    if kind != "constructor":
        raise UnknownTypeError(f"The payload refers to a LangChain {kind}: {'.'.join(path)}.")
    args, fields = value.get("args") or [], value.get("kwargs") or {}
    if version == 1:  # LangChain's own envelopes name classes by a path of its own
        cls = _BY_NAME.get(path[-1])
        if cls is None or path[0] not in ("langchain", "langchain_core"):
            raise UnknownTypeError(
                f"The payload holds a LangChain object that cannot be read: {'.'.join(path)}.",
                hint="Only messages and documents can. Load others with langchain_core.load.",
            )
        return _fill_model(cls, [], fields)
    module, name = ".".join(path[:-1]), path[-1]
    if (module, name) == ("datetime", "datetime"):
        return datetime.fromisoformat(*args)
    return construct(finder, module, name, args, fields)


def _revive_or_raw(value: dict[str, Any], finder: Finder) -> Any:
    try:
        return _revive(value, finder)
    except ThreadkeepError:
        return _raw(".".join(map(str, value["id"])), value.get("kwargs") or value.get("args"))
