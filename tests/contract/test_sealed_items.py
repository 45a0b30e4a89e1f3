"""Sealed items and cached results whose rows were changed beside the program."""

import asyncio
import logging
import sqlite3
from contextlib import closing

import psycopg
import pytest
from kit.backends import SHARED, url_of

import threadkeep
from threadkeep._core import tenants
from threadkeep._stores.items.records import SearchOptions
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.resealing import reseal_items
from threadkeep._stores.sealed import SealedBackend
from threadkeep._stores.sealed_items import SealedItems
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep._stores.sqlite.items import SqliteItems
from threadkeep._stores.store_keys import StoreKeys
from threadkeep.cache import NodeCache, PostgresCache
from threadkeep.errors import (
    InvalidArgumentError,
    TamperedDataError,
    WrongKeyError,
)
from threadkeep.keys import KeyRing
from threadkeep.store import AsyncPostgresStore, MemoryStore, Store

RING = KeyRing([b"k" * 32])
NS = ("users", "ann")
MARKER = "marked-text"
A, B = (("ns",), "a"), (("ns",), "b")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "items.db"


@pytest.fixture
def open_as(path):
    """Opens the file with keys, or without."""
    opened = []

    def open_it(ring=RING, *, plain=False):
        backend = SqliteBackend(path, synchronous="normal")
        if ring is not None:
            backend = SealedBackend(backend, StoreKeys(ring, allow_plaintext=plain))
        opened.append(backend)
        return backend

    yield open_it
    for backend in opened:
        backend.close()


@pytest.fixture
def store(open_as):
    with Store(open_as(), history=9) as store:
        yield store


def sql(path, statement):
    with closing(sqlite3.connect(path)) as db:
        assert db.execute(statement).rowcount == 1
        db.commit()


def test_files_hold_no_content(path, open_as, store):
    for value in ({"text": MARKER}, {"tuple": (MARKER,)}, {"text": MARKER * 2}):
        store.put(NS, MARKER, value)  # (names are readable)
    with NodeCache(open_as()) as cache:
        cache.set({A: (MARKER, None)})
        assert cache.get([A]) == {A: MARKER}
    assert [one.value for one in store.versions(NS, MARKER)] == [
        {"text": MARKER * 2},
        {"tuple": (MARKER,)},
        {"text": MARKER},
    ]
    with closing(sqlite3.connect(path)) as db:
        text = "\n".join(db.iterdump()).replace(f"'{MARKER}'", "")
    assert MARKER not in text
    assert MARKER.encode().hex() not in text.lower()


def test_long_values_are_compressed_first(path, store):
    store.put(NS, "x", {"text": "x" * 100_000})
    with closing(sqlite3.connect(path)) as db:
        ((size,),) = db.execute("SELECT length(value) FROM tk_items")
    assert size < 500
    assert store.get(NS, "x").value == {"text": "x" * 100_000}


def test_reads_restart_lifetimes(open_as):
    with Store(open_as(), ttl={"default_ttl": 1e-6, "refresh_on_read": True}) as store:
        store.put(NS, "x", {"n": 1})
        assert [store.get(NS, "x").value for _ in range(3)] == [{"n": 1}] * 3


OTHER = "(SELECT value FROM tk_items WHERE key = 'other')"


@pytest.mark.parametrize(
    "change",
    [
        f"value = {OTHER}",
        "value = substr(value, 1, length(value) - 1)",
        "value = x'00'",
        "value = '{}'",
        "updated = updated + 1",
        "updated = 'text'",
        "ttl = ttl + 1",
    ],
)
def test_an_item_that_was_changed_is_refused(path, store, caplog, change):
    store.put(NS, "x", {"n": 1}, ttl=9)
    store.put(NS, "other", {"n": 2})
    sql(path, f"UPDATE tk_items SET {change} WHERE key = 'x'")
    with pytest.raises(TamperedDataError, match=r"Item 'x' in \('users', 'ann'\)"):
        store.get(NS, "x")
    with caplog.at_level(logging.WARNING):
        for wanted in (None, {"n": {"$lt": 9}}):
            assert [item.key for item in store.search(NS, filter=wanted)] == ["other"]
    assert "Item 'x'" in caplog.text


