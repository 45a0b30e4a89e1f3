"""Caches of node results: the same contract in every store."""

import asyncio
import logging
import sqlite3
import threading
from collections import OrderedDict, deque
from random import Random
from time import monotonic, time_ns

import pytest
import redis as redis_py
from kit import redis as redis_kit
from kit.backends import BACKENDS, SHARED, url_of
from kit.selection import SEED
from langgraph.cache.memory import InMemoryCache as LangGraphCache
from langgraph.cache.sqlite import SqliteCache as LangGraphSqliteCache
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

import threadkeep
from threadkeep import cache as caches
from threadkeep._core.engine.snapshots import own_copy
from threadkeep._stores.caches import GetEntries, LeaseEntries, ReadUses, RemoveEntries, SetEntries
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.cache import NodeCache
from threadkeep.cache import cache as module
from threadkeep.errors import (
    ClosedError,
    InvalidArgumentError,
    NotOursError,
    NotSetUpError,
    OpenError,
    UnreachableError,
)

NS = ("writes", "node")
A, B, C = (NS, "key a"), (NS, "key b"), (NS, "key c")


def same(key):
    """An equal key of another task: LangGraph makes a text for each."""
    return key[0], own_copy(key[1])


SEALED = "sealed "


@pytest.fixture(params=["", SEALED], ids=["plain", "sealed"])
def face(request):
    return request.param


@pytest.fixture(params=BACKENDS)
def store(request, face, tmp_path):
    if request.param == "memory":
        return f"{face}memory://"
    return face + url_of(request.param, tmp_path)


def open_cache(store, **options):
    """Open a cache, with keys if the URL says so."""
    if store.startswith(SEALED):
        options["keys"] = threadkeep.KeyRing([b"k" * 32])
    return threadkeep.open_cache(store.removeprefix(SEALED), **options)


@pytest.fixture
def clock(monkeypatch):
    """The time in microseconds, as the caches see it."""
    times = [1_800_000_000_000_000]
    monkeypatch.setattr(module, "_now", lambda: times[0])
    return times


# -- as LangGraph's ----------------------------------------------------------------------


def test_answers_are_those_of_langgraphs_cache(store):
    draw, reference = Random(SEED), LangGraphCache()
    spaces = [("a",), ("a", "b"), ("ab",), (), ("a,b",), ("a\0", 'ü"')]
    values = [
        None,
        1,
        "x" * 5000,
        [["ch", {"a": 2.5}]],
        b"\0",
        {"s": {1, 2}},
    ]  # (LangGraph makes lists of tuples)
    with open_cache(store) as cache:

        def keys():
            return [(draw.choice(spaces), draw.choice("pqr")) for _ in range(draw.randrange(4))]

        for _ in range(120):
            match draw.randrange(6):
                case 0 | 1:
                    pairs = {
                        key: (draw.choice(values), draw.choice([None, 0, -1, 1000, 2000]))
                        for key in keys()
                    }
                    cache.set(pairs)
                    reference.set(pairs)
                case 2 if draw.random() < 0.3:
                    some = draw.choice([None, [], draw.sample(spaces, 2)])
                    cache.clear(some)
                    reference.clear(some)
                case _:
                    asked = keys()
                    found, expected = cache.get(asked), reference.get(asked)
                    assert found == expected
                    assert list(found) == list(expected)


async def test_async_variants(store):
    async with open_cache(store) as cache:
        await cache.asetup()
        await cache.aset({A: (1, None), B: (2, 60), (("x",), "a"): (3, None)})
        assert await cache.aget([A, B, C]) == {A: 1, B: 2}
        await cache.adelete([A, C])
        assert await cache.aget([A, B]) == {B: 2}
        await cache.aclear([NS])
        assert await cache.aget([B, (("x",), "a")]) == {(("x",), "a"): 3}
        await cache.aclear()
        assert await cache.aget([(("x",), "a")]) == {}
        assert await cache.aget([]) == {}


def test_values_are_whatever_a_node_returns_and_many_go_at_once(store):
    many = {(NS, f"{'k' * 5000}{n}"): ((n, "x" * n), None) for n in range(1200)}
    with open_cache(store) as cache:
        cache.set(many)
        assert cache.get(list(many)) == {key: value for key, (value, _) in many.items()}
        cache.clear([NS])
        assert not cache.get(list(many))


def test_writes_of_tasks_come_back_exactly(store):
    values = [
        deque([("a", [1, (2,)]), ("b", None)]),
        deque(),
        deque([("a", 1)], maxlen=2),
        deque([("a", 1, 2)]),
        deque(["ab"]),
        [("a", 1)],
        [],
    ]
    with open_cache(store) as cache:
        cache.set({(NS, str(n)): (value, None) for n, value in enumerate(values)})
        found = cache.get([(NS, str(n)) for n in range(len(values))])
        assert list(map(repr, found.values())) == list(map(repr, values))


