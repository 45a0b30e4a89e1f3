"""Calls of each public async method of a saver and of `saver.threads`."""

import inspect
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from operator import add
from pathlib import Path
from typing import Annotated, Any

import pytest
from kit.places import at
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from threadkeep import Retention, Tiering, WarmTier
from threadkeep.errors import InvalidArgumentError, ThreadNotFoundError


class Noting:
    """Passes calls on, and notes which async methods were called."""

    def __init__(self, of: Any) -> None:
        self._of = of
        self._called: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self._called.add(name)
        return getattr(self._of, name)

    def missing(self) -> set[str]:
        """The public async methods that were not called."""
        names = {
            name
            for name, method in inspect.getmembers(type(self._of))
            if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
            if not name.startswith("_")
        }
        return names - self._called


class State(TypedDict):
    items: Annotated[list[Any], add]


def graph_on(saver: Any, *, asks: bool = False) -> Any:
    """A graph of one node, which may ask and wait for the answer."""

    async def node(state: Any) -> Any:
        return {"items": [interrupt("?") if asks else "one"]}

    return StateGraph(State).add_node(node).add_edge(START, "node").compile(checkpointer=saver)


async def every(found: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in found]


async def call_savers(opened: Any) -> None:
    """Call each public async method of a saver; the last one closes it."""
    saver = Noting(opened)
    graph = graph_on(opened)
    await saver.asetup()
    for thread in ("a", "a", "b", "c"):
        await graph.ainvoke({"items": ["x"]}, at(thread))
    found = await every(saver.alist(at("a")))
    await every(saver.alist(None, filter={"source": "loop"}, limit=3))
    await saver.aget(at("a"))
    head = await saver.aget_tuple(at("a"))
    await saver.aget_delta_channel_history(config=head.config, channels=["items"])
    await graph.aupdate_state(at("a"), {"items": ["y"]})
    await saver.araw(at("a"))
    await saver.aput_writes(head.config, [("items", ["z"])], "task")
    await saver.aput(head.config, {**head.checkpoint, "id": "1f"}, head.metadata, {})
    await saver.aput_many([(head.config, {**head.checkpoint, "id": "2f"}, head.metadata, {})])
    await saver.acopy_thread("a", "copy")
    await saver.adelete_checkpoints("a", [found[-1].config["configurable"]["checkpoint_id"]])
    await saver.adelete_for_runs(["run"])
    await saver.aprune(["copy"])
    await saver.apartial("a")
    await saver.adiscard_partial("a")
    await saver.astats(exact=True)
    await saver.acheck()
    await saver.aclear_cache()
    await saver.adelete_thread("a")
    await saver.aclose()
    assert saver.missing() == {"arotate_keys", "ashred", "ashred_tenant"}


async def call_keys(opened: Any) -> None:
    """Call the async methods of a saver whose threads have keys of their own."""
    tenant = opened.for_tenant("acme")
    for saver in (opened, tenant):
        for thread in ("a", "a", "b"):
            await graph_on(saver).ainvoke({"items": ["x"]}, at(thread))
        await saver.threads.atag("a", "t")
        await saver.threads.afork("a", None, "fork")
        assert [one.id for one in (await saver.threads.asearch(tags=["t"])).threads] == ["a"]
    await opened.arotate_keys()
    assert len((await opened.ashred("a", forks=True)).keys) == 2
    assert len((await tenant.ashred("b")).keys) == 1
    assert (await opened.ashred_tenant("acme")).erased.threads
    assert [one.id for one in (await opened.threads.asearch()).threads] == ["b"]
    await opened.aclose()


async def ask_and_answer(threads: Any, graph: Any) -> None:
    await graph.ainvoke({"items": ["x"]}, at("asks"))
    (one,) = await threads.ainterrupts("asks")
    await threads.aanswer("asks", {one.id: "y"}, one.checkpoint_id)
    assert (await graph.ainvoke(None, at("asks")))["items"] == ["x", "y"]


async def look_for(threads: Any) -> None:
    assert [one.id for one in await every(threads.ascan())] == ["a", "b", "c", "new"]
    assert await threads.acount() == 4
    assert [one.thread.id for one in (await threads.afind("new")).hits] == ["new"]
    with suppress(InvalidArgumentError):  # (on stores without an index of messages)
        assert await threads.aindex() == 3


