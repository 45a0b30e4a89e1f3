"""Items and cached results of nodes in front of a store that then holds them only sealed.

Names, times, lifetimes and sizes stay readable: stores find and order rows by them. The place of a
value names all fields beside it that the store keeps as they were put (design note 0026).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from threadkeep._core.codec import Compression, pack, unpack
from threadkeep._core.codec.frame import is_sealed
from threadkeep._core.engine.model import OWN_NS
from threadkeep._core.sealing import Sealer, place
from threadkeep._stores.base import AsyncBackend, Backend
from threadkeep._stores.caches import (
    KEY_BYTES,
    AsyncCacheBackend,
    CacheChange,
    GetEntries,
    ReadUses,
    SetEntries,
)
from threadkeep._stores.items import AsyncItemBackend, merged, records
from threadkeep._stores.items.records import (
    ItemRow,
    Namespace,
    Packed,
    StoredVersion,
    Unopened,
    VersionRow,
)
from threadkeep._stores.store_keys import StoreKeys
from threadkeep._stores.sync_bridge import Face, result
from threadkeep.errors import (
    CodecError,
    DestroyedKeyError,
    InvalidArgumentError,
    TamperedDataError,
    ThreadkeepError,
)

_CONFIRMED_FOR = 1.0  # seconds for which puts use the record of the store's keys
_JSON, _BYTES = b"j", b"b"
_COMPRESSION = Compression(over=2048)  # (PostgreSQL compresses plain values from there on)
_INDEXED = (records.FindNearest, records.FindText, records.EmbedItems)


def no_index() -> InvalidArgumentError:
    """Return the error for an index of sealed items."""
    return InvalidArgumentError(
        "An encrypted store cannot have an index: words and embeddings reveal the texts.",
        hint="Leave out index= or keys=.",
    )


class _ValueSealer:
    """Seals and opens the values of one group; opens none if their key was destroyed (`lost`)."""

    lost: CodecError | None = None

    def __init__(self, keys: StoreKeys, sealer: Sealer, group: str) -> None:
        self._takes_plain = keys.allow_plaintext
        self._sealer = sealer
        self._group = sealer.group(f"{OWN_NS}{group}")

    def seal(self, value: bytes, where: bytes) -> bytes:
        return self._sealer.seal(value, where, self._group)

    def opened(self, value: Any, where: bytes) -> Any:
        """Return the plain bytes, a plain row's value as it is, or an `Unopened`."""
        if self.lost is not None:
            return Unopened.because(self.lost)
        if not isinstance(value, bytes) or not is_sealed(value):
            if self._takes_plain:
                return value
            text = "It is not encrypted, and all values of this store are."
            return Unopened.because(TamperedDataError(text))
        try:
            return self._sealer.open(value, where, [self._group])
        except CodecError as error:
            return Unopened.because(error)


# -- items -------------------------------------------------------------------------------


class _ItemSealer(_ValueSealer):
    """Seals and opens the values of a namespace."""

    def put(self, put: records.ItemPut, now: int) -> records.ItemPut:
        """Seal an item and the version that it replaces."""
        if put.vectors or put.words or put.pending is not None:
            raise no_index()
        value, earlier = put.value, put.earlier
        if value is not None:
            updated = put.times[1] if put.times else now
            where = _place("item", put.namespace, put.key, updated, put.ttl)
            kind, data = (_JSON, value.encode()) if isinstance(value, str) else (_BYTES, value)
            value = self.seal(kind + pack([data], _COMPRESSION), where)
        if earlier is not None:
            earlier = earlier._replace(row=self.version(put.namespace, put.key, earlier.row))
        return put._replace(value=value, earlier=earlier)

    def opened_item(self, row: ItemRow) -> ItemRow:
        where = _place("item", row.namespace, row.key, row.updated_at, row.ttl)
        value = self.opened(row.value, where)
        return row if value is row.value else row._replace(value=_unpacked(value))

    def version(self, namespace: Namespace, key: str, row: VersionRow) -> VersionRow:
        """Seal an earlier version."""
        where = _place("version", namespace, key, *row[:-1])
        return row._replace(patch=self.seal(row.patch, where))

    def opened_version(self, one: StoredVersion) -> StoredVersion:
        where = _place("version", one.namespace, one.key, *one.row[:-1])
        return one._replace(row=one.row._replace(patch=self.opened(one.row.patch, where)))


def _place(kind: str, namespace: Namespace, *fields: Any) -> bytes:
    return place(kind, ascii((*namespace, *fields)))  # (a damaged field has any type)


def _unpacked(value: bytes) -> Packed:
    if isinstance(value, Unopened):
        return value
    (data,) = unpack(value[1:], 1)
    return data.decode() if value[:1] == _JSON else data


class _Sealed(Face):
    """Rows in front of a store that holds them sealed."""

    keys: StoreKeys

    def __init__(self, below: Backend | AsyncBackend, keys: StoreKeys) -> None:
        super().__init__(below)
        self.keys = keys
        self.instant = below.instant and keys.instant

    async def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        sealed = [await self._sealed(change) for change in changes]
        refusals: list[ThreadkeepError | None] = await result(self.below.commit_many(sealed))
        return refusals

    async def _sealed(self, change: Any) -> Any:
        """Return a change with sealed values."""
        raise NotImplementedError


