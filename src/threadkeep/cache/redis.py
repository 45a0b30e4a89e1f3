"""Cache in Redis, over the client of a saver's backend.

Keys begin with the saver's prefix and "cache:{entries}", so that on a cluster all of them are in
one slot. An entry is a text that expires by itself: "v" and the value, or "l" and the owner of a
lease. Sorted sets have the ids by last use and by expiry, and a hash has their sizes: of what has
expired until it is trimmed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import chain
from typing import Any

from threadkeep.backends.redis.rows import Word
from threadkeep.backends.redis.scripts import Call
from threadkeep.backends.redis.server import Server
from threadkeep.cache.backend import (
    PAGE,
    AsyncCacheBackend,
    Change,
    Claim,
    ClearEntries,
    RemoveEntries,
    Row,
    SetEntries,
    TrimEntries,
    UseEntries,
)
from threadkeep.errors import ThreadkeepError

# (Commands take at most some 8,000 words from a script: a call has `PAGE` ids.)
_SCRIPT = """
local base = KEYS[1]
local used, expiring, sizes, total =
    base .. 'used', base .. 'expiring', base .. 'sizes', base .. 'total'

local function count(ids)
    local bytes = 0
    for _, size in ipairs(redis.call('HMGET', sizes, unpack(ids))) do
        bytes = bytes + (size or 0)
    end
    return bytes
end

local function forget(ids)
    if #ids == 0 then
        return
    end
    redis.call('DECRBY', total, count(ids))
    redis.call('HDEL', sizes, unpack(ids))
    redis.call('ZREM', used, unpack(ids))
    redis.call('ZREM', expiring, unpack(ids))
    for at, id in ipairs(ids) do
        ids[at] = base .. id
    end
    redis.call('UNLINK', unpack(ids))
end

