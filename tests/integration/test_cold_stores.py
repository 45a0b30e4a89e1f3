"""Stores that share a cold store: what one removes is never another's, nor what that one needs."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.backends import BACKENDS, SHARED, open_backend, url_of

from threadkeep import Retention, open_saver
from threadkeep._core.engine.operation import call
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.errors import CorruptionError, InvalidArgumentError, ReadOnlyError
from threadkeep.savers.saver import Saver

from .test_archive import archives, say, shown, state_of
from .test_backups import back_up, restore
from .test_erasing import Mute
from .test_offload import OVER, graph

REMOVING: dict[str, Callable[[Any], Any]] = {
    "delete": lambda saver: saver.delete_thread("t"),
    "erase": lambda saver: saver.threads.erase("t"),
    "gc": lambda saver: saver.threads.gc(Retention(max_count=0)),
    "archive": lambda saver: saver.threads.archive("t"),
}


def pages(saver: Any, turns: int = 4) -> None:
    for turn in range(turns):
        graph(saver).invoke({"said": [f"turn {turn}"]}, {"configurable": {"thread_id": "t"}})


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()


@pytest.fixture(params=REMOVING)
def remove(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return REMOVING[request.param]


@pytest.mark.parametrize("name", BACKENDS)
def test_two_stores_in_one_folder(
    name: str, remove: Callable[[Any], Any], tmp_path: Path, cold: Path
) -> None:
    """Each has a thread of the same name: archived, and in use with values that were offloaded."""
    with (
        open_backend(name, tmp_path / "one", cold=cold.as_uri()) as one,
        open_backend(name, tmp_path / "other", cold=cold.as_uri()) as other,
    ):
        say(one, "mine")
        pages(other)
        before = shown(other)
        assert other.threads.offload("t", over=OVER).segments
        remove(one)
        assert shown(other) == before
        other.threads.archive("t")
        one.threads.erase("t")
        assert shown(other) == before
        other.threads.erase("t")
        assert [file for file in cold.rglob("*") if file.is_file()] == []


def copy_file(folder: Path) -> None:
    shutil.copy(folder / "one" / "threads.db", folder / "other" / "threads.db")


def copy_by_backup(name: str, folder: Path) -> None:
    one, other = (url_of(name, folder / which) for which in ("one", "other"))
    form: Any = "native" if name == "sqlite" else "bundle"
    back_up(one, folder / "backup", form=form)
    restore(folder / "backup", other)


WAYS = [*[(name, False) for name in SHARED], ("sqlite", True)]


@pytest.mark.parametrize(("name", "plainly"), WAYS)
@pytest.mark.parametrize("kind", ["archived", "offloaded"])
def test_a_copy_beside_its_original(
    name: str, kind: str, remove: Any, tmp_path: Path, cold: Path, *, plainly: bool
) -> None:
    """A copy reads the original's objects, and never removes them."""
    one, other = (url_of(name, tmp_path / folder) for folder in ("one", "other"))
    with open_saver(one, cold=cold.as_uri()) as original:
        original.setup()
        pages(original)
        before = shown(original)
        if kind == "archived":
            original.threads.archive("t")
        else:
            original.threads.offload("t", over=OVER)
    kept = [file.read_bytes() for file in sorted(cold.rglob("*")) if file.is_file()]
    if plainly:
        copy_file(tmp_path)
    else:
        copy_by_backup(name, tmp_path)
    with open_saver(other, cold=cold.as_uri()) as copy:
        if remove is REMOVING["archive"]:
            assert shown(copy) == before
            assert state_of(copy) == "active"
            copy.threads.archive("t")
            assert shown(copy) == before
        report = copy.threads.erase("t") if remove is REMOVING["erase"] else remove(copy)
        if remove is REMOVING["erase"]:
            assert any("this one is a copy of" in line for line in report.remains)
            assert report.threads[0].archived_bytes == 0
        copy.threads.erase("t")
    assert [file.read_bytes() for file in sorted(cold.rglob("*")) if file.is_file()] == kept
    with open_saver(one, cold=cold.as_uri()) as original:
        assert shown(original) == before
        original.threads.erase("t")
    assert archives(cold) == []


def test_a_copy_offloads_and_tidies_beside_what_it_was_copied_with(
    tmp_path: Path, cold: Path
) -> None:
    """Its stubs name objects of the original and of its own."""
    with open_backend("sqlite", tmp_path / "one", cold=cold.as_uri()) as original:
        pages(original)
        original.threads.offload("t", over=OVER)
    copy_file(tmp_path)
    theirs = {file for file in cold.rglob("*") if file.is_file()}
    with open_backend("sqlite", tmp_path / "other", cold=cold.as_uri()) as copy:
        pages(copy)
        before = shown(copy)
        assert copy.threads.offload("t", over=OVER).segments
        copy.threads.tier()
        assert copy.threads.get("t").offloaded_bytes > sum(f.stat().st_size for f in theirs)
        assert shown(copy) == before
        copy.delete_thread("t")
    assert {file for file in cold.rglob("*") if file.is_file()} == theirs


def test_a_copy_of_which_the_original_has_removed_its_archive(tmp_path: Path, cold: Path) -> None:
    with open_backend("sqlite", tmp_path / "one", cold=cold.as_uri()) as original:
        say(original, "one")
        original.threads.archive("t")
    copy_file(tmp_path)
    with open_backend("sqlite", tmp_path / "one", cold=cold.as_uri()) as original:
        original.threads.erase("t")
    with (
        open_backend("sqlite", tmp_path / "other", cold=cold.as_uri()) as copy,
        pytest.raises(CorruptionError, match="a copy of"),
    ):
        shown(copy)


def test_a_file_that_is_moved_keeps_its_archives(tmp_path: Path, cold: Path) -> None:
    path = tmp_path / "threads.db"
    with open_saver(f"sqlite:///{path}", cold=cold.as_uri()) as saver:
        say(saver, "one")
        saver.threads.archive("t")
    moved = path.rename(tmp_path / "moved.db")
    with open_saver(f"sqlite:///{moved}", cold=cold.as_uri()) as saver:
        saver.delete_thread("t")
    assert archives(cold) == []


def test_whoever_only_reads_needs_no_name(tmp_path: Path, cold: Path) -> None:
    with open_backend("sqlite", tmp_path) as saver:
        say(saver, "one")
    with Saver(SqliteBackend(tmp_path / "threads.db", read_only=True), cold=cold.as_uri()) as saver:
        assert saver.threads.erase("t", dry_run=True).threads
        with pytest.raises(ReadOnlyError):
            saver.threads.archive("t")


@pytest.mark.parametrize("name", BACKENDS)
async def test_a_store_has_one_name_for_all(name: str, tmp_path: Path) -> None:
    async with open_backend(name, tmp_path / "one") as saver:
        asked = [saver._store.run(call("identity")), await saver._store.arun(call("identity"))]
        names = {*asked, saver._store.run(call("identity"))}
        async with open_backend(name, tmp_path / "other") as other:
            assert {await other._store.arun(call("identity"))} & names == set()
    if name != "memory":
        async with open_backend(name, tmp_path / "one") as again:
            names.add(await again._store.arun(call("identity")))
    assert len(names) == 1


def test_a_backend_without_a_name_takes_no_cold_store(cold: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="an identity, which Mute does not have"):
        Saver(Mute(), cold=cold.as_uri())
    Saver(MemoryBackend(), cold=cold.as_uri()).close()
