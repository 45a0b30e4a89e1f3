"""Redis for the benchmark: a prefix for each lane, and the memory that its keys take.

Commits are written to disk as PostgreSQL's are, though within a second only: where the server
lets us set that. It is set back at the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from redis import Redis
from redis.exceptions import ResponseError

import threadkeep
from bench.opening import OpenedAsync, ready, ready_async
from bench.servers import CONNECTIONS, Server, part, round_trip, url

Client: TypeAlias = Any  # redis-py's answers are typed as sync or async ones alike
DURABLE = {"appendonly": "yes", "appendfsync": "everysec"}


def connect() -> Client:
    return Redis.from_url(url("redis"))


@contextmanager
def server() -> Iterator[Server]:
    """The server, as durable as it can be set."""
    with connect() as client, durable(client) as settings:
        version = client.info("server")["redis_version"]
        said = f"{version}, {settings}, stored: MEMORY USAGE of the keys"
        yield Server("Redis", said, round_trip(client.ping))


@contextmanager
def durable(client: Client) -> Iterator[str]:
    """Have commits written to disk, if we may; what the report says of it."""
    before = configured(client)
    if before is None:
        kept = client.info("persistence")["aof_enabled"]
        yield f"aof_enabled {kept} (not ours to set)"
        return
    try:
        yield ", ".join(f"{name} {value}" for name, value in DURABLE.items())
    finally:
        for name, value in before.items():
            client.config_set(name, value)


def configured(client: Client) -> dict[str, str] | None:
    """Set its durability; return the earlier settings, or None if the server refuses."""
    try:
        before = {name: client.config_get(name)[name] for name in DURABLE}
        for name, value in DURABLE.items():
            client.config_set(name, value)
    except (ResponseError, KeyError):  # no right, or a service without these settings
        return None
    while client.info("persistence")["aof_rewrite_in_progress"]:  # the first, of all that is there
        time.sleep(0.01)
    return before


def keys(client: Client, path: Path) -> list[bytes]:
    return list(client.scan_iter(match=f"{part(path)}:*", count=1_000))


def size(path: Path) -> int:
    """The memory that all keys of a path's prefix take, in bytes, each counted whole."""
    with connect() as client, client.pipeline(transaction=False) as pipeline:
        for key in keys(client, path):
            pipeline.memory_usage(key, samples=0)
        return sum(taken or 0 for taken in pipeline.execute())


def drop(path: Path) -> None:
    """Remove all keys of a path's prefix."""
    with connect() as client:
        for key in keys(client, path):
            client.unlink(key)


# -- savers ----------------------------------------------------------------------------


def options(path: Path) -> dict[str, Any]:
    return {"prefix": part(path), "max_connections": CONNECTIONS}


@contextmanager
def ours(path: Path) -> Iterator[threadkeep.RedisSaver]:
    with ready(threadkeep.RedisSaver(url("redis"), **options(path))) as saver:
        # Connects, as `setup` does on PostgreSQL: a cold read is measured without that.
        saver.get_tuple({"configurable": {"thread_id": "unknown"}})
        yield saver


def ours_async(path: Path) -> OpenedAsync:
    return ready_async(threadkeep.AsyncRedisSaver(url("redis"), **options(path)))
