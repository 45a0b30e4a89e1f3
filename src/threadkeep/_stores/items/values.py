"""Values of items as bytes and back, and patches between versions of one item."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

import orjson
import zstandard
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep._core.codec import Codec, NativeCodec, SerdeCodec
from threadkeep._core.codec.frame import MAX_BODY
from threadkeep._stores.items.records import Namespace, Packed
from threadkeep.errors import CorruptionError, invalid

_EXACT = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_STRICT_INTEGER  # databases compare larger numbers as floats, or not at all
)
_LEVEL = 3
_JSON, _BYTES = b"j", b"b"


class ItemPacker:
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
        if self.is_own:
            try:
                data = orjson.dumps(plain, option=_EXACT)
            except orjson.JSONEncodeError:  # another type, or a lone surrogate
                return self._codec.encode(plain)
            # (tuples, UUIDs and NaN become something else; PostgreSQL has no NUL)
            if b"\\u0000" not in data and orjson.loads(data) == plain:
                return data.decode()
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


# -- checksums ---------------------------------------------------------------------------

_BITS = [f"{byte:08b}".translate(str.maketrans("01", " \t")) for byte in range(256)]
_LENGTH, _SEALED = 16, b"\0"  # (the codec's bytes of a dict begin with another one)


def seal(packed: Packed, namespace: Namespace, key: str) -> Packed:
    """Add a checksum (CRC-32, folded to 16 bits) of a value and of the item that it belongs to.

    JSON gets 16 spaces and tabs at its end, a bit each, which leaves it the same JSON to every
    database; bytes get three in front.
    """
    if isinstance(packed, str):
        high, low = divmod(_checksum(packed.encode(), namespace, key), 256)
        return packed + _BITS[high] + _BITS[low]
    return _SEALED + _checksum(packed, namespace, key).to_bytes(2, "big") + packed


def unseal(packed: Packed, namespace: Namespace, key: str) -> Packed:
    """Check and remove the checksum, which values of older releases lack.

    Raises:
        CorruptionError: it is not that of this value and this item.
    """
    plain = without_checksum(packed)
    if plain is not packed and seal(plain, namespace, key) != packed:
        raise CorruptionError("its checksum does not match")
    return plain


def without_checksum(packed: Packed) -> Packed:
    """Remove the checksum, if there is one, unchecked."""
    if isinstance(packed, str):
        return packed[:-_LENGTH] if packed[-1:] in (" ", "\t") else packed
    return packed[3:] if packed[:1] == _SEALED else packed


def _checksum(data: bytes, namespace: Namespace, key: str) -> int:
    # (`repr` would not do: which characters it escapes grows with Python's Unicode tables)
    crc = crc32(ascii((*namespace, key)).encode(), crc32(data))
    return (crc >> 16) ^ (crc & 0xFFFF)


# -- patches -----------------------------------------------------------------------------


def patch(old: Packed, new: Packed | None) -> bytes:
    """Encode the old version as a patch; `patched` rebuilds it from the new version."""
    kind, data = (_JSON, old.encode()) if isinstance(old, str) else (_BYTES, old)
    packer = zstandard.ZstdCompressor(level=_LEVEL, dict_data=_dictionary(new), write_checksum=True)
    return kind + packer.compress(data)


def patched(data: bytes, new: Packed | None) -> Packed:
    """Return the old version.

    Raises:
        CorruptionError: the patch is damaged, or of another version than `new`.
    """
    try:
        is_bounded = 0 <= zstandard.frame_content_size(data[1:]) <= MAX_BODY
        old = zstandard.ZstdDecompressor(dict_data=_dictionary(new)).decompress(
            data[1:] if is_bounded else b""
        )
        return old.decode() if data[:1] == _JSON else old
    except (zstandard.ZstdError, TypeError, ValueError) as error:
        raise CorruptionError("A version of an item cannot be read.") from error


def _dictionary(base: Packed | None) -> zstandard.ZstdCompressionDict | None:
    if not base:
        return None
    data = base.encode() if isinstance(base, str) else base
    return zstandard.ZstdCompressionDict(data, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
