"""Items in a Redis or Valkey server, or in a cluster, on the clients of a saver's backend.

A store has ten keys (see `item_rows`) in one slot of a cluster: a change is one script, atomic over
all namespaces, and a store must fit on one node. A read of several pages sees each page in one
state. Vectors and words are sent to this process and compared here.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from threadkeep._stores.items import AsyncItemBackend, merged, other_dims, records
from threadkeep._stores.items.filters import best, nearest, numpy, word_scores
from threadkeep._stores.items.records import ItemRow, Namespace
from threadkeep._stores.redis import item_rows
from threadkeep._stores.redis.rows import Word, item_key, pack_number
from threadkeep._stores.redis.scripts import RedisCommand, call
from threadkeep._stores.redis.server import Server
from threadkeep.errors import ConflictError, CorruptionError, ThreadkeepError

T = TypeVar("T")
_log = logging.getLogger("threadkeep")
_Steps: TypeAlias = Generator[Sequence[RedisCommand], Any, T]
"""Calls that are sent together, again and again; gets their answers, and returns a reply."""

_FIELD, _PLACE = (17, -1), (1, 16)  # the parts of a member of the order
_PAGE = 500  # items that one call reads
_VECTOR_BYTES = 4 << 20  # of vectors that one call reads
_NAMESPACES = 200  # that one call looks through
_SPACES = 1000  # namespaces that one call lists
_EXPIRED = 5000  # fields of expired items that one call lists
_REMOVED = 100  # items that one call removes


class _Under:
    """Items under a prefix that are still to be read, in the order of their places.

    `numbers` are those of the namespaces, or None until they are known; `after` is the last member
    that was read; `offset` the number of items to leave out.
    """

    def __init__(
        self, prefix: Namespace, after: records.ItemPlace | None = None, offset: int = 0
    ) -> None:
        self.prefix = prefix
        self.numbers = None if prefix else [b""]  # (of all)
        # (a member of the order at this place is below \xff)
        self.after = b"" if after is None else b"".join(map(pack_number, after)) + b"\xff"
        self.offset = offset

    def went_on(self, numbers: list[bytes], reply: Sequence[Any], size: int) -> bool:
        """Remember the last item read in the first namespace; return True if there may be more."""
        members, _, _, self.offset = reply
        if len(members) == size:
            self.after = members[-1]
            self.numbers = numbers[bisect_right(numbers, self.after[:8]) - 1 :]
        else:
            self.numbers = numbers[_NAMESPACES:]
        return bool(self.numbers)


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
            case records.FindPending():
                return self._pending(read)
            case records.FindVersions():
                return self._versions(read)
            case records.FindEveryVersion():
                return self._every_version(read)

    def _get(self, read: records.GetItems) -> _Steps[list[ItemRow | None]]:
        if not read.keys:
            return []
        fields = [item_rows.field_of(namespace, key) for namespace, key in read.keys]
        (rows,) = yield [RedisCommand(("HMGET", self._keys["items"], *fields))]
        found = [
            None if data is None else item_rows.unpack_item(field, data)[0]
            for field, data in zip(fields, rows, strict=True)
        ]
        return [row if row and row.is_there(read.now) else None for row in found]

    def _find(self, read: records.FindItems) -> _Steps[list[ItemRow]]:
        offset = 0 if read.where else read.offset
        is_plain = read.now is None and not read.bare
        under = _Under(read.prefix, read.after, offset if is_plain else 0)
        first = 0 if is_plain else offset
        last = first + read.limit
        found: list[ItemRow] = []
        there = True
        while there and len(found) < last:
            size = _PAGE if read.bare else min(last - len(found), _PAGE)
            there, page = yield from self._page(under, "items", _FIELD, size)
            for member, data in page:
                row, _ = _listed(member[16:], data)
                if row is not None and row.is_there(read.now):
                    found += [] if read.bare and item_rows.has_vectors(data) else [row]
        return found[first:last]

    def _spaces(self, prefix: Namespace) -> _Steps[dict[bytes, int]]:
        """Return the members of the namespaces of a prefix, and the numbers of their items."""
        found: dict[bytes, int] = {}
        path = item_rows.path_of(prefix)
        low = b"[" + path
        keys = (self._keys["namespaces"], self._keys["order"])
        while True:
            (some,) = yield [call("item_namespaces", keys, (low, b"(" + path + b"\xff", _SPACES))]
            found.update(zip(some[::2], some[1::2], strict=True))
            if len(some) < 2 * _SPACES:
                return found
            low = b"(" + some[-2]

    def _page(
        self, under: _Under, kind: str, part: tuple[int, int], size: int
    ) -> _Steps[tuple[bool, list[tuple[bytes, bytes]]]]:
        """Read the next members and their data; True if there may be more."""
        keys = [self._keys[name] for name in ("order", kind, "namespaces")]
        words = (*part, size, under.offset, under.after)
        reply = None
        numbers = under.numbers
        if numbers is None:
            path = item_rows.path_of(under.prefix)
            bounds = (b"[" + path, b"(" + path + b"\xff", _NAMESPACES)
            (reply,) = yield [call("item_page", keys, (*words, "under", *bounds))]
            if reply is None:
                numbers = sorted(space[-8:] for space in (yield from self._spaces(under.prefix)))
            else:
                numbers = reply[2]
        if reply is None:
            (reply,) = yield [call("item_page", keys, (*words, "in", *numbers[:_NAMESPACES]))]
        there = under.went_on(numbers, reply, size)
        members, data, *_ = reply
        return there, [pair for pair in zip(members, data, strict=True) if pair[1] is not None]

    def _namespaces(self, read: records.FindNamespaces) -> _Steps[list[Namespace]]:
        spaces = yield from self._spaces(read.prefix)
        counts = {space[:-9]: count for space, count in spaces.items()}
        for field in (yield from self._expired(read.now)):
            path, _ = item_rows.split(field)
            if path in counts:
                counts[path] -= 1
        return [item_rows.namespace_of(path) for path, count in counts.items() if count > 0]

    def _expired(self, now: int | None) -> _Steps[set[bytes]]:
        """Return the fields of items that have expired."""
        found: set[bytes] = set()
        at = 0
        while now is not None:
            words = ("ZRANGEBYSCORE", self._keys["expiring"], "-inf", now, "LIMIT", at, _EXPIRED)
            (some,) = yield [RedisCommand(words)]
            found.update(some)
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
        there = True
        while there:
            there, page = yield from self._page(under, "vectors", _PLACE, size)
            if page and int(dims) != length // 4:
                raise other_dims(length // 4, int(dims))
            parts = [
                (member, data[at : at + length])
                for member, data in page
                if member[16:] not in expired
                for at in range(0, len(data), length)
            ]
            members, vectors = [member for member, _ in parts], [part for _, part in parts]
            found += nearest(self._options.metric, members, vectors, read.vector, read.limit)
            found = best(found, read.limit)
        return (yield from self._scored(found))

    def _text(self, read: records.FindText) -> _Steps[list[records.Scored]]:
        expired = yield from self._expired(read.now)
        under = _Under(read.prefix)
        texts: dict[bytes, str] = {}
        there = True
        while there:
            there, page = yield from self._page(under, "words", _PLACE, _PAGE)
            for member, data in page:
                if member[16:] not in expired:
                    texts[member] = data.decode()
        scores = word_scores(list(texts.values()), read.words)
        positive = [(member, score) for member, score in zip(texts, scores, strict=True) if score]
        return (yield from self._scored(best(positive, read.limit)))

    def _scored(self, found: Sequence[tuple[bytes, float]]) -> _Steps[list[records.Scored]]:
        """Return the items of these members that are still there."""
        rows = yield from self._rows([member for member, _ in found])
        pairs = zip(rows, found, strict=True)
        return [records.Scored(row, score) for (row, _), (_, score) in pairs if row is not None]

    def _rows(self, members: Sequence[bytes]) -> _Steps[list[tuple[ItemRow | None, str | None]]]:
        """Return the items of these members, and their pending fields."""
        if not members:
            return []
        fields = [member[16:] for member in members]
        (rows,) = yield [RedisCommand(("HMGET", self._keys["items"], *fields))]
        return [
            (None, None)
            if data is None or data[:16] != member[:16]  # deleted, and perhaps put again
            else _listed(member[16:], data)
            for member, data in zip(members, rows, strict=True)
        ]

    def _pending(self, read: records.FindPending) -> _Steps[list[tuple[ItemRow, str]]]:
        low = b"-" if read.after is None else b"(" + _Under((), read.after).after
        words = ("ZRANGEBYLEX", self._keys["waiting"], low, "+", "LIMIT", 0, read.limit)
        (members,) = yield [RedisCommand(words)]
        rows = yield from self._rows(members)
        return [(row, fields) for row, fields in rows if row is not None and fields is not None]

    def _versions(self, read: records.FindVersions) -> _Steps[list[records.VersionRow]]:
        field = item_rows.field_of(read.namespace, read.key)
        high, low = b"(" + field + b"\1", b"[" + field + b"\0"
        (members,) = yield [RedisCommand(("ZREVRANGEBYLEX", self._keys["versions"], high, low))]
        return [item_rows.unpack_version(member[len(field) + 1 :]) for member in members]

    def _every_version(self, read: records.FindEveryVersion) -> _Steps[list[records.StoredVersion]]:
        low = b"-" if read.after is None else b"(" + read.after
        words = ("ZRANGEBYLEX", self._keys["versions"], low, "+", "LIMIT", 0, read.limit)
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
        """See `ItemBackend.sweep`. Works by hundreds of items, so others are served in between."""
        if prefix:
            return await self._sweep_under(now, limit, prefix)
        removed = 0
        with self._server.mapped_errors():
            while removed < limit:
                size = min(limit - removed, _REMOVED)
                (some,) = await self._server.sent([self._change("sweep", now, size)])
                removed += some
                if some < size:
                    break
        return removed

    async def _sweep_under(self, now: int, limit: int, prefix: Namespace) -> int:
        path = item_rows.path_of(prefix)
        removed = 0
        with self._server.mapped_errors():
            (expired,) = await self._together([self._expired(now)])
            fields = [field for field in expired if field.startswith(path)][:limit]
            for at in range(0, len(fields), _REMOVED):
                some = self._change("expire", now, *fields[at : at + _REMOVED])
                removed += (await self._server.sent([some]))[0]
        return removed

    async def erase(self, prefix: Namespace) -> int:
        """See `ItemBackend.erase`. Works by hundreds of items, so others are served in between."""
        removed = 0
        with self._server.mapped_errors():
            (found,) = await self._together([self._spaces(prefix)])
            spaces = list(found)
            while spaces:
                some, spaces = spaces[:_REMOVED], spaces[_REMOVED:]
                calls = [self._change("erase", space, _REMOVED) for space in some]
                for space, (count, is_left) in zip(
                    some, await self._server.sent(calls), strict=True
                ):
                    removed += count
                    if is_left:
                        spaces.append(space)
        return removed


def _listed(field: bytes, data: bytes) -> tuple[ItemRow | None, str | None]:
    """Return an item and its pending fields; None twice for a damaged row, which is logged."""
    try:
        return item_rows.unpack_item(field, data)
    except CorruptionError as error:
        path, key = item_rows.split(field)
        _log.warning("An item is left out of a listing: %r in %r. %s", key, path, error.message)
        return None, None
