"""Raw files after each operation that promises removal: of a marked text nothing is left in them.

Everything is looked through: the database, its log files, the cold store, exports; compressed
frames are opened.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.backends import open_backend
from kit.engine import Chain, everything, fresh
from kit.remnants import remnants

from threadkeep import MemorySaver, Retention, SqliteSaver
from threadkeep._core.codec.frame import Compression
from threadkeep._core.engine.model import ReadSegments, ReadThread, Span
from threadkeep._core.engine.operation import fetch
from threadkeep.savers.saver import Saver

MARKER = "marker-91c5e0f27a"
LATER = "later-3f6ab8d215"


@pytest.fixture(params=[0, 3], ids=["plain", "compressed"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> Any:
    """A saver on SQLite whose segments are sealed early, so that threads share large ones."""
    monkeypatch.setattr("threadkeep._core.engine.logs.SEAL_COUNT", 8)
    level = Compression(level=request.param, over=64, ratio=1)
    cold = (tmp_path / "cold").as_uri()
    with SqliteSaver(
        tmp_path / "threads.db", synchronous="normal", compression=level, cold=cold
    ) as saver:
        yield saver


def said(who: str, number: int, size: int = 30) -> str:
    return f"{number} {who} " + random.Random(number).randbytes(size).hex()


def talk(saver: Any, thread: str, who: str, turns: int, chain: Any = None) -> Any:
    """Continue with a growing list, a replaced value, and a waiting write."""
    chain = chain or Chain(saver, thread, start={LATER: 100, "own": 1000}.get(who, 0)).follow()
    for number in range(turns):
        chain.put(
            said=[*chain.values.get("said", []), said(who, number)], page=said(who, number, 3000)
        )
    saver.put_writes(chain.at, [("said", said(who, turns))], "task")
    return chain


def family(saver: Any) -> dict[Any, Any]:
    """An origin that said more than its fork took, as its fork did; gives what the fork shows."""
    chain = talk(saver, "origin", "before", 3)
    at = chain.at["configurable"]["checkpoint_id"]
    talk(saver, "origin", LATER, 9, chain)  # (sealed together with what the fork takes)
    saver.threads.fork("origin", at, "fork")
    talk(fresh(saver), "origin", LATER, 2)
    talk(fresh(saver), "fork", "own", 3)
    return of_fork(saver)


def of_fork(saver: Any, name: str = "fork") -> dict[Any, Any]:
    saver.clear_cache()
    found = {place: one for place, one in everything(saver).items() if place[0] == name}
    return {place[2]: {**one, "place": None} for place, one in found.items()}


# -- the origin of a fork ----------------------------------------------------------------

BEFORE: dict[str, Callable[[Any, Path], Any]] = {
    "kept": lambda *_: None,
    "archived": lambda saver, _: saver.threads.archive("fork"),
    "exported": lambda saver, folder: saver.threads.export_bundle(["fork"], folder / "fork.tkb"),
    "copied": lambda saver, _: saver.copy_thread("fork", "copy"),
    "forked": lambda saver, _: saver.threads.fork("fork", new_thread_id="second"),
    "offloaded": lambda saver, _: (
        saver.delete_thread("origin"),
        saver.threads.offload("fork", over=1024),
    ),
    "discarded": lambda saver, _: saver.threads.discard_fork("fork", delete=True),
    "put aside": lambda saver, _: saver.threads.discard_fork("fork"),
}


@pytest.mark.parametrize("what", BEFORE)
def test_what_an_origin_said_after_a_fork(store: Any, tmp_path: Path, what: str) -> None:
    shown = family(store)
    assert LATER not in repr(shown)
    assert remnants(tmp_path, LATER)
    BEFORE[what](store, tmp_path)
    store.threads.erase("origin")
    assert remnants(tmp_path, LATER) == {}
    if what in ("archived", "put aside"):
        assert store.threads.get("fork").state == "archived"  # (erasing brought nothing back)
        assert store.get_tuple({"configurable": {"thread_id": "fork"}})
    if what != "discarded":
        assert of_fork(store) == shown
    if what == "copied":
        assert of_fork(store, "copy").keys() == shown.keys()
    assert store.check().ok
    assert remnants(tmp_path, LATER) == {}
    store.threads.erase("origin", forks=True)


def test_where_forks_are_copies_a_fork_of_a_fork_holds_none_of_it(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """On Redis each fork has segments of its own: with what it refers to, and nothing else."""
    monkeypatch.setattr("threadkeep._core.engine.logs.SEAL_COUNT", 8)
    with open_backend("redis", tmp_path, compression=Compression(level=0)) as saver:
        chain = talk(saver, "origin", "before", 3)
        at = chain.at["configurable"]["checkpoint_id"]
        talk(saver, "origin", LATER, 9, chain)
        saver.threads.fork("origin", at, "fork")
        saver.threads.fork("fork", new_thread_id="second")
        saver.delete_thread("fork")
        shown = of_fork(saver, "second")
        rows = saver._store.run(fetch(ReadThread("second")))
        spans = [Span(s.log, s.start, s.start + s.count) for s in rows.segments]
        held = saver._store.run(fetch(ReadSegments("second", tuple(spans))))
        saver.threads.erase("origin")
        assert LATER not in repr((held, rows))
        assert of_fork(saver, "second") == shown
        assert saver.check().ok


def test_a_bundle_from_another_store_brings_none_of_it(store: Any, tmp_path: Path) -> None:
    """Into a store that takes files as they are, and by `sync`."""
    shown = family(store)
    with MemorySaver() as other:
        store.threads.mirror(other, ["fork"])
        assert of_fork(other) == shown
        other.threads.export_bundle(["fork"], tmp_path / "again.tkb")
    store.threads.erase("origin", forks=True)
    assert remnants(tmp_path, LATER) == {}


# -- a thread by itself --------------------------------------------------------------------

REMOVED: dict[str, Callable[[Saver], Any]] = {
    "erased": lambda saver: saver.threads.erase("t"),
    "erased by metadata": lambda saver: saver.threads.erase(metadata={"user": "u1"}),
    "archived, erased": lambda saver: (saver.threads.archive("t"), saver.threads.erase("t")),
    "offloaded, erased": lambda saver: (
        saver.threads.offload("t", over=1024),
        saver.threads.erase("t"),
    ),
    "offloaded, archived, erased": lambda saver: (
        saver.threads.offload("t", over=1024),
        saver.threads.archive("t"),
        saver.threads.erase("t"),
    ),
    "archived, back, erased": lambda saver: (
        saver.threads.archive("t"),
        saver.threads.restore("t"),
        saver.threads.erase("t"),
    ),
    "pruned, erased": lambda saver: (saver.prune(["t"]), saver.threads.erase("t")),
    "deleted, erased": lambda saver: (saver.delete_thread("t"), saver.threads.erase("t")),
}


@pytest.mark.parametrize("what", REMOVED)
def test_a_thread(store: Any, tmp_path: Path, what: str) -> None:
    talk(store, "other", "else", 4)
    talk(store, "t", MARKER, 9)
    store.threads.update("t", metadata={"user": "u1", "name": MARKER})
    assert remnants(tmp_path, MARKER)
    REMOVED[what](store)
    assert remnants(tmp_path, MARKER) == {}
    assert store.check().ok


COLD: dict[str, Callable[[Saver], Any]] = {
    "delete_thread": lambda saver: saver.delete_thread("t"),
    "prune": lambda saver: saver.prune(["t"], strategy="delete"),
    "gc": lambda saver: saver.threads.gc(Retention(max_count=0)),
    "discard_fork": lambda saver: saver.threads.discard_fork("t", delete=True),
}


@pytest.mark.parametrize("what", COLD)
@pytest.mark.parametrize("lies", ["archive", "offload"])
def test_in_the_cold_store_deletion_is_enough(
    store: Any, tmp_path: Path, what: str, lies: str
) -> None:
    """The database's free pages may have it until `erase`; the cold store has not."""
    talk(store, "origin", "else", 1)
    store.threads.fork("origin", new_thread_id="t")
    store.delete_thread("origin")
    talk(store, "t", MARKER, 9)
    store.threads.archive("t") if lies == "archive" else store.threads.offload("t", over=1024)
    assert remnants(tmp_path / "cold", MARKER)
    COLD[what](store)
    assert remnants(tmp_path / "cold", MARKER) == {}


def test_what_was_pruned_is_not_taken_along(store: Any, tmp_path: Path) -> None:
    """Archives, exports and copies contain only data of existing checkpoints."""
    talk(store, "t", MARKER, 9)
    chain = Chain(store, "t", start=2000).follow()
    chain.put(said=[said("left", 0), *chain.values["said"][:0]], page="")
    store.prune(["t"])
    store.threads.export_bundle(["t"], tmp_path / "one.tkb")
    assert remnants(tmp_path, MARKER).keys() <= {"threads.db", "threads.db-wal"}
    store.threads.archive("t")
    assert remnants(tmp_path / "cold", MARKER) == {}
