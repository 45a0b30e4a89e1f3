"""Cache in Redis, over the client of a saver's backend.

Keys begin with the saver's prefix and "cache:{entries}", so that on a cluster all of them are in
one slot. An entry is a text that expires by itself: "v" and the value, or "l" and the owner of a
lease. Sorted sets have the ids by their order, their last use and their expiry, and a hash their
sizes: of what has expired until `trim`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from threadkeep.backends.redis.failures import DRIVER_ERRORS, mapped
from threadkeep.backends.redis.rows import Word
from threadkeep.backends.redis.scripts import Call
from threadkeep.backends.redis.server import Server
from threadkeep.cache.backend import (
    AT_ONCE,
    AsyncCacheBackend,
    Claim,
    ClearEntries,
    Limits,
    RemoveEntries,
    Row,
    SetEntries,
    UseEntries,
    end_of,
)
from threadkeep.errors import ThreadkeepError

_SCRIPT = """
local base = KEYS[1]
local ids, used, expiring, sizes, total =
    base .. 'ids', base .. 'used', base .. 'expiring', base .. 'sizes', base .. 'total'

local function forget(id)
    redis.call('UNLINK', base .. id)
    if redis.call('ZREM', ids, id) == 1 then
        redis.call('ZREM', used, id)
        redis.call('ZREM', expiring, id)
        redis.call('DECRBY', total, redis.call('HGET', sizes, id))
        redis.call('HDEL', sizes, id)
    end
end

local function note(id, now, lifetime, size)
    redis.call('ZADD', ids, 0, id)
    redis.call('ZADD', used, now, id)
    if lifetime == '' then
        redis.call('ZREM', expiring, id)
    else
        redis.call('ZADD', expiring, now + lifetime, id)
    end
    redis.call('INCRBY', total, size - (redis.call('HGET', sizes, id) or 0))
    redis.call('HSET', sizes, id, size)
end

local actions = {}

function actions.set(now)
    for at = 3, #ARGV, 3 do
        local id, lifetime, value = ARGV[at], ARGV[at + 1], ARGV[at + 2]
        if lifetime == '' then
            redis.call('SET', base .. id, value)
        else
            redis.call('SET', base .. id, value, 'PX', lifetime)
        end
        note(id, now, lifetime, #value - 1)
    end
end

function actions.claim(now)
    local claimed = {}
    for at = 5, #ARGV do
        if redis.call('SET', base .. ARGV[at], ARGV[4], 'NX', 'PX', ARGV[3]) then
            note(ARGV[at], now, ARGV[3], 0)
            table.insert(claimed, ARGV[at])
        end
    end
    return claimed
end

function actions.remove(owner)
    for at = 3, #ARGV do
        if owner == '' or redis.call('GET', base .. ARGV[at]) == owner then
            forget(ARGV[at])
        end
    end
end

function actions.clear(first)
    local found = redis.call('ZRANGEBYLEX', ids, first, ARGV[3], 'LIMIT', 0, ARGV[4])
    for _, id in ipairs(found) do
        forget(id)
    end
    return #found
end

function actions.trim(now)
    local most, bytes, limit = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', expiring, '-inf', now, 'LIMIT', 0, limit)) do
        forget(id)
    end
    for _, id in ipairs(redis.call('ZRANGE', used, 0, limit - 1)) do
        if redis.call('ZCARD', ids) <= most and tonumber(redis.call('GET', total)) <= bytes then
            return
        end
        forget(id)
    end
end

return actions[ARGV[1]](ARGV[2])
"""
# SHA-1 is how Redis names scripts: it protects nothing.
_DIGEST = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()
_VALUE, _LEASE = b"v", b"l"


class RedisEntries(AsyncCacheBackend):
    """Entries under a saver's prefix."""

    commits_groups = True

    def __init__(self, server: Server) -> None:
        self._server = server
        self._base = f"{server.prefix}:cache:{{entries}}:".encode()

    async def _send(self, calls: Sequence[Call]) -> list[Any]:
        with self._mapped_errors():
            return await self._server.sent(calls)

    @contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        try:
            yield
        except DRIVER_ERRORS as error:
            raise mapped(error, "Redis") from error

    def _script(self, *words: Word) -> Call:
        rest = (1, self._base, *words)
        return Call(("EVALSHA", _DIGEST, *rest), ("EVAL", _SCRIPT, *rest))

    async def fetch(self, reads: Sequence[Any]) -> list[Any]:
        """See `CacheBackend`."""
        calls = []
        for read in reads:
            calls.append(Call(("MGET", *[self._base + id_ for id_ in read.ids])))
            calls.append(Call(("ZMSCORE", self._base + b"used", *read.ids)))
        answers = await self._send(calls)
        pairs = zip(answers[::2], answers[1::2], strict=True)
        return [[_row(*one) for one in zip(*pair, strict=True)] for pair in pairs]

    async def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        """See `CacheBackend`."""
        calls: list[Call] = []
        for change in changes:
            if isinstance(change, ClearEntries):
                await self._send(calls)
                calls = []
                await self._clear(change)
            else:
                calls.append(self._call(change))
        await self._send(calls)
        return [None] * len(changes)

    async def _clear(self, change: ClearEntries) -> None:
        ranges: list[tuple[Word, Word]] = [("-", "+")]
        if change.spaces is not None:
            ranges = [(b"[" + space, b"(" + end_of(space)) for space in change.spaces]
        for first, stop in ranges:
            clear = self._script("clear", first, stop, AT_ONCE)
            while (await self._send([clear])) == [AT_ONCE]:
                pass

    def _call(self, change: SetEntries | UseEntries | RemoveEntries) -> Call:
        match change:
            case SetEntries():
                words: list[Word] = []
                for id_, value, expires_at in change.entries:
                    lifetime = "" if expires_at is None else _milliseconds(expires_at - change.now)
                    words += (id_, lifetime, _VALUE + value)
                return self._script("set", _milliseconds(change.now), *words)
            case UseEntries():
                scores = [word for id_ in change.ids for word in (_milliseconds(change.now), id_)]
                return Call(("ZADD", self._base + b"used", "XX", *scores))
            case RemoveEntries():
                owner = b"" if change.owner is None else _LEASE + change.owner
                return self._script("remove", owner, *change.ids)

    async def claim(self, claim: Claim) -> list[bytes]:
        """See `CacheBackend.claim`."""
        lifetime = _milliseconds(claim.until - claim.now)
        words = ("claim", _milliseconds(claim.now), lifetime, _LEASE + claim.owner)
        (claimed,) = await self._send([self._script(*words, *claim.ids)])
        return list(claimed)

    async def trim(self, now: int, limits: Limits) -> None:
        """See `CacheBackend.trim`."""
        await self._send([self._script("trim", _milliseconds(now), *limits, AT_ONCE)])


def _milliseconds(time: int) -> int:
    return max(1, time // 1000)


def _row(text: bytes | None, score: Any) -> Row | None:
    if text is None:
        return None
    used_at = int(1000 * float(score or 0))
    if text[:1] == _VALUE:
        return Row(text[1:], None, used_at)
    return Row(None, text[1:], used_at)


entries_over = RedisEntries
