"""The key that seals a row of a store (design note 0026)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from copy import copy
from math import inf
from threading import Lock
from typing import Any

from threadkeep._core import tenants
from threadkeep._core.engine.model import ThreadRows
from threadkeep._core.lru import Lru
from threadkeep._core.sealing import Sealer, known_cipher
from threadkeep._stores import key_record
from threadkeep._stores.base import AsyncBackend, Backend, ScrubReport
from threadkeep._stores.key_record import KeyRecord, KnownRecord, Ring
from threadkeep._stores.key_store import KeyStore, Secret
from threadkeep._stores.process_forks import ResetInChild
from threadkeep.errors import DestroyedKeyError, InvalidArgumentError, WrongKeyError

MIGRATE = (
    'Open it with allow_plaintext="migrate" (in the shell: THREADKEEP_ALLOW_PLAINTEXT=migrate),'
    " then run `threadkeep rotate`."
)
_SECRET = 32  # bytes
_SEALERS = 10_000  # of tenants or threads, in memory


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
        self.none = ring.sealer("none")  # opens nothing
        self._record = KnownRecord(ring)
        self._sealers = _Sealers()
        self._store: Any = None  # a backend
        self.random: KeyStore | None = None
        self.are_derived = key_store is None  # all keys from the ring's, which do not change
        self.instant = key_store is None or key_store.instant  # (see `Backend.instant`)

    def for_store(self, store: Any) -> StoreKeys:
        """Return the same keys, whose record is in this backend."""
        mine = copy(self)
        mine._store = store  # noqa: SLF001 - a copy
        if self._key_database is not None:
            awaited = isinstance(store, AsyncBackend)
            mine.random = KeyStore(self._key_database, self.ring, awaited=awaited)
        return mine

    @property
    def has_thread_keys(self) -> bool:
        """True if each thread has a random key. Decided once the record was read."""
        record = self._record.value
        return (self._wanted if record is None else record.random) > 1

    @property
    def has_older_objects(self) -> bool:
        """True if objects in the cold store may lack the current key (see `refresh`).

        Objects of threads with keys of their own keep these.
        """
        record = self._record.value
        used = () if record is None or self.has_thread_keys else record.keys
        return self.allow_plaintext or any(key != self.ring.ids[0] for key in used)

    @property
    def indexed(self) -> frozenset[str]:
        """The keys of metadata that searches find by digests."""
        record = self._record.value
        return frozenset() if record is None else frozenset(record.searchable)

    @property
    def searchable(self) -> frozenset[str]:
        """The keys of metadata whose digests are stored."""
        return self._declared | self.indexed

    # -- the record --------------------------------------------------------------------

    @property
    def is_known(self) -> bool:
        """True if the record was read a short time ago."""
        return self._record.until > time.monotonic()

    @property
    def is_prepared(self) -> bool:
        """True if the record was read a short time ago, and allows what this program may store."""
        return self._record.has_current and self._record.until > time.monotonic()

    async def refresh(self) -> tuple[ThreadRows, KeyRecord | None]:
        """Read the record again, with its rows: other programs change it."""
        return await self._record.read(self._store, self._check)

    async def confirm(self, within: float = 0) -> None:
        """Read the record again unless its thread names the same tips as then.

        A commit proves the record if it builds on a sealed one: that is younger.

        Args:
            within: seconds. Do nothing if the record was read or confirmed that short a time ago.
        """
        if not await self._record.confirm(self._store, within):
            await self.refresh()

    async def prepare(self) -> None:
        """Make the record before the first change. Add the current key to it. Raises as `writing`.

        Even a tombstone comes after it: threads without a record belong to a plain store.
        """
        while not self.is_prepared:
            rows, record = await self.refresh()
            if record is not None and self._record.has_current:
                return
            record = record or self._record.value  # (an emptied store gets its record back)
            record = record or await self._new_record()
            keys = list(dict.fromkeys([self.ring.ids[0], *record.keys]))
            await self._record.put(self._store, rows, record._replace(keys=keys))

    async def _new_record(self) -> KeyRecord:
        if not self.allow_plaintext and await key_record.holds_plain_threads(self._store):
            raise InvalidArgumentError(
                "Keys were given, and the store holds threads that are not encrypted.", hint=MIGRATE
            )
        declared = [] if self.allow_plaintext else sorted(self._declared)
        store, clues = secrets.token_bytes(16), secrets.token_bytes(_SECRET)
        if self.random is not None:
            await self.random.begin(store, self._store)
        return KeyRecord(store, clues, [], declared, self._wanted)

    async def finish_rotation(self) -> None:
        """Note that all rows have the current key, and the digests of all declared fields."""
        record = await self._current()
        if record is not None and self.random is not None:
            await self.random.rewrap(record.store)
        while True:
            rows, record = await self.refresh()
            if record is None:
                return
            new = record._replace(keys=[self.ring.ids[0]], searchable=sorted(self.searchable))
            if new == record:
                return
            await self._record.put(self._store, rows, new)

    async def _current(self) -> KeyRecord | None:
        return self._record.value if self.is_known else (await self.refresh())[1]

    async def _check(self, record: KeyRecord) -> None:
        """Check the first record that is read."""
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
        if record.random and self.random is not None:
            await self.random.check(record.store)

    # -- sealers -----------------------------------------------------------------------

    def remembered(self, thread: str) -> Sealer | None:
        """Return the sealer of a thread if it is in memory."""
        return self._sealers.get(self._name(thread, is_thread=True))

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

    async def portable(self, name: str = "", *, is_thread: bool = False) -> Sealer:
        """Return the sealer of files that other stores read too, such as bundles.

        Archives of a thread (`is_thread`) end with its own key, if it has one.
        """
        if self.random is not None:
            await self.prepare()
        key, context = self._name(name, is_thread=is_thread), ("portable", tenants.tenant_of(name))
        known = self._sealers.get(f"portable {key}", time.monotonic())
        if known is not None:
            return known
        record = self._record.value
        if self.random is None or record is None or not key:
            return self._sealers.put(f"portable {key}", self.ring.sealer(*context))
        secret = await self.random.get(record.store, key)
        return self._sealers.put(f"portable {key}", secret.sealer(context), key_record.KNOWN_FOR)

    async def load(self, threads: Sequence[str]) -> None:
        """Read the random keys of these threads at once, as far as they are not in memory."""
        record = None if self.random is None else await self._current()
        if self.random is None or record is None:
            return
        now = time.monotonic()
        keys = {self._name(name, is_thread=True): name for name in threads}
        wanted = {
            key: (name, self._name(name, is_thread=False))
            for key, name in keys.items()
            if key and not self._sealers.get(key, now)
        }
        above = {tenant for _, tenant in wanted.values()}
        found = await self.random.get_all(record.store, {*wanted, *above} - {""})
        for key, (name, tenant) in wanted.items():
            if key in found and (not tenant or tenant in found):
                self._remember(record, name, key, found[key], found.get(tenant))

    def _name(self, name: str, *, is_thread: bool) -> str:
        """Return the name of the key of a thread or item."""
        if is_thread and self.has_thread_keys and name != tenants.STORE:
            return f"thread {tenants.owner_of(name)}"
        tenant = tenants.tenant_of(name)
        return f"tenant {tenant}" if tenant else ""

    async def _sealer(self, name: str, *, is_thread: bool, create: bool) -> Sealer:
        record = await self._current()
        if record is None:
            return self.none  # (no row of the store is sealed)
        key = self._name(name, is_thread=is_thread)
        known = self._sealers.get(key, time.monotonic())
        if known is not None:
            return known
        if self.random is None or not key:
            context = "store", record.store, tenants.tenant_of(name)
            sealer = self.ring.sealer(*context, clues=record.clues, padding=self._padding)
            return self._sealers.put(key, sealer)
        tenant, own = self._name(name, is_thread=False), None
        find: Callable[[bytes, str], Awaitable[Secret | None]]
        find = self.random.get if create else self.random.find
        try:
            if tenant not in ("", key):  # (first: a destroyed key has none below it)
                own = await find(record.store, tenant)
            secret = await find(record.store, key)
        except DestroyedKeyError:
            self._sealers.drop([key, tenant])
            raise
        return self.none if secret is None else self._remember(record, name, key, secret, own)

    def _remember(
        self, record: KeyRecord, name: str, key: str, secret: Secret, own: Secret | None
    ) -> Sealer:
        """Return the sealer of a random key. `own` is the key of the thread's tenant."""
        if key.startswith("thread "):  # (searches use the same digests in all threads)
            secret = secret._replace(clues=record.clues if own is None else own.clues)
        context = "store", record.store, tenants.tenant_of(name)
        sealer = secret.sealer(context, record.clues, self._padding)
        return self._sealers.put(key, sealer, key_record.KNOWN_FOR)

    # -- the key store -----------------------------------------------------------------

    async def destroy(
        self, kind: str, name: str, others: Sequence[str] = ()
    ) -> tuple[tuple[str, ...], ScrubReport]:
        """Destroy the key of a "tenant" or "thread", with keys of the tenant's or other threads.

        Returns:
            The keys' ids, and the places that were cleared of them.
        """
        record = await self._current()
        if self.random is None or record is None:
            raise InvalidArgumentError(
                "Keys that are derived from a ring cannot be destroyed one by one.",
                hint="Open the store with key_store=, before the first save.",
            )
        below = f"thread {tenants.prefix(name)}" if kind == "tenant" else ""
        names = [f"{kind} {one}" for one in (*others, name)]  # (in this order: see `resealing`)
        ended, ids, report = await self.random.destroy(record.store, names, below)
        self._sealers.drop(ended)
        known_cipher.cache_clear()
        return ids, report


class _Sealers(ResetInChild):
    """Sealers in memory, by the names of their keys."""

    def _reset(self) -> None:
        self._known: Lru[str, tuple[Sealer, float]] = Lru(_SEALERS)
        self._lock = Lock()

    def get(self, name: str, at: float = 0) -> Sealer | None:
        """Return a sealer whose key is known to exist at this time."""
        with self._lock:
            sealer, until = self._known.get(name) or (None, 0.0)
        return sealer if until > at else None

    def put(self, name: str, sealer: Sealer, seconds: float = inf) -> Sealer:
        """Remember a sealer whose key is known to exist for so long from now."""
        with self._lock:
            self._known.put(name, (sealer, time.monotonic() + seconds))
        return sealer

    def drop(self, keys: Sequence[str]) -> None:
        """Forget destroyed keys, and the ciphers of those that were in memory."""
        names = [name for key in keys for name in (key, f"portable {key}")]
        with self._lock:
            known = [name for name in names if self._known.get(name) is not None]
            for name in known:
                self._known.drop(name)
        if known:
            known_cipher.cache_clear()
