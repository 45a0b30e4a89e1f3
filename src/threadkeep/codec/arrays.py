"""NumPy arrays and scalars, for programs that use NumPy themselves.

Only NumPy's values live here. Invariant: NumPy is never imported; it is used only where
the program has imported it. Arrays come back in row or column order, as they were,
writable or not, as they were; views come back as arrays of their own.
"""

from __future__ import annotations

import sys
from typing import Any

from threadkeep.codec.format import Packer, Rule, Tag, Unpacker
from threadkeep.errors import CorruptionError, UnknownTypeError, UnserializableError

_COLUMN_ORDER = 1
_READ_ONLY = 2


def rule_for(cls: type) -> Rule | None:
    """Return the rule for a NumPy class, None for any other."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "ndarray"):
        return None
    if cls is numpy.ndarray:
        return Rule(Tag.NDARRAY, encode_array)
    return Rule(Tag.NUMPY_SCALAR, encode_scalar) if issubclass(cls, numpy.generic) else None


def encode_array(array: Any, packer: Packer) -> bytes:
    """Element type, shape, order and raw bytes."""
    column = array.flags.f_contiguous and not array.flags.c_contiguous
    flags = _COLUMN_ORDER * column | _READ_ONLY * (not array.flags.writeable)
    raw = array.tobytes(order="F" if column else "C")
    return packer.pack([_describe(array.dtype), array.shape, flags, raw])


def decode_array(data: bytes, unpacker: Unpacker) -> Any:
    """Rebuild an array that owns its memory."""
    description, shape, flags, raw = unpacker.unpack(data)
    array = make(description, shape, "F" if flags & _COLUMN_ORDER else "C", raw)
    array.setflags(write=not flags & _READ_ONLY)
    return array


def make(description: Any, shape: Any, order: str, raw: bytes) -> Any:
    """Return an array of these bytes."""
    numpy = _numpy()
    array = numpy.ndarray(shape, _dtype(description), buffer=raw, order=order).copy(order=order)
    if array.nbytes != len(raw):
        raise CorruptionError("A stored array does not have the size of its shape.")
    return array


def encode_scalar(scalar: Any, packer: Packer) -> bytes:
    """Text and bytes as such (an array would strip trailing zeros), others as raw bytes."""
    if scalar.dtype.kind in "US":
        base: Any = str if scalar.dtype.kind == "U" else bytes
        return packer.pack([scalar.dtype.kind, base.__getitem__(scalar, slice(None))])
    return packer.pack([_describe(scalar.dtype), scalar.tobytes()])


def decode_scalar(data: bytes, unpacker: Unpacker) -> Any:
    """Rebuild a scalar of its exact NumPy type."""
    numpy = _numpy()
    description, raw = unpacker.unpack(data)
    if description == "U":
        return numpy.str_(raw)
    if description == "S":
        return numpy.bytes_(raw)
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


def _numpy() -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise UnknownTypeError(
            "The stored value is a NumPy array, and this program has not imported numpy.",
            hint="Add to your program: import numpy",
        )
    return numpy
