"""Exceptions as values: their arguments, attributes, notes and the fields of built-in ones.

Only their payloads live here. Invariant: an instance is rebuilt by the built-in exception
that its class derives from, never by a method of its class. As with pickle and copy, its
traceback, cause and context are not kept, nor is the object of an `AttributeError`.

A payload is `[class, arguments, attributes, fields]`, cut after the last part that is not
empty; fields are those that the arguments do not give, such as the name of an `ImportError`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import MemberDescriptorType
from typing import Any

from threadkeep.codec import state as attributes
from threadkeep.codec.format import Packer, Tag, Unpacker
from threadkeep.codec.kinds import MAX_CLASSES, solid_base
from threadkeep.errors import CorruptionError, UnserializableError

_NOT_FIELDS = frozenset({"obj", "__suppress_context__", "message", "exceptions"})
"""The last two are a group's, which no one can set: they are its arguments."""
_ARGS: Any = vars(BaseException)["args"]


def encode_exception(reference: str | int) -> Callable[[Any, Packer], bytes]:
    """Whatever the arguments do not give is found by comparing with an exception made of them."""

    def encode(value: Any, packer: Packer) -> bytes:
        cls, args = type(value), _ARGS.__get__(value)
        try:
            twin = make(cls, args)
        except Exception as error:
            raise _refusal(cls) from error
        if type(twin) is not cls:
            raise _refusal(cls)
        given, found = _fields(twin), _fields(value)
        fields = {name: part for name, part in found.items() if not _same(part, given.get(name))}
        parts = [reference, list(args), attributes.read(value), fields]
        while not parts[-1]:
            parts.pop()
        return packer.pack(parts)

    return encode


def decode_exception(data: bytes, unpacker: Unpacker) -> Any:
    """Rebuild an exception; a group of which one came back as its `repr` is one itself."""
    reference, args, own, fields = _whole(unpacker.unpack(data))
    cls: Any = unpacker.find(reference, Tag.EXCEPTION)
    if issubclass(cls, BaseExceptionGroup) and any(type(member) is str for member in args[1]):
        members = [member if type(member) is str else repr(member) for member in args[1]]
        return f"{cls.__name__}({args[0]!r}, [{', '.join(members)}])"
    value = make(cls, tuple(args))
    if type(value) is not cls:
        raise CorruptionError(f"A stored {cls.__qualname__} has arguments of another exception.")
    attributes.fill(value, own)
    known = _known(value)
    for name in fields.keys() & known.keys():
        known[name].__set__(value, fields[name])
    return value


def make(cls: Any, args: tuple[Any, ...]) -> BaseException:
    """Return an exception with these arguments, made by its built-in base."""
    base: Any = solid_base(cls)
    if base is BaseExceptionGroup and not (len(args) == 2 and type(args[1]) in (list, tuple)):  # noqa: PLR2004 - a message and exceptions
        raise CorruptionError("A stored exception group has no list of exceptions.")
    value: BaseException = base.__new__(cls, *args)
    base.__init__(value, *args)
    _ARGS.__set__(value, args)
    return value


@lru_cache(maxsize=MAX_CLASSES)
def _descriptors(cls: type) -> dict[str, MemberDescriptorType]:
    """The fields that built-in exceptions have beside their arguments."""
    return {
        name: member
        for base in cls.__mro__
        if base.__module__ == "builtins"
        for name, member in vars(base).items()
        if type(member) is MemberDescriptorType and name not in _NOT_FIELDS
    }


def _known(value: Any) -> dict[str, MemberDescriptorType]:
    cls: Any = type(value)
    return _descriptors(cls)


def _fields(value: Any) -> dict[str, Any]:
    return {name: field.__get__(value) for name, field in _known(value).items()}


def _whole(parts: list[Any]) -> list[Any]:
    empty: list[Any] = [None, [], {}, {}]
    return parts + empty[len(parts) :]


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) is int and a == b)


def _refusal(cls: type) -> UnserializableError:
    return UnserializableError(
        f"A {cls.__module__}.{cls.__qualname__} cannot be made of its arguments again.",
        hint="Give its arguments to super().__init__() unchanged.",
    )
