"""Redis server of a store: calls sent to it, retried, its threads, and their generations.

A thread of Redis can be gone without anybody having deleted it: it expired, or the server came
back empty. If its next life had the same generations, a process that remembers the first would
build on missing rows. So a thread's generation begins at the moment of its birth, in microseconds
since 1970, which the script that makes it takes from the server.

Who found a thread missing, and then wrote to it, continues to count from the generation of missing
threads; others know it as it is stored. What is written under that one is built on nothing, so
that it does not matter who makes the thread first. No name means two lives of one thread: once a
life has ended or was forgotten, the thread has another name while it is missing.

A deleted key is gone from memory at once; in the server's files it stays until they are rewritten.
`scrub` reports a file clean only if its rewrite began after the call, and has succeeded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from redis import exceptions

from threadkeep._stores.base import ScrubReport
from threadkeep._stores.redis.clients import ClientSource, RedisSettings
from threadkeep._stores.redis.failures import DRIVER_ERRORS, lost, mapped, passes
from threadkeep._stores.redis.reads import Question
from threadkeep._stores.redis.rows import index_of, keys_of
from threadkeep._stores.redis.scripts import RedisCommand, call
from threadkeep._stores.retries import again
from threadkeep.errors import LockedError

_MOST = 10_000  # threads whose lives are remembered
_APART = 2**32  # names of one life: a thread is not pruned more often than that
NEVER = -1
"""A generation that no thread has."""


class _Life(NamedTuple):
    name: int  # of the generation that a thread has before it is there
    stored: int  # what that one is called where it is stored


class Generations:
    """Generations of threads whose beginning this process has seen.

    It needs no lock: what two threads do at the same time makes at worst a name stale.
    """

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._absent = 0  # of threads that are missing
        self._ended: dict[str, int] = {}  # the same, of those that have had a life
        self._last = 0  # of these names

    def began(self, thread: str, stored: int) -> None:
        """Remember the life of a thread that was just made."""
        if thread in self._lives:
            self._forget(thread)
        self._remember(thread, stored)

    def joined(self, thread: str, name: int | None, stored: int) -> None:
        """Remember the life of a thread that another process made while it was missing here."""
        if name == self._missing(thread) and thread not in self._lives:
            self._remember(thread, stored)

    def _remember(self, thread: str, stored: int) -> None:
        self._lives[thread] = _Life(self._ended.pop(thread, self._absent), stored)
        while len(self._lives) > _MOST:
            self._forget(next(iter(self._lives)))

    def stored(self, thread: str, name: int) -> int | None:
        """Return the generation as the server knows it; None where any will do."""
        life = self._lives.get(thread)
        if life is not None and 0 <= name - life.name < _APART:
            return life.stored + name - life.name
        if name < _APART:
            return None if life is None and name == self._missing(thread) else NEVER
        return name

    def name(self, thread: str, stored: int) -> int:
        """Return this process's name of a stored generation; 0 is stored of no thread."""
        life = self._lives.get(thread)
        if life is not None:
            if 0 <= stored - life.stored < _APART:
                return stored - life.stored + life.name
            self._forget(thread)
        return stored or self._missing(thread)

    def _missing(self, thread: str) -> int:
        return self._ended.get(thread, self._absent)

    def _forget(self, thread: str) -> None:
        self._lives.pop(thread, None)
        self._last -= _APART
        self._ended[thread] = self._last
        if len(self._ended) > _MOST:  # (who is about to make a thread looks again)
            self._last -= _APART
            self._absent = self._last
            self._ended.clear()


class Server:
    """A server, or a cluster of them."""

    def __init__(self, source: ClientSource, settings: RedisSettings) -> None:
        self._source = source
        self._settings = settings
        self.index = index_of(settings.prefix)
        self._was_reached = False
        self._retries = 0
        self.prefix = settings.prefix

    @property
    def is_cluster(self) -> bool:
        """True if a call may name keys of one slot only."""
        return self._source.is_cluster

    @property
    def retries(self) -> int:
        """Number of calls that were made again, since the store was opened."""
        return self._retries

    def _count_retry(self) -> None:
        self._retries += 1

    async def pause(self, seconds: float) -> None:
        """Wait for some seconds."""
        await self._source.pause(seconds)

    async def sent(
        self, calls: Sequence[RedisCommand], losses: list[Exception] | None = None
    ) -> list[Any]:
        """Return the server's answers, after retries where a failure passes.

        Failures are added to `losses`: what was sent may have been done.
        """
        if not calls:
            return []
        try:
            return await self._send(calls)
        except DRIVER_ERRORS as error:
            # What was never reached is no lost connection: this is reported at once.
            never_reached = lost(error) and not self._was_reached
            if not passes(error) or never_reached or not self._settings.patient:
                raise
            if losses is not None:
                losses.append(error)
        return await again(
            partial(self._send, calls), passes, self._source.pause, self._count_retry
        )

    async def _send(self, calls: Sequence[RedisCommand]) -> list[Any]:
        answers = await self._source.send(calls)
        self._was_reached = True
        for found in answers:
            if isinstance(found, Exception):
                raise found
        return answers

    @contextmanager
    def mapped_errors(self) -> Iterator[None]:
        """Raise errors of the driver as errors of threadkeep."""
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
        used = any(question.is_use for question in questions)
        refresh = int(self._settings.ttl_refresh_on_read and used)
        words = [word for q in questions for word in (q.name, len(q.words), *q.words)]
        return call("read", keys_of(self.prefix, thread), (refresh, *words))

    async def threads(self, after: str | None, limit: int) -> list[str]:
        """Return ids in the index, in order, from behind `after` on."""
        begin = "-" if after is None else b"(" + after.encode()
        words = ("ZRANGEBYLEX", self.index, begin, "+", "LIMIT", 0, limit)
        (found,) = await self.sent([RedisCommand(words)])
        return [member.decode() for member in found]

    async def pages(self, size: int, after: str | None = None) -> AsyncIterator[list[str]]:
        """Yield the ids in the index, from behind `after` on, in pages."""
        while True:
            names = await self.threads(after, size)
            yield names
            if len(names) < size:
                return
            after = names[-1]

    def _listing(self, thread: str) -> RedisCommand:
        return RedisCommand(("ZADD", self.index, 0, thread.encode()))

    async def sweep(self, thread: str) -> None:
        """Take a missing thread out of the index.

        Another process may make it in between: it is looked for again, and put back. (Who makes
        it puts it there once more.)
        """
        first, member = keys_of(self.prefix, thread)[0], thread.encode()
        await self.sent([RedisCommand(("ZREM", self.index, member))])
        (there,) = await self.sent([RedisCommand(("EXISTS", first))])
        if there:
            await self.sent([self._listing(thread)])


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


async def scrub(server: Server) -> ScrubReport:
    """Rewrite the files that the server keeps. See `Backend.scrub`.

    Raises:
        LockedError: the server has not written them in time.
        DRIVER_ERRORS: it failed.
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
    (info,) = await server.sent([RedisCommand(("INFO", "persistence"))])
    found: Mapping[str, Any] = info
    return found
