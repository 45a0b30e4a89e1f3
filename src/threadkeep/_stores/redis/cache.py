"""Cache in Redis, over the client of a saver's backend.

Keys begin with the saver's prefix and "cache:{entries}", so that on a cluster all of them are in
one slot. An entry is a text that expires by itself: "v" and the value, or "l" and the owner of a
lease. A sorted set has the ids by last use, until a trim those that have expired too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from threadkeep._stores.caches import (
    PAGE,
    AsyncCacheBackend,
    Change,
    Claim,
    ClearEntries,
    Entry,
    RemoveEntries,
    Row,
    SetEntries,
    TrimEntries,
    UseEntries,
)
from threadkeep._stores.redis.rows import Word, cache_base
from threadkeep._stores.redis.scripts import RedisCommand
from threadkeep._stores.redis.server import Server
from threadkeep.errors import ThreadkeepError

_SET = """
local base, uses = KEYS[1], {}
for at = 2, #ARGV, 3 do
    if ARGV[at + 1] == '' then
        redis.call('SET', base .. ARGV[at], ARGV[at + 2])
    else
        redis.call('SET', base .. ARGV[at], ARGV[at + 2], 'PX', ARGV[at + 1])
    end
    uses[#uses + 1] = ARGV[1]
    uses[#uses + 1] = ARGV[at]
end
redis.call('ZADD', base .. 'used', unpack(uses))
"""
_CLAIM = """
local base, claimed = KEYS[1], {}
for at = 4, #ARGV do
    local key = base .. ARGV[at]
    local is_new = redis.call('SET', key, ARGV[3], 'NX', 'PX', ARGV[2])
    if is_new or redis.call('GET', key) == ARGV[3] then  -- (it was made, and its answer lost)
        redis.call('ZADD', base .. 'used', ARGV[1], ARGV[at])
        claimed[#claimed + 1] = ARGV[at]
    end
end
return claimed
"""
_REMOVE = """
for at = 2, #ARGV do
    local key = KEYS[1] .. ARGV[at]
    if ARGV[1] == '' or redis.call('GET', key) == ARGV[1] then
        redis.call('UNLINK', key)
        redis.call('ZREM', KEYS[1] .. 'used', ARGV[at])
    end
end
"""
# As Redis itself does, this looks at a random sample for what has expired, and for the mean size.
_TRIM = """
local base, used, page = KEYS[1], KEYS[1] .. 'used', tonumber(ARGV[3])
local function length(id)
    return redis.call('STRLEN', base .. id)
end
local entries, bytes = redis.call('ZCARD', used), 0
local sample = redis.call('ZRANDMEMBER', used, page)
for _, id in ipairs(sample) do
    local size = length(id)
    bytes = bytes + size * entries / #sample
    if size == 0 then
        redis.call('ZREM', used, id)
    end
end
local entries_over = redis.call('ZCARD', used) - ARGV[1]
local bytes_over, removed = bytes - ARGV[2], 0
for _, id in ipairs(redis.call('ZRANGE', used, 0, page - 1)) do
    if entries_over <= 0 and bytes_over <= 0 then
        break
    end
    entries_over, bytes_over = entries_over - 1, bytes_over - length(id)
    removed = removed + redis.call('UNLINK', base .. id)  -- (0 where it has expired)
    redis.call('ZREM', used, id)
end
return removed
"""
_TEXTS = {"set": _SET, "claim": _CLAIM, "remove": _REMOVE, "trim": _TRIM}
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
        self._base = cache_base(server.prefix).encode()

    async def _send(self, calls: Sequence[RedisCommand]) -> list[Any]:
        with self._server.mapped_errors():
            return await self._server.sent(calls)

    def _script(self, name: str, *words: Word) -> RedisCommand:
        rest = (1, self._base, *words)
        return RedisCommand(("EVALSHA", _DIGESTS[name], *rest), ("EVAL", _TEXTS[name], *rest))

    async def fetch(self, reads: Sequence[Any]) -> list[Any]:
        base = self._base
        calls = [RedisCommand(("MGET", *[base + id_ for id_ in read.ids])) for read in reads]
        answers = await self._send(calls)
        return [_found(read.ids, texts) for read, texts in zip(reads, answers, strict=True)]

    async def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        calls: list[RedisCommand] = []
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
            scan = RedisCommand(("ZSCAN", self._base + b"used", cursor or 0, "COUNT", PAGE))
            ((cursor, found),) = await self._send([scan])
            spaces = change.spaces
            ids = tuple([id_ for id_, _ in found if spaces is None or id_[:8] in spaces])
            await self._send(self._calls(RemoveEntries(ids)))

    def _calls(self, change: Change) -> list[RedisCommand]:
        match change:
            case SetEntries(entries, now):
                # (A command takes some 8,000 words from a script at most.)
                pages = [entries[at : at + PAGE] for at in range(0, len(entries), PAGE)]
                return [self._setting(page, now) for page in pages]
            case UseEntries(ids, now):
                scores = [word for id_ in ids for word in (_milliseconds(now), id_)]
                return [RedisCommand(("ZADD", self._base + b"used", "XX", *scores))]
            case RemoveEntries(ids, owner):
                return [self._script("remove", b"" if owner is None else _LEASE + owner, *ids)]
            case ClearEntries():
                raise AssertionError(change)  # pragma: no cover

    def _setting(self, entries: Sequence[Entry], now: int) -> RedisCommand:
        words: list[Word] = []
        for id_, value, end in entries:
            words += (id_, "" if end is None else _milliseconds(end - now), _VALUE + value)
        return self._script("set", _milliseconds(now), *words)

    async def claim(self, claim: Claim) -> list[bytes]:
        lifetime = _milliseconds(claim.until - claim.now)
        first = (_milliseconds(claim.now), lifetime, _LEASE + claim.owner)
        (claimed,) = await self._send([self._script("claim", *first, *claim.ids)])
        return list(claimed)

    async def trim(self, trim: TrimEntries) -> int:
        call = self._script("trim", trim.max_entries, trim.max_bytes, PAGE)
        (removed,) = await self._send([call])
        return int(removed)


def _milliseconds(time: int) -> int:
    return max(1, time // 1000)


def _found(ids: Sequence[bytes], texts: Sequence[bytes | None]) -> dict[bytes, Row]:
    pairs = [(id_, text) for id_, text in zip(ids, texts, strict=True) if text is not None]
    return {
        id_: (text[1:], None) if text[:1] == _VALUE else (None, text[1:]) for id_, text in pairs
    }
