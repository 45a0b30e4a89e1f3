"""Fails if a public async method of a saver, store or cache imports anything in its event loop.

Run as a program, with a folder and three URLs for each database. An import in a function counts
even if a worker thread has imported the module before, for another call.
"""

import asyncio
import builtins
import sys
import traceback
from pathlib import Path
from typing import Any

from kit.places import at
from langgraph.checkpoint.memory import InMemorySaver

from threadkeep import MemorySaver, Retention, open_saver
from threadkeep.cache import NodeCache
from threadkeep.store import Store

from .awaited_calls import call_cache, call_cold, call_savers, call_store, call_threads, graph_on

INDEX = {"embed": lambda texts: [[1.0, 2.0] for _ in texts], "dims": 2, "search": "hybrid"}

_import = builtins.__import__
_known: set[str] = set()
_found: set[str] = set()


def note(name: str) -> None:
    if asyncio._get_running_loop() is not None:
        frames = [f for f in traceback.extract_stack() if "/threadkeep/" in f.filename]
        if frames:
            _found.add(f"{name}: {Path(frames[-1].filename).name}:{frames[-1].lineno}")


class Finder:
    """Is asked for each module that is not loaded yet."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        note(name)


def importing(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level=0):
    for each in (name, *[f"{name}.{one}" for one in fromlist or ()]):
        if each.startswith("threadkeep") and each not in _known and each in sys.modules:
            note(each)
    return _import(name, globals, locals, fromlist, level)


async def main(folder: str, *urls: str) -> None:
    await graph_on(InMemorySaver()).ainvoke({"items": []}, at())
    places = [Path(folder, str(number)) for number in range(len(urls))]
    cold = [f"file://{place}/cold" for place in places]
    savers = [
        open_saver(url, retention=Retention(keep_last=9), gc_on_put=1, cold=at_cold)
        for url, at_cold in zip(urls, cold, strict=True)
    ]
    others = [MemorySaver() for _ in savers]
    stores = [Store(saver.backend, index=INDEX, history=2) for saver in savers[::3]]
    caches = [NodeCache(saver.backend) for saver in savers[::3]]
    _known.update(sys.modules)
    builtins.__import__ = importing
    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
    for number, (saver, place) in enumerate(zip(savers, places, strict=True)):
        place.mkdir(exist_ok=True)
        match number % 3:
            case 0:
                await call_store(stores[number // 3], place / "items")
                await call_cache(caches[number // 3])
                await call_savers(saver)
            case 1:
                await call_threads(saver, others[number], place)
            case _:
                await call_cold(saver)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    assert not _found, sorted(_found)
