"""The Redis backend itself: what is said to the server, tried again, and understood.

Only the protocol's methods live here, what they ask of the server, and what the constructors
accept. Invariant: nothing of the driver, neither answers nor errors, leaves this package.

The logic is that of `AsyncRedisBackend`. `RedisBackend` runs the same coroutines on blocking
clients, where they never suspend.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis.asyncio.cluster
import redis.cluster
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay
from tenacity.wait import wait_exponential, wait_random

from threadkeep.backends.redis.changes import batch_arguments
from threadkeep.backends.redis.clients import (
    GivenAsyncClient,
    GivenClient,
    OwnAsyncClients,
    OwnClient,
    Source,
)
from threadkeep.backends.redis.failures import DRIVER_ERRORS, mapped, passes, refused
from threadkeep.backends.redis.keys import index_of, keys_of
from threadkeep.backends.redis.reads import Inquiry, Question, inquiry, is_of_thread, words_of
from threadkeep.backends.redis.scripts import Call, Word, call, reading, writing
from threadkeep.backends.redis.settings import Settings, refuse_decoding, without_prefix
from threadkeep.backends.redis.spanning import answer
from threadkeep.engine.model import (
    Batch,
    Change,
    CopyThread,
    DropThread,
    Read,
)
from threadkeep.errors import InvalidArgumentError, ThreadExistsError
from threadkeep.straight import finish

_PATIENCE = 45.0  # seconds to go on trying: a server restarts, or another takes over, in less


class AsyncRedisBackend:
    """Rows in Redis, over clients that are awaited.

    Args:
        source: where clients come from.
        settings: how threads are kept.
    """

    def __init__(self, source: Source, settings: Settings) -> None:
        self._source = source
        self._settings = settings
        self._index = index_of(settings.prefix)

    # -- reads -----------------------------------------------------------------------

    async def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """Answer each read, in order; those of one thread from one state. See `Backend.fetch`."""
        with self._named():
            replies: dict[int, Any] = {}
            of_thread = {at: inquiry(r) for at, r in enumerate(reads) if is_of_thread(r)}
            if of_thread or not reads:
                replies = await self._answered(of_thread)
            for at, read in enumerate(reads):
                if at not in of_thread:
                    replies[at] = await answer(read, self)
        return [replies[at] for at in range(len(reads))]

    async def _answered(self, inquiries: dict[int, Inquiry]) -> dict[int, Any]:
        """The reply to each; one run of the script for each thread."""
        by_thread: dict[str, list[int]] = {}
        for at, asked in inquiries.items():
            by_thread.setdefault(asked.thread, []).append(at)
        calls = [
            self._reading(thread, [q for at in some for q in inquiries[at].questions])
            for thread, some in by_thread.items()
        ]
        replies = {}
        for some, answers in zip(by_thread.values(), await self._sent(calls), strict=True):
            rest = iter(answers)
            for at in some:
                replies[at] = inquiries[at].reply([next(rest) for _ in inquiries[at].questions])
        return replies

    def _reading(self, thread: str, questions: Sequence[Question]) -> Call:
        refresh = int(self._settings.ttl_refresh_on_read)
        keys = keys_of(self._settings.prefix, thread)
        return call(reading(), keys, (refresh, *words_of(questions)))

    # What `spanning.Store` asks for.

    async def threads(self, after: str | None, limit: int) -> list[str]:
        """Ids in the index, in ascending order, from behind `after` on."""
        first = b"-" if after is None else b"(" + after.encode()
        words = ("ZRANGEBYLEX", self._index, first, "+", "LIMIT", 0, limit)
        (found,) = await self._sent([Call(words)])
        return [member.decode() for member in found]

    async def ask(self, asked: Sequence[tuple[str, Question]]) -> list[Any]:
        """The answer to each question about a thread, each from one state."""
        calls = [self._reading(thread, [question]) for thread, question in asked]
        return [found for (found,) in await self._sent(calls)]

    async def sweep(self, thread: str) -> None:
        """Take a thread that is not there out of the index.

        Another process may bring it into being in between: it is looked for again, and put
        back. (`_carried_out` puts it there once more after it was made.)
        """
        first, member = keys_of(self._settings.prefix, thread)[0], thread.encode()
        await self._sent([Call(("ZREM", self._index, member))])
        (there,) = await self._sent([Call(("EXISTS", first))])
        if there:
            await self._sent([self._listing(thread)])

    # -- changes ---------------------------------------------------------------------

    async def commit(self, change: Change) -> None:
        """Carry out the change, all or nothing. See `Backend.commit`."""
        with self._named():
            match change:
                case Batch():
                    await self._carried_out("commit", change.thread, batch_arguments(change))
                case DropThread():
                    await self._carried_out("drop", change.thread, (change.now,))
                case CopyThread():
                    await self._copy(change)

    async def _copy(self, change: CopyThread) -> None:
        # Two threads are in two slots, and a script of a cluster sees one: the source is read
        # in one state, the target is checked and written in another.
        (dumps,) = await self.ask([(change.source, Question("dump"))])
        if not dumps:
            return
        if change.source == change.target:
            raise ThreadExistsError(thread=change.target)
        await self._carried_out("copy", change.target, dumps)

    async def _carried_out(self, name: str, thread: str, arguments: Sequence[Word]) -> None:
        """Run a script that writes.

        A thread that it would bring into being must be in the index first. Where that lies in
        another slot the script says so, and does nothing.
        """
        done = await self._run(name, thread, arguments, in_index=False)
        if done[0] == b"unknown":
            await self._sent([self._listing(thread)])
            done = await self._run(name, thread, arguments, in_index=True)
            if done[0] == b"created":
                await self._sent([self._listing(thread)])  # it may have been swept meanwhile
        error = refused(done, thread)
        if error is not None:
            raise error

    async def _run(
        self, name: str, thread: str, arguments: Sequence[Word], *, in_index: bool
    ) -> list[bytes]:
        keys = keys_of(self._settings.prefix, thread)
        if not self._source.is_cluster:
            keys.append(self._index)
        first = (thread.encode(), int(in_index), self._settings.ttl_milliseconds)
        (done,) = await self._sent([call(writing(name), keys, (*first, *arguments))])
        found: list[bytes] = done
        return found

    def _listing(self, thread: str) -> Call:
        return Call(("ZADD", self._index, 0, thread.encode()))

    async def close(self) -> None:
        """Close all connections of ours; later calls raise `ClosedError`. Idempotent."""
        await self._source.close()

    # -- the server ------------------------------------------------------------------

    async def _sent(self, calls: Sequence[Call]) -> list[Any]:
        """The server's answers; tried again where a failure passes."""
        if not calls:
            return []
        try:
            return await self._source.send(calls)
        except DRIVER_ERRORS as error:
            if not passes(error):
                raise
        tries = AsyncRetrying(
            sleep=self._source.pause,
            retry=retry_if_exception(passes),
            wait=wait_exponential(multiplier=0.05, max=2.0) + wait_random(0, 0.1),
            stop=stop_after_delay(_PATIENCE),
            reraise=True,
        )
        return await tries(self._source.send, calls)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Raise the driver's errors as ours."""
        try:
            yield
        except DRIVER_ERRORS as error:
            raise mapped(error, self._settings.server) from error


