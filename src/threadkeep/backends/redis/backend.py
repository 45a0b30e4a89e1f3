"""The Redis backend itself: what is said to the server, tried again, and understood.

Only the protocol's methods live here, what they ask of the server, and what the constructors
accept. Invariant: nothing of the driver, neither answers nor errors, leaves this package.

The logic is that of `AsyncRedisBackend`. `RedisBackend` runs the same coroutines on blocking
clients, where they never suspend.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import redis.asyncio.cluster
import redis.cluster

from threadkeep.backends.base import AsyncBackend, Scrubbed
from threadkeep.backends.blocking import BlockingFace
from threadkeep.backends.given import without
from threadkeep.backends.redis import scrubbing
from threadkeep.backends.redis.changes import fork_arguments, script, waves
from threadkeep.backends.redis.clients import (
    GivenAsyncClient,
    GivenClient,
    OwnAsyncClients,
    OwnClient,
    Source,
)
from threadkeep.backends.redis.entries import copy_arguments, generation_of, unpack_entry
from threadkeep.backends.redis.failures import DAMAGED, DRIVER_ERRORS, lost, mapped, passes, refused
from threadkeep.backends.redis.generations import (
    NEVER,
    Lives,
)
from threadkeep.backends.redis.keys import beginning_of, identity_of, index_of, keys_of
from threadkeep.backends.redis.reads import Inquiry, Question, inquiry, is_of_thread, words_of
from threadkeep.backends.redis.registry import afterwards, beforehand
from threadkeep.backends.redis.scripts import Call, Word, call, reading, writing
from threadkeep.backends.redis.settings import Settings, refuse_decoding
from threadkeep.backends.redis.spanning import answer
from threadkeep.backends.retry import again
from threadkeep.backends.sync_bridge import finish
from threadkeep.engine.model import (
    Batch,
    Change,
    CopyThread,
    DropThread,
    ForkThread,
    Read,
    ReadCheckpoint,
    ReadSegments,
    ReadThread,
)
from threadkeep.errors import (
    ConflictError,
    CorruptionError,
    InvalidArgumentError,
    StaleThreadError,
    ThreadExistsError,
    ThreadkeepError,
    invalid,
)


class AsyncRedisBackend(AsyncBackend):
    """Rows in Redis, over clients that are awaited.

    Args:
        source: where clients come from.
        settings: how threads are kept.
        lives: the births of threads; shared by those that work for one saver.
    """

    commits_groups = True
    has_identity = True

    def __init__(self, source: Source, settings: Settings, lives: Lives | None = None) -> None:
        self._source = source
        self._settings = settings
        self._lives = lives or Lives()
        self._index = index_of(settings.prefix)
        self._was_reached = False

    # -- reads -----------------------------------------------------------------------

    async def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """Answer each read, in order; those of one thread from one state. See `Backend.fetch`."""
        with self._named():
            replies: dict[int, Any] = {}
            asked = [self._as_stored(read) for read in reads]
            of_thread = {at: inquiry(r) for at, r in enumerate(asked) if is_of_thread(r)}
            if of_thread or not reads:
                replies = await self._answered(of_thread)
            for at, read in enumerate(reads):
                if at not in of_thread:
                    replies[at] = await answer(read, self)
        return [self._as_named(read, replies[at]) for at, read in enumerate(reads)]

    def _as_named(self, read: Read, reply: Any) -> Any:
        """The reply, with the generation as this process calls it."""
        if not isinstance(read, ReadCheckpoint | ReadThread):
            return reply
        name = self._lives.name(read.thread, reply.generation)
        return reply if name == reply.generation else reply._replace(generation=name)

    def _as_stored(self, read: Read) -> Read:
        """A read, with the generation as it is stored."""
        if isinstance(read, ReadSegments) and read.generation is not None:
            stored = self._lives.stored(read.thread, read.generation)
            return read._replace(generation=NEVER if stored is None else stored)
        return read

    def _expecting(self, change: Change) -> Change:
        """A change that expects the generation as it is stored."""
        if not isinstance(change, Batch | DropThread) or change.generation is None:
            return change
        stored = self._lives.stored(change.thread, change.generation)
        if isinstance(change, Batch):
            return change._replace(generation=stored)
        return change._replace(generation=stored)

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
                replies[at] = _made(inquiries[at], [next(rest) for _ in inquiries[at].questions])
        return replies

    def _reading(self, thread: str, questions: Sequence[Question]) -> Call:
        used = any(question.is_use for question in questions)
        refresh = int(self._settings.ttl_refresh_on_read and used)
        keys = keys_of(self._settings.prefix, thread)
        return call(reading(), keys, (refresh, *words_of(questions)))

    # What `spanning.Store` asks for.

    async def threads(
        self, after: str | None, limit: int, *, descending: bool = False
    ) -> list[str]:
        """Ids in the index, in order, from behind `after` on."""
        name, first, last = (
            ("ZREVRANGEBYLEX", "+", "-") if descending else ("ZRANGEBYLEX", "-", "+")
        )
        begin = first if after is None else b"(" + after.encode()
        words = (name, self._index, begin, last, "LIMIT", 0, limit)
        (found,) = await self._sent([Call(words)])
        return [member.decode() for member in found]

    async def ask(self, asked: Sequence[tuple[str, Question]]) -> list[Any]:
        """The answer to each question about a thread, each from one state."""
        calls = [self._reading(thread, [question]) for thread, question in asked]
        return [found for (found,) in await self._sent(calls)]

    @property
    def prefix(self) -> str:
        """What the names of all keys begin with."""
        return self._settings.prefix

    async def said(self, calls: Sequence[Call]) -> list[Any]:
        """The server's answers to some commands."""
        return await self._sent(calls)

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
        (refusal,) = await self.commit_many([change])
        if refusal is not None:
            raise refusal

    async def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """Carry out several changes in one round trip, or as few as can be.

        Each is a transaction of its own. A change may build on one before it of its thread
        (see `bulk.py`), so that it is not carried out once the server has failed that one: batches
        of a thread go in one run of the script. To do all of them again is harmless. See
        `Backend.commit_many`.
        """
        results: list[ThreadkeepError | None] = []
        with self._named():
            for wave in waves(changes, self._goes_alone):
                if self._goes_alone(wave[0]):
                    results.append(await self._carried_out(wave[0]))
                else:
                    results += await self._carried_out_together(wave)
        return results

    def _goes_alone(self, change: Change) -> bool:
        return self._source.is_cluster or isinstance(change, CopyThread | ForkThread)

    async def _carried_out_together(
        self, changes: Sequence[Change]
    ) -> list[ThreadkeepError | None]:
        by_thread: dict[str, list[Change]] = {}
        for change in changes:
            by_thread.setdefault(change.thread, []).append(change)
        told = [call for change in changes for call in self._beforehand(change)]
        calls = [
            self._writing(*script([*map(self._expecting, own)]), thread, in_index=False)
            for thread, own in by_thread.items()
        ]
        answers = await self._sent([*told, *calls, *told])
        found = {
            thread: iter(answer if isinstance(own[0], Batch) else [answer])
            for (thread, own), answer in zip(by_thread.items(), answers[len(told) :], strict=False)
        }
        done = [(change, next(found[change.thread])) for change in changes]
        await self._tell_index(done)
        return [self._told(answer, change) for change, answer in done]

    def _beforehand(self, change: Change) -> list[Call]:
        return beforehand(change, self.prefix) if self._settings.indexed else []

    async def _tell_index(self, done: Iterable[tuple[Change, Sequence[bytes]]]) -> None:
        if self._settings.indexed:
            await self._sent([call for each in done for call in afterwards(*each, self.prefix)])

    def _told(self, answer: Sequence[bytes], change: Change) -> ThreadkeepError | None:
        """What a script refused to do; the beginning of a thread's life is noted."""
        thread = change.thread
        refusal = refused(answer, thread)
        if answer[0] == b"created":
            self._lives.began(thread, int(answer[1]))
        elif refusal is None and isinstance(change, Batch):
            self._lives.joined(thread, change.generation, int(answer[1]) - change.bump)
        return refusal

    async def _carried_out(self, change: Change) -> ThreadkeepError | None:
        """Carry out a change by itself.

        A thread that it would bring into being must be in the index first. Where that lies in
        another slot the script says so, and does nothing.
        """
        try:
            script = await self._script_of(change)
        except ThreadkeepError as refusal:
            return refusal
        if script is None:
            return None
        name, arguments = script
        thread, told = change.thread, self._beforehand(change)
        await self._sent(told)
        done = await self._written(name, arguments, thread, in_index=False)
        if done[0] == b"unknown":
            await self._sent([self._listing(thread)])
            done = await self._written(name, arguments, thread, in_index=True)
            if done[0] == b"created":
                await self._sent([self._listing(thread)])  # it may have been swept meanwhile
        await self._sent(told)
        await self._tell_index([(change, done)])
        return self._told(done, change)

    async def _script_of(self, change: Change) -> tuple[str, Sequence[Word]] | None:
        """The script that carries out a change, and what it is given; None where nothing is.

        Two threads are in two slots, and a script of a cluster sees one: a source is read in one
        state, the target is checked and written in another.
        """
        if isinstance(change, CopyThread):
            (found,) = await self.ask([(change.source, Question("dump"))])
            if not found:
                return None
            dumps, row = found
            _check_source(change, row)
            _check_target(change)
            return "copy", (secrets.token_hex(16), *dumps, *copy_arguments(change, row))
        if isinstance(change, ForkThread):
            (found,) = await self.ask([(change.source, Question("whole"))])
            stored = generation_of(found[0]) if found else 0
            if self._lives.name(change.source, stored) != change.generation:
                raise StaleThreadError(thread=change.source)
            _check_source(change, found[0] if found else ())
            _check_target(change)
            return "fork", (secrets.token_hex(16), *fork_arguments(change, found))
        return script([self._expecting(change)])

    async def _written(
        self, name: str, arguments: Sequence[Word], thread: str, *, in_index: bool
    ) -> Sequence[bytes]:
        """Answer of a script to a single change."""
        (answer,) = await self._sent([self._writing(name, arguments, thread, in_index=in_index)])
        found: Sequence[bytes] = answer[0] if name == "commit" else answer
        return found

    def _writing(
        self, name: str, arguments: Sequence[Word], thread: str, *, in_index: bool
    ) -> Call:
        keys = keys_of(self._settings.prefix, thread)
        in_index = in_index or not self._settings.indexed
        if self._settings.indexed and not self._source.is_cluster:
            keys.append(self._index)
        first = (thread.encode(), int(in_index), self._settings.ttl_milliseconds)
        return call(writing(name), keys, (*first, *arguments))

    def _listing(self, thread: str) -> Call:
        return Call(("ZADD", self._index, 0, thread.encode()))

    async def clear(self, beginning: str) -> None:
        """Remove all threads whose id begins so, tombstones too. Not on a cluster.

        Reads the names of all keys of the server.
        """
        cursor, pattern = 0, f"{beginning_of(self._settings.prefix, beginning)}*"
        with self._named():
            while True:
                scan = Call(("SCAN", cursor, "MATCH", pattern, "COUNT", 1000))
                ((cursor, keys),) = await self._sent([scan])
                if keys:
                    await self._sent([Call(("UNLINK", *keys))])
                if not cursor:
                    return

    async def identity(self) -> str:
        """Name the threads under this prefix. See `Backend.identity`."""
        key = identity_of(self._settings.prefix)
        with self._named():
            made = Call(("SET", key, secrets.token_hex(16), "NX"))
            _, found = await self._sent([made, Call(("GET", key))])
        return str(found.decode())

    async def scrub(self, *, rewrite: bool) -> Scrubbed:
        """Have the server's files written anew. See `Backend.scrub`."""
        del rewrite  # (nobody is kept out meanwhile)
        source = self._source
        server = scrubbing.Server(self._sent, source.pause, source.is_cluster)
        with self._named():
            return await scrubbing.scrub(server)

    async def close(self) -> None:
        """Close all connections of ours; later calls raise `ClosedError`. Idempotent."""
        await self._source.close()

    # -- the server ------------------------------------------------------------------

    async def _sent(self, calls: Sequence[Call]) -> list[Any]:
        """The server's answers; tried again where a failure passes."""
        if not calls:
            return []
        try:
            return await self._send(calls)
        except DRIVER_ERRORS as error:
            # What was never reached is no lost connection: it is said at once.
            never_reached = lost(error) and not self._was_reached
            if not passes(error) or never_reached or not self._settings.patient:
                raise
        return await again(partial(self._send, calls), passes, self._source.pause)

    async def _send(self, calls: Sequence[Call]) -> list[Any]:
        answers = await self._source.send(calls)
        self._was_reached = True
        for found in answers:
            if isinstance(found, Exception):
                raise found
        return answers

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Raise the driver's errors as ours."""
        try:
            yield
        except DRIVER_ERRORS as error:
            raise mapped(error, self._settings.server) from error


