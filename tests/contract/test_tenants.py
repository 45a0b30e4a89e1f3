"""The contract on the threads of one tenant, beside threads of others with the same ids."""

from typing import get_args

import pytest
from kit.contract import AsyncOwning, Variant, owning
from kit.postgres import granted, url_for, url_of_role
from kit.redis import url_for as redis_url_for

from threadkeep._core.engine.model import (
    HIDDEN,
    Batch,
    Change,
    CopyThread,
    DropThread,
    FindThreads,
    ForkThread,
    LeaseThread,
    Read,
    ReadCheckpoint,
    ReadDamage,
    ReadPath,
    ReadSegments,
    ReadSizes,
    ReadThread,
    ScanCheckpoints,
    Span,
    Words,
)
from threadkeep._core.engine.thread_entry import (
    CountThreads,
    ReadClock,
    ReadEntry,
    SearchThreads,
    ThreadEntry,
    ThreadQuery,
)
from threadkeep._core.engine.usage import ReadUsage
from threadkeep._core.tenants import LONGEST, prefix, tenant_of
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.postgres.backend import PostgresBackend
from threadkeep._stores.redis.backend import RedisBackend
from threadkeep._stores.sealed import SealedBackend
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep._stores.store_keys import StoreKeys
from threadkeep._stores.tenant import Names, for_tenant
from threadkeep.errors import ConflictError, InvalidArgumentError, StateError, ThreadExistsError
from threadkeep.keys import KeyRing
from threadkeep.testing import BackendContract, BlockingBackend
from threadkeep.testing.records import NOW, THREAD, checkpoint, segment, uid, write

KEYS = StoreKeys(KeyRing([b"k" * 32]))
ANY = Span(1, 0, 9)
TENANT = "acme"
NEIGHBOURS = ("acm", "acme ", "acme%20", "acme2", "zoo")  # names that begin alike


def filled(backend, threads=("", "a", "b", THREAD, "thread-2", "ä")):
    """Put threads with every kind of row."""
    batches = [
        Batch(
            thread,
            NOW,
            segments=(segment(0, 2, data=b"of another"),),
            checkpoints=(checkpoint(1, metadata='{"run_id": "r"}'), checkpoint(2, flags=HIDDEN)),
            writes=(write(1), write(7)),
            entry=ThreadEntry(thread, "active", NOW, NOW, labels=('"urgent"',)),
        )
        for thread in threads
    ]
    assert backend.commit_many(batches) == [None] * len(batches)


def everything(backend):
    (names,) = backend.fetch([FindThreads(None, 999, empty=True)])
    names = [name for name in names if not name.startswith(prefix(TENANT))]
    reads = [[ReadThread(one), ReadEntry(one), ReadSegments(one, (ANY,))] for one in names]
    return names, backend.fetch([read for some in reads for read in some])


class Beside:
    """One tenant's threads in a store that has other tenants, and threads without a tenant."""

    def store(self, folder):
        raise NotImplementedError

    def new_backend(self, folder):
        return self.tenant_of(self.store(folder), is_new=True)

    def tenant_of(self, store, *, is_new=False):
        for one in NEIGHBOURS if is_new else ():
            filled(for_tenant(store, Names(one)))
        if is_new:
            filled(store)
        before, close = everything(store), store.close

        def closed():
            if not is_closed:
                assert everything(store) == before, "rows of others were changed"
            is_closed.append(True)
            close()

        is_closed = []
        store.close = closed
        return self.opened(store)

    def opened(self, store):
        return owning(for_tenant(store, Names(TENANT)), store)


class TestMemory(Beside, BackendContract):
    def store(self, folder):
        return MemoryBackend()


class TestFile(Beside, Variant):
    def store(self, folder):
        return SqliteBackend(folder / "threads.db", synchronous="normal")

    def reopen(self, folder):
        return self.tenant_of(self.store(folder))


class TestPostgres(Beside, Variant):
    def store(self, folder):
        return PostgresBackend(url_for(folder), max_size=8)

    def reopen(self, folder):
        return self.tenant_of(self.store(folder))


class TestAwaitedPostgres(TestPostgres):
    def opened(self, store):
        return in_the_loop(store)


class TestPostgresRole(TestPostgres):
    """Row-level security gives the role all that the tenant's saver needs, and nothing else."""

    def store(self, folder):
        return PostgresBackend(url_for(folder, granted), max_size=8)

    def new_backend(self, folder):
        self.url = url_of_role(url_for(folder, granted), TENANT)
        return super().new_backend(folder)

    def opened(self, store):
        own = PostgresBackend(self.url, max_size=8)
        own.migrate()
        return owning(for_tenant(own, Names(TENANT)), owning(own, store))


class TestRedis(Beside, Variant):
    def store(self, folder):
        return RedisBackend(redis_url_for(folder))

    def reopen(self, folder):
        return self.tenant_of(self.store(folder))


class TestAwaitedRedis(Beside, Variant):
    def store(self, folder):
        return RedisBackend(redis_url_for(folder))

    def reopen(self, folder):
        return self.tenant_of(self.store(folder))

    def opened(self, store):
        return in_the_loop(store)