async def call_threads(saver: Any, other: Any, folder: Path) -> None:
    """Call each public async method of `saver.threads` that needs no cold store."""
    file, theirs = folder / "bundle", InMemorySaver()
    await graph_on(theirs).ainvoke({"items": ["x"]}, at("theirs"))
    threads = Noting(saver.threads)
    graph = graph_on(saver)
    for thread in ("a", "a", "b", "c"):
        await graph.ainvoke({"items": ["x"]}, at(thread))
    first = (await every(saver.alist(at("a"))))[-1].config["configurable"]["checkpoint_id"]
    assert (await threads.acreate("new", tags=["t"])).state == "created"
    await threads.aupdate("a", metadata={"k": 1}, ttl=timedelta(days=1))
    await threads.atag("a", "t", "u")
    await threads.auntag("a", "t")
    await threads.apin("a")
    found = await threads.aget("a")
    assert (found.metadata, found.tags, found.pinned) == ({"k": 1}, ("u",), True)
    assert not (await threads.aunpin("a")).pinned
    assert [one.id for one in await threads.asearch(metadata={"k": 1})] == ["a"]
    await look_for(threads)
    await threads.abranches("a")
    await threads.abranches_by_ns("a")
    await threads.adiff("a", first)
    await threads.adiff_checkpoints(("a", first), ("a", None))
    await threads.aversions("a", "items")
    assert (await threads.agrowth("a")).bytes > 0
    assert (await threads.afork("a", None, "fork")).forked_from[0] == "a"
    await graph.ainvoke({"items": ["x"]}, at("fork"))
    assert (await threads.amerge_fork("fork", "a")).channels == ("items",)
    edited = await threads.aedit("fork", {"items": ["edited"]})
    assert (await saver.aget(edited))["channel_values"]["items"] == ["edited"]
    await threads.afork("a", None, "left")
    await threads.adiscard_fork("left", delete=True)
    assert (await threads.aretain("b", Retention(keep_last=1))).retention is not None
    assert {one.thread for one in (await threads.agc(Retention(keep_last=2))).threads} > {"a", "b"}
    await threads.aexport_bundle(None, file)
    with pytest.raises(ThreadNotFoundError):
        await threads.aexport_bundle(["a", "absent"], folder / "other")
    await threads.aimport_bundle(file, replace=True)
    await threads.amirror(other)
    assert [
        (await copy(theirs, ["theirs"])).threads for copy in (threads.aadopt, threads.aleave)
    ] == [1, 1]
    with pytest.raises(InvalidArgumentError, match="migrations"):
        await threads.aupgrade()
    assert await threads.arolled_back(await threads.aheads()) == {}
    await ask_and_answer(threads, graph_on(saver, asks=True))
    await threads.arepair(dry_run=True)
    await threads.arepair(file=folder / "quarantine")
    await threads.aerase("c", rewrite=True)
    await threads.adelete_account({"k": 1}, namespaces=[("users", "u1")])
    await saver.aclose()
    await other.aclose()
    assert threads.missing() == {"aarchive", "arestore", "aoffload", "atier"}


async def call_cold(saver: Any) -> None:
    """Call the public async methods of `saver.threads` that need a cold store."""
    graph = graph_on(saver)
    for value in ("x" * 5_000, "y"):
        await graph.ainvoke({"items": [value]}, at("a"))
    await saver.threads.aarchive("a")
    await saver.aget_tuple(at("a"))  # brings it back
    await saver.threads.aarchive("a")
    await saver.threads.arestore("a")
    await saver.threads.aoffload("a", over=1024)
    await saver.aget_tuple(at("a"))
    tiered = await saver.threads.atier(Tiering(warm=WarmTier(max_age=1e-6)))
    assert [one.thread for one in tiered.archived] == ["a"]
    await saver.aclose()


async def call_store(opened: Any, file: Path) -> None:
    """Call each public async method of a store; the last one closes it."""
    store, ns = Noting(opened), ("users", "1")
    await store.asetup()
    for text in ("red", "blue"):
        await store.aput(ns, "k", {"text": text}, ttl=None)
        await store.aget(ns, "k")
    await store.abatch([])
    await store.asearch(ns, query="blue", filter={"text": "blue"})
    await store.alist_namespaces()
    await store.aversions(ns, "k")
    await store.aembed_pending()
    await store.asweep_ttl()
    with pytest.raises(InvalidArgumentError, match="migrations"):
        await store.aupgrade()
    await store.aexport_items(file)
    await store.aimport_items(file)
    await store.adelete(ns, "k")
    await store.aerase(ns)
    await store.aclose()
    assert not store.missing()


async def call_cache(opened: Any) -> None:
    """Call each public async method of a cache; the last one closes it."""
    cache, key = Noting(opened), (("node",), "key")
    await cache.asetup()
    await cache.aset({key: (1, None)})
    await cache.aget([key])
    await cache.adelete([key])
    await cache.aclear()
    await cache.aclose()
    assert not cache.missing()