class RedisBackend:
    """Rows in Redis, for blocking calls; `asynchronous` serves awaiting ones.

    Args:
        server: a URL (which may have a parameter `prefix`), or a blocking client of redis-py,
            which stays the program's own.
        prefix, ttl, ttl_refresh_on_read, max_connections, timeout: see `Settings`.

    Raises:
        OpenError: the URL cannot be read.
        InvalidArgumentError: an option has no meaning, or the client decodes answers.
    """

    def __init__(self, server: Any, **options: Any) -> None:
        source: Source
        self._loops: OwnAsyncClients | None = None
        self.asynchronous: AsyncRedisBackend | None = None
        if isinstance(server, str):
            url, prefix = without_prefix(server)
            if prefix is not None:
                options.setdefault("prefix", prefix)
            settings = Settings(url, **options)
            source, self._loops = OwnClient(settings), OwnAsyncClients(settings)
            self.asynchronous = AsyncRedisBackend(self._loops, settings)
        else:
            settings = Settings("", **options)
            source = GivenClient(_checked(server, _BLOCKING))
        self._face = AsyncRedisBackend(source, settings)

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """Answer each read, in order; those of one thread from one state. See `Backend.fetch`."""
        return finish(self._face.fetch(reads))

    def commit(self, change: Change) -> None:
        """Carry out the change, all or nothing. See `Backend.commit`."""
        finish(self._face.commit(change))

    def close(self) -> None:
        """Close all connections of ours; later calls raise `ClosedError`. Idempotent."""
        finish(self._face.close())
        if self._loops is not None:
            self._loops.close_elsewhere()


_BLOCKING = (redis.Redis, redis.cluster.RedisCluster)
_AWAITED = (redis.asyncio.Redis, redis.asyncio.cluster.RedisCluster)


def _checked(client: Any, kinds: tuple[Any, ...]) -> Any:
    if not isinstance(client, kinds):
        raise InvalidArgumentError(
            f"{type(client).__name__} is no Redis server.",
            hint="Give a URL, or a Redis or RedisCluster of redis-py.",
        )
    if client.get_encoder().decode_responses:
        refuse_decoding()
    return client


def opened(server: Any, **options: Any) -> RedisBackend | AsyncRedisBackend:
    """The backend for whatever a program gives: see `RedisBackend`.

    An async client of redis-py gives a backend that only awaiting calls can use.
    """
    if isinstance(server, _AWAITED):
        settings = Settings("", **options)
        return AsyncRedisBackend(GivenAsyncClient(_checked(server, _AWAITED)), settings)
    return RedisBackend(server, **options)
