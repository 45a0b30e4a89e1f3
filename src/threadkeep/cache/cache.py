"""NodeCache: the results of LangGraph nodes, on any backend of threadkeep."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Any, Self, Unpack

import orjson
from langgraph.cache.base import BaseCache, FullKey, Namespace
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep._core import tenants
from threadkeep._core.codec import (
    Codec,
    Compression,
    Migrations,
    SerdeCodec,
    check_migrations,
    codec_of,
    pack,
    unpack,
)
from threadkeep._core.engine.operation import Fetch, Operation
from threadkeep._core.engine.usage import Counters
from threadkeep._core.validation import LONGEST, duration, is_count, micros
from threadkeep._run.driver import Closing, in_store, on, sync_and_async, sync_or_async
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.base import AsyncBackend, Backend, no_room
from threadkeep._stores.caches import (
    PAGE,
    CacheCommit,
    ClearEntries,
    Entry,
    GetEntries,
    ReadUses,
    RemoveEntries,
    SetEntries,
    UseEntries,
    of_tenant,
)
from threadkeep._stores.items.records import opened
from threadkeep._stores.options import Option, complete, listed
from threadkeep.cache.leases import Found, Leases
from threadkeep.errors import (
    ClosedError,
    CodecError,
    CorruptionError,
    InvalidArgumentError,
    NotSetUpError,
    ThreadkeepError,
    invalid,
)
from threadkeep.keys import KeyOptions, sealed

_COMPRESSION = Compression(over=16 * 1024)  # (most values are small, and speed counts)
_NOTE_EVERY = 60_000_000  # microseconds between writes of uses
_SHARE = 64  # a trim is due after the first `set`, then after 1/64 of either limit
_RAISED = (InvalidArgumentError, ClosedError, NotSetUpError)  # mistakes of the program

_log = logging.getLogger("threadkeep")


def _limit(default: int, help: str) -> Option:
    def is_valid(value: Any) -> bool:
        return is_count(value, 1) and value <= LONGEST

    return Option(default, help, is_valid, "Use a number of 1 or more.", None)


class CacheOptions(KeyOptions, total=False):
    """Options of every cache."""

    serde: Annotated[
        SerializerProtocol | None,
        Option(
            None,
            "A LangGraph serializer for the values, which may encrypt them, instead of the codec.",
            lambda value: value is None or bool(SerdeCodec(value)),
            "Use a serializer of LangGraph.",
            None,
        ),
    ]
    migrations: Annotated[
        Migrations | None,
        Option(
            None,
            "How to read the results of older releases of your program, as for a saver.",
            lambda value: value is None or isinstance(value, Migrations),
            "Use a threadkeep.Migrations.",
            None,
        ),
    ]
    lease: Annotated[
        timedelta | float | None,
        Option(
            None,
            "Seconds, or a timedelta. If several runs, in any process, miss a key at the same time,"
            " one computes its value, and the others wait at most this long. None: all of them"
            " compute it.",
            lambda value: value is None or bool(duration("lease", value)),
            "Use seconds, or a timedelta, more than 0.",
            None,
        ),
    ]
    max_bytes: Annotated[
        int,
        _limit(
            256 * 2**20,
            "Approximate limit of the bytes of values; the least recently used are evicted.",
        ),
    ]
    max_entries: Annotated[
        int,
        _limit(
            100_000,
            "Approximate limit of the number of entries; the least recently used are evicted.",
        ),
    ]


@dataclass(slots=True)
class _Shared:
    """State that a cache shares with its views for tenants."""

    used: set[bytes] = field(default_factory=set)  # ids, since the last write of uses
    noted_at: int = 0
    untrimmed: float = 1.0  # from 1 on, a trim is due
    hits: int = 0
    misses: int = 0
    evictions: int = 0


class NodeCache(BaseCache[Any], Closing):
    """Cache of node results, in place of LangGraph's caches, sync and async on one object.

    Failures of the store, and values that cannot be stored or read, are logged and count as misses.

    Args:
        backend: the backend of a saver, whose connections the cache shares: close the cache before
            the saver. With the backend of a `MemorySaver`, the cache has its own memory.
        owned: close the backend with the cache.
        **options: see `help(NodeCache.__init__)`.

    Raises:
        InvalidArgumentError: an option is invalid, or this is not a threadkeep backend.
        OpenError: the store cannot be opened, or it is read-only and has no cache yet.
    """

    @listed(CacheOptions)
    def __init__(
        self,
        backend: Backend | AsyncBackend,
        *,
        owned: bool = False,
        **options: Unpack[CacheOptions],
    ) -> None:
        try:
            given = complete("NodeCache", CacheOptions, options)
            serde, lease = given["serde"], given["lease"]
            check_migrations(given)
            backend = sealed(backend, given)
            max_bytes, max_entries = given["max_bytes"], given["max_entries"]
            self._serde = serde or BaseCache.serde
            lifetime = micros(None if lease is None else duration("lease", lease))
            self._codec: Codec = codec_of(given["migrations"], serde)
            if not isinstance(backend, Backend | AsyncBackend):
                raise no_room(backend, "has no room for a cache")
            entries = backend.cache()
        except ThreadkeepError:
            if owned and isinstance(backend, Backend):
                backend.close()
            raise
        self._backend = backend
        threads = LayeredBackend(backend)
        self._owned = threads if owned else None
        self._store = LayeredBackend(entries).with_threads(threads)
        self._leases = None if lifetime is None else Leases(lifetime)
        self._tenant = ""  # its label
        self._shared = _Shared()
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._entries_a_trim = max(1, min(PAGE, max_entries // _SHARE))
        self._bytes_a_trim = max(1, max_bytes // _SHARE)

    def for_tenant(self, tenant: str) -> Self:
        """Return this cache as one tenant sees it, over the same connections.

        No method of it reads, replaces or removes entries of other tenants. `clear()` removes all
        of its own. Other settings are this cache's, and the limits and counters are for all
        tenants together. `close` does nothing. A cache without a tenant has entries of its own, and
        its `clear()` removes all tenants' entries.

        Args:
            tenant: the tenant's name, a text of 1 to 200 bytes in UTF-8.

        Raises:
            InvalidArgumentError: the name is invalid, or this is already a tenant's cache.
        """
        if self._tenant:
            raise InvalidArgumentError(
                "This is already the cache of a tenant.", hint="Use the cache that was opened."
            )
        view = copy(self)
        view._tenant = tenants.label(tenants.checked(tenant))  # noqa: SLF001 - a copy
        return view

    @property
    def backend(self) -> Backend | AsyncBackend:
        """The backend whose connections the cache uses."""
        return self._backend

    def counters(self) -> Counters:
        """Return the counters of this cache since it was opened, in this process.

        `result_hits`, `result_misses` and `result_evictions`: see `Counters`.
        """
        return Counters(
            result_hits=self._shared.hits,
            result_misses=self._shared.misses,
            result_evictions=self._shared.evictions,
        )

    @property
    def serde(self) -> SerializerProtocol:
        """The serializer. After you assign another one, earlier entries are misses.

        See `Saver.serde`.
        """
        return self._serde

    @serde.setter
    def serde(self, serde: SerializerProtocol) -> None:
        if serde is not self._serde:
            self._codec = SerdeCodec(serde)
            self._serde = self._codec.serde

    # -- reading -------------------------------------------------------------------------

    def _get(self, keys: Sequence[FullKey]) -> Operation[dict[FullKey, Any]]:
        """Return the cached values by key.

        With `lease`, missing keys are leased to the caller, who should then `set` them. If another
        run has leased any of them, this waits for its value until that lease ends. If that run
        fails, this waits for the next one, for three leases in all.
        """
        asked = {_id(key, self._tenant): key for key in keys}
        if not asked:
            return {}
        values: dict[bytes, Any] = {}
        try:
            values, leased = yield from self._read(asked)
            if self._leases is not None and len(values) < len(asked):
                yield from self._leases.wait(self._read, asked, values, leased)
        except ThreadkeepError as error:
            _note(error, "read")
        hits = len(values)
        self._shared.hits += hits
        self._shared.misses += len(asked) - hits
        return {key: values[id_] for id_, key in asked.items() if id_ in values}

    def _read(self, ids: Iterable[bytes]) -> Operation[Found]:
        now = _now()
        reads: Any = (GetEntries(tuple(ids), now, self._tenant),)
        (rows,) = yield Fetch(reads)
        values: dict[bytes, Any] = {}
        leased: dict[bytes, bytes] = {}
        unreadable: list[bytes] = []
        for id_, (data, owner) in rows.items():
            if data is None and type(owner) is bytes:
                leased[id_] = owner
                continue
            try:
                values[id_] = self._decoded(id_, opened(data))
            except CodecError as error:
                _note(error, "read a value of")
                unreadable.append(id_)
        try:
            if not self._store.backend.instant:  # (memory notes uses when read)
                shared = self._shared
                shared.used.update(values)
                if len(shared.used) >= PAGE or now - shared.noted_at >= _NOTE_EVERY:
                    yield from self._write_uses(now)
            if unreadable:  # (a lease may replace them)
                yield CacheCommit(RemoveEntries(tuple(unreadable)))
        except ThreadkeepError as error:
            _note(error, "write to")
        return values, leased

    def _write_uses(self, now: int) -> Operation[None]:
        shared = self._shared
        used, shared.used, shared.noted_at = shared.used, set(), now
        if used:
            yield CacheCommit(UseEntries(tuple(used), now))

    # -- writing -------------------------------------------------------------------------

    def _set(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> Operation[None]:
        """Store values, each with its time to live in seconds, or None.

        A value that cannot be stored is logged, and the key's earlier value is removed.
        """
        now, size = _now(), 0
        entries: list[Entry] = []
        gone: list[bytes] = []
        for key, (value, ttl) in pairs.items():
            id_, expires_at = _id(key, self._tenant), None if ttl is None else _expiry(now, ttl)
            data = self._encoded(id_, value)
            if data is None or (expires_at is not None and expires_at <= now):
                gone.append(id_)
            else:
                entries.append((id_, data, expires_at))
                size += len(data)
        try:
            if gone:
                yield CacheCommit(RemoveEntries(tuple(gone)))
            if entries:
                yield CacheCommit(SetEntries(tuple(entries), now, self._tenant))
                self._shared.untrimmed += max(
                    len(entries) / self._entries_a_trim, size / self._bytes_a_trim
                )
                if self._shared.untrimmed >= 1:
                    yield from self._trim(1 + len(entries) // PAGE, now)
        except ThreadkeepError as error:
            _note(error, "write to")

    def _trim(self, times: int, now: int) -> Operation[None]:
        self._shared.untrimmed = 0.0
        yield from self._write_uses(now)
        for _ in range(times):
            reads: Any = (ReadUses(now),)
            (uses,) = yield Fetch(reads)
            expired = dict(uses.expired)
            entries = uses.entries - len(expired)
            size = uses.size - sum(expired.values())
            surplus = []
            for id_, length in uses.oldest:
                if entries <= self._max_entries and size <= self._max_bytes:
                    break
                if id_ not in expired:
                    surplus.append(id_)
                    entries, size = entries - 1, size - length
            if expired or surplus:
                yield CacheCommit(RemoveEntries((*expired, *surplus)))
            self._shared.evictions += len(surplus)

    def _delete(self, keys: Sequence[FullKey]) -> Operation[None]:
        """Remove values, and end leases."""
        ids = dict.fromkeys([_id(key, self._tenant) for key in keys])
        if ids:
            yield CacheCommit(RemoveEntries(tuple(ids)))

    def _clear(self, namespaces: Sequence[Namespace] | None = None) -> Operation[None]:
        """Remove the values of exactly these namespaces, or all (None), and end leases."""
        spaces: tuple[bytes, ...] | None = (of_tenant(self._tenant),) if self._tenant else None
        if namespaces is not None:
            spaces = tuple([_space(each, self._tenant)[1] for each in namespaces])
        if spaces != ():
            yield CacheCommit(ClearEntries(spaces))

    get, aget = in_store(_get)
    set, aset = in_store(_set)
    delete, adelete = in_store(_delete)
    clear, aclear = in_store(_clear)

    # -- values --------------------------------------------------------------------------

    def _encoded(self, id_: bytes, value: Any) -> bytes | None:
        """Return a value as bytes, or None if it cannot be stored.

        LangGraph caches the writes of a task, a deque of pairs. They are stored as one flat list,
        which is a third faster than a tuple for each. The list begins with a mark (the end of the
        entry's id), which detects a value in another entry's row.
        """
        try:
            mark = int.from_bytes(id_[-4:])
            data = self._codec.encode([mark, *(_flat(value) or (False, value))])
            if not self._store.backend.instant:  # (memory needs no checksum)
                data = pack([data], _COMPRESSION)
        except CodecError as error:
            _note(error, "store a value in")
            return None
        if len(data) > self._max_bytes:
            _log.warning("A value of %d bytes exceeds the cache's max_bytes.", len(data))
            return None
        return data

    def _decoded(self, id_: bytes, data: Any) -> Any:
        try:
            stored = self._codec.decode(data if self._store.backend.instant else unpack(data)[0])
            if type(stored[0]) is int:  # (values of older releases begin with a bool)
                mark, *stored = stored
                if mark != int.from_bytes(id_[-4:]):
                    raise CorruptionError("The entry has the value of another entry.")
            if not stored[0]:
                return stored[1]
            return deque(zip(stored[1::2], stored[2::2], strict=True))
        except (TypeError, LookupError, ValueError) as error:  # (a store may return any type)
            if isinstance(error, ThreadkeepError):
                raise
            raise CorruptionError("The entry is not a value that a cache stored.") from error

    # -- life ----------------------------------------------------------------------------

    def _setup(self) -> Operation[None]:
        """Create or migrate the tables of a PostgreSQL schema, a no-op for other stores."""
        yield self._store.external("migrate")

    setup, asetup = sync_and_async(_setup)

    def _opening(self) -> Operation[None]:
        return self._store.opening()

    def _close(self) -> Operation[None]:
        """Close the cache, and its backend if the cache owns it. Idempotent."""
        if self._tenant:
            return
        with suppress(ThreadkeepError):
            yield from on(self._store, self._write_uses(_now()))
        yield from sync_or_async(self._store.close, self._store.aclose)
        if self._owned is not None:
            yield from sync_or_async(self._owned.close, self._owned.aclose)

    close, aclose = sync_and_async(_close)


def _flat(value: Any) -> list[Any] | None:
    """Return True and the parts of the pairs of a deque, or None for another value."""
    if type(value) is not deque or value.maxlen is not None:
        return None
    flat: list[Any] = [True]
    for pair in value:
        if type(pair) is not tuple or len(pair) != 2:  # noqa: PLR2004 - a pair
            return None
        flat += pair
    return flat


def _now() -> int:
    return time.time_ns() // 1000


def _note(error: ThreadkeepError, doing: str) -> None:
    """Log an error, or raise it if it is a mistake of the program."""
    if isinstance(error, _RAISED):
        raise error
    _log.warning("Could not %s the cache: %s", doing, error)


def _expiry(now: int, ttl: Any) -> int | None:
    """Return the time at which a value expires after `ttl` seconds, or None for never."""
    if type(ttl) not in (int, float) or ttl != ttl:  # noqa: PLR0124 - nan
        raise invalid("ttl", ttl, "Use seconds, or None.")
    return now + round(ttl * 1e6) if ttl < LONGEST / 1e6 else None


# -- keys --------------------------------------------------------------------------------


@lru_cache(maxsize=1000)
def _space(namespace: Namespace, tenant: str = "") -> tuple[bytes, bytes]:
    """Return a tenant's namespace as bytes, and the beginning of its entries' ids."""
    try:
        path = orjson.dumps(namespace)
    except TypeError:  # (also raised for a lone surrogate)
        path = b""
    texts = isinstance(namespace, tuple) and all(isinstance(label, str) for label in namespace)
    if not path or not texts:
        raise invalid("namespace", namespace, 'Use texts: ("a", "b").')
    path = tenant.encode() + path
    return path, of_tenant(tenant) + blake2b(path, digest_size=8).digest()


def _id(key: FullKey, tenant: str = "") -> bytes:
    try:
        namespace, name = key
        path, space = _space(namespace, tenant)
        return space + blake2b(path + name.encode(), digest_size=16).digest()
    except (TypeError, ValueError, AttributeError):
        hint = 'Use a namespace and a text: (("a", "b"), "key").'
        raise invalid("key", key, hint) from None
