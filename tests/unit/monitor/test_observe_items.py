"""Observed stores and caches: exports of each operation; everything else passes through."""

from typing import Any, TypedDict

import pytest
import structlog
from kit.engine import config
from langgraph.cache.memory import InMemoryCache as LangGraphCache
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore as LangGraphStore
from langgraph.types import CachePolicy
from prometheus_client import CollectorRegistry

from threadkeep import open_all
from threadkeep.errors import InvalidArgumentError
from threadkeep.monitor import Monitor, observe
from threadkeep.monitor.observe import backend_of

NS = ("users", "1")
KEY = (("node",), "key")


class State(TypedDict):
    count: int


def embed(texts: list[str]) -> list[list[float]]:
    if "refused" in texts:
        raise RuntimeError("no model today")
    return [[1.0] for _ in texts]


class Recorder:
    """A sink that keeps its measurements."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def record(self, operation: str, seconds: float, error: BaseException | None) -> None:
        assert seconds > 0
        self.told.append(operation if error is None else f"{operation}: {type(error).__name__}")


def test_metrics_of_a_graph_with_all_three() -> None:
    registry = CollectorRegistry()
    index = {"embed": embed, "dims": 1, "fields": ["text"]}
    options = {"store": {"index": index}, "cache": {"max_entries": 2}}
    with open_all("sqlite:///:memory:", **options) as (saver, store, cache):

        def node(state: State, runtime: Runtime[Any]) -> State:
            assert runtime.store is not None
            runtime.store.put(NS, str(state["count"]), {"text": "x"})
            return {"count": state["count"] + 1}

        builder = StateGraph(State)
        builder.add_node("n", node, cache_policy=CachePolicy())
        builder.add_edge(START, "n")
        graph = builder.compile(
            checkpointer=observe(saver, registry=registry),
            store=observe(store, registry=registry),
            cache=observe(cache, registry=registry),
        )
        for count in (1, 1, 2, 3, 4):
            graph.invoke({"count": count}, config(str(count)))
        store.put(NS, "refused", {"text": "refused"})

        def scraped(name: str, **labels: str) -> float | None:
            found = {"backend": "sqlite", **labels}
            return registry.get_sample_value(f"threadkeep_{name}", found)

        counters = store.counters() + cache.counters()
        operations = "operation_duration_seconds_count"
        assert scraped(operations, operation="store.put") == 4
        assert scraped(operations, operation="cache.get") == 5
        assert scraped(operations, operation="put") == 15
        assert scraped("cache_hits_total", cache="results") == counters.result_hits == 1
        assert scraped("cache_misses_total", cache="results") == counters.result_misses == 4
        assert scraped("cache_evictions_total", cache="results") == counters.result_evictions
        assert counters.result_evictions > 0
        assert scraped("cache_hits_total", cache="vectors") == counters.vector_hits == 3
        assert scraped("embedding_calls_total") == counters.embedding_calls
        assert scraped("embedding_failures_total") == counters.embedding_failures > 0


def test_views_of_tenants_are_measured_too() -> None:
    sink = Recorder()
    with open_all("memory://") as (_, store, cache):
        items = observe(store, sinks=[sink]).for_tenant("acme")
        results = observe(cache, sinks=[sink]).for_tenant("acme")
        items.put(NS, "k", {"n": 1})
        results.set({KEY: (1, None)})
        assert results.get([KEY]) == {KEY: 1}
        assert (store.get(NS, "k"), cache.get([KEY])) == (None, {})
        assert store.for_tenant("acme").search(())[0].value == {"n": 1}
    assert sink.told == ["store.put", "cache.set", "cache.get"]


async def test_every_method_has_its_name_sync_and_async() -> None:
    sink = Recorder()
    with structlog.testing.capture_logs() as events:
        logger = structlog.get_logger()
        with observe(LangGraphStore(), sinks=[sink], logger=logger) as store:
            store.put(NS, "a", {"n": 1})
            assert store.get(NS, "a") is not None
            assert store.search(NS)
            assert store.list_namespaces() == [NS]
            store.delete(NS, "a")
            with pytest.raises(ValueError, match="cannot be empty"):
                store.put((), "a", {})
            await store.aput(NS, "a", {"n": 1})
            assert await store.asearch(NS)
    names = [
        "put",
        "get",
        "search",
        "list_namespaces",
        "delete",
        "put: InvalidNamespaceError",
        "put",
        "search",
    ]
    assert sink.told == [f"store.{name}" for name in names]
    assert [event["operation"] for event in events][:2] == ["store.put", "store.get"]
    assert "users" not in str(events)

    sink = Recorder()
    async with observe(LangGraphCache(), sinks=[sink]) as cache:
        cache.set({KEY: (1, None)})
        assert await cache.aget([KEY]) == {KEY: 1}
        await cache.aclear()
        assert cache.get([KEY]) == {}
    assert sink.told == ["cache.set", "cache.get", "cache.clear", "cache.get"]


def test_all_else_is_theirs() -> None:
    with open_all("memory://", store={"ttl": {"default_ttl": 5}}) as (saver, store, cache):
        seen = observe(observe(store))
        assert (seen.supports_ttl, seen.ttl_config) == (True, {"default_ttl": 5})
        seen.put(NS, "a", {"n": 1}, if_version=0)
        assert len(seen.versions(NS, "a")) == 1
        assert seen.counters() == store.counters()
        observed = observe(cache)
        observed.set({KEY: (1, None)})
        observed.delete([KEY])
        assert observed.get([KEY]) == {}
        assert observed.serde is cache.serde
        assert [backend_of(one) for one in (store, cache, seen)] == ["memory"] * 3
        assert backend_of(LangGraphStore()) == "memory"
        with pytest.raises(InvalidArgumentError, match="Use a LangGraph saver"):
            Monitor(store)  # type: ignore[arg-type] # wrong
        assert saver.stats().items == 1
