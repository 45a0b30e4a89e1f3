"""Codecs: our own, one over a LangGraph serializer, and one for readers without the classes."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, TypeAlias

from langgraph.checkpoint.serde.base import (
    SerializerProtocol,
    UntypedSerializerProtocol,
    maybe_add_typed_methods,
)
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from threadkeep._core.codec.coders import Decoder, Encoder, PlainPacker
from threadkeep._core.codec.format import (
    CODES,
    HOMES,
    OBJECT,
    OWN,
    ClassReference,
    Codec,
    Intern,
    Resolve,
    Tag,
    describe,
    malformed,
)
from threadkeep._core.codec.registry import (
    DEFAULT_REGISTRY,
    Finder,
    Registry,
    shape_in,
    unknown,
)
from threadkeep.errors import (
    CorruptionError,
    NewerShapeError,
    ThreadkeepError,
    UnknownTypeError,
    UnserializableError,
    invalid,
)

_KNOWN = Tag.KNOWN
_KNOWN_OBJECT = bytes((OBJECT, _KNOWN))
_PLAIN = PlainPacker()
_SCALARS = frozenset({type(None), bool, int, float, str})


class NativeCodec:
    """Codec that stores values exactly, as msgpack with exact types. Immutable.

    Args:
        registry: registry of the program's classes.
        pickle_fallback: pickle values that cannot be stored otherwise, and load pickles.
            Loading a pickle runs the code that it names: use it only with trusted data.
        allowed: (module, name) of classes that may be loaded even in LangGraph's strict mode.
            Their modules must have been imported.
    """

    decoder: ClassVar[type[Decoder]] = Decoder

    def __init__(
        self,
        registry: Registry = DEFAULT_REGISTRY,
        pickle_fallback: bool = False,  # noqa: FBT001, FBT002 - the name says it at the call
        allowed: Collection[tuple[str, ...]] | None = None,
    ) -> None:
        self.registry = registry
        self.finder = Finder(registry, frozenset(allowed or ()))
        self.pickle_fallback = pickle_fallback

    def encode(self, value: Any, intern: Intern | None = None) -> bytes:
        """Scalars and messages with plain fields take a short path."""
        kind = type(value)
        rule = self.registry.rules.get(kind)
        try:
            if kind in _SCALARS and (rule is None or kind is int):
                return _PLAIN.pack(value)
            if rule is not None and rule.tag is _KNOWN:
                payload = rule.encode(value, _PLAIN)
                if payload is not None:
                    return _KNOWN_OBJECT + payload
        except TypeError:  # (`suppress` would take as long as encoding a scalar)
            pass
        return Encoder(self.registry, self.pickle_fallback, intern).encode(value)

    def decode(self, data: bytes, resolve: Resolve | None = None) -> Any:
        return self.decoder(self.finder, self.pickle_fallback, resolve).decode(data)

    def decode_many(self, items: Sequence[bytes], resolve: Resolve | None = None) -> list[Any]:
        return self.decoder(self.finder, self.pickle_fallback, resolve).decode_many(items)

    def divides(self, value: Any) -> bool:  # noqa: ARG002 - anything comes back exactly
        return True

    def with_allowlist(self, extra: Collection[tuple[str, ...]]) -> NativeCodec:
        other = copy(self)
        other.finder = self.finder._replace(allowed=self.finder.allowed.union(extra))
        return other


_MARK = bytes((OBJECT, Tag.SERDE))
_MAX_TAG = 255  # bytes, as its length is stored in one byte


class SerdeCodec:
    """Codec over a serializer of LangGraph or of the program. Stores the serializer's type tag.

    Args:
        serde: object with `dumps_typed` and `loads_typed`, or `dumps` and `loads`.
        native: decodes values that threadkeep's own codec wrote earlier. None refuses them.

    Raises:
        InvalidArgumentError: `serde` has neither pair of methods.
    """

    def __init__(
        self,
        serde: SerializerProtocol | UntypedSerializerProtocol,
        native: NativeCodec | None = None,
    ) -> None:
        if not (_has(serde, "dumps_typed", "loads_typed") or _has(serde, "dumps", "loads")):
            hint = "Use an object with dumps_typed and loads_typed, or dumps and loads."
            raise invalid("serde", serde, hint)
        self.serde = maybe_add_typed_methods(serde)
        self.native = native

    def encode(self, value: Any, intern: Intern | None = None) -> bytes:  # noqa: ARG002 - as the docstring says
        """Serializers have no references, so `intern` is ignored."""
        try:
            kind, data = self.serde.dumps_typed(value)
            return _framed(kind, data)
        except ThreadkeepError:
            raise
        except Exception as error:
            raise UnserializableError(
                f"{type(self.serde).__name__} cannot store a {type(value).__qualname__}: "
                f"{describe(error)}.",
                hint="dumps_typed must return a type tag (a str) and bytes.",
            ) from error

    def decode(self, data: bytes, resolve: Resolve | None = None) -> Any:
        if self.native is not None and data[:2] != _MARK:
            return self.native.decode(data, resolve)
        if data[:2] != _MARK or len(data) < 3 + (data[2:] or b"\0")[0]:
            raise CorruptionError(
                f"The value was not written by {type(self.serde).__name__}.",
                hint="Open the store with the same serde= as when it was written, or with none. If"
                " part of it was written before `saver.serde = ...`, assign that serializer again.",
            )
        end = 3 + data[2]
        try:
            return self.serde.loads_typed((data[3:end].decode(), data[end:]))
        except OWN:
            raise
        except Exception as error:
            raise CorruptionError(
                f"{type(self.serde).__name__} cannot read the stored value: {describe(error)}."
            ) from error

    def decode_many(self, items: Sequence[bytes], resolve: Resolve | None = None) -> list[Any]:
        return [self.decode(item, resolve) for item in items]

    def divides(self, value: Any) -> bool:
        """A serializer may change keys that are not str."""
        return type(value) is not dict or all(type(key) is str for key in value)

    def with_allowlist(self, extra: Collection[tuple[str, ...]]) -> SerdeCodec:
        """Extends the serializer's own list."""
        serde = _extended(self.serde, extra)
        if self.native is not None:
            return SerdeCodec(serde, self.native.with_allowlist(extra))
        return self if serde is self.serde else SerdeCodec(serde)


