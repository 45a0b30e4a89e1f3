"""Payloads of subclasses of built-in types and of exceptions.

An instance is rebuilt by the methods of its base, never of its class. The payload of a
subclass is `[class, position of the base, plain value, attributes]`. The payload of an exception is
`[class, arguments, attributes, fields]`, cut after the last part that is not empty. Fields are the
built-in ones that the arguments do not set, such as the name of an `ImportError`.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath
from types import MemberDescriptorType
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from threadkeep._core.codec.format import ClassReference, Encode, Packer, Tag, Unpacker, dotted
from threadkeep._core.codec.introspection import (
    ADDRESSES,
    BASES,
    PATHS,
    PYTHON_BASES,
    layout,
    read_attributes,
    set_attributes,
    solid_base,
)
from threadkeep._core.codec.values import check_factory
from threadkeep.errors import CorruptionError, UnknownTypeError, UnserializableError


class Base(NamedTuple):
    """A base: how to read the plain value inside an instance, its type, and the inverse."""

    plain: Callable[[Any], Any]
    kind: type
    make: Callable[[Any, Any], Any]


def encode_subclass(reference: ClassReference, cls: Any) -> Encode:
    """Encode the plain value, and the attributes if there are any."""
    base = solid_base(cls)
    plain, code = _BASES[base].plain, BASES.index(base)

    def encode(value: Any, packer: Packer) -> bytes:
        inside = plain(value)
        own = read_attributes(value)
        if base in PYTHON_BASES:
            twin = read_attributes(_BASES[base].make(cls, inside))
            of_base = layout(base).slots.keys() | twin.keys()
            own = {name: part for name, part in own.items() if name not in of_base}
        parts = [reference, code, inside]
        return packer.pack([*parts, own] if own else parts)

    return encode


def decode_subclass(data: bytes, unpacker: Unpacker) -> Any:
    """Fill an instance with the base's own methods."""
    reference, code, plain, *own = unpacker.parts(data)
    cls = unpacker.find(reference, Tag.SUBCLASS)
    if solid_base(cls) is not BASES[code]:
        raise UnknownTypeError(
            f"{dotted(cls)} was a subclass of {BASES[code].__name__} when it was stored, "
            f"and is a subclass of {solid_base(cls).__name__} now.",
            hint="Restore the old base class.",
        )
    value = make_subclass(cls, plain)
    set_attributes(value, own[0] if own else {})
    return value


def make_subclass(cls: Any, plain: Any) -> Any:
    """Return an instance that holds this plain value."""
    base = solid_base(cls)
    if type(plain) is not _BASES[base].kind:
        raise CorruptionError(f"A stored {cls.__qualname__} does not hold a {base.__name__}.")
    return _BASES[base].make(cls, plain)


def plain_value(value: Any) -> Any:
    """Return the value inside an instance of a subclass of a built-in type, or None."""
    for base in type(value).__mro__:
        if base in _BASES:
            return _BASES[base].plain(value)
    return None


def _filled(base: Any, fill: Any, kind: type | None = None) -> Base:
    """Base of containers that are created empty and then filled from an iterable."""
    read = base.items if hasattr(base, "items") else base.__iter__
    plain = kind or base

    def make(cls: Any, value: Any) -> Any:
        instance = base.__new__(cls)
        base.__init__(instance)
        fill(instance, value)
        return instance

    return Base(lambda value: plain(read(value)), plain, make)


def _initialized(base: Any, plain: Any, arguments: Callable[[Any], tuple[Any, ...]]) -> Base:
    """Base whose `__init__` takes arguments read from a plain value."""

    def make(cls: Any, value: Any) -> Any:
        instance = base.__new__(cls)
        base.__init__(instance, *arguments(value))
        return instance

    return Base(plain, base, make)


def _from_fields(base: Any, *names: str) -> Base:
    """Base whose `__new__` takes these attributes, and `fold` if it has one."""
    more = ("fold",) if "fold" in vars(base) else ()

    def make(cls: Any, value: Any) -> Any:
        fields = [getattr(value, name) for name in names]
        return base.__new__(cls, *fields, **{name: getattr(value, name) for name in more})

    return Base(lambda value: make(base, value), base, make)


def _sliced(base: Any) -> Callable[[Any], Any]:
    return lambda value: base.__getitem__(value, slice(None))


def _default_dict(value: defaultdict[Any, Any]) -> defaultdict[Any, Any]:
    check_factory(value)
    return defaultdict(value.default_factory, dict.items(value))


def _make_uuid(cls: Any, plain: UUID) -> Any:
    value = object.__new__(cls)
    UUID.__init__(value, int=plain.int, is_safe=plain.is_safe)
    return value


def _address(base: Any) -> Base:
    read = base.__str__
    return _initialized(base, lambda value: base(read(value)), lambda value: (read(value),))


def _make_path(cls: Any, text: str) -> Any:
    value = PurePath.__new__(cls, text)
    if "__init__" in vars(PurePath):  # since Python 3.12
        vars(PurePath)["__init__"](value, text)
    return value


