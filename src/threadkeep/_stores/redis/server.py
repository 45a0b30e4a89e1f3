"""The Redis server of a store: its errors, and calls with retries.

A deleted key leaves memory at once, but stays in the server's files until these are rewritten.
`scrub` reports a file as cleared only if its rewrite began after the call, and succeeded.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from redis import exceptions

from threadkeep._stores.base import Meaning, ScrubReport, store_error
from threadkeep._stores.records import beyond
from threadkeep._stores.redis.clients import DRIVER_ERRORS, ClientSource, RedisSettings
from threadkeep._stores.redis.rows import Word, index_of, key_of, keys_of
from threadkeep._stores.redis.scripts import USES, Question, RedisCommand, call
from threadkeep._stores.servers import Retrying
from threadkeep.errors import (
    BackendError,
    CorruptionError,
    DiskFullError,
    InvalidArgumentError,
    LockedError,
    ReadOnlyError,
    ThreadkeepError,
    UnreachableError,
)

_log = logging.getLogger("threadkeep")

# -- errors ----------------------------------------------------------------------------

DAMAGED = "`threadkeep check URL` lists the damage, `threadkeep repair` removes it."
"""Hint for a thread with unreadable rows."""

_LET_IN = (UnreachableError, "Check the user and the password in the URL.")
_IS_CLUSTER = (InvalidArgumentError, "This is a cluster: use redis+cluster://host:port.")
_MEANINGS: dict[str, Meaning] = {
    "OOM": (
        DiskFullError,
        "maxmemory is reached, and nothing was changed. Raise it, or prune or delete threads.",
    ),
    "READONLY": (ReadOnlyError, "This is a replica: connect to its primary."),
    "NOREPLICAS": (ReadOnlyError, "min-replicas-to-write asks for more replicas than there are."),
    "MISCONF": (
        BackendError,
        "Redis could not save its data, so it refuses writes: check its log and its disk.",
    ),
    "NOPERM": (
        BackendError,
        "Grant this user ~tk:* (or another prefix) +@all -@dangerous.",
    ),
    "NOAUTH": _LET_IN,
    "WRONGPASS": _LET_IN,
    "LOADING": (UnreachableError, "The server is starting: retry later."),
    "MASTERDOWN": (UnreachableError, "The replica has lost its primary: retry later."),
    "CLUSTERDOWN": (UnreachableError, "Some of the cluster's nodes are missing: see CLUSTER INFO."),
    "TRYAGAIN": (UnreachableError, "The thread's slot is being moved: retry later."),
    "BUSY": (UnreachableError, "A script of another program is still running: retry later."),
    "MOVED": _IS_CLUSTER,
    "CROSSSLOT": _IS_CLUSTER,
    "WRONGTYPE": (BackendError, "Another program uses keys of these names: use another prefix."),
}
_FULL = "Too many connections"
_TORN = ": attempt to "  # Lua's error for a truncated member
_CODE = re.compile(rf"(?:^|[\s-])({'|'.join(_MEANINGS)})\b")
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.TryAgainError, "TRYAGAIN"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.AuthenticationError, "NOAUTH"),
    (exceptions.AuthenticationWrongNumberOfArgsError, "NOAUTH"),
    (exceptions.MovedError, "MOVED"),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
)
_PASSING_CODES = {"LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY"}
_LOST = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ClusterError,
    exceptions.RedisClusterException,
    OSError,
)


def _code(error: BaseException) -> str:
    """Return the error's code: before the text, or inside it if a script was running."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    found = _CODE.search(str(error)) if isinstance(error, exceptions.ResponseError) else None
    return found[1] if found else ""


def passes(error: BaseException) -> bool:
    """Return True if a retry may succeed: after a lost connection, with a missing node.

    Pools of clusters and sentinels don't wait for a free connection.
    """
    is_full = isinstance(error, exceptions.MaxConnectionsError) or _FULL in str(error)
    return _code(error) in _PASSING_CODES or lost(error) or is_full


def lost(error: BaseException) -> bool:
    """Return True if there was no connection, or it was lost."""
    return isinstance(error, _LOST) and not _code(error) and not _is_crowded(error)


def _is_crowded(error: BaseException) -> bool:
    """Return True if the pool had no free connection (in time)."""
    text = str(error)
    is_full = isinstance(error, exceptions.MaxConnectionsError) or _FULL in text
    return is_full or "No connection available" in text