class FormerSerde(NativeCodec):
    """Our own codec, which also reads values of a serializer that the store had before."""

    def __init__(self, serde: SerializerProtocol, *, pickle_fallback: bool = False) -> None:
        super().__init__(pickle_fallback=pickle_fallback)
        self._former = SerdeCodec(serde)

    def decode(self, data: bytes, resolve: Resolve | None = None) -> Any:
        of_former = data[:2] == _MARK
        return self._former.decode(data) if of_former else super().decode(data, resolve)

    def decode_many(self, items: Sequence[bytes], resolve: Resolve | None = None) -> list[Any]:
        return [self.decode(item, resolve) for item in items]

    def with_allowlist(self, extra: Collection[tuple[str, ...]]) -> FormerSerde:
        other = copy(self)
        other.finder = super().with_allowlist(extra).finder
        other._former = self._former.with_allowlist(extra)  # noqa: SLF001 - a copy
        return other

    def renewed(self, data: bytes, resolve: Resolve | None = None) -> bytes | None:
        """Return the bytes of a value of the serializer in our own form, or None for others."""
        return self.encode(self.decode(data, resolve)) if data[:2] == _MARK else None


def with_serde(codec: Codec, serde: SerializerProtocol) -> SerdeCodec:
    """Return the codec of a saver after a serializer was assigned to it.

    It still decodes values that threadkeep's own codec wrote, and keeps that codec's allowlist.

    Raises:
        InvalidArgumentError: `serde` is not a serializer.
    """
    native = codec if isinstance(codec, NativeCodec) else getattr(codec, "native", None)
    found = SerdeCodec(serde, native)
    return found if native is None else found.with_allowlist(native.finder.allowed)


def comparable(codec: Codec, value: Any) -> bytes:
    """Return bytes that are equal for equal values.

    Bytes of the serializer may differ each time, for example if it encrypts.
    """
    if not isinstance(codec, SerdeCodec):
        return codec.encode(value)
    try:
        return (codec.native or NativeCodec()).encode(value)
    except UnserializableError:
        serde = codec.serde
        return SerdeCodec(getattr(serde, "serde", serde)).encode(value)


