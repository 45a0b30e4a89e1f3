"""Stores of items beside LangGraph's: `python -m bench.stores [--items N] [--postgres URL]`.

Both run in turn in one process, on the same items: a user's memories, 100 of each. LangGraph's
SqliteStore needs sqlite-vec; a Python that cannot load extensions gets it built into its library.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import random
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from langgraph.store.base import GetOp, PutOp, SearchOp

from threadkeep.store import PostgresStore, SqliteStore

DIMS = 256
_TOGETHER = 100
_SHARED_LIBRARY = "libsqlite3"


def namespace(number: int) -> tuple[str, ...]:
    return ("users", f"user-{number // _TOGETHER}")


def value(number: int) -> dict[str, Any]:
    source = random.Random(number)
    return {
        "text": f"memory {number} of a user who likes {source.choice(['tea', 'rivers', 'maps'])}",
        "kind": source.choice(["fact", "wish", "plan"]),
        "score": number % 100,
        "tags": ["a", "b"],
        "source": {"thread": f"thread-{number % 7}", "step": number % 50},
    }


def embed(texts: list[str]) -> list[list[float]]:
    vectors = [np.random.default_rng(hash(text) % 2**32).standard_normal(DIMS) for text in texts]
    found: list[list[float]] = np.array(vectors, "f4").tolist()
    return found


INDEX = {"dims": DIMS, "embed": embed, "fields": ["text"]}


class Measured:
    """Microseconds an item or call, wall and CPU, by name."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    @contextmanager
    def of(self, name: str, count: int) -> Iterator[None]:
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall[name] = (time.perf_counter() - wall) / count * 1e6
        self.cpu[name] = (time.process_time() - cpu) / count * 1e6


def measure(store: Any, items: int) -> Measured:
    """Measure the blocking methods of a store that is empty."""
    found = Measured()
    some = random.Random(0).sample(range(items), min(1000, items))
    with found.of("put, 100 together", items):
        for start in range(0, items, _TOGETHER):
            numbers = range(start, start + _TOGETHER)
            store.batch([PutOp(namespace(n), f"m{n}", value(n)) for n in numbers])
    with found.of("put", 200):
        for n in some[:200]:
            store.put(namespace(n), f"m{n}", value(n))
    with found.of("get", len(some)):
        for n in some:
            store.get(namespace(n), f"m{n}")
    with found.of("get, 100 together", 10 * len(some[:_TOGETHER])):
        for _ in range(10):
            store.batch([GetOp(namespace(n), f"m{n}") for n in some[:_TOGETHER]])
    with found.of("search a user's", 200):
        for n in some[:200]:
            store.search(namespace(n))
    with found.of("search, 100 together", 10 * len(some[:_TOGETHER])):
        for _ in range(10):
            store.batch([SearchOp(namespace(n)) for n in some[:_TOGETHER]])
    with found.of("search a user's by a filter", 200):
        for n in some[:200]:
            store.search(namespace(n), filter={"kind": "wish", "score": 7})
    with found.of("search all by a filter", 10):
        for n in some[:10]:
            store.search(("users",), filter={"text": value(n)["text"]})
    with found.of("list namespaces", 10):
        for _ in range(10):
            store.list_namespaces(prefix=("users",))
    return found


