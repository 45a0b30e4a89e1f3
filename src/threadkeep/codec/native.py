"""threadkeep's own codec: msgpack with exact types.

Only the codec itself and its two workers, one per call, live here. Invariant: a value
comes back exactly or a typed error says why not, both when it is written and when it
is read; reading calls nothing that the data names.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

import ormsgpack
from langgraph.checkpoint.serde import _msgpack as _langgraph

from threadkeep.codec import arrays, known, models, records, values
from threadkeep.codec.format import MAX_DEPTH, OBJECT, Decode, Rule, Tag, Unpacker
from threadkeep.codec.kinds import kind_of
from threadkeep.codec.protocol import Intern, Resolve
from threadkeep.codec.registry import DEFAULT_REGISTRY, Registry, imported
from threadkeep.codec.wellknown import HOMES, PLAIN
from threadkeep.errors import (
    CorruptionError,
    NewerFormatError,
    UnknownTypeError,
    UnserializableError,
)

_OPTIONS = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_NATIVE = frozenset({type(None), bool, int, float, str, bytes, list, dict})
_packb = ormsgpack.packb
_unpackb = ormsgpack.unpackb
_Ext = ormsgpack.Ext
_OBJECT = [bytes((OBJECT, tag)) for tag in range(128)]


class NativeCodec:
    """Stores values exactly.

    Args:
        registry: the classes that the program has registered.
        pickle_fallback: pickle what cannot be stored otherwise, and load pickled data.
            Loading a pickle runs whatever code it names: only for data that is trusted.
        allowed: (module, name) of classes that may be loaded even where LangGraph's strict
            mode is on; their modules must have been imported.
    """

    def __init__(
        self,
        registry: Registry = DEFAULT_REGISTRY,
        pickle_fallback: bool = False,  # noqa: FBT001, FBT002 - the name says it where it is used
        allowed: Collection[tuple[str, ...]] | None = None,
    ) -> None:
        self.registry = registry
        self.pickle_fallback = pickle_fallback
        self.allowed = frozenset(allowed or ())

    def encode(self, value: Any, intern: Intern | None = None) -> bytes:
        """See `Codec.encode`."""
        return Encoder(self, intern).whole(value)

    def decode(self, data: bytes, resolve: Resolve | None = None) -> Any:
        """See `Codec.decode`."""
        return Decoder(self, resolve).whole(data)

    def decode_many(self, items: Sequence[bytes], resolve: Resolve | None = None) -> list[Any]:
        """See `Codec.decode_many`."""
        return list(map(Decoder(self, resolve).whole, items))

    def with_allowlist(self, extra: Collection[tuple[str, ...]]) -> NativeCodec:
        """See `Codec.with_allowlist`."""
        return NativeCodec(self.registry, self.pickle_fallback, self.allowed | frozenset(extra))


class Encoder:
    """One call of `encode`: packs values, and every object inside them by its rule."""

    __slots__ = ("codec", "depth", "failure", "intern")

    def __init__(self, codec: NativeCodec, intern: Intern | None) -> None:
        self.codec = codec
        self.intern = intern
        self.depth = 0
        self.failure: BaseException | None = None

    def whole(self, value: Any) -> bytes:
        """Return the bytes of the value that `encode` was given."""
        if type(value) in _NATIVE:
            return self.pack(value)
        tag, payload = self.extension(value, self.rule(value))
        return _OBJECT[tag] + payload

    def pack(self, value: Any) -> bytes:
        """Return msgpack, with an extension for whatever msgpack has no exact form for."""
        try:
            data = _packb(value, self.inside, _OPTIONS)
        except TypeError:
            return self.pack_spelled_out(value)
        # ormsgpack writes a bytearray as bytes without asking: where there may be bytes, look.
        if (0xC4 in data or 0xC5 in data or 0xC6 in data) and _has_buffer(value):
            return self.pack_spelled_out(value)
        return data

    def pack_spelled_out(self, value: Any) -> bytes:
        """Pack what ormsgpack refuses: keys that are not str, text that is not Unicode."""
        self.raise_failure()
        try:
            return _packb(_spelled_out(value, 0), self.inside, _OPTIONS)
        except TypeError as error:
            refusal = error
        self.raise_failure()
        raise UnserializableError(f"The value cannot be stored: {refusal}.") from refusal

    def inside(self, value: Any) -> ormsgpack.Ext:
        """Called by ormsgpack for what it does not know."""
        try:
            rule = self.rule(value)
            if rule.shareable and self.intern is not None:
                address = self.intern(value)
                if address is not None:
                    return _Ext(Tag.REFERENCE, _packb(address))
            return _Ext(*self.extension(value, rule))
        except BaseException as error:
            self.failure = error  # ormsgpack replaces it by one of its own
            raise

    def extension(self, value: Any, rule: Rule) -> tuple[Tag, bytes]:
        """Return the tag and the payload of an object."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            _refuse_depth()
        payload = rule.encode(value, self)
        self.depth -= 1
        if payload is None:
            return self.extension(value, rule.otherwise or _refuse(type(value)))
        return rule.tag, payload

    def rule(self, value: Any) -> Rule:
        """Return how this object is written."""
        rule = self.codec.registry.rule(type(value))
        if rule is None:
            return _PICKLE if self.codec.pickle_fallback else _refuse(type(value))
        return rule

    def raise_failure(self) -> None:
        """Raise what made ormsgpack give up, if it was not ormsgpack itself."""
        if self.failure is not None:
            raise self.failure


