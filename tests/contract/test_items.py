"""Contract of the backends of items: each read and change of `_stores.items.records`, on all."""

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import cache
from struct import pack

import orjson
import psycopg
import pytest
from kit import mysql as mysql_server
from kit import postgres
from kit import redis as redis_server
from kit.postgres_server import SECONDS
from psycopg.conninfo import make_conninfo

from threadkeep._stores.items.filters import parse
from threadkeep._stores.items.records import (
    Earlier,
    EmbedItem,
    EmbedItems,
    FindItems,
    FindNamespaces,
    FindNearest,
    FindText,
    FindVersions,
    GetItems,
    ItemPut,
    PutItems,
    RefreshItems,
    ReplacePatches,
    SearchOptions,
    Vector,
    VersionRow,
)
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.mysql.backend import MysqlBackend
from threadkeep._stores.postgres import item_queries as postgres_queries
from threadkeep._stores.postgres.backend import PostgresBackend, opened
from threadkeep._stores.redis.backend import RedisBackend
from threadkeep._stores.sealed import SealedBackend
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep._stores.store_keys import StoreKeys
from threadkeep.errors import ConflictError, InvalidArgumentError, LockedError, OpenError
from threadkeep.keys import KeyRing

OPTIONS = SearchOptions(dims=2, text=True)
METRICS = ("cosine", "l2", "inner_product")

# -- the backends --------------------------------------------------------------------------


