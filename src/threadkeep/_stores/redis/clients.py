"""Settings of a Redis store, its clients, and calls sent over them.

Calls that are sent together take one round trip, except on a cluster, where each may go to another
node. (Writes sent together are of different threads, so their order does not matter.) A client
belongs to the process that made it, an async client to its event loop.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from queue import Full, SimpleQueue
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import redis.asyncio.cluster
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel
from redis.backoff import NoBackoff
from redis.connection import URL_QUERY_ARGUMENT_PARSERS, SSLConnection, parse_url
from redis.exceptions import NoScriptError, RedisClusterException, RedisError
from redis.retry import Retry

from threadkeep._stores import sync_bridge
from threadkeep._stores.options import complete, described, unknown
from threadkeep._stores.process_forks import LoopConnections, PerProcess
from threadkeep._stores.redis import RedisThreadOptions, in_seconds
from threadkeep._stores.redis.scripts import RedisCommand
from threadkeep._stores.servers import Source
from threadkeep._stores.sync_bridge import entered, result
from threadkeep.errors import InvalidArgumentError, OpenError, ThreadkeepError

DRIVER_ERRORS = (RedisError, RedisClusterException, OSError, UnicodeError)
BLOCKING = (redis.Redis, redis.cluster.RedisCluster)
AWAITED = (redis.asyncio.Redis, redis.asyncio.cluster.RedisCluster)
_CLUSTERS = (redis.cluster.RedisCluster, redis.asyncio.cluster.RedisCluster)
_FORM = (
    "Use redis://user:password@host:6379/0, rediss://..., redis+cluster://host1:6379,host2:6379 or"
    " redis+sentinel://host1:26379,host2:26379/mymaster/0."
)


class RedisSettings:
    """Checked settings of a store.

    Args:
        url: a URL of redis-py. `redis+cluster` and `rediss+cluster` take several nodes,
            `redis+sentinel` and `rediss+sentinel` several sentinels, separated by commas. "" for
            the program's own client.
        options: see `RedisThreadOptions`.

    Attributes:
        kind: "cluster", "sentinel", or "" for a single server.
        redis_url: the URL for redis-py, with the first address.
        addresses: the host and port of each node or sentinel.
        service: the name that sentinels know the primary by.

    Raises:
        InvalidArgumentError: an option is unknown or invalid.
        OpenError: the URL cannot be read.
    """

    def __init__(self, url: str, options: RedisThreadOptions) -> None:
        self.options = in_seconds(complete("Redis", RedisThreadOptions, options))
        self.warned_of_eviction = False
        self.kind = self.redis_url = self.service = ""
        self.addresses: list[tuple[str, int]] = []
        if url:
            try:
                self._read(url)
                found = parse_url(self.redis_url)  # type: ignore[no-untyped-call]
            except (ValueError, TypeError) as error:
                # (the cause may show the password)
                raise OpenError("Invalid Redis URL.", hint=_FORM) from (
                    None if "@" in url else error
                )
            _check_query(self.redis_url, found)

    def _read(self, url: str) -> None:
        """Take the URL apart. Raises ValueError."""
        before, _, rest = url.partition("://")
        scheme, _, self.kind = before.lower().partition("+")
        if self.kind not in ("", "cluster", "sentinel"):
            raise ValueError(self.kind)
        self.redis_url = f"{scheme}://{rest}"
        parts = urlsplit(self.redis_url)
        user, at, hosts = parts.netloc.rpartition("@")
        each = hosts.split(",") if self.kind else [hosts]
        path = parts.path
        if self.kind == "sentinel":
            _, self.service, database = f"{path}/".split("/", 2)
            path = f"/{database}"
            if not self.service:
                raise ValueError(path)
        if self.kind:
            query = f"?{parts.query}" if parts.query else ""
            self.redis_url = f"{scheme}://{user}{at}{each[0]}{path}{query}"
        usual = 26379 if self.kind == "sentinel" else 6379
        found = [urlsplit(f"//{address}") for address in each]
        self.addresses = [(one.hostname or "localhost", one.port or usual) for one in found]

    @property
    def server(self) -> str:
        """The server's name in errors, without a password."""
        if not self.redis_url:
            return "Redis"
        if self.redis_url.startswith("unix:"):
            return f"Redis at {urlsplit(self.redis_url).path}"
        places = ", ".join(f"{host}:{port}" for host, port in self.addresses)
        return (
            f"Redis {self.service!r} of sentinels {places}"
            if self.service
            else f"Redis at {places}"
        )

    @property
    def ttl_milliseconds(self) -> int | str:
        """The ttl for the scripts."""
        ttl: Any = self.options["ttl"]  # (in seconds)
        return "" if ttl is None else max(round(1000 * ttl), 1)


