"""Statistics and counters of items of stores, and of cached results."""

import asyncio
from typing import Any

import pytest
from kit.backends import BACKENDS, url_of
from langgraph.store.base import PutOp

from threadkeep import open_all
from threadkeep._core.engine.usage import Counters
from threadkeep._stores.postgres import threads as postgres_module
from threadkeep._stores.redis import backend as redis_module
from threadkeep._stores.sqlite import threads as sqlite_module
from threadkeep.cache import cache as cache_module
from threadkeep.cache import open_cache
from threadkeep.monitor import Monitor, advise
from threadkeep.threads.statistics_report import Stats

NS = ("users", "1")
BODY = "x" * 990  # (with quotes and the key, about 1,000 bytes of JSON)


def embed(texts: list[str]) -> list[list[float]]:
    if any("refused" in text for text in texts):
        raise RuntimeError("no model today")
    return [[1.0, 2.0] for _ in texts]


@pytest.fixture(params=BACKENDS)
def url(request: Any, tmp_path: Any) -> str:
    return "memory://" if request.param == "memory" else url_of(request.param, tmp_path)


def opened(url: str, **options: Any) -> Any:
    index = {"embed": embed, "dims": 2, "fields": ["text"]}
    found = open_all(url, store={"index": index, "history": 3, **options})
    found.setup()
    return found


def counts(found: Stats) -> tuple[int, ...]:
    return found.items, found.expired_items, found.waiting_items, found.cache_entries


def test_items_and_cached_results_are_counted(url: str) -> None:
    with opened(url) as (saver, store, cache):
        assert counts(saver.stats()) == (0, 0, 0, 0)
        for n in range(10):
            store.put(NS, str(n), {"text": BODY})
        store.put(NS, "gone", {"n": 1}, ttl=1e-9)
        store.put(NS, "waits", {"text": "refused"})
        store.put(NS, "0", {"text": "y"})  # (the old value is a version now)
        cache.set({(("node",), str(n)): (BODY, None) for n in range(5)})

        found = saver.stats()
        assert counts(found) == (12, 1, 1, 5)
        assert 9_000 < found.item_bytes < 12_000
        assert found.vector_bytes == 10 * 2 * 4
        assert 4_900 < found.cache_bytes < 6_000
        assert (found.estimated, found.items_sampled) == (False, False)
        assert asyncio.run(saver.astats()) == found
        assert found.as_json()["items"] == 12
        lines = "\n".join(found.summary())
        assert "Store: 12 items, " in lines
        assert "vectors 80 bytes; 1 expired; 1 without vectors yet" in lines
        assert "Cache: 5 results, " in lines
        assert [one.code for one in advise(saver)] == ["store.embed_pending()"]

        storage = Monitor(saver).measure().storage
        assert storage is not None
        assert (storage.items, storage.cache_entries) == (12, 5)
        assert storage.item_bytes == found.item_bytes + 80


def test_bytes_of_many_are_those_of_a_sample(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sqlite_module, redis_module):
        monkeypatch.setattr(module, "SAMPLED_ITEMS", 20)
    monkeypatch.setattr(postgres_module, "_SAMPLED_PAGES", 8)
    with opened(url) as (saver, store, cache):
        store.put(NS, "first", {"text": "z" * 100_000})  # (no sample of the first ones)
        store.batch([PutOp(NS, str(n), {"n": n, "body": BODY}) for n in range(100)])
        cache.set({(("node",), str(n)): (BODY, None) for n in range(100)})
        found = saver.stats()
        assert (found.items, found.cache_entries) == (101, 100)
        assert 50_000 < found.item_bytes < 800_000
        assert 99_000 < found.cache_bytes < 110_000
        assert found.items_sampled == (not url.startswith(("memory", "mysql")))
        assert ("items, about " in "".join(found.summary())) == found.items_sampled
        assert not found.estimated  # (that is said of threads)


def test_hits_misses_and_evictions_are_counted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expired values are no evictions. Awaited calls count with the others."""
    clock = [1_800_000_000_000_000]
    monkeypatch.setattr(cache_module, "_now", lambda: clock[0])
    with open_cache(url, max_entries=3) as cache:
        for n, ttl in enumerate((1, None, None, None, None)):
            clock[0] += 2_000_000
            cache.set({(("node",), str(n)): (n, ttl)})
        evictions = 2 if url.startswith("redis") else 1  # (whose clock it is not)
        assert cache.counters() == Counters(result_evictions=evictions)
        assert len(cache.get([(("node",), str(n)) for n in range(4)])) == 2
        hits = Counters(result_hits=2, result_misses=2)
        assert cache.counters() == hits + Counters(result_evictions=evictions)

    async def in_loop() -> Counters:
        async with open_cache(url, max_entries=1) as cache:
            await cache.aclear()
            keys = [(("node",), key) for key in "ab"]
            for key in keys:
                clock[0] += 1000
                await cache.aset({key: (1, None)})
            await cache.aget(keys)
            return cache.counters()

    assert asyncio.run(in_loop()) == Counters(result_hits=1, result_misses=1, result_evictions=1)
