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

_KEYS = """
local call, base = redis.call, KEYS[1]
local used, expiring, sizes, total =
    base .. 'used', base .. 'expiring', base .. 'sizes', base .. 'total'

local function count(ids)
    local bytes = 0
    for _, size in ipairs(call('HMGET', sizes, unpack(ids))) do
        bytes = bytes + (size or 0)
    end
    return bytes
end
"""
_NOTE = """
local function note(now, ids, lifetimes, lengths)
    local uses, ends, never, changed, bytes = {}, {}, {}, {}, 0
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
    if call('ZADD', used, unpack(uses)) < #ids then
        bytes = bytes - count(ids)
        if #never > 0 then
            call('ZREM', expiring, unpack(never))
        end
    end
    if #ends > 0 then
        call('ZADD', expiring, unpack(ends))
    end
    call('HSET', sizes, unpack(changed))
    call('INCRBY', total, bytes)
end
"""
_FORGET = """
local function forget(ids)
    if #ids == 0 then
        return
    end
    call('DECRBY', total, count(ids))
    call('HDEL', sizes, unpack(ids))
    call('ZREM', used, unpack(ids))
    call('ZREM', expiring, unpack(ids))
    for at, id in ipairs(ids) do
        ids[at] = base .. id
    end
    call('UNLINK', unpack(ids))
end
"""
_SET = """
local ids, lifetimes, lengths = {}, {}, {}
for at = 2, #ARGV, 3 do
    local id, lifetime, value = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    if lifetime == '' then
        call('SET', base .. id, value)
    else
        call('SET', base .. id, value, 'PX', lifetime)
    end
    local nth = #ids + 1
    ids[nth], lifetimes[nth], lengths[nth] = id, lifetime, #value - 1
end
note(ARGV[1], ids, lifetimes, lengths)
"""
_CLAIM = """
local claimed, lifetimes, lengths = {}, {}, {}
for at = 4, #ARGV do
    if call('SET', base .. ARGV[at], ARGV[3], 'NX', 'PX', ARGV[2]) then
        local nth = #claimed + 1
        claimed[nth], lifetimes[nth], lengths[nth] = ARGV[at], ARGV[2], 0
    end
end
if #claimed > 0 then
    note(ARGV[1], claimed, lifetimes, lengths)
end
return claimed
"""
_REMOVE = """
local ids = {}
for at = 2, #ARGV do
    if ARGV[1] == '' or call('GET', base .. ARGV[at]) == ARGV[1] then
        ids[#ids + 1] = ARGV[at]
    end
end
forget(ids)
"""
_TRIM = """
local page = ARGV[4]
forget(call('ZRANGEBYSCORE', expiring, '-inf', ARGV[1], 'LIMIT', 0, page))
local entries_over = call('ZCARD', used) - ARGV[2]
local bytes_over = (call('GET', total) or 0) - ARGV[3]
if entries_over <= 0 and bytes_over <= 0 then
    return
end
local ids, surplus = call('ZRANGE', used, 0, page - 1), {}
for at, size in ipairs(call('HMGET', sizes, unpack(ids))) do
    if entries_over <= 0 and bytes_over <= 0 then
        break
    end
    surplus[at] = ids[at]
    entries_over, bytes_over = entries_over - 1, bytes_over - (size or 0)
end
forget(surplus)
"""
# (A command takes at most some 8,000 words from a script: a call has `PAGE` ids.)
_TEXTS = {
    "set": _KEYS + _NOTE + _SET,
    "claim": _KEYS + _NOTE + _CLAIM,
    "remove": _KEYS + _FORGET + _REMOVE,
    "trim": _KEYS + _FORGET + _TRIM,
}
# SHA-1 is how Redis names scripts: it protects nothing.
_DIGESTS = {
    name: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    for name, text in _TEXTS.items()
}
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

    def _script(self, name: str, *words: Word) -> Call:
        rest = (1, self._base, *words)
        return Call(("EVALSHA", _DIGESTS[name], *rest), ("EVAL", _TEXTS[name], *rest))

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
                return self._pages("set", (_milliseconds(now),), words)
            case UseEntries(ids, now):
                scores = [word for id_ in ids for word in (_milliseconds(now), id_)]
                return [Call(("ZADD", self._base + b"used", "XX", *scores))]
            case RemoveEntries(ids, owner):
                word = b"" if owner is None else _LEASE + owner
                return self._pages("remove", (word,), [(id_,) for id_ in ids])
            case TrimEntries(now, max_entries, max_bytes):
                return [self._script("trim", _milliseconds(now), max_entries, max_bytes, PAGE)]
            case ClearEntries():
                raise AssertionError(change)  # pragma: no cover

    def _pages(
        self, name: str, first: Sequence[Word], entries: Sequence[Sequence[Word]]
    ) -> list[Call]:
        """Return calls of a script, each of which has some of the entries."""
        pages = [entries[at : at + PAGE] for at in range(0, len(entries), PAGE)]
        return [self._script(name, *first, *chain.from_iterable(page)) for page in pages]

    async def claim(self, claim: Claim) -> list[bytes]:
        """See `CacheBackend.claim`."""
        lifetime = _milliseconds(claim.until - claim.now)
        first = (_milliseconds(claim.now), lifetime, _LEASE + claim.owner)
        answers = await self._send(self._pages("claim", first, [(id_,) for id_ in claim.ids]))
        return [id_ for claimed in answers for id_ in claimed]


def _milliseconds(time: int) -> int:
    return max(1, time // 1000)


def _found(ids: Sequence[bytes], texts: Sequence[bytes | None]) -> dict[bytes, Row]:
    pairs = [(id_, text) for id_, text in zip(ids, texts, strict=True) if text is not None]
    return {
        id_: (text[1:], None) if text[:1] == _VALUE else (None, text[1:]) for id_, text in pairs
    }


entries_over = RedisEntries