class Awaited:
    """The awaited twin of a backend, called from any thread; its event loop has its own."""

    def __init__(self, items):
        self.items = items
        self.newest_first = items.newest_first
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def __getattr__(self, name):
        method = getattr(self.items, name)
        return lambda *args: self.run(method(*args))

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SECONDS)

    def end(self, backend):
        self.run(backend.asynchronous.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(SECONDS)
        self.loop.close()


def plain(backend):
    return backend


def sealed(backend):
    return SealedBackend(backend, StoreKeys(KeyRing([b"k" * 32])))


@contextmanager
def memory(options, _, face=plain):
    yield face(MemoryBackend()).items(options)


@contextmanager
def sqlite(options, folder, face=plain):
    backend = face(SqliteBackend(str(folder / "items.db"), synchronous="normal"))
    yield backend.items(options)
    backend.close()


@cache
def tables():
    """A schema with all that searches need."""
    schema = f"tk_items_{os.getpid()}"
    postgres.make(schema)
    with over(schema) as backend:
        for metric in METRICS:
            backend.items(OPTIONS._replace(metric=metric)).migrate()
    return schema


@contextmanager
def over(schema, face=plain):
    backend = face(PostgresBackend(postgres.url(), schema=schema, max_size=4))
    try:
        yield backend
    finally:
        backend.close()


@contextmanager
def blocking_postgres(options, _, face=plain):
    with over(tables(), face) as backend:
        items = backend.items(options)
        items.erase(())
        yield items


@contextmanager
def awaited_postgres(options, _, face=plain):
    with over(tables(), face) as backend:
        items = backend.items(options)
        items.erase(())
        awaited = Awaited(items.asynchronous)
        try:
            yield awaited
        finally:
            awaited.end(backend)


@contextmanager
def blocking_redis(options, _, face=plain):
    backend = face(RedisBackend(redis_server.url(), prefix=redis_server.empty_prefix()))
    yield backend.items(options)
    backend.close()


@contextmanager
def awaited_redis(options, _, face=plain):
    backend = face(RedisBackend(redis_server.url(), prefix=redis_server.empty_prefix()))
    awaited = Awaited(backend.items(options).asynchronous)
    try:
        yield awaited
    finally:
        awaited.end(backend)
        backend.close()


@contextmanager
def mysql(options, folder, face=plain):
    backend = face(MysqlBackend(mysql_server.url_for(folder)))
    yield backend.items(options)
    backend.close()


BACKENDS = (
    memory,
    sqlite,
    mysql,
    blocking_postgres,
    awaited_postgres,
    blocking_redis,
    awaited_redis,
)


@pytest.fixture(params=BACKENDS, ids=lambda one: one.__name__)
def indexed(request, tmp_path):
    with request.param(OPTIONS, tmp_path) as found:
        yield found


@pytest.fixture(params=[plain, sealed], ids=["plain", "sealed"])
def face(request):
    return request.param


@pytest.fixture(params=BACKENDS, ids=lambda one: one.__name__)
def items(request, face, tmp_path):
    with request.param(SearchOptions(), tmp_path, face) as found:
        yield found


# -- helpers -------------------------------------------------------------------------------

A, B = ("a",), ("a", "b")


def ask(items, read):
    (answer,) = items.fetch([read])
    return answer


def put(items, *puts, now=1):
    items.commit(PutItems(tuple(puts), now))


def get(items, namespace, key, now=None):
    (row,) = ask(items, GetItems(((namespace, key),), now))
    return row


def versions(items, namespace, key):
    return [one.row for one in ask(items, FindVersions(99, (namespace, key)))]


def keys(rows):
    return [row.key for row in rows]


def vector(*numbers):
    return pack(f"<{len(numbers)}f", *numbers)


def with_vector(namespace, key, *vectors, value="{}"):
    all_of = tuple(Vector(f"field{n}", vector(*one)) for n, one in enumerate(vectors))
    return ItemPut(namespace, key, value, vectors=all_of)


# -- items ---------------------------------------------------------------------------------


def test_what_is_put_comes_back(items):
    odd = ["", "\0", "a\0b\1c", "\1", "ä'\"\\", "日本", "x" * 900]
    text = '{"b":1,"a":[1.0,1e17,-0.0,"\\u0001é"]}'
    put(items, *(ItemPut(A, key, text) for key in odd), ItemPut(B, "bytes", b"\0\xff"))
    rows = ask(items, GetItems((*((A, key) for key in odd), (B, "bytes"), (A, "none"))))
    assert [row and (row.namespace, row.key) for row in rows] == [
        *((A, key) for key in odd),
        (B, "bytes"),
        None,
    ]
    assert {row.value for row in rows[:-2]} == {text}
    assert rows[-2].value == b"\0\xff"
    assert get(items, ("ab",), "") is None


def test_an_item_that_is_put_again_keeps_its_place_and_creation(items):
    put(items, ItemPut(A, "x", "1", ttl=5), ItemPut(A, "y", "1"))
    first = get(items, A, "x")
    assert first[:5] == (A, "x", "1", 1, 1)
    assert (first.ttl, first.expires_at) == (5, 6)
    put(items, ItemPut(A, "x", "2"), now=7)
    again = get(items, A, "x")
    assert again[:5] == (A, "x", "2", 1, 7)
    assert (again.place, again.version > first.version) == (first.place, True)
    assert (again.ttl, again.expires_at) == (None, None)
    put(items, ItemPut(A, "x", None), ItemPut(A, "none", None), ItemPut(("new",), "x", None))
    assert get(items, A, "x") is None
    put(items, ItemPut(A, "x", "3"), now=9)
    assert get(items, A, "x").created_at == 9
    assert set(keys(ask(items, FindItems((), 9)))) == {"y", "x"}


def test_items_are_listed_in_the_order_of_their_places(items):
    put(items, ItemPut(("z",), "1", "{}"), ItemPut(B, "2", "{}"), ItemPut(("z",), "0", "{}"))
    put(items, ItemPut(("ab",), "4", "{}"), ItemPut(A, "3", "{}"), ItemPut(("z",), "1", "[]"))
    put(items, ItemPut(B, "1", "{}"))
    every = ask(items, FindItems((), 99))
    assert sorted(every, key=lambda row: row.place) == every
    assert len({row[:2] for row in every}) == 6
    assert [ask(items, FindItems((), 2, at)) for at in (0, 2, 4, 6)] == [
        *(every[:2], every[2:4], every[4:], []),
    ]
    for at, row in enumerate(every):
        assert ask(items, FindItems((), 2, after=row.place)) == every[at + 1 : at + 3]
        under = [one for one in every[at + 1 :] if one.namespace in (A, B)]
        assert ask(items, FindItems(A, 9, after=row.place)) == under
    assert ask(items, FindItems((), 0)) == []
    # A prefix is whole labels.
    assert set(keys(ask(items, FindItems(A, 9)))) == {"1", "2", "3"}
    assert {row.namespace for row in ask(items, FindItems(A, 9))} == {A, B}
    assert set(keys(ask(items, FindItems(B, 9)))) == {"1", "2"}
    assert ask(items, FindItems(("a", "b", "c"), 9)) == []
    assert set(ask(items, FindNamespaces(()))) == {("z",), A, B, ("ab",)}


def test_in_that_of_their_first_puts_if_that_of_updates_is_unknown(items):
    if items.newest_first:
        pytest.skip("LangGraph's store of this database lists the items updated last first")
    put(items, *(ItemPut(A, key, "{}") for key in "cab"), ItemPut(B, "z", "{}"))
    put(items, ItemPut(A, "c", "[]"), ItemPut(A, "A", "{}"))
    assert keys(ask(items, FindItems((), 99))) == ["c", "a", "b", "A", "z"]


def test_or_those_updated_last_first(items):
    if not items.newest_first:
        pytest.skip("LangGraph's store of this database has the order of first puts, or none")
    for now, namespace, key in ((5, A, "1"), (6, B, "2"), (7, A, "3"), (8, A, "1"), (8, B, "4")):
        put(items, ItemPut(namespace, key, "{}"), now=now)
    put(items, ItemPut(("z",), "5", "{}"), ItemPut(("z",), "6", "{}"), now=9)
    put(items, ItemPut(("z",), "7", "{}", times=(1, 2, None)), now=10)
    read = FindItems((), 99, newest=True)
    every = ask(items, read)
    assert keys(every) == ["6", "5", "4", "1", "3", "2", "7"]
    assert keys(ask(items, read._replace(prefix=A))) == ["4", "1", "3", "2"]
    assert keys(ask(items, read._replace(prefix=B, limit=1))) == ["4"]
    assert ask(items, read._replace(limit=2, offset=3)) == every[3:5]
    for at, row in enumerate(every):
        assert ask(items, read._replace(after=row.age, limit=2)) == every[at + 1 : at + 3]
    assert keys(ask(items, read._replace(prefix=A, after=every[2].age))) == ["1", "3", "2"]
    assert set(ask(items, FindNamespaces(A))) == {A, B}


def test_lifetimes(items):
    long, short = ItemPut(A, "long", "{}", ttl=10), ItemPut(A, "short", "{}", ttl=5)
    put(items, long, short, ItemPut(B, "ever", "{}"), now=0)
    reads = [GetItems(((A, "short"),), 5), FindItems((), 9, now=5), FindNamespaces((), 10)]
    (gone,), found, namespaces = items.fetch(reads)
    assert (gone, keys(found), namespaces) == (None, ["long", "ever"], [B])
    assert get(items, A, "short", 4).expires_at == 5
    items.commit(RefreshItems(((A, "short"), (B, "ever"), (A, "none")), 20))
    assert [row.expires_at for row in ask(items, FindItems((), 9))] == [10, 25, None]
    assert items.sweep(9, 9) == 0
    assert items.sweep(30, 1) == 1
    assert items.sweep(30, 9) == 1
    assert keys(ask(items, FindItems((), 9))) == ["ever"]


def test_a_sweep_of_some_namespaces(items):
    for namespace in (A, ("ab",), B, ("z",)):
        short = ItemPut(namespace, "short", "{}", ttl=5)
        put(items, short, ItemPut(namespace, "long", "{}", ttl=50), ItemPut(namespace, "x", "{}"))
    version = Earlier(VersionRow(1, 1, 1, False, b"old"), 9)
    put(items, ItemPut(B, "short", "{}", ttl=5, earlier=version))
    assert items.sweep(5, 9, A) == 0
    assert items.sweep(6, 1, A) == 1
    assert items.sweep(6, 9, A) == 1
    assert items.sweep(6, 9, A) == 0
    assert versions(items, B, "short") == []
    left = {row.namespace for row in ask(items, FindItems((), 99)) if row.key == "short"}
    assert left == {("ab",), ("z",)}
    assert items.sweep(99, 9, ("ab",)) == 2
    assert items.sweep(99, 9) == 4
    assert keys(ask(items, FindItems((), 99))) == ["x"] * 4


FILTERS = [
    {"n": 5},
    {"n": True},
    {"n": {"$gt": 2, "$lte": 10}},
    {"n": {"$lt": 0}},
    {"n": "5"},
    {"n": {"$gte": "b"}},
    {"n": {"m": {"$eq": 1.5}}},
    {"n": {"m": "x'y"}},
    {"it's \" a": {"$gt": 0}},
    {"n": "\0"},
]
VALUES = ['"5"', "5", "5.0", "true", "null", '"b"', '"ä"', "[1]", "-3", '{"m":1.5}', '{"m":"x\'y"}']


def filtered():
    """Values, each under a name."""
    values = {str(n): f'{{"n":{text}}}' for n, text in enumerate(VALUES)}
    return values | {"quotes": '{"it\'s \\" a":1}', "list": "[]", "bytes": b"?"}


def passing(found, store):
    """The names of the values that pass a filter."""
    return [key for key, value in store.items() if value == b"?" or passes(found, value)]


def test_hints_leave_out_nothing_that_passes(items):
    values = filtered()
    put(items, *(ItemPut(A, key, value) for key, value in values.items()))
    for given in FILTERS:
        found = parse(given)
        rows = ask(items, FindItems((), 99, where=found.hints))
        wanted = passing(found, values)
        assert sorted(row.key for row in rows if row.key in wanted) == sorted(wanted)
        assert ask(items, FindItems((), 2, 1, where=found.hints)) == rows[:2]  # no offset


def test_nor_in_searches(indexed):
    values = filtered()
    put(indexed, *(with_vector(A, key, (1, 0), value=value) for key, value in values.items()))
    for given in FILTERS:
        found = parse(given)
        nearest = ask(indexed, FindNearest((), vector(1, 0), 99, where=found.hints))
        assert set(passing(found, values)) <= {row.key for row, _ in nearest}


def passes(found, value):
    return found.holds(orjson.loads(value))


# -- searches ------------------------------------------------------------------------------

SCORES = {
    "cosine": [("same", 1), ("twice", 1), ("near", 0.6), ("zero", 0), ("across", 0)],
    "l2": [("same", 0), ("near", -(0.8**0.5)), ("zero", -1), ("twice", -1), ("across", -(2**0.5))],
    "inner_product": [("twice", 2), ("same", 1), ("near", 0.6), ("zero", 0), ("across", 0)],
}


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda one: one.__name__)
def test_nearest_vectors(backend, metric, tmp_path):
    with backend(OPTIONS._replace(metric=metric), tmp_path) as items:
        put(items, with_vector(A, "zero", (0, 0)), with_vector(A, "same", (-9, 0), (1, 0)))
        put(items, with_vector(B, "twice", (2, 0)), with_vector(A, "across", (0, 1)))
        put(items, with_vector(B, "near", (0.6, 0.8)), ItemPut(A, "none", "{}"))
        put(items, with_vector(("ab",), "other", (1, 0)), with_vector(B, "gone", (1, 0)))
        put(items, ItemPut(B, "gone", None), with_vector(A, "across", (0, 1)))
        found = ask(items, FindNearest(A, vector(1, 0), 9))
        scores = [(row.key, pytest.approx(score, abs=1e-6)) for row, score in found]
        assert sorted(scores) == sorted(SCORES[metric])
        assert sorted(found, key=lambda one: (-round(one.score, 6), one.row.place)) == found
        assert ask(items, FindNearest(A, vector(1, 0), 2)) == found[:2]
        near = [one for one in found if one.row.namespace == B]
        assert ask(items, FindNearest(B, vector(1, 0), 9)) == near


