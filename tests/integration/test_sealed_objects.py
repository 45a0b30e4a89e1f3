"""Objects in the cold store of a saver with keys."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from kit.rows import checkpoint, metadata

from threadkeep._core.engine import registration
from threadkeep._core.engine.cold_references import archive_of, with_archive
from threadkeep._stores.sealed import SealedBackend
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep._stores.store_keys import StoreKeys
from threadkeep.errors import CorruptionError, TamperedDataError, WrongKeyError
from threadkeep.keys import KeyRing
from threadkeep.savers.saver import Saver
from threadkeep.threads.archives.seals import ObjectSeal

RING = KeyRing([b"k" * 32])
MARKS = [random.Random(seed).randbytes(64) for seed in range(4)]
OVER = 2000
PLACE = ("offloaded", "key", 0, 1, 0, 1)


@contextmanager
def opened(folder: Path, ring: KeyRing | None = RING, *, plain: bool = False) -> Iterator[Saver]:
    """A saver on a file with a cold store; with `plain`, it reads old plain objects."""
    backend: Any = SqliteBackend(folder / "threads.db", synchronous="normal")
    if ring is not None:
        backend = SealedBackend(backend, StoreKeys(ring, allow_plaintext=plain))
    with Saver(backend, cold=(folder / "cold").as_uri()) as saver:
        yield saver


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[Saver]:
    with opened(tmp_path) as saver:
        yield saver


def fill(saver: Any, thread: str = "t") -> None:
    """Save a thread whose page is replaced in each checkpoint."""
    before = None
    for number, mark in enumerate(MARKS):
        page = mark + random.Random(f"{thread}{number}").randbytes(4000)
        versions = {"page": number + 1, "mark": number + 1}
        state = checkpoint({"page": page, "mark": mark}, **versions)
        place = {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": before}
        about = metadata(number, own=mark.hex())
        before = state["id"]
        saver.put({"configurable": place}, state, about, state["channel_versions"])


def shown(saver: Any, thread: str = "t") -> list[Any]:
    found = saver.list({"configurable": {"thread_id": thread}})
    return [(one.config, one.checkpoint, one.metadata) for one in found]


def objects(folder: Path) -> list[Path]:
    return sorted((folder / "cold").rglob("*.tk*"))


def move(saver: Any, how: str) -> None:
    """Move the thread or its old values into the cold store."""
    if how == "archive":
        saver.threads.archive("t")
    else:
        assert saver.threads.offload("t", over=OVER).segments == len(MARKS) - 1
    saver.clear_cache()


HOWS = pytest.mark.parametrize("how", ["archive", "offload"])


# -- there and back --------------------------------------------------------------------


# -- objects that were changed beside the program --------------------------------------


@HOWS
@pytest.mark.parametrize("damage", ["swapped", "cut", "changed", "gone"])
def test_a_changed_object_is_refused(tmp_path: Path, how: str, damage: str) -> None:
    with opened(tmp_path) as saver:
        fill(saver)
        fill(saver, "other")
        move(saver, how)
        (own,) = objects(tmp_path)
        data = own.read_bytes()
        if how == "archive":
            saver.threads.archive("other")
        else:
            saver.threads.offload("other", over=OVER)
        (other,) = [path for path in objects(tmp_path) if path != own]
        changed = {
            "swapped": other.read_bytes(),
            "cut": data[:-10],
            "changed": data[:100] + bytes((data[100] ^ 1,)) + data[101:],
        }
        if damage == "gone":
            own.unlink()
        else:
            own.write_bytes(changed[damage])
        with pytest.raises(CorruptionError if damage == "gone" else TamperedDataError):
            shown(saver)
        own.write_bytes(data)
        assert len(shown(saver)) == len(MARKS)


def test_an_older_archive_does_not_take_the_place_of_the_newest(
    saver: Saver, tmp_path: Path
) -> None:
    fill(saver)
    saver.threads.archive("t")
    (first,) = objects(tmp_path)
    old = first.read_bytes()
    shown(saver)
    saver.threads.archive("t")
    (second,) = [path for path in objects(tmp_path) if path != first]
    second.write_bytes(old)
    with pytest.raises(TamperedDataError):
        shown(saver)
    # ... not even with its digest in the entry
    entry = saver._store.run(registration.known("t"))
    archive = archive_of(entry)
    assert archive is not None
    sha256 = hashlib.sha256(old).hexdigest()
    forged = with_archive(entry, archive._replace(sha256=sha256, size=len(old)))
    saver._store.run(registration.change(saver._engine, "t", lambda _: forged))
    with pytest.raises(TamperedDataError):
        shown(saver)


def test_a_part_opens_in_its_place_alone() -> None:
    seal = ObjectSeal("t", RING.sealer("portable", ""))
    sealed = seal.seal(b"data", PLACE)
    assert seal.open(sealed, PLACE) == b"data"
    for wrong in (("key", 9, 1, 0, 1), ("other", 0, 1, 0, 1), ("key", 0, 1, 1, 1)):
        with pytest.raises(TamperedDataError):
            seal.open(sealed, ("offloaded", *wrong))
    with pytest.raises(TamperedDataError):
        ObjectSeal("u", RING.sealer("portable", "")).open(sealed, PLACE)


# -- keys ------------------------------------------------------------------------------


def test_a_missing_key_is_named_and_nothing_is_repaired(tmp_path: Path) -> None:
    later = RING.rotated()
    with opened(tmp_path, later) as saver:
        fill(saver)
        fill(saver, "gone")
        move(saver, "offload")
        saver.threads.archive("gone")
    files = {path: path.read_bytes() for path in objects(tmp_path)}
    with opened(tmp_path) as saver:  # (with the old key alone)
        with pytest.raises(WrongKeyError, match=later.current):
            shown(saver, "gone")
        with pytest.raises(WrongKeyError, match=later.current):
            shown(saver)
        with pytest.raises(WrongKeyError, match=later.current):
            saver.threads.repair(file=tmp_path / "file.tkq")
    with opened(tmp_path, later) as saver:
        assert len(shown(saver)) == len(shown(saver, "gone")) == len(MARKS)
    assert {path: path.read_bytes() for path in objects(tmp_path)} == files


def test_a_value_with_another_key_is_not_repaired_either(tmp_path: Path) -> None:
    """The rows are readable, the object is not."""
    with opened(tmp_path) as saver:
        fill(saver)
        move(saver, "offload")
    with opened(tmp_path) as saver:
        assert saver._store.cold is not None
        saver._store.cold.keys = StoreKeys(KeyRing([b"o" * 32]))
        with pytest.raises(WrongKeyError, match=RING.current):
            shown(saver)
        repaired = saver.threads.repair(file=tmp_path / "file.tkq")
        assert (repaired.ok, repaired.repaired, repaired.file) == (False, (), None)


@HOWS
def test_plain_objects_are_refused_unless_they_are_allowed(tmp_path: Path, how: str) -> None:
    """The rows are sealed, as if they had been sealed after the thread was archived."""
    with opened(tmp_path) as saver:
        assert saver._store.cold is not None
        keys, saver._store.cold.keys = saver._store.cold.keys, None
        fill(saver)
        before = shown(saver)
        move(saver, how)
        saver._store.cold.keys = keys
        with pytest.raises(WrongKeyError, match="is not encrypted"):
            shown(saver)
        assert saver.threads.repair(file=tmp_path / "file.tkq").file is None
    with opened(tmp_path, plain=True) as saver:
        assert shown(saver) == before


def test_without_keys_the_missing_key_is_named() -> None:
    seal, file = ObjectSeal("t", RING.sealer("portable", "")), BytesIO()
    writer = seal.writer(file, "key")
    writer.write(b"data")
    writer.end()
    with pytest.raises(WrongKeyError, match=RING.current):
        ObjectSeal("t").reader(file.getvalue(), "key").read()
    with pytest.raises(WrongKeyError, match=RING.current):
        ObjectSeal("t").open(seal.seal(b"data", PLACE), PLACE)


# -- names of objects ------------------------------------------------------------------


def test_names_of_objects_do_not_show_the_threads(saver: Saver, tmp_path: Path) -> None:
    fill(saver)
    saver.threads.archive("t")
    (path,) = objects(tmp_path)
    assert hashlib.sha256(b"t").hexdigest()[:40] not in str(path)
    assert saver.threads.get("t").archived_bytes == path.stat().st_size


def test_erasure_finds_objects_of_older_keys_and_from_before(tmp_path: Path) -> None:
    with opened(tmp_path) as saver:
        fill(saver)
        assert saver._store.cold is not None
        keys, saver._store.cold.keys = saver._store.cold.keys, None
        saver.threads.archive("t")
        saver._store.cold.keys = keys
        saver.delete_thread("t")
    ring = RING.rotated()
    with opened(tmp_path, ring) as saver:
        fill(saver)
        saver.threads.archive("t")
    left = [path.parent for path in objects(tmp_path)]
    (left[0] / "left-by-a-crash.tkb").write_bytes(b"")
    with opened(tmp_path, ring.rotated()) as saver:
        saver.threads.erase("t")
    assert not objects(tmp_path)
