"""Records between a store of items and its backends, and the encoding of items.

A namespace is a tuple of labels. Times and lifetimes are integers in microseconds; times count
from 1970. A value is JSON text (`str`), else the codec's bytes. Vectors are little-endian float32.
The counter of a store only grows; an item's version is the count at its put, and random bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from secrets import randbits
from typing import Any, Literal, NamedTuple, TypeAlias
from zlib import crc32

import orjson
import zstandard
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep._core.codec import Codec, FormerSerde, NativeCodec, SerdeCodec
from threadkeep._core.codec.frame import may_hold
from threadkeep._core.codec.shapes import ShapedCodec
from threadkeep.errors import CodecError, CorruptionError, invalid

Namespace: TypeAlias = tuple[str, ...]
ItemKey: TypeAlias = tuple[Namespace, str]
Packed: TypeAlias = str | bytes
ItemPlace: TypeAlias = tuple[Any, Any]
VectorMetric: TypeAlias = Literal["cosine", "l2", "inner_product"]


class Unopened(bytes):
    """Takes the place of an encrypted value that does not open."""

    error: CodecError

    @classmethod
    def because(cls, error: CodecError) -> Unopened:
        """Return the substitute for a value that fails with this error."""
        found = cls()
        found.error = error
        return found


def opened(value: Packed) -> Packed:
    """Return the value, or raise the error that prevented its opening."""
    if isinstance(value, Unopened):
        raise value.error
    return value


class SearchOptions(NamedTuple):
    """The part of a store's index that its backend knows.

    `dims` is 0 without vectors; `text` is True if items are searched by words.
    """

    dims: int = 0
    metric: VectorMetric = "cosine"
    text: bool = False


# -- rows --------------------------------------------------------------------------------


class ItemRow(NamedTuple):
    """A stored item.

    Lists are in the order of places, which are the database's own: an item keeps its place while it
    exists. `pending` is that of its put.
    """

    namespace: Namespace
    key: str
    value: Packed
    created_at: int
    updated_at: int
    version: int
    place: ItemPlace
    ttl: int | None = None
    expires_at: int | None = None
    pending: str | None = None

    @property
    def age(self) -> tuple[int, int]:
        """The place of the item in a list of the items updated last."""
        return self.updated_at, self.version

    def is_there(self, now: int | None) -> bool:
        """Return False if the item has expired by `now`; a damaged time never has."""
        return now is None or type(self.expires_at) is not int or self.expires_at > now


class Scored(NamedTuple):
    """An item that a search found. A higher score is better."""

    row: ItemRow
    score: float


class VersionRow(NamedTuple):
    """An earlier version of an item, as a patch of the one that replaced it.

    See `patch`. For a deleted item, the new version is empty.
    """

    version: int
    updated_at: int
    replaced_at: int
    deleted: bool
    patch: bytes


class StoredVersion(NamedTuple):
    """An earlier version and its item, which may be deleted."""

    namespace: Namespace
    key: str
    row: VersionRow


class Condition(NamedTuple):
    """A test of one field: `path` leads to it, `operator` is `$eq`, `$gt`, `$gte`, `$lt`, `$lte`.

    `value` is a str, int, float or bool.
    """

    path: tuple[str, ...]
    operator: str
    value: Any


# -- versions ----------------------------------------------------------------------------
#
# A store that loses its last commits counts to the same numbers again. Its random bits tell a lost
# version from another put's. The versions of the first 34 billion puts are below 2^53.

VERSION_STEP = 1 << 18


def random_bits() -> int:
    """Return random bits, below `VERSION_STEP`, for the versions of one transaction."""
    return randbits(18)


# -- reads -------------------------------------------------------------------------------
#
# `prefix` matches the namespaces that begin with its labels. `where` is a hint: rows that fail one
# of its conditions may be left out, but never rows whose value is not JSON. With `now`, items
# expired by then are left out.


class GetItems(NamedTuple):
    """Read items. Reply: for each key its `ItemRow`, or None."""

    keys: tuple[ItemKey, ...]
    now: int | None = None


class FindItems(NamedTuple):
    """Read items in the order of their places. Reply: a list of `ItemRow`.

    `offset` is used without `where`. With `after`, only items after that place; with `bare`, only
    items without vectors; with `pending`, only those that wait for them. With `newest`, the items
    updated last come first, and `after` is the `age` of an item; only a backend with `newest_first`
    is asked so.
    """

    prefix: Namespace
    limit: int
    offset: int = 0
    where: tuple[Condition, ...] = ()
    after: ItemPlace | None = None
    now: int | None = None
    bare: bool = False
    newest: bool = False
    pending: bool = False


class FindNamespaces(NamedTuple):
    """Read the namespaces that hold items. Reply: a list of them, in any order."""

    prefix: Namespace
    now: int | None = None


class FindNearest(NamedTuple):
    """Find the items with the nearest vectors. Reply: a list of `Scored`, best first.

    The score of an item is that of its best vector; equal scores are in the order of places.
    """

    prefix: Namespace
    vector: bytes
    limit: int
    where: tuple[Condition, ...] = ()
    now: int | None = None


class FindText(NamedTuple):
    """Find the items whose texts have any of these words. Reply: a list of `Scored`, best first.

    Scores are the database's own, and comparable only with each other.
    """

    prefix: Namespace
    words: tuple[str, ...]
    limit: int
    where: tuple[Condition, ...] = ()
    now: int | None = None


class FindVersions(NamedTuple):
    """Read earlier versions, of one item or of all. Reply: a list of `StoredVersion`.

    They are in the order of their items, then of their numbers. With `after`, only later ones.
    """

    limit: int
    item: ItemKey | None = None
    after: StoredVersion | None = None


# -- changes -----------------------------------------------------------------------------


class Vector(NamedTuple):
    """The vector of the text at a path of a value."""

    path: str
    data: bytes


class Earlier(NamedTuple):
    """The version that a put replaces, for the history; at most `keep` of an item are kept."""

    row: VersionRow
    keep: int


class ItemPut(NamedTuple):
    """Put an item, or delete it (`value` None).

    An existing item keeps its place and `created_at`; everything else is replaced.
    """

    namespace: Namespace
    key: str
    value: Packed | None
    ttl: int | None = None
    vectors: tuple[Vector, ...] = ()
    words: str | None = None  # the tokens of its texts, with spaces between them
    pending: str | None = None  # (the fields to embed later)
    expects: int | None = None  # its version, or 0 if it must not exist; None: any
    earlier: Earlier | None = None
    times: tuple[int, int, int | None] | None = None  # created, updated, expires; None: by `now`

    def times_at(self, now: int, created: int) -> tuple[int, int, int | None]:
        """Return `times`, or the times of a put by `now` of an item that was created then."""
        return self.times or (created, now, None if self.ttl is None else now + self.ttl)


class PutItems(NamedTuple):
    """Put items, all or none. They have different keys.

    Raises:
        ConflictError: an item does not have the expected version.
    """

    puts: tuple[ItemPut, ...]
    now: int


class RefreshItems(NamedTuple):
    """Restart the lifetimes of items; items without a lifetime are not changed."""

    keys: tuple[ItemKey, ...]
    now: int


class EmbedItem(NamedTuple):
    """Add the pending vectors of an item, unless it was put again since."""

    namespace: Namespace
    key: str
    version: int
    vectors: tuple[Vector, ...]


class EmbedItems(NamedTuple):
    """Add the vectors of several items."""

    items: tuple[EmbedItem, ...]


class ReplacePatches(NamedTuple):
    """Replace the patches of versions, unless they were removed.

    Each is given as it was read, with its new patch.
    """

    versions: tuple[tuple[StoredVersion, bytes], ...]


ItemRead: TypeAlias = GetItems | FindItems | FindNamespaces | FindNearest | FindText | FindVersions
ItemChange: TypeAlias = PutItems | RefreshItems | EmbedItems | ReplacePatches


# -- items as bytes ------------------------------------------------------------------


_EXACT = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_STRICT_INTEGER  # databases compare larger numbers as floats or not at all
)
_LEVEL = 3
_JSON, _BYTES = b"j", b"b"


class ItemPacker:
    """Packs values: as JSON, which databases can search, or by the codec.

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
            UnserializableError: it would not come back exactly.
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

    def is_older(self, packed: Packed) -> bool:
        """Return True if a value has an older shape, or is of a former serializer."""
        codec = self._codec
        if isinstance(packed, str) or not isinstance(codec, ShapedCodec | FormerSerde):
            return False
        return codec.renewed(packed) is not None

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
    """Add a checksum (CRC-32, folded to 16 bits) of a value and its item.

    JSON gets 16 spaces and tabs at its end, one for each bit: it is still the same JSON for
    every database. Bytes get three bytes in front.
    """
    if isinstance(packed, str):
        high, low = divmod(_checksum(packed.encode(), namespace, key), 256)
        return packed + _BITS[high] + _BITS[low]
    return _SEALED + _checksum(packed, namespace, key).to_bytes(2, "big") + packed


def unseal(packed: Packed, namespace: Namespace, key: str) -> Packed:
    """Check and remove the checksum. Values of older releases have none.

    Raises:
        CorruptionError: it does not match this value and item.
    """
    plain = without_checksum(packed)
    if plain is not packed and seal(plain, namespace, key) != packed:
        raise CorruptionError("its checksum does not match")
    return plain


def without_checksum(packed: Packed) -> Packed:
    """Remove the checksum, if there is one, without checking it."""
    if isinstance(packed, str):
        return packed[:-_LENGTH] if packed[-1:] in (" ", "\t") else packed
    return packed[3:] if packed[:1] == _SEALED else packed


def _checksum(data: bytes, namespace: Namespace, key: str) -> int:
    # (not `repr`, which escapes other characters in other versions of Python)
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
        CorruptionError: the patch is damaged, or does not fit `new`.
    """
    try:
        is_bounded = may_hold(data[1:], zstandard.frame_content_size(data[1:]))
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