def measure_vectors(store: Any, items: int) -> Measured:
    """Measure a store with vectors that is empty."""
    found = Measured()
    with found.of("put, 100 together, embedded", items):
        for start in range(0, items, _TOGETHER):
            numbers = range(start, start + _TOGETHER)
            store.batch([PutOp(namespace(n), f"m{n}", value(n)) for n in numbers])
    store.search(("users",), query="warm up")
    with found.of("nearest of a user's", 50):
        for n in range(50):
            store.search(namespace(n * items // 50), query=f"query {n}")
    with found.of("nearest of all", 10):
        for n in range(10):
            store.search(("users",), query=f"query {n}")
    return found


async def measure_async(store: Any, calls: int = 2000) -> Measured:
    """Measure operations of many tasks at once."""
    found = Measured()
    with found.of("aput, 500 tasks", calls):
        for start in range(0, calls, 500):
            numbers = range(start, start + 500)
            await asyncio.gather(*[store.aput(namespace(n), f"a{n}", value(n)) for n in numbers])
    with found.of("aget, 500 tasks", calls):
        for start in range(0, calls, 500):
            numbers = range(start, start + 500)
            await asyncio.gather(*[store.aget(namespace(n), f"a{n}") for n in numbers])
    with found.of("aget, one by one", 200):
        for n in range(200):
            await store.aget(namespace(n), f"a{n}")
    return found


def show(title: str, ours: Measured, theirs: Measured) -> None:
    print(
        f"\n{title}\n{'us, wall (CPU)':32}{'threadkeep':>20}{'LangGraph':>20}{'ratio':>8}{'CPU':>7}"
    )
    for name, wall in ours.wall.items():
        mine = f"{wall:.1f} ({ours.cpu[name]:.1f})"
        other = f"{theirs.wall[name]:.1f} ({theirs.cpu[name]:.1f})"
        ratio = f"{theirs.wall[name] / wall:.2f}"
        cpu = f"{theirs.cpu[name] / max(ours.cpu[name], 0.1):.2f}"
        print(f"{name:32}{mine:>20}{other:>20}{ratio:>8}{cpu:>7}")


def load_sqlite_vec() -> bool:
    """Give every SQLite connection sqlite-vec, also where Python cannot load extensions."""
    sqlite_vec: Any = __import__("sqlite_vec")
    if hasattr(sqlite3.Connection, "enable_load_extension"):
        return True
    maps = Path("/proc/self/maps").read_text().split()
    library = next((part for part in maps if _SHARED_LIBRARY in part), None)
    if library is None:
        return False
    extension = ctypes.CDLL(f"{sqlite_vec.loadable_path()}.so")
    entry = ctypes.cast(extension.sqlite3_vec_init, ctypes.c_void_p)
    ctypes.CDLL(library).sqlite3_auto_extension(entry)

    class Connection(sqlite3.Connection):
        def enable_load_extension(self, enable: bool, /) -> None:  # noqa: FBT001 - as sqlite3's
            del enable

    connect = sqlite3.connect
    patched: Any = sqlite3
    patched.connect = lambda *args, **options: connect(*args, **{"factory": Connection, **options})
    sqlite_vec.load = lambda _: None
    return True


def run_sqlite(items: int, vectors: int, folder: Path) -> None:
    from langgraph.store.sqlite import AsyncSqliteStore  # noqa: PLC0415 - one of two
    from langgraph.store.sqlite import SqliteStore as Theirs  # noqa: PLC0415 - one of two

    both: list[Measured] = []
    with SqliteStore(folder / "ours.db") as ours:
        both.append(measure(ours, items))
    with Theirs.from_conn_string(str(folder / "theirs.db")) as theirs:
        theirs.setup()
        both.append(measure(theirs, items))
    show(f"SQLite, {items} items", *both)

    async def awaited() -> list[Measured]:
        async with SqliteStore(folder / "ours.db") as ours:
            first = await measure_async(ours)
        async with AsyncSqliteStore.from_conn_string(str(folder / "theirs.db")) as theirs:
            return [first, await measure_async(theirs)]

    show("SQLite, async", *asyncio.run(awaited()))
    if not vectors:
        return
    with SqliteStore(folder / "ours-plain.db", index=INDEX) as ours:
        plain = measure_vectors(ours, vectors)
    if load_sqlite_vec():
        with SqliteStore(folder / "ours-vec.db", index=INDEX) as ours:
            mine = measure_vectors(ours, vectors)
        index: Any = INDEX
        with Theirs.from_conn_string(str(folder / "vec.db"), index=index) as theirs:
            theirs.setup()
            other = measure_vectors(theirs, vectors)
        show(f"SQLite, {vectors} vectors of {DIMS}, sqlite-vec", mine, other)
        show("the same, ours by numpy", plain, other)


def run_postgres(items: int, vectors: int, url: str) -> None:
    from langgraph.store.postgres import AsyncPostgresStore  # noqa: PLC0415 - one of two
    from langgraph.store.postgres import PostgresStore as Theirs  # noqa: PLC0415 - one of two

    def both(
        take: Callable[[Any, int], Measured], count: int = items, **options: Any
    ) -> list[Measured]:
        with ExitStack() as stack:
            ours = stack.enter_context(PostgresStore(url, schema="bench_ours", **options))
            theirs = stack.enter_context(Theirs.from_conn_string(url, **options))
            for store in (ours, theirs):
                store.setup()
            return [take(ours, count), take(theirs, count)]

    show(f"PostgreSQL, {items} items", *both(measure))

    async def awaited() -> list[Measured]:
        async with PostgresStore(url, schema="bench_ours") as ours:
            first = await measure_async(ours)
        async with AsyncPostgresStore.from_conn_string(url) as theirs:
            return [first, await measure_async(theirs)]

    show("PostgreSQL, async", *asyncio.run(awaited()))
    if not vectors:
        return
    both_vectors = both(measure_vectors, vectors, index=INDEX)
    show(f"PostgreSQL, {vectors} vectors of {DIMS}", *both_vectors)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--vectors", type=int, help="as many items with vectors; default: all")
    parser.add_argument("--postgres", metavar="URL", help="measure on this empty database instead")
    options = parser.parse_args(arguments)
    vectors = options.items if options.vectors is None else options.vectors
    with TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
        if options.postgres:
            run_postgres(options.items, vectors, options.postgres)
        else:
            run_sqlite(options.items, vectors, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
