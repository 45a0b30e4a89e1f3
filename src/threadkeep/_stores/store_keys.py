"""The keys of one store: which of them seals a row (design note 0026).

A sealed store has a record, the pending write of a thread of its own: its random id, a key for
digests that searches use, and the ids of the ring's keys that may have sealed rows. The record is
sealed, too. It is written before the first sealed row, and before the first row of another key.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from copy import copy
from math import inf
from threading import Lock
from typing import Any, cast

import ormsgpack

from threadkeep._core import tenants
from threadkeep._core.engine.model import (
    Batch,
    FindThreads,
    ReadCheckpoint,
    ReadThread,
    RowsFence,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.lru import Lru
from threadkeep._core.sealing import Sealer, known_cipher, place
from threadkeep._stores.base import AsyncBackend, Backend, ScrubReport
from threadkeep._stores.key_record import KeyRecord, Ring
from threadkeep._stores.key_store import KeyStore, Secret
from threadkeep._stores.process_forks import ResetInChild
from threadkeep._stores.sync_bridge import result
from threadkeep.errors import (
    ConflictError,
    DestroyedKeyError,
    InvalidArgumentError,
    WrongKeyError,
)

MIGRATE = (
    'Open it with allow_plaintext="migrate" (in the shell: THREADKEEP_ALLOW_PLAINTEXT=migrate),'
    " then run `threadkeep rotate`."
)
_SECRET = 32  # bytes
_SEALERS = 10_000  # of tenants or threads, in memory
KNOWN_FOR = 60.0
"""Seconds for which a program uses the record, or a random key, without reading it again."""
_PLACE = place("record")


class StoreKeys:
    """Finds the sealer of each row of a store.

    Its methods read the store once, and suspend only if the store is awaited.

    With a key store, each tenant has a random key there, and each thread one with `thread_keys`.
    Otherwise all keys are derived from the ring's. The first program that writes decides.

    Args:
        ring: the keys.
        searchable: keys of metadata that searches shall find by digests. In a store that exists,
            they do so after a rotation.
        allow_plaintext: return rows that are not sealed as they are.
        key_store: the database of random keys.
        thread_keys: whether each thread has its own.
        padding: of values in the store (see `Sealer`).
    """

    def __init__(
        self,
        ring: Ring,
        searchable: Collection[str] = (),
        *,
        allow_plaintext: bool = False,
        key_store: Backend | AsyncBackend | None = None,
        thread_keys: bool = False,
        padding: int = 0,
    ) -> None:
        self.ring = ring
        self._declared = frozenset(searchable)
        self.allow_plaintext = allow_plaintext
        self._key_database = key_store
        self._padding = padding
        self._wanted = 0 if key_store is None else 1 + thread_keys
        self._known = _Known()
        self._store: Any = None  # a backend
        self._random: KeyStore | None = None

    @property
    def has_thread_keys(self) -> bool:
        """True if each thread has a random key. Decided once the record was read."""
        record = self._known.record
        return (self._wanted if record is None else record.random) > 1

    @property
    def used(self) -> tuple[str, ...]:
        """The ids of the ring's keys that may have sealed rows or objects, if that was read."""
        record = self._known.record
        return () if record is None else tuple(record.keys)

    @property
    def has_older_objects(self) -> bool:
        """True if objects in the cold store may lack the current key (see `refresh`).

        Objects of threads with keys of their own keep these.
        """
        is_older = not self.has_thread_keys and any(key != self.ring.ids[0] for key in self.used)
        return self.allow_plaintext or is_older

    @property
    def are_derived(self) -> bool:
        """True if all keys are derived from the ring's, which do not change."""
        return self._key_database is None

    @property
    def instant(self) -> bool:
        """True if no key is read from a disk or a server (see `Backend.instant`)."""
        return self._key_database is None or self._key_database.instant

    def for_store(self, store: Any) -> StoreKeys:
        """Return the same keys, whose record is in this backend."""
        mine = copy(self)
        mine._store = store  # noqa: SLF001 - a copy
        if self._key_database is not None:
            awaited = isinstance(store, AsyncBackend)
            mine._random = KeyStore(self._key_database, self.ring, awaited=awaited)  # noqa: SLF001 - a copy
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

    @property
    def is_known(self) -> bool:
        """True if the record was read a short time ago."""
        return self._known.until > time.monotonic()

    @property
    def is_prepared(self) -> bool:
        """True if the record was read a short time ago, and allows what this program may store."""
        return self._known.is_ready and self.is_known

    def remembered(self, thread: str) -> Sealer | None:
        """Return the sealer of a thread if it is in memory."""
        return self._known.sealer(self._name(thread, is_thread=True))

    async def refresh(self) -> None:
        """Read the record again: other programs change it."""
        await self._read()

    async def confirm(self, within: float = 0) -> None:
        """Read the record again unless its thread names the same tips as then.

        A commit proves the record if it builds on a sealed one: that is younger.

        Args:
            within: seconds. Do nothing if the record was read or confirmed that short a time ago.
        """
        now = time.monotonic()
        if self._known.until - KNOWN_FOR + within > now:
            return
        (state,) = await result(self._store.fetch([ReadCheckpoint(tenants.STORE, "")]))
        if not state.tips or state.tips != self._known.tips:
            await self._read()
        else:
            self._known.until = now + KNOWN_FOR

    @property
    def none(self) -> Sealer:
        """A sealer that opens nothing."""
        return self.ring.sealer("none")

    async def of(self, name: str = "", *, is_thread: bool = False) -> Sealer:
        """Return the sealer to open an item (by its first label) or a thread (by its stored name).

        Raises:
            WrongKeyError: the ring lacks a key of the store, or the key was destroyed.
        """
        return await self._sealer(name, is_thread=is_thread, create=False)

    async def writing(self, name: str = "", *, is_thread: bool = False) -> Sealer:
        """Return the sealer to seal an item or a thread (see `of`).

        Raises:
            InvalidArgumentError: the store holds threads that are not encrypted.
            WrongKeyError: the ring lacks a key of the store, or the key was destroyed.
        """
        await self.prepare()
        return await self._sealer(name, is_thread=is_thread, create=True)

    async def prepare(self) -> None:
        """Make the record before the first change. Add the current key to it. Raises as `writing`.

        Even a tombstone comes after it: threads without a record belong to a plain store.
        """
        if not self.is_prepared:
            await self._prepare()

    async def portable(self, name: str = "", *, is_thread: bool = False) -> Sealer:
        """Return the sealer of files that other stores read too, such as bundles.

        Archives of a thread (`is_thread`) end with its own key, if it has one.
        """
        if self._random is not None:
            await self.prepare()
        key, context = self._name(name, is_thread=is_thread), ("portable", tenants.tenant_of(name))
        known = self._known.sealer(f"portable {key}", time.monotonic())
        if known is not None:
            return known
        record = self._known.record
        if self._random is None or record is None or not key:
            return self._known.remember(f"portable {key}", self.ring.sealer(*context))
        secret = await self._random.get(record.store, key, create=True)
        sealer = _sealer_of(cast("Secret", secret), context)
        return self._known.remember(f"portable {key}", sealer, KNOWN_FOR)

    async def destroy(
        self, kind: str, name: str, others: Sequence[str] = ()
    ) -> tuple[tuple[str, ...], ScrubReport]:
        """Destroy the key of a "tenant" or "thread", with keys of the tenant's or other threads.

        Returns:
            The keys' ids, and the places that were cleared of them.
        """
        record = await self._record()
        if self._random is None or record is None:
            raise InvalidArgumentError(
                "Keys that are derived from a ring cannot be destroyed one by one.",
                hint="Open the store with key_store=, before the first save.",
            )
        below = f"thread {tenants.prefix(name)}" if kind == "tenant" else ""
        names = [f"{kind} {one}" for one in (*others, name)]  # (in this order: see `destroying`)
        ended, ids, report = await self._random.destroy(record.store, names, below)
        self._forget(ended)
        known_cipher.cache_clear()
        return ids, report

    async def migrate(self) -> None:
        """Create the tables of the key store, or migrate them."""
        if self._random is not None:
            await self._random.migrate()

    async def close(self) -> None:
        """Close the key store."""
        if self._random is not None:
            await self._random.close()

    # -- sealers -----------------------------------------------------------------------

    def _name(self, name: str, *, is_thread: bool) -> str:
        """Return the name of the key of a thread or item."""
        if is_thread and self.has_thread_keys and name != tenants.STORE:
            return f"thread {tenants.owner_of(name)}"
        tenant = tenants.tenant_of(name)
        return f"tenant {tenant}" if tenant else ""

    async def _sealer(self, name: str, *, is_thread: bool, create: bool) -> Sealer:
        record = await self._record()
        if record is None:
            return self.none  # (no row of the store is sealed)
        key = self._name(name, is_thread=is_thread)
        known = self._known.sealer(key, time.monotonic())
        if known is not None:
            return known
        if self._random is None or not key:
            context = "store", record.store, tenants.tenant_of(name)
            sealer = self.ring.sealer(*context, clues=record.clues, padding=self._padding)
            return self._known.remember(key, sealer)
        tenants_key = self._name(name, is_thread=False)
        own = None
        try:
            if tenants_key not in ("", key):  # (first: a destroyed key has none below it)
                own = await self._random.get(record.store, tenants_key, create=create)
            secret = await self._random.get(record.store, key, create=create)
        except DestroyedKeyError:
            if self._forget([key, tenants_key]):
                known_cipher.cache_clear()
            raise
        return self.none if secret is None else self._remember(record, name, key, secret, own)

    def _remember(
        self, record: KeyRecord, name: str, key: str, secret: Secret, own: Secret | None
    ) -> Sealer:
        """Return the sealer of a random key. `own` is the key of the thread's tenant."""
        if key.startswith("thread "):  # (searches use the same digests in all threads)
            secret = secret._replace(clues=record.clues if own is None else own.clues)
        context = "store", record.store, tenants.tenant_of(name)
        sealer = _sealer_of(secret, context, record.clues, self._padding)
        return self._known.remember(key, sealer, KNOWN_FOR)

    async def load(self, threads: Sequence[str]) -> None:
        """Read the random keys of these threads at once, as far as they are not in memory."""
        record = await self._record()
        if record is None or self._random is None:
            return
        now = time.monotonic()
        wanted = {self._name(name, is_thread=True): name for name in threads}
        wanted = {key: name for key, name in wanted.items() if key}
        wanted = {key: name for key, name in wanted.items() if not self._known.sealer(key, now)}
        above = {key: self._name(name, is_thread=False) for key, name in wanted.items()}
        found = await self._random.get_all(record.store, {*wanted, *above.values()} - {""})
        for key, name in wanted.items():
            if key in found and (not above[key] or above[key] in found):
                self._remember(record, name, key, found[key], found.get(above[key]))

    def _forget(self, keys: Sequence[str]) -> bool:
        """Forget destroyed keys, and return True if one was in memory."""
        names = [name for key in keys for name in (key, f"portable {key}")]
        return sum(map(self._known.forget, names)) > 0

    async def _record(self) -> KeyRecord | None:
        if self.is_known:
            return self._known.record
        return (await self._read())[1]

    # -- the record --------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Make the record, or add the current key to it."""
        while True:
            rows, record = await self._read()
            if record is not None and self._known.is_ready:
                return
            record = record or self._known.record  # (an emptied store gets its record back)
            if record is None:
                await self._check_is_empty()
                declared = [] if self.allow_plaintext else sorted(self._declared)
                clues = secrets.token_bytes(_SECRET)
                store = secrets.token_bytes(16)
                record = KeyRecord(store, clues, [], declared, self._wanted)
                if self._random is not None:
                    await self._random.begin(store, self._store)
            keys = list(dict.fromkeys([self.ring.ids[0], *record.keys]))
            await self._put(rows, record._replace(keys=keys))

    async def finish_rotation(self) -> None:
        """Note that all rows have the current key, and the digests of all declared fields."""
        _, record = await self._read()
        if record is not None and self._random is not None:
            await self._random.rewrap(record.store)
        await self._change(
            lambda old: old._replace(keys=[self.ring.ids[0]], searchable=sorted(self.searchable))
        )

    async def _change(self, new: Callable[[KeyRecord], KeyRecord]) -> None:
        """Change the record, if there is one."""
        while True:
            rows, record = await self._read()
            if record is None or new(record) == record:
                return
            await self._put(rows, new(record))

    async def _read(self) -> tuple[ThreadRows, KeyRecord | None]:
        """Return the record with its rows, and remember it."""
        rows = await self._stored()
        until = time.monotonic() + KNOWN_FOR
        if not rows.orphans:
            self._known.until = 0.0
            return rows, None
        body, sealer = rows.orphans[0].body, self.ring.sealer("record")
        record = KeyRecord(*ormsgpack.unpackb(sealer.open(body, _PLACE, [sealer.group("")])))
        missing = [key for key in record.keys if key not in self.ring.ids]
        if missing:
            raise WrongKeyError(
                f"Rows of this store may be encrypted with key {missing[0]}, which was not given.",
                hint="Add it to the keys; `threadkeep rotate` makes it unnecessary.",
            )
        if self._known.record is None:
            await self._check_random(record)
        elif self._known.record.store != record.store:
            raise WrongKeyError(
                "Another store was put in the place of this one.", hint="Open it again."
            )
        self._known.record, self._known.until, self._known.tips = record, until, rows.tips
        self._known.is_ready = self.ring.ids[0] in record.keys
        return rows, record

    async def _check_random(self, record: KeyRecord) -> None:
        if record.random and self._key_database is None:
            raise WrongKeyError(
                "Keys of this store are in a key store, which was not given.",
                hint="Open it with key_store= as well (in the shell: THREADKEEP_KEY_STORE).",
            )
        if self._wanted > record.random:
            raise InvalidArgumentError(
                "This store was begun without key_store= and thread_keys=.",
                hint="Leave them out, or mirror the threads to a new store.",
            )
        if record.random and self._random is not None:
            await self._random.check(record.store)

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