def _check_query(url: str, found: dict[str, Any]) -> None:
    if found.get("decode_responses"):
        _refuse_decoding()
    named = parse_qs(urlsplit(url).query)
    known = _of_redis_py() if named else frozenset()
    for name in named:
        if name not in known:
            raise unknown("Redis", name, [*described(RedisThreadOptions), *sorted(known)])


def _of_redis_py() -> frozenset[str]:
    """Return the names that redis-py takes in a URL's query, for a server or a cluster."""
    takers = (
        redis.asyncio.connection.AbstractConnection,
        redis.asyncio.Connection,
        redis.asyncio.SSLConnection,
        redis.cluster.RedisCluster,
    )
    named = (inspect.signature(taker).parameters for taker in takers)
    return frozenset(URL_QUERY_ARGUMENT_PARSERS).union(*named)


def _refuse_decoding() -> None:
    raise InvalidArgumentError(
        "decode_responses=True turns bytes into text, but stored rows are bytes.",
        hint="Use a client without decode_responses, or a URL.",
    )


class ClientSource(Source):
    """Calls over a client. On a cluster (`is_cluster`), a call may use keys of one slot only."""

    is_cluster: bool

    def _client(self) -> Any:
        raise NotImplementedError

    async def send(self, calls: Sequence[RedisCommand]) -> list[Any]:
        """Return the server's answers, of several, each may be an error.

        Raises:
            ClosedError: the source was closed.
            DRIVER_ERRORS: the server or the client failed.
        """
        try:
            return await self._send(calls)
        except (RedisError, RedisClusterException, ThreadkeepError):
            raise
        except BaseException as error:
            if not self.awaited:
                self._discard()
            if isinstance(error, DRIVER_ERRORS) or not isinstance(error, Exception):
                raise
            # (redis-py fails so, for example, when a connection is closed during a call)
            raise redis.ConnectionError(f"redis-py failed: {error!r}") from error

    def _discard(self) -> None:
        """Discard idle connections of a blocking client.

        After an interrupt one may have the answer to that call, which the next call would read.
        """
        client = self._client()
        of = [node.redis_connection for node in client.get_nodes()] if self.is_cluster else [client]
        for one in of:
            if one is not None:
                one.connection_pool.disconnect(inuse_connections=False)

    async def _send(self, calls: Sequence[RedisCommand]) -> list[Any]:
        client = self._client()
        if self.is_cluster and self.awaited:
            # (redis-py sends the first calls to nodes at random until it knows the slots)
            return [await _answer(await client.initialize(), call) for call in calls]
        if len(calls) == 1 or self.is_cluster:
            return [await _answer(client, call) for call in calls]
        async with entered(client.pipeline(transaction=False)) as pipeline:
            for call in calls:
                pipeline.execute_command(*call.words)
            answers = list(await result(pipeline.execute(raise_on_error=False)))
        for at, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):
                answers[at] = await _answer(client, calls[at])
        return answers


async def _answer(client: Any, call: RedisCommand) -> Any:
    try:
        return await result(client.execute_command(*call.words))
    except NoScriptError:
        if call.whole is None:
            raise
        return await result(client.execute_command(*call.whole))


