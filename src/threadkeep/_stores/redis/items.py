"""Items in a Redis or Valkey server, or in a cluster, on the clients of a saver's backend.

A store has nine keys (see `item_rows`) in one slot of a cluster: a change is one script, atomic
over all namespaces, and a store must fit on one node. A read of several pages sees each page in one
state. Vectors and words are sent to this process and compared here.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from threadkeep._stores.items import AsyncItemBackend, merged, other_dims, records
from threadkeep._stores.items.filters import best, best_texts, nearest, numpy
from threadkeep._stores.items.records import ItemRow, Namespace
from threadkeep._stores.redis import item_rows
from threadkeep._stores.redis.rows import Word, item_key
from threadkeep._stores.redis.scripts import RedisCommand, call
from threadkeep._stores.redis.server import Server
from threadkeep.errors import ConflictError, CorruptionError, ThreadkeepError

T = TypeVar("T")
_log = logging.getLogger("threadkeep")
_Steps: TypeAlias = Generator[Sequence[RedisCommand], Any, T]
"""Calls that are sent together, again and again; gets their answers, and returns a reply."""

_PAGE = 500  # items that one call reads
_VECTOR_BYTES = 4 << 20  # of vectors that one call reads
_SPACES = 1000  # namespaces that one call lists
_EXPIRED = 5000  # fields of expired items that one call lists
_REMOVED = 100  # items that one call removes


class _Under:
    """Members under a prefix, or at a place or later ones, that are still to be read."""

    def __init__(self, prefix: Namespace, after: bytes = b"", offset: int = 0) -> None:
        path = item_rows.path_of(prefix)
        # (the rest of a member at a place is below \xff)
        self.low = b"(" + after + b"\xff" if after > path else b"[" + path
        self.high = b"(" + path + b"\xff"
        self.offset = offset
        self.has_more = True


class AsyncRedisItems(AsyncItemBackend):
    """Items in Redis, for async calls. The caller tests filters: their hints are ignored."""

    commits_groups = True

    def __init__(self, server: Server, options: records.SearchOptions) -> None:
        if options.dims:
            numpy()
        self._server = server
        self._options = options
        self._keys = {kind: item_key(server.prefix, kind) for kind in item_rows.KINDS}

    # -- reads ---------------------------------------------------------------------------

    async def fetch(self, reads: Sequence[Any]) -> list[Any]:
        """Answer each read. Their simultaneous questions share a round trip."""
        with self._server.mapped_errors():
            return await self._together([self._reply(read) for read in reads])

    async def _together(self, many: Sequence[_Steps[Any]]) -> list[Any]:
        results: list[Any] = [None] * len(many)
        answers: dict[int, Any] = dict.fromkeys(range(len(many)))
        while answers:
            asked: dict[int, Sequence[RedisCommand]] = {}
            for at, answer in answers.items():
                try:
                    asked[at] = many[at].send(answer)
                except StopIteration as stop:
                    results[at] = stop.value
            found = iter(await self._server.sent([one for some in asked.values() for one in some]))
            answers = {at: [next(found) for _ in some] for at, some in asked.items()}
        return results

    def _reply(self, read: records.ItemRead) -> _Steps[Any]:
        match read:
            case records.GetItems():
                return self._get(read)
            case records.FindItems():
                return self._find(read)
            case records.FindNamespaces():
                return self._namespaces(read)
            case records.FindNearest():
                return self._nearest(read)
            case records.FindText():
                return self._text(read)
            case records.FindVersions():
                return self._versions(read)

    def _get(self, read: records.GetItems) -> _Steps[list[ItemRow | None]]:
        if not read.keys:
            return []
        fields = [item_rows.field_of(namespace, key) for namespace, key in read.keys]
        (rows,) = yield [RedisCommand(("HMGET", self._keys["items"], *fields))]
        found = [
            None if data is None else item_rows.unpack_item(field, data)
            for field, data in zip(fields, rows, strict=True)
        ]
        return [row if row and row.is_there(read.now) else None for row in found]

    def _find(self, read: records.FindItems) -> _Steps[list[ItemRow]]:
        offset = 0 if read.where else read.offset
        is_plain = read.now is None and not read.bare
        after = b"" if read.after is None else item_rows.pack_place(read.after)
        under = _Under(read.prefix, after, offset if is_plain else 0)
        first = 0 if is_plain else offset
        last = first + read.limit
        order = "waiting" if read.pending else "order"
        found: list[ItemRow] = []
        while under.has_more and len(found) < last:
            size = _PAGE if read.bare else min(last - len(found), _PAGE)
            for member, data in (yield from self._page(under, "items", size, order)):
                row = _listed(item_rows.field_in(member), data)
                if row is not None and row.is_there(read.now):
                    found += [] if read.bare and item_rows.has_vectors(data) else [row]
        return found[first:last]

    def _page(
        self, under: _Under, kind: str, size: int, order: str = "order"
    ) -> _Steps[list[tuple[bytes, bytes]]]:
        """Read the next members and their data."""
        keys = (self._keys[order], self._keys[kind])
        words = (under.low, under.high, under.offset, size)
        ((members, data),) = yield [call("item_page", keys, words)]
        under.offset, under.has_more = 0, len(members) == size
        if members:
            under.low = b"(" + members[-1]
        return [pair for pair in zip(members, data, strict=True) if pair[1] is not None]

    def _namespaces(self, read: records.FindNamespaces) -> _Steps[list[Namespace]]:
        counts: dict[bytes, int] = {}
        under = _Under(read.prefix)
        while under.has_more:
            words = (under.low, under.high, _SPACES)
            (some,) = yield [call("item_namespaces", (self._keys["order"],), words)]
            counts.update(zip(some[::2], some[1::2], strict=True))
            under.has_more = len(some) == 2 * _SPACES
            if some:
                under.low = b"[" + some[-2] + b"\1"
        for field in (yield from self._expired(read.now)):
            path, _ = item_rows.split(field)
            if path in counts:
                counts[path] -= 1
        return [item_rows.namespace_of(path) for path, count in counts.items() if count > 0]

    def _expired(
        self, now: int | None, prefix: Namespace = (), limit: int | None = None
    ) -> _Steps[dict[bytes, None]]:
        """Return the fields of items that have expired, about as many as the limit."""
        found: dict[bytes, None] = {}
        path = item_rows.path_of(prefix)
        at = 0
        while now is not None and (limit is None or len(found) < limit):
            words = ("ZRANGEBYSCORE", self._keys["expiring"], "-inf", now, "LIMIT", at, _EXPIRED)
            (some,) = yield [RedisCommand(words)]
            found.update(dict.fromkeys([field for field in some if field.startswith(path)]))
            if len(some) < _EXPIRED:
                break
            at += _EXPIRED
        return found

    def _nearest(self, read: records.FindNearest) -> _Steps[list[records.Scored]]:
        length = len(read.vector)
        size = max(1, min(_PAGE, _VECTOR_BYTES // length))
        (dims,) = yield [RedisCommand(("GET", self._keys["dims"]))]
        expired = yield from self._expired(read.now)
        under = _Under(read.prefix)
        found: list[tuple[bytes, float]] = []
        while under.has_more:
            page = yield from self._page(under, "vectors", size)
            if page and int(dims) != length // 4:
                raise other_dims(length // 4, int(dims))
            vectors = [one for one in page if item_rows.field_in(one[0]) not in expired]
            found += nearest(self._options.metric, vectors, read.vector, read.limit)
            found = best(found, read.limit)
        return (yield from self._scored(found))

    def _text(self, read: records.FindText) -> _Steps[list[records.Scored]]:
        expired = yield from self._expired(read.now)
        under = _Under(read.prefix)
        texts: dict[bytes, str] = {}
        while under.has_more:
            for member, data in (yield from self._page(under, "words", _PAGE)):
                if item_rows.field_in(member) not in expired:
                    texts[member] = data.decode()
        return (yield from self._scored(best_texts(texts, read.words, read.limit)))

    def _scored(self, found: Sequence[tuple[bytes, float]]) -> _Steps[list[records.Scored]]:
        """Return the items of these members that are still there."""
        if not found:
            return []
        fields = [item_rows.field_in(member) for member, _ in found]
        (rows,) = yield [RedisCommand(("HMGET", self._keys["items"], *fields))]
        pairs = [
            (_listed(field, data), score)
            for field, data, (member, score) in zip(fields, rows, found, strict=True)
            if data is not None and item_rows.is_at(member, data)  # (else it was deleted since)
        ]
        return [records.Scored(row, score) for row, score in pairs if row is not None]

    def _versions(self, read: records.FindVersions) -> _Steps[list[records.StoredVersion]]:
        low, high = b"-", b"+"
        if read.item is not None:
            field = item_rows.field_of(*read.item)
            low, high = b"[" + field + b"\0", b"(" + field + b"\1"
        if read.after is not None:
            low = b"(" + item_rows.version_member(*read.after)
        words = ("ZRANGEBYLEX", self._keys["versions"], low, high, "LIMIT", 0, read.limit)
        (members,) = yield [RedisCommand(words)]
        return [item_rows.unpack_stored(member) for member in members]

    # -- changes -------------------------------------------------------------------------

    async def commit(self, change: Any) -> None:
        """Make the change, all or nothing."""
        (refused,) = await self.commit_many([change])
        if refused is not None:
            raise refused

    async def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        """Make several changes in one round trip; each is atomic. A retry is another put."""
        together = merged(changes) if len(changes) > 1 else None
        made = changes if together is None else [together]
        calls = [self._change(*item_rows.change_words(each)) for each in made]
        losses: list[Exception] = []
        with self._server.mapped_errors():
            answers = await self._server.sent(calls, losses)
            await self._server.warn_of_eviction()
            refused = [self._refusal(answer) for answer in answers]
            for at, error in enumerate(refused if losses else ()):
                if isinstance(error, ConflictError) and await self.is_put(made[at]):
                    refused[at] = None
        return refused if together is None else refused * len(changes)

    def _refusal(self, answer: int) -> ThreadkeepError | None:
        if answer == -1:
            return ConflictError("The item has another version.")
        return other_dims(self._options.dims, -1 - answer) if answer < 0 else None

    def _change(self, *words: Word) -> RedisCommand:
        return call("items", [*self._keys.values()], words)

    async def migrate(self) -> None:
        """Check the dimensions of the vectors, as each put and search of vectors does.

        Raises:
            InvalidArgumentError: the store has other dimensions.
        """
        calls = [
            RedisCommand(("EXISTS", self._keys["vectors"])),
            RedisCommand(("GET", self._keys["dims"])),
        ]
        with self._server.mapped_errors():
            there, dims = await self._server.sent(calls)
        if there and self._options.dims not in (0, int(dims)):
            raise other_dims(self._options.dims, int(dims))

    async def sweep(self, now: int, limit: int, prefix: Namespace = ()) -> int:
        """Works by hundreds of items, so others are served in between."""
        with self._server.mapped_errors():
            (expired,) = await self._together([self._expired(now, prefix, limit)])
            return await self._removed([*expired][:limit], now)

    async def erase(self, prefix: Namespace) -> int:
        """Works by hundreds of items, so others are served in between."""
        under, removed = _Under(prefix), 0
        with self._server.mapped_errors():
            while members := await self._members("order", under):
                removed += await self._removed([*map(item_rows.field_in, members)], "")
                under.low = b"(" + members[-1]
            under = _Under(prefix)
            while members := await self._members("versions", under):
                await self._server.sent([RedisCommand(("ZREM", self._keys["versions"], *members))])
        return removed

    async def _members(self, kind: str, under: _Under) -> list[bytes]:
        words = ("ZRANGEBYLEX", self._keys[kind], under.low, under.high, "LIMIT", 0, _REMOVED)
        found: list[bytes]
        (found,) = await self._server.sent([RedisCommand(words)])
        return found

    async def _removed(self, fields: Sequence[bytes], now: Word) -> int:
        removed = 0
        for at in range(0, len(fields), _REMOVED):
            some = self._change("remove", now, *fields[at : at + _REMOVED])
            removed += (await self._server.sent([some]))[0]
        return removed


def _listed(field: bytes, data: bytes) -> ItemRow | None:
    """Return an item; None for a damaged row, which is logged."""
    try:
        return item_rows.unpack_item(field, data)
    except CorruptionError as error:
        path, key = item_rows.split(field)
        _log.warning("An item is left out of a listing: %r in %r. %s", key, path, error.message)
        return None
