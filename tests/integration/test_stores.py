"""Stores of items, on every backend: lifetimes, conditions, history, embeddings, files."""

import asyncio
import re
import sqlite3
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from kit.backends import BACKENDS, SHARED, url_of
from kit.postgres import empty_schema
from kit.postgres import url as postgres_url
from kit.put_back import copy_rows
from kit.stores import DIMS, INDEX, embed
from langchain_core.messages import AIMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore, GetOp, InvalidNamespaceError, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy
from psycopg_pool import AsyncConnectionPool

from threadkeep import open_all, open_saver
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep._stores.sqlite.maintenance import back_up, restore
from threadkeep.errors import (
    ClosedError,
    CodecError,
    ConflictError,
    CorruptionError,
    EmbeddingError,
    InvalidArgumentError,
    ThreadExistsError,
    UnserializableError,
)
from threadkeep.store import (
    AsyncPostgresStore,
    AsyncRedisStore,
    AsyncSqliteStore,
    SqliteStore,
    Store,
    open_store,
)
from threadkeep.store import InMemoryStore as InMemoryStoreOfOurs

NS = ("users", "1")
MINUTE = 60_000_000


@pytest.fixture(params=BACKENDS)
def opened(request, tmp_path):
    """A function that opens the store of this test with some options."""
    stores = []

    def _open(**options):
        name = request.param
        url = "memory://" if name == "memory" else url_of(name, tmp_path)
        store = open_store(url, **options)
        stores.append(store)
        store.setup()
        return store

    yield _open
    for store in stores:
        store.close()


@pytest.fixture
def shared(opened, request):
    """As `opened`, of stores that several objects have in common."""
    if request.node.callspec.params["opened"] not in SHARED:
        pytest.skip("in memory")
    return opened


class Clock:
    """A time that stands still, in microseconds."""

    def __init__(self, store):
        self.now = store._engine.now()
        object.__setattr__(store._engine, "now", lambda: self.now)

    def passes(self, minutes):
        self.now += round(minutes * MINUTE)


# -- lifetimes -----------------------------------------------------------------------------


def test_a_read_lets_a_lifetime_begin_anew(opened):
    store = opened(ttl={"default_ttl": 10, "omit_expired": True})
    clock = Clock(store)
    store.put(NS, "read", {"n": 1})
    store.put(NS, "searched", {"n": 2})
    store.put(NS, "left", {"n": 3})
    store.put(NS, "long", {"n": 4}, ttl=100)
    store.put(NS, "ever", {"n": 5}, ttl=None)
    clock.passes(6)
    assert store.get(NS, "read").value == {"n": 1}
    assert store.get(NS, "left", refresh_ttl=False).value == {"n": 3}
    assert [item.key for item in store.search(NS, filter={"n": 2})] == ["searched"]
    clock.passes(6)
    found = {item.key for item in store.search(NS, refresh_ttl=False)}
    assert found == {"read", "searched", "long", "ever"}
    clock.passes(5)
    assert store.get(NS, "read") is None
    assert store.sweep_ttl() == 3
    assert {item.key for item in store.search(NS)} == {"long", "ever"}


def test_what_has_expired_is_there_until_it_is_swept(opened):
    store = opened()
    clock = Clock(store)
    store.put(NS, "a", {"n": 1}, ttl=1)
    clock.passes(2)
    assert store.get(NS, "a", refresh_ttl=False) is not None
    assert store.list_namespaces() == [NS]
    assert store.sweep_ttl() == 1
    assert store.get(NS, "a") is None
    assert store.list_namespaces() == []


def test_expired_items_are_left_out_of_listings_of_namespaces(opened):
    store = opened(ttl={"omit_expired": True}, index=INDEX)
    clock = Clock(store)
    store.put(NS, "a", {"text": "x"}, ttl=1)
    store.put(("users", "2"), "a", {"text": "x"})
    clock.passes(2)
    assert store.list_namespaces() == [("users", "2")]
    assert [item.namespace for item in store.search((), query="x")] == [("users", "2")]


def test_a_sweeper_removes_in_the_background(opened):
    store = opened()
    store.put(NS, "a", {"n": 1}, ttl=0.00001)
    swept = threading.Event()
    backend = store._store.backend
    sweep = backend.sweep
    backend.sweep = lambda *arguments: (sweep(*arguments), swept.set())[0]
    running = store.start_ttl_sweeper(0.0005)
    assert swept.wait(20)
    running.cancel()
    assert store.start_ttl_sweeper(60) is not running
    assert store.stop_ttl_sweeper()
    assert store.get(NS, "a") is None
    with pytest.raises(InvalidArgumentError, match="Invalid sweep_interval_minutes: -1"):
        store.start_ttl_sweeper(-1)


