"""Converts items to keys, members and fields of Redis, and back.

    counter     text        counts the puts
    items       hash        by field: the row, which is number version created updated ttl expires
                            (0 for none), mark, and the value and `ItemPut.pending`
    order       sorted set  members
    expiring    sorted set  field, by the time of its expiry
    waiting     sorted set  members of items without their vectors so far
    dims        text        the dimensions of the vectors
    vectors     hash        by field: the vectors, concatenated
    words       hash        by field: the tokens
    versions    sorted set  field NUL, version, (updated, replaced, deleted, patch)

A path is the labels of a namespace, each followed by a NUL; a field is path NUL key; a member is
path NUL number key. The number is the first version of the item. Texts are escaped and numbers have
8 bytes (see `_stores.redis.rows`).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from struct import Struct

from ormsgpack import packb, unpackb

from threadkeep._stores.items import records
from threadkeep._stores.items.records import ItemRow, Namespace
from threadkeep._stores.redis.rows import Word, pack_number, pack_text, unpack_number, unpack_text
from threadkeep.errors import CorruptionError

KINDS = (
    *("counter", "items", "order", "expiring", "waiting"),
    *("dims", "vectors", "words", "versions"),
)
_HEAD = Struct(">6qB")
_TIMES = Struct(">3q")
_SIZE = Struct(">I")
_HAS_VECTORS, _IS_WAITING = 1, 2  # the mark


# -- rows --------------------------------------------------------------------------------


@lru_cache(1024)
def path_of(namespace: Namespace) -> bytes:
    """Pack a namespace."""
    # (an empty label is in no namespace)
    return b"".join([(pack_text(label) or b"\x01") + b"\0" for label in namespace])


@lru_cache(1024)
def namespace_of(path: bytes) -> Namespace:
    """Return the namespace that `path_of` packed."""
    return tuple(map(unpack_text, path[:-1].split(b"\0")))


def field_of(namespace: Namespace, key: str) -> bytes:
    """Pack the key of an item."""
    return path_of(namespace) + b"\0" + pack_text(key)


def split(field: bytes) -> tuple[bytes, bytes]:
    """Return the path and the packed key of a field."""
    path, _, key = field.partition(b"\0\0")
    return path + b"\0", key


def field_in(member: bytes) -> bytes:
    """Return the field of a member."""
    path, key = split(member)
    return path + b"\0" + key[8:]


def pack_place(place: records.ItemPlace) -> bytes:
    """Return the beginning of an item's member, without its key."""
    path: bytes = place[0]
    return path + b"\0" + pack_number(place[1])


def is_at(member: bytes, data: bytes) -> bool:
    """Return True if the row is the member's."""
    return split(member)[1][:8] == data[:8]


def unpack_item(field: bytes, data: bytes) -> ItemRow:
    """Unpack an item.

    Raises:
        CorruptionError: the row cannot be read.
    """
    path, key = split(field)
    try:
        number, version, created, updated, ttl, expires, mark = _HEAD.unpack_from(data)
        value, pending = unpackb(data[_HEAD.size :])
    except (ValueError, TypeError, struct.error) as failure:
        name = f"{unpack_text(key)!r} in {namespace_of(path)}"
        raise CorruptionError(f"Item {name} cannot be read.") from failure
    ends = (ttl or None, expires or None, pending if mark == _IS_WAITING else None)
    times, place = (created, updated, version), (path, number)
    return ItemRow(namespace_of(path), unpack_text(key), value, *times, place, *ends)


def has_vectors(data: bytes) -> bool:
    """Return True if the row says that its item has vectors."""
    return data[_HEAD.size - 1] == _HAS_VECTORS


def unpack_version(member: bytes) -> records.VersionRow:
    """Unpack an earlier version from the part of its member after the field."""
    try:
        updated, replaced, deleted, patch = unpackb(member[8:])
    except (ValueError, TypeError) as failure:
        raise CorruptionError("A version of an item cannot be read.") from failure
    return records.VersionRow(unpack_number(member[:8]), updated, replaced, deleted, patch)


# -- arguments of changes ----------------------------------------------------------------


def change_words(change: records.ItemChange) -> list[Word]:
    """Return the kind of a change and its arguments, as `items.lua` takes them."""
    match change:
        case records.PutItems():
            puts = [_put_word(put, change.now) for put in change.puts]
            return ["put", records.random_bits(), *puts]
        case records.RefreshItems():
            return ["refresh", change.now, *[field_of(*key) for key in change.keys]]
        case records.EmbedItems():
            items = [
                _joined(
                    field_of(each.namespace, each.key),
                    pack_number(each.version),
                    b"%d" % (len(each.vectors[0].data) // 4) if each.vectors else b"",
                    b"".join([vector.data for vector in each.vectors]),
                )
                for each in change.items
            ]
            return ["embed", "", *items]
        case records.ReplacePatches():
            return ["repatch", "", *[_repatched(*one) for one in change.versions]]


def version_member(namespace: Namespace, key: str, row: records.VersionRow) -> bytes:
    """Return the member of an earlier version."""
    version, *rest = row
    return field_of(namespace, key) + b"\0" + pack_number(version) + packb(rest)


def unpack_stored(member: bytes) -> records.StoredVersion:
    """Unpack a member of the versions."""
    path, rest = split(member)
    key, _, version = rest.partition(b"\0")
    return records.StoredVersion(namespace_of(path), unpack_text(key), unpack_version(version))


def _repatched(one: records.StoredVersion, patch: bytes) -> bytes:
    new = one.row._replace(patch=patch)
    name = one[:2]
    return _joined(version_member(*name, one.row), version_member(*name, new))


def _joined(*parts: bytes) -> bytes:
    return b"".join([word for part in parts for word in (_SIZE.pack(len(part)), part)])


def _put_word(put: records.ItemPut, now: int) -> bytes:
    field = field_of(put.namespace, put.key)
    expects = b"" if put.expects is None else pack_number(put.expects)
    kept, keep = b"", b""
    if put.earlier is not None:
        version, *rest = put.earlier.row
        kept, keep = pack_number(version) + packb(rest), b"%d" % put.earlier.keep
    if put.value is None:
        return _joined(field, *[b""] * 8, expects, kept, keep)
    created, updated, expires = put.times_at(now, 0)
    times = _TIMES.pack(updated, put.ttl or 0, expires or 0)
    made = pack_number(created) if put.times else b""
    score = b"%d" % expires if expires else b""
    vectors = b"".join([vector.data for vector in put.vectors])
    dims = b"%d" % (len(put.vectors[0].data) // 4) if vectors else b""
    mark = _IS_WAITING if put.pending is not None else _HAS_VECTORS if vectors else 0
    tail = packb((put.value, put.pending))
    row = (tail, made, times, score, b"%c" % mark, dims, vectors, (put.words or "").encode())
    return _joined(field, *row, expects, kept, keep)
