"""Cache of the results of nodes, in place of LangGraph's."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache, partial
from hashlib import blake2b
from importlib import import_module
from random import SystemRandom
from typing import Any, TypeAlias, cast

import orjson
from langgraph.cache.base import BaseCache, FullKey, Namespace
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep.backends.base import AsyncBackend, Backend
from threadkeep.backends.memory import MemoryBackend
from threadkeep.backends.open import server_of
from threadkeep.backends.sqlite import SqliteBackend
from threadkeep.backends.sync_bridge import BlockingFace
from threadkeep.cache.backend import (
    AT_ONCE,
    AsyncCacheBackend,
    BlockingCache,
    Change,
    Claim,
    ClearEntries,
    Entry,
    GetEntries,
    Limits,
    RemoveEntries,
    SetEntries,
    UseEntries,
)
from threadkeep.cache.leases import Lease, Leases, asker
from threadkeep.cache.memory import MemoryEntries
from threadkeep.cache.sqlite import SqliteEntries
from threadkeep.codec import Codec, Compression, NativeCodec, SerdeCodec, pack, unpack
from threadkeep.engine.operation import Aside, Commit, Fetch, Requests, call
from threadkeep.errors import (
    ClosedError,
    CodecError,
    InvalidArgumentError,
    NotSetUpError,
    ThreadkeepError,
    invalid,
)
from threadkeep.layers.driver import BackendPair, Closing, Stack, Store, Workflow, both, either, on
from threadkeep.validation import LONGEST, duration, is_count, micros

_RECENT = 60_000_000  # microseconds in which a further use is not noted
_TRIM_EVERY = 256  # entries set by this process, or a sixteenth of max_entries
_LEASES = 3  # times of a lease that a run waits for others
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25  # seconds between two looks at another's lease
_COMPRESSION = Compression(over=16 * 1024)  # (most values are small, and speed counts)
_RANDOM = SystemRandom()
_MUST_KNOW = (InvalidArgumentError, ClosedError, NotSetUpError)  # the program is wrong

_log = logging.getLogger("threadkeep")

_Found: TypeAlias = tuple[dict[bytes, Any], dict[bytes, bytes]]
"""Values by id, and the owners of leases."""


class Cache(BaseCache[Any], Closing):
    """Results of nodes, in place of LangGraph's caches; sync and async on one object.

    A failure of the store, and a value that cannot be stored or read, is logged and counts as a
    miss.

    Args:
        backend: the backend of a saver, over whose connections the cache works.
        serde: a serializer for the values, which may encrypt them, in place of the codec.
        lease: seconds, or a timedelta. Of many who miss one key at the same time, in any process,
            one computes its value, and the others wait for it as long as this at most. None: all
            compute it.
        max_bytes: bytes of values, beyond about which the least recently used are evicted.
        max_entries: entries, likewise.
        owned: close the backend with the cache.

    Raises:
        InvalidArgumentError: an option is invalid.
        OpenError: the store cannot be opened.
    """

    def __init__(
        self,
        backend: Backend | AsyncBackend,
        *,
        serde: SerializerProtocol | None = None,
        lease: timedelta | float | None = None,
        max_bytes: int = 256 * 2**20,
        max_entries: int = 100_000,
        owned: bool = False,
    ) -> None:
        super().__init__(serde=serde)
        try:
            for name, value in (("max_bytes", max_bytes), ("max_entries", max_entries)):
                if not is_count(value, 1) or value > LONGEST:
                    raise invalid(name, value, "Use a number of 1 or more.")
            self._lease = micros(None if lease is None else duration("lease", lease))
            self._codec: Codec = NativeCodec() if serde is None else SerdeCodec(serde)
            entries = entries_over(backend)
        except ThreadkeepError:
            if owned and isinstance(backend, Backend):
                backend.close()
            raise
        self._owned = BackendPair(backend) if owned else None
        self._store = Store(entries)
        self._stack = Stack(self._store)
        self._leases = Leases()
        self._limits = Limits(max_entries, max_bytes)
        self._recent = 0 if entries.instant else _RECENT
        self._due = max(1, max_bytes // 16)
        self._least = self._due / min(_TRIM_EVERY, max(1, max_entries // 16))
        self._untrimmed: float = self._due

    # -- reading -------------------------------------------------------------------------

    def _get(self, keys: Sequence[FullKey]) -> Workflow[dict[FullKey, Any]]:
        """Return the values that are there, by key.

        With `lease`, keys without a value are leased to the caller, who is expected to `set` them;
        if another run has leased one of them, this waits for its value until that lease ends. Where
        that run fails, the next one is waited for, for three leases in all.
        """
        asked = {_id(key): key for key in map(_full, keys)}
        if not asked:
            return {}
        values: dict[bytes, Any] = {}
        try:
            values, leased = yield from on(self._stack, self._read(tuple(asked)))
            if self._lease is not None and len(values) < len(asked):
                yield from self._wait(asked, values, leased)
        except ThreadkeepError as error:
            _note(error, "read")
        return {key: values[id_] for id_, key in asked.items() if id_ in values}

    get, aget = both(_get)

    def _read(self, ids: tuple[bytes, ...]) -> Requests[_Found]:
        now = _now()
        (rows,) = yield Fetch(cast("Any", (GetEntries(ids, now),)))
        values: dict[bytes, Any] = {}
        leased: dict[bytes, bytes] = {}
        used: list[bytes] = []
        unreadable: list[bytes] = []
        for id_, row in zip(ids, rows, strict=True):
            if row is None:
                continue
            if row.value is None:
                leased[id_] = row.owner
                continue
            try:
                values[id_] = self._codec.decode(unpack(row.value)[0])
            except CodecError as error:
                _note(error, "read a value of")
                unreadable.append(id_)
                continue
            if now - row.used_at >= self._recent:
                used.append(id_)
        try:
            if used:
                yield _commit(UseEntries(tuple(used), now))
            if unreadable:  # (a lease takes their place)
                yield _commit(RemoveEntries(tuple(unreadable)))
        except ThreadkeepError as error:
            _note(error, "write to")
        return values, leased

    # -- leases --------------------------------------------------------------------------

    def _wait(
        self, asked: Mapping[bytes, FullKey], values: dict[bytes, Any], leased: dict[bytes, bytes]
    ) -> Workflow[None]:
        """Lease all missing keys, or none while another run has one of them, and wait for it.

        So nobody waits who has leases by the same call.
        """
        end = time.monotonic() + _LEASES * (self._lease or 0) / 1e6
        pause = _FIRST_PAUSE
        while True:
            missing = [id_ for id_ in asked if id_ not in values]
            others = yield from self._others(asked, missing, leased)
            free = [id_ for id_ in missing if id_ not in leased]
            is_over = time.monotonic() >= end
            if (is_over or not others) and (yield from self._claim(asked, free, partial=is_over)):
                return
            seconds = pause * _RANDOM.uniform(0.5, 1.0)
            yield Aside(partial(time.sleep, seconds), partial(asyncio.sleep, seconds))
            pause = min(1.5 * pause, _LONGEST_PAUSE)
            found, leased = yield from on(self._stack, self._read(tuple(missing)))
            values.update(found)

    def _others(
        self, asked: Mapping[bytes, FullKey], ids: Iterable[bytes], leased: dict[bytes, bytes]
    ) -> Workflow[list[bytes]]:
        """Return the ids that other runs compute; end leases of runs of this process that ended."""
        others = []
        for id_ in [id_ for id_ in ids if id_ in leased]:
            lease = self._leases.of(id_, leased[id_])
            if lease is None:
                others.append(id_)
            elif lease.key is asked[id_][1] or lease.asker == asker():
                continue  # the same run asks again
            elif lease.has_ended:
                change = RemoveEntries((id_,), leased.pop(id_))
                yield from on(self._stack, _committing(change))
            else:
                others.append(id_)
        return others

    def _claim(
        self, asked: Mapping[bytes, FullKey], free: Sequence[bytes], *, partial: bool
    ) -> Workflow[bool]:
        """Lease these ids; return False if another run was faster, and nothing is leased."""
        if not free:
            return True
        owner, now = _RANDOM.randbytes(8), _now()
        claim = Claim(tuple(free), owner, now, now + (self._lease or 0))
        claimed = yield from on(self._stack, call("claim", claim))
        if len(claimed) < len(free) and not partial:
            yield from on(self._stack, _committing(RemoveEntries(tuple(claimed), owner)))
            return False
        for id_ in claimed:
            self._leases.add(id_, Lease(asked[id_][1], owner, asker()))
        return True

    # -- writing -------------------------------------------------------------------------

    def _set(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> Workflow[None]:
        """Store values, each with its time to live in seconds, or None.

        A value that cannot be stored is logged, and removed if it was there.
        """
        now = _now()
        entries: list[Entry] = []
        gone: list[bytes] = []
        for given, (value, ttl) in pairs.items():
            id_ = _id(_full(given))
            lifetime = _lifetime(ttl)
            data = self._encoded(value)
            if data is None or (lifetime is not None and lifetime <= 0):
                gone.append(id_)
            else:
                entries.append(Entry(id_, data, None if lifetime is None else now + lifetime))
        try:
            yield from on(self._stack, self._put(tuple(entries), tuple(gone), now))
        except ThreadkeepError as error:
            _note(error, "write to")

    set, aset = both(_set)

    def _encoded(self, value: Any) -> bytes | None:
        try:
            data = pack([self._codec.encode(value)], _COMPRESSION)
        except CodecError as error:
            _note(error, "store a value in")
            return None
        if len(data) > self._limits.size:
            _log.warning("A value of %d bytes is over the cache's max_bytes.", len(data))
            return None
        return data

    def _put(self, entries: tuple[Entry, ...], gone: tuple[bytes, ...], now: int) -> Requests[None]:
        if gone:
            yield _commit(RemoveEntries(gone))
        if entries:
            yield _commit(SetEntries(entries, now))
            if self._is_due(entries):
                for _ in range(1 + len(entries) // AT_ONCE):
                    yield from call("trim", now, self._limits)

    def _is_due(self, entries: Iterable[Entry]) -> bool:
        """Return True at the first call, then after a sixteenth of either limit."""
        self._untrimmed += sum(max(len(one.value), self._least) for one in entries)
        is_due = self._untrimmed >= self._due
        if is_due:
            self._untrimmed = 0
        return is_due

    def _delete(self, keys: Sequence[FullKey]) -> Workflow[None]:
        """Remove values, and end leases."""
        ids = tuple([_id(_full(key)) for key in keys])
        if ids:
            yield from on(self._stack, _committing(RemoveEntries(ids)))

    delete, adelete = both(_delete)

    def _clear(self, namespaces: Sequence[Namespace] | None = None) -> Workflow[None]:
        """Remove the values of these very namespaces, or (None) all, and end leases."""
        spaces = None
        if namespaces is not None:
            spaces = tuple([_space(_namespace(each))[1] for each in namespaces])
        if spaces != ():
            yield from on(self._stack, _committing(ClearEntries(spaces)))

    clear, aclear = both(_clear)

    # -- life ----------------------------------------------------------------------------

    def _setup(self) -> Workflow[None]:
        """Make or migrate the tables of a PostgreSQL schema; elsewhere there is nothing to do."""
        yield from on(self._stack, call("migrate"))

    setup, asetup = both(_setup)

    def _close(self) -> Workflow[None]:
        """Close the cache, and the store that was opened for it. Idempotent."""
        yield from either(self._store.close, self._store.aclose)
        if self._owned is not None:
            yield from either(self._owned.close, self._owned.aclose)

    close, aclose = both(_close)


def _now() -> int:
    """Return the time in microseconds since 1970."""
    return time.time_ns() // 1000


def _commit(change: Change) -> Commit:
    return Commit(cast("Any", change))


def _committing(change: Change) -> Requests[None]:
    yield _commit(change)


def _note(error: ThreadkeepError, doing: str) -> None:
    """Log an error; raise it if the program must be changed."""
    if isinstance(error, _MUST_KNOW):
        raise error
    _log.warning("Could not %s the cache: %s", doing, error)


def _lifetime(ttl: object) -> int | None:
    """Return a time to live in microseconds."""
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or ttl != ttl:  # noqa: PLR0124 - nan
        raise invalid("ttl", ttl, "Use seconds, or None.")
    return round(ttl * 1e6) if ttl < LONGEST / 1e6 else None


# -- backends ----------------------------------------------------------------------------


def entries_over(backend: Backend | AsyncBackend) -> Backend | AsyncCacheBackend:
    """Return the backend of a cache over the connections of a saver's backend."""
    if isinstance(backend, MemoryBackend):
        return MemoryEntries()
    if isinstance(backend, SqliteBackend):
        return SqliteEntries(backend.connections)
    if not isinstance(backend, BlockingFace):
        return _awaited(backend)
    beside = backend.asynchronous
    return BlockingCache(_awaited(backend.face), None if beside is None else _awaited(beside))


