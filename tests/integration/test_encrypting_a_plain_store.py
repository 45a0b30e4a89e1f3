"""A rotation of plain values leaves no plain text: in rows, indexes, caches and removed rows."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import psycopg
import pytest
import redis
from kit import redis as redis_kit
from kit.backends import SHARED, open_backend, url_of
from kit.cli import threadkeep
from kit.marked import holds
from kit.places import at
from kit.postgres_server import server
from kit.remnants import remnants
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph, add_messages
from typing_extensions import TypedDict

from threadkeep import Compression, KeyRing, NodeCache, Retention, Saver, Store, open_saver
from threadkeep.memory import LayeredCheckpointSaver, Layers

RING = KeyRing([b"k" * 32])
LAYERS = Layers(full_window=2, summary_window=4, archive_threshold=6, batch=1)
PLAIN = Compression(level=0)


def embed(texts: list[str]) -> list[list[float]]:
    return [[float(len(text)), 1.0] for text in texts]


INDEXES: dict[str, Any] = {
    "text": {"search": "text"},
    "both": {"search": "hybrid", "dims": 2, "embed": embed},
}


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


@pytest.fixture
def mark() -> str:
    """A word of its own for each test: tests share servers."""
    return f"marked{uuid4().hex}"


def fill(saver: Saver, mark: str, index: str = "text") -> None:
    """Put a marked text everywhere where a plain store keeps text."""

    def node(_: Any) -> Any:
        return {"messages": [AIMessage(f"an answer with {mark}")]}

    layered = LayeredCheckpointSaver(saver, LAYERS)
    graph = StateGraph(State).add_node(mark, node).add_edge(START, mark)
    running = graph.compile(checkpointer=layered)
    for number in range(6):
        running.invoke({"messages": [HumanMessage(f"{number} {mark}")]}, at("t"))
    assert layered.search_messages("t", query=mark)
    layered.index.close()
    saver.threads.tag("t", mark)
    items = Store(saver.backend, index={**INDEXES[index], "fields": ["text"]}, history=2)
    items.setup()
    for number in range(3):
        items.put(("notes",), "k", {"text": f"{mark} {number}"})
        items.put(("notes",), f"deleted {number}", {"text": mark})
        items.delete(("notes",), f"deleted {number}")
    assert items.search((), query=mark)
    cache = NodeCache(saver.backend)
    cache.setup()
    cache.set({(("node",), "k"): ([mark], None)})
    cache.close()


def check(saver: Saver, mark: str) -> None:
    """Check that all text is there, apart from what can be made again."""
    found = saver.get_tuple(at("t"))
    assert found is not None
    assert mark in repr(found.checkpoint["channel_values"]["messages"])
    assert mark in saver.threads.get("t").tags
    items = Store(saver.backend, history=2)
    assert [one.value for one in items.search(())] == [{"text": f"{mark} 2"}]
    assert [one.value for one in items.versions(("notes",), "k")][-1] == {"text": f"{mark} 0"}
    assert NodeCache(saver.backend).get([(("node",), "k")]) == {}
    assert LayeredCheckpointSaver(saver, LAYERS).search_messages("t", query=mark)
    assert saver.check().ok


@pytest.mark.parametrize("searchable", [[], ["user"]], ids=["opened", "by digest"])
@pytest.mark.parametrize(("old", "new"), ["ab", "ba"])
def test_metadata_that_changes_meanwhile_has_its_new_value(
    searchable: list[str], old: str, new: str, tmp_path: Path
) -> None:
    graph = StateGraph(State).add_node("node", lambda _: {}).add_edge(START, "node")

    def run(saver: Saver, user: str) -> None:
        config: Any = {**at("t"), "metadata": {"user": user}}
        graph.compile(checkpointer=saver).invoke({"messages": []}, config)

    def shown(saver: Saver) -> tuple[Any, int, int]:
        counts = [saver.threads.count(metadata={"user": user}) for user in (old, new)]
        return saver.threads.get("t").metadata, *counts

    with open_backend("sqlite", tmp_path) as saver:
        run(saver, old)
    options: dict[str, Any] = {"keys": RING, "searchable": searchable}
    with open_backend("sqlite", tmp_path, allow_plaintext="migrate", **options) as saver:
        run(saver, new)
        assert shown(saver)[0] == {"user": new}
        saver.rotate_keys()
    with open_backend("sqlite", tmp_path, **options) as saver:
        assert shown(saver) == ({"user": new}, 0, 1)


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("compression", [PLAIN, None], ids=["plain", "compressed"])
def test_in_a_sqlite_file(index: str, compression: Any, mark: str, tmp_path: Path) -> None:
    options: Any = {"compression": compression, "search": "messages"}
    with open_backend("sqlite", tmp_path, **options) as saver:
        fill(saver, mark, index)
        assert saver.threads.find(mark).indexed
        assert remnants(tmp_path, mark)
    migrating = {"keys": RING, "allow_plaintext": "migrate"}
    with open_backend("sqlite", tmp_path, **migrating) as saver:
        assert saver.rotate_keys(dry_run=True).cleared == ()
        report = saver.rotate_keys()
        assert any("the SQLite file" in place for place in report.cleared)
        assert any("index=" in place for place in report.remains)
        assert remnants(tmp_path, mark) == {}
    with open_backend("sqlite", tmp_path, keys=RING) as saver:
        check(saver, mark)
        assert not saver.threads.find(mark).indexed
        assert saver.rotate_keys().cleared == ()
    assert remnants(tmp_path, mark) == {}


def test_a_reader_in_the_way_is_reported(mark: str, tmp_path: Path) -> None:
    with open_backend("sqlite", tmp_path) as saver:
        fill(saver, mark)
    options: Any = {"keys": RING, "allow_plaintext": "migrate", "busy_timeout": 0.2}
    with open_backend("sqlite", tmp_path, **options) as saver:
        with closing(sqlite3.connect(tmp_path / "threads.db", isolation_level=None)) as db:
            db.execute("BEGIN")
            db.execute("SELECT count(*) FROM tk_threads").fetchone()
            report = saver.rotate_keys()
        assert any(one.startswith("Removed rows in the store's files") for one in report.remains)
        saver.rotate_keys()
    assert remnants(tmp_path, mark) == {}


def test_the_command_says_what_it_cleared(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_backend("sqlite", tmp_path) as saver:
        fill(saver, mark)
    monkeypatch.setenv("TK_KEYS", RING.as_text())
    url = url_of("sqlite", tmp_path)
    monkeypatch.setenv("THREADKEEP_ALLOW_PLAINTEXT", "migrate")
    code, out, _ = threadkeep("rotate", url)
    assert (code, [line for line in out if line.startswith("Cleared: ")] != []) == (0, True)
    assert any(line.startswith("Remaining: ") for line in out)
    _, out, _ = threadkeep("rotate", url, "--json")
    assert "indexes" in json.loads("".join(out))["cleared"][0]
    assert remnants(tmp_path, mark) == {}


@pytest.fixture(scope="module")
def own() -> Iterator[Any]:
    """A PostgreSQL server whose files a test may read."""
    with server() as started:
        yield started


def test_in_postgresql_files(own: Any, mark: str) -> None:
    def found() -> dict[str, int]:
        with psycopg.connect(own.url(), autocommit=True) as admin:
            admin.execute("CHECKPOINT")
        return remnants(own.data / "base", mark)

    url = f"{own.url()}?schema=migrated"
    with open_saver(url, compression=PLAIN, max_size=2, search="messages") as saver:
        saver.setup()
        fill(saver, mark)
        with psycopg.connect(own.url(), autocommit=True) as admin:
            admin.execute("ANALYZE")
    assert found()
    with open_saver(url, keys=RING, allow_plaintext="migrate", max_size=2) as saver:
        report = saver.rotate_keys()
        assert any("rewrite=True" in place for place in report.remains)
        saver.rotate_keys(rewrite=True)
    assert found() == {}
    with open_saver(url, keys=RING, max_size=2) as saver:
        check(saver, mark)


def test_in_redis(mark: str, tmp_path: Path) -> None:
    with open_backend("redis", tmp_path, compression=PLAIN) as saver:
        fill(saver, mark)
    assert _keys_with(mark)
    with open_backend("redis", tmp_path, keys=RING, allow_plaintext="migrate") as saver:
        saver.rotate_keys()
    assert _keys_with(mark) == []
    with open_backend("redis", tmp_path, keys=RING) as saver:
        check(saver, mark)


def _keys_with(mark: str) -> list[bytes]:
    with redis.Redis.from_url(redis_kit.url()) as client:
        return [key for key in client.scan_iter(count=1000) if _holds(client, key, mark.encode())]


def _holds(client: Any, key: bytes, mark: bytes) -> bool:
    reads = {
        b"hash": lambda: [*client.hgetall(key).items()],
        b"string": lambda: [(client.get(key),)],
        b"zset": lambda: [(member,) for member in client.zrange(key, 0, -1)],
        b"set": lambda: [(member,) for member in client.smembers(key)],
        b"list": lambda: [(member,) for member in client.lrange(key, 0, -1)],
    }
    kind = client.type(key)
    if kind == b"none":
        return False
    parts = [part for row in reads[kind]() for part in row]
    return any(holds(part, [mark]) for part in parts if part is not None)


@pytest.mark.parametrize("options", [{}, {"thread_keys": True}], ids=["ring", "thread keys"])
@pytest.mark.parametrize("first", [None, "aa", "t", "u"])
@pytest.mark.parametrize("store", SHARED)
def test_forks_share_values_as_before(
    store: str, first: str | None, options: dict[str, Any], tmp_path: Path
) -> None:
    """Also those that sort before their origin, and those whose origin was changed first."""
    if options:
        options = {**options, "key_store": f"sqlite:///{tmp_path / 'keys.db'}"}

    def run(saver: Saver, thread: str) -> None:
        node = StateGraph(State).add_node("n", lambda _: {"messages": [AIMessage("yes " * 90)]})
        graph = node.add_edge(START, "n").compile(checkpointer=saver)
        graph.invoke({"messages": [HumanMessage("hello " * 90)]}, at(thread))

    def states(saver: Saver) -> list[Any]:
        found = [saver.get_tuple(at(thread)) for thread in ("aa", "fork", "t", "u", "zz")]
        return [one and one.checkpoint["channel_values"]["messages"] for one in found]

    with open_backend(store, tmp_path) as saver:
        for thread in ("t", "zz"):
            run(saver, thread)
        saver.threads.fork("zz", None, "aa")
        saver.threads.fork("t", None, "u")
        run(saver, "t")
        run(saver, "u")
    migrating = {"keys": RING, "allow_plaintext": "migrate", **options}
    with open_backend(store, tmp_path, **migrating) as saver:
        if first is not None:
            run(saver, first)
            saver.threads.fork(first, None, "fork")
        before = states(saver)
        saver.rotate_keys()
        assert states(saver) == before
    with open_backend(store, tmp_path, keys=RING, **options) as saver:
        assert states(saver) == before
        assert saver.check().ok
        for thread in ("u", "aa"):
            run(saver, thread)
            saver.threads.gc(Retention(keep_last=1))
        after = states(saver)
        if options:
            saver.shred("zz", forks=True)
            assert saver.get_tuple(at("zz")) is None
            assert saver.get_tuple(at("aa")) is None
    with open_backend(store, tmp_path, keys=RING, **options) as saver:
        assert states(saver)[2:4] == after[2:4]