def test_a_swept_namespace_is_gone_unless_it_has_versions(opened):
    store = opened(history=2)
    clock = Clock(store)
    for number in range(3):
        store.put(("s", str(number)), "a", {"n": 1}, ttl=1)
    store.put(("s", "1"), "b", {"n": 1})
    store.put(("s", "2"), "b", {"n": 1})
    store.delete(("s", "2"), "b")
    clock.passes(2)
    assert store.sweep_ttl() == 3
    assert store.list_namespaces() == [("s", "1")]
    assert len(store.versions(("s", "2"), "b")) == 1
    store.put(("s", "0"), "a", {"n": 2})
    assert {item.namespace for item in store.search(("s",))} == {("s", "1"), ("s", "0")}


@pytest.mark.parametrize(
    "ttl", [{"default_ttl": 0}, {"default_ttl": "1"}, {"omit_expired": 1}, {"minutes": 3}, 5]
)
def test_a_ttl_that_cannot_be_is_refused(ttl):
    with pytest.raises(InvalidArgumentError):
        open_store("memory://", ttl=ttl)


# -- conditions and history ------------------------------------------------------------------


def test_a_put_on_a_condition_is_refused_where_another_came_first(opened):
    store = opened()
    store.put(NS, "a", {"n": 1}, if_version=0)
    first = store.get(NS, "a")
    store.put(NS, "a", {"n": 2}, if_version=first.version)
    for version in (0, first.version):
        with pytest.raises(ConflictError, match=r"'a' in \('users', '1'\)"):
            store.put(NS, "a", {"n": 3}, if_version=version)
        with pytest.raises(ConflictError):
            store.delete(NS, "a", if_version=version)
    with pytest.raises(ConflictError):
        asyncio.run(store.aput(NS, "a", {"n": 3}, if_version=first.version))
    store.delete(NS, "a", if_version=store.get(NS, "a").version)
    store.put(NS, "a", {"n": 4})
    with pytest.raises(ConflictError):  # (versions of a life before do not come again)
        store.put(NS, "a", {"n": 5}, if_version=first.version)
    assert store.get(NS, "a").value == {"n": 4}
    assert store.search(NS)[0].version == store.get(NS, "a").version


def test_a_lost_version_does_not_come_again(shared, request, tmp_path):
    one, other = shared(), shared()
    one.put(NS, "a", {"n": 1})
    put_back = copy_rows(request.node.callspec.params["opened"], tmp_path, None)
    one.put(NS, "a", {"n": 2})
    lost = one.get(NS, "a")
    put_back()
    assert other.get(NS, "a").version < lost.version
    other.put(NS, "a", {"n": 3})
    assert one.get(NS, "a").version != lost.version
    with pytest.raises(ConflictError):
        one.put(NS, "a", {"n": 4}, if_version=lost.version)
    with pytest.raises(ConflictError):
        one.delete(NS, "a", if_version=lost.version)
    assert one.get(NS, "a").value == {"n": 3}


async def test_counting_by_conditions_loses_no_step(shared):
    stores = [shared(), shared()]
    await stores[0].aput(NS, "a", {"n": 0})

    async def count(store):
        for _ in range(5):
            while True:
                item = await store.aget(NS, "a")
                try:
                    await store.aput(NS, "a", {"n": item.value["n"] + 1}, if_version=item.version)
                except ConflictError:
                    continue
                break

    await asyncio.gather(*[count(store) for store in stores for _ in range(2)])
    assert (await stores[0].aget(NS, "a")).value == {"n": 20}
    for store in stores:
        await store.aclose()


def test_history_has_the_versions_of_an_item(opened):
    store = opened(history=3)
    values = [{"n": n, "text": "the same long text " * 20, "set": {n}} for n in range(6)]
    for value in values:
        store.put(NS, "a", value)
    found = store.versions(NS, "a")
    assert [one.value for one in found] == values[:1:-1]
    assert found[0].replaced_at is None
    assert [one.replaced_at for one in found[1:]] == [one.updated_at for one in found[:-1]]
    store.delete(NS, "a")
    store.put(NS, "a", {"n": "again"})
    found = asyncio.run(store.aversions(NS, "a"))
    assert [one.value for one in found] == [{"n": "again"}, *values[:2:-1]]
    assert [one.deleted for one in found] == [False, True, False, False]
    store.put(NS, "b", {})
    assert len(store.versions(NS, "b")) == 1
    assert store.versions(NS, "c") == []


