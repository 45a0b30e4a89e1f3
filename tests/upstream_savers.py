"""Pytest plugin that runs LangGraph's own tests with our classes (`scripts/upstream`).

Our classes take the place of LangGraph's: its SQLite, PostgreSQL and Redis classes by ours of the
same name; its in-memory classes, and the fixtures of its `conftest`, by ours on each store. Tests
that reach no such class are left out. `upstream_left_out` names those that are left out besides,
each with its reason.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import redis
from kit.backends import BACKENDS, open_backend, url_of
from kit.redis import url as redis_url
from langgraph.cache import memory as memory_cache
from langgraph.cache import redis as redis_cache
from langgraph.cache import sqlite as sqlite_cache
from langgraph.checkpoint import memory, postgres, sqlite
from langgraph.checkpoint.postgres import aio as postgres_aio
from langgraph.checkpoint.sqlite import aio as sqlite_aio
from langgraph.store import memory as memory_store
from langgraph.store import postgres as postgres_store
from langgraph.store import sqlite as sqlite_store
from psycopg.conninfo import conninfo_to_dict
from upstream_left_out import LEFT_OUT

import threadkeep
from threadkeep import cache as our_caches
from threadkeep import store as our_stores

STORES = tuple(filter(None, os.environ.get("TK_UPSTREAM_STORES", "").split(","))) or BACKENDS
PACKAGE = os.environ["TK_UPSTREAM_PACKAGE"]


def _url(name: str, folder: Path) -> str:
    return "memory://" if name == "memory" else url_of(name, folder)


def _open_store(name: str, folder: Path, **options: Any) -> Any:
    store = our_stores.open_store(_url(name, folder), **options)
    if "index" in options:
        store.setup()  # in memory there is nothing to set up; in PostgreSQL the tables of vectors
    return store


def _open_cache(name: str, folder: Path, **options: Any) -> Any:
    return our_caches.open_cache(_url(name, folder), **options)


ON_EACH_STORE: dict[type, tuple[type, Callable[..., Any]]] = {
    memory.InMemorySaver: (threadkeep.Saver, open_backend),
    memory_store.InMemoryStore: (our_stores.Store, _open_store),
    memory_cache.InMemoryCache: (our_caches.NodeCache, _open_cache),
}
"""Ours in place of LangGraph's classes that keep everything in memory, and what opens it."""


class _PostgresStore(our_stores.PostgresStore):
    """Ours, with the two attributes by which LangGraph's fixtures change its tables."""

    MIGRATIONS = ()

    @contextmanager
    def _cursor(self) -> Iterator[Mock]:
        yield Mock()


class _AsyncPostgresStore(our_stores.AsyncPostgresStore):
    MIGRATIONS = ()

    @asynccontextmanager
    async def _cursor(self) -> AsyncIterator[AsyncMock]:
        yield AsyncMock()


DROP_IN: dict[type, tuple[str, type]] = {
    sqlite.SqliteSaver: ("sqlite", threadkeep.SqliteSaver),
    sqlite_aio.AsyncSqliteSaver: ("sqlite", threadkeep.AsyncSqliteSaver),
    sqlite_store.SqliteStore: ("sqlite", our_stores.SqliteStore),
    sqlite_store.AsyncSqliteStore: ("sqlite", our_stores.AsyncSqliteStore),
    sqlite_cache.SqliteCache: ("sqlite", our_caches.SqliteCache),
    postgres.PostgresSaver: ("postgres", threadkeep.PostgresSaver),
    postgres_aio.AsyncPostgresSaver: ("postgres", threadkeep.AsyncPostgresSaver),
    postgres_store.PostgresStore: ("postgres", _PostgresStore),
    postgres_store.AsyncPostgresStore: ("postgres", _AsyncPostgresStore),
    redis_cache.RedisCache: ("redis", our_caches.RedisCache),
}
"""The store that a class of LangGraph's needs, and ours of the same name."""


# -- fixtures -------------------------------------------------------------------------


class _Opened:
    """Opens savers, stores and caches of ours on one store, each empty."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._folder, self._count = name, folder, 0

    def new(self, open_it: Callable[..., Any], **options: Any) -> Any:
        self._count += 1
        folder = self._folder / f"tk{self._count}"
        folder.mkdir()
        return open_it(self.name, folder, **options)

    def class_of(self, base: type, open_it: Callable[..., Any]) -> type:
        """A class of ours whose objects are on this store."""

        def new(cls: type, **options: Any) -> Any:
            instance = self.new(open_it, **options)
            instance.__class__ = cls
            return instance

        return type(base.__name__, (base,), {"__new__": new, "__init__": lambda *_, **__: None})


@pytest.fixture(params=STORES)
def tk_store(request: pytest.FixtureRequest) -> _Opened:
    """The store of one case: what `pytest_runtest_protocol` has prepared."""
    return request.node.stash[_OPENED]


_OPENED = pytest.StashKey[_Opened]()


@pytest.fixture
def sync_checkpointer(tk_store: _Opened) -> Iterator[Any]:
    with tk_store.new(open_backend) as saver:
        yield saver


@pytest.fixture
async def async_checkpointer(tk_store: _Opened) -> AsyncIterator[Any]:
    async with tk_store.new(open_backend) as saver:
        yield saver


@pytest.fixture
def sync_store(tk_store: _Opened) -> Iterator[Any]:
    with tk_store.new(_open_store) as store:
        yield store


@pytest.fixture
async def async_store(tk_store: _Opened) -> AsyncIterator[Any]:
    async with tk_store.new(_open_store) as store:
        yield store


@pytest.fixture
def cache_of_nodes(tk_store: _Opened) -> Iterator[Any]:
    with tk_store.new(_open_cache) as opened:
        yield opened


FIXTURES = {
    "sync_checkpointer": sync_checkpointer,
    "async_checkpointer": async_checkpointer,
    "sync_store": sync_store,
    "async_store": async_store,
    "cache": cache_of_nodes,
}


# -- the classes that a test reaches --------------------------------------------------


def _codes(thing: object) -> Iterator[CodeType]:
    """The code of a function, of a class's methods, or of a fixture."""
    thing = getattr(thing, "__wrapped__", None) or getattr(thing, "_fixture_function", thing)
    if isinstance(thing, FunctionType):
        yield thing.__code__
    elif isinstance(thing, type):
        for member in vars(thing).values():
            if member is not thing:
                yield from _codes(member)
    elif isinstance(thing, CodeType):
        yield thing


