"""Redis backend: converts reads and changes to script calls, and answers to replies.

`AsyncRedisBackend` has the logic, and `RedisBackend` runs the same coroutines on blocking clients.
Answers and errors of the driver do not leave this package.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from threadkeep._core import tenants
from threadkeep._core.engine.usage import SAMPLED_ITEMS, ItemUsage
from threadkeep._stores.base import ScrubReport
from threadkeep._stores.committing import Heads
from threadkeep._stores.database import AsyncDatabase
from threadkeep._stores.options import described, from_url
from threadkeep._stores.redis import RedisThreadOptions, clients, rows, scripts, threads
from threadkeep._stores.redis.clients import ClientSource, RedisSettings
from threadkeep._stores.redis.heads import stored
from threadkeep._stores.redis.moves import copied_words, move_words
from threadkeep._stores.redis.scripts import Question, RedisCommand, call
from threadkeep._stores.redis.server import DAMAGED, Server, scrub
from threadkeep._stores.sync_bridge import BlockingFace
from threadkeep.errors import CorruptionError

if TYPE_CHECKING:
    from threadkeep._core.engine.heads import Copying, Head, Move
    from threadkeep._stores.items.records import SearchOptions
    from threadkeep._stores.redis.cache import RedisEntries
    from threadkeep._stores.redis.items import AsyncRedisItems


class AsyncRedisBackend(Server, AsyncDatabase):
    """Backend on async clients of redis-py.

    Args:
        source: the clients.
        settings: the store's settings.
        heads: known heads of threads, shared by the backends of one saver.
    """

    shares_heaps = False
    has_identity = True
    counts_usage = True

    def __init__(
        self, source: ClientSource, settings: RedisSettings, heads: Heads | None = None
    ) -> None:
        Server.__init__(self, source, settings)
        AsyncDatabase.__init__(self, heads)

    # -- reads -----------------------------------------------------------------------

    async def fetch(self, reads: Sequence[Any]) -> list[Any]:
        """Answer each read, in order. A thread's reads see one state. See `Backend.fetch`."""
        with self.mapped_errors():
            found = {at: scripts.inquiry(read, self.heads.found) for at, read in enumerate(reads)}
            replies = await self._answered({at: asked for at, asked in found.items() if asked})
            for at, read in enumerate(reads):
                if at not in replies:
                    replies[at] = await threads.answer(read, self)
        return [replies[at] for at in range(len(reads))]

    async def _answered(self, inquiries: dict[int, scripts.Inquiry]) -> dict[int, Any]:
        """Return the reply to each read, and the script runs once for each thread."""
        by_thread: dict[str, list[int]] = {}
        for at, asked in inquiries.items():
            by_thread.setdefault(asked.thread, []).append(at)
        calls = [
            self._reading(thread, [q for at in some for q in inquiries[at].questions])
            for thread, some in by_thread.items()
        ]
        replies = {}
        for some, answers in zip(by_thread.values(), await self.sent(calls), strict=True):
            rest = iter(answers)
            for at in some:
                replies[at] = _reply(inquiries[at], [next(rest) for _ in inquiries[at].questions])
        return replies

    # -- changes ---------------------------------------------------------------------

    async def make(self, moves: Sequence[Move]) -> list[Head | None]:
        """Make moves, in as few round trips as possible. See `Database.make`."""
        with self.mapped_errors():
            copies = moves[0].copies
            if copies is not None:  # (then it is alone)
                made = [await self._copy(moves[0], copies)]
            else:
                made = await self._make(moves, [self._moving(move) for move in moves])
            await self.warn_of_eviction()
        return made

    async def _copy(self, move: Move, copies: Copying) -> Head | None:
        """Make a move that copies another thread's rows, which may be in another slot."""
        (found,) = await self.ask([(copies.source.thread, Question("whole"))])
        copied = copied_words(copies, found)
        if copied is None:
            return None
        (head,) = await self._make([move], [self._moving(move, copied)])
        return head

    async def _make(self, moves: Sequence[Move], calls: list[RedisCommand]) -> list[Head | None]:
        """Send the calls of moves, and update the index."""
        index = [threads.index_calls(move, self) for move in moves]
        before = [call for first, again in index for call in (*first, *again)]
        after = [call for _, again in index for call in again]
        answers = await self.sent([*before, *calls, *after])
        answers = answers[len(before) : len(before) + len(calls)]
        await threads.complete_index(moves, answers, self)
        return [
            None if answer is None else stored(move.new)
            for move, answer in zip(moves, answers, strict=True)
        ]

    def _moving(self, move: Move, *copied: Sequence[Any]) -> RedisCommand:
        thread = move.new.thread
        ttl = "" if tenants.is_hidden(thread) else self._settings.ttl_milliseconds
        return call("move", rows.keys_of(self.prefix, thread), move_words(move, ttl, *copied))

    def items(self, options: SearchOptions) -> AsyncRedisItems:
        from threadkeep._stores.redis.items import AsyncRedisItems  # noqa: PLC0415 - only for a store

        return AsyncRedisItems(self, options)

    def cache(self) -> RedisEntries:
        from threadkeep._stores.redis.cache import RedisEntries  # noqa: PLC0415 - only for a cache

        return RedisEntries(self)

    async def identity(self) -> str:
        """Return the identity of the threads under this prefix. See `Backend.identity`."""
        key = rows.identity_of(self.prefix)
        with self.mapped_errors():
            made = RedisCommand(("SET", key, secrets.token_hex(16), "NX"))
            _, found = await self.sent([made, RedisCommand(("GET", key))])
        return str(found.decode())

    async def item_usage(self, now: int) -> ItemUsage:
        names = ("items", "versions", "vectors", "expiring", "waiting")
        keys = [rows.item_key(self.prefix, name) for name in names]
        calls = [
            call("item_usage", keys, (SAMPLED_ITEMS, now)),
            call("cache", [rows.cache_base(self.prefix)], ("uses", SAMPLED_ITEMS)),
        ]
        with self.mapped_errors():
            counts, (entries, held, *_) = await self.sent(calls)
        items, expired, waiting, values, earlier, vectors = counts
        is_sampled = max(items, entries) > SAMPLED_ITEMS
        stored = (items, values + earlier, expired, waiting, vectors)
        return ItemUsage(*stored, entries, held, items_sampled=is_sampled)

    async def scrub(self, *, rewrite: bool) -> ScrubReport:
        del rewrite  # (it locks out no other program)
        with self.mapped_errors():
            return await scrub(self)

    async def close(self) -> None:
        await self._source.close()