def test_a_put_without_history_is_missing_there(shared):
    with shared(history=5) as store, shared() as other:
        store.put(NS, "a", {"n": 1})
        store.put(NS, "a", {"n": 2})
        other.put(NS, "a", {"n": 3})
        first, *earlier = store.versions(NS, "a")
        assert first.value == {"n": 3}
        assert [one.value for one in earlier] in ([], [{"n": 1}])  # (those that can be read)
        store.put(NS, "a", {"n": 4})
        assert [one.value["n"] for one in store.versions(NS, "a")][:2] == [4, 3]


def test_puts_of_many_threads_get_through_with_history(opened):
    store = opened(history=100)

    def puts(name):
        for n in range(5):
            store.put(NS, "a", {"n": f"{name}-{n}"})

    threads = [threading.Thread(target=puts, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.value["n"] for one in store.versions(NS, "a")}) == 20


def test_an_expired_item_is_no_item(opened):
    store = opened(ttl={"omit_expired": True}, history=3)
    clock = Clock(store)
    store.put(NS, "a", {"n": 1}, ttl=1)
    with pytest.raises(ConflictError):
        store.put(NS, "a", {"n": 2}, if_version=0)
    clock.passes(2)
    assert store.versions(NS, "a") == []
    store.put(NS, "a", {"n": 2}, if_version=0)
    assert [one.value["n"] for one in store.versions(NS, "a")] == [2, 1]


# -- values ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        {"a": (1, 2), "b": {3}, "c": datetime(2026, 1, 1, tzinfo=UTC)},
        {"a": float("inf"), "b": 2**70, "c": -0.5},
        {"a": 'nul \0, quote ", \\u0000', "b": {"deep": [{"er": None}]}},
        {"a": b"bytes", 'k"ey': 1, "": 2, "ключ": "значение"},
        {},
    ],
)
def test_values_come_back_as_they_were(opened, value):
    store = opened()
    store.put(NS, "k", value | {"m": 1})
    store.put(NS, "other\0'key", {"m": 2})
    found = store.get(NS, "k").value
    assert found == value | {"m": 1}
    assert {key: type(one) for key, one in found.items()} == {
        key: type(one) for key, one in (value | {"m": 1}).items()
    }
    found = store.search(NS, filter={"m": {"$gte": 1}})
    assert {item.key for item in found} == {"k", "other\0'key"}
    items = store.batch([GetOp(NS, "k"), GetOp(NS, "other\0'key")])
    assert [item.value["m"] for item in items] == [1, 2]


@pytest.mark.parametrize(
    "key", ["a b", "a.b", "a\tb", 'a"b', "a\\b", "$a", "ä", "\u2028", "\ud800", "x\0y"]
)
def test_filters_find_any_key(opened, key):
    store = opened()
    store.put(NS, "k", {key: 1, "x": {key: "y"}})
    if not key.startswith("$"):
        assert [item.key for item in store.search(NS, filter={key: 1})] == ["k"]
        assert [item.key for item in store.search(NS, filter={"x": {key: "y"}})] == ["k"]
        assert store.search(NS, filter={key: {"$gt": 1}}) == []


def test_a_batch_with_an_invalid_operation_does_nothing(opened):
    store = opened()
    for bad, error in (
        (PutOp(NS, "b", {"x": object()}), UnserializableError),
        (PutOp(("a.b",), "b", {"x": 1}), InvalidNamespaceError),
        (PutOp(NS, 5, {"x": 1}), InvalidArgumentError),
        (PutOp(NS, "", {"x": 1}), InvalidArgumentError),
        (PutOp("users", "a", {"x": 1}), InvalidNamespaceError),
        (PutOp(NS, "b", {"x": 1}, None, -1), InvalidArgumentError),
        (SearchOp(NS, {"x": {"$like": "y"}}), InvalidArgumentError),
        (SearchOp(NS, limit=-1), InvalidArgumentError),
    ):
        with pytest.raises(error):
            store.batch([PutOp(NS, "a", {"x": 1}), bad])
    assert store.search(()) == []


async def test_one_of_several_awaited_puts_that_fails_leaves_the_others(opened):
    store = opened()
    puts = [store.aput(NS, str(n), {"n": object() if n == 2 else n}) for n in range(4)]
    results = await asyncio.gather(*puts, return_exceptions=True)
    assert [type(result) for result in results] == [type(None)] * 2 + [
        UnserializableError,
        type(None),
    ]
    assert {item.key for item in await store.asearch(NS)} == {"0", "1", "3"}
    await store.aclose()