def _awaited(backend: Any) -> AsyncCacheBackend:
    if (server := server_of(backend)) is not None:
        module: Any = import_module(f"threadkeep.cache.{server}")
        found: AsyncCacheBackend = module.entries_over(backend)
        return found
    raise InvalidArgumentError(
        f"{type(backend).__name__} has no room for a cache.",
        hint="Use a backend of threadkeep: memory, SQLite, PostgreSQL or Redis.",
    )


# -- keys --------------------------------------------------------------------------------


def _full(key: FullKey) -> FullKey:
    try:
        namespace, name = key
    except (TypeError, ValueError):
        raise _invalid_key(key) from None
    if not isinstance(name, str):
        raise _invalid_key(key)
    return _namespace(namespace), name


def _namespace(namespace: Sequence[str]) -> Namespace:
    if isinstance(namespace, tuple | list):
        return tuple(namespace)
    raise invalid("namespace", namespace, 'Use texts: ("a", "b").')


def _invalid_key(key: object) -> InvalidArgumentError:
    return invalid("key", key, 'Use a namespace and a text: (("a", "b"), "key").')


@lru_cache(maxsize=1000)
def _space(namespace: Namespace) -> tuple[bytes, bytes]:
    """Return a namespace as bytes, and its digest."""
    try:
        path = orjson.dumps(namespace)
    except TypeError:  # (also for a lone surrogate)
        path = b""
    if not path or not all(isinstance(label, str) for label in namespace):
        raise invalid("namespace", namespace, 'Use texts: ("a", "b").')
    return path, blake2b(path, digest_size=8).digest()


def _id(key: FullKey) -> bytes:
    path, space = _space(key[0])
    try:
        name = key[1].encode()
    except UnicodeEncodeError:
        raise _invalid_key(key) from None
    return space + blake2b(path + name, digest_size=16).digest()
