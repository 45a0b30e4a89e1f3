"""Random keys of tenants and threads, in a database of their own (design note 0026).

Each key is the pending write of a thread `threadkeep$key STORE NAME`, sealed with the ring. It lies
apart from the data, so that a backup of the data has no keys, and the end of a key is the end of
all copies of its data. A destroyed key leaves a tombstone: its name is never used again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import ormsgpack

from threadkeep._core.engine.model import (
    Batch,
    DropThread,
    FindThreads,
    ReadThread,
    RowsFence,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.engine.tips import Link, Proof
from threadkeep._core.sealing import Sealer, key_id, place
from threadkeep._core.tenants import KEY
from threadkeep._stores.base import AsyncBackend, Backend, ScrubReport
from threadkeep._stores.records import tie
from threadkeep._stores.sync_bridge import result
from threadkeep.errors import (
    BackendError,
    ConflictError,
    DestroyedKeyError,
    InvalidArgumentError,
    StaleThreadError,
    ThreadDeletedError,
    WrongKeyError,
)

MARK = "store"
"""The name of a key that seals nothing."""
_SECRET = 32  # bytes
_PAGE = 256


class Secret(NamedTuple):
    """A random key of a tenant or thread."""

    key: bytes
    clues: bytes  # secret of digests for searches

    @property
    def id(self) -> str:
        """The id of the key."""
        return key_id(self.key).hex()

    def sealer(
        self, context: tuple[str | bytes, ...], runs: bytes = b"", padding: int = 0
    ) -> Sealer:
        """Return a sealer whose keys are derived for a context (see `Sealer`)."""
        name = bytes.fromhex(self.id)
        return Sealer({name: self.key}, name, context, self.clues, runs, padding)

    def __repr__(self) -> str:
        """Return the id, without the key."""
        return f"Secret({self.id})"


class KeyStore:
    """The keys of one store's tenants or threads.

    Args:
        backend: the database that holds them.
        ring: seals them.
        awaited: whether the caller runs in an event loop that must not block.
    """

    def __init__(self, backend: Backend | AsyncBackend, ring: Any, *, awaited: bool) -> None:
        beside = backend.asynchronous if isinstance(backend, Backend) else backend
        self._backend: Any = beside if awaited and beside is not None else backend
        self._in_threads = awaited and beside is None and not backend.instant
        self._sealer: Sealer = ring.sealer("keys")

    async def find(self, store: bytes, name: str) -> Secret | None:
        """Return a key if it exists.

        Raises:
            WrongKeyError: the key was destroyed, or the ring has no key that opens it.
        """
        thread = _thread(store, name)
        rows = await self._rows(thread)
        if rows.orphans:
            return self._opened(thread, rows.orphans[0])
        if rows.deleted_at:
            raise _destroyed(name, rows.deleted_at)
        return None

    async def get(self, store: bytes, name: str) -> Secret:
        """Return a key, a new one if there is none. Raises as `find`."""
        while True:
            found = await self.find(store, name)
            if found is not None:
                return found
            thread, now = _thread(store, name), time.time_ns() // 1000
            new = Secret(secrets.token_bytes(_SECRET), secrets.token_bytes(_SECRET))
            change = Batch(
                thread, now, life=0, fences=(RowsFence(0, 0),), writes=(self._row(thread, new),)
            )
            with suppress(ConflictError, ThreadDeletedError):  # (another made or destroyed it)
                await self._call("commit", change)
                return new

    async def get_all(self, store: bytes, names: Collection[str]) -> dict[str, Secret]:
        """Return the keys that exist, in one read."""
        threads = {name: _thread(store, name) for name in names}
        replies = await self._call("fetch", [*map(ReadThread, threads.values())]) if names else []
        return {
            name: self._opened(thread, rows.orphans[0])
            for (name, thread), rows in zip(threads.items(), replies, strict=True)
            if rows.orphans
        }

    async def begin(self, store: bytes, data: Any) -> None:
        """Note that this database holds the keys of a new store, whose rows are in `data`.

        Raises:
            InvalidArgumentError: it is the same database.
        """
        is_same = self._backend is data
        if self._backend.has_identity and data.has_identity:
            is_same = await self._call("identity") == await result(data.identity())
        if is_same:
            raise InvalidArgumentError(
                "The key store is the database of the data.",
                hint="Use another database, so that backups of the data hold no keys.",
            )
        await self.get(store, MARK)

    async def check(self, store: bytes) -> None:
        """Raise WrongKeyError if this database does not hold the keys of a store."""
        if await self.find(store, MARK) is None:
            raise WrongKeyError(
                "This key store holds no keys of this store.",
                hint="Give the key store that the store was begun with.",
            )

    async def destroy(
        self, store: bytes, names: Sequence[str], below: str = ""
    ) -> tuple[list[str], tuple[str, ...], ScrubReport]:
        """Destroy keys, then those whose names begin with `below`, and clear the files of them.

        Returns:
            The names of all keys, the ids of those that existed, and the places that were cleared.
        """
        threads = [_thread(store, name) for name in names]
        ids: list[str] = []
        for thread in threads:
            await self._end(thread, ids)
        for thread in await self._threads(_thread(store, below)) if below else ():
            await self._end(thread, ids)
            threads.append(thread)
        report: ScrubReport = await self._call("scrub", rewrite=True)
        start = len(_thread(store, ""))
        return [thread[start:] for thread in threads], tuple(ids), report

    async def _end(self, thread: str, ids: list[str]) -> None:
        rows = await self._rows(thread)
        ids += [self._opened(thread, row).id for row in rows.orphans]
        await self._call("commit", DropThread(thread, time.time_ns() // 1000))

    async def rewrap(self, store: bytes) -> None:
        """Seal all keys of a store with the current key of the ring."""
        for thread in await self._threads(_thread(store, "")):
            while True:
                with suppress(StaleThreadError):  # (after a loss, another key may be there)
                    await self._rewrap(thread)
                    break

    async def _rewrap(self, thread: str) -> None:
        rows = await self._rows(thread)
        for row in rows.orphans:
            new = self._row(thread, self._opened(thread, row))._replace(seq=row.seq)
            if new.body != row.body:
                now, link = time.time_ns() // 1000, Link(Proof.of(rows))
                change = Batch(thread, now, replace_writes=(new,), link=link)
                tie([change])
                await self._call("commit", change)

    async def _threads(self, prefix: str) -> list[str]:
        """Return the names of the threads that hold keys."""
        found: list[str] = []
        while True:
            after = found[-1] if found else None
            read = FindThreads(after, _PAGE, empty=True, prefix=prefix)
            (names,) = await self._call("fetch", [read])
            found += names
            if len(names) < _PAGE:
                return found

    async def migrate(self) -> None:
        """Create the tables, or migrate them."""
        await self._call("migrate")

    async def close(self) -> None:
        """Close the database."""
        await self._call("close")

    def _row(self, thread: str, secret: Secret) -> WriteRow:
        packed = ormsgpack.packb(tuple(secret))
        body = self._sealer.seal(packed, place(thread), self._sealer.group(thread))
        return WriteRow("", KEY, 0, 0, KEY, "", body)

    def _opened(self, thread: str, row: WriteRow) -> Secret:
        groups = [self._sealer.group(thread)]
        return Secret(*ormsgpack.unpackb(self._sealer.open(row.body, place(thread), groups)))

    async def _rows(self, thread: str) -> ThreadRows:
        (rows,) = await self._call("fetch", [ReadThread(thread)])
        found: ThreadRows = rows
        return found

    async def _call(self, method: str, *args: Any, **options: Any) -> Any:
        call = partial(getattr(self._backend, method), *args, **options)
        try:
            return await (asyncio.to_thread(call) if self._in_threads else result(call()))
        except BackendError as error:
            error.message = f"The key store failed: {error.message}"
            raise


def _thread(store: bytes, name: str) -> str:
    return f"{KEY} {store.hex()} {name}"


def _destroyed(name: str, at: int) -> DestroyedKeyError:
    day = datetime.fromtimestamp(at / 1e6, UTC)
    return DestroyedKeyError(
        f"The key of {name} was destroyed at {day:%Y-%m-%d %H:%M} UTC.",
        hint="What it encrypted cannot be read any more. Use another name for new data.",
    )
