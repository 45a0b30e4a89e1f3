"""Payloads of types of the standard library and NumPy, each with its own tag.

Types are matched exactly. NumPy is used only if the program has imported it. Arrays
keep their memory order and whether they are writable.
"""

from __future__ import annotations

import re
import struct
import sys
from collections import OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from functools import partial
from operator import attrgetter
from typing import Any
from uuid import UUID, SafeUUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import ormsgpack
from pydantic import SecretBytes, SecretStr

from threadkeep._core.codec.format import Decode, Encode, Packer, Rule, Tag, Unpacker
from threadkeep._core.codec.introspection import ADDRESSES, PATHS
from threadkeep.errors import CorruptionError, UnknownTypeError, UnserializableError


class Pairs:
    """Marker for a dict whose keys a msgpack map cannot hold exactly."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: dict[Any, Any]) -> None:
        self.pairs = pairs


def _text(value: Any, _: Packer) -> bytes:
    return str(value).encode("utf-8", "surrogatepass")


def pack_view(value: memoryview, _: Packer | None = None) -> bytes:
    """Pack bytes, format, shape and read-only flag. Only bytes if no cast can rebuild the view."""
    raw, shape = value.tobytes(), list(value.shape or ())
    try:
        _view(raw, value.format, shape)
    except (TypeError, ValueError):
        return ormsgpack.packb([raw])
    return ormsgpack.packb([raw, value.format, shape, value.readonly])


def _view(raw: bytes | bytearray, format: str, shape: list[int]) -> memoryview:
    view = memoryview(raw)
    return view.cast(format) if len(shape) == 1 else view.cast(format, shape)  # type: ignore[call-overload, no-any-return]


def _read_view(data: bytes, unpacker: Unpacker) -> memoryview | bytes:
    raw, *described = unpacker.parts(data)
    if type(raw) is not bytes:  # (of a number, `bytearray` makes as many zeros)
        raise CorruptionError("A stored view does not hold bytes.")
    if not described:
        return raw
    form, shape, readonly = described
    return _view(raw if readonly else bytearray(raw), form, shape)


def _attributes(*names: str) -> Any:
    read = attrgetter(*names)
    return lambda value, packer: packer.pack(list(read(value)))


def _flat(value: dict[Any, Any]) -> list[Any]:
    return [part for pair in value.items() for part in pair]


def _read_pairs(data: bytes, unpacker: Unpacker) -> dict[Any, Any]:
    flat = unpacker.parts(data)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _members(value: Any, packer: Packer) -> bytes:
    """Encode members sorted by their bytes, so that equal sets give equal bytes."""
    return packer.pack(sorted(packer.pack(member) for member in value))


def _read_members(data: bytes, unpacker: Unpacker) -> list[Any]:
    return [unpacker.unpack(member) for member in unpacker.parts(data)]


def _ordered(value: OrderedDict[Any, Any], packer: Packer) -> bytes:
    if value.__dict__:
        raise UnserializableError("An OrderedDict with attributes of its own cannot be stored.")
    return packer.pack(_flat(value))


FACTORIES: tuple[Any, ...] = (None, list, dict, set, int, float, str, tuple, bool, frozenset)
"""Factories that a stored defaultdict may have. The order is part of the format."""


def check_factory(value: defaultdict[Any, Any]) -> None:
    """Raise UnserializableError for a factory that data cannot name."""
    if value.default_factory not in FACTORIES:
        raise UnserializableError(
            f"A defaultdict of {value.default_factory!r} cannot be stored exactly.",
            hint="Use list, dict, set, int, float, str, tuple, bool or frozenset, or a plain dict.",
        )


def _default_dict(value: defaultdict[Any, Any], packer: Packer) -> bytes:
    check_factory(value)
    return packer.pack([FACTORIES.index(value.default_factory), *_flat(value)])


def _make_default_dict(factory: int, *flat: Any) -> defaultdict[Any, Any]:
    return defaultdict(FACTORIES[factory], zip(flat[::2], flat[1::2], strict=True))


_COMPLEX = struct.Struct(">dd")
_DATE = struct.Struct(">HBB")
_FOLD = 1 << 31  # added to the microseconds
_TIME = ("hour", "minute", "second")


def check_zone(zone: tzinfo | None) -> None:
    """Raise UnserializableError for a time zone of another library."""
    if zone is not None and type(zone) is not timezone and type(zone) is not ZoneInfo:
        raise UnserializableError(
            f"A time zone of type {type(zone).__qualname__} cannot be stored exactly.",
            hint="Use zoneinfo.ZoneInfo or datetime.timezone.",
        )


def _clock(build: Any, layout: struct.Struct, *names: str) -> tuple[Encode, Decode]:
    """Encode the fields, microseconds and fold in one number, and the time zone if any."""
    read_fields = attrgetter(*names)

    def encode(value: Any, packer: Packer) -> bytes:
        fields = layout.pack(*read_fields(value), value.microsecond | _FOLD * value.fold)
        check_zone(value.tzinfo)
        return fields if value.tzinfo is None else fields + packer.pack(value.tzinfo)

    def decode(data: bytes, unpacker: Unpacker) -> Any:
        *fields, fraction = layout.unpack_from(data)
        zone = unpacker.unpack(data[layout.size :]) if len(data) > layout.size else None
        if zone is not None and not isinstance(zone, tzinfo):
            raise CorruptionError("A stored time does not hold a time zone.")
        return build(*fields, fraction & ~_FOLD, zone, fold=fraction >> 31)

    return encode, decode


def _timezone(value: timezone, packer: Packer) -> bytes:
    """Encode UTC as nothing, other zones as offset and name."""
    if value is UTC:
        return b""
    return packer.pack(list(value.__getinitargs__()))  # type: ignore[attr-defined]


def _zone_info(value: ZoneInfo, _: Packer) -> bytes:
    if value.key is None:
        raise UnserializableError(
            "A ZoneInfo that was read from a file object has no name to store.",
            hint="Create it by name: ZoneInfo('Europe/Paris').",
        )
    return value.key.encode()


def make_zone_info(key: str) -> ZoneInfo:
    """Return the time zone of this name, if this machine knows it."""
    try:
        return ZoneInfo(key)
    except (ZoneInfoNotFoundError, OSError) as error:  # OSError: the key names a folder of zones
        raise UnknownTypeError(
            f"This machine does not know the time zone {key!r}.",
            hint="Install the time zone database: pip install tzdata",
        ) from error


def make_path(cls: type, *parts: str) -> Any:
    """Return a path of this class, if it can exist on this system."""
    try:
        return cls(*parts)
    except NotImplementedError as error:
        raise UnknownTypeError(
            f"A stored {cls.__name__} cannot exist on this operating system.",
            hint="To share paths between systems, store PurePosixPath or PureWindowsPath.",
        ) from error


def _pattern(value: re.Pattern[Any], packer: Packer) -> bytes:
    _check_plain(value.pattern, "pattern")
    return packer.pack([value.pattern, value.flags])


def make_pattern(pattern: str | bytes, flags: int) -> re.Pattern[Any]:
    if type(pattern) not in (str, bytes) or type(flags) is not int:
        raise CorruptionError("A stored pattern is not text and flags.")
    try:
        return re.compile(pattern, flags)
    except (re.error, RecursionError) as error:
        raise CorruptionError("A stored pattern is not a regular expression.") from error


_SAFETY = (SafeUUID.safe, SafeUUID.unsafe)


def _uuid(value: UUID, _: Packer) -> bytes:
    if value.is_safe is SafeUUID.unknown:
        return value.bytes
    return value.bytes + bytes((_SAFETY.index(value.is_safe),))


def _read_uuid(data: bytes, _: Unpacker) -> UUID:
    safety = _SAFETY[data[16]] if len(data) > 16 else SafeUUID.unknown  # noqa: PLR2004 - its size
    return UUID(bytes=data[:16], is_safe=safety)


def _secret(value: SecretStr | SecretBytes, packer: Packer) -> bytes:
    _check_plain(value.get_secret_value(), "secret")
    return packer.pack(value.get_secret_value())


def _check_plain(value: Any, where: str) -> None:
    if type(value) not in (str, bytes):
        raise UnserializableError(
            f"A {where} made from a {type(value).__qualname__} cannot be stored exactly.",
            hint="Make it from a plain str or bytes.",
        )


def _from_text(build: Any) -> Decode:
    return lambda data, _: build(data.decode("utf-8", "surrogatepass"))


def _from_parts(build: Any) -> Decode:
    return lambda data, unpacker: build(*unpacker.parts(data))


def _exactly(kind: type, build: Any) -> Decode:
    def read(data: bytes, unpacker: Unpacker) -> Any:
        value = unpacker.unpack(data)
        if type(value) is not kind:
            raise CorruptionError(f"A stored {build.__name__} does not hold {kind.__name__}.")
        return build(value)

    return read


_TYPES: tuple[tuple[type, Tag, Any, Decode], ...] = (
    (
        int,
        Tag.BIG_INT,
        lambda value, _: value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True),
        lambda data, _: int.from_bytes(data, "little", signed=True),
    ),
    (bytearray, Tag.BYTEARRAY, lambda value, _: bytes(value), lambda data, _: bytearray(data)),
    (memoryview, Tag.MEMORYVIEW, pack_view, _read_view),
    (
        complex,
        Tag.COMPLEX,
        lambda value, _: _COMPLEX.pack(value.real, value.imag),
        lambda data, _: complex(*_COMPLEX.unpack(data)),
    ),
    (range, Tag.RANGE, _attributes("start", "stop", "step"), _from_parts(range)),
    (Fraction, Tag.FRACTION, _attributes("numerator", "denominator"), _from_parts(Fraction)),
    (Decimal, Tag.DECIMAL, _text, _from_text(Decimal)),
    (Pairs, Tag.PAIRS, lambda value, packer: packer.pack(_flat(value.pairs)), _read_pairs),
    (
        tuple,
        Tag.TUPLE,
        lambda value, packer: packer.pack(list(value)),
        lambda data, u: tuple(u.parts(data)),
    ),
    (set, Tag.SET, _members, lambda data, unpacker: set(_read_members(data, unpacker))),
    (frozenset, Tag.FROZENSET, _members, lambda data, u: frozenset(_read_members(data, u))),
    (
        deque,
        Tag.DEQUE,
        lambda value, packer: packer.pack([value.maxlen, *value]),
        _from_parts(lambda maxlen, *items: deque(items, maxlen)),
    ),
    (OrderedDict, Tag.ORDERED_DICT, _ordered, lambda d, u: OrderedDict(_read_pairs(d, u))),
    (defaultdict, Tag.DEFAULT_DICT, _default_dict, _from_parts(_make_default_dict)),
    (
        datetime,
        Tag.DATETIME,
        *_clock(datetime, struct.Struct(">HBBBBBI"), "year", "month", "day", *_TIME),
    ),
    (
        date,
        Tag.DATE,
        lambda value, _: _DATE.pack(value.year, value.month, value.day),
        lambda data, _: date(*_DATE.unpack(data)),
    ),
    (time, Tag.TIME, *_clock(time, struct.Struct(">BBBI"), *_TIME)),
    (
        timedelta,
        Tag.TIMEDELTA,
        _attributes("days", "seconds", "microseconds"),
        _from_parts(timedelta),
    ),
    (timezone, Tag.TIMEZONE, _timezone, lambda data, u: timezone(*u.parts(data)) if data else UTC),
    (ZoneInfo, Tag.ZONE_INFO, _zone_info, _from_text(make_zone_info)),
    *(
        (cls, Tag(Tag.POSIX_PATH + n), _text, _from_text(partial(make_path, cls)))
        for n, cls in enumerate(PATHS)
    ),
    (re.Pattern, Tag.PATTERN, _pattern, _from_parts(make_pattern)),
    (UUID, Tag.UUID, _uuid, _read_uuid),
    *((cls, Tag(Tag.IPV4_ADDRESS + n), _text, _from_text(cls)) for n, cls in enumerate(ADDRESSES)),
    (SecretStr, Tag.SECRET_STR, _secret, _exactly(str, SecretStr)),
    (SecretBytes, Tag.SECRET_BYTES, _secret, _exactly(bytes, SecretBytes)),
)

_V1_SECRETS = {"SecretStr": (Tag.SECRET_STR_V1, str), "SecretBytes": (Tag.SECRET_BYTES_V1, bytes)}


def _v1_secret(name: str) -> Decode:
    def read(data: bytes, unpacker: Unpacker) -> Any:
        types = sys.modules.get("pydantic.v1.types")
        if types is None:
            raise UnknownTypeError(
                f"The stored value is a pydantic.v1.{name}, which is not imported.",
                hint="Add to your program: import pydantic.v1",
            )
        return _exactly(_V1_SECRETS[name][1], vars(types)[name])(data, unpacker)

    return read


RULES: dict[type, Rule] = {cls: Rule(tag, encode) for cls, tag, encode, _ in _TYPES}
DECODERS: dict[int, Decode] = {tag: decode for _, tag, _, decode in _TYPES}
DECODERS |= {tag: _v1_secret(name) for name, (tag, _) in _V1_SECRETS.items()}
DECODERS[Tag.SURROGATES] = _from_text(str)


_COLUMN_ORDER = 1
_READ_ONLY = 2


def rule_for(cls: type) -> Rule | None:
    """Return the rule for a class of NumPy or `pydantic.v1`, or None."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "ndarray"):
        if cls is numpy.ndarray:
            return Rule(Tag.NDARRAY, _array)
        if issubclass(cls, numpy.generic):
            return Rule(Tag.NUMPY_SCALAR, _scalar)
    if cls.__module__ == "pydantic.v1.types" and cls.__qualname__ in _V1_SECRETS:
        return Rule(_V1_SECRETS[cls.__qualname__][0], _secret)
    return None


