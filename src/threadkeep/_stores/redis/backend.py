"""Redis backend: converts reads and changes to script calls, and answers to replies.

`AsyncRedisBackend` has the logic; `RedisBackend` runs the same coroutines on blocking clients.
Answers and errors of the driver do not leave this package.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from threadkeep._core import tenants
from threadkeep._core.engine import model
from threadkeep._core.engine.usage import SAMPLED_ITEMS, ItemUsage
from threadkeep._stores.base import AsyncBackend, ScrubReport
from threadkeep._stores.options import described, from_url
from threadkeep._stores.records import check_ends, confirm, new_tip, tie
from threadkeep._stores.redis import RedisThreadOptions, clients, rows, scripts, threads
from threadkeep._stores.redis.clients import ClientSource, RedisSettings
from threadkeep._stores.redis.rows import Word
from threadkeep._stores.redis.scripts import Question, RedisCommand, call
from threadkeep._stores.redis.server import DAMAGED, NEVER, Generations, Server, refusal, scrub
from threadkeep._stores.sync_bridge import BlockingFace, finish
from threadkeep.errors import CorruptionError, ThreadkeepError, invalid

if TYPE_CHECKING:
    from threadkeep._stores.items.records import SearchOptions
    from threadkeep._stores.redis.cache import RedisEntries
    from threadkeep._stores.redis.items import AsyncRedisItems

T = TypeVar("T", model.Batch, model.DropThread)


class AsyncRedisBackend(Server, AsyncBackend):
    """Backend on async clients of redis-py.

    Args:
        source: the clients.
        settings: the store's settings.
        generations: the births of threads; shared by the backends of one saver.
    """

    commits_groups = True
    has_identity = True
    counts_usage = True

    def __init__(
        self, source: ClientSource, settings: RedisSettings, generations: Generations | None = None
    ) -> None:
        super().__init__(source, settings)
        self._generations = generations or Generations()

    # -- reads -----------------------------------------------------------------------

    async def fetch(self, reads: Sequence[model.Read]) -> list[Any]:
        """Answer each read, in order; a thread's reads see one state. See `Backend.fetch`."""
        with self.mapped_errors():
            found = {at: scripts.inquiry(self._as_stored(read)) for at, read in enumerate(reads)}
            replies = await self._answered({at: asked for at, asked in found.items() if asked})
            for at, read in enumerate(reads):
                if at not in replies:
                    replies[at] = await threads.answer(read, self)
        return [self._as_named(read, replies[at]) for at, read in enumerate(reads)]

    def _as_named(self, read: model.Read, reply: Any) -> Any:
        """Return the reply with this process's name of the generation."""
        if not isinstance(read, model.ReadCheckpoint | model.ReadThread):
            return reply
        name = self._generations.name(read.thread, reply.generation)
        return reply if name == reply.generation else reply._replace(generation=name)

    def _as_stored(self, read: model.Read) -> model.Read:
        """Return a read with the stored generation."""
        if isinstance(read, model.ReadSegments) and read.generation is not None:
            stored = self._generations.stored(read.thread, read.generation)
            return read._replace(generation=NEVER if stored is None else stored)
        return read

    async def _answered(self, inquiries: dict[int, scripts.Inquiry]) -> dict[int, Any]:
        """Return the reply to each read; the script runs once for each thread."""
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

    async def commit(self, change: model.Change) -> None:
        (refused,) = await self.commit_many([change])
        if refused is not None:
            raise refused

    async def commit_many(self, changes: Sequence[model.Change]) -> list[ThreadkeepError | None]:
        """Make several changes in as few round trips as possible. See `Backend.commit_many`.

        Each change is its own transaction. A batch may build on an earlier batch of its thread
        (see `_run.driver`), so a thread's batches go to one run of the script. It is safe to send
        all of them again.
        """
        results: list[ThreadkeepError | None] = []
        with self.mapped_errors():
            await self.sent([one for change in changes for one in self._make_sound(change)])
            for is_batch, run in groupby(changes, lambda change: type(change) is model.Batch):
                if is_batch and not self.is_cluster:
                    results += await self._commit_batches(list(run))
                else:
                    results += [await self._commit_apart(change) for change in run]
            await self.warn_of_eviction()
        return results

    async def _commit_apart(self, change: model.Change) -> ThreadkeepError | None:
        """Make a single change, in a transaction of its own."""
        tie([change])
        refused = await self._commit_alone(change)
        confirm([change], [refused])
        return refused

    async def _commit_batches(self, batches: Sequence[Any]) -> list[ThreadkeepError | None]:
        by_thread: dict[str, list[model.Batch]] = {}
        for batch in batches:
            by_thread.setdefault(batch.thread, []).append(self._expecting(batch))
        told = [call for batch in batches for call in self._beforehand(batch)]
        calls = [
            self._writing("commit", scripts.batch_words(own), thread)
            for thread, own in by_thread.items()
        ]
        answers = (await self.sent([*told, *calls, *told]))[len(told) :]
        found = {thread: iter(answer) for thread, answer in zip(by_thread, answers, strict=False)}
        return await self._noted([(batch, next(found[batch.thread])) for batch in batches])

    def _make_sound(self, change: model.Change) -> Iterator[RedisCommand]:
        """Yield calls that replace damaged fields of a thread's own row by safe values."""
        for row in change.drop_unreadable if isinstance(change, model.Batch) else ():
            if row.table == model.THREADS and isinstance(change, model.Batch):
                key = rows.keys_of(self.prefix, change.thread)[0]
                for name, value in rows.sound_fields(change, row).items():
                    yield RedisCommand(
                        ("HDEL", key, name) if value is None else ("HSET", key, name, value)
                    )

    def _expecting(self, change: T) -> T:
        """Return a batch or drop that expects the stored generation."""
        if change.generation is None:
            return change
        stored = self._generations.stored(change.thread, change.generation)
        expecting: T = change._replace(generation=stored)
        return expecting

    def _beforehand(self, change: model.Change) -> list[RedisCommand]:
        return threads.beforehand(change, self.prefix) if self._settings.indexed else []

    async def _noted(
        self, done: Sequence[tuple[model.Change, Sequence[bytes]]]
    ) -> list[ThreadkeepError | None]:
        """Update the index, remember new threads, and return the refusals."""
        if self._settings.indexed:
            calls = [call for each in done for call in threads.afterwards(*each, self.prefix)]
            await self.sent(calls)
        refusals = []
        for change, answer in done:
            refused = refusal(answer, change.thread)
            refusals.append(refused)
            if answer[0] == b"created":
                self._generations.began(change.thread, int(answer[1]))
            elif refused is None and isinstance(change, model.Batch):
                stored = int(answer[1]) - change.bump_generation
                self._generations.joined(change.thread, change.generation, stored)
        return refusals

    async def _commit_alone(self, change: model.Change) -> ThreadkeepError | None:
        """Make a single change.

        A new thread must be in the index first. If the index is in another slot, the script says
        that the thread is new, and does nothing.
        """
        try:
            script = await self._script_of(change)
        except ThreadkeepError as refused:
            return refused
        if script is None:
            return None
        done = await self._made(change, *script)
        if done[0] == b"unknown":
            await self.sent([self._listing(change.thread)])
            done = await self._made(change, *script, in_index=True)
            if done[0] == b"created":
                await self.sent([self._listing(change.thread)])  # (a read may have removed it)
        return (await self._noted([(change, done)]))[0]

    async def _script_of(self, change: model.Change) -> tuple[str, Sequence[Word]] | None:
        """Return a change's script and its arguments; None if there is nothing to do.

        Two threads are in two slots, and a script on a cluster sees only one: the source is read at
        one instant, the target is checked and written at another.
        """
        if isinstance(change, model.Batch):
            return "commit", [*scripts.batch_words([self._expecting(change)])]
        if isinstance(change, model.DropThread):
            return "drop", [*scripts.drop_words(self._expecting(change))]
        is_fork = isinstance(change, model.ForkThread)
        (found,) = await self.ask([(change.source, Question("whole" if is_fork else "dump"))])
        mark = rows.pack_number(new_tip())  # (identifies the copy or fork)
        if isinstance(change, model.ForkThread):
            stored = rows.generation_of(found[0]) if found else 0
            generation = self._generations.name(change.source, stored)
            check_ends(change, generation, rows.revision_of(found[0] if found else ()))
            return "fork", (mark, *scripts.fork_words(change, found))
        if not found:
            return None
        dumps, row = found
        check_ends(change, 0, rows.revision_of(row))
        return "copy", (mark, *dumps, *rows.copy_words(change, row))

    async def _made(
        self, change: model.Change, name: str, words: Sequence[Word], *, in_index: bool = False
    ) -> Sequence[bytes]:
        """Run the script of a change and return its answer."""
        told = self._beforehand(change)
        call = self._writing(name, words, change.thread, in_index=in_index)
        answer = (await self.sent([*told, call, *told]))[len(told)]
        found: Sequence[bytes] = answer[0] if name == "commit" else answer
        return found

    def _writing(
        self, name: str, words: Iterable[Word], thread: str, *, in_index: bool = False
    ) -> RedisCommand:
        keys = rows.keys_of(self.prefix, thread)
        in_index = in_index or not self._settings.indexed
        if self._settings.indexed and not self.is_cluster:
            keys.append(self.index)
        ttl = "" if tenants.is_hidden(thread) else self._settings.ttl_milliseconds
        first = (thread.encode(), int(in_index), ttl)
        return call(name, keys, (*first, *words))

    async def clear(self, beginning: str) -> None:
        """Remove all threads with this prefix, tombstones too. Not on a cluster.

        Scans the names of all keys of the server.
        """
        cursor, pattern = 0, f"{rows.beginning_of_keys(self.prefix, beginning)}*"
        with self.mapped_errors():
            while True:
                scan = RedisCommand(("SCAN", cursor, "MATCH", pattern, "COUNT", 1000))
                ((cursor, keys),) = await self.sent([scan])
                if keys:
                    await self.sent([RedisCommand(("UNLINK", *keys))])
                if not cursor:
                    return

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
            call("cache_usage", [rows.cache_base(self.prefix)], (SAMPLED_ITEMS,)),
        ]
        with self.mapped_errors():
            counts, (entries, held) = await self.sent(calls)
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
    """Backend on blocking clients of redis-py; `asynchronous` serves async calls.

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
    generations, loops = Generations(), clients.OwnAsyncClients(settings)
    blocking = AsyncRedisBackend(clients.OwnClient(settings), settings, generations)
    return blocking, AsyncRedisBackend(loops, settings, generations), loops


def opened(server: Any, **options: Unpack[RedisThreadOptions]) -> RedisBackend | AsyncRedisBackend:
    """Open the backend of a server: see `RedisBackend`.

    With an async client of redis-py, only async calls can use the backend.
    """
    if isinstance(server, clients.AWAITED):
        return AsyncRedisBackend(
            clients.GivenClient(server, clients.AWAITED), RedisSettings("", options)
        )
    return RedisBackend(server, **options)


_HOT_TTL = 3600.0  # seconds until an unused thread expires
_HOT_TIMEOUT = 1.0


class HotRedis(BlockingFace[AsyncRedisBackend]):
    """Redis server that caches another store."""

    def clear(self, beginning: str) -> None:
        finish(self.face.clear(beginning))


def hot_store(url: Any) -> HotRedis:
    """Open a Redis server that caches another store.

    It does not retry: if a call fails, the other store answers.

    Raises:
        OpenError: the URL cannot be read.
        InvalidArgumentError: it names a cluster or sentinels.
    """
    if not isinstance(url, str) or not url:
        raise invalid("hot", url, "Use the URL of a Redis server.")
    options: RedisThreadOptions = {
        "prefix": "tk-hot",
        "ttl": _HOT_TTL,
        "ttl_refresh_on_read": True,
        "timeout": _HOT_TIMEOUT,
    }
    settings = RedisSettings(url, options, indexed=False, patient=False)
    if settings.kind:
        # (the rest of it could show a password)
        scheme = url.partition("://")[0]
        raise invalid("hot", f"{scheme}://", "Use the URL of a single server, redis://host:6379/0.")
    return HotRedis(*_over_own_clients(settings))