# -- expiry and eviction -----------------------------------------------------------------


def stored(cache):
    """Return the number of entries in the store, including expired ones."""
    entries = cache._store.backend
    if entries.keys is not None:
        entries = entries.face.below
    if hasattr(entries, "_entries"):
        return len(entries._entries)
    if hasattr(entries, "_connections"):
        with entries._connections.reading() as db:
            return db.execute("SELECT count(*) FROM tk_cache").fetchone()[0]
    if hasattr(entries, "_server"):
        rows = entries._server.call(lambda session: session.rows("SELECT id FROM tk_cache"))
        return len(rows)
    if hasattr(entries.face, "_database"):
        with entries.face._database._source._pool.get().connection() as conn:
            name = entries.face._database.schema
            return conn.execute(f"SELECT count(*) FROM {name}.cache").fetchone()[0]
    client = entries.face._server._source._client()
    base = entries.face._base
    return client.zcard(base + b"used")


def test_what_has_expired_is_never_returned_and_is_removed(store, clock):
    with open_cache(store, max_entries=16) as cache:
        cache.set({A: (1, 0.05), B: (2, 1000), C: (3, None)})
        clock[0] += 50_000
        end = monotonic() + 5
        while A in cache.get([A]) and monotonic() < end:  # (Redis has a clock of its own)
            pass
        assert cache.get([A, B, C]) == {B: 2, C: 3}
        assert stored(cache) == 3
        cache.set({B: (2, 1000)})
        assert stored(cache) == 2


def test_the_least_recently_used_go_beyond_max_entries(store, clock):
    with open_cache(store, max_entries=3) as cache:
        for key in (A, B, C):
            clock[0] += 1000
            cache.set({key: (key[1], None)})
        clock[0] += 61_000_000
        cache.get([A])
        cache.set({(NS, "d"): ("d", None)})
        assert set(cache.get([A, B, C, (NS, "d")])) == {A, C, (NS, "d")}
        assert stored(cache) == 3


def test_and_beyond_max_bytes(store, clock):
    with open_cache(store, max_bytes=4000) as cache:
        for n in range(20):
            clock[0] += 1000
            cache.set({(NS, str(n)): (Random(n).randbytes(900), None)})
        left = cache.get([(NS, str(n)) for n in range(20)])
        assert [key[1] for key in left] == ["16", "17", "18", "19"]
        cache.set({A: (b"\xff" + Random(1).randbytes(9000), None)})
        assert A not in cache.get([A])


def test_a_full_cache_is_trimmed_once_in_a_while(monkeypatch):
    with open_cache("memory://", max_entries=320) as cache:
        trims, fetch = [], cache._store.backend.fetch

        def noted(reads):
            trims.extend(one for one in reads if isinstance(one, ReadUses))
            return fetch(reads)

        monkeypatch.setattr(cache._store.backend, "fetch", noted)
        for n in range(90):
            cache.set({(NS, str(n)): (n, None)})
        assert len(trims) == 18
        # (after the first one, and then every 320 / 64)


def test_a_read_writes_the_uses_of_a_minute(tmp_path, clock, monkeypatch):
    with open_cache(f"sqlite:///{tmp_path / 'c.db'}") as cache:
        cache.set(dict.fromkeys((A, B, C), (1, None)))
        changes = []
        monkeypatch.setattr(cache._store, "commit", changes.append)
        for key in (A, A, B, C):
            cache.get([key])
        assert changes == []
        clock[0] += 61_000_000
        cache.get([A])
        assert [set(each.ids) for each in changes] == [{module._id(key) for key in (A, B, C)}]


# -- values ------------------------------------------------------------------------------


class Xor:
    """A cipher that protects nothing."""

    def encrypt(self, plaintext):
        return "xor", bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, ciphername, ciphertext):
        return bytes(byte ^ 0x5A for byte in ciphertext)


def test_values_are_encrypted_by_a_serde_and_are_a_miss_for_another(tmp_path, caplog):
    url = f"sqlite:///{tmp_path / 'c.db'}"
    with open_cache(url, serde=EncryptedSerializer(Xor())) as cache:
        cache.set({A: ("a secret of someone", None)})
        assert cache.get([A]) == {A: "a secret of someone"}
    assert b"secret" not in (tmp_path / "c.db").read_bytes()
    with open_cache(url) as cache, caplog.at_level(logging.WARNING):
        assert cache.get([A]) == {}
        assert "Could not read a value of the cache" in caplog.text


