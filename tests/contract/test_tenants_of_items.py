"""Items and cached results of tenants beside each other, in every store."""

import asyncio
import json
from dataclasses import replace

import pytest
from kit import stores as kit_stores
from kit.backends import BACKENDS, url_of

import threadkeep
from threadkeep._core import tenants
from threadkeep._stores.items.records import FindItems
from threadkeep._stores.sealed import SealedBackend
from threadkeep._stores.store_keys import StoreKeys
from threadkeep.cache import NodeCache
from threadkeep.errors import ConflictError, InvalidArgumentError, TamperedDataError
from threadkeep.keys import KeyRing
from threadkeep.store import Store
from threadkeep.store.items import ask

NAMES = ("a", "ab", "a.b", "a b", "a%", "a%2E", "ä", "A", "threadkeep$tenant a", "*")
NS, KEY = ("users", "ann"), "k"
A, B = (NS, "a"), (NS, "b")


@pytest.fixture(params=BACKENDS)
def url(request, tmp_path):
    return "memory://" if request.param == "memory" else url_of(request.param, tmp_path)


@pytest.fixture(params=["plain", "sealed"])
def backend(request, url):
    with threadkeep.open_saver(url) as saver:
        saver.setup()
        found = saver.backend
        if request.param == "sealed":
            found = SealedBackend(found, StoreKeys(KeyRing([b"k" * 32])))
        yield found


@pytest.fixture
def store(backend):
    with Store(backend, history=9) as store:
        yield store


@pytest.fixture
def of(store):
    """The views of tenants, each with an item of its own under one name."""
    views = {name: store.for_tenant(name) for name in NAMES}
    for number, view in enumerate(views.values()):
        view.put(NS, KEY, {"n": -1})
        view.put(NS, KEY, {"n": number, "bytes": (number,)})
    return views


def found(view):
    """All that a view finds, as the sorted numbers of its values."""
    return sorted(item.value["n"] for item in view.search((), limit=99))


def alone(of, changed=()):
    """Assert that the items of all tenants but these are as they were."""
    for number, (name, view) in enumerate(of.items()):
        if name not in changed:
            assert found(view) == [number]
            assert [one.value["n"] for one in view.versions(NS, KEY)] == [number, -1]


# -- items -------------------------------------------------------------------------------


def test_each_tenant_reads_its_own_items(of, store):
    alone(of)
    for number, (name, view) in enumerate(of.items()):
        item = view.get(NS, KEY)
        assert (item.namespace, item.key, item.value["n"]) == (NS, KEY, number)
        assert [one.namespace for one in view.search(NS)] == [NS]
        assert [one.value["n"] for one in view.search((), filter={"n": number})] == [number]
        assert view.search((), filter={"n": number - 1}) == []
        assert view.search((tenants.label(name),)) == []
        assert view.get((tenants.label(name), *NS), KEY) is None
    assert len(store.search((), limit=99)) == len(NAMES)
    assert store.get((tenants.label("a"), *NS), KEY).value["n"] == 0
    assert store.get(NS, KEY) is None


def test_each_tenant_lists_its_own_namespaces(of, store):
    of["a"].put(("x", "y", "z"), KEY, {"n": 0})
    store.put(("x", "no tenant"), KEY, {"n": 0})
    listed = of["a"].list_namespaces
    assert listed() == [NS, ("x", "y", "z")]
    assert listed(max_depth=1) == [("users",), ("x",)]
    assert listed(prefix=("x",)) == listed(suffix=("z",)) == listed(prefix=("*", "y"))
    assert listed(suffix=("*", "users", "ann")) == []  # (the tenant is no label)
    assert listed(limit=1, offset=1) == [("x", "y", "z")]
    assert of["ab"].list_namespaces() == [NS]
    assert set(store.list_namespaces(max_depth=1)) == {
        ("x",),
        *((tenants.label(name),) for name in NAMES),
    }