def test_searches_leave_out_what_has_expired(indexed):
    put(indexed, ItemPut(A, "x", "{}", 5, (Vector("", vector(1, 0)),), "word"), now=0)
    for read in (FindNearest((), vector(1, 0), 9), FindText(A, ("word",), 9)):
        assert [len(ask(indexed, read._replace(now=now))) for now in (4, 5)] == [1, 0]


def test_words(indexed):
    put(indexed, ItemPut(A, "one", "{}", words="cat dog it's a\\b"), ItemPut(A, "none", "{}"))
    put(indexed, ItemPut(B, "two", "{}", words="cat cat x-1"), ItemPut(("ab",), "x", "{}"))
    put(indexed, ItemPut(("ab",), "far", "{}", words="cat"), ItemPut(B, "gone", "{}", words="cat"))
    put(indexed, ItemPut(B, "gone", "{}", words="fish"), ItemPut(A, "late", "{}", words="cat"))
    put(indexed, ItemPut(A, "late", None))
    found = ask(indexed, FindText(A, ("cat",), 9))
    assert [row.key for row, _ in found] == ["two", "one"]
    assert found[0].score > found[1].score > 0
    assert ask(indexed, FindText(A, ("cat",), 1)) == found[:1]
    assert {row.key for row, _ in ask(indexed, FindText((), ("x-1", "dog", "none"), 9))} == {
        "one",
        "two",
    }
    assert ask(indexed, FindText((), ("c",), 9)) == []


