"""Encoder and Decoder: state of one call of `NativeCodec.encode` and `decode`.

Decoding never imports or calls anything that the data names.
"""

from __future__ import annotations

import pickle
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any, ClassVar, NoReturn

import ormsgpack

from threadkeep._core.codec import (
    data_classes,
    introspection,
    langchain_types,
    subclasses,
    tables,
    values,
)
from threadkeep._core.codec.format import (
    MAX_DEPTH,
    OBJECT,
    OWN,
    Decode,
    FinalError,
    Intern,
    Resolve,
    Rule,
    Tag,
    describe,
    dotted,
    malformed,
    newer,
)
from threadkeep._core.codec.frame import read_varint
from threadkeep._core.codec.introspection import kind_of
from threadkeep._core.codec.registry import Finder, Registry, newer_shape
from threadkeep._core.codec.subclasses import plain_value
from threadkeep._core.texts import is_unicode
from threadkeep.errors import CorruptionError, UnknownTypeError, UnserializableError

_OPTIONS = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_BIN_8, _BIN_16, _BIN_32 = 0xC4, 0xC5, 0xC6  # msgpack's marks of bytes
_NATIVE = frozenset({type(None), bool, int, float, str, bytes, list, dict})
_packb = ormsgpack.packb
_Ext = ormsgpack.Ext
_MARKS = [bytes((OBJECT, tag)) for tag in range(128)]
_REFERENCE = Tag.REFERENCE  # looking up an enum member is slow


class PlainPacker:
    """Packer of plain msgpack values. Raises TypeError for all others."""

    @staticmethod
    def pack(value: Any) -> bytes:
        """Return msgpack without any extension."""
        data = _packb(value, None, _OPTIONS)
        if _BIN_8 in data or _BIN_16 in data or _BIN_32 in data:
            raise TypeError
        return data


class Encoder:
    """State of one call of `encode`."""

    __slots__ = ("depth", "failure", "intern", "levels", "pickle_fallback", "registry")

    def __init__(
        self,
        registry: Registry,
        pickle_fallback: bool,  # noqa: FBT001 - built in one place
        intern: Intern | None,
    ) -> None:
        self.registry = registry
        self.pickle_fallback = pickle_fallback
        self.intern = intern
        self.depth = 0  # of objects within objects
        self.levels = 0  # of lists and dicts, from `introspection.SHALLOW` objects on
        self.failure: BaseException | None = None

    def encode(self, value: Any) -> bytes:
        kind = type(value)
        rule = self.registry.rules.get(kind)
        if rule is None or kind is int:
            if kind in _NATIVE:
                return self.pack(value)
            rule = self.registry.rule(kind) or _SUBSTITUTE
        rule, payload = self.payload(value, rule)
        return _MARKS[rule.tag] + payload

    def pack(self, value: Any) -> bytes:
        """Return msgpack, with extensions for values that msgpack cannot hold exactly."""
        if self.depth > introspection.SHALLOW:
            self.levels += introspection.depth_of_value(value)
            if self.levels > introspection.LIMIT:
                _refuse_depth()
        try:
            data = _packb(value, self.on_unknown, _OPTIONS)
        except TypeError:
            return self.pack_with_markers(value)
        # ormsgpack writes a bytearray as bytes without calling back.
        if (_BIN_8 in data or _BIN_16 in data or _BIN_32 in data) and _has_buffer(value):
            return self.pack_with_markers(value)
        return data

    def pack_with_markers(self, value: Any) -> bytes:
        """Pack values that ormsgpack refuses: keys that are not str, lone surrogates."""
        self.raise_failure()
        marked = _with_markers(value, 0)
        try:
            return _packb(marked, self.on_unknown, _OPTIONS)
        except TypeError as error:
            refusal = error
        self.raise_failure()
        raise UnserializableError(f"The value cannot be stored: {refusal}.") from refusal

    def on_unknown(self, value: Any) -> ormsgpack.Ext:
        """Encode a type that ormsgpack does not know (its callback)."""
        try:
            return self.extension(value)
        except BaseException as error:
            self.failure = error  # ormsgpack replaces it by its own
            raise

    def extension(self, value: Any) -> ormsgpack.Ext:
        """Return an object as an extension, or a reference to its stored place."""
        kind = type(value)
        rule = self.registry.rules.get(kind) or self.registry.rule(kind) or _SUBSTITUTE
        if rule.shareable and self.intern is not None:
            address = self.intern(value)
            if address is not None:
                return _Ext(_REFERENCE, _packb(address))
        rule, payload = self.payload(value, rule)
        return _Ext(rule.tag, payload)

    def payload(self, value: Any, rule: Rule) -> tuple[Rule, bytes]:
        """Return the payload of an object, and the rule that encoded it."""
        depth, levels = self.depth, self.levels
        if depth == MAX_DEPTH:
            _refuse_depth()
        self.depth = depth + 1
        try:
            payload = rule.encode(value, self)
            if payload is None and rule.otherwise is not None:
                rule = rule.otherwise
                payload = rule.encode(value, self)
        except UnserializableError as error:
            # These two are final: a value nested too deeply, and an `encode=` that fails.
            if isinstance(error, FinalError):
                raise
            self.failure, self.depth, self.levels = None, depth + 1, levels
            if self.pickle_fallback:
                rule, payload = _PICKLE, _pickle(value, self)
            else:
                try:
                    plain = _substitute(value)
                except Exception:  # noqa: BLE001 - a `repr` of the program, a zone of another library
                    plain = None
                if plain is None:
                    raise
                rule, payload = _SUBSTITUTE, self.pack(plain)
        except RecursionError:
            _refuse_depth()
        except Exception as error:
            raise FinalError(
                f"A value of type {dotted(type(value))} could not be encoded: {describe(error)}.",
                hint="Correct the class, or its encode=: the error above comes from there.",
            ) from error
        self.depth, self.levels = depth, levels
        return rule, payload or b""

    def raise_failure(self) -> None:
        """Raise the error that stopped ormsgpack, unless it was its own."""
        if isinstance(self.failure, RecursionError):
            _refuse_depth()
        if self.failure is not None:
            raise self.failure