def test_changes_reach_no_other_tenant(of):
    of["a"].put(NS, "more", {"n": 7})
    of["a"].delete(NS, KEY)
    assert found(of["a"]) == [7]
    version = of["ab"].get(NS, KEY).version
    with pytest.raises(ConflictError, match=r"'k' in \('users', 'ann'\)"):
        of["a"].put(NS, KEY, {"n": 7}, if_version=version)
    of["ab"].put(NS, KEY, {"n": 7}, if_version=version)
    of["a b"].delete(NS, KEY, if_version=of["a b"].get(NS, KEY).version)
    assert found(of["a b"]) == []
    alone(of, changed=("a", "ab", "a b"))


async def test_awaited_methods(of):
    views = of.values()
    found = await asyncio.gather(*(view.aget(NS, KEY) for view in views))
    assert [item.value["n"] for item in found] == list(range(len(NAMES)))
    async with of["a"] as view:
        await view.aput(NS, KEY, {"n": 7})
        await view.aput(NS, KEY, {"n": 8}, if_version=(await view.aget(NS, KEY)).version)
        assert [one.value["n"] for one in await view.aversions(NS, KEY)] == [8, 7, 0, -1]
        assert await view.alist_namespaces() == [NS]
        await view.adelete(NS, KEY)
        assert await view.asearch(()) == []
        assert await view.asweep_ttl() == 0
    left = await asyncio.gather(*(view.asearch(()) for view in views))
    assert [[item.value for item in items] for items in left] == [
        [item.value] if number else [] for number, item in enumerate(found)
    ]


def test_erasures_reach_no_other_tenant(of, store):
    assert of["a"].erase(NS).items == 1
    assert of["a"].versions(NS, KEY) == []
    of["ab"].put(("other",), KEY, {"n": 0})
    assert of["ab"].erase(()).items == 2
    alone(of, changed=("a", "ab"))
    with pytest.raises(InvalidArgumentError, match="Use a namespace"):
        store.erase(())


def test_exports_and_imports(of, store, tmp_path):
    file = tmp_path / "items.jsonl"
    assert of["a"].export_items(file) == 1
    of["a"].delete(NS, KEY)
    assert of["a"].import_items(file) == 1
    assert of["ä"].import_items(of["a"]) == 1
    if store.backend.keys is None:
        assert json.loads(file.read_text().splitlines()[1])["namespace"] == list(NS)
        assert of["ab"].import_items(file) == 1
    else:
        with pytest.raises(TamperedDataError, match="another tenant's"):
            of["ab"].import_items(file)
        of["ab"].put(NS, KEY, {"n": 0})
    assert found(of["a"]) == found(of["ab"]) == found(of["ä"]) == [0]
    alone(of, changed=("a", "ab", "ä"))


def test_sweeps_remove_no_item_of_another_tenant(backend):
    with Store(backend, ttl={"refresh_on_read": False}) as store:
        first, other = store.for_tenant("a"), store.for_tenant("ab")
        for view in (first, other, store):
            view.put(NS, "gone", {"n": 1}, ttl=1e-6)
            view.put(NS, "here", {"n": 2})
        assert first.sweep_ttl() == 1
        assert (found(first), found(other)) == ([2], [1, 2])
        assert first.sweep_ttl() == 0
        assert store.sweep_ttl() == 2


def test_reads_renew_only_lifetimes_of_their_own(backend):
    with Store(backend) as store:
        first, other = store.for_tenant("a"), store.for_tenant("ab")
        for view in (first, other):
            view.put(NS, KEY, {"n": 1}, ttl=1)

        def ends():
            return [row.expires_at for row in store._store.run(ask(FindItems((), 9)))]

        before = ends()
        later = before[0] - 1
        first._engine = replace(first._engine, now=lambda: later)
        first.get(NS, KEY)
        assert ends() == [later + 60_000_000, before[1]]