def test_an_encrypted_store_tells_nothing_and_can_be_searched(tmp_path):
    key = EncryptedSerializer.from_pycryptodome_aes(key=b"0" * 16)
    file = tmp_path / "items.db"
    with SqliteStore(file, serde=key, history=2) as store:
        store.put(NS, "a", {"secret": "marmalade", "n": 1})
        store.put(NS, "a", {"secret": "marmalade", "n": 2})
        assert [item.value["n"] for item in store.search(NS, filter={"secret": "marmalade"})] == [2]
        assert [one.value["n"] for one in store.versions(NS, "a")] == [2, 1]
    assert b"marmalade" not in file.read_bytes()
    other = EncryptedSerializer.from_pycryptodome_aes(key=b"1" * 16)
    with SqliteStore(file, serde=other) as store, pytest.raises(CodecError):
        store.get(NS, "a")
    with pytest.raises(InvalidArgumentError, match="encrypt"):
        SqliteStore(file, serde=key, index=INDEX)


# -- meaning and words -----------------------------------------------------------------------


class Model:
    """An embedding function that counts its calls, and fails on request."""

    def __init__(self):
        self.calls = []
        self.fails = False

    def __call__(self, texts):
        self.calls.append(list(texts))
        if self.fails:
            raise RuntimeError("no model today")
        return embed(texts)


def test_a_failing_model_loses_no_put(opened, caplog):
    model = Model()
    store = opened(index=INDEX | {"embed": model})
    store.put(NS, "before", {"text": "one"})
    model.fails = True
    store.batch([PutOp(NS, "a", {"text": "two"}), PutOp(NS, "b", {"t": "three"}, ["t"])])
    assert "embedded later" in caplog.text
    assert {item.key for item in store.search(NS)} == {"before", "a", "b"}
    with pytest.raises(EmbeddingError):
        store.search(NS, query="two")
    with pytest.raises(EmbeddingError):
        store.embed_pending()
    model.fails = False
    assert [item.score is None for item in store.search(NS, query="two")] == [False, True, True]
    assert store.embed_pending() == 2
    assert store.embed_pending() == 0
    found = store.search(NS, query="three")
    assert found[0].key == "b"
    assert found[0].score == pytest.approx(1, abs=1e-3)
    counters = store.counters()
    failures = counters.embedding_failures
    assert (counters.embedding_calls, failures > 5) == (len(model.calls), True)
    store.search(NS, query="three")
    assert store.counters().vector_hits == counters.vector_hits + 1
    assert store.counters().embedding_calls == len(model.calls) == counters.embedding_calls
    assert None not in [item.score for item in found]


@pytest.mark.parametrize(
    "answer", [None, [None], ["text"], [{}], [[1.0]] * 2, [[float("nan")] * 8]]
)
def test_a_model_that_answers_nonsense_loses_no_put(answer):
    with open_store("memory://", index=INDEX | {"embed": lambda texts: answer}) as store:
        store.put(NS, "a", {"text": "x"})
        assert store.get(NS, "a").value == {"text": "x"}
        with pytest.raises(EmbeddingError):
            store.embed_pending()
        assert store.counters().embedding_failures > 0


async def test_an_async_model_serves_blocking_calls(opened):
    async def model(texts):
        return embed(texts)

    store = opened(index=INDEX | {"embed": model})
    store.put(NS, "a", {"text": "x"})
    await store.aput(NS, "b", {"text": "y"})
    assert store.search(NS, query="y")[0].key == "b"
    await store.aclose()


def test_a_store_without_an_index_removes_vectors_and_words(shared):
    with shared(index=INDEX | {"search": "hybrid"}) as store, shared() as other:
        for key in "abc":
            store.put(NS, key, {"text": f"river {key}"})
        other.delete(NS, "a")
        other.put(NS, "b", {"text": "tea"})
        found = store.search(NS, query="river")
        assert [(item.key, item.score is None) for item in found] == [("c", False), ("b", True)]


def test_texts_that_the_model_refuses_keep_no_other_waiting(opened, caplog, monkeypatch):
    monkeypatch.setattr("threadkeep.store.puts._PENDING", 2)
    monkeypatch.setattr("threadkeep.store.embedding._TRIES", 1)
    refused = ["poison"]

    def model(texts):
        if any(word in text for word in refused for text in texts):
            raise RuntimeError("refused")
        return embed(texts)

    def unscored():
        found = store.search(NS, query="a", limit=99)
        return sorted(item.key for item in found if item.score is None)

    store = opened(index=INDEX | {"embed": model})
    poison = [f"poison {n}" for n in range(3)]
    store.batch([PutOp(NS, text, {"text": text}) for text in (*poison, "a", "b")])
    assert unscored() == poison
    refused.append("")
    store.put(NS, "c", {"text": "c"})
    with pytest.raises(EmbeddingError):
        store.embed_pending()
    assert unscored() == ["c", *poison]
    refused.pop()
    assert store.embed_pending() == 1
    assert "'poison 2'" in caplog.text
    assert unscored() == poison