@cache
def _reached(module: ModuleType, thing: object) -> frozenset[type]:
    """The classes of LangGraph's that something in a module refers to, through others too."""
    found: set[type] = set()
    todo, seen = list(_codes(thing)), set()
    while todo:
        code = todo.pop()
        if code in seen:
            continue
        seen.add(code)
        todo += [const for const in code.co_consts if isinstance(const, CodeType)]
        for name in code.co_names:
            value = ORIGINALS.get((module.__name__, name), vars(module).get(name))
            if isinstance(value, type) and value in REPLACED:
                found.add(value)
            elif getattr(value, "__module__", None) == module.__name__:
                todo += _codes(value)
    return frozenset(found)


REPLACED = ON_EACH_STORE.keys() | DROP_IN.keys()
ORIGINALS: dict[tuple[str, str], type] = {}
"""LangGraph's classes, by module and name, where ours stand now."""


def _classes(module: ModuleType, test: object, cls: type | None, fixtures: list[str]) -> set[type]:
    things = [test, cls, *(vars(module).get(name) for name in fixtures)]
    return set().union(*(_reached(module, thing) for thing in things if thing is not None))


# -- hooks ----------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "flaky(retries): a mark of LangGraph's tests")
    for word, value in conninfo_to_dict(os.environ["TK_TEST_POSTGRES"]).items():
        os.environ[{"dbname": "PGDATABASE"}.get(word, f"PG{word.upper()}")] = str(value)
    # Our schema has the role's name: LangGraph's fixtures would empty it in another worker's test.
    os.environ["PGOPTIONS"] = "-c search_path=public"


@pytest.hookimpl(tryfirst=True)
def pytest_plugin_registered(plugin: object) -> None:
    """Replace the fixtures of LangGraph's `conftest` before pytest has looked at it."""
    if isinstance(plugin, ModuleType) and plugin.__name__ == "tests.conftest":
        for name in FIXTURES.keys() & vars(plugin).keys():
            setattr(plugin, name, FIXTURES[name])
        _use_our_servers(plugin)


def _use_our_servers(module: ModuleType) -> None:
    """Let a module's URLs name the servers of this run."""
    for name, value in list(vars(module).items()):
        if isinstance(value, str) and value.startswith("postgres://postgres:postgres@localhost"):
            database = value.rpartition("/")[2]
            setattr(module, name, f"postgres:///{database}")
        if value is redis:
            client = partial(_Redis.from_url, redis_url())
            ours = SimpleNamespace(Redis=client, ConnectionError=redis.ConnectionError)
            setattr(module, name, ours)


class _Redis(redis.Redis):
    """A client whose `flushdb` leaves the other tests' keys."""

    @classmethod
    def from_url(cls, url: str, **options: Any) -> _Redis:
        unused = ("host", "port", "db")
        return super().from_url(url, **{k: v for k, v in options.items() if k not in unused})

    def flushdb(self, *_: Any, **__: Any) -> None:
        for key in self.scan_iter("test:cache:*"):
            self.delete(key)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> None:
    """Replace the classes of the test's module; run the test on each store that fits."""
    if not name.startswith(("test", "Test")) or not hasattr(collector, "module"):
        return
    module = collector.module
    _use_our_servers(module)
    for each, value in list(vars(module).items()):
        if isinstance(value, type) and value in DROP_IN:
            ORIGINALS[module.__name__, each] = value
            setattr(module, each, DROP_IN[value][1])
    if _reached(module, obj) & ON_EACH_STORE.keys():
        pytest.mark.usefixtures("tk_store")(obj)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Function) -> Iterator[None]:
    """Put the in-memory classes that the test's module imports on the store of this case."""
    case = getattr(item, "callspec", None)
    if case is None or "tk_store" not in case.params:
        return (yield)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        opened = item.stash[_OPENED] = _Opened(case.params["tk_store"], Path(folder))
        for name, value in list(vars(item.module).items()):
            if isinstance(value, type) and value in ON_EACH_STORE:
                patch.setattr(item.module, name, opened.class_of(*ON_EACH_STORE[value]))
        return (yield)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out whole modules unread: they may import missing packages."""
    return str(collection_path.relative_to(config.rootpath)) in LEFT_OUT.get(PACKAGE, {}) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    left_out = tuple(LEFT_OUT.get(PACKAGE, {}))
    dropped = [item for item in items if not _ours(item) or item.nodeid.startswith(left_out)]
    out = set(dropped)
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=dropped)


def _ours(item: pytest.Function) -> bool:
    """Return True if a test reaches a class of ours, on a requested store."""
    if "tk_store" in item.fixturenames:
        return True
    classes = _classes(item.module, item.function, item.cls, item.fixturenames)
    return any(DROP_IN[cls][0] in STORES for cls in classes & DROP_IN.keys())