def _has_buffer(value: Any) -> bool:
    """Return True for a bytearray or memoryview that ormsgpack would write as bytes."""
    kind = type(value)
    if kind is list:
        return any(map(_has_buffer, value))
    if kind is dict:
        return any(map(_has_buffer, value.values()))
    return kind is bytearray or kind is memoryview


def _with_markers(value: Any, depth: int) -> Any:
    """Replace the parts that ormsgpack would refuse or change by markers."""
    if depth > introspection.LIMIT:
        _refuse_depth()
    kind = type(value)
    if kind is list:
        return [_with_markers(item, depth + 1) for item in value]
    if kind is dict:
        if all(type(key) is str and is_unicode(key) for key in value):
            return {key: _with_markers(item, depth + 1) for key, item in value.items()}
        return values.Pairs(value)
    if kind is str and not is_unicode(value):
        return _Ext(Tag.SURROGATES, value.encode("utf-8", "surrogatepass"))
    if kind is bytearray:
        return _Ext(Tag.BYTEARRAY, bytes(value))
    return _Ext(Tag.MEMORYVIEW, values.pack_view(value)) if kind is memoryview else value


def _refuse_depth() -> NoReturn:
    raise FinalError(
        "The value is nested too deeply, or contains itself.",
        hint="Store a flat form: for example, a list of nodes that refer to each other by id.",
    )


def _substitute(value: Any) -> Any:
    """Return the value that LangGraph's savers return for a refused value, or None.

    Of a container only the container itself is replaced, so that no content is encoded twice.
    """
    cls: Any = type(value)
    if isinstance(value, BaseException):
        return repr(value)
    if isinstance(value, defaultdict):
        known = value.default_factory in values.FACTORIES
        return None if known else dict(dict.items(value))
    if isinstance(value, datetime) and value.tzinfo is not None:
        offset = value.utcoffset()
        zone = None if offset is None else timezone(offset)
        if cls is datetime:
            return value.replace(tzinfo=zone)
        return value.tz_convert(zone) if hasattr(value, "tz_convert") else None  # pandas
    if not isinstance(value, (str, int)) and kind_of(cls) is not None:
        return None
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return None if cls is numpy.ndarray else value.view(numpy.ndarray)
    # LangGraph refuses subclasses of these.
    refused = isinstance(value, (float, tuple, bytes, bytearray, complex))
    return None if refused else plain_value(value)