@pytest.mark.parametrize(
    ("change", "namespace", "key"),
    [
        ("UPDATE tk_items SET key = 'y'", NS, "y"),
        ("UPDATE tk_items SET path = 'users.eve.'", ("users", "eve"), "x"),
    ],
)
def test_an_item_that_was_moved_is_refused(path, store, change, namespace, key):
    store.put(NS, "x", {"n": 1})
    sql(path, change)
    with pytest.raises(TamperedDataError):
        store.get(namespace, key)


@pytest.mark.parametrize(
    "change",
    [
        "version = version + 7",
        "updated = updated + 1",
        "replaced = replaced + 1",
        "patch = (SELECT patch FROM tk_item_versions WHERE version >> 18 = 1)",
        "patch = 'jtext'",
    ],
)
def test_a_version_that_was_changed_is_refused(path, store, change):
    for n in range(4):
        store.put(NS, "x", {"n": n})
    assert [one.value["n"] for one in store.versions(NS, "x")] == [3, 2, 1, 0]
    sql(path, f"UPDATE tk_item_versions SET {change} WHERE version >> 18 = 3")
    with pytest.raises(TamperedDataError, match=r"Version \d+ of item 'x' cannot be read"):
        store.versions(NS, "x")


@pytest.mark.parametrize(
    "change",
    [
        "value = (SELECT value FROM tk_cache WHERE rowid = 2) WHERE rowid = 1",
        "value = x'00' WHERE rowid = 1",
        "value = substr(value, 2) WHERE rowid = 1",
    ],
)
def test_a_cached_value_that_was_changed_is_a_miss(path, open_as, caplog, change):
    with NodeCache(open_as()) as cache:
        cache.set({A: (1, None), B: (2, None)})
        sql(path, f"UPDATE tk_cache SET {change}")
        assert cache.get([A, B]) == {B: 2}
        assert "Could not read a value of the cache" in caplog.text
        cache.set({A: (1, None)})
        assert cache.get([A, B]) == {A: 1, B: 2}


def test_keys_are_rotated_and_missing_ones_are_named(open_as, caplog):
    new = RING.rotated()
    with Store(open_as(), history=2) as store, NodeCache(open_as()) as cache:
        store.put(NS, "old", {"n": 0})
        store.put(NS, "old", {"n": 1})
        cache.set({A: (1, None)})
    with Store(open_as(new), history=2) as store, NodeCache(open_as(new)) as cache:
        assert [one.value["n"] for one in store.versions(NS, "old")] == [1, 0]
        store.put(NS, "new", {"n": 2})
        assert cache.get([A]) == {A: 1}
    only = new.without(RING.current)
    with Store(open_as(only), history=2) as store, NodeCache(open_as(only)) as cache:
        for call in (store.get, store.versions, lambda *_: store.search(NS)):
            with pytest.raises(WrongKeyError, match=RING.current):
                call(NS, "new")
        with pytest.raises(WrongKeyError, match=RING.current):
            store.put(NS, "new", {"n": 3})
        assert cache.get([A]) == {}
        assert RING.current in caplog.text


def test_plain_rows_are_refused_unless_the_keys_allow_them(open_as):
    values = {"json": {"n": 1}, "bytes": {"n": (1, 2)}}
    with Store(open_as(None), history=2) as store, NodeCache(open_as(None)) as cache:
        for key, value in values.items():
            store.put(NS, key, {"n": 0})
            store.put(NS, key, value)
        cache.set({A: (1, None)})
    with Store(open_as()) as store, NodeCache(open_as()) as cache:
        with pytest.raises(TamperedDataError, match="not encrypted"):
            store.get(NS, "json")
        assert store.search(NS) == []
    with Store(open_as(plain=True), history=2) as store, NodeCache(open_as(plain=True)) as cache:
        assert {item.key: item.value for item in store.search(NS)} == values
        assert cache.get([A]) == {A: 1}
        store.put(NS, "json", {"n": 2})
        assert [one.value for one in store.versions(NS, "json")] == [{"n": n} for n in (2, 1, 0)]
    with Store(open_as(None)) as store:
        for call in (store.get, lambda *_: store.search(NS)):
            with pytest.raises(WrongKeyError, match="no keys were given"):
                call(NS, "json")