class TestSealed(Beside, Variant):
    overhead = 33

    def store(self, folder):
        return SealedBackend(MemoryBackend(), KEYS)


def in_the_loop(store):
    async def close():
        await store.asynchronous.close()
        store.close()

    async def make():
        return AsyncOwning(for_tenant(store, Names(TENANT)).asynchronous, close)

    return BlockingBackend(make)


# -- tenants beside each other -----------------------------------------------------------

ODD = (
    *("a", "a b", "a  b", "a.b", "a%", "a%20b", "a%2520b", "A", "a ", " a", "ä", "a\u0308", "a\0"),
    *("\0", "\n", "\x1f", "\x7f", "a/b", "%s", "\ud7ff", "\U0010ffff", "客户", "x" * LONGEST),
)
STORES = {
    "memory": lambda folder: MemoryBackend(),
    "sqlite": lambda folder: SqliteBackend(folder / "threads.db", synchronous="normal"),
    "postgres": lambda folder: PostgresBackend(url_for(folder), max_size=8),
    "redis": lambda folder: RedisBackend(redis_url_for(folder)),
}


def rows_of(number):
    """Rows that say whose they are."""
    mark = f"<{number}>"
    return {
        "segments": (segment(0, 2, data=mark.encode()),),
        "checkpoints": (
            checkpoint(1, metadata=f'{{"run_id": "r", "of": "{mark}"}}'),
            checkpoint(2, 1, metadata=f'{{"of": "{mark}"}}'),
        ),
        "writes": (write(1, body=mark.encode()), write(9, body=mark.encode())),
    }


@pytest.fixture(params=sorted(STORES))
def store(request, tmp_path):
    store = STORES[request.param](tmp_path)
    for number, name in enumerate(ODD):
        batches = [
            Batch(
                thread,
                NOW + number,
                entry=ThreadEntry(
                    thread, "active", NOW + number, NOW + number, labels=(f'"<{number}>"',)
                ),
                words=Words(("kettle",), whole=True)
                if store.indexes_messages and thread == "t"
                else None,
                **rows_of(number),
            )
            for thread in ("t", "t t", f"{number}")
        ]
        assert for_tenant(store, Names(name)).commit_many(batches) == [None] * 3
    yield store
    store.close()


ALL = ThreadQuery()
READS = (
    ReadCheckpoint("t", ""),
    ReadCheckpoint("t", "", uid(1)),
    ReadSegments("t", (ANY,)),
    ReadPath("t", "", uid(2), 9),
    ScanCheckpoints(None, None, None, None, {}, None, 99),
    ScanCheckpoints("t", None, None, None, {}, None, 99),
    ScanCheckpoints(None, "", uid(2), None, {}, (uid(2), "9z", ""), 99),
    ReadThread("t"),
    FindThreads(None, 99),
    FindThreads("9z", 99, ("r",)),
    FindThreads(None, 99, empty=True),
    ReadSizes(None, 99),
    ReadEntry("t"),
    SearchThreads(ALL, "updated_at", descending=True, after=None, limit=99),
    SearchThreads(ALL, "size", descending=False, after=(0, ""), limit=99),
    SearchThreads(ALL, "thread", descending=False, after=("", ""), limit=99),
    CountThreads(ALL),
    CountThreads(ThreadQuery(states=("active",))),
    ReadClock("t"),
    ReadDamage(),
)


def test_no_query_finds_words_of_another_tenant(store):
    if not store.indexes_messages:
        pytest.skip("no index of messages")
    first = SearchThreads(ALL, "thread", descending=False, after=None, limit=99)
    for number, name in enumerate(ODD):
        tenant, others = for_tenant(store, Names(name)), ["t t", f"{number}"]
        for query, found in (
            (ThreadQuery(words=("kettle",)), ["t", *others]),
            (ThreadQuery(words=("teapot",)), others),
            (ThreadQuery(unindexed=True), others),
        ):
            entries, count = tenant.fetch([first._replace(query=query), CountThreads(query)])
            assert sorted(one.thread for one in entries) == sorted(found)
            assert count == len(found)


def test_no_read_finds_rows_of_another_tenant(store):
    asked = {type(read) for read in READS} | {ReadUsage}  # (which is refused)
    assert asked == {*get_args(Read)}
    for number, name in enumerate(ODD):
        tenant = for_tenant(store, Names(name))
        replies = tenant.fetch(READS)
        with pytest.raises(KeyError):
            tenant.fetch([ReadUsage(NOW, NOW, 9)])
        for read, reply in zip(READS, replies, strict=True):
            text = repr(reply)
            others = [one for one in range(len(ODD)) if f"<{one}>" in text and one != number]
            assert others == [], read
            assert "threadkeep@" not in text, read
            assert (f"<{number}>" in text) == (type(read) in SHOWING), read
        assert [*map(len_of, READS, replies)] == COUNTS