def _has_buffer(value: Any) -> bool:
    """Whether a bytearray or memoryview is among the values that ormsgpack writes itself."""
    kind = type(value)
    if kind is list:
        return any(map(_has_buffer, value))
    if kind is dict:
        return any(map(_has_buffer, value.values()))
    return kind is bytearray or kind is memoryview


def _spelled_out(value: Any, depth: int) -> Any:
    """Return the value with stand-ins for what ormsgpack would refuse or change."""
    if depth > 254:  # noqa: PLR2004 - ormsgpack's own limit
        _refuse_depth()
    kind = type(value)
    if kind is list:
        return [_spelled_out(item, depth + 1) for item in value]
    if kind is dict:
        if all(type(key) is str and _is_unicode(key) for key in value):
            return {key: _spelled_out(item, depth + 1) for key, item in value.items()}
        return values.Pairs(value)
    if kind is str and not _is_unicode(value):
        return values.Surrogates(value)
    if kind is bytearray:
        return _Ext(Tag.BYTEARRAY, bytes(value))
    return _refuse(kind) if kind is memoryview else value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(cls: type) -> NoReturn:
    raise UnserializableError(
        f"A value of type {cls.__module__}.{cls.__qualname__} cannot be stored exactly.",
        hint=f"Register it: threadkeep.register({cls.__qualname__}, encode=..., decode=...), "
        "or open the saver with pickle_fallback=True.",
    )


def _refuse_depth() -> NoReturn:
    raise UnserializableError(
        "The value is nested too deeply, or contains itself.",
        hint="Store a flat form of it: a list of nodes that refer to each other by id, say.",
    )


def _pickle(value: Any, _: object) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise UnserializableError(
            f"A value of type {type(value).__qualname__} cannot be pickled either: {error}.",
            hint=f"threadkeep.register({type(value).__qualname__}, encode=..., decode=...)",
        ) from error


_PICKLE = Rule(Tag.PICKLE, _pickle)


# -- decoding --------------------------------------------------------------------------

_MALFORMED = (
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    struct.error,
    AssertionError,
)
"""What reading a payload of the wrong form ends in."""