def imported(name: str) -> Any:
    """Return a module that the program has imported."""
    module = sys.modules.get(name)
    if module is None:
        raise UnknownTypeError(
            f"The stored value is of {name}, which this program has not imported.",
            hint=f"Add to your program: import {name}",
        )
    return module


def _array(array: Any, packer: Packer) -> bytes:
    column = array.flags.f_contiguous and not array.flags.c_contiguous
    flags = _COLUMN_ORDER * column | _READ_ONLY * (not array.flags.writeable)
    raw = array.tobytes(order="F" if column else "C")
    return packer.pack([describe_dtype(array.dtype), array.shape, flags, raw])


def _read_array(data: bytes, unpacker: Unpacker) -> Any:
    description, shape, flags, raw = unpacker.unpack(data)
    array = make_array(description, shape, "F" if flags & _COLUMN_ORDER else "C", raw)
    array.setflags(write=not flags & _READ_ONLY)
    return array


def make_array(description: Any, shape: Any, order: str, raw: bytes) -> Any:
    """Return an array of these bytes that owns its memory."""
    numpy = imported("numpy")
    array = numpy.ndarray(shape, _dtype(description), buffer=raw, order=order)
    # (elements of no bytes may be countless)
    if array.nbytes != len(raw) or array.size > max(len(raw), 1_000_000):
        raise CorruptionError("The size of a stored array does not match its shape.")
    return array.copy(order=order)


