"""The same answers as from LangGraph's stores: random operations as from `InMemoryStore`."""

import random
from contextlib import contextmanager
from uuid import uuid4

import psycopg
import pytest
from kit.backends import BACKENDS, url_of
from kit.postgres import url as postgres_url
from kit.selection import some
from kit.stores import INDEX, Operations, Reference, plain
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from psycopg.rows import dict_row

from threadkeep import KeyRing
from threadkeep.store import open_store


def _opened(name, folder, **options):
    if name == "memory":
        return open_store("memory://", **options)
    return open_store(url_of(name, folder), **options)


def _reference(name, **options):
    return Reference(like=name, **options)


@pytest.mark.parametrize("name", BACKENDS)
def test_operations_have_the_answers_of_the_reference(name, tmp_path):
    for seed in range(some(3, 60)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        operations = Operations(seed)
        reference = _reference(name, index=INDEX)
        with _opened(name, folder, index=INDEX) as store:
            store.setup()
            for step in range(40):
                ops = operations.batch()
                expected = plain(reference.batch(ops))
                found = plain(store.batch(ops))
                for op, ours, theirs in zip(ops, found, expected, strict=True):
                    assert ours == theirs, (seed, step, op)


@pytest.mark.parametrize("name", BACKENDS)
async def test_awaited_operations_have_them_too(name, tmp_path):
    operations = Operations(1000)
    reference = _reference(name, index=INDEX)
    async with _opened(name, tmp_path, index=INDEX) as store:
        await store.asetup()
        for _ in range(40):
            ops = operations.batch()
            assert plain(await store.abatch(ops)) == plain(reference.batch(ops)), ops


@pytest.mark.parametrize("is_sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("name", BACKENDS)
def test_tenants_beside_each_other_have_them_too(name, is_sealed, tmp_path):
    """Two tenants and the store itself, which sees the items of all."""
    index = None if is_sealed else INDEX
    keys = KeyRing.generate() if is_sealed else None
    with _opened(name, tmp_path, index=index, keys=keys) as store:
        store.setup()
        tenants = [store.for_tenant(tenant) for tenant in ("a", "ab")]
        sides = [
            (view, _reference(name, index=index), Operations(seed))
            for seed, view in enumerate(tenants)
        ]
        for step in range(60):
            view, reference, operations = sides[step % 2]
            ops = operations.batch()
            expected = plain(reference.batch(ops))
            for op, ours, theirs in zip(ops, plain(view.batch(ops)), expected, strict=True):
                assert ours == theirs, (step, op)
        found = [len(view.search((), limit=999)) for view in (*tenants, store)]
        assert found[0] + found[1] == found[2] > 9


# -- LangGraph's stores of the same databases ----------------------------------------------


@contextmanager
def _theirs(name):
    """LangGraph's store, and a function to call after each put of an item, with its number."""
    if name == "memory":
        yield InMemoryStore(), lambda *_: None
    elif name == "sqlite":  # (its times are seconds)
        with SqliteStore.from_conn_string(":memory:") as store:
            store.setup()
            update = "UPDATE store SET updated_at = ? WHERE prefix = ? AND key = ?"
            yield (
                store,
                lambda number, namespace, key: store.conn.execute(
                    update, (f"2026-01-01 00:00:{number:02}", ".".join(namespace), key)
                ),
            )
    else:
        postgres = pytest.importorskip("langgraph.store.postgres")
        with psycopg.connect(postgres_url(), autocommit=True, row_factory=dict_row) as connection:
            schema = f"theirs_{uuid4().hex}"
            connection.execute(f"CREATE SCHEMA {schema}")
            connection.execute(f"SET search_path TO {schema}")
            try:
                store = postgres.PostgresStore(connection)
                store.setup()
                yield store, lambda *_: None
            finally:
                connection.execute(f"DROP SCHEMA {schema} CASCADE")


# (RedisStore searches without an order)
@pytest.mark.parametrize("name", ["memory", "sqlite", "postgres"])
def test_searches_without_a_query_have_the_order_of_its_store(name, tmp_path):
    dice = random.Random(7)
    with _theirs(name) as (theirs, stamp), _opened(name, tmp_path) as ours:
        ours.setup()
        for number in range(60):
            namespace = ("u", dice.choice("ab")) if number % 3 else ("u",)
            key, value = dice.choice("klmnop"), {"odd": number % 2}
            if dice.random() < 0.15 and theirs.get(namespace, key):
                value = None
            for store in (theirs, ours):
                store.batch([PutOp(namespace, key, value)])
            stamp(number, namespace, key)
        for prefix in (("u",), ("u", "a"), ("u", "b"), ()):
            for options in ({}, {"limit": 3}, {"limit": 2, "offset": 3}, {"filter": {"odd": 1}}):
                found = [
                    [(item.namespace, item.key) for item in store.search(prefix, **options)]
                    for store in (theirs, ours)
                ]
                assert found[0] == found[1], (prefix, options)
                assert found[0]


# -- LangGraph's SqliteStore ---------------------------------------------------------------

VALUES = [
    {"user": {"name": "ann", "age": 30, "at": {"city": "Oslo"}}},
    {"user": {"name": "bob", "age": 9}, "flat": 1},
    {"user": "ann"},
    {"user": [{"name": "ann"}]},
    {},
]
PATHS = [
    {"user.name": "ann"},
    {"user.age": {"$gt": 9}},
    {"user.age": {"$lte": 9}, "flat": 1},
    {"user.at.city": "Oslo"},
    {"user.at.city": None},
    {"user.name.first": "ann"},
    {"user.0.name": "ann"},
    {"user.name": None},
]


@pytest.mark.parametrize("name", BACKENDS)
def test_filters_take_the_paths_of_its_sqlite_store(name, tmp_path):
    with SqliteStore.from_conn_string(":memory:") as theirs, _opened(name, tmp_path) as ours:
        for store in (theirs, ours):
            store.setup()
            for key, value in enumerate(VALUES):
                store.put(("a",), str(key), value)
        for wanted in PATHS:
            found = [
                sorted(item.key for item in store.search(("a",), filter=wanted))
                for store in (theirs, ours)
            ]
            assert found[0] == found[1], wanted


def test_a_field_of_the_very_name_comes_before_the_path():
    with open_store("memory://") as store:
        store.put(("a",), "literal", {"user.name": "ann", "user": {"name": "bob"}})
        store.put(("a",), "path", {"user": {"name": "ann"}})
        found = store.search(("a",), filter={"user.name": "ann"})
        assert [item.key for item in found] == ["literal", "path"]
        assert store.search(("a",), filter={"x": {"user.name": "ann"}}) == []


@pytest.mark.parametrize("kind", ["prefix", "suffix"])
def test_a_match_condition_that_is_a_text_matches_nothing(kind, caplog):
    ops = [
        ListNamespacesOp(match_conditions=(MatchCondition(kind, "public"),)),
        GetOp(("test", "public"), "k"),
    ]
    with SqliteStore.from_conn_string(":memory:") as sqlite, open_store("memory://") as ours:
        sqlite.setup()
        for store in (InMemoryStore(), sqlite, ours):
            store.put(("test", "public"), "k", {"x": 1})
            names, item = store.batch(ops)
            assert names == []
            assert item.value == {"x": 1}
    assert "'public' is a text" in caplog.text
