"""Subclasses of built-in types, by the plain value inside and the attributes beside it.

Only their payloads live here. Invariant: an instance is rebuilt with the methods of its
base, never with its class's own.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from threadkeep.codec import state as attributes
from threadkeep.codec.format import Packer, Tag, Unpacker
from threadkeep.codec.kinds import BASES, PYTHON_BASES, solid_base
from threadkeep.codec.values import check_factory
from threadkeep.errors import CorruptionError, UnknownTypeError


class Base(NamedTuple):
    """How the value inside an instance is read, of which type that is, and the way back."""

    plain: Callable[[Any], Any]
    kind: type
    make: Callable[[Any, Any], Any]


def encode_subclass(reference: str | int, cls: type) -> Callable[[Any, Packer], bytes]:
    """The plain value, and the attributes if there are any."""
    base = solid_base(cls)
    plain, code = _BASES[base].plain, BASES.index(base)

    def encode(value: Any, packer: Packer) -> bytes:
        inside = plain(value)
        own = attributes.read(value)
        if base in PYTHON_BASES:
            twin = attributes.read(_BASES[base].make(cls, inside))
            of_base = attributes.layout(base).slots.keys() | twin.keys()
            own = {name: part for name, part in own.items() if name not in of_base}
        parts = [reference, code, inside]
        return packer.pack([*parts, own] if own else parts)

    return encode


def decode_subclass(data: bytes, unpacker: Unpacker) -> Any:
    """Fill an instance with the base's own methods."""
    reference, code, plain, *own = unpacker.unpack(data)
    cls = unpacker.find(reference, Tag.SUBCLASS)
    if solid_base(cls) is not BASES[code]:
        raise UnknownTypeError(
            f"{cls.__module__}.{cls.__qualname__} was stored as a {BASES[code].__name__} "
            f"and is a {solid_base(cls).__name__} now.",
            hint="Give the class its old base back.",
        )
    value = make_subclass(cls, plain)
    attributes.fill(value, own[0] if own else {})
    return value


def make_subclass(cls: Any, plain: Any) -> Any:
    """Return an instance that holds this plain value."""
    base = solid_base(cls)
    how = _BASES[base]
    if type(plain) is not how.kind:
        raise CorruptionError(f"A stored {cls.__qualname__} does not hold a {base.__name__}.")
    return how.make(cls, plain)


def plain_value(value: Any) -> Any:
    """Return the value inside an instance of any subclass of a built-in type, else None."""
    for base in type(value).__mro__:
        if base in _BASES:
            return _BASES[base].plain(value)
    return None


# -- the bases -------------------------------------------------------------------------


def _filled(base: Any, fill: Any) -> Callable[[Any, Any], Any]:
    """For a base that is created empty."""

    def make(cls: Any, plain: Any) -> Any:
        value = base.__new__(cls)
        base.__init__(value)
        fill(value, plain)
        return value

    return make


def _sliced(base: Any) -> Callable[[Any], Any]:
    return lambda value: base.__getitem__(value, slice(None))


def _date(value: date) -> tuple[Any, ...]:
    return value.year, value.month, value.day


def _clock(value: datetime | time) -> tuple[Any, ...]:
    return value.hour, value.minute, value.second, value.microsecond, value.tzinfo


def _span(value: timedelta) -> tuple[Any, ...]:
    return value.days, value.seconds, value.microseconds


def _default_dict(value: defaultdict[Any, Any]) -> defaultdict[Any, Any]:
    check_factory(value)
    return defaultdict(value.default_factory, dict.items(value))


def _make_default_dict(cls: Any, plain: defaultdict[Any, Any]) -> Any:
    value = defaultdict.__new__(cls)
    defaultdict.__init__(value, plain.default_factory, plain)
    return value


def _make_deque(cls: Any, plain: deque[Any]) -> Any:
    value = deque.__new__(cls)
    deque.__init__(value, plain, plain.maxlen)
    return value


def _make_uuid(cls: Any, plain: UUID) -> Any:
    value = object.__new__(cls)
    UUID.__init__(value, int=plain.int, is_safe=plain.is_safe)
    return value


def _address(base: Any) -> Base:
    def make(cls: Any, plain: Any) -> Any:
        value = object.__new__(cls)
        base.__init__(value, base.__str__(plain))
        return value

    return Base(lambda value: base(base.__str__(value)), base, make)


def _make_path(cls: Any, text: str) -> Any:
    value = PurePath.__new__(cls, text)
    if "__init__" in vars(PurePath):  # since Python 3.12
        vars(PurePath)["__init__"](value, text)
    return value


_PATH = Base(PurePath.__str__, str, _make_path)
_BASES: dict[Any, Base] = {
    str: Base(str.__str__, str, str.__new__),
    int: Base(int.__int__, int, int.__new__),
    float: Base(float.__float__, float, float.__new__),
    complex: Base(complex.__complex__, complex, complex.__new__),
    bytes: Base(_sliced(bytes), bytes, bytes.__new__),
    bytearray: Base(_sliced(bytearray), bytearray, _filled(bytearray, bytearray.extend)),
    tuple: Base(_sliced(tuple), tuple, tuple.__new__),
    list: Base(_sliced(list), list, _filled(list, list.extend)),
    dict: Base(lambda value: dict(dict.items(value)), dict, _filled(dict, dict.update)),
    set: Base(lambda value: set(set.__iter__(value)), set, _filled(set, set.update)),
    frozenset: Base(
        lambda value: frozenset(frozenset.__iter__(value)), frozenset, frozenset.__new__
    ),
    OrderedDict: Base(
        lambda value: dict(OrderedDict.items(value)), dict, _filled(OrderedDict, OrderedDict.update)
    ),
    datetime: Base(
        lambda value: datetime(*_date(value), *_clock(value), fold=value.fold),  # noqa: DTZ001 - `_clock` has the zone
        datetime,
        lambda cls, plain: datetime.__new__(cls, *_date(plain), *_clock(plain), fold=plain.fold),
    ),
    date: Base(
        lambda value: date(*_date(value)), date, lambda cls, plain: date.__new__(cls, *_date(plain))
    ),
    time: Base(
        lambda value: time(*_clock(value), fold=value.fold),
        time,
        lambda cls, plain: time.__new__(cls, *_clock(plain), fold=plain.fold),
    ),
    timedelta: Base(
        lambda value: timedelta(*_span(value)),
        timedelta,
        lambda cls, plain: timedelta.__new__(cls, *_span(plain)),
    ),
    Decimal: Base(Decimal, Decimal, Decimal.__new__),
    deque: Base(lambda value: deque(deque.__iter__(value), value.maxlen), deque, _make_deque),
    defaultdict: Base(_default_dict, defaultdict, _make_default_dict),
    UUID: Base(lambda value: UUID(int=value.int, is_safe=value.is_safe), UUID, _make_uuid),
    **{
        base: _address(base)
        for base in (
            *(IPv4Address, IPv6Address, IPv4Interface, IPv6Interface),
            *(IPv4Network, IPv6Network),
        )
    },
    **dict.fromkeys(
        (PosixPath, WindowsPath, PurePosixPath, PureWindowsPath, Path, PurePath), _PATH
    ),
    ZoneInfo: Base(
        lambda value: ZoneInfo(value.key),
        ZoneInfo,
        lambda cls, plain: ZoneInfo.__new__(cls, plain.key),
    ),
}
