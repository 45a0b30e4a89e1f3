"""Arrays in PostgreSQL's binary form, made column by column.

Only this encoding lives here. psycopg converts a list value by value in Python; an `Array` is
sent as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Any

from psycopg import pq
from psycopg.adapt import AdaptersMap, Dumper

_HEAD = Struct("!iiIii").pack  # dimensions, flags, type of the elements, length, first index
_NONE = Struct("!iiI").pack  # an array without elements has no dimensions
_LENGTH = Struct("!i").pack
_NUMBER = Struct("!iq").pack  # with its length
_NULL = _LENGTH(-1)
_TRUE, _FALSE = _LENGTH(1) + b"\1", _LENGTH(1) + b"\0"


class Array(bytes):
    """An array parameter. Its type is the one that the statement's text casts it to."""

    __slots__ = ()


class _ArrayDumper(Dumper):
    format = pq.Format.BINARY

    def dump(self, obj: Array) -> bytes:
        return obj


def teach(adapters: AdaptersMap) -> None:
    """Let a cursor, or whatever else these are of, send an `Array`."""
    adapters.register_dumper(Array, _ArrayDumper)


def array(kind: str, column: Sequence[Any]) -> Array:
    """Encode a column, which may hold None.

    Args:
        kind: "bigint", "text", "bytea" or "boolean".
        column: what is in it: int, str, bytes or bool.

    Raises:
        UnicodeError: a text is no valid Unicode.
    """
    oid, encode, empty = _KINDS[kind]
    return Array(_HEAD(1, 0, oid, len(column), 1) + encode(column)) if column else empty


def _numbers(column: Iterable[int | None]) -> bytes:
    return b"".join([_NULL if value is None else _NUMBER(8, value) for value in column])


def _texts(column: Iterable[str | None]) -> bytes:
    return _bytes([None if value is None else value.encode() for value in column])


def _bytes(column: Iterable[bytes | None]) -> bytes:
    parts: list[bytes] = []
    for value in column:
        if value is None:
            parts.append(_NULL)
        else:
            parts += (_LENGTH(len(value)), value)
    return b"".join(parts)


def _booleans(column: Iterable[bool | None]) -> bytes:
    return b"".join([_NULL if one is None else _TRUE if one else _FALSE for one in column])


def _kind(oid: int, encode: Callable[[Any], bytes]) -> tuple[int, Callable[[Any], bytes], Array]:
    return oid, encode, Array(_NONE(0, 0, oid))


_KINDS = {
    "bigint": _kind(20, _numbers),
    "text": _kind(25, _texts),
    "bytea": _kind(17, _bytes),
    "boolean": _kind(16, _booleans),
}
