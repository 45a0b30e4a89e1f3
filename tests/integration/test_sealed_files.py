"""Files of a saver with keys: nothing that it stores is found in them, and they open with the keys.

Marked texts are in values, metadata, tags, pending writes and items. Ids of threads stay readable.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kit.marked import marked_files
from kit.rows import checkpoint, metadata

from threadkeep import (
    KeyRing,
    MemorySaver,
    SqliteSaver,
    SqliteStore,
)
from threadkeep.errors import (
    CodecError,
    InvalidArgumentError,
    NotOursError,
    OpenError,
    TamperedDataError,
    WrongKeyError,
)
from threadkeep.savers import backup
from threadkeep.savers.saver import Saver
from threadkeep.threads.repair import read_quarantine

RING = KeyRing([b"k" * 32])
OTHER = KeyRing([b"o" * 32])
PLACES = ("value", "page", "metadata", "tag", "write", "label")
MARKS = {place: f"marked {place} 7b1f" for place in PLACES}
WANTED = [mark.encode() for mark in MARKS.values()]


def fill(saver: Any, *threads: str) -> None:
    """Save threads that hold a marked text in each place."""
    for thread in threads or ("t",):
        before = None
        for number in range(3):
            page = MARKS["page"] + Random(number).randbytes(4000).hex()
            values = {"value": MARKS["value"], "page": page}
            state = checkpoint(values, value=1, page=number + 1)
            place = {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": before}
            about = metadata(number, user_id=MARKS["metadata"])
            after = saver.put({"configurable": place}, state, about, state["channel_versions"])
            before = state["id"]
        saver.put_writes(after, [("page", MARKS["write"])], "task")
        saver.threads.tag(thread, MARKS["tag"])
        saver.threads.update(thread, metadata={"owner": MARKS["label"]})


def shown(saver: Any) -> list[Any]:
    return [
        (one.config, one.checkpoint, one.metadata, one.pending_writes) for one in saver.list(None)
    ]


def opened(path: Path, ring: KeyRing | None = RING, **options: Any) -> SqliteSaver:
    return SqliteSaver(str(path), synchronous="normal", keys=ring, **options)


def quiet(stage: str, done: int, total: int) -> None:
    """No progress."""


def bundled(saver: Saver, file: Path, **options: Any) -> None:
    saver.threads.export_bundle(None, file, **options)


def backed_up(saver: Saver, file: Path, **options: Any) -> None:
    saver.close()
    source = str(file.parent / "threads.db")
    backup.back_up(source, file, quiet, form="bundle", keys={"keys": RING}, **options)


WRITERS = pytest.mark.parametrize("write", [bundled, backed_up])


# -- bundles and backups ---------------------------------------------------------------


@WRITERS
def test_a_bundle_shows_nothing_and_needs_the_key(
    write: Callable[..., None], tmp_path: Path
) -> None:
    file = tmp_path / "file.tkb"
    with opened(tmp_path / "threads.db") as saver:
        fill(saver, "t", "u")
        before = shown(saver)
        write(saver, file)
    assert not marked_files(tmp_path, WANTED)
    for ring in (None, OTHER):
        with MemorySaver(keys=ring) as other:
            with pytest.raises(WrongKeyError, match=RING.current):
                other.threads.import_bundle(file)
            assert not shown(other)
    for ring in (RING.rotated(), RING):
        with MemorySaver(keys=ring) as other:
            assert other.threads.import_bundle(file).added == ("t", "u")
            assert shown(other) == before
            assert other.threads.get("t").tags == (MARKS["tag"],)


@WRITERS
def test_an_open_bundle_is_asked_for(write: Callable[..., None], tmp_path: Path) -> None:
    file = tmp_path / "file.tkb"
    with opened(tmp_path / "threads.db") as saver:
        fill(saver)
        before = shown(saver)
        write(saver, file, plain=True)
    assert set(marked_files(tmp_path, WANTED)) == {"file.tkb"}
    assert len(marked_files(tmp_path, WANTED)["file.tkb"]) == len(PLACES)
    for ring in (None, OTHER):
        folder = tmp_path / str(ring)
        folder.mkdir()
        with opened(folder / "threads.db", ring) as other:
            other.threads.import_bundle(file)
            assert shown(other) == before
        assert bool(marked_files(folder, WANTED)) == (ring is None)


def test_only_a_bundle_may_be_plain(tmp_path: Path) -> None:
    file, source = tmp_path / "backup.db", str(tmp_path / "threads.db")
    with opened(tmp_path / "threads.db") as saver:
        fill(saver)
    with pytest.raises(InvalidArgumentError, match="bundle"):
        backup.back_up(source, file, quiet, keys={"keys": RING}, plain=True)


def test_a_bundle_is_restored_into_a_store_with_keys(tmp_path: Path) -> None:
    file, target = tmp_path / "file.tkb", f"sqlite:///{tmp_path / 'again.db'}"
    with opened(tmp_path / "threads.db") as saver:
        fill(saver)
        before = shown(saver)
        bundled(saver, file)
    for keys in (None, {"keys": OTHER}):
        with pytest.raises(WrongKeyError, match=RING.current):
            backup.restore(file, target, quiet, keys=keys)  # type: ignore[arg-type]
        assert not (tmp_path / "again.db").exists()
    assert backup.restore(file, target, quiet, keys={"keys": RING}).threads == 1
    assert not marked_files(tmp_path, WANTED)
    with opened(tmp_path / "again.db") as saver:
        assert shown(saver) == before


def test_archives_and_offloaded_values_in_a_backup(tmp_path: Path) -> None:
    """A restored store reads the objects of the first one, with the same keys."""
    cold = (tmp_path / "cold").as_uri()
    file, keys = tmp_path / "backup.tkb", {"keys": RING}
    with opened(tmp_path / "threads.db", cold=cold) as saver:
        fill(saver, "archived", "offloaded")
        before = shown(saver)
        saver.threads.archive("archived")
        assert saver.threads.offload("offloaded", over=1024).segments
        backup.back_up(str(tmp_path / "threads.db"), file, quiet, form="bundle", keys=keys)  # type: ignore[arg-type]
    backup.restore(file, f"sqlite:///{tmp_path / 'again.db'}", quiet, keys=keys)  # type: ignore[arg-type]
    assert not marked_files(tmp_path, WANTED)
    with opened(tmp_path / "again.db", cold=cold) as saver:
        saver.threads.restore("archived")
        assert shown(saver) == before


# -- quarantine files ------------------------------------------------------------------


def test_a_quarantine_file(tmp_path: Path) -> None:
    file = tmp_path / "file.tkq"
    with opened(tmp_path / "threads.db") as saver:
        fill(saver, "t", "u")
    with closing(sqlite3.connect(tmp_path / "threads.db")) as db:
        db.execute(
            "UPDATE tk_writes SET body = CAST(body || x'00' AS BLOB) WHERE thread IN"
            " (SELECT number FROM tk_threads WHERE thread IN ('t', 'u'))"
        )
        db.commit()
    with opened(tmp_path / "threads.db") as saver:
        done = saver.threads.repair(file=file)
        assert (done.ok, [one.thread for one in done.repaired]) == (True, ["t", "u"])
        assert not marked_files(tmp_path, WANTED)
        with pytest.raises(OpenError):  # (an export must not take its place)
            bundled(saver, file)
    assert [one.whole.thread for one in read_quarantine(file, keys=RING)] == ["t", "u"]
    for keys in (None, OTHER):
        with pytest.raises(WrongKeyError, match=RING.current):
            list(read_quarantine(file, keys=keys))
    data = file.read_bytes()
    file.write_bytes(data[:-60])  # as if the repair had been killed
    found = read_quarantine(file, keys=RING)
    assert [next(found).whole.thread, next(found).whole.thread] == ["t", "u"]
    with pytest.raises(TamperedDataError, match="cut short"):
        next(found)
    with MemorySaver(keys=RING) as other, pytest.raises(NotOursError):
        other.threads.import_bundle(file)


@pytest.mark.parametrize("has_key_store", [False, True])
def test_a_quarantine_file_of_a_tenant(tmp_path: Path, has_key_store: bool) -> None:
    file, path = tmp_path / "file.tkq", tmp_path / "threads.db"
    more = {"key_store": f"sqlite:///{tmp_path / 'keys.db'}"} if has_key_store else {}
    with opened(path, **more) as saver:
        fill(saver.for_tenant("acme"))
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            "UPDATE tk_writes SET body = CAST(body || x'00' AS BLOB) WHERE thread IN"
            " (SELECT number FROM tk_threads WHERE thread LIKE 'threadkeep@tenant %')"
        )
        db.commit()
    with opened(path, **more) as saver:
        view = saver.for_tenant("acme")
        assert view.threads.repair(file=file).file == file
        assert [one.whole.thread for one in read_quarantine(file, saver=view)] == ["t"]
        for other in (saver, saver.for_tenant("other")):
            with pytest.raises(CodecError):
                list(read_quarantine(file, saver=other))
    for tenant, works in (("acme", not has_key_store), ("other", False), (None, False)):
        found = read_quarantine(file, keys=RING, tenant=tenant)
        if works:
            assert [one.whole.thread for one in found] == ["t"]
        else:
            with pytest.raises(WrongKeyError if has_key_store else TamperedDataError):
                list(found)


def test_a_repair_without_the_keys_changes_nothing(tmp_path: Path) -> None:
    """Not even the rows in which a store with keys keeps its own record."""
    with opened(tmp_path / "threads.db") as saver:
        fill(saver)
        before = shown(saver)
    with opened(tmp_path / "threads.db", None) as plain:
        assert {finding.kind for finding in plain.check().findings} == {"unknown"}
        with pytest.raises(WrongKeyError, match="no keys were given"):
            plain.threads.repair(file=tmp_path / "file.tkq")
    assert not (tmp_path / "file.tkq").exists()
    with opened(tmp_path / "threads.db") as saver:
        assert shown(saver) == before


# -- items -----------------------------------------------------------------------------


def test_exported_items(tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    with SqliteStore(str(tmp_path / "items.db"), keys=RING) as store:
        for number in range(1200):
            store.put(("users",), str(number), {"text": MARKS["value"], "number": number})
        assert store.export_items(file) == 1200
        assert not marked_files(tmp_path, WANTED)
        assert store.export_items(tmp_path / "plain.jsonl", plain=True) == 1200
    assert set(marked_files(tmp_path, WANTED)) == {"plain.jsonl"}
    with SqliteStore(str(tmp_path / "again.db")) as other:
        with pytest.raises(WrongKeyError, match=RING.current):
            other.import_items(file)
        assert other.import_items(tmp_path / "plain.jsonl") == 1200
    with SqliteStore(str(tmp_path / "sealed.db"), keys=RING) as other:
        assert other.import_items(file) == 1200
        item = other.get(("users",), "7")
        assert item is not None
        assert item.value == {"text": MARKS["value"], "number": 7}


# -- layered memory --------------------------------------------------------------------
