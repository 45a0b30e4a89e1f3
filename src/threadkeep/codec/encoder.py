"""Values to bytes: the worker behind each call of `NativeCodec.encode`.

Only encoding lives here. Invariant: what is written comes back exactly, or, where it has
no exact form, as LangGraph's savers give it (`likeness`), or a typed error says why not.
"""

from __future__ import annotations

import pickle
from typing import Any, NoReturn

import ormsgpack

from threadkeep.codec import nesting, values
from threadkeep.codec.failures import FinalError, told
from threadkeep.codec.format import MAX_DEPTH, OBJECT, Rule, Tag
from threadkeep.codec.likeness import likeness
from threadkeep.codec.protocol import Intern
from threadkeep.codec.registry import Registry
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


class AtOnce:
    """A packer for values that are plain msgpack all the way down: TypeError for others."""

    @staticmethod
    def pack(value: Any) -> bytes:
        """Return msgpack without any extension."""
        data = _packb(value, None, _OPTIONS)
        if _BIN_8 in data or _BIN_16 in data or _BIN_32 in data:
            raise TypeError
        return data


class Encoder:
    """One call of `encode`: packs values, and every object inside them by its rule.

    Args:
        registry: where the rules are.
        pickle_fallback: whether what has no rule is pickled.
        intern: see `Codec.encode`.
    """

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
        self.levels = 0  # of lists and dicts, from `nesting.SHALLOW` objects on
        self.failure: BaseException | None = None

    def whole(self, value: Any) -> bytes:
        """Return the bytes of the value that `encode` was given."""
        kind = type(value)
        rule = self.registry.rules.get(kind)
        if rule is None or kind is int:
            if kind in _NATIVE:
                return self.pack(value)
            rule = self.rule(kind)
        rule, payload = self.payload(value, rule)
        return _OBJECT[rule.tag] + payload

    def pack(self, value: Any) -> bytes:
        """Return msgpack, with an extension for whatever msgpack has no exact form for."""
        if self.depth > nesting.SHALLOW:
            self.descend(value)
        try:
            data = _packb(value, self.inside, _OPTIONS)
        except TypeError:
            return self.pack_spelled_out(value)
        # ormsgpack writes a bytearray as bytes without asking: where there may be bytes, look.
        if (_BIN_8 in data or _BIN_16 in data or _BIN_32 in data) and _has_buffer(value):
            return self.pack_spelled_out(value)
        return data

    def descend(self, value: Any) -> None:
        """Refuse what would need more stack than there may be."""
        self.levels += nesting.of_value(value)
        if self.levels > nesting.LIMIT:
            _refuse_depth()

    def pack_spelled_out(self, value: Any) -> bytes:
        """Pack what ormsgpack refuses: keys that are not str, text that is not Unicode."""
        self.raise_failure()
        spelled_out = _spelled_out(value, 0)
        try:
            return _packb(spelled_out, self.inside, _OPTIONS)
        except TypeError as error:
            refusal = error
        self.raise_failure()
        raise UnserializableError(f"The value cannot be stored: {refusal}.") from refusal

    def inside(self, value: Any) -> ormsgpack.Ext:
        """Called by ormsgpack for what it does not know."""
        try:
            return self.extension(value)
        except BaseException as error:
            self.failure = error  # ormsgpack replaces it by one of its own
            raise

    def extension(self, value: Any) -> ormsgpack.Ext:
        """Return an object as an extension, or as a reference to where it is stored already."""
        rule = self.registry.rules.get(type(value)) or self.rule(type(value))
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
            # What is deep stays so, and an `encode=` that fails is not to be passed over.
            if isinstance(error, FinalError):
                raise
            self.failure, self.depth, self.levels = None, depth + 1, levels
            rule, payload = self.second_best(value, error)
        except RecursionError:
            _refuse_depth()
        except Exception as error:
            raise _failed(value, error) from error
        self.depth, self.levels = depth, levels
        return rule, payload or b""

    def second_best(self, value: Any, error: UnserializableError) -> tuple[Rule, bytes]:
        """Return a pickle, if that was asked for, else what LangGraph's savers give back."""
        if self.pickle_fallback:
            return _PICKLE, _pickle(value, self)
        like = likeness(value)
        if like is None:
            raise error
        return _LIKENESS, self.pack(like)

    def rule(self, kind: type) -> Rule:
        """Return how objects of this type are written."""
        return self.registry.rule(kind) or _LIKENESS

    def raise_failure(self) -> None:
        """Raise what made ormsgpack give up, if it was not ormsgpack itself."""
        if isinstance(self.failure, RecursionError):
            _refuse_depth()
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
    if depth > nesting.LIMIT:
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
    return _Ext(Tag.MEMORYVIEW, values.pack_view(value)) if kind is memoryview else value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(value: Any, _: object) -> NoReturn:
    cls = type(value)
    raise UnserializableError(
        f"A value of type {cls.__module__}.{cls.__qualname__} cannot be stored exactly.",
        hint=f"Register it: threadkeep.register({cls.__qualname__}, encode=..., decode=...), "
        "or open the saver with pickle_fallback=True.",
    )


def _failed(value: Any, error: Exception) -> UnserializableError:
    """The error for a class whose own code raised another one."""
    cls = type(value)
    return FinalError(
        f"A value of type {cls.__module__}.{cls.__qualname__} could not be encoded: {told(error)}.",
        hint="The cause, above, comes from the class itself or from its encode=: correct it there.",
    )


def _refuse_depth() -> NoReturn:
    raise FinalError(
        "The value is nested too deeply, or contains itself.",
        hint="Store a flat form of it: a list of nodes that refer to each other by id, say.",
    )


def _pickle(value: Any, _: object) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception as error:
        raise UnserializableError(
            f"A value of type {type(value).__qualname__} cannot be pickled either: {told(error)}.",
            hint=f"threadkeep.register({type(value).__qualname__}, encode=..., decode=...)",
        ) from error


_PICKLE = Rule(Tag.PICKLE, _pickle)
_LIKENESS = Rule(Tag.LIKENESS, _refuse)
