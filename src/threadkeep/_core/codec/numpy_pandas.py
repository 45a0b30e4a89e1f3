"""NumPy arrays and scalars, and times of pandas, where the program has imported these.

Arrays come back in row or column order and writable or not, as they were.
"""

from __future__ import annotations

import sys
from typing import Any

from threadkeep._core.codec.format import Decode, Packer, Rule, Tag, Unpacker
from threadkeep._core.codec.values import check_zone
from threadkeep.errors import CorruptionError, UnknownTypeError, UnserializableError

_COLUMN_ORDER = 1
_READ_ONLY = 2


def rule_for(cls: type) -> Rule | None:
    """Return the rule for a class of NumPy or pandas, None for any other."""
    numpy, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
    if numpy is not None and hasattr(numpy, "ndarray"):
        if cls is numpy.ndarray:
            return Rule(Tag.NDARRAY, _array)
        if issubclass(cls, numpy.generic):
            return Rule(Tag.NUMPY_SCALAR, _scalar)
    if pandas is not None and hasattr(pandas, "Timestamp"):
        if cls is pandas.Timestamp:
            return Rule(Tag.PANDAS_TIMESTAMP, _timestamp)
        if cls is pandas.Timedelta:
            return Rule(Tag.PANDAS_TIMEDELTA, lambda value, packer: packer.pack(_units(value)))
        if cls is type(pandas.NaT):
            return Rule(Tag.PANDAS_NAT, lambda _, __: b"")
    return None


def _imported(name: str) -> Any:
    module = sys.modules.get(name)
    if module is None:
        raise UnknownTypeError(
            f"The stored value is a value of {name}, which this program has not imported.",
            hint=f"Add to your program: import {name}",
        )
    return module


def _array(array: Any, packer: Packer) -> bytes:
    column = array.flags.f_contiguous and not array.flags.c_contiguous
    flags = _COLUMN_ORDER * column | _READ_ONLY * (not array.flags.writeable)
    raw = array.tobytes(order="F" if column else "C")
    return packer.pack([_describe(array.dtype), array.shape, flags, raw])


def _read_array(data: bytes, unpacker: Unpacker) -> Any:
    description, shape, flags, raw = unpacker.unpack(data)
    array = make_array(description, shape, "F" if flags & _COLUMN_ORDER else "C", raw)
    array.setflags(write=not flags & _READ_ONLY)
    return array


def make_array(description: Any, shape: Any, order: str, raw: bytes) -> Any:
    """Return an array of these bytes that owns its memory."""
    numpy = _imported("numpy")
    array = numpy.ndarray(shape, _dtype(description), buffer=raw, order=order).copy(order=order)
    if array.nbytes != len(raw):
        raise CorruptionError("A stored array does not have the size of its shape.")
    return array


def _scalar(scalar: Any, packer: Packer) -> bytes:
    """Text and bytes as such (an array would strip trailing zeros), others as raw bytes."""
    if scalar.dtype.kind in "US":
        base: Any = str if scalar.dtype.kind == "U" else bytes
        return packer.pack([scalar.dtype.kind, base.__getitem__(scalar, slice(None))])
    return packer.pack([_describe(scalar.dtype), scalar.tobytes()])


def _read_scalar(data: bytes, unpacker: Unpacker) -> Any:
    numpy = _imported("numpy")
    description, raw = unpacker.unpack(data)
    if description in ("U", "S"):
        return (numpy.str_ if description == "U" else numpy.bytes_)(raw)
    return numpy.ndarray((), _dtype(description), buffer=raw).copy()[()]


def _describe(dtype: Any) -> Any:
    """Return a plain description that gives the very same dtype back."""
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


def _units(value: Any) -> list[Any]:
    numpy = _imported("numpy")
    return [int(value.asm8.view("i8")), numpy.datetime_data(value.asm8.dtype)[0]]


def _timestamp(value: Any, packer: Packer) -> bytes:
    check_zone(value.tzinfo)
    return packer.pack([*_units(value), value.tzinfo, value.fold])


def _read_timestamp(data: bytes, unpacker: Unpacker) -> Any:
    pandas = _imported("pandas")
    number, unit, zone, fold = unpacker.unpack(data)
    value = pandas.Timestamp(_imported("numpy").datetime64(number, unit))
    if zone is not None:
        value = value.tz_localize("UTC").tz_convert(zone)
    return value if value.fold == fold else value.replace(fold=fold)


DECODERS: dict[int, Decode] = {
    Tag.NDARRAY: _read_array,
    Tag.NUMPY_SCALAR: _read_scalar,
    Tag.PANDAS_TIMESTAMP: _read_timestamp,
    Tag.PANDAS_TIMEDELTA: lambda data, unpacker: _imported("pandas").Timedelta(
        _imported("numpy").timedelta64(*unpacker.unpack(data))
    ),
    Tag.PANDAS_NAT: lambda _, __: _imported("pandas").NaT,
}