def _framed(kind: str, data: bytes) -> bytes:
    tag = kind.encode()
    if len(tag) > _MAX_TAG:
        raise UnserializableError(f"The serializer's type tag {kind[:40]!r}... is too long.")
    return b"".join((_MARK, bytes((len(tag),)), tag, data))


def _extended(serde: SerializerProtocol, extra: Collection[tuple[str, ...]]) -> SerializerProtocol:
    if isinstance(serde, EncryptedSerializer):
        inner = _extended(serde.serde, extra)
        return serde if inner is serde.serde else EncryptedSerializer(serde.cipher, inner)
    return serde.with_msgpack_allowlist(extra) if isinstance(serde, JsonPlusSerializer) else serde


def _has(serde: object, *methods: str) -> bool:
    return all(callable(getattr(serde, name, None)) for name in methods)


CLASS = "__class__"
IN_SHAPE = "__shape__"
_NONE: Mapping[str, Any] = {}


class Raw(UserDict[str, Any]):
    """Stored parts of an object of an unknown class, by name. `__class__` is the class name.

    `__shape__` is its shape, if that is not 1.

    No codec encodes a `Raw`, so it cannot be saved into a thread by mistake.
    """

    def __hash__(self) -> int:  # (it may be a key: nothing changes it)
        return hash(self[CLASS])


class RawDecoder(Decoder):
    """Decoder that returns a `Raw` for each object of an unknown class."""

    __slots__ = ("unpacked",)

    def unpack(self, data: bytes) -> Any:
        """Keeps the parts of an object until its class is looked up."""
        self.unpacked = super().unpack(data)
        return self.unpacked

    def extension(self, tag: int, data: bytes) -> Any:
        before = self.depth, self.levels
        try:
            return super().extension(tag, data)
        except (UnknownTypeError, NewerShapeError):
            self.depth, self.levels = before
            make = PARTS.get(tag)
            if make is None:  # a pickle needs its classes, and other values may be secrets
                return Raw({CLASS: Tag(tag).name.lower(), "bytes": len(data)})
            if type(self.unpacked) is not list:
                raise CorruptionError("A stored object is no list of its parts.") from None
            try:
                reference, *parts = self.unpacked
                name, shape = shape_in(str(HOMES.get(reference, reference)))
                head = {CLASS: name.replace(":", ".")} | ({} if shape == 1 else {IN_SHAPE: shape})
                return Raw({**head, **make(*parts)})
            except Exception as error:
                raise malformed(error) from error


class RawCodec(NativeCodec):
    """Codec of a saver that only displays threads."""

    decoder: ClassVar[type[Decoder]] = RawDecoder


class PlainCodec(RawCodec):
    """Codec that loads no class of a program, so that its code does not run."""

    def __init__(self) -> None:
        super().__init__(Registry())
        self.finder = _BuiltIn(self.registry)


class _BuiltIn(Finder):
    """Lookup that finds only classes of LangChain and LangGraph."""

    def look_up(self, reference: ClassReference) -> tuple[type, Tag]:
        if isinstance(reference, int) or reference in CODES:
            return super().look_up(reference)
        raise unknown(reference, "is shown as it is stored")


Parts: TypeAlias = Mapping[str, Any]


def _model(fields: Parts, _: Any = None, extra: Parts | None = None, *__: Any) -> Parts:
    return {**fields, **(extra or {})}


def _exception(args: Any = (), own: Parts = _NONE, fields: Parts = _NONE) -> Parts:
    return {"args": args, **own, **fields}


PARTS: Mapping[int, Callable[..., Parts]] = {
    Tag.PYDANTIC: _model,
    Tag.PYDANTIC_V1: _model,
    Tag.SUBCLASS: lambda _, value, own=_NONE: {"value": value, **own},
    Tag.EXCEPTION: _exception,
    **dict.fromkeys(
        (Tag.DATACLASS, Tag.ATTRS, Tag.PLAIN, Tag.NAMEDTUPLE), lambda fields, *_: {**fields}
    ),
    **dict.fromkeys((Tag.ENUM, Tag.FLAG, Tag.FOREIGN), lambda member: {"value": member}),
}