def mapped(error: Exception, server: str) -> ThreadkeepError:
    """Map a driver's error of a server with this name."""
    if isinstance(error, UnicodeError):
        return InvalidArgumentError(
            f"Redis cannot store this text: {error}", hint="Ids must be valid Unicode."
        )
    meaning = _meaning(error)
    text = "There is no memory left for the database" if meaning[0] is DiskFullError else ""
    return store_error(meaning, server, " ".join(str(error).split()), text)


def _meaning(error: Exception) -> Meaning:
    code = _code(error)
    if code:
        return _MEANINGS[code]
    if isinstance(error, exceptions.ResponseError) and _TORN in str(error):
        return CorruptionError, DAMAGED
    if _is_crowded(error):
        return UnreachableError, "Raise max_connections, or find the calls that keep them busy."
    if isinstance(error, _LOST):
        return UnreachableError, "Check that the server runs and can be reached."
    return BackendError, "See the server's log."


# -- calls -----------------------------------------------------------------------------


class Server(Retrying[ClientSource]):
    """A server, or a cluster of servers."""

    def __init__(self, source: ClientSource, settings: RedisSettings) -> None:
        # (of several commands, those before a failure may have succeeded)
        super().__init__(source, DRIVER_ERRORS, passes, lost=passes)
        self._settings = settings
        self.prefix = settings.options["prefix"]
        self.index = index_of(self.prefix)
        self._was_reached = False

    @property
    def is_cluster(self) -> bool:
        """True if a call may name keys of one slot only."""
        return self._source.is_cluster

    async def sent(
        self, calls: Sequence[RedisCommand], losses: list[Exception] | None = None
    ) -> list[Any]:
        """Return the server's answers. See `retried`."""
        return await self.retried(partial(self._send, calls), losses) if calls else []

    def _is_final(self, error: Exception) -> bool:
        return not passes(error) or (lost(error) and not self._was_reached)

    async def _send(self, calls: Sequence[RedisCommand]) -> list[Any]:
        answers = await self._source.send(calls)
        self._was_reached = True
        for found in answers:
            if isinstance(found, Exception):
                raise found
        return answers

    async def warn_of_eviction(self) -> None:
        """Log a warning if the server may evict keys, once. Call it after a first write."""
        if self._settings.warned_of_eviction:
            return
        self._settings.warned_of_eviction = True
        try:
            (info,) = await self._source.send([RedisCommand(("INFO", "memory"))])
        except DRIVER_ERRORS:  # (users without +info)
            return
        policy = info.get("maxmemory_policy", "noeviction")
        # (without ttl=, no key of a thread or of an item expires, so volatile-* keeps them)
        keeps = policy == "noeviction" or (
            policy.startswith("volatile") and self._settings.options["ttl"] is None
        )
        if info.get("maxmemory") and not keeps:
            _log.warning(
                "%s may evict single keys, which damages threads and stores (maxmemory-policy is"
                " %s). Run CONFIG SET maxmemory-policy noeviction.",
                self._settings.server,
                policy,
            )

    @contextmanager
    def mapped_errors(self) -> Iterator[None]:
        """Map the driver's errors."""
        try:
            yield
        except DRIVER_ERRORS as error:
            raise mapped(error, self._settings.server) from error

    # -- threads ---------------------------------------------------------------------

    async def ask(self, asked: Sequence[tuple[str, Question]]) -> list[Any]:
        """Return the answer to each question about a thread, each from one state."""
        answers = await self.sent([self._reading(thread, [question]) for thread, question in asked])
        return [found for (found,) in answers]

    def _reading(self, thread: str, questions: Sequence[Question]) -> RedisCommand:
        used = any(question.name in USES for question in questions)
        refresh = int(self._settings.options["ttl_refresh_on_read"] and used)
        words = [word for q in questions for word in (q.name, len(q.words), *q.words)]
        return call("read", keys_of(self.prefix, thread), (refresh, *words))

    async def threads(self, after: str | None, limit: int, prefix: str = "") -> list[str]:
        """Return ids in the index after `after` that begin with `prefix`, in order."""
        begin: Word = "-" if after is None else b"(" + after.encode()
        if prefix > (after or ""):
            begin = b"[" + prefix.encode()
        end = beyond(prefix)
        highest: Word = "+" if end is None else b"(" + end.encode()
        words = ("ZRANGEBYLEX", self.index, begin, highest, "LIMIT", 0, limit)
        (found,) = await self.sent([RedisCommand(words)])
        return [member.decode() for member in found]

    async def pages(
        self, size: int, after: str | None = None, prefix: str = ""
    ) -> AsyncIterator[list[str]]:
        """Yield pages of the ids in the index after `after` that begin with `prefix`."""
        while True:
            names = await self.threads(after, size, prefix)
            yield names
            if len(names) < size:
                return
            after = names[-1]

    async def sweep(self, thread: str) -> None:
        """Remove a missing thread from the index.

        Another process may create the thread meanwhile, so it is looked up again and put back.
        """
        first, member = key_of(self.prefix, thread), thread.encode()
        await self.sent([RedisCommand(("ZREM", self.index, member))])
        (there,) = await self.sent([RedisCommand(("EXISTS", first))])
        if there:
            await self.sent([RedisCommand(("ZADD", self.index, 0, member))])