def test_items_that_wait_for_their_vectors(indexed):
    put(indexed, ItemPut(A, "x", "{}", pending="[0]"), with_vector(A, "y", (1, 0)))
    put(indexed, ItemPut(A, "z", "{}", pending="\0"), ItemPut(A, "zz", "{}"))
    x, y, z, plain = ask(indexed, FindItems((), 9))
    waiting = FindItems((), 9, pending=True)
    assert (x.pending, y.pending, z.pending) == ("[0]", None, "\0")
    assert ask(indexed, waiting) == [x, z]
    assert ask(indexed, waiting._replace(limit=1)) == [x]
    assert ask(indexed, waiting._replace(after=x.place)) == [z]
    assert ask(indexed, waiting._replace(prefix=B)) == []
    assert ask(indexed, FindItems((), 9, bare=True)) == [x, z, plain]
    both = (Vector("a", vector(0, 1)), Vector("b", vector(1, 0)))
    stale = EmbedItem(A, "z", z.version + 1, both)
    indexed.commit(EmbedItems((stale, EmbedItem(A, "x", x.version, both))))
    assert ask(indexed, waiting) == [z]
    found = [row for row, _ in ask(indexed, FindNearest((), vector(1, 0), 9))]
    assert found == [x._replace(pending=None), y]
    indexed.commit(EmbedItems((EmbedItem(A, "z", z.version, ()),)))
    assert ask(indexed, waiting) == []


