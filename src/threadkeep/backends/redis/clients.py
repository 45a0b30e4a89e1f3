"""Where clients come from: our own, or what a program gave; and how calls go over them.

Only the life of clients and the two ways to send, blocking and awaited, live here. Invariants:
calls that are sent together (their order does not matter: of writes, each is another thread's)
are sent in one round trip, but for a cluster, where each may be another node's; a script that a
server does not know is sent to it whole; what was given is never closed; a client belongs to the
process, and an async one to the event loop, that it was made in; on a blocking source no
coroutine suspends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any, Protocol

import redis.asyncio.cluster
import redis.asyncio.retry
import redis.cluster
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from redis.retry import Retry

from threadkeep.backends import process_forks, sync_bridge
from threadkeep.backends.process_forks import PerProcess
from threadkeep.backends.redis.failures import closed
from threadkeep.backends.redis.scripts import Call
from threadkeep.backends.redis.settings import Settings

CLUSTERS = (redis.cluster.RedisCluster, redis.asyncio.cluster.RedisCluster)


class Source(Protocol):
    """Sends calls to the server."""

    @property
    def is_cluster(self) -> bool:
        """Whether a call may name keys of one slot only."""

    async def send(self, calls: Sequence[Call]) -> list[Any]:
        """The server's answers; of several, each may be an error. `ClosedError` once closed."""

    async def pause(self, seconds: float) -> None:
        """Wait before the same is tried again."""

    async def close(self) -> None:
        """Close what is ours. Idempotent."""


# -- blocking ----------------------------------------------------------------------------


class _Blocking:
    """What all blocking sources have in common."""

    is_cluster: bool

    def _client(self) -> Any:
        raise NotImplementedError

    async def send(self, calls: Sequence[Call]) -> list[Any]:
        client = self._client()
        if len(calls) == 1 or self.is_cluster:
            return [_said(client, call) for call in calls]
        pipeline = client.pipeline(transaction=False)
        for call in calls:
            pipeline.execute_command(*call.words)
        answers = pipeline.execute(raise_on_error=False)
        for at, found in enumerate(answers):
            if isinstance(found, NoScriptError):
                answers[at] = _said(client, calls[at])
        return list(answers)

    async def pause(self, seconds: float) -> None:
        await sync_bridge.sleep(seconds)


def _said(client: Any, call: Call) -> Any:
    try:
        return client.execute_command(*call.words)
    except NoScriptError:
        if call.anew is None:
            raise
        return client.execute_command(*call.anew)


class OwnClient(_Blocking):
    """A client that is made when it is first needed, anew after a fork."""

    def __init__(self, settings: Settings) -> None:
        self.is_cluster = settings.is_cluster
        self._own = PerProcess[Any](partial(_new, settings))

    def _client(self) -> Any:
        return self._own.get()

    async def close(self) -> None:
        """See `Source.close`."""
        self._own.close()


def _new(settings: Settings) -> Any:
    if settings.is_cluster:
        return redis.cluster.RedisCluster.from_url(
            settings.redis_url, max_connections=settings.max_connections, **settings.arguments
        )
    pool = redis.BlockingConnectionPool.from_url(
        settings.redis_url,
        max_connections=settings.max_connections,
        timeout=settings.timeout,
        retry=Retry(NoBackoff(), 0),
        **settings.arguments,
    )
    return redis.Redis.from_pool(pool)


class GivenClient(_Blocking):
    """A program's own client."""

    def __init__(self, client: Any) -> None:
        self.is_cluster = isinstance(client, CLUSTERS)
        self._given = client
        self._open = True

    def _client(self) -> Any:
        if not self._open:
            raise closed()
        return self._given

    async def close(self) -> None:
        """Use it no more; closing it is its owner's affair."""
        self._open = False


# -- awaited -----------------------------------------------------------------------------