def _refuse(value: Any, _: object) -> NoReturn:
    cls = type(value)
    raise UnserializableError(
        f"A value of type {dotted(cls)} cannot be stored exactly.",
        hint=f"Register it: threadkeep.register({cls.__qualname__}, encode=..., decode=...), "
        "or open the saver with pickle_fallback=True.",
    )


def _pickle(value: Any, _: object) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception as error:
        raise UnserializableError(
            f"A value of type {type(value).__qualname__} cannot be pickled either: "
            f"{describe(error)}.",
            hint=f"threadkeep.register({type(value).__qualname__}, encode=..., decode=...)",
        ) from error


_PICKLE = Rule(Tag.PICKLE, _pickle)
_SUBSTITUTE = Rule(Tag.SUBSTITUTE, _refuse)


_unpackb = ormsgpack.unpackb
_OBJECT = bytes((OBJECT,))
_KNOWN_OBJECT = bytes((OBJECT, Tag.KNOWN))


class Decoder:
    """State of one call of `decode` or `decode_many`."""

    __slots__ = ("classes", "depth", "failure", "finder", "levels", "pickle_fallback", "resolve")

    decoders: ClassVar[Mapping[int, Decode]] = {}
    options: ClassVar[int | None] = None

    def __init__(
        self,
        finder: Finder,
        pickle_fallback: bool = False,  # noqa: FBT001, FBT002 - the name says it at the call
        resolve: Resolve | None = None,
    ) -> None:
        self.finder = finder
        self.pickle_fallback = pickle_fallback
        self.resolve = resolve
        self.depth = 0  # of objects within objects
        self.levels = 0  # of lists and dicts, from `introspection.SHALLOW` objects on
        self.failure: BaseException | None = None
        self.classes: dict[tuple[str | int, Tag], type] = {}

    def decode(self, data: bytes) -> Any:
        if data[:2] == _KNOWN_OBJECT:  # most values: a shortcut, a tenth faster
            try:
                return langchain_types.decode(data[2:], self)
            except OWN:
                raise
            except Exception as error:
                raise malformed(error) from error
        if data[:1] == _OBJECT:
            return self.extension(data[1] if len(data) > 1 else -1, data[2:])
        return self.unpack(data)

    def decode_many(self, items: Iterable[bytes]) -> list[Any]:
        hook, options, codecs = self.on_extension, self.options, langchain_types.FIELD_CODECS
        found = []
        for data in items:
            if data[:2] == _KNOWN_OBJECT:
                try:
                    parts = _unpackb(data[2:], ext_hook=hook, option=options)
                    found.append(codecs[parts[0]].decode(parts[1], parts, 2))
                except Exception:  # noqa: BLE001 - `decode` raises the right error
                    afresh = type(self)(self.finder, self.pickle_fallback, self.resolve)
                    found.append(afresh.decode(data))
            else:
                found.append(self.decode(data))
        return found

    def unpack(self, data: bytes) -> Any:
        if self.depth > introspection.SHALLOW:
            self.levels += introspection.depth_of_bytes(data)
            if self.levels > 2 * introspection.LIMIT:  # the bound may be twice too high
                raise CorruptionError("The stored value is nested too deeply.")
        try:
            return _unpackb(data, ext_hook=self.on_extension, option=self.options)
        except ValueError as error:
            refusal = error
        if self.failure is not None:
            raise self.failure
        raise CorruptionError(f"The stored value is not whole: {refusal}.") from refusal

    def parts(self, data: bytes) -> list[Any]:
        value = self.unpack(data)
        if type(value) is not list:
            raise CorruptionError("A stored object is no list of its parts.")
        return value

    def unpickle(self, data: bytes) -> Any:
        """Load a pickle if `pickle_fallback` allows it."""
        if not self.pickle_fallback:
            raise UnknownTypeError(
                "The stored value is a pickle, and loading a pickle runs the code that it names.",
                hint="If you trust the data, open the saver with pickle_fallback=True.",
            )
        try:
            return pickle.loads(data)  # noqa: S301 - only if the program asked for it by name
        except OWN:
            raise
        except (ImportError, AttributeError) as error:
            raise UnknownTypeError(
                f"A stored pickle names a class that cannot be imported: {describe(error)}.",
                hint="Restore the class under its old name; an alias is enough.",
            ) from error
        except Exception as error:
            raise CorruptionError(
                f"A stored pickle cannot be loaded: {describe(error)}."
            ) from error

    def on_extension(self, tag: int, data: bytes) -> Any:
        """Decode an extension (callback of ormsgpack)."""
        try:
            return self.extension(tag, data)
        except BaseException as error:
            self.failure = error  # ormsgpack replaces it by its own
            raise

    def extension(self, tag: int, data: bytes) -> Any:
        levels = self.levels
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise CorruptionError("The stored value is nested too deeply.")
        decode = self.decoders.get(tag)
        if decode is None:
            if tag == Tag.SERDE:
                raise CorruptionError(
                    "The value was written by a serializer, with serde=.",
                    hint="Open the store with the same serde=. If you replace an"
                    ' EncryptedSerializer by keys=, also give allow_plaintext="migrate", and call'
                    " rotate_keys() before you leave out serde=.",
                )
            if not 0 <= tag < Tag.SERDE:
                raise CorruptionError(f"There is no value of kind {tag}.")
            raise newer(f"The kind {tag} of the stored value is unknown to this release.")
        try:
            value = decode(data, self)
        except OWN:
            raise
        except Exception as error:
            raise malformed(error) from error
        self.depth -= 1
        self.levels = levels
        return value

    def find(self, reference: str | int, tag: Tag) -> type:
        """Return the class that the data names, if it is allowed and of the stored kind."""
        try:
            return self.classes[reference, tag]
        except KeyError:
            cls = self.classes[reference, tag] = self.finder.find(reference, tag)
            return cls


