"""Values of items as bytes and back, and patches between versions of one item."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import orjson
import zstandard
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep.codec import Codec, NativeCodec, SerdeCodec
from threadkeep.errors import CorruptionError, invalid
from threadkeep.store.records import Packed

_SCALARS = frozenset({str, bool, type(None)})
_DEEP = 64  # values that are nested more deeply are left to the codec
_INT = 2**53  # databases compare larger numbers as floats, or not at all
_LEVEL = 3
_JSON, _BYTES = b"j", b"b"


class Packer:
    """Packs values: as JSON, which databases can search, else by the codec.

    Args:
        serde: a serializer that packs all values, instead of both.
        codec: the codec for values that are no JSON.
    """

    def __init__(self, serde: SerializerProtocol | None = None, codec: Codec | None = None) -> None:
        self.is_own = serde is None
        self._codec = SerdeCodec(serde) if serde is not None else codec or NativeCodec()

    def pack(self, value: Mapping[str, Any]) -> Packed:
        """Pack a value.

        Raises:
            InvalidArgumentError: it is no mapping.
            UnserializableError: it cannot be stored so that it comes back exactly.
        """
        if not isinstance(value, Mapping):
            raise invalid("value", value, "Use a dict with texts as keys.")
        plain = value if type(value) is dict else dict(value)
        if self.is_own and is_json(plain):
            try:
                text = orjson.dumps(plain).decode()
            except orjson.JSONEncodeError:  # a lone surrogate
                return self._codec.encode(plain)
            if "\\u0000" not in text:  # (PostgreSQL has no such character)
                return text
        return self._codec.encode(plain)

    def unpack(self, packed: Packed) -> dict[str, Any]:
        """Return the value."""
        if isinstance(packed, str):
            try:
                value = orjson.loads(packed)
            except orjson.JSONDecodeError as error:
                raise CorruptionError("The stored item is no JSON.") from error
        else:
            value = self._codec.decode(packed)
        if type(value) is not dict:
            raise CorruptionError("The stored item is no dict.")
        found: dict[str, Any] = value
        return found


def is_json(value: Any, depth: int = 0) -> bool:
    """Return True if a value comes back from JSON as it was."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is int:
        return bool(-_INT <= value <= _INT)
    if kind is float:
        return isfinite(value)
    if depth == _DEEP:
        return False
    if kind is dict:
        for key, one in value.items():
            if type(key) is not str or not (type(one) is str or is_json(one, depth + 1)):
                return False
        return True
    return kind is list and all(is_json(one, depth + 1) for one in value)


# -- patches -----------------------------------------------------------------------------


def patch(old: Packed, new: Packed | None) -> bytes:
    """Return bytes of which, beside the new version, `patched` makes the old one."""
    kind, data = (_JSON, old.encode()) if isinstance(old, str) else (_BYTES, old)
    packer = zstandard.ZstdCompressor(level=_LEVEL, dict_data=_dictionary(new))
    return kind + packer.compress(data)


def patched(data: bytes, new: Packed | None) -> Packed:
    """Return the old version."""
    try:
        old = zstandard.ZstdDecompressor(dict_data=_dictionary(new)).decompress(data[1:])
        return old.decode() if data[:1] == _JSON else old
    except (zstandard.ZstdError, UnicodeDecodeError) as error:
        raise CorruptionError("A version of an item cannot be read.") from error


def _dictionary(base: Packed | None) -> zstandard.ZstdCompressionDict | None:
    if not base:
        return None
    data = base.encode() if isinstance(base, str) else base
    return zstandard.ZstdCompressionDict(data, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