# -- versions ------------------------------------------------------------------------------


def test_earlier_versions(items):
    rows = [VersionRow(n, n, n + 1, n == 4, bytes([n])) for n in range(1, 5)]
    put(items, ItemPut(A, "x", "{}"), ItemPut(A, "y", "{}"))
    for row in rows:
        put(items, ItemPut(A, "x", None if row.deleted else "{}", earlier=Earlier(row, 3)))
    assert versions(items, A, "x") == rows[1:]
    assert versions(items, A, "y") == []
    assert versions(items, ("no",), "x") == []


def test_versions_of_all_items_get_other_patches(indexed):
    items = indexed
    rows = [VersionRow(n, n, n + 1, n == 4, b"%d" % n) for n in range(1, 5)]
    names = [(A, "x"), (A, "\0y\1"), (B, "x"), (("ä b",), "日本")]
    for namespace, key in names:
        for row in rows:
            put(
                items,
                ItemPut(namespace, key, None if row.deleted else "{}", earlier=Earlier(row, 9)),
            )
    every, page = [], ask(items, FindVersions(3))
    while page:
        every += page
        page = ask(items, FindVersions(3, after=page[-1]))
    assert sorted((one.namespace, one.key, one.row) for one in every) == sorted(
        (*name, row) for name in names for row in rows
    )
    assert items.erase(("ä b",)) == 0
    items.commit(ReplacePatches(tuple((one, b"new" + one.row.patch) for one in every)))
    for namespace, key in names[:-1]:
        new = [row._replace(patch=b"new" + row.patch) for row in rows]
        assert versions(items, namespace, key) == new
    assert versions(items, *names[-1]) == []