def test_values_that_are_no_json_are_indexed(opened):
    store = opened(index={"embed": embed, "dims": DIMS})
    store.put(NS, "a", {"at": datetime(2026, 1, 1, tzinfo=UTC), 1: {b"x"}})
    store.put(NS, "b", {"said": AIMessage("tea")}, index=["said.content"])
    assert store.embed_pending() == 0
    found = store.search(NS, query="tea")
    assert [(item.key, item.score is None) for item in found] == [("b", False), ("a", False)]


def test_a_rare_word_counts_more_than_a_frequent_one(opened):
    store = opened(index={"search": "text", "fields": ["text"]})
    texts = ["the invoice", *["what is the use of the number"] * 30]
    store.batch([PutOp(NS, str(n), {"text": text}) for n, text in enumerate(texts)])
    assert store.search(NS, query="is the invoice in the mail", limit=1)[0].key == "0"


def test_fields_of_one_put(opened):
    store = opened(index=INDEX)
    store.put(NS, "a", {"text": "x", "title": "tea"}, index=("title", "title"))
    assert store.search(NS, query="tea")[0].score == pytest.approx(1, abs=1e-3)
    for wrong in (True, "title", [5]):
        with pytest.raises(InvalidArgumentError, match="Invalid fields"):
            store.put(NS, "a", {"text": "x"}, index=wrong)


def test_an_item_is_read_where_its_lifetime_cannot_begin_anew(tmp_path):
    file = tmp_path / "items.db"
    with SqliteStore(file) as store:
        store.put(NS, "a", {"n": 1}, ttl=0.001)
    with Store(SqliteBackend(file, read_only=True), owned=True) as store:
        assert store.get(NS, "a").value == {"n": 1}


def test_fields_have_the_name_that_langgraphs_sqlite_store_gives_them():
    config = {"dims": 2, "embed": lambda texts: [[1.0, 0.0] for _ in texts]}
    for fields in (["text"], "text"):
        store = InMemoryStoreOfOurs(index={**config, "text_fields": fields})
        store.put(NS, "a", {"text": "hi", "other": 1})
        store.put(NS, "b", {"other": "hi"})
        assert [item.score for item in store.search(NS, query="hi")] == [1.0, None]
        assert store.index_config == {**config, "text_fields": fields}
    assert InMemoryStoreOfOurs().index_config is None
    with pytest.raises(InvalidArgumentError, match="Use only fields"):
        InMemoryStoreOfOurs(index={**config, "fields": ["a"], "text_fields": ["b"]})


def test_texts_are_embedded_once_and_together(opened):
    model = Model()
    store = opened(index=INDEX | {"embed": model})
    store.batch([PutOp(NS, str(n), {"text": f"text {n % 3}"}) for n in range(6)])
    store.put(NS, "again", {"text": "text 1"})

    async def puts():
        await asyncio.gather(*[store.aput(NS, f"a{n}", {"text": f"new {n}"}) for n in range(4)])

    asyncio.run(puts())
    assert [sorted(call) for call in model.calls] == [
        ["text 0", "text 1", "text 2"],
        ["new 0", "new 1", "new 2", "new 3"],
    ]


def test_dimensions_are_checked(opened):
    store = opened(index=INDEX | {"embed": lambda texts: [[1.0, 2.0]] * len(texts)})
    with pytest.raises(InvalidArgumentError, match=f"dims: {DIMS}.*\n.*Use 2"):
        store.put(NS, "a", {"text": "x"})
    assert store.search(NS) == []


def test_dimensions_of_stored_vectors_are_checked(shared):
    shared(index=INDEX).put(NS, "a", {"text": "x"})
    with pytest.raises(InvalidArgumentError, match="export"):
        shared(index=INDEX | {"dims": 3, "embed": lambda texts: [[1.0, 2.0, 3.0]] * len(texts)})


def test_hybrid_search_finds_by_words_too(opened):
    store = opened(index=INDEX | {"search": "hybrid", "fields": ["text", "tags[*]"]})
    texts = ["the invoice INV-2041 was paid", "tea with milk", "a walk by the river", "我喜欢喝茶"]
    for n, text in enumerate(texts):
        store.put(NS, str(n), {"text": text, "tags": ["x", f"tag{n}"], "n": n})
    store.put(("users", "10"), "0", {"text": "the invoice INV-2041 was lost"})
    assert store.search(NS, query="what about inv-2041?", limit=1)[0].key == "0"
    assert store.search(NS, query="茶", limit=1)[0].key == "3"
    found = store.search(NS, query="river tag1", filter={"n": {"$lt": 2}})
    assert found[0].key == "1"
    assert {item.key for item in found} == {"0", "1"}
    assert {item.namespace for item in found} == {NS}
    store.put(NS, "0", {"text": "nothing of it"})


