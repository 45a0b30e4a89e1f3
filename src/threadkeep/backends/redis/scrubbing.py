"""Leaving nothing of removed keys in the files of a server: its append-only file and its snapshot.

Only that lives here. A key that is removed is gone from memory at once; in the files it stays until
they are written anew. Invariant: a file that is said to be clean was begun after this was called,
and the server says that it was written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from redis import exceptions

from threadkeep.backends.base import Scrubbed
from threadkeep.backends.redis.scripts import Call
from threadkeep.errors import LockedError

_PAUSE = 0.05  # seconds between two looks
_PATIENCE = 300.0  # seconds for one file
_MISSING = "unknown command"  # a provider has taken it away

_ELSEWHERE = (
    "Replicas with files of their own: on each, the same commands (BGREWRITEAOF, BGSAVE). Copies of"
    " the server's files: remove them, or let them expire. SLOWLOG RESET clears parts of commands."
)
_BY_HAND = (
    "Redis' append-only file and snapshot, until they are written anew: this user may not look at"
    " them. Call BGREWRITEAOF (if appendonly is yes) and BGSAVE (if there is a snapshot) as one who"
    " may."
)
_CLUSTER = (
    "The append-only files and snapshots of the cluster's nodes, until they are written anew: call"
    " BGREWRITEAOF and BGSAVE on each."
)
_NO_SNAPSHOTS = "A snapshot that was saved by hand: Redis is not set to save any. Call BGSAVE."


class Server(NamedTuple):
    """What is asked of the server: to answer some commands, and to wait for some seconds."""

    send: Callable[[Sequence[Call]], Awaitable[list[Any]]]
    pause: Callable[[float], Awaitable[None]]
    is_cluster: bool


class _File(NamedTuple):
    """A file of the server, how it is written anew, and what INFO says of that."""

    name: str
    command: str
    busy: tuple[str, ...]
    status: str


_LOG = _File(
    "Redis' append-only file, written anew",
    "BGREWRITEAOF",
    ("aof_rewrite_in_progress", "aof_rewrite_scheduled"),
    "aof_last_bgrewrite_status",
)
_SNAPSHOT = _File(
    "Redis' snapshot, written anew",
    "BGSAVE",
    ("rdb_bgsave_in_progress",),
    "rdb_last_bgsave_status",
)


async def scrub(server: Server) -> Scrubbed:
    """Have the files written anew that the server keeps. See `Backend.scrub`.

    Raises:
        LockedError: the server has not written them in time.
        DRIVER_ERRORS: it failed.
    """
    keys = "the server's memory"
    if server.is_cluster:
        return Scrubbed((keys,), (_CLUSTER, _ELSEWHERE))
    try:
        info = await _info(server)
        (saves,) = await server.send([Call(("CONFIG GET", "save"))])
        files = [_LOG] if int(info["aof_enabled"]) else []
        files += [_SNAPSHOT] if saves.get("save") else []
        for file in files:
            await _written_anew(server, file)
    except exceptions.ResponseError as error:
        if not isinstance(error, exceptions.NoPermissionError) and _MISSING not in str(error):
            raise
        return Scrubbed((keys,), (_BY_HAND, _ELSEWHERE))
    remains = (_ELSEWHERE,) if _SNAPSHOT in files else (_NO_SNAPSHOTS, _ELSEWHERE)
    return Scrubbed((keys, *[file.name for file in files]), remains)


async def _written_anew(server: Server, file: _File) -> None:
    """Write a file anew: one that was begun before this does not count."""
    busy = (*_LOG.busy, *_SNAPSHOT.busy)
    await _rest(server, busy, file)
    await server.send([Call((file.command,))])
    info = await _rest(server, busy, file)
    if info[file.status] != "ok":
        raise LockedError(
            f"Redis could not write its files anew ({file.command}).",
            hint="Look into its log, and at its disk.",
        )


async def _rest(server: Server, busy: Sequence[str], file: _File) -> Mapping[str, Any]:
    """Wait until no file is being written; what INFO says then."""
    for _ in range(round(_PATIENCE / _PAUSE)):
        info = await _info(server)
        if not any(int(info.get(name, 0)) for name in busy):
            return info
        await server.pause(_PAUSE)
    raise LockedError(
        f"Redis has been writing its files for {_PATIENCE:g} seconds ({file.command}).",
        hint="Wait until INFO persistence says that it has ended.",
    )


async def _info(server: Server) -> Mapping[str, Any]:
    (info,) = await server.send([Call(("INFO", "persistence"))])
    found: Mapping[str, Any] = info
    return found