SHOWING = {
    *(ReadCheckpoint, ReadSegments, ReadPath, ScanCheckpoints, ReadThread, ReadEntry),
    SearchThreads,
}
COUNTS = [1, 1, 1, 2, 6, 2, 2, 2, 3, 2, 3, 3, 1, 3, 3, 3, 3, 3, 1, 0]


def len_of(read, reply):
    if isinstance(read, ReadThread):
        return len(reply.checkpoints)
    if isinstance(read, ReadSizes):
        return len(reply.threads)
    if isinstance(read, ReadCheckpoint):
        return int(reply.found is not None)
    if isinstance(read, CountThreads | ReadClock):
        return reply if isinstance(read, CountThreads) else 1
    return len([reply] if isinstance(read, ReadEntry) else reply)


def test_no_change_reaches_rows_of_another_tenant(store):
    own = Names("a b")
    tenant = for_tenant(store, own)

    def others():
        (names,) = store.fetch([FindThreads(None, 999, empty=True)])
        names = [name for name in names if tenant_of(name) != "a b"]
        assert len(names) == 3 * (len(ODD) - 1)
        reads = [(ReadThread(one), ReadEntry(one), ReadSegments(one, (ANY,))) for one in names]
        return store.fetch([read for some in reads for read in some])

    before = others()
    entry = ThreadEntry("fork", "forked", NOW, NOW, origin=("t", uid(2)))
    (state,) = tenant.fetch([ReadCheckpoint("t", "")])
    changes = (
        Batch("t", NOW, checkpoints=(checkpoint(3, 2),), bump_generation=True),
        Batch("t", NOW, drop_segments=((1, 0, 2),), drop_checkpoints=(("", uid(1)),)),
        CopyThread("t", "copy", NOW),
        ForkThread("t", "fork", NOW, state.generation + 1, (("", uid(2)),), (), entry),
        DropThread("t t", NOW + 99),
        DropThread("2", 0, entry=None, rows=Batch("2", NOW, checkpoints=(checkpoint(5),))),
        DropThread("new", NOW, entry=entry._replace(thread="new")),
        LeaseThread("t", "take", "worker 1", 60_000_000, 3),
    )
    assert {type(one) for one in changes} == {*get_args(Change)}
    for change in changes:
        tenant.commit(change)
        assert others() == before, change
    with pytest.raises(ThreadExistsError) as caught:
        tenant.commit(CopyThread("fork", "t", NOW))
    assert caught.value.thread == "t"
    (fork,) = tenant.fetch([ReadEntry("fork")])
    assert (fork.thread, fork.origin) == ("fork", ("t", uid(2)))
    (found,) = tenant.fetch([SearchThreads(ThreadQuery(origin="t"), "thread", False, None, 9)])
    assert [one.thread for one in found] == ["fork", "new"]
    (stored,) = store.fetch([ReadEntry(own.stored("fork"))])
    assert stored.origin == (own.stored("t"), uid(2))


def test_the_store_itself_has_all_threads_by_their_stored_names(store):
    (names,) = store.fetch([FindThreads(None, 999)])
    assert len(names) == 3 * len(ODD)
    assert {tenant_of(name) for name in names} == {*ODD}


def test_values_shared_with_a_thread_of_another_tenant_are_seen():
    """The owner forked beyond a tenant: what the tenant then removes, the other might need."""
    store, own = MemoryBackend(), Names("a")
    tenant = for_tenant(store, own)
    tenant.commit(Batch("t", NOW, **rows_of(1)))
    entry = ThreadEntry("fork", "forked", NOW, NOW, origin=(own.stored("t"), uid(2)))
    store.commit(ForkThread(own.stored("t"), "fork", NOW, 0, (("", uid(2)),), (), entry))
    with pytest.raises(StateError) as caught:
        tenant.fetch([ReadThread("t")])
    assert caught.value.thread == "t"
    other = for_tenant(store, Names("b"))
    moved = entry._replace(thread=Names("b").stored("fork"))
    store.commit(Batch(moved.thread, NOW, entry=moved))
    (found,) = other.fetch([ReadEntry("fork")])
    assert found.origin is None


@pytest.mark.parametrize("name", ["", "x" * (LONGEST + 1), "ä" * LONGEST, "\ud800", None, 7, b"a"])
def test_invalid_names_are_refused(name):
    with pytest.raises(InvalidArgumentError, match="tenant"):
        Names(name)


def test_errors_name_no_thread_of_another_tenant():
    own, other = Names("a"), Names("b")
    for error, thread, message in (
        (ConflictError(thread=own.stored("t")), "t", ConflictError().message),
        (ConflictError(thread=other.stored("t")), None, ConflictError().message),
        (ConflictError(f"It is {own.stored('t')!r}.", thread="t"), None, "It is 't'."),
        (ConflictError(f"It is {other.stored('t')!r}.", hint="h"), None, ConflictError().message),
        (ConflictError("It.", hint=f"See {other.stored('t')!r}."), None, ConflictError().message),
    ):
        found = own.named(error)
        assert (found.thread, found.message) == (thread, message)
        assert "threadkeep@" not in str(found)