def test_search_by_words_needs_no_model(opened):
    store = opened(index={"search": "text", "fields": ["text"]})
    for n, text in enumerate(["tea with milk", "milk, milk and milk", "a walk by the river"]):
        store.put(NS, str(n), {"text": text})
    assert [item.key for item in store.search(NS, query="Milk?")] == ["1", "0"]
    assert {item.key for item in store.search(NS, query="tea / river")} == {"0", "2"}
    assert [item.key for item in store.search(NS, query="milk", offset=1)] == ["0"]
    assert store.search(NS, query="...") == store.search(NS, query="coffee") == []
    store.put(NS, "1", {"text": "coffee"})
    assert [item.key for item in store.search(NS, query="milk")] == ["0"]


# -- files and other stores ------------------------------------------------------------------


def test_items_are_exported_and_imported_as_they_were(opened, tmp_path):
    store = opened()
    store.put(NS, "a", {"n": 1, "text": "x"}, ttl=5)
    store.put(NS, "b", {"n": (1, 2)})
    store.put(("other",), "c", {"n": 3})
    file = tmp_path / "items.jsonl"
    assert store.export_items(file, NS) == 2
    with open_store("memory://", index=INDEX) as copy:
        assert copy.import_items(file) == 2
        assert copy.import_items(file) == 2
        copied = [item.dict() for item in copy.search(())]
        assert sorted(copied, key=str) == sorted((one.dict() for one in store.search(NS)), key=str)
        assert copy.search(NS, query="x")[0].score == pytest.approx(1, abs=1e-3)
    assert store.erase(NS).items == 2
    assert store.import_items(file) == 2
    assert {item.key for item in store.search(())} == {"c", "a", "b"}
    lines = file.read_bytes().splitlines(keepends=True)
    for damaged, match in (
        ([*lines[:2], lines[2][:-20]], "Line 3"),
        (lines[:2], "is cut off after 1 items"),
        ([lines[0], lines[2], b"\n", lines[3]], "has 1 items instead of 2"),
        ([lines[0], lines[1].replace(b'["users","1"]', b'"users"'), *lines[2:]], "Line 2"),
        (
            [lines[0], lines[1].replace(b'"updated_at":', b'"updated_at":99999'), *lines[2:]],
            "Line 2",
        ),
    ):
        file.write_bytes(b"".join(damaged))
        with pytest.raises(InvalidArgumentError, match=match):
            store.import_items(file)
    file.write_text("{}\n")
    with pytest.raises(InvalidArgumentError, match="not a file of exported items"):
        store.import_items(file)


def test_items_of_langgraphs_store_are_imported(opened):
    other = InMemoryStore()
    for n in range(3):
        other.put(("a", str(n)), "k", {"n": n})
    store = opened()
    assert asyncio.run(store.aimport_items(other)) == 3
    ours, theirs = ({str(item.dict()) for item in one.search(())} for one in (store, other))
    assert ours == theirs


def test_times_of_langgraphs_sqlite_store_are_utc(monkeypatch):
    theirs = pytest.importorskip("langgraph.store.sqlite").SqliteStore  # not in its oldest releases
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        with theirs.from_conn_string(":memory:") as other, open_store("memory://") as ours:
            other.setup()
            other.put(NS, "k", {"n": 1})
            ours.import_items(other)
            there, here = other.get(NS, "k"), ours.get(NS, "k")
            assert here.created_at == there.created_at.replace(tzinfo=UTC)
            assert here.updated_at == there.updated_at.replace(tzinfo=UTC)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_an_item_is_never_updated_before_it_was_created(tmp_path):
    file = tmp_path / "items.jsonl"
    with open_store("memory://") as store:
        store.put(NS, "a", {"n": 1})
        store.export_items(file)
        later = store.get(NS, "a").created_at + timedelta(days=1)
        made = str(round(later.timestamp() * 1e6)).encode()  # by a clock that was put back since
        file.write_bytes(re.sub(rb'"created_at":\d+', b'"created_at":' + made, file.read_bytes()))
        store.import_items(file)
        store.put(NS, "a", {"n": 2})
        item = store.get(NS, "a")
        assert (item.value, item.created_at, item.updated_at) == ({"n": 2}, later, later)