class SealedItems(_Sealed, AsyncItemBackend):
    """Items in front of a store that holds them sealed."""

    def __init__(self, below: Backend | AsyncBackend, keys: StoreKeys) -> None:
        super().__init__(below, keys)
        self.newest_first = getattr(below, "newest_first", False)

    async def sealers(
        self, namespaces: Iterable[Namespace], *, to_write: bool = False
    ) -> dict[Namespace, _ItemSealer]:
        """Return the sealers of namespaces."""
        found: dict[Namespace, _ItemSealer] = {}
        if to_write:  # (a put proves no row that it needs)
            await self.keys.confirm(_CONFIRMED_FOR)
        of = self.keys.writing if to_write else self.keys.of
        for namespace in dict.fromkeys(namespaces):
            sealer, lost = self.keys.none, None
            try:
                sealer = await of(namespace[0] if namespace else "")
            except DestroyedKeyError as error:  # (a program that knew the key wrote late)
                if to_write:
                    raise
                lost = TamperedDataError(error.message)
            found[namespace] = _ItemSealer(self.keys, sealer, f"items {namespace!a}")
            found[namespace].lost = lost
        return found

    async def fetch(self, reads: Sequence[Any]) -> list[Any]:
        """Conditions of filters are left to the caller."""
        asked = [_without_hints(read) for read in reads]
        replies = await result(self.below.fetch(asked))
        return [await self._reply(*pair) for pair in zip(asked, replies, strict=True)]

    async def _reply(self, read: records.ItemRead, reply: Any) -> Any:
        match read:
            case records.GetItems() | records.FindItems():
                of = await self.sealers([row.namespace for row in reply if row])
                return [row and of[row.namespace].opened_item(row) for row in reply]
            case records.FindVersions():
                of = await self.sealers([one.namespace for one in reply])
                return [of[one.namespace].opened_version(one) for one in reply]
            case _:
                return reply

    async def commit(self, change: Any) -> None:
        await result(self.below.commit(await self._sealed(change)))

    async def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        """Puts are joined here, since the time of a put is part of its place."""
        together = merged(changes) if len(changes) > 1 else None
        if together is not None:
            await self.commit(together)
            return [None] * len(changes)
        return await super().commit_many(changes)

    async def _sealed(self, change: records.ItemChange) -> records.ItemChange:
        if isinstance(change, _INDEXED):
            raise no_index()
        if isinstance(change, records.PutItems):
            of = await self.sealers([put.namespace for put in change.puts], to_write=True)
            puts = [of[put.namespace].put(put, change.now) for put in change.puts]
            return change._replace(puts=tuple(puts))
        return change

    async def sweep(self, now: int, limit: int, prefix: Namespace = ()) -> int:
        return int(await result(self.below.sweep(now, limit, prefix)))

    async def erase(self, prefix: Namespace) -> int:
        return int(await result(self.below.erase(prefix)))


def _without_hints(read: Any) -> Any:
    if isinstance(read, _INDEXED):
        raise no_index()
    if isinstance(read, records.FindItems) and read.where:
        return read._replace(where=(), offset=0)  # (with conditions, `offset` is not used)
    return read


# -- caches ------------------------------------------------------------------------------


class SealedEntries(_Sealed, AsyncCacheBackend):
    """Cached results in front of a store that holds them sealed."""

    async def fetch(self, reads: Sequence[Any]) -> list[Any]:
        """A value that does not open is an `Unopened`."""
        replies = await result(self.below.fetch(reads))
        return [await self._opened(*pair) for pair in zip(reads, replies, strict=True)]

    async def _opened(self, read: GetEntries | ReadUses, reply: Any) -> Any:
        if isinstance(read, ReadUses) or not any(value is not None for value, _ in reply.values()):
            return reply
        of = self._sealers(await self.keys.of(read.tenant), reply)
        return {
            id_: (value if value is None else of[_space(id_)].opened(value, id_), owner)
            for id_, (value, owner) in reply.items()
        }

    async def _sealed(self, change: CacheChange) -> CacheChange:
        if not isinstance(change, SetEntries):
            return change
        sealer = await self.keys.writing(change.tenant)
        of = self._sealers(sealer, [id_ for id_, _, _ in change.entries])
        entries = [
            (id_, of[_space(id_)].seal(value, id_), end) for id_, value, end in change.entries
        ]
        return change._replace(entries=tuple(entries))

    def _sealers(self, sealer: Sealer, ids: Iterable[bytes]) -> dict[bytes, _ValueSealer]:
        return {
            space: _ValueSealer(self.keys, sealer, f"cache {space.hex()}")
            for space in {*map(_space, ids)}
        }


def _space(id_: bytes) -> bytes:
    """Return the beginning of an id that names its tenant and namespace."""
    return id_[:-KEY_BYTES]