def test_a_put_that_expects_another_version_changes_nothing(items):
    put(items, ItemPut(A, "x", "1", expects=0))
    version = get(items, A, "x").version
    for wrong in (
        ItemPut(A, "x", "2", expects=0),
        ItemPut(A, "x", "2", expects=version + 1),
        ItemPut(A, "x", None, expects=version + 1),
        ItemPut(A, "none", "2", expects=version),
        ItemPut(("no",), "x", None, expects=version),
    ):
        with pytest.raises(ConflictError):
            put(items, ItemPut(A, "a", "2"), wrong, ItemPut(A, "z", "2"))
    assert [(row.key, row.value) for row in ask(items, FindItems((), 9))] == [("x", "1")]
    put(items, ItemPut(A, "x", "2", expects=version))
    put(items, ItemPut(A, "x", None, expects=get(items, A, "x").version))
    put(items, ItemPut(A, "x", "3", expects=0))


def test_changes_together_are_refused_alone(items):
    put(items, ItemPut(A, "x", "1", ttl=5))
    changes = [
        PutItems((ItemPut(A, "y", "1"), ItemPut(A, "z", "1")), 1),
        PutItems((ItemPut(A, "y", "2", expects=0), ItemPut(A, "a", "2")), 1),
        RefreshItems(((A, "x"),), 7),
        PutItems((ItemPut(A, "z", "2"),), 1),
    ]
    refusals = items.commit_many(changes)
    assert [type(one) for one in refusals] == [type(None), ConflictError, type(None), type(None)]
    found = [(row.key, row.value, row.expires_at) for row in ask(items, FindItems((), 9))]
    assert found == [("x", "1", 12), ("y", "1", None), ("z", "2", None)]
    plain = [PutItems((ItemPut(A, "y", "3"),), 8), PutItems((ItemPut(A, "y", "4"),), 9)]
    assert items.commit_many(plain) == [None, None]
    assert get(items, A, "y").value == "4"


def test_erasure(items):
    earlier = Earlier(VersionRow(1, 1, 1, False, b"old"), 9)
    for namespace in (A, B, ("ab",)):
        put(items, ItemPut(namespace, "x", "{}", earlier=earlier), ItemPut(namespace, "y", "{}"))
        put(items, ItemPut(namespace, "gone", "{}"))
        put(items, ItemPut(namespace, "gone", None, earlier=earlier))
    assert items.erase(B) == 2
    assert set(ask(items, FindNamespaces(()))) == {A, ("ab",)}
    assert items.erase(A) == 2
    for namespace, left in ((A, 0), (B, 0), (("ab",), 1)):
        for key in ("x", "gone"):
            assert len(versions(items, namespace, key)) == left
    assert items.erase(()) == 2
    put(items, ItemPut(B, "x", "{}"))
    assert keys(ask(items, FindItems(A, 9))) == ["x"]


def test_erasure_of_vectors_and_words(indexed):
    for namespace in (A, B, ("ab",)):
        put(indexed, ItemPut(namespace, "x", "{}", words="word"))
        put(indexed, with_vector(namespace, "y", (1, 0)))
    assert indexed.erase(A) == 4
    found = (FindNearest((), vector(1, 0), 9), FindText((), ("word",), 9))
    for rows in indexed.fetch(found):
        assert [row.namespace for row, _ in rows] == [("ab",)]


def test_writers_of_the_same_keys(items):
    """They neither wait for each other for ever, nor lose what one of them counted."""
    names = [f"key{n}" for n in range(8)]

    def count(order):
        mine = [names[at] for at in order]
        for turn in range(6):
            put(items, *(ItemPut((f"new{turn}",), key, "{}") for key in mine))
            put(items, *(ItemPut((f"new{turn}",), key, None) for key in mine))
            while not add(items, mine):
                pass
            with suppress(LockedError):  # it waits for others a moment only
                items.commit(RefreshItems(tuple((A, key) for key in mine), 5))

    orders = (range(8), range(7, -1, -1), (3, 7, 1, 5, 0, 6, 2, 4))
    with ThreadPoolExecutor(len(orders)) as pool:
        list(pool.map(count, orders))
    assert {row.value for row in ask(items, FindItems(A, 99))} == {"18"}


def add(items, names):
    rows = ask(items, GetItems(tuple((A, key) for key in names)))
    puts = [
        ItemPut(A, key, str(int(row.value) + 1 if row else 1), expects=row.version if row else 0)
        for key, row in zip(names, rows, strict=True)
    ]
    try:
        put(items, *puts)
    except ConflictError:
        return False
    return True


# -- PostgreSQL ----------------------------------------------------------------------------


