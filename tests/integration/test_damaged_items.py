"""Damaged rows of items and of cached values: typed errors, and listings without them."""

import logging
import sqlite3
from collections import deque
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from threadkeep import errors
from threadkeep._core.codec import Compression, NativeCodec, pack
from threadkeep._stores.items.records import seal, unseal, without_checksum
from threadkeep.cache import open_cache
from threadkeep.store import open_store

from .test_damaged_cells import VALUES, attempt

NS = ("users", "1")
INDEX: Any = {"embed": lambda texts: [[1.0, 2.0] for _ in texts], "dims": 2, "fields": ["text"]}
TABLES = {
    "tk_items": "number path key version created updated ttl expires pending value",
    "tk_item_vectors": "item field vector",
    "tk_item_versions": "path key version updated replaced deleted patch",
}
CELLS = [
    (table, column, kind)
    for table, columns in TABLES.items()
    for column in columns.split()
    for kind in VALUES
]


@pytest.mark.parametrize("packed", ['{"a":1}', b"\x81\xa1a\x01"])
def test_a_value_is_bound_to_its_item(packed: Any) -> None:
    sealed = seal(packed, NS, "a")
    assert unseal(sealed, NS, "a") == without_checksum(sealed) == packed
    assert unseal(packed, NS, "a") == packed  # (as older releases wrote it)
    for namespace, key in ((NS, "b"), (("users", "2"), "a"), (("users",), "a")):
        with pytest.raises(errors.CorruptionError):
            unseal(sealed, namespace, key)


def sqlite_swap(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "a.db")) as db, db:
        found = dict(db.execute("SELECT key, value FROM tk_items").fetchall())
        for key, other in ("ab", "ba"):
            db.execute("UPDATE tk_items SET value = ? WHERE key = ?", (found[other], key))


def test_swapped_values_are_noticed(tmp_path: Path, caplog: Any) -> None:
    with open_store(f"sqlite:///{tmp_path / 'a.db'}") as store:
        for key in ("a", "b", "c"):
            store.put(NS, key, {"of": key})
        sqlite_swap(tmp_path)
        for key in ("a", "b"):
            with pytest.raises(errors.CorruptionError, match=f"Item '{key}' in .* checksum"):
                store.get(NS, key)
        with caplog.at_level(logging.WARNING, "threadkeep"):
            assert [item.key for item in store.search(NS)] == ["c"]
            assert [item.key for item in store.search(NS, filter={"of": "c"})] == ["c"]
        assert "Item 'a' in ('users', '1')" in caplog.text
        store.put(NS, "a", {"of": "a again"})
        assert store.get(NS, "a").value == {"of": "a again"}


def test_an_export_leaves_damaged_items_out(tmp_path: Path, caplog: Any) -> None:
    with open_store(f"sqlite:///{tmp_path / 'a.db'}") as store, open_store("memory://") as other:
        for key in ("a", "b", "c"):
            store.put(NS, key, {"of": key})
        sqlite_swap(tmp_path)
        with caplog.at_level(logging.WARNING, "threadkeep"):
            assert store.export_items(tmp_path / "items") == 1
        for key in ("a", "b"):
            assert f"left out of an export. Item '{key}' in ('users', '1')" in caplog.text
        assert other.import_items(tmp_path / "items") == 1
        assert [item.key for item in other.search(NS)] == ["c"]


def test_a_cached_value_of_another_entry_is_a_miss(tmp_path: Path) -> None:
    first, second, plain = (("n",), "a"), (("n",), "b"), (("n",), "c")
    with open_cache(f"sqlite:///{tmp_path / 'a.db'}") as cache:
        cache.set({first: (1, 60), second: (deque([("x", 2)]), 60), plain: (3, 60)})
        assert cache.get([first, second]) == {first: 1, second: deque([("x", 2)])}
        with closing(sqlite3.connect(tmp_path / "a.db")) as db, db:
            found = dict(db.execute("SELECT id, value FROM tk_cache").fetchall())
            for one, value in zip(found, [*list(found.values())[1:], None], strict=True):
                db.execute("UPDATE tk_cache SET value = ? WHERE id = ?", (value, one))
            old = pack([NativeCodec().encode([False, "old"])], Compression())
            db.execute("UPDATE tk_cache SET value = ? WHERE value IS NULL", (old,))
        assert list(cache.get([first, second, plain]).values()) == ["old"]


def test_vectors_without_an_item_are_left_out(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 'a.db'}", index=INDEX) as store:
        for number in range(5):
            store.put((*NS, str(number)), "k", {"text": f"text {number}"})
        with closing(sqlite3.connect(tmp_path / "a.db")) as db, db:
            db.execute("UPDATE tk_item_vectors SET item = 9 WHERE item < 3")
        assert {item.namespace[2] for item in store.search(NS, query="text", limit=3)} == set("234")
        assert len(store.search((*NS, "0"), query="text")) == 1  # (as one without a vector)


@pytest.mark.parametrize(("table", "column", "kind"), CELLS, ids=[" ".join(c) for c in CELLS])
def test_a_damaged_cell_of_items(table: str, column: str, kind: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with open_store(url, index=INDEX, history=3) as store:
        for name in ("good", "bad"):
            for number in range(2):
                store.put((name, "1"), "k", {"text": f"text {number}"}, ttl=5)
    with closing(sqlite3.connect(tmp_path / "a.db")) as db, db:
        try:
            db.execute(
                f"UPDATE {table} SET {column} = {VALUES[kind]}"
                f" WHERE rowid = (SELECT max(rowid) FROM {table})"
                if table != "tk_item_versions"
                else f"UPDATE {table} SET {column} = {VALUES[kind]} WHERE path = 'bad.1.'"
            )
        except sqlite3.IntegrityError:
            pytest.skip("SQLite refuses it")
    with open_store(url, index=INDEX, history=3) as store:
        assert store.get(("good", "1"), "k").value == {"text": "text 1"}
        for found in (
            store.search(()),
            store.search(("good",)),
            store.search((), filter={"text": "text 1"}),
            store.search((), query="text"),
        ):
            assert ("good", "1") in {item.namespace for item in found}
        assert ("good", "1") in store.list_namespaces()
        assert len(store.versions(("good", "1"), "k")) == 2
        attempt(lambda: store.get(("bad", "1"), "k"))
        attempt(lambda: store.versions(("bad", "1"), "k"))
        attempt(lambda: store.export_items(tmp_path / "out"))
        attempt(store.embed_pending)
        attempt(lambda: store.put(("bad", "1"), "k", {"text": "new"}))
        attempt(lambda: store.erase(("bad",)))
        assert store.get(("good", "1"), "k").value == {"text": "text 1"}