@pytest.mark.parametrize("index", [{"search": "text"}, {"dims": 2, "embed": lambda texts: texts}])
def test_an_index_is_refused(open_as, index):
    with pytest.raises(InvalidArgumentError, match="reveal the texts"):
        Store(open_as(), index=index)


class Asked(StoreKeys):
    """Keys that remember for whom they were asked."""

    def __init__(self, ring):
        super().__init__(ring)
        self.names = []

    async def of(self, name="", **options):
        self.names.append(name)
        return await super().of(name, **options)

    async def writing(self, name="", **options):
        self.names.append(name)
        return await super().writing(name, **options)


def test_rows_of_a_tenant_have_its_own_keys():
    keys = Asked(RING)
    backend = SealedBackend(MemoryBackend(), keys)
    with Store(backend, history=2) as store, NodeCache(backend) as cache:
        view, results = store.for_tenant("acme"), cache.for_tenant("acme")
        for n in range(2):
            view.put(NS, "x", {"n": n})
        assert [one.value["n"] for one in view.versions(NS, "x")] == [1, 0]
        assert [item.value["n"] for item in store.search(())] == [1]
        results.set({A: (1, None)})
        assert results.get([A]) == {A: 1}
        assert set(keys.names) == {tenants.label("acme")}
        cache.set({A: (1, None)})
        assert keys.names[-1] == ""


# -- rotation ----------------------------------------------------------------------------


def many(store):
    """Put items with a history, one of them deleted, and one of a tenant."""
    for view in (store, store.for_tenant("acme")):
        for n in range(3):
            view.put(NS, "x", {"n": n, "tuple": (n,)}, ttl=60)
            view.put(NS, "gone", {"n": n})
        view.delete(NS, "gone")
    for n in range(250):
        store.put(("many",), str(n), {"n": n})


def everything(store):
    histories = [
        [one.value for one in view.versions(NS, key)]
        for view in (store, store.for_tenant("acme"))
        for key in ("x", "gone")
    ]
    found = store.search((), limit=999)
    return histories, {(*item.namespace, item.key): (item.value, item.updated_at) for item in found}


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("was_plain", [False, True])
def test_a_rotation_gives_all_items_the_current_key(name, was_plain, tmp_path):
    old, url = KeyRing.generate(), url_of(name, tmp_path)
    options = {} if was_plain else {"keys": old}
    with threadkeep.open_saver(url) as saver:
        saver.setup()
    with threadkeep.open_store(url, history=9, **options) as store:
        many(store)
        before = everything(store)
    new = old.rotated()
    with threadkeep.open_saver(url, keys=new, allow_plaintext="migrate") as saver:
        counted = saver.rotate_keys(dry_run=True)
        assert counted.changed >= 250 + 2 * (1 + 2 + 3)
        assert counted.key_bytes["" if was_plain else old.current] > 0
        assert saver.rotate_keys().changed >= counted.changed
        again = saver.rotate_keys(dry_run=True)
        assert (again.changed, list(again.key_bytes)) == (0, [new.current])
    with threadkeep.open_store(url, history=9, keys=new.without(old.current)) as store:
        assert everything(store) == before
        version = store.get(NS, "x").version
        store.put(NS, "x", {"n": 3}, if_version=version)
        assert [one.value["n"] for one in store.versions(NS, "x")] == [3, 2, 1, 0]


