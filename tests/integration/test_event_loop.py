"""No awaited call blocks its event loop: each public async method runs under blockbuster."""

import asyncio
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster
from kit.backends import BACKENDS, open_backend, url_of
from kit.damage import damaging
from kit.places import at
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Command

from threadkeep import KeyRing
from threadkeep.cache import open_cache
from threadkeep.memory import IntegratedCheckpointManager, LayeredCheckpointSaver, Layers
from threadkeep.sessions import CheckpointManager
from threadkeep.store import open_store
from threadkeep.streaming import StreamingCheckpointSaver

from .awaited_calls import (
    Noting,
    call_cache,
    call_cold,
    call_keys,
    call_savers,
    call_store,
    call_threads,
    every,
    graph_on,
)

pytestmark = pytest.mark.parametrize("name", BACKENDS)
KEYS = pytest.mark.parametrize("keys", [None, KeyRing([b"k" * 32])], ids=["plain", "keys"])


@contextmanager
def watched() -> Iterator[None]:
    """Fail if anything in the block blocks an event loop, also where the error is caught."""
    found: list[str] = []

    class Blocking(blockbuster.BlockingError):
        def __init__(self, func: str) -> None:
            super().__init__(func)
            frames = traceback.extract_stack()[-9:-2]
            found.append("\n".join([func, *traceback.format_list(frames)]))

    original = blockbuster.BlockingError
    blockbuster.BlockingError = Blocking  # type: ignore[misc]
    try:
        with blockbuster.blockbuster_ctx() as watching:
            for function in watching.functions.values():  # functions of other libraries
                function.can_block_in("logging/__init__.py", {"emit", "flush"})
                function.can_block_in("redis/utils.py", {"get_lib_version"})
            yield
    except Blocking:
        pass  # it is in the list, with its place
    finally:
        blockbuster.BlockingError = original  # type: ignore[misc]
    assert not found, "\n\n".join(found)


@pytest.fixture(autouse=True)
def _made(name: str, tmp_path: Path) -> None:
    """Make the schema or prefix that stands for the folder, which blocks."""
    url_of(name, tmp_path)


async def test_savers(name, tmp_path):
    with watched():
        await call_savers(open_backend(name, tmp_path))


async def test_savers_with_keys(name, tmp_path):
    keys: Any = {"keys": KeyRing.generate(), "key_store": f"sqlite:///{tmp_path / 'keys.db'}"}
    with watched():
        await call_keys(open_backend(name, tmp_path, thread_keys=True, **keys))


@KEYS
async def test_threads(name, tmp_path, keys):
    with watched():
        saver, other = open_backend(name, tmp_path, keys=keys), open_backend("memory", tmp_path)
        await call_threads(saver, other, tmp_path)


@KEYS
async def test_repairs(name, tmp_path, keys):
    with watched():
        saver = open_backend(name, tmp_path, keys=keys)
        await graph_on(saver).ainvoke({"items": ["x"]}, at("a"))
        head = await saver.aget_tuple(at("a"))
        harm = await asyncio.to_thread(damaging, name, saver, tmp_path)
        await asyncio.to_thread(harm.manifest, "a", head.checkpoint["id"])
        assert (await saver.threads.arepair(file=tmp_path / "out.tkq")).file
        await saver.aclose()


@KEYS
async def test_the_cold_store(name, tmp_path, keys):
    with watched():
        await call_cold(open_backend(name, tmp_path, cold=f"file://{tmp_path / 'cold'}", keys=keys))


async def test_graphs_that_are_interrupted_and_resumed(name, tmp_path):
    """Turn after turn of one thread, whose head this process has just written."""
    with watched():
        saver = open_backend(name, tmp_path)
        graph = graph_on(saver, asks=True)
        for turn in range(3):
            await graph.ainvoke({"items": [turn]}, at("a"))
            await graph.ainvoke(Command(resume="yes"), at("a"))
            await graph.aget_state(at("a"))
        await every(graph.aget_state_history(at("a")))
        await saver.aclose()


@KEYS
async def test_stores(name, tmp_path, keys):
    url = "memory://" if name == "memory" else url_of(name, tmp_path)
    index = None if keys else {"search": "text", "fields": ["$"]}
    with watched():
        store = open_store(url, index=index, history=2, keys=keys)
        await call_store(store, tmp_path / "items")


@KEYS
async def test_caches(name, tmp_path, keys):
    url = "memory://" if name == "memory" else url_of(name, tmp_path)
    with watched():
        await call_cache(open_cache(url, keys=keys))


async def test_layers(name, tmp_path):
    layers = Layers(full_window=2, summary_window=4, batch=1)

    def told(messages: list[Any], before: str) -> str:
        return "a summary"

    with watched():
        opened = LayeredCheckpointSaver(open_backend(name, tmp_path), layers, summarizer=told)
        saver, groups = Noting(opened), Noting(opened.groups)
        for turn in range(6):
            question = HumanMessage(f"q{turn}", id=f"q{turn}")
            await saver.asave("a", [*await saver.aload("a"), question, AIMessage(f"{turn}")])
        for call in (saver.afull_messages, saver.alayers, saver.ausage, saver.asummary):
            await call("a")
        assert await saver.asearch_messages("a", query="q1")
        await saver.aview(at("a"), [])
        await saver.aedit("a", [HumanMessage("other", id="q1")])
        await saver.aremove("a", ["q2"])
        await saver.apin("a", "q0")
        await saver.aresummarize("a")
        await saver.asplit("a", "b")
        await groups.alist("a")
        await groups.aeffective_count("a")
        await groups.aregroup("a", [(0, 1, "topic")])
        made = await groups.acollapse("a", 0, 2, "topic", "told")
        await groups.aexpand("a", made.key)
        integrated = IntegratedCheckpointManager(opened)
        await integrated.asave_checkpoint_optimized(at("c"), [HumanMessage("q", id="q")])
        await integrated.aload(at("c"))
        await saver.adelete_thread("b")
        await saver.aerase("a")
        await saver.aclose()
    of_savers = {name for name in dir(BaseCheckpointSaver) if name.startswith("a")}
    assert saver.missing() <= of_savers
    assert not groups.missing()


async def test_streams(name, tmp_path):
    with watched():
        opened = StreamingCheckpointSaver(open_backend(name, tmp_path), interval=0.01)
        saver = Noting(opened)
        stream = await saver.astart_streaming("a")
        await stream.aupdate("text")
        await saver.aupdate("a", "more")
        await saver.apartial("a")
        await stream.astop()
        async with opened.streaming("a") as other:
            await other.aupdate("text")
        await saver.adiscard_partial("a")
        await saver.aclose()


async def test_sessions(name, tmp_path):
    with watched():
        manager = Noting(CheckpointManager(open_backend(name, tmp_path)))
        made = [await manager.acreate_checkpoint("s", "w", {"n": n}) for n in range(3)]
        await manager.aget_checkpoint("s", made[0])
        await manager.aget_latest_checkpoint("s")
        await manager.alist_checkpoints("s")
        await manager.arestore_from_checkpoint("s", made[1])
        await manager.adelete_checkpoint("s", made[0])
        await manager.acleanup_old_checkpoints("s", 1)
        await manager.aclose()
    assert not manager.missing()