def test_erasure_leaves_siblings_that_share_a_prefix(opened):
    store = opened(index=INDEX, history=2)
    for namespace in (("a",), ("ab",), ("a", "b")):
        store.put(namespace, "k", {"text": "x"})
        store.put(namespace, "k", {"text": "y"})
    assert store.erase(("a",)).items == 2
    assert [item.namespace for item in store.search((), query="y")] == [("ab",)]
    assert store.versions(("a",), "k") == []
    assert len(store.versions(("ab",), "k")) == 2
    with pytest.raises(InvalidArgumentError):
        store.erase(())


def test_erased_texts_leave_the_file(tmp_path):
    file = tmp_path / "items.db"
    with SqliteStore(file, index=INDEX | {"search": "hybrid"}, history=3) as store:
        store.put(NS, "a", {"text": "marmalade"})
        store.put(NS, "a", {"text": "quince"})
        store.put(("others",), "b", {"text": "honey"})
        store.erase(NS)
        assert [item.key for item in store.search((), query="honey")] == ["b"]
    data = file.read_bytes()
    assert b"honey" in data
    assert not [word for word in (b"marmalade", b"quince", b"users.1.") if word in data]


def test_a_damaged_item_is_named(tmp_path):
    file = tmp_path / "items.db"
    with SqliteStore(file) as store:
        store.put(NS, "a", {"n": 1})
        with closing(sqlite3.connect(file)) as db, db:
            db.execute("UPDATE tk_items SET value = '{'")
        with pytest.raises(CorruptionError, match="'a' in \\('users', '1'\\)"):
            store.get(NS, "a")


def test_a_text_is_no_namespace(opened, tmp_path):
    store = opened()
    for call in (
        lambda: store.erase("users"),
        lambda: store.export_items(tmp_path / "items", "users"),
        lambda: store.versions("users", "a"),
    ):
        with pytest.raises(InvalidNamespaceError, match="Use a tuple of texts"):
            call()


def test_a_single_call_is_refused_before_others_share_its_batch(opened, monkeypatch):
    store = opened()
    monkeypatch.setattr(type(store), "batch", lambda *_: pytest.fail("It was sent."))
    for call in (store.get, store.delete):
        with pytest.raises(InvalidNamespaceError):
            call(("a.b",), "k")


@pytest.mark.parametrize("label", ["a\0b", "a.b", ""])
def test_labels_that_are_refused_everywhere(opened, tmp_path, label):
    store = opened()
    store.put(("a", "b"), "k", {"x": 1})
    for call in (
        lambda: store.put((label,), "k", {"x": 1}),
        lambda: store.batch([PutOp((label,), "k", {"x": 1})]),
        lambda: store.batch([GetOp((label,), "k")]),
        lambda: store.search((label,)),
        lambda: store.list_namespaces(prefix=(label,)),
        lambda: store.list_namespaces(suffix=(label,)),
        lambda: store.versions((label,), "k"),
        lambda: store.export_items(tmp_path / "items", (label,)),
        lambda: store.erase((label,)),
    ):
        with pytest.raises(InvalidNamespaceError):
            call()
    assert [item.value for item in store.search(())] == [{"x": 1}]


async def test_other_threads_use_a_store_of_async_connections(tmp_path):
    schema = empty_schema()
    async with AsyncConnectionPool(postgres_url(), open=False) as pool:
        store = AsyncPostgresStore(pool, schema=schema)
        await store.setup()
        await asyncio.to_thread(store.put, NS, "a", {"n": 1})
        assert (await asyncio.to_thread(store.get, NS, "a")).value == {"n": 1}
        with pytest.raises(InvalidArgumentError, match="Use the async methods"):
            store.get(NS, "a")


@pytest.mark.parametrize("name", ["sqlite", "postgres", "redis"])
async def test_methods_of_async_stores_are_awaited(name, tmp_path):
    kinds = {"postgres": AsyncPostgresStore, "redis": AsyncRedisStore}
    url = str(tmp_path / "items.db") if name == "sqlite" else url_of(name, tmp_path)
    async with kinds.get(name, AsyncSqliteStore).from_conn_string(url) as store:
        await store.setup()
        await store.start_ttl_sweeper(1)
        assert await store.stop_ttl_sweeper(timeout=1)
        assert await store.sweep_ttl() == 0


# -- graphs ----------------------------------------------------------------------------------