def _scalar(scalar: Any, packer: Packer) -> bytes:
    """Encode text and bytes as such (an array would strip trailing zeros), others as raw bytes."""
    if scalar.dtype.kind in "US":
        base: Any = str if scalar.dtype.kind == "U" else bytes
        return packer.pack([scalar.dtype.kind, base.__getitem__(scalar, slice(None))])
    return packer.pack([describe_dtype(scalar.dtype), scalar.tobytes()])


def _read_scalar(data: bytes, unpacker: Unpacker) -> Any:
    numpy = imported("numpy")
    description, raw = unpacker.unpack(data)
    if description in ("U", "S"):
        return (numpy.str_ if description == "U" else numpy.bytes_)(raw)
    return numpy.ndarray((), _dtype(description), buffer=raw).copy()[()]


def describe_dtype(dtype: Any) -> Any:
    """Return a plain description that rebuilds exactly this dtype."""
    from numpy.lib import format as form  # noqa: PLC0415 - the program has imported numpy

    try:
        description = form.dtype_to_descr(dtype)
        same = not dtype.hasobject and form.descr_to_dtype(description) == dtype
    except (TypeError, ValueError):
        same = False
    if not same:
        raise UnserializableError(
            f"A NumPy array of dtype {dtype!r} cannot be stored exactly.",
            hint="Convert it to numbers, fixed-size strings or a plain list first.",
        )
    return description


def _dtype(description: Any) -> Any:
    from numpy.lib import format as form  # noqa: PLC0415 - the program has imported numpy

    try:
        dtype = form.descr_to_dtype(description)
    except SyntaxError as error:
        raise CorruptionError(f"NumPy has no type {description!r}.") from error
    if dtype.hasobject:
        raise CorruptionError("A stored array claims to hold Python objects.")
    return dtype


DECODERS |= {Tag.NDARRAY: _read_array, Tag.NUMPY_SCALAR: _read_scalar}