def _sealer_of(
    secret: Secret, context: tuple[str | bytes, ...], runs: bytes = b"", padding: int = 0
) -> Sealer:
    name = bytes.fromhex(secret.id)
    return Sealer({name: secret.key}, name, context, secret.clues, runs, padding)


class _Known(ResetInChild):
    """Facts of a store that its keys remember."""

    def _reset(self) -> None:
        self.record: KeyRecord | None = None
        self.tips: tuple[int, ...] = ()  # of its thread
        self.until = 0.0  # when to read it again
        self.is_ready = False  # it names the current key
        self._sealers: Lru[str, tuple[Sealer, float]] = Lru(_SEALERS)
        self._lock = Lock()

    def sealer(self, name: str, at: float = 0) -> Sealer | None:
        """Return a sealer whose key is known to exist at this time."""
        with self._lock:
            sealer, until = self._sealers.get(name) or (None, 0.0)
        return sealer if until > at else None

    def remember(self, name: str, sealer: Sealer, seconds: float = inf) -> Sealer:
        """Remember a sealer whose key is known to exist for so long from now."""
        with self._lock:
            self._sealers.put(name, (sealer, time.monotonic() + seconds))
        return sealer

    def forget(self, name: str) -> bool:
        """Forget a sealer, and return True if it was in memory."""
        with self._lock:
            was_known = self._sealers.get(name) is not None
            self._sealers.drop(name)
        return was_known