def _made(asked: Inquiry, answers: Sequence[Any]) -> Any:
    """The reply. Raises CorruptionError where rows are not what they were."""
    try:
        return asked.reply(answers)
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise CorruptionError(
            f"A row of thread {asked.thread!r} cannot be read: {error}", hint=DAMAGED
        ) from error


class RedisBackend(BlockingFace[AsyncRedisBackend]):
    """Rows in Redis, for blocking calls; `asynchronous` serves awaiting ones.

    Args:
        server: a URL (which may have a parameter `prefix`), or a blocking client of redis-py,
            which stays the program's own.
        prefix, ttl, ttl_refresh_on_read, max_connections, timeout: see `Settings`.

    Raises:
        OpenError: the URL cannot be read.
        InvalidArgumentError: an option is invalid, or the client decodes answers.
    """

    def __init__(self, server: Any, **options: Any) -> None:
        if isinstance(server, str):
            url, prefix = without("prefix", server)
            if prefix is not None:
                options.setdefault("prefix", prefix)
            settings = Settings(url, **options)
            source, loops = OwnClient(settings), OwnAsyncClients(settings)
            face, native = _faces(source, loops, settings)
            super().__init__(face, native, loops)
        else:
            given = GivenClient(_checked(server, _BLOCKING))
            super().__init__(AsyncRedisBackend(given, Settings("", **options)), None, None)

    def identity(self) -> str:
        """See `AsyncRedisBackend.identity`."""
        return finish(self._face.identity())

    def scrub(self, *, rewrite: bool) -> Scrubbed:
        """See `AsyncRedisBackend.scrub`."""
        return finish(self._face.scrub(rewrite=rewrite))