def test_a_damaged_value_is_a_miss(tmp_path, caplog):
    with open_cache(f"sqlite:///{tmp_path / 'c.db'}", lease=60) as cache:
        cache.set({A: (1, None), B: (2, None)})
        with sqlite3.connect(tmp_path / "c.db") as db:
            db.execute("UPDATE tk_cache SET value = CAST(x'00' || value AS BLOB) WHERE rowid = 1")
        db.close()
        assert quickly(lambda: cache.get([A, B])) == {B: 2}
        assert "Could not read a value" in caplog.text
        cache.set({A: (1, None)})
        assert cache.get([A, B]) == {A: 1, B: 2}


def test_a_value_that_cannot_be_stored_is_logged_and_takes_nothing_else_with_it(store, caplog):
    with open_cache(store, lease=60) as cache, open_cache(store, lease=60) as other:
        assert cache.get([A, B]) == {}
        cache.set({A: (threading.Lock(), None), B: (2, None)})
        assert "Could not store a value in the cache" in caplog.text
        if "memory" not in store:
            assert other.get([A, B]) == {B: 2}  # (at once: the lease of A has ended)


def test_a_store_that_fails_costs_no_run(monkeypatch, caplog):
    with open_cache("memory://") as cache:
        cache.set({A: (1, None)})

        def fail(*_):
            raise UnreachableError

        for name in ("fetch", "commit"):
            monkeypatch.setattr(cache._store.backend, name, fail)
        assert cache.get([A]) == {}
        cache.set({A: (1, None)})
        assert "Could not read the cache" in caplog.text
        assert "Could not write to the cache" in caplog.text
        for call in (cache.clear, lambda: cache.delete([A])):
            with pytest.raises(UnreachableError):
                call()


# -- leases ------------------------------------------------------------------------------


@pytest.fixture(params=SHARED)
def pair(request, face, tmp_path):
    """Two caches on one store, as two processes have them."""
    url = face + url_of(request.param, tmp_path)
    with open_cache(url, lease=60) as one, open_cache(url, lease=60) as other:
        yield one, other