class _Awaiting:
    """What all awaiting sources have in common."""

    is_cluster: bool

    async def _client(self) -> Any:
        raise NotImplementedError

    async def send(self, calls: Sequence[Call]) -> list[Any]:
        client = await self._client()
        if len(calls) == 1 or self.is_cluster:
            return [await _asaid(client, call) for call in calls]
        async with client.pipeline(transaction=False) as pipeline:
            for call in calls:
                pipeline.execute_command(*call.words)
            answers = await pipeline.execute(raise_on_error=False)
        for at, found in enumerate(answers):
            if isinstance(found, NoScriptError):
                answers[at] = await _asaid(client, calls[at])
        return list(answers)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def _asaid(client: Any, call: Call) -> Any:
    try:
        return await client.execute_command(*call.words)
    except NoScriptError:
        if call.anew is None:
            raise
        return await client.execute_command(*call.anew)


class OwnAsyncClients(_Awaiting):
    """A client for each event loop, made when the loop first needs it.

    It is kept in an async generator: an event loop that ends in an orderly way closes those
    that began in it, and the client with them.
    """

    def __init__(self, settings: Settings) -> None:
        self.is_cluster = settings.is_cluster
        self._settings = settings
        self._open = True
        self._loops: dict[asyncio.AbstractEventLoop, tuple[Any, AsyncGenerator[Any, None]]] = {}
        self._parents: list[Any] = []
        process_forks.watch(self)

    async def _client(self) -> Any:
        if not self._open:
            raise closed()
        loop = asyncio.get_running_loop()
        known = self._loops.get(loop)
        if known is None:
            for ended in [known for known in self._loops if known.is_closed()]:
                del self._loops[ended]
            client = self._new()
            keeper = _kept(client)
            # Nothing is awaited before the first `yield`: no other call comes in between.
            self._loops[loop] = known = (client, keeper)
            await anext(keeper)
        return known[0]

    def _new(self) -> Any:
        settings = self._settings
        if settings.is_cluster:
            return redis.asyncio.cluster.RedisCluster.from_url(
                settings.redis_url, max_connections=settings.max_connections, **settings.arguments
            )
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            settings.redis_url,
            max_connections=settings.max_connections,
            timeout=settings.timeout,
            retry=redis.asyncio.retry.Retry(NoBackoff(), 0),
            **settings.arguments,
        )
        return redis.asyncio.Redis.from_pool(pool)

    async def close(self) -> None:
        """See `Source.close`."""
        here = asyncio.get_running_loop()
        self.close_elsewhere(here)
        known = self._loops.pop(here, None)
        if known is not None:
            await known[1].aclose()

    def close_elsewhere(self, here: asyncio.AbstractEventLoop | None = None) -> None:
        """Close the clients of all event loops but the one that runs here."""
        self._open = False
        for loop in [loop for loop in self._loops if loop is not here]:
            _, keeper = self._loops.pop(loop)
            if not loop.is_closed():
                loop.call_soon_threadsafe(_begin_to_close, keeper)

    def before_fork(self) -> None:
        """See `Watched.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """See `Watched.after_fork`."""
        if in_child:
            self._parents.append(self._loops)
            self._loops = {}


async def _kept(client: Any) -> AsyncGenerator[Any, None]:
    try:
        yield client
    finally:
        await client.aclose()


_closing: set[asyncio.Task[None]] = set()  # an event loop holds its tasks weakly


def _begin_to_close(keeper: AsyncGenerator[Any, None]) -> None:
    async def close() -> None:
        await keeper.aclose()

    task = asyncio.get_running_loop().create_task(close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)


class GivenAsyncClient(_Awaiting):
    """A program's own async client."""

    def __init__(self, client: Any) -> None:
        self.is_cluster = isinstance(client, CLUSTERS)
        self._given = client
        self._open = True

    async def _client(self) -> Any:
        if not self._open:
            raise closed()
        return self._given

    async def close(self) -> None:
        """Use it no more; closing it is its owner's affair."""
        self._open = False