def test_a_rotation_leaves_an_item_that_was_put_meanwhile(path, open_as, store):
    store.put(NS, "x", {"n": 1})
    new = RING.rotated()
    backend = open_as(new)

    class Late(SqliteItems):
        def commit_many(self, changes):
            with Store(open_as(new)) as other:
                other.put(NS, "x", {"n": 2})
            return super().commit_many(changes)

    below = backend.face.below
    items = SealedItems(Late(below._connections, SearchOptions()), backend.face.keys)
    use, after = asyncio.run(reseal_items(items, None, dry_run=False))
    assert (use.changed, after) == (1, (False, None))
    with Store(backend) as again:
        assert again.get(NS, "x").value == {"n": 2}


def test_a_rotation_stops_at_an_item_that_does_not_open(path, store):
    store.put(NS, "x", {"n": 1})
    sql(path, "UPDATE tk_items SET updated = updated + 1")
    saver = threadkeep.SqliteSaver(path, keys=RING.rotated())
    with saver, pytest.raises(TamperedDataError, match=r"Item 'x' in \('users', 'ann'\)"):
        saver.rotate_keys()


def test_a_rotation_makes_no_tables_for_items(tmp_path):
    with threadkeep.SqliteSaver(tmp_path / "threads.db", keys=RING) as saver:
        assert saver.rotate_keys().changed == 0
    with closing(sqlite3.connect(tmp_path / "threads.db")) as db:
        assert "tk_items" not in "\n".join(db.iterdump())


# -- files -------------------------------------------------------------------------------


def test_exported_items_are_encrypted(tmp_path, open_as, store):
    file, other = tmp_path / "items", tmp_path / "others"
    for n in range(700):
        store.put((MARKER,), str(n), {"n": n})
    assert store.export_items(file) == store.export_items(other) == 700
    text = file.read_bytes()
    assert MARKER.encode() not in text
    with MemoryStore() as plain, pytest.raises(WrongKeyError, match=RING.current):
        plain.import_items(file)
    with Store(SealedBackend(MemoryBackend(), StoreKeys(RING.rotated()))) as copy:
        assert copy.import_items(file) == 700
        found = [item.value["n"] for item in copy.search((MARKER,), limit=999)]
        assert sorted(found) == [*range(700)]
    copy = Store(SealedBackend(MemoryBackend(), StoreKeys(KeyRing.generate())))
    with copy, pytest.raises(WrongKeyError, match=RING.current):
        copy.import_items(file)
    for wrong in (text[:-1], text[:100] + b"\0" + text[101:], text[:26] + other.read_bytes()[26:]):
        file.write_bytes(wrong)
        with pytest.raises(TamperedDataError):
            store.import_items(file)


def test_plain_files_are_imported(tmp_path, store):
    with MemoryStore() as plain:
        plain.put(NS, "x", {"n": 1})
        plain.export_items(tmp_path / "items")
    assert store.import_items(tmp_path / "items") == 1
    assert store.get(NS, "x").value == {"n": 1}


# -- connections of the program's own -----------------------------------------------------


async def test_an_async_connection_is_awaited(tmp_path):
    with threadkeep.open_saver(url_of("postgres", tmp_path)) as saver:
        saver.setup()
    url, _, schema = url_of("postgres", tmp_path).partition("?schema=")
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        options = {"keys": RING, "schema": schema}
        async with AsyncPostgresStore(conn, history=2, **options) as store:
            view = store.for_tenant("acme")
            for n in range(2):
                await view.aput(NS, "x", {"n": n})
            assert [one.value["n"] for one in await view.aversions(NS, "x")] == [1, 0]
            assert await store.aget(NS, "x") is None
            assert await asyncio.to_thread(view.get, NS, "x") is not None
        async with PostgresCache(conn, **options) as cache:
            await cache.for_tenant("acme").aset({A: (1, None)})
            assert await cache.for_tenant("acme").aget([A]) == {A: 1}
            assert await cache.aget([A]) == {}