def _reply(asked: scripts.Inquiry, answers: Sequence[Any]) -> Any:
    """Return the reply. Raises CorruptionError if rows are damaged."""
    try:
        return asked.reply(answers)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise CorruptionError(
            f"A row of thread {asked.thread!r} cannot be read: {error}", hint=DAMAGED
        ) from error


class RedisBackend(BlockingFace[AsyncRedisBackend]):
    """Backend on blocking clients of redis-py. `asynchronous` serves async calls.

    Args:
        server: a URL (whose query may have options), or a blocking client of redis-py, which stays
            the program's own.
        **options: see `RedisThreadOptions`.

    Raises:
        OpenError: the URL cannot be read.
        InvalidArgumentError: an option is invalid, or the client decodes answers.
    """

    def __init__(self, server: Any, **options: Unpack[RedisThreadOptions]) -> None:
        if isinstance(server, str):
            url, in_url = from_url(server, described(RedisThreadOptions))
            given = cast("RedisThreadOptions", in_url | options)
            super().__init__(*_over_own_clients(RedisSettings(url, given)))
        else:
            client = clients.GivenClient(server, clients.BLOCKING)
            super().__init__(AsyncRedisBackend(client, RedisSettings("", options)))


def _over_own_clients(
    settings: RedisSettings,
) -> tuple[AsyncRedisBackend, AsyncRedisBackend, clients.OwnAsyncClients]:
    """Return the backend twice: on blocking clients and on async clients."""
    heads, loops = Heads(), clients.OwnAsyncClients(settings)
    blocking = AsyncRedisBackend(clients.OwnClient(settings), settings, heads)
    return blocking, AsyncRedisBackend(loops, settings, heads), loops


def opened(server: Any, **options: Unpack[RedisThreadOptions]) -> RedisBackend | AsyncRedisBackend:
    """Open the backend of a server: see `RedisBackend`.

    With an async client of redis-py, only async calls can use the backend.
    """
    if isinstance(server, clients.AWAITED):
        return AsyncRedisBackend(
            clients.GivenClient(server, clients.AWAITED), RedisSettings("", options)
        )
    return RedisBackend(server, **options)