async def test_nodes_share_memories_across_threads(opened):
    def remember(state, config, *, store: BaseStore):
        user = ("memories", config["configurable"]["user_id"])
        known = sorted(item.value["text"] for item in store.search(user))
        text = state["messages"][-1].content
        store.put(user, text, {"text": text})
        return {"messages": [("ai", f"I know {known}")]}

    async def aremember(state, config, *, store: BaseStore):
        user = ("memories", config["configurable"]["user_id"])
        known = sorted(item.value["text"] for item in await store.asearch(user))
        return {"messages": [("ai", f"I know {known}")]}

    store = opened()
    builder = StateGraph(MessagesState)
    builder.add_node("one", remember)
    builder.add_node("two", aremember)
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    graph = builder.compile(store=store)
    answers = []
    for thread, user, text in ((1, "u", "tea"), (2, "u", "milk"), (3, "v", "rum")):
        config = {"configurable": {"thread_id": str(thread), "user_id": user}}
        state = await graph.ainvoke({"messages": [("user", text)]}, config)
        answers.append([message.content for message in state["messages"][1:]])
    assert answers == [
        ["I know []", "I know ['tea']"],
        ["I know ['tea']", "I know ['milk', 'tea']"],
        ["I know []", "I know ['rum']"],
    ]
    await store.aclose()


def test_a_native_backup_holds_items(tmp_path):
    options = {"index": INDEX | {"search": "hybrid"}, "history": 2}
    file, backup, restored = (tmp_path / name for name in ("a.db", "b.db", "c.db"))
    with open_all(f"sqlite:///{file}", store=options) as (_, store, _):
        for n in range(5):
            store.put(NS, "a", {"text": f"river {n}"})
        back_up(str(file), backup, lambda *_: None)
        restore(backup, str(restored), 1, replace=False)
        with SqliteStore(restored, **options) as other:
            assert other.search(NS, query="river")[0].value == {"text": "river 4"}
            assert other.versions(NS, "a") == store.versions(NS, "a")
            other.put(NS, "b", {"text": "newer"})
        with pytest.raises(ThreadExistsError):
            restore(backup, str(restored), 1, replace=False)
        restore(backup, str(restored), 1, replace=True)
        with SqliteStore(restored, **options) as other:
            assert [item.key for item in other.search(())] == ["a"]
            assert other.search(NS, query="newer")[0].key == "a"


def test_a_native_backup_without_items_leaves_a_store_that_takes_puts(tmp_path):
    file, backup, restored = (tmp_path / name for name in ("a.db", "b.db", "c.db"))
    with open_saver(f"sqlite:///{file}") as saver:
        saver.setup()
        back_up(str(file), backup, lambda *_: None)
    with SqliteStore(restored) as store:
        store.put(NS, "a", {"n": 1})
        version = store.get(NS, "a").version
        restore(backup, str(restored), 1, replace=True)
        assert store.search(()) == []
        store.put(NS, "a", {"n": 2})
        assert store.get(NS, "a").version > version


# -- beside a saver and a cache --------------------------------------------------------------


@pytest.mark.parametrize("name", BACKENDS)
async def test_one_url_opens_a_saver_a_store_and_a_cache(name, tmp_path):
    calls = []

    async def count(state, *, store: BaseStore):
        calls.append(state["messages"][-1].content)
        await store.aput(("counted",), str(len(calls)), {"text": calls[-1]})
        return {"messages": [("ai", str(len(calls)))]}

    builder = StateGraph(MessagesState)
    builder.add_node("count", count, cache_policy=CachePolicy(key_func=lambda state: "same"))
    builder.add_edge(START, "count")
    url = "memory://" if name == "memory" else url_of(name, tmp_path)
    async with open_all(url, store={"index": INDEX}) as (saver, store, cache):
        await store.asetup()
        graph = builder.compile(checkpointer=saver, store=store, cache=cache)
        for thread in ("1", "2"):
            config = {"configurable": {"thread_id": thread}}
            state = await graph.ainvoke({"messages": [("user", "hi")]}, config)
            assert [message.content for message in state["messages"]] == ["hi", "1"]
        assert calls == ["hi"]
        assert [item.value for item in await store.asearch((), query="hi")] == [{"text": "hi"}]
    with pytest.raises(ClosedError):
        await saver.aget_tuple(config)
    if name != "memory":
        with pytest.raises(ClosedError):
            await store.aget(("counted",), "1")


def test_one_serializer_encrypts_all_three(tmp_path):
    key = EncryptedSerializer.from_pycryptodome_aes(key=b"0" * 16)
    file = tmp_path / "all.db"
    with open_all(f"sqlite:///{file}", serde=key) as opened:
        opened.store.put(NS, "a", {"text": "marmalade"})
        opened.cache.set({(("ns",), "k"): ({"text": "marmalade"}, None)})
        assert opened.cache.get([(("ns",), "k")]) == {(("ns",), "k"): {"text": "marmalade"}}
    assert b"marmalade" not in file.read_bytes()
