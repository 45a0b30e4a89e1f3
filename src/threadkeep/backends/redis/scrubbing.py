"""Removal of deleted keys from the files of a server: its append-only file and its snapshot.

A deleted key is gone from memory at once; in the files it stays until they are rewritten. A file
is reported clean only if its rewrite began after this was called, and has succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis import exceptions

from threadkeep.backends.base import Scrubbed
from threadkeep.backends.redis.scripts import Call
from threadkeep.backends.redis.server import Server
from threadkeep.errors import LockedError

_PAUSE = 0.05  # seconds between two looks
_PATIENCE = 300.0  # seconds for one file
_MISSING = "unknown command"  # a provider has taken it away

_ELSEWHERE = (
    "Replicas with files of their own: on each, the same commands (BGREWRITEAOF, BGSAVE). Copies of"
    " the server's files: remove them, or let them expire. SLOWLOG RESET clears parts of commands."
)
_BY_HAND = (
    "Redis' append-only file and snapshot, until they are rewritten: this user may not look at"
    " them. Call BGREWRITEAOF (if appendonly is yes) and BGSAVE (if there is a snapshot) as one who"
    " may."
)
_CLUSTER = (
    "The append-only files and snapshots of the cluster's nodes, until they are rewritten: call"
    " BGREWRITEAOF and BGSAVE on each."
)
_NO_SNAPSHOTS = "A snapshot that was saved by hand: Redis is not set to save any. Call BGSAVE."


# By command: the file that it rewrites, and the field of INFO that says how that went.
_FILES = {
    "BGREWRITEAOF": ("Redis' append-only file, rewritten", "aof_last_bgrewrite_status"),
    "BGSAVE": ("Redis' snapshot, rewritten", "rdb_last_bgsave_status"),
}
_BUSY = ("aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress")


async def scrub(server: Server) -> Scrubbed:
    """Rewrite the files that the server keeps. See `Backend.scrub`.

    Raises:
        LockedError: the server has not written them in time.
        DRIVER_ERRORS: it failed.
    """
    cleared = ["the server's memory"]
    if server.is_cluster:
        return Scrubbed((*cleared,), (_CLUSTER, _ELSEWHERE))
    try:
        info = await _info(server)
        (saves,) = await server.sent([Call(("CONFIG GET", "save"))])
        if int(info["aof_enabled"]):
            cleared.append(await _rewrite(server, "BGREWRITEAOF"))
        if not saves.get("save"):
            return Scrubbed((*cleared,), (_NO_SNAPSHOTS, _ELSEWHERE))
        cleared.append(await _rewrite(server, "BGSAVE"))
    except exceptions.ResponseError as error:
        if not isinstance(error, exceptions.NoPermissionError) and _MISSING not in str(error):
            raise
        return Scrubbed((*cleared,), (_BY_HAND, _ELSEWHERE))
    return Scrubbed((*cleared,), (_ELSEWHERE,))


async def _rewrite(server: Server, command: str) -> str:
    """Rewrite a file and return its name."""
    name, status = _FILES[command]
    await _wait_until_idle(server, command)
    await server.sent([Call((command,))])
    info = await _wait_until_idle(server, command)
    if info[status] != "ok":
        raise LockedError(
            f"Redis could not rewrite its files ({command}).",
            hint="Look into its log, and at its disk.",
        )
    return name


async def _wait_until_idle(server: Server, command: str) -> Mapping[str, Any]:
    """Wait until no file is being written, and return what INFO says then."""
    for _ in range(round(_PATIENCE / _PAUSE)):
        info = await _info(server)
        if not any(int(info.get(name, 0)) for name in _BUSY):
            return info
        await server.pause(_PAUSE)
    raise LockedError(
        f"Redis has been writing its files for {_PATIENCE:g} seconds ({command}).",
        hint="Wait until INFO persistence says that it has ended.",
    )


async def _info(server: Server) -> Mapping[str, Any]:
    (info,) = await server.sent([Call(("INFO", "persistence"))])
    found: Mapping[str, Any] = info
    return found