def test_searches_and_late_embeddings_stay_with_their_tenant(url):
    sent = []

    def embed(texts):
        sent.extend(texts)
        if fails:
            raise OSError
        return kit_stores.embed(texts)

    fails = False
    index = {**kit_stores.INDEX, "embed": embed, "search": "hybrid"}
    with threadkeep.open_store(url, index=index) as store:
        store.setup()
        views = {name: store.for_tenant(name) for name in ("a", "ab", "b")}
        for name, view in views.items():
            view.put(NS, KEY, {"text": f"words of {name}"})
            hits = view.search((), query="words")
            assert [(item.namespace, item.value["text"]) for item in hits] == [
                (NS, f"words of {name}")
            ]
        fails = True
        for name, view in views.items():
            view.put(NS, "late", {"text": f"late {name}"})
        fails = False
        sent.clear()
        assert views["ab"].embed_pending() == 1
        assert sent == ["late ab"]
        assert [item.score is None for item in views["b"].search((), query="late")] == [False] * 2
        assert views["a"].embed_pending() + views["b"].embed_pending() == 2
        assert store.embed_pending() == 0


def test_a_view_ends_its_own_sweeper_and_nothing_else(backend):
    with Store(backend) as store:
        view, other = store.for_tenant("a"), store.for_tenant("ab")
        store.start_ttl_sweeper(60)
        ended = view.start_ttl_sweeper(60)
        view.close()
        assert ended.done()
        assert not store.start_ttl_sweeper(60).done()
        for one in (view, other, store):
            one.put(NS, KEY, {"n": 1})
        assert other.start_ttl_sweeper(60) is not store.start_ttl_sweeper(60)
        other.stop_ttl_sweeper()
        with store.for_tenant("b") as last:
            assert last.get(NS, KEY) is None


def test_a_view_has_no_views(store, backend):
    with NodeCache(backend) as cache:
        for one in (store, cache):
            with pytest.raises(InvalidArgumentError, match="already"):
                one.for_tenant("a").for_tenant("b")
            for name in ("", "x" * 999, None, "\ud800"):
                with pytest.raises(InvalidArgumentError, match="Invalid tenant"):
                    one.for_tenant(name)


# -- cached results ----------------------------------------------------------------------


@pytest.fixture
def caches(backend):
    """A cache and the views of tenants, each with values of its own under the same keys."""
    with NodeCache(backend) as cache:
        views = {"": cache, **{name: cache.for_tenant(name) for name in NAMES}}
        for name, view in views.items():
            view.set({A: (f"a of {name}", None), B: (f"b of {name}", None)})
            view.set({(("other",), "a"): (name, None)})
        yield views


def values(caches):
    return {name: [*view.get([A, B, (("other",), "a")]).values()] for name, view in caches.items()}


def test_each_tenant_has_its_own_results(caches):
    every = values(caches)
    assert every == {name: [f"a of {name}", f"b of {name}", name] for name in ("", *NAMES)}
    caches["a"].delete([A])
    caches["ab"].clear([NS])
    caches["ä"].clear()
    caches["a b"].close()
    assert values(caches) == every | {"a": every["a"][1:], "ab": every["ab"][2:], "ä": []}
    caches[""].clear([NS])
    assert values(caches)["a b"] == every["a b"]
    caches[""].clear()
    assert values(caches) == {name: [] for name in every}


async def test_awaited_results(caches):
    view = caches["a"]
    await view.aset({A: (1, None)})
    assert await view.aget([A]) == {A: 1}
    assert await caches["ab"].aget([A]) == {A: "a of ab"}
    await view.aclear()
    await view.adelete([A])
    assert await view.aget([A, B]) == {}
    assert await caches["ab"].aget([A]) == {A: "a of ab"}


def test_leases_and_counts(backend):
    with NodeCache(backend, lease=60) as cache:
        one, other = cache.for_tenant("a"), cache.for_tenant("ab")
        assert one.get([A]) == other.get([A]) == {}  # (without waiting for another tenant)
        one.set({A: (1, None)})
        assert one.get([A]) == {A: 1}
        counts = cache.counters()
        assert (counts.result_hits, counts.result_misses) == (1, 2)
