"""Statistics of what a database holds beside threads: items of stores, and cached results."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.store.base import PutOp

from integration.backends import BACKENDS, url_of
from threadkeep import open_all
from threadkeep.backends.postgres import usage as postgres_module
from threadkeep.backends.redis import backend as redis_module
from threadkeep.backends.sqlite import usage as sqlite_module
from threadkeep.monitor import Monitor, advise
from threadkeep.monitor.statistics import Stats

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
    monkeypatch.setattr(postgres_module, "_PAGES", 8)
    with opened(url) as (saver, store, cache):
        store.put(NS, "first", {"text": "z" * 100_000})  # (no sample of the first ones)
        store.batch([PutOp(NS, str(n), {"n": n, "body": BODY}) for n in range(100)])
        cache.set({(("node",), str(n)): (BODY, None) for n in range(100)})
        found = saver.stats()
        assert (found.items, found.cache_entries) == (101, 100)
        assert 50_000 < found.item_bytes < 800_000
        assert 99_000 < found.cache_bytes < 110_000
        assert found.items_sampled == (url != "memory://")
        assert ("items, about " in "".join(found.summary())) == found.items_sampled
        assert not found.estimated  # (that is said of threads)