def test_the_index_finds_as_many_as_there_are(tmp_path, monkeypatch):
    """Matches that the index leaves out: other namespaces, filters, vectors of the same item."""
    monkeypatch.setattr(postgres_queries, "_EXACT", 10)
    with blocking_postgres(OPTIONS, tmp_path) as items:
        many = [with_vector(("far", str(n % 7)), str(n), (1, n / 900)) for n in range(900)]
        put(items, *many, with_vector(A, "twenty", *((1, -n / 99) for n in range(1, 21))))
        put(items, *(with_vector(A, str(n), (-1, -n), value=f'{{"n":{n}}}') for n in range(30)))
        found = ask(items, FindNearest((), vector(1, 0), 5))
        assert keys(row for row, _ in found) == ["0", "1", "2", "3", "4"]
        assert len(ask(items, FindNearest(A, vector(1, 0), 40))) == 31
        hints = parse({"n": {"$lt": 20}}).hints
        assert len(ask(items, FindNearest(A, vector(1, 0), 40, where=hints))) == 20
        assert len(ask(items, FindNearest((), vector(1, 0), 1000))) == 931


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_changes_need_no_isolation_level(level):
    """As a role may have another default: changes that meet others are repeated."""
    options = f"-c default_transaction_isolation={level.replace(' ', chr(92) + ' ')}"
    url = make_conninfo(postgres.url(), options=options)
    with closing(PostgresBackend(url, schema=tables(), max_size=4)) as backend:
        items = backend.items(OPTIONS)
        items.erase(())
        test_a_put_that_expects_another_version_changes_nothing(items)
        items.erase(())
        test_writers_of_the_same_keys(items)


@contextmanager
def empty(database, **options):
    backend = PostgresBackend(database, max_size=1)
    try:
        yield backend.items(SearchOptions(**options))
    finally:
        backend.close()


def test_a_database_without_pgvector_says_what_is_missing(own_server, database):
    name = database.rpartition("/")[2]
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE app_{name} LOGIN")
        admin.execute(f"GRANT CREATE ON DATABASE {name} TO app_{name}")
    app = own_server.url(user=f"app_{name}", database=name)
    with empty(app, dims=2) as items:
        with pytest.raises(OpenError, match=r"pgvector(.|\n)*apt install(.|\n)*CREATE EXTENSION"):
            items.migrate()
        put(items, ItemPut(A, "x", "{}"))  # all else works
        assert get(items, A, "x").value == "{}"
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("CREATE EXTENSION vector")
    with empty(app, dims=2, text=True) as items:
        items.migrate()
        items.migrate()
        put(items, with_vector(A, "x", (1, 0)))
        assert len(ask(items, FindNearest((), vector(1, 0), 9))) == 1


def test_tables_for_other_dimensions_say_so(database):
    with empty(database, dims=2) as items:
        items.migrate()
        put(items, with_vector(A, "x", (1, 0)))
    with empty(database, dims=3) as items:
        for call in (
            items.migrate,
            lambda: put(items, with_vector(A, "y", (1, 0, 0))),
            lambda: ask(items, FindNearest((), vector(1, 0, 0), 9)),
        ):
            with pytest.raises(InvalidArgumentError, match=r"dims: 3(.|\n)*have 2"):
                call()
        assert get(items, A, "y") is None


@pytest.mark.parametrize("dims", [2001, 4001])
def test_many_dimensions(database, dims, monkeypatch):
    monkeypatch.setattr(postgres_queries, "_EXACT", 0)
    with empty(database, dims=dims) as items:
        items.migrate()
        puts = [with_vector(A, str(n), (1, n, *[0] * (dims - 2))) for n in range(3)]
        put(items, *puts)
        found = ask(items, FindNearest((), vector(1, *[0] * (dims - 1)), 2))
        assert keys(row for row, _ in found) == ["0", "1"]


async def test_a_pool_of_the_programs_own_is_awaited():
    async with await psycopg.AsyncConnection.connect(postgres.url(), autocommit=True) as conn:
        items = opened(conn, schema=tables()).items(OPTIONS)
        await items.commit(PutItems((ItemPut(("given",), "x", "{}"),), 1))
        assert await items.erase(("given",)) == 1
