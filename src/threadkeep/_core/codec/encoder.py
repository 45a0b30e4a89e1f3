"""Encoder: values to bytes, behind each call of `NativeCodec.encode`."""

from __future__ import annotations

import pickle
import sys
from collections import defaultdict
from datetime import datetime, timezone
from typing import Any, NoReturn

import ormsgpack

from threadkeep._core.codec import introspection, values
from threadkeep._core.codec.format import (
    MAX_DEPTH,
    OBJECT,
    FinalError,
    Intern,
    Rule,
    Tag,
    describe,
    dotted,
)
from threadkeep._core.codec.introspection import kind_of
from threadkeep._core.codec.registry import Registry
from threadkeep._core.codec.subclasses import plain_value
from threadkeep.errors import UnserializableError

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
_OBJECT = [bytes((OBJECT, tag)) for tag in range(128)]
_REFERENCE = Tag.REFERENCE  # an enum's members are slow to look up


class PlainPacker:
    """Packer for values that are plain msgpack all the way down: TypeError for others."""

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
        self.levels = 0  # of lists and dicts, from `scan.SHALLOW` objects on
        self.failure: BaseException | None = None

    def encode(self, value: Any) -> bytes:
        """Return the bytes of the whole value."""
        kind = type(value)
        rule = self.registry.rules.get(kind)
        if rule is None or kind is int:
            if kind in _NATIVE:
                return self.pack(value)
            rule = self.registry.rule(kind) or _SUBSTITUTE
        rule, payload = self.payload(value, rule)
        return _OBJECT[rule.tag] + payload

    def pack(self, value: Any) -> bytes:
        """Return msgpack, with an extension for whatever msgpack has no exact form for."""
        if self.depth > introspection.SHALLOW:
            self.levels += introspection.depth_of_value(value)
            if self.levels > introspection.LIMIT:
                _refuse_depth()
        try:
            data = _packb(value, self.on_unknown, _OPTIONS)
        except TypeError:
            return self.pack_with_markers(value)
        # ormsgpack writes a bytearray as bytes without asking: where there may be bytes, look.
        if (_BIN_8 in data or _BIN_16 in data or _BIN_32 in data) and _has_buffer(value):
            return self.pack_with_markers(value)
        return data

    def pack_with_markers(self, value: Any) -> bytes:
        """Pack values that ormsgpack refuses: keys that are not str, text that is not Unicode."""
        self.raise_failure()
        marked = _with_markers(value, 0)
        try:
            return _packb(marked, self.on_unknown, _OPTIONS)
        except TypeError as error:
            refusal = error
        self.raise_failure()
        raise UnserializableError(f"The value cannot be stored: {refusal}.") from refusal

    def on_unknown(self, value: Any) -> ormsgpack.Ext:
        """Callback of ormsgpack for types that it does not know."""
        try:
            return self.extension(value)
        except BaseException as error:
            self.failure = error  # ormsgpack replaces it by one of its own
            raise

    def extension(self, value: Any) -> ormsgpack.Ext:
        """Return an object as an extension, or as a reference to where it is stored already."""
        kind = type(value)
        rule = self.registry.rules.get(kind) or self.registry.rule(kind) or _SUBSTITUTE
        if rule.shareable and self.intern is not None:
            address = self.intern(value)
            if address is not None:
                return _Ext(_REFERENCE, _packb(address))
        rule, payload = self.payload(value, rule)
        return _Ext(rule.tag, payload)

    def payload(self, value: Any, rule: Rule) -> tuple[Rule, bytes]:
        """Return an object's payload, and the rule that it was written by in the end."""
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
            # Too deep stays too deep, and an `encode=` that fails must not go unnoticed.
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
                hint="The cause, above, comes from the class itself or from its encode=:"
                " correct it there.",
            ) from error
        self.depth, self.levels = depth, levels
        return rule, payload or b""

    def raise_failure(self) -> None:
        """Raise the error that made ormsgpack give up, if it was not its own."""
        if isinstance(self.failure, RecursionError):
            _refuse_depth()
        if self.failure is not None:
            raise self.failure


def _has_buffer(value: Any) -> bool:
    """Tell whether a bytearray or memoryview is among the values that ormsgpack writes itself."""
    kind = type(value)
    if kind is list:
        return any(map(_has_buffer, value))
    if kind is dict:
        return any(map(_has_buffer, value.values()))
    return kind is bytearray or kind is memoryview


def _with_markers(value: Any, depth: int) -> Any:
    """Return the value with markers in place of parts that ormsgpack would refuse or change."""
    if depth > introspection.LIMIT:
        _refuse_depth()
    kind = type(value)
    if kind is list:
        return [_with_markers(item, depth + 1) for item in value]
    if kind is dict:
        if all(type(key) is str and _is_unicode(key) for key in value):
            return {key: _with_markers(item, depth + 1) for key, item in value.items()}
        return values.Pairs(value)
    if kind is str and not _is_unicode(value):
        return _Ext(Tag.SURROGATES, value.encode("utf-8", "surrogatepass"))
    if kind is bytearray:
        return _Ext(Tag.BYTEARRAY, bytes(value))
    return _Ext(Tag.MEMORYVIEW, values.pack_view(value)) if kind is memoryview else value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_depth() -> NoReturn:
    raise FinalError(
        "The value is nested too deeply, or contains itself.",
        hint="Store a flat form of it: a list of nodes that refer to each other by id, say.",
    )


def _substitute(value: Any) -> Any:
    """Return the value that LangGraph's savers return for a refused value; None if there is none.

    Of a container only itself is replaced, never its content, so that no content is encoded twice.
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
    # LangGraph takes no subclasses of these.
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
