"""Savers, stores and caches with `padding=`: lengths in the store, and all else as without it."""

import os
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.backends import SHARED, open_backend
from kit.cli import threadkeep
from kit.rows import checkpoint, metadata

from threadkeep import KeyRing, MemoryCache, open_all, open_saver
from threadkeep._core.codec.frame import SEALED, is_sealed
from threadkeep._core.sealing import OVERHEAD
from threadkeep._core.tenants import STORE
from threadkeep.errors import InvalidArgumentError

RING = KeyRing([b"k" * 32])
KEY = (("node",), "key")


def at(thread: str = "t") -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def fill(saver: Any, thread: str = "t", size: int = 3000) -> None:
    """Save states of many lengths: most of them are segments of their own, and some are short."""
    config = at(thread)
    for number in range(4):
        page = random.Random(number).randbytes(size + 70 * number)
        state = checkpoint({"page": page, "n": "n" * number}, page=number + 1, n=number + 1)
        config = saver.put(config, state, metadata(number), state["channel_versions"])
        saver.put_writes(config, [("n", "w" * 50 * number)], f"task {number}")


def shown(saver: Any, thread: str = "t") -> list[Any]:
    saver.clear_cache()
    return [one[:3] + one[4:] for one in saver.list(at(thread))]


def stored(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Each sealed value of the file with its table."""
    with sqlite3.connect(folder / "threads.db") as db:
        names = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        for (table,) in db.execute(names).fetchall():
            for row in db.execute(f'SELECT * FROM "{table}"'):
                yield from [(table, one) for one in row if type(one) is bytes and is_sealed(one)]


def lengths(folder: Path) -> list[int]:
    """The plain bytes of the values, except the record of the keys, which has no padding."""
    with sqlite3.connect(folder / "threads.db") as db:
        record = "SELECT body FROM tk_writes w JOIN tk_threads t ON w.thread = t.number"
        ((body,),) = db.execute(f"{record} WHERE t.thread = ?", (STORE,)).fetchall()
    return sorted(len(value) - OVERHEAD for _, value in stored(folder) if value != body)


def test_sizes_of_stored_values_are_multiples(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    with open_all(url, keys=RING, padding=256) as (saver, items, cache):
        fill(saver)
        for number in range(3):
            items.put(("users",), "ann", {"text": "x" * 30 * number})
        cache.set({KEY: ("result", None)})
        before = shown(saver)
    tables = {table for table, _ in stored(tmp_path)}
    assert len(tables) >= 5, tables  # checkpoints, writes, segments, items, versions, results
    assert all(size % 256 == 0 for size in lengths(tmp_path)), lengths(tmp_path)
    assert [value[0] for _, value in stored(tmp_path)].count(SEALED) == 1
    with open_all(url, keys=RING) as (saver, items, cache):
        assert shown(saver) == before
        assert items.get(("users",), "ann").value == {"text": "x" * 60}
        assert cache.get([KEY]) == {KEY: "result"}


@pytest.mark.parametrize("thread_keys", [False, True])
def test_other_paddings_are_read_and_stay(tmp_path: Path, *, thread_keys: bool) -> None:
    options: dict[str, Any] = {"keys": RING}
    if thread_keys:
        options |= {"key_store": f"sqlite:///{tmp_path / 'keys.db'}", "thread_keys": True}
    for number, padding in enumerate((64, 0, 1024)):
        with open_backend("sqlite", tmp_path, padding=padding, **options) as saver:
            fill(saver, f"t{number}")
            saver.copy_thread(f"t{number}", f"f{number}")
            found = {name: shown(saver, f"t{name}") for name in range(number + 1)}
            assert all(len(one) == 4 for one in found.values())
        assert number or all(size % 64 == 0 for size in lengths(tmp_path))
    before = lengths(tmp_path)
    assert len({size % 64 for size in before}) > 1
    with open_backend("sqlite", tmp_path, padding=256, **options) as saver:
        assert saver.rotate_keys().changed == 0
        assert lengths(tmp_path) == before
        report = saver.check()
        assert (report.findings, report.notes) == ((), ())
        assert {name: shown(saver, f"t{name}") for name in found} == found


@pytest.mark.parametrize("padding", [256, 4096])
def test_offloaded_values_stay_in_use(tmp_path: Path, padding: int) -> None:
    """Their stubs are found among the segments by their size."""
    cold = tmp_path / "cold"
    options: Any = {"keys": RING, "cold": cold.as_uri(), "padding": padding}
    with open_backend("sqlite", tmp_path, **options) as saver:
        fill(saver)
        before = shown(saver)
        assert saver.threads.offload("t", over=2000).segments == 3
        for _ in range(2):
            assert saver.threads.offload("t", over=2000).segments == 0
            saver.threads.gc()
            assert shown(saver) == before
        assert saver.check().ok
        files = [file.stat().st_size for file in cold.rglob("*") if file.is_file()]
        assert 9000 < sum(files) < 10_000


@pytest.mark.parametrize("store", SHARED)
def test_long_tags_fit_into_the_index_of_each_store(store: str, tmp_path: Path) -> None:
    with open_backend(store, tmp_path, keys=RING, padding=65536) as saver:
        fill(saver, size=10)
        tag = random.Random(0).randbytes(495).hex()
        saver.threads.tag("t", tag)
        assert [one.id for one in saver.threads.search(tags=[tag]).threads] == ["t"]
        assert len(shown(saver)) == 4


def test_programs_pad_as_they_are_told(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    with open_saver(url, keys=RING) as saver:
        fill(saver)
    new = RING.rotated().as_text()
    variables = {**os.environ, "TK_KEYS": new, "THREADKEEP_PADDING": "512"}
    assert threadkeep("rotate", url, env=variables)[0] == 0
    assert all(size % 512 == 0 for size in lengths(tmp_path))
    code, _, errors = threadkeep("rotate", url, env={**variables, "THREADKEEP_PADDING": "-1"})
    assert (code, "from 0 to 65536" in "".join(errors)) == (2, True)


@pytest.mark.parametrize("value", [-1, 65537, True, 1.0, "256", None])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"padding.*\s.*from 0 to 65536"):
        open_saver("memory://", keys=RING, padding=value)


def test_padding_needs_keys() -> None:
    with pytest.raises(InvalidArgumentError, match="padding= needs keys"):
        open_saver("memory://", padding=256)
    with pytest.raises(InvalidArgumentError, match="padding= needs keys"):
        MemoryCache(padding=256)
    open_saver("memory://", padding=0).close()