def in_thread(call, *args):
    """Begin a call in a thread; return a function that waits for its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call(*args)), daemon=True)
    thread.start()

    def result():
        thread.join(10)
        return results[0]

    return result


def quickly(call):
    begin = monotonic()
    result = call()
    assert monotonic() - begin < 5
    return result


def test_of_many_who_miss_a_key_one_computes_and_the_others_wait(pair):
    one, other = pair
    assert one.get([A]) == {}
    waiting = [in_thread(cache.get, [same(A)]) for cache in (one, other, other)]
    one.set({A: ("value", None)})
    assert [result() for result in waiting] == [{A: "value"}] * 3


async def test_who_waits_does_not_block_the_event_loop(pair):
    one, other = pair
    computed = []

    async def node(cache):
        key = same(A)
        found = await cache.aget([key])
        if not found:
            computed.append(cache)
            await asyncio.sleep(0.02)
            await cache.aset({key: ("value", None)})
            return "value"
        return found[A]

    assert await asyncio.gather(*map(node, [one, other] * 4)) == ["value"] * 8
    assert len(computed) == 1


def test_a_run_that_asks_again_does_not_wait_for_itself(pair):
    one, _ = pair
    key = same(A)
    assert one.get([key]) == {}
    assert quickly(in_thread(one.get, [key])) == {}  # the task's own key, in a thread of the run
    assert quickly(lambda: one.get([same(A), B])) == {}  # the same thread


def test_delete_and_clear_end_leases(pair):
    one, other = pair
    for end in (lambda: one.delete([A]), lambda: one.clear([NS]), one.clear):
        assert one.get([A]) == {}
        waiting = in_thread(other.get, [same(A)])
        end()
        assert waiting() == {}
        other.clear()


def test_a_run_that_ended_without_a_value_holds_up_nobody_in_its_process(pair):
    one, _ = pair
    assert in_thread(lambda: one.get([same(A)]))() == {}  # (its key is free again)
    assert quickly(in_thread(one.get, [same(A)])) == {}


@pytest.mark.parametrize("name", SHARED)
def test_a_lease_ends_after_its_time(name, tmp_path):
    url = url_of(name, tmp_path)
    with open_cache(url, lease=0.2) as one, open_cache(url, lease=0.2) as other:
        assert one.get([A]) == {}
        begin = monotonic()
        assert other.get([same(A)]) == {}
        assert 0.05 < monotonic() - begin < 5


def test_a_lease_is_of_the_first_one_that_asks(store):
    """Also if its change is repeated, as after a lost answer."""
    a, b, value = b"a" * 24, b"b" * 24, b"c" * 24
    with open_cache(store) as cache:
        cache.setup()
        rows, now = cache._store.blocking, time_ns() // 1000
        rows.commit(SetEntries(((value, b"value", None),), now))
        lease = LeaseEntries((a, b, value), b"owner 01", now, now + 60_000_000)
        for change in (lease, lease, lease._replace(owner=b"owner 02")):
            rows.commit(change)
            (found,) = rows.fetch([GetEntries((a, b, value), now)])
            assert {id_: owner for id_, (_, owner) in found.items() if owner} == dict.fromkeys(
                (a, b), b"owner 01"
            )
            assert found[value][0] is not None
        rows.commit(RemoveEntries((a,), b"owner 02"))
        rows.commit(RemoveEntries((b,), b"owner 01"))
        (found,) = rows.fetch([GetEntries((a, b), now)])
        assert set(found) == {a}


def test_nobody_waits_who_has_leases_by_the_same_call(pair):
    one, other = pair
    assert one.get([A]) == {}
    waiting = in_thread(other.get, [same(A), same(B)])
    assert quickly(in_thread(one.get, [same(B)])) == {}  # free: the other one waits for A
    one.set({A: (1, None), B: (2, None)})
    assert waiting() == {A: 1, B: 2}


# -- opening -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", BACKENDS)
def test_a_cache_uses_the_connections_of_a_saver(name, tmp_path):
    store = "memory://" if name == "memory" else url_of(name, tmp_path)
    with threadkeep.open_saver(store) as saver:
        saver.setup()
        with NodeCache(saver.backend, max_entries=5) as cache:
            cache.set({A: (1, None)})
            assert cache.get([A]) == {A: 1}
            assert asyncio.run(cache.aget([A])) == {A: 1}
        assert saver.get_tuple({"configurable": {"thread_id": "t"}}) is None  # still open


def test_names_and_signatures_are_those_of_langgraphs_caches(tmp_path):
    with caches.InMemoryCache() as cache:
        cache.set({A: (1, None)})
        assert cache.get([A]) == {A: 1}
    with caches.SqliteCache(path=str(tmp_path / "c.db")) as cache:
        cache.set({A: (1, None)})
    with caches.SqliteCache(path=str(tmp_path / "c.db")) as cache:
        assert cache.get([A]) == {A: 1}
    with redis_py.Redis.from_url(redis_kit.url()) as client:
        prefix = redis_kit.empty_prefix()
        with caches.RedisCache(client, prefix=prefix) as cache:
            cache.set({A: (1, None)})
        assert client.exists(f"{prefix}:cache:{{entries}}:used")
    with pytest.raises(ClosedError):
        cache.get([A])


def test_langgraphs_own_file_is_refused(tmp_path):
    theirs = LangGraphSqliteCache(path=str(tmp_path / "c.db"))
    theirs.set({A: (1, None)})
    with pytest.raises(NotOursError):
        caches.SqliteCache(path=str(tmp_path / "c.db"))
    assert theirs.get([A]) == {A: 1}
    theirs._conn.close()


def test_a_postgresql_schema_without_tables_is_no_miss(database):
    with caches.PostgresCache(database) as cache, pytest.raises(NotSetUpError, match="setup"):
        cache.get([A])
    with caches.PostgresCache(database) as cache:
        cache.setup()
        assert cache.get([A]) == {}


async def test_a_file_that_is_read_only_has_no_cache_or_its_values(tmp_path, caplog):
    path = str(tmp_path / "c.db")
    with threadkeep.SqliteSaver(path):
        pass
    backend = SqliteBackend(path, read_only=True)
    with pytest.raises(OpenError, match="has no cache"):
        await asyncio.to_thread(NodeCache, backend)
    assert await NodeCache(backend).aget([A]) == {}  # (opened at its first use; graphs continue)
    assert "has no cache" in caplog.text
    backend.close()


@pytest.mark.parametrize(
    "options",
    [
        {"lease": 0},
        {"lease": "1"},
        {"max_bytes": 0},
        {"max_entries": True},
        {"lesae": 1},
        {"serde": 1},
    ],
)
def test_invalid_options(options, tmp_path):
    with pytest.raises(InvalidArgumentError):
        open_cache(f"sqlite:///{tmp_path / 'c.db'}", **options)  # (and nothing stays open)


@pytest.mark.parametrize(
    "key", ["k", ("ns", "k"), (("ns",), 1), ((1,), "k"), (("\ud800",), "k"), (("ns",), "\ud800")]
)
def test_invalid_keys(key):
    with open_cache("memory://") as cache:
        for call in (
            lambda: cache.get([key]),
            lambda: cache.set(OrderedDict([(key, (1, None))])),
            lambda: cache.delete([key]),
        ):
            with pytest.raises(InvalidArgumentError):
                call()
        for ttl in ("1", True, float("nan")):
            with pytest.raises(InvalidArgumentError, match="Invalid ttl"):
                cache.set({A: (1, ttl)})
        with pytest.raises(InvalidArgumentError, match="Invalid namespace"):
            cache.clear(["ns"])