def _new(settings: RedisSettings, module: Any) -> Any:
    """Make a client of `redis` or `redis.asyncio`."""
    timeout = settings.options["timeout"]
    timeouts = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
    arguments = {
        **timeouts,
        "max_connections": settings.options["max_connections"],
        "decode_responses": False,
        "protocol": 2,
    }
    if settings.kind == "cluster":
        others = [module.cluster.ClusterNode(*address) for address in settings.addresses[1:]]
        return module.cluster.RedisCluster.from_url(
            settings.redis_url, startup_nodes=others, **arguments
        )
    retry = (Retry if module is redis else redis.asyncio.retry.Retry)(NoBackoff(), 0)
    if settings.kind == "sentinel":
        named = parse_url(settings.redis_url)  # type: ignore[no-untyped-call]
        named |= {"ssl": named.pop("connection_class", None) is SSLConnection}
        own = {name: value for name, value in named.items() if name not in ("host", "port")}
        tls = {name: value for name, value in named.items() if name.startswith("ssl")}
        sentinel = module.sentinel.Sentinel(settings.addresses, sentinel_kwargs=timeouts | tls)
        return sentinel.master_for(settings.service, retry=retry, **arguments | own)
    pool = module.BlockingConnectionPool.from_url(
        settings.redis_url,
        timeout=timeout,
        retry=retry,
        **arguments,
        **({"queue_class": _Idle} if module is redis else {}),
    )
    return module.Redis.from_pool(pool)


class _Idle:
    """Idle connections of a pool, the last one first.

    An interrupt inside a `queue.LifoQueue`, which is Python code, may lock it for ever.
    """

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self.queue: list[Any] = []
        self._tokens: SimpleQueue[None] = SimpleQueue()  # one for each element

    def put_nowait(self, connection: Any) -> None:
        if len(self.queue) >= self._maxsize:
            raise Full
        self.queue.append(connection)
        self._tokens.put(None)

    def get(self, block: bool, timeout: float | None) -> Any:  # noqa: FBT001 - as redis-py calls it
        self._tokens.get(block, timeout)
        return self.queue.pop()


class OwnClient(ClientSource):
    """A client, made at its first use and again after a fork."""

    def __init__(self, settings: RedisSettings) -> None:
        self.is_cluster = settings.kind == "cluster"
        self._own = PerProcess[Any](partial(_new, settings, redis))

    def _client(self) -> Any:
        return self._own.get()

    def _discard(self) -> None:
        self._own.renew()  # (it may also have lost connections)

    async def close(self) -> None:
        self._own.close()


class _LoopClient(NamedTuple):
    """A client, and the async generator that closes it.

    `asyncio.run` closes the async generators of its event loop at the end.
    """

    client: Any
    keeper: AsyncGenerator[None, None]


class OwnAsyncClients(LoopConnections[_LoopClient], ClientSource):
    """A client for each event loop, made at its first use there."""

    awaited = True

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__()
        self.is_cluster = settings.kind == "cluster"
        self._settings = settings

    def _client(self) -> Any:
        return self.here().client

    def _begin(self) -> _LoopClient:
        client = _new(self._settings, redis.asyncio)
        keeper = _keep(client)
        sync_bridge.finish(anext(keeper))  # (nothing is awaited before its `yield`)
        return _LoopClient(client, keeper)

    async def _end(self, made: _LoopClient) -> None:
        await made.keeper.aclose()


async def _keep(client: Any) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await client.aclose()
        if isinstance(client, redis.asyncio.Redis):
            sentinel = getattr(client.connection_pool, "sentinel_manager", None)
            for asked in () if sentinel is None else sentinel.sentinels:
                await asked.aclose()


class GivenClient(ClientSource):
    """A program's own client, blocking or async, which stays open."""

    def __init__(self, client: Any, kinds: tuple[Any, ...]) -> None:
        if not isinstance(client, kinds):
            raise InvalidArgumentError(
                f"{type(client).__name__} is no Redis server.",
                hint="Use a URL, or a Redis or RedisCluster of redis-py.",
            )
        if client.get_encoder().decode_responses:
            _refuse_decoding()
        self.is_cluster = isinstance(client, _CLUSTERS)
        self.awaited = kinds is AWAITED
        self._given = client

    def _client(self) -> Any:
        self._check_open()
        return self._given