_DATE = ("year", "month", "day")
_CLOCK = ("hour", "minute", "second", "microsecond", "tzinfo")
_BASES: dict[Any, Base] = {
    str: Base(str.__str__, str, str.__new__),
    int: Base(int.__int__, int, int.__new__),
    float: Base(float.__float__, float, float.__new__),
    complex: Base(complex.__complex__, complex, complex.__new__),
    bytes: Base(_sliced(bytes), bytes, bytes.__new__),
    bytearray: Base(_sliced(bytearray), bytearray, _filled(bytearray, bytearray.extend).make),
    tuple: Base(_sliced(tuple), tuple, tuple.__new__),
    list: Base(_sliced(list), list, _filled(list, list.extend).make),
    dict: _filled(dict, dict.update),
    set: _filled(set, set.update),
    frozenset: Base(
        lambda value: frozenset(frozenset.__iter__(value)), frozenset, frozenset.__new__
    ),
    OrderedDict: _filled(OrderedDict, OrderedDict.update, dict),
    datetime: _from_fields(datetime, *_DATE, *_CLOCK),
    date: _from_fields(date, *_DATE),
    time: _from_fields(time, *_CLOCK),
    timedelta: _from_fields(timedelta, "days", "seconds", "microseconds"),
    Decimal: Base(Decimal, Decimal, Decimal.__new__),
    deque: _initialized(
        deque,
        lambda value: deque(deque.__iter__(value), value.maxlen),
        lambda plain: (plain, plain.maxlen),
    ),
    defaultdict: _initialized(
        defaultdict, _default_dict, lambda plain: (plain.default_factory, plain)
    ),
    UUID: Base(lambda value: UUID(int=value.int, is_safe=value.is_safe), UUID, _make_uuid),
    **{base: _address(base) for base in ADDRESSES},
    **dict.fromkeys((*PATHS, Path, PurePath), Base(PurePath.__str__, str, _make_path)),
    ZoneInfo: _from_fields(ZoneInfo, "key"),
}


_NOT_FIELDS = frozenset({"obj", "__suppress_context__", "message", "exceptions"})
"""The last two belong to groups and cannot be set: they are the arguments."""
_ARGS: Any = vars(BaseException)["args"]


def encode_exception(reference: ClassReference, cls: Any) -> Encode:
    """Encode arguments, attributes, and the fields that the arguments do not set."""

    def encode(value: Any, packer: Packer) -> bytes:
        args = _ARGS.__get__(value)
        try:
            twin = make_exception(cls, args)
        except Exception as error:
            raise UnserializableError(
                f"A {dotted(cls)} cannot be rebuilt from its arguments.",
                hint="Pass its arguments to super().__init__() unchanged.",
            ) from error
        known = _fields(cls).items()
        fields = {name: field.__get__(value) for name, field in known}
        new = {n: fields[n] for n, field in known if not _same(fields[n], field.__get__(twin))}
        parts = [reference, list(args), read_attributes(value), new]
        while not parts[-1]:
            parts.pop()
        return packer.pack(parts)

    return encode


def decode_exception(data: bytes, unpacker: Unpacker) -> Any:
    """Rebuild an exception. A group with an unreadable member becomes its `repr`."""
    parts = unpacker.parts(data)
    empty: list[Any] = [None, [], {}, {}]
    reference, args, own, fields = parts + empty[len(parts) :]
    cls: Any = unpacker.find(reference, Tag.EXCEPTION)
    is_group = issubclass(cls, BaseExceptionGroup)
    if type(args) is not list or (is_group and type(args[1]) not in (list, tuple)):
        raise CorruptionError(f"A stored {cls.__qualname__} has no list of arguments.")
    if is_group and any(type(member) is str for member in args[1]):
        members = [member if type(member) is str else repr(member) for member in args[1]]
        return f"{cls.__name__}({args[0]!r}, [{', '.join(members)}])"
    value = make_exception(cls, tuple(args))
    set_attributes(value, own)
    known = _fields(cls)
    for name in fields.keys() & known.keys():
        known[name].__set__(value, fields[name])
    return value


def make_exception(cls: Any, args: tuple[Any, ...]) -> BaseException:
    """Return an exception with these arguments, made by its built-in base."""
    base: Any = solid_base(cls)
    if base is BaseExceptionGroup and not (len(args) == 2 and type(args[1]) in (list, tuple)):  # noqa: PLR2004 - a message and exceptions
        raise CorruptionError("A stored exception group has no list of exceptions.")
    value: BaseException = base.__new__(cls, *args)
    if type(value) is not cls:
        raise CorruptionError(f"A stored {cls.__qualname__} has another exception's arguments.")
    base.__init__(value, *args)
    _ARGS.__set__(value, args)
    return value


def _fields(cls: type) -> dict[str, MemberDescriptorType]:
    """Return the fields that built-in exceptions have besides their arguments."""
    return {
        name: member
        for base in cls.__mro__
        if base.__module__ == "builtins"
        for name, member in vars(base).items()
        if type(member) is MemberDescriptorType and name not in _NOT_FIELDS
    }


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) is int and a == b)
