r"""SQL statements, and values as PostgreSQL stores and takes them.

Text may hold a NUL, which PostgreSQL cannot store: it becomes `\x01\x01`, and a `\x01` becomes
`\x01\x02`, so that what is stored sorts as Python sorts the texts. In JSON, where both can only be
escapes, the same is done to the escapes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

from psycopg import pq
from psycopg.adapt import AdaptersMap, Dumper

Rows: TypeAlias = list[tuple[Any, ...]]


class Statement(NamedTuple):
    """An SQL text, with `{schema}` for the schema's quoted name, and its parameters.

    With `keep=False` the server plans it each time, as its values decide the plan.
    """

    sql: str
    values: tuple[Any, ...] = ()
    keep: bool = True


class Query(NamedTuple):
    """The statements that answer a read, and the function from their rows to its reply."""

    statements: tuple[Statement, ...]
    reply: Callable[[Sequence[Rows]], Any]


# -- text ----------------------------------------------------------------------------

_JSON_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\u000([01])")
_ESCAPED = {"0": "\\u0001\\u0001", "1": "\\u0001\\u0002"}


def pack_text(text: str) -> str:
    """Escape a text for PostgreSQL."""
    if text.isprintable() or ("\0" not in text and "\1" not in text):
        return text
    return text.replace("\1", "\1\2").replace("\0", "\1\1")


def pack_optional(text: str | None) -> str | None:
    """Escape a text that may be None."""
    return None if text is None else pack_text(text)


def unpack_text(stored: str) -> str:
    """Return the text that `pack_text` escaped."""
    if "\1" not in stored:
        return stored
    return stored.replace("\1\1", "\0").replace("\1\2", "\1")


def unpack_optional(stored: str | None) -> str | None:
    """Return the text that `pack_optional` escaped."""
    return None if stored is None else unpack_text(stored)


def pack_json(text: str) -> str:
    """Escape the texts in a JSON text."""
    if "\\u000" not in text:
        return text
    return _JSON_ESCAPE.sub(lambda found: found[1] + _ESCAPED[found[2]], text)


# -- metadata --------------------------------------------------------------------------

# jsonb orders keys its own way and writes spaces. Most metadata looks like this and can be written
# again from the jsonb; of any other the text is stored too.
_PLAIN = re.compile(r'\{"source":"([a-z]{1,16})","step":(-?[1-9][0-9]{0,17}|0),"parents":\{\}\}')
_STORED = re.compile(r'\{"step": (-?[0-9]+), "source": "([a-z]+)", "parents": \{\}\}')


def pack_metadata(text: str) -> tuple[str, str | None]:
    """Return the values of the columns `metadata` and `metadata_text`."""
    return pack_json(text), None if _PLAIN.fullmatch(text) else pack_text(text)


def unpack_metadata(stored: str, text: str | None) -> str:
    """Return the metadata, letter by letter, of the two columns as text."""
    if text is not None:
        return unpack_text(text)
    plain = _STORED.fullmatch(stored)
    if plain is None:  # edited by hand: what it says
        return stored
    return f'{{"source":"{plain[2]}","step":{plain[1]},"parents":{{}}}}'


# -- arrays in binary form, column by column -------------------------------------------

_HEAD = Struct("!iiIii").pack  # dimensions, flags, type of the elements, length, first index
_NONE = Struct("!iiI").pack  # an array without elements has no dimensions
_LENGTH = Struct("!i").pack
_NUMBER = Struct("!iq").pack  # with its length
_NULL = _LENGTH(-1)
_TRUE, _FALSE = _LENGTH(1) + b"\1", _LENGTH(1) + b"\0"


class Array(bytes):
    """An array parameter, sent as it is. The statement's text casts it to its type."""

    __slots__ = ()


class _ArrayDumper(Dumper):
    format = pq.Format.BINARY

    def dump(self, obj: Array) -> bytes:
        return obj


def register_arrays(adapters: AdaptersMap) -> None:
    """Let a cursor, or whatever else these adapters belong to, send an `Array`."""
    adapters.register_dumper(Array, _ArrayDumper)


def array(kind: str, column: Sequence[Any]) -> Array:
    """Encode a column, which may hold None."""
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


_KINDS: dict[str, tuple[int, Callable[[Any], bytes], Array]] = {
    kind: (oid, encode, Array(_NONE(0, 0, oid)))
    for kind, oid, encode in (
        *(("bigint", 20, _numbers), ("text", 25, _texts)),
        *(("bytea", 17, _bytes), ("boolean", 16, _booleans)),
    )
}
