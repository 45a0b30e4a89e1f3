"""Rows of a cache, for blocking and for awaiting callers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from threadkeep._core.engine.operation import Call, Fetch
from threadkeep._run.layers.driver import BottomStore
from threadkeep._stores.caches import BlockingCache, Change, Claim, GetEntries, Row, TrimEntries


class Blocking:
    """A cache's store for blocking callers: nothing suspends."""

    def __init__(self, store: BottomStore) -> None:
        self._store: Any = store
        backend = store.backend
        # (A server takes the commits of several threads at once.)
        self._commit: Any = backend.commit if isinstance(backend, BlockingCache) else store.commit

    async def get(self, ids: Iterable[bytes], now: int) -> dict[bytes, Row]:
        """Read entries: see `GetEntries`."""
        (found,) = self._store.blocking.fetch((GetEntries(tuple(ids), now),))
        rows: dict[bytes, Row] = found
        return rows

    async def commit(self, change: Change) -> None:
        """Carry out a change."""
        self._commit(change)

    async def claim(self, claim: Claim) -> list[bytes]:
        """See `CacheBackend.claim`."""
        claimed: list[bytes] = self._store.blocking.claim(claim)
        return claimed

    async def trim(self, trim: TrimEntries) -> int:
        """Remove entries beyond limits; return how many were removed that had not expired."""
        removed: int = self._store.blocking.trim(trim)
        return removed

    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""
        time.sleep(seconds)  # noqa: ASYNC251 - nothing else waits for this thread


class Awaited(Blocking):
    """A cache's store for awaiting callers."""

    async def get(self, ids: Iterable[bytes], now: int) -> dict[bytes, Row]:
        """See `Blocking.get`."""
        reads: Any = (GetEntries(tuple(ids), now),)
        (found,) = await self._store.aanswer(Fetch(reads))
        rows: dict[bytes, Row] = found
        return rows

    async def commit(self, change: Change) -> None:
        """See `Blocking.commit`."""
        waiting = self._store.submit(change)
        if waiting is not None:
            await waiting

    async def claim(self, claim: Claim) -> list[bytes]:
        """See `CacheBackend.claim`."""
        claimed: list[bytes] = await self._store.acall(Call("claim", (claim,)))
        return claimed

    async def trim(self, trim: TrimEntries) -> int:
        """See `Blocking.trim`."""
        removed: int = await self._store.acall(Call("trim", (trim,)))
        return removed

    async def sleep(self, seconds: float) -> None:
        """See `Blocking.sleep`."""
        await asyncio.sleep(seconds)