local function note(now, ids, lifetimes, lengths)
    local uses, ends, never, changed, bytes = {}, {}, {}, {}, -count(ids)
    for at, id in ipairs(ids) do
        uses[2 * at - 1], uses[2 * at] = now, id
        changed[2 * at - 1], changed[2 * at] = id, lengths[at]
        bytes = bytes + lengths[at]
        if lifetimes[at] == '' then
            never[#never + 1] = id
        else
            ends[#ends + 1] = now + lifetimes[at]
            ends[#ends + 1] = id
        end
    end
    redis.call('ZADD', used, unpack(uses))
    redis.call('HSET', sizes, unpack(changed))
    redis.call('INCRBY', total, bytes)
    if #ends > 0 then
        redis.call('ZADD', expiring, unpack(ends))
    end
    if #never > 0 then
        redis.call('ZREM', expiring, unpack(never))
    end
end

local actions = {}

function actions.set(now)
    local ids, lifetimes, lengths = {}, {}, {}
    for at = 3, #ARGV, 3 do
        local id, lifetime, value = ARGV[at], ARGV[at + 1], ARGV[at + 2]
        if lifetime == '' then
            redis.call('SET', base .. id, value)
        else
            redis.call('SET', base .. id, value, 'PX', lifetime)
        end
        table.insert(ids, id)
        table.insert(lifetimes, lifetime)
        table.insert(lengths, #value - 1)
    end
    note(now, ids, lifetimes, lengths)
end

function actions.claim(now)
    local claimed, lifetimes, lengths = {}, {}, {}
    for at = 5, #ARGV do
        if redis.call('SET', base .. ARGV[at], ARGV[4], 'NX', 'PX', ARGV[3]) then
            table.insert(claimed, ARGV[at])
            table.insert(lifetimes, ARGV[3])
            table.insert(lengths, 0)
        end
    end
    if #claimed > 0 then
        note(now, claimed, lifetimes, lengths)
    end
    return claimed
end

function actions.remove(owner)
    local ids = {}
    for at = 3, #ARGV do
        if owner == '' or redis.call('GET', base .. ARGV[at]) == owner then
            table.insert(ids, ARGV[at])
        end
    end
    forget(ids)
end

function actions.trim(now)
    local most, bytes, page = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
    forget(redis.call('ZRANGEBYSCORE', expiring, '-inf', now, 'LIMIT', 0, page))
    local entries_over = redis.call('ZCARD', used) - most
    local bytes_over = (redis.call('GET', total) or 0) - bytes
    if entries_over <= 0 and bytes_over <= 0 then
        return
    end
    local ids, surplus = redis.call('ZRANGE', used, 0, page - 1), {}
    for at, size in ipairs(redis.call('HMGET', sizes, unpack(ids))) do
        if entries_over <= 0 and bytes_over <= 0 then
            break
        end
        surplus[at] = ids[at]
        entries_over, bytes_over = entries_over - 1, bytes_over - (size or 0)
    end
    forget(surplus)
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
        with self._server.mapped_errors():
            return await self._server.sent(calls)

    def _script(self, *words: Word) -> Call:
        rest = (1, self._base, *words)
        return Call(("EVALSHA", _DIGEST, *rest), ("EVAL", _SCRIPT, *rest))

    async def fetch(self, reads: Sequence[Any]) -> list[Any]:
        """See `CacheBackend`."""
        base = self._base
        calls = [Call(("MGET", *[base + id_ for id_ in read.ids])) for read in reads]
        answers = await self._send(calls)
        return [_found(read.ids, texts) for read, texts in zip(reads, answers, strict=True)]

    async def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        """See `CacheBackend`."""
        calls: list[Call] = []
        for change in changes:
            if isinstance(change, ClearEntries):
                await self._send(calls)
                calls = []
                await self._clear(change)
            else:
                calls += self._calls(change)
        await self._send(calls)
        return [None] * len(changes)

    async def _clear(self, change: ClearEntries) -> None:
        cursor = None
        while cursor != 0:
            scan = Call(("ZSCAN", self._base + b"used", cursor or 0, "COUNT", PAGE))
            ((cursor, found),) = await self._send([scan])
            spaces = change.spaces
            ids = tuple([id_ for id_, _ in found if spaces is None or id_[:8] in spaces])
            await self._send(self._calls(RemoveEntries(ids)))

    def _calls(self, change: Change) -> list[Call]:
        match change:
            case SetEntries(entries, now):
                words = [
                    (id_, "" if end is None else _milliseconds(end - now), _VALUE + value)
                    for id_, value, end in entries
                ]
                return self._pages(("set", _milliseconds(now)), words)
            case UseEntries(ids, now):
                scores = [word for id_ in ids for word in (_milliseconds(now), id_)]
                return [Call(("ZADD", self._base + b"used", "XX", *scores))]
            case RemoveEntries(ids, owner):
                word = b"" if owner is None else _LEASE + owner
                return self._pages(("remove", word), [(id_,) for id_ in ids])
            case TrimEntries(now, max_entries, max_bytes):
                return [self._script("trim", _milliseconds(now), max_entries, max_bytes, PAGE)]
            case ClearEntries():
                raise AssertionError(change)  # pragma: no cover

    def _pages(self, first: Sequence[Word], entries: Sequence[Sequence[Word]]) -> list[Call]:
        """Return calls of the script, each of which has some of the entries."""
        pages = [entries[at : at + PAGE] for at in range(0, len(entries), PAGE)]
        return [self._script(*first, *chain.from_iterable(page)) for page in pages]

    async def claim(self, claim: Claim) -> list[bytes]:
        """See `CacheBackend.claim`."""
        lifetime = _milliseconds(claim.until - claim.now)
        first = ("claim", _milliseconds(claim.now), lifetime, _LEASE + claim.owner)
        answers = await self._send(self._pages(first, [(id_,) for id_ in claim.ids]))
        return [id_ for claimed in answers for id_ in claimed]


def _milliseconds(time: int) -> int:
    return max(1, time // 1000)


def _found(ids: Sequence[bytes], texts: Sequence[bytes | None]) -> dict[bytes, Row]:
    pairs = [(id_, text) for id_, text in zip(ids, texts, strict=True) if text is not None]
    return {
        id_: (text[1:], None) if text[:1] == _VALUE else (None, text[1:]) for id_, text in pairs
    }


entries_over = RedisEntries