def _faces(
    source: Source, loops: Source, settings: Settings
) -> tuple[AsyncRedisBackend, AsyncRedisBackend]:
    """The same store over blocking and over awaiting clients."""
    lives = Lives()
    return AsyncRedisBackend(source, settings, lives), AsyncRedisBackend(loops, settings, lives)


_BLOCKING = (redis.Redis, redis.cluster.RedisCluster)
_AWAITED = (redis.asyncio.Redis, redis.asyncio.cluster.RedisCluster)


def _check_source(change: CopyThread | ForkThread, row: Sequence[bytes]) -> None:
    entry = unpack_entry(change.source, row)
    if change.revision not in (None, 0 if entry is None else entry.revision):
        raise ConflictError(thread=change.source)


def _check_target(change: CopyThread | ForkThread) -> None:
    if change.source == change.target:
        raise ThreadExistsError(thread=change.target)


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


_HOT_TTL = 3600.0  # seconds that a thread stays without being written or read
_HOT_TIMEOUT = 1.0


class HotRedis(BlockingFace[AsyncRedisBackend]):
    """A server that keeps at hand what another store holds."""

    def clear(self, beginning: str) -> None:
        """See `AsyncRedisBackend.clear`."""
        finish(self._face.clear(beginning))

    def scrub(self, *, rewrite: bool) -> Scrubbed:
        """See `AsyncRedisBackend.scrub`."""
        return finish(self._face.scrub(rewrite=rewrite))


def hot_store(url: Any) -> HotRedis:
    """Open a server that keeps at hand what another store holds.

    It is not waited for: what fails is asked of the other store.

    Raises:
        OpenError: the URL cannot be read.
        InvalidArgumentError: it names a cluster.
    """
    if not isinstance(url, str) or not url:
        raise invalid("hot", url, "Use the URL of a Redis server.")
    settings = Settings(
        *(url, "tk-hot", _HOT_TTL),
        ttl_refresh_on_read=True,
        timeout=_HOT_TIMEOUT,
        indexed=False,
        patient=False,
    )
    if settings.is_cluster:
        # (the rest of it could show a password)
        scheme = url.partition("://")[0]
        raise invalid("hot", f"{scheme}://", "Use the URL of a single server, redis://host:6379/0.")
    loops = OwnAsyncClients(settings)
    return HotRedis(*_faces(OwnClient(settings), loops, settings), loops)
