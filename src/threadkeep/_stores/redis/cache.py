"""Cache in Redis, over the client of a saver's backend.

Keys begin with the saver's prefix and "cache:{entries}", so that on a cluster all of them are in
one slot. An entry is a text that expires by itself: "v" and the value, or "l" and the owner of a
lease. A sorted set has the ids by last use, and ids of expired entries stay in it until a trim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from threadkeep._stores import caches
from threadkeep._stores.redis.rows import Word, cache_base
from threadkeep._stores.redis.scripts import RedisCommand, call
from threadkeep._stores.redis.server import Server
from threadkeep.errors import ThreadkeepError

_VALUE, _LEASE = b"v", b"l"


class RedisEntries(caches.AsyncCacheBackend):
    """Entries under a saver's prefix."""

    commits_groups = True

    def __init__(self, server: Server) -> None:
        self._server = server
        self._prefix = cache_base(server.prefix)
        self._base = self._prefix.encode()

    async def _send(self, calls: Sequence[RedisCommand]) -> list[Any]:
        with self._server.mapped_errors():
            return await self._server.sent(calls)

    def _script(self, name: str, *words: Word) -> RedisCommand:
        return call("cache", (self._prefix,), (name, *words))

    async def fetch(self, reads: Sequence[Any]) -> list[Any]:
        calls = [
            self._script("uses", caches.PAGE)
            if isinstance(read, caches.ReadUses)
            else RedisCommand(("MGET", *[self._base + id_ for id_ in read.ids]))
            for read in reads
        ]
        answers = await self._send(calls)
        return [_reply(*pair) for pair in zip(reads, answers, strict=True)]

    async def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        calls: list[RedisCommand] = []
        for change in changes:
            if isinstance(change, caches.ClearEntries):
                await self._send(calls)
                calls = []
                await self._clear(change)
            else:
                calls += self._calls(change)
        await self._send(calls)
        return [None] * len(changes)

    async def _clear(self, change: caches.ClearEntries) -> None:
        cursor = None
        while cursor != 0:
            scan = RedisCommand(("ZSCAN", self._base + b"used", cursor or 0, "COUNT", caches.PAGE))
            ((cursor, found),) = await self._send([scan])
            spaces = change.spaces
            ids = tuple([id_ for id_, _ in found if spaces is None or id_.startswith(spaces)])
            await self._send(self._calls(caches.RemoveEntries(ids)))

    def _calls(self, change: caches.CacheChange) -> list[RedisCommand]:
        match change:
            case caches.SetEntries(entries, now):
                # (A command takes some 8,000 words from a script at most.)
                pages = [
                    entries[at : at + caches.PAGE] for at in range(0, len(entries), caches.PAGE)
                ]
                return [self._setting(page, now) for page in pages]
            case caches.LeaseEntries(ids, owner, now, until):
                lifetime = _milliseconds(until - now)
                return [self._script("lease", _milliseconds(now), lifetime, _LEASE + owner, *ids)]
            case caches.UseEntries(ids, now):
                scores = [word for id_ in ids for word in (_milliseconds(now), id_)]
                return [RedisCommand(("ZADD", self._base + b"used", "XX", *scores))]
            case caches.RemoveEntries(ids, owner):
                return [self._script("remove", b"" if owner is None else _LEASE + owner, *ids)]
            case caches.ClearEntries():
                raise AssertionError(change)  # pragma: no cover

    def _setting(self, entries: Sequence[caches.Entry], now: int) -> RedisCommand:
        words: list[Word] = []
        for id_, value, end in entries:
            words += (id_, "" if end is None else _milliseconds(end - now), _VALUE + value)
        return self._script("set", _milliseconds(now), *words)


def _milliseconds(time: int) -> int:
    return max(1, time // 1000)


def _reply(read: caches.GetEntries | caches.ReadUses, answer: Any) -> Any:
    if isinstance(read, caches.ReadUses):
        entries, size, expired, oldest = answer
        sized = list(zip(oldest[::2], oldest[1::2], strict=True))
        return caches.Uses(entries, size, [(id_, 0) for id_ in expired], sized)
    pairs = [(id_, text) for id_, text in zip(read.ids, answer, strict=True) if text is not None]
    return {
        id_: (text[1:], None) if text[:1] == _VALUE else (None, text[1:]) for id_, text in pairs
    }