class Decoder:
    """One call of `decode` or `decode_many`: unpacks values and the objects inside."""

    __slots__ = ("codec", "depth", "failure", "found", "resolve")

    def __init__(self, codec: NativeCodec, resolve: Resolve | None) -> None:
        self.codec = codec
        self.resolve = resolve
        self.depth = 0
        self.failure: BaseException | None = None
        self.found: dict[tuple[str | int, Tag], type] = {}

    def whole(self, data: bytes) -> Any:
        """Return the value whose bytes these are."""
        if data[:1] == b"\xc1":
            return self.extension(data[1] if len(data) > 1 else -1, data[2:])
        return self.unpack(data)

    def unpack(self, data: bytes) -> Any:
        """Return the value of a piece of msgpack."""
        try:
            return _unpackb(data, ext_hook=self.inside)
        except ValueError as error:
            refusal = error
        if self.failure is not None:
            raise self.failure
        raise CorruptionError(f"The stored value is not whole: {refusal}.") from refusal

    def inside(self, tag: int, data: bytes) -> Any:
        """Called by ormsgpack for each extension."""
        try:
            return self.extension(tag, data)
        except BaseException as error:
            self.failure = error  # ormsgpack replaces it by one of its own
            raise

    def extension(self, tag: int, data: bytes) -> Any:
        """Return the object of a tag and a payload."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise CorruptionError("The stored value is nested too deeply.")
        decode = _DECODERS.get(tag)
        if decode is None:
            _refuse_tag(tag)
        try:
            value = decode(data, self)
        except _MALFORMED as error:
            raise CorruptionError(
                f"The stored value is not of a form that threadkeep writes: {error}."
            ) from error
        self.depth -= 1
        return value

    def find(self, reference: str | int, tag: Tag) -> type:
        """Return the class that data names, if it is allowed and of the stored kind."""
        try:
            return self.found[reference, tag]
        except KeyError:
            cls = self.found[reference, tag] = _find(self.codec, reference, tag)
            return cls


def _find(codec: NativeCodec, reference: str | int, tag: Tag) -> type:
    if type(reference) is int:
        cls, name = _find_well_known(reference)
    else:
        name = str(reference)
        cls = codec.registry.named(name) or _find_allowed(codec, name)
    plain_allowed = type(reference) is int and reference in PLAIN or codec.registry.named(name)
    kind = kind_of(cls) or (Tag.PLAIN if plain_allowed else None)
    if kind is not tag:
        raise UnknownTypeError(
            f"{name} was stored as {tag.name.lower()} and is now something else.",
            hint=f"Give the class its old form back, or register another one under its name: "
            f"threadkeep.register(NewClass, name={name!r})",
        )
    return cls


def _find_well_known(code: int) -> tuple[type, str]:
    homes = HOMES.get(code)
    if homes is None:
        raise NewerFormatError(
            f"The stored value is of a class with number {code}, which this release does not know.",
            hint="Upgrade threadkeep: pip install --upgrade threadkeep",
        )
    for home in homes:
        if (cls := imported(home)) is not None:
            return cls, home
    raise UnknownTypeError(
        f"The stored value is a {homes[0].replace(':', '.')}, which is not imported.",
        hint=f"Add to your program: import {homes[0].partition(':')[0]}",
    )


def _find_allowed(codec: NativeCodec, name: str) -> type:
    module, _, qualname = name.partition(":")
    # LangGraph lists classes by __name__, data has the qualified name.
    listed = {(module, qualname), (module, qualname.rpartition(".")[2])} & codec.allowed
    if not listed and _langgraph.STRICT_MSGPACK_ENABLED:
        raise _unknown(name, "is not registered, and LANGGRAPH_STRICT_MSGPACK is on")
    cls = imported(name)
    if cls is None:
        raise _unknown(name, "is not among the classes that this program has imported")
    if kind_of(cls) is None:
        raise _unknown(name, "is not a data class")
    return cls


def _unknown(name: str, why: str) -> UnknownTypeError:
    module, _, qualname = name.partition(":")
    outer = qualname.partition(".")[0]
    return UnknownTypeError(
        f"The stored value is a {module}.{qualname}, which {why}.",
        hint=f"Allow it: from {module} import {outer}; threadkeep.register({qualname}). "
        f"If it was renamed: threadkeep.register(NewClass, name={name!r})",
    )


def _refuse_tag(tag: int) -> NoReturn:
    if tag == Tag.SERDE:
        raise CorruptionError(
            "The value was written by a serializer that was given as serde=.",
            hint="Open the store with the same serde= again.",
        )
    if not 0 <= tag < Tag.SERDE:
        raise CorruptionError(f"There is no value of kind {tag}.")
    raise NewerFormatError(
        f"The stored value is of kind {tag}, which this release does not know.",
        hint="Upgrade threadkeep: pip install --upgrade threadkeep",
    )


def _read_reference(data: bytes, unpacker: Unpacker) -> Any:
    log, position = unpacker.unpack(data)
    resolve = unpacker.resolve  # type: ignore[attr-defined]
    if resolve is None:
        raise CorruptionError("The value refers to an element of a log where none can be.")
    return resolve(log, position)


def _read_foreign(data: bytes, unpacker: Unpacker) -> Any:
    name, value = unpacker.unpack(data)
    foreign = unpacker.codec.registry.foreign(name)  # type: ignore[attr-defined]
    if foreign is None:
        raise UnknownTypeError(
            f"The stored value is a {name.replace(':', '.')}, whose decode= is not registered.",
            hint=f"threadkeep.register({name.partition(':')[2]}, encode=..., decode=...)",
        )
    return foreign.decode(value)


def _read_pickle(data: bytes, unpacker: Unpacker) -> Any:
    if not unpacker.codec.pickle_fallback:  # type: ignore[attr-defined]
        raise UnknownTypeError(
            "The stored value is a pickle, and loading a pickle runs the code that it names.",
            hint="If you trust the data, open the saver with pickle_fallback=True.",
        )
    return pickle.loads(data)  # noqa: S301 - only where the program asked for it by name


_DECODERS: dict[int, Decode] = {
    **values.DECODERS,
    Tag.REFERENCE: _read_reference,
    Tag.KNOWN: known.decode,
    Tag.PYDANTIC: models.decode_model,
    Tag.PYDANTIC_V1: models.decode_model_v1,
    Tag.DATACLASS: records.decode_record(Tag.DATACLASS),
    Tag.ATTRS: records.decode_record(Tag.ATTRS),
    Tag.PLAIN: records.decode_record(Tag.PLAIN),
    Tag.NAMEDTUPLE: records.decode_namedtuple,
    Tag.ENUM: records.decode_enum,
    Tag.FLAG: records.decode_flag,
    Tag.SUBCLASS: records.decode_subclass,
    Tag.FOREIGN: _read_foreign,
    Tag.PICKLE: _read_pickle,
    Tag.NDARRAY: arrays.decode_array,
    Tag.NUMPY_SCALAR: arrays.decode_scalar,
}