# -- files -----------------------------------------------------------------------------

_PAUSE = 0.05  # seconds between two checks
_PATIENCE = 300.0  # seconds for one file
_MISSING = "unknown command"  # (some providers disable commands)

_ELSEWHERE = (
    "Replicas with their own files: run BGREWRITEAOF and BGSAVE on each. Copies of the server's"
    " files: remove them, or let them expire. The slow log: run SLOWLOG RESET."
)
_BY_HAND = (
    "Redis' append-only file and snapshot, until they are rewritten. This user may not rewrite"
    " them: run BGREWRITEAOF (if appendonly is yes) and BGSAVE (if there is a snapshot) as another"
    " user."
)
_CLUSTER = (
    "The append-only files and snapshots of the cluster's nodes, until they are rewritten: run"
    " BGREWRITEAOF and BGSAVE on each node."
)
_NO_SNAPSHOTS = "Snapshots are disabled, so an old manual one may remain: run BGSAVE."


# By command: the file that it rewrites, and the field of INFO with the outcome.
_FILES = {
    "BGREWRITEAOF": ("Redis' append-only file, rewritten", "aof_last_bgrewrite_status"),
    "BGSAVE": ("Redis' snapshot, rewritten", "rdb_last_bgsave_status"),
}
_BUSY = ("aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress")


async def scrub(server: Server) -> ScrubReport:
    """Rewrite the server's files. See `Backend.scrub`.

    Raises:
        LockedError: the server did not rewrite them in time.
        DRIVER_ERRORS: the server failed.
    """
    cleared = ["the server's memory"]
    if server.is_cluster:
        return ScrubReport((*cleared,), (_CLUSTER, _ELSEWHERE))
    try:
        info = await _info(server)
        (saves,) = await server.sent([RedisCommand(("CONFIG GET", "save"))])
        if int(info["aof_enabled"]):
            cleared.append(await _rewrite(server, "BGREWRITEAOF"))
        if not saves.get("save"):
            return ScrubReport((*cleared,), (_NO_SNAPSHOTS, _ELSEWHERE))
        cleared.append(await _rewrite(server, "BGSAVE"))
    except exceptions.ResponseError as error:
        if not isinstance(error, exceptions.NoPermissionError) and _MISSING not in str(error):
            raise
        return ScrubReport((*cleared,), (_BY_HAND, _ELSEWHERE))
    return ScrubReport((*cleared,), (_ELSEWHERE,))


async def _rewrite(server: Server, command: str) -> str:
    """Rewrite a file and return its name."""
    name, status = _FILES[command]
    await _wait_until_idle(server, command)
    await server.sent([RedisCommand((command,))])
    info = await _wait_until_idle(server, command)
    if info[status] != "ok":
        raise LockedError(
            f"Redis could not rewrite its files ({command}).", hint="Check its log and its disk."
        )
    return name


async def _wait_until_idle(server: Server, command: str) -> Mapping[str, Any]:
    """Wait until no file is being written, and return INFO persistence."""
    for _ in range(round(_PATIENCE / _PAUSE)):
        info = await _info(server)
        if not any(int(info.get(name, 0)) for name in _BUSY):
            return info
        await server.pause(_PAUSE)
    raise LockedError(
        f"Redis has been writing its files for {_PATIENCE:g} seconds ({command}).",
        hint="Retry when INFO persistence shows that it has ended.",
    )


async def _info(server: Server) -> Mapping[str, Any]:
    (info,) = await server.sent([RedisCommand(("INFO", "persistence"))])
    found: Mapping[str, Any] = info
    return found