def _read_reference(data: bytes, decoder: Decoder) -> Any:
    log, position = decoder.unpack(data)
    resolve = decoder.resolve
    if resolve is None:
        raise CorruptionError("The value refers to another element, which is not allowed here.")
    return resolve(log, position)


def _read_foreign(data: bytes, decoder: Decoder) -> Any:
    name, value = decoder.parts(data)
    foreign = decoder.finder.foreign(name)
    try:
        return foreign.decode(value)
    except OWN:
        raise
    except Exception as error:
        raise CorruptionError(
            f"The decode= registered for {name.replace(':', '.')} cannot read the stored value: "
            f"{describe(error)}.",
            hint="decode= must read everything that encode= has ever returned.",
        ) from error


def _refuse_shape(data: bytes, _: Decoder) -> NoReturn:
    raise newer_shape("the channels", read_varint(data, 0)[0], 1)


Decoder.decoders = {
    Tag.REFERENCE: _read_reference,
    Tag.KNOWN: langchain_types.decode,
    Tag.PYDANTIC: data_classes.decode_model,
    Tag.PYDANTIC_V1: data_classes.decode_model_v1,
    Tag.DATACLASS: data_classes.decode_record(Tag.DATACLASS),
    Tag.ATTRS: data_classes.decode_record(Tag.ATTRS),
    Tag.PLAIN: data_classes.decode_record(Tag.PLAIN),
    Tag.NAMEDTUPLE: data_classes.decode_namedtuple,
    Tag.ENUM: data_classes.decode_enum(Tag.ENUM),
    Tag.FLAG: data_classes.decode_enum(Tag.FLAG),
    Tag.SUBCLASS: subclasses.decode_subclass,
    Tag.EXCEPTION: subclasses.decode_exception,
    Tag.FOREIGN: _read_foreign,
    Tag.SHAPE: _refuse_shape,
    Tag.SUBSTITUTE: lambda data, decoder: decoder.unpack(data),
    Tag.PICKLE: lambda data, decoder: decoder.unpickle(data),
    **values.DECODERS,
    **tables.DECODERS,
}
