"""Threads that were exported and imported are the same threads, on every backend."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from kit.backends import BACKENDS, open_backend
from kit.engine import Chain, everything, run_on
from kit.places import at
from kit.runs import Delta, Plain, story, told
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver

from threadkeep import MemorySaver, SqliteSaver
from threadkeep._core.engine.model import OWN_NS, Batch
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep.errors import (
    BackendError,
    CorruptionError,
    InvalidArgumentError,
    NotOursError,
    OpenError,
    ThreadExistsError,
    ThreadNotFoundError,
)
from threadkeep.savers.backup import back_up
from threadkeep.threads.transfer import digest, whole_thread
from threadkeep.threads.transfer.bundle_format import BundleWriter, read_bundle

LONG = "x" * 90


def fill(saver: Any) -> None:
    for schema, thread in ((Plain, "plain"), (Delta, "delta")):
        for who in ("a", "b"):
            story(saver, schema).invoke({"log": [who]}, at(thread))
    story(saver, Delta).invoke({"log": ["a"]}, at("pruned"))
    saver.prune(["pruned"])
    chain = Chain(saver, "writes \N{GRINNING FACE}", "child")
    for i in range(30):
        chain.put(m=[*chain.values.get("m", []), (i, LONG)], n=None)
        saver.put_writes(chain.at, [("m", LONG), ("__error__", "e"), ("n", i)], "task", "~p")


@pytest.fixture(scope="module")
def source() -> Any:
    with MemorySaver() as saver:
        fill(saver)
        yield saver


def of(saver: Any, *threads: str) -> dict[Any, Any]:
    return {place: one for place, one in everything(saver).items() if place[0] in threads}


def moved(shown: dict[Any, Any], thread: str) -> dict[Any, Any]:
    places = {place: (thread, *place[1:]) for place in shown}
    return {places[place]: {**one, "place": places[place]} for place, one in shown.items()}


def digests(saver: Any, thread: str) -> Any:
    whole = run_on(whole_thread.read_thread(thread), LayeredBackend(saver._store.backend).blocking)
    return digest.of_checkpoints(whole)


def test_from_any_store_into_any_other(saver: Any, tmp_path: Path) -> None:
    fill(saver)
    file = tmp_path / "some.tkb"
    names = ["plain", "pruned", "writes \N{GRINNING FACE}"]
    done = saver.threads.export_bundle(names, file)
    assert (done.threads, done.size) == (3, file.stat().st_size)
    for name in BACKENDS:
        with open_backend(name, tmp_path / name) if name != "sqlite" else MemorySaver() as target:
            Chain(target, "other").put(n=1)
            filled = target.threads.import_bundle(file)
            assert set(filled.added) == set(names)
            assert (
                filled.checkpoints == done.checkpoints > len(of(saver, *names))
            )  # some are hidden
            assert of(target, *names) == of(saver, *names)
            assert of(target, "other")
            for one in names:
                assert digests(target, one) == digests(saver, one)
            assert target.check().ok


def test_it_goes_on_where_it_was(source: Any, saver: Any, tmp_path: Path) -> None:
    source.threads.export_bundle(None, tmp_path / "all.tkb")
    saver.threads.import_bundle(tmp_path / "all.tkb")
    for schema, thread in ((Plain, "plain"), (Delta, "delta")):
        story(saver, schema).invoke({"log": ["c"]}, at(thread))
        state = story(saver, schema).get_state(at(thread))
        assert state.values["log"] == told("a", "b", "c")
    assert saver.check().ok


@pytest.mark.parametrize("way", ["export", "import", "mirror", "adopt", "leave", "backup"])
async def test_a_long_thread_tells_how_far_it_is(way: str, tmp_path: Path) -> None:
    """Its checkpoints are counted while they are moved, and its bytes."""
    count, heard = 500, list[tuple[str, int, int]]()
    loop = threading.get_ident()

    def progress(stage: str, done: int, total: int) -> None:
        assert threading.get_ident() == loop  # although workers move it
        heard.append((stage, done, total))

    with SqliteSaver(tmp_path / "here.db") as saver, SqliteSaver(tmp_path / "there.db") as other:
        chain = Chain(saver, "long")
        for number in range(count):
            chain.put(n=number, m=["x" * 50] * (number // 50))
        file, threads = tmp_path / "long.tkb", saver.threads
        inner = InMemorySaver()
        if way == "adopt":
            threads.leave(inner)
        await {
            "export": lambda: threads.aexport_bundle("long", file, progress=progress),
            "import": lambda: threads.aexport_bundle("long", file),
            "mirror": lambda: threads.amirror(other, progress=progress),
            "adopt": lambda: other.threads.aadopt(inner, verify=True, progress=progress),
            "leave": lambda: threads.aleave(inner, verify=True, progress=progress),
            "backup": lambda: asyncio.sleep(0),
        }[way]()
        if way == "import":
            await other.threads.aimport_bundle(file, progress=progress)
    if way == "backup":
        back_up(str(tmp_path / "here.db"), file, progress)
    stages = {
        "export": "checkpoints read, bytes read, checkpoints verified",
        "import": "checkpoints verified, bytes written, checkpoints written, checkpoints compared",
        "mirror": "bytes read, checkpoints read, bytes written, checkpoints written,"
        " checkpoints compared",
        "adopt": "bytes read, checkpoints read, checkpoints verified",
        "leave": "checkpoints copied, checkpoints verified",
        "backup": "bytes read",
    }[way]
    for stage in stages.split(", "):
        told = [(done, total) for name, done, total in heard if name == stage]
        assert told == sorted(told)
        if stage.startswith("checkpoints"):
            assert told[-1] == (count, count)
            assert len([done for done, _ in told if 0 < done < count]) >= 3
        else:
            assert told[-1][0] > 1000
            assert told[-1][1] in (0, told[-1][0])


def test_a_new_id(source: Any, saver: Any, tmp_path: Path) -> None:
    source.threads.export_bundle("delta", tmp_path / "one.tkb")
    saver.threads.import_bundle(tmp_path / "one.tkb")
    saver.threads.import_bundle(tmp_path / "one.tkb", "copy")
    assert of(saver, "copy") == moved(of(source, "delta"), "copy")
    assert digests(saver, "copy") == digests(source, "delta")
    story(saver, Delta).invoke({"log": ["c"]}, at("copy"))
    assert of(saver, "delta") == of(source, "delta")


def test_a_thread_that_was_deleted_here_comes_back(source: Any, saver: Any, tmp_path: Path) -> None:
    source.threads.export_bundle("plain", tmp_path / "one.tkb")
    saver.threads.import_bundle(tmp_path / "one.tkb")
    saver.delete_thread("plain")
    assert saver.threads.import_bundle(tmp_path / "one.tkb").added == ("plain",)
    story(saver, Plain).invoke({"log": ["c"]}, at("plain"))
    saver.delete_thread("plain")
    saver.threads.import_bundle(tmp_path / "one.tkb", "plain")
    assert of(saver, "plain") == of(source, "plain")


def test_what_stands_there_is_kept_unless_replaced(source: Any, saver: Any, tmp_path: Path) -> None:
    source.threads.export_bundle(["delta", "plain"], tmp_path / "two.tkb")
    story(saver, Plain).invoke({"log": ["mine"]}, at("plain"))
    before = everything(saver)
    with pytest.raises(ThreadExistsError, match="'plain'"):
        saver.threads.import_bundle(tmp_path / "two.tkb")
    assert everything(saver) == before  # nor is the first of the two there
    saver.threads.import_bundle(tmp_path / "two.tkb", replace=True)
    assert everything(saver) == of(source, "plain", "delta")


def test_several_threads_and_one_new_id(source: Any, tmp_path: Path) -> None:
    source.threads.export_bundle(["delta", "plain"], tmp_path / "two.tkb")
    with MemorySaver() as target:
        with pytest.raises(InvalidArgumentError, match="holds 2 threads"):
            target.threads.import_bundle(tmp_path / "two.tkb", "new")
        assert not everything(target)


def test_a_damaged_bundle_changes_nothing(source: Any, tmp_path: Path) -> None:
    file = tmp_path / "two.tkb"
    source.threads.export_bundle(["delta", "plain"], file)
    data = file.read_bytes()
    with MemorySaver() as target:
        for broken in (data[:-1], data[:-70] + b"\xff" + data[-69:], data + b"\0"):
            file.write_bytes(broken)
            with pytest.raises(CorruptionError):
                target.threads.import_bundle(file)
        assert not everything(target)


def test_a_thread_that_is_not_the_one_that_was_noted(source: Any, tmp_path: Path) -> None:
    """A bundle whose checksums hold, but one of its checkpoints is another one."""
    file = tmp_path / "one.tkb"
    source.threads.export_bundle("plain", file)
    with file.open("rb") as opened:
        (whole,) = read_bundle(opened)
    assert whole.digests is not None
    wrong = (*whole.digests[:-1], b"?" * digest.SIZE)
    with file.open("wb") as opened:
        bundle = BundleWriter(opened)
        bundle.add(whole_thread.WholeThread(*[getattr(whole, n) for n in _ROWS], wrong))
        bundle.end()
    with MemorySaver() as target:
        with pytest.raises(CorruptionError, match="digest"):
            target.threads.import_bundle(file)
        assert not everything(target)


_ROWS = ("thread", "deleted_at", "segments", "checkpoints", "writes")


def test_a_store_that_loses_something_is_found_out(source: Any, tmp_path: Path) -> None:
    source.threads.export_bundle("plain", tmp_path / "one.tkb")
    with MemorySaver() as target:
        commit = target._store.backend.commit

        def forgetful(change: Any) -> None:
            if isinstance(change, Batch) and change.writes:
                change = change._replace(writes=change.writes[1:])
            commit(change)

        target._store.backend.commit = forgetful
        with pytest.raises(CorruptionError, match="digest"):
            target.threads.import_bundle(tmp_path / "one.tkb")


def test_a_store_that_fails_says_what_is_there(source: Any, tmp_path: Path) -> None:
    source.threads.export_bundle(["delta", "plain"], tmp_path / "two.tkb")
    with MemorySaver() as target:
        commit = target._store.backend.commit

        def failing(change: Any) -> None:
            if change.thread == "plain":
                raise BackendError("full")
            commit(change)

        target._store.backend.commit = failing
        with pytest.raises(BackendError, match="full") as caught:
            target.threads.import_bundle(tmp_path / "two.tkb")
        assert "of 2 threads: 'delta'" in caught.value.__notes__[0]
        assert everything(target) == of(source, "delta")
        target._store.backend.commit = commit
        filled = target.threads.import_bundle(tmp_path / "two.tkb")
        assert (filled.added, filled.unchanged) == (("plain",), ("delta",))


def test_a_thread_that_is_deleted_meanwhile_is_left_out(tmp_path: Path) -> None:
    with MemorySaver() as saver:
        fill(saver)
        own = {"configurable": {"thread_id": "threadkeep$canary-01", "checkpoint_ns": OWN_NS}}
        saver.put(own, empty_checkpoint(), {}, {})

        def progress(what: str, done: int, total: int) -> None:
            saver.delete_thread("pruned")

        done = saver.threads.export_bundle(None, tmp_path / "all.tkb", progress=progress)
        with MemorySaver() as target:
            added = target.threads.import_bundle(tmp_path / "all.tkb").added
            assert len(added) == done.threads == 3
            assert everything(target) == everything(saver)


def test_what_cannot_be_exported(source: Any, tmp_path: Path) -> None:
    with pytest.raises(ThreadNotFoundError, match="'nobody'"):
        source.threads.export_bundle(["plain", "nobody"], tmp_path / "x.tkb")
    with pytest.raises(InvalidArgumentError):
        source.threads.export_bundle(5, tmp_path / "x.tkb")
    with pytest.raises(OpenError):
        source.threads.export_bundle("plain", tmp_path / "no folder" / "x.tkb")
    (tmp_path / "letter.txt").write_text("to somebody")
    with pytest.raises(OpenError, match="left as it is"):
        source.threads.export_bundle("plain", tmp_path / "letter.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


def test_what_cannot_be_imported(source: Any, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("to somebody")
    with pytest.raises(NotOursError):
        source.threads.import_bundle(tmp_path / "letter.txt")
    with pytest.raises(OpenError):
        source.threads.import_bundle(tmp_path / "nothing.tkb")
    (tmp_path / "x.db").write_bytes(b"SQLite format 3\0" * 9)
    with pytest.raises(InvalidArgumentError, match="a SQLite database"):
        source.threads.import_bundle(tmp_path / "x.db")
    source.threads.export_bundle("plain", tmp_path / "x.tkb")
    with pytest.raises(InvalidArgumentError, match="thread"):
        source.threads.import_bundle(tmp_path / "x.tkb", 5)


async def test_a_cancelled_export_leaves_nothing(source: Any, tmp_path: Path) -> None:
    asked = asyncio.Event()

    def heard(what: str, done: int, total: int) -> None:
        asked.set()

    task = asyncio.ensure_future(
        source.threads.aexport_bundle(None, tmp_path / "x.tkb", progress=heard)
    )
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - (a Path's own is no call for async code)
