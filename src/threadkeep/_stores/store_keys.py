"""The keys of one store: which of them seals a row (design note 0026).

A sealed store has a record, the pending write of a thread of its own: its random id, a key for
digests that searches use, and the ids of the ring's keys that may have sealed rows. The record is
sealed, too. It is written before the first sealed row, and before the first one of another key.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection
from contextlib import suppress
from copy import copy
from threading import Lock
from typing import Any, NamedTuple, Protocol, cast

import ormsgpack

from threadkeep._core import tenants
from threadkeep._core.engine.model import (
    Batch,
    FindThreads,
    ReadThread,
    RowsFence,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.lru import Lru
from threadkeep._core.sealing import Sealer, place
from threadkeep._stores.sync_bridge import result
from threadkeep.errors import ConflictError, InvalidArgumentError, WrongKeyError

MIGRATE = 'Open it with allow_plaintext="migrate", then run `threadkeep rotate`.'
_SECRET = 32  # bytes
_SEALERS = 1000  # of tenants, in memory
_PLACE = place("record")


class Ring(Protocol):
    """A `threadkeep.KeyRing`."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys, the current one first."""

    def sealer(self, *context: str | bytes, clues: bytes = b"") -> Sealer:
        """Return a sealer whose keys are derived for a context."""


class KeyRecord(NamedTuple):
    """The record of a sealed store."""

    store: bytes  # its id
    clues: bytes  # secret of digests for searches
    keys: list[str]  # ids of keys that may have sealed rows
    searchable: list[str]  # keys of metadata whose digests all rows have


class StoreKeys:
    """Finds the sealer of each row of a store.

    Its methods read the store once, and suspend only if the store is awaited.

    Args:
        ring: the keys.
        searchable: keys of metadata that searches shall find by digests. In a store that exists,
            they do so after a rotation.
        allow_plaintext: return rows that are not sealed as they are.
    """

    def __init__(
        self, ring: Ring, searchable: Collection[str] = (), *, allow_plaintext: bool = False
    ) -> None:
        self.ring = ring
        self._declared = frozenset(searchable)
        self.allow_plaintext = allow_plaintext
        self._known = _Known()
        self._store: Any = None  # a backend

    def beside(self, store: Any) -> StoreKeys:
        """Return the same keys, whose record is in this backend."""
        mine = copy(self)
        mine._store = store  # noqa: SLF001 - a copy
        return mine

    @property
    def indexed(self) -> frozenset[str]:
        """The keys of metadata that searches find by digests."""
        record = self._known.record
        return frozenset() if record is None else frozenset(record.searchable)

    @property
    def searchable(self) -> frozenset[str]:
        """The keys of metadata whose digests are stored."""
        return self._declared | self.indexed

    def at_hand(self, name: str) -> Sealer:
        """Return the sealer of a row if it is in memory, else one that opens nothing."""
        return self._known.sealer(("store", tenants.tenant_of(name))) or self.ring.sealer("none")

    async def of(self, name: str = "") -> Sealer:
        """Return the sealer to open a thread (by its stored name) or item (by its first label).

        Raises:
            WrongKeyError: the ring lacks a key of the store.
        """
        known = self._known.sealer(("store", tenants.tenant_of(name)))
        return known or await self._derived("store", name)

    async def writing(self, name: str = "") -> Sealer:
        """Return the sealer to seal a thread or item; see `of`.

        Raises:
            InvalidArgumentError: the store holds threads that are not encrypted.
            WrongKeyError: the ring lacks a key of the store.
        """
        if not self._known.is_ready:
            await self._prepare()
        return await self.of(name)

    async def portable(self, name: str = "") -> Sealer:
        """Return the sealer of files that other stores read too, such as bundles."""
        return self.ring.sealer("portable", tenants.tenant_of(name))

    async def _derived(self, purpose: str, name: str) -> Sealer:
        record = self._known.record or self._opened(await self._stored())
        if record is None:
            return self.ring.sealer("none")  # (no row of the store is sealed)
        tenant = tenants.tenant_of(name)
        sealer = self.ring.sealer(purpose, record.store, tenant, clues=record.clues)
        return self._known.remember((purpose, tenant), sealer)

    # -- the record --------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Make the record, or add the current key to it."""
        while not self._known.is_ready:
            rows = await self._stored()
            record = self._opened(rows)
            if record is None:
                await self._check_is_empty()
                declared = [] if self.allow_plaintext else sorted(self._declared)
                clues = secrets.token_bytes(_SECRET)
                record = KeyRecord(secrets.token_bytes(16), clues, [], declared)
            if self.ring.ids[0] not in record.keys:
                await self._put(rows, record._replace(keys=[self.ring.ids[0], *record.keys]))

    async def finish_rotation(self) -> None:
        """Note that all rows have the current key, and the digests of all declared fields."""
        while True:
            rows = await self._stored()
            record = self._opened(rows)
            if record is None:
                return
            new = record._replace(keys=[self.ring.ids[0]], searchable=sorted(self.searchable))
            if new == record:
                return
            await self._put(rows, new)

    def _opened(self, rows: ThreadRows) -> KeyRecord | None:
        if not rows.orphans:
            return None
        body, sealer = rows.orphans[0].body, self.ring.sealer("record")
        record = KeyRecord(*ormsgpack.unpackb(sealer.open(body, _PLACE, [sealer.group("")])))
        missing = [key for key in record.keys if key not in self.ring.ids]
        if missing:
            raise WrongKeyError(
                f"Rows of this store may be encrypted with key {missing[0]}, which was not given.",
                hint="Add it to the keys; `threadkeep rotate` makes it unnecessary.",
            )
        self._known.record = record
        self._known.is_ready = self.ring.ids[0] in record.keys
        return record

    async def _put(self, rows: ThreadRows, record: KeyRecord) -> None:
        """Put a record in place of the one in these rows, if no other process has done so."""
        sealer = self.ring.sealer("record")
        body = sealer.seal(ormsgpack.packb(tuple(record)), _PLACE, sealer.group(""))
        batch = Batch(
            tenants.STORE,
            time.time_ns() // 1000,
            fences=(RowsFence(0, len(rows.orphans)),),
            writes=(WriteRow("", tenants.STORE, 0, 0, tenants.STORE, "", body),),
            drop_writes=tuple([(one.ns, one.checkpoint_id, one.seq) for one in rows.orphans]),
        )
        with suppress(ConflictError):
            await result(self._store.commit(batch))

    async def _check_is_empty(self) -> None:
        if self.allow_plaintext:
            return
        (found,) = await result(self._store.fetch([FindThreads(None, 1, empty=True)]))
        if found and not (await self._stored()).orphans:  # (another process was faster)
            raise InvalidArgumentError(
                "Keys were given, and the store holds threads that are not encrypted.", hint=MIGRATE
            )

    async def _stored(self) -> ThreadRows:
        (rows,) = await result(self._store.fetch([ReadThread(tenants.STORE)]))
        return cast("ThreadRows", rows)


class _Known:
    """Facts of a store that its keys remember."""

    def __init__(self) -> None:
        self.record: KeyRecord | None = None
        self.is_ready = False  # the record names the current key
        self._sealers: Lru[tuple[str, str], Sealer] = Lru(_SEALERS)
        self._lock = Lock()

    def sealer(self, key: tuple[str, str]) -> Sealer | None:
        with self._lock:
            return self._sealers.get(key)

    def remember(self, key: tuple[str, str], sealer: Sealer) -> Sealer:
        with self._lock:
            return self._sealers.get(key) or self._sealers.put(key, sealer)
