"""Keys of threads and tenants that are destroyed, and copies that cannot be read then."""

import shutil
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from kit.backends import SHARED, open_backend
from kit.rows import place as at
from kit.rows import say as put

from threadkeep import KeyRing, Retention, Store, open_saver
from threadkeep._core.sealed_files import FileKind, opened_file
from threadkeep._stores import key_record, resealing
from threadkeep._stores.sync_bridge import finish
from threadkeep.errors import (
    InvalidArgumentError,
    StateError,
    TamperedDataError,
    ThreadDeletedError,
    ThreadExistsError,
    WrongKeyError,
)
from threadkeep.threads import shredding

RING = KeyRing([b"k" * 32])


def text(saver: Any, thread: str) -> str:
    return saver.get_tuple(at(thread)).checkpoint["channel_values"]["messages"][0].content


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"keys": RING, "key_store": f"sqlite:///{tmp_path / 'keys.db'}", "thread_keys": True}


@pytest.fixture(params=SHARED)
def saver(request: pytest.FixtureRequest, tmp_path: Path, options: dict[str, Any]) -> Iterator[Any]:
    with open_backend(request.param, tmp_path, **options) as opened:
        yield opened


def test_a_shredded_thread_is_gone_and_others_stay(saver: Any) -> None:
    for thread in ("t", "u"):
        put(saver, thread)
    saver.copy_thread("t", "copy")
    report = saver.shred("t")
    assert (report.name, len(report.keys)) == ("t", 1)
    assert [one.thread for one in report.erased.threads] == ["t"]
    assert saver.get_tuple(at("t")) is None
    assert [text(saver, thread) for thread in ("u", "copy")] == ["hello", "hello"]
    for write in (lambda: put(saver, "t"), lambda: saver.threads.create("t")):
        with pytest.raises((WrongKeyError, ThreadDeletedError)):
            write()
    assert saver.shred("t").keys == ()  # (as after an interruption)
    assert saver.check().ok


def test_forks_share_the_key_of_their_origin(saver: Any) -> None:
    put(saver, "t")
    saver.threads.fork("t", new_thread_id="fork")
    put(saver, "fork", "of the fork")
    with pytest.raises(StateError, match="fork"):
        saver.shred("t")
    assert text(saver, "t") == "hello"
    report = saver.shred("t", forks=True)
    assert len(report.keys) == 2
    assert saver.get_tuple(at("fork")) is saver.get_tuple(at("t")) is None
    assert saver.check().ok


def test_what_the_erasure_of_an_account_leaves_is_shredded(tmp_path: Path, options: Any) -> None:
    with open_backend("sqlite", tmp_path, **options) as saver:
        put(saver, "t")
        saver.threads.update("t", metadata={"user_id": "u1"})
        saver.threads.fork("t", new_thread_id="fork")
        done = saver.threads.delete_account({"user_id": "u1"})
        assert "call shred for each thread" in str(done.remains)
        assert [len(saver.shred(one.thread).keys) for one in done.threads] == [1, 1]


def test_another_program_reads_a_fork(tmp_path: Path, options: Any) -> None:
    with open_backend("sqlite", tmp_path, **options) as saver:
        put(saver, "t")
        saver.threads.fork("t", new_thread_id="fork")
        saver.threads.fork("fork", new_thread_id="second")
    with open_backend("sqlite", tmp_path, **options) as saver:
        assert text(saver, "second") == "hello"
        put(saver, "second", "more")
        assert saver.check().ok


def test_a_fork_alone_leaves_its_origin(saver: Any) -> None:
    put(saver, "t")
    saver.threads.fork("t", new_thread_id="fork")
    put(saver, "fork", "of the fork")
    report = saver.shred("fork")
    assert any("t" in line for line in report.remains)
    assert text(saver, "t") == "hello"
    put(saver, "t", "more")
    assert saver.check().ok


def test_a_backup_of_a_shredded_thread_is_unreadable(tmp_path: Path, options: Any) -> None:
    file, copy = tmp_path / "threads.db", tmp_path / "backup.db"
    with open_saver(f"sqlite:///{file}", **options) as saver:
        put(saver, "t", "MARK")
        put(saver, "u")
    shutil.copy(file, copy)
    with open_saver(f"sqlite:///{file}", **options) as saver:
        assert len(saver.shred("t").keys) == 1
    for found in tmp_path.iterdir():
        assert b"MARK" not in found.read_bytes()
    with open_saver(f"sqlite:///{copy}", **options) as saver:
        assert text(saver, "u") == "hello"
        with pytest.raises(WrongKeyError, match="The key of thread t was destroyed"):
            saver.get_tuple(at("t"))
    # With another key store the ring opens nothing of it either.
    options["key_store"] = f"sqlite:///{tmp_path / 'new.db'}"
    with open_saver(f"sqlite:///{copy}", **options) as saver:
        for thread in ("t", "u"):
            with pytest.raises(WrongKeyError, match="holds no keys of this store"):
                saver.get_tuple(at(thread))
        with pytest.raises(WrongKeyError, match="holds no keys of this store"):
            put(saver, "new")


def test_another_program_stops_using_the_key(
    tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_record, "KNOWN_FOR", 0)
    with (
        open_backend("sqlite", tmp_path, **options) as one,
        open_backend("sqlite", tmp_path, **options) as other,
    ):
        config = put(one, "t")
        assert text(other, "t") == "hello"
        one.shred("t")
        with pytest.raises((WrongKeyError, ThreadDeletedError)):
            other.put_writes(config, [("messages", ["late"])], "task")


@pytest.mark.parametrize("thread_keys", [False, True])
@pytest.mark.parametrize("store", SHARED)
def test_a_late_writer_stops_nobody(
    store: str, thread_keys: bool, tmp_path: Path, options: Any
) -> None:
    """It knows the destroyed key for up to a minute. A repeated call removes what it wrote."""
    options |= {"thread_keys": thread_keys}
    with (
        open_backend(store, tmp_path, **options) as saver,
        open_backend(store, tmp_path, **options) as other,
    ):
        late, items = other.for_tenant("acme"), Store(other.backend).for_tenant("acme")
        for thread in ("t", "u"):
            put(late, thread)
        items.put(("notes",), "one", {"text": "hello"})
        put(saver, "t")
        saver.shred_tenant("acme")
        put(late, "u", user_id="u1")
        put(late, "u", user_id="u1")
        late.threads.tag("u", "urgent")
        late.threads.update("u", metadata={"user_id": "u1"})
        items.put(("notes",), "two", {"text": "late"})
        assert [one.config["configurable"]["thread_id"] for one in saver.list(None)] == ["t"]
        assert [one.config["configurable"]["thread_id"] for one in saver.list(None, limit=1)] == [
            "t"
        ]
        assert [one.id for one in saver.threads.search()] == ["t"]
        assert saver.stats(exact=True).checkpoints >= 1
        assert saver.check().ok
        saver.threads.gc(Retention(max_age=1e6))
        saver.rotate_keys()
        saver.shred_tenant("acme")
        assert [one.id for one in saver.threads.scan()] == ["t"]
        assert saver.stats(exact=True).threads == 1
        assert text(saver, "t") == "hello"


def test_keys_of_threads_that_only_a_backup_holds_end_with_their_tenant(
    tmp_path: Path, options: Any
) -> None:
    file, copy = tmp_path / "threads.db", tmp_path / "backup.db"
    with open_saver(f"sqlite:///{file}", **options) as saver:
        put(saver.for_tenant("acme"), "early")
    shutil.copy(file, copy)
    with open_saver(f"sqlite:///{file}", **options) as saver:
        put(saver.for_tenant("acme"), "later")
    with open_saver(f"sqlite:///{copy}", **options) as saver:
        assert len(saver.shred_tenant("acme").keys) == 3
    with open_saver(f"sqlite:///{file}", **options) as saver:
        for thread in ("early", "later"):
            with pytest.raises(WrongKeyError, match="destroyed"):
                saver.for_tenant("acme").get_tuple(at(thread))


def test_the_key_store_is_another_database(tmp_path: Path, options: Any) -> None:
    data = f"sqlite:///{tmp_path / 'keys.db'}"
    with (
        open_saver(data, **options) as saver,
        pytest.raises(InvalidArgumentError, match="is the database of the data"),
    ):
        put(saver, "t")


def test_a_copy_that_a_crash_interrupted_keeps_its_values(
    tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, open_backend("sqlite", tmp_path, **options) as saver:
        patch.setattr(resealing, "reseal", interrupted)
        put(saver, "t")
        with pytest.raises(KeyboardInterrupt):
            saver.copy_thread("t", "copy")
    with open_backend("sqlite", tmp_path, **options) as saver:
        saver.shred("t")
        assert text(saver, "copy") == "hello"
    with open_backend("sqlite", tmp_path, **options) as saver:
        assert text(saver, "copy") == "hello"


async def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("store", SHARED)
def test_runs_of_all_tenants_are_deleted_by_their_ids(
    store: str, tmp_path: Path, options: Any
) -> None:
    with open_backend(store, tmp_path, **{**options, "thread_keys": False}) as saver:
        for tenant in ("acme", "other"):
            mine = saver.for_tenant(tenant)
            put(mine, "t", run_id="run 1")
            put(mine, "u", run_id="run 2")
        saver.delete_for_runs(["run 1"])
        for tenant in ("acme", "other"):
            mine = saver.for_tenant(tenant)
            assert [mine.get_tuple(at(thread)) is None for thread in ("t", "u")] == [True, False]


def test_forks_share_their_origins_key_after_a_rotation(saver: Any) -> None:
    put(saver, "t")
    saver.threads.fork("t", None, "f")
    put(saver, "f")
    assert saver.rotate_keys(dry_run=True).changed == 0
    saver.rotate_keys()
    assert text(saver, "f") == "hello"


def test_an_archive_of_a_removed_fork_ends_with_its_origins_key(
    tmp_path: Path, options: Any
) -> None:
    """It holds the origin's values under the fork's key."""
    cold, copy = tmp_path / "cold", tmp_path / "copy"
    with open_backend("sqlite", tmp_path, cold=cold.as_uri(), **options) as saver:
        put(saver, "t")
        saver.threads.fork("t", None, "f")
        put(saver, "f")
        saver.threads.archive("f")
        shutil.copytree(cold, copy)
        sealer = finish(saver.backend.keys.portable("f", is_thread=True))
        saver.delete_thread("f")
        assert len(saver.shred("t").keys) == 2
        assert [one for one in copy.rglob("*") if one.is_file()]
        with pytest.raises(WrongKeyError, match="key of thread f was destroyed"):
            finish(saver.backend.keys.portable("f", is_thread=True))
        assert sealer is not None


def test_forks_of_copies_do_not_end_with_the_copied_thread(tmp_path: Path, options: Any) -> None:
    options["cold"] = (tmp_path / "cold").as_uri()
    with open_backend("sqlite", tmp_path, **options) as saver:
        put(saver, "t")
        saver.copy_thread("t", "copy")
        for fork in ("one", "two"):
            saver.threads.fork("copy", None, fork)
            put(saver, fork)
        saver.threads.archive("one")
        assert len(saver.shred("t").keys) == 1
        assert [text(saver, one) for one in ("copy", "one", "two")] == ["hello"] * 3


def test_a_refused_fork_does_not_need_the_key(saver: Any) -> None:
    for thread in ("t", "taken"):
        put(saver, thread)
    with pytest.raises(ThreadExistsError):
        saver.threads.fork("t", None, "taken")
    put(saver, "taken", "more")
    assert len(saver.shred("t").keys) == 1
    assert text(saver, "taken") == "more"


def test_a_fork_that_is_made_during_the_call_keeps_the_key(
    tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        open_backend("sqlite", tmp_path, **options) as saver,
        open_backend("sqlite", tmp_path, **options) as other,
    ):
        put(saver, "t")
        original = shredding.erase

        def erased(*args: Any, dry_run: bool, **more: Any) -> Any:
            if not dry_run:
                other.threads.fork("t", None, "f")
            return original(*args, dry_run=dry_run, **more)

        monkeypatch.setattr(shredding, "erase", erased)
        with pytest.raises(StateError, match="Forks of it"):
            saver.shred("t")
        monkeypatch.undo()
        assert text(saver, "f") == "hello"
        assert saver.shred("t", forks=True).keys
        assert list(saver.list(None)) == []
        assert saver.check().ok


def test_a_repeated_call_removes_what_a_late_writer_stored(tmp_path: Path, options: Any) -> None:
    with (
        open_backend("sqlite", tmp_path, **options) as saver,
        open_backend("sqlite", tmp_path, **options) as other,
    ):
        put(other, "t")
        saver.shred("t")
        assert put(other, "t")
        assert list(saver.list(None)) == []
        assert saver.shred("t").keys == ()
        assert saver.check().ok


def test_keys_are_wrapped_again_by_a_rotation(tmp_path: Path, options: Any) -> None:
    """Archives keep the keys of their threads, so the rotation needs no cold store."""
    new, cold = RING.rotated(), (tmp_path / "cold").as_uri()
    with open_backend("sqlite", tmp_path, cold=cold, **options) as saver:
        put(saver, "t")
        put(saver, "archived")
        saver.threads.archive("archived")
    with open_backend("sqlite", tmp_path, **{**options, "keys": new}) as saver:
        saver.rotate_keys()
    last = new.without(RING.current)
    with open_backend("sqlite", tmp_path, cold=cold, **{**options, "keys": last}) as saver:
        assert [text(saver, name) for name in ("t", "archived")] == ["hello", "hello"]


def test_a_rotation_passes_by_what_was_shredded(tmp_path: Path, options: Any) -> None:
    with open_backend("sqlite", tmp_path, **options) as saver:
        for thread in ("t", "u"):
            put(saver, thread)
            put(saver.for_tenant("acme"), thread)
        saver.shred("t")
        saver.for_tenant("acme").shred("t")
        assert saver.rotate_keys().changed == 0
        saver.shred_tenant("acme")
        saver.rotate_keys()
        assert text(saver, "u") == "hello"


@pytest.mark.parametrize("thread_keys", [False, True])
async def test_files_of_a_tenant_end_with_its_key(
    thread_keys: bool, tmp_path: Path, options: Any
) -> None:
    """Bundles that its saver wrote, and copies of objects in the cold store."""
    cold, bundle = tmp_path / "cold", tmp_path / "acme.tkb"
    options |= {"cold": cold.as_uri(), "thread_keys": thread_keys}
    with open_backend("sqlite", tmp_path, **options) as saver:
        tenant = saver.for_tenant("acme")
        put(tenant, "t", "MARK")
        tenant.threads.export_bundle(None, bundle)
        await tenant.threads.aexport_bundle(None, tmp_path / "async.tkb")
        tenant.threads.archive("t")
    shutil.copytree(cold, tmp_path / "kept")
    shutil.copy(tmp_path / "threads.db", tmp_path / "kept.db")
    with open_backend("sqlite", tmp_path, **options) as saver:
        saver.shred_tenant("acme")
        for file in (bundle, tmp_path / "async.tkb"):
            with pytest.raises(WrongKeyError):
                saver.threads.import_bundle(file)
    options["cold"] = (tmp_path / "kept").as_uri()
    with (
        open_saver(f"sqlite:///{tmp_path / 'kept.db'}", **options) as saver,
        pytest.raises(WrongKeyError, match="destroyed"),
    ):
        text(saver.for_tenant("acme"), "t")


def test_copies_of_a_threads_archive_end_with_its_key(tmp_path: Path, options: Any) -> None:
    options["cold"] = (tmp_path / "cold").as_uri()
    with open_backend("sqlite", tmp_path, **options) as saver:
        put(saver, "t", "MARK")
        saver.threads.archive("t")
        assert text(saver, "t") == "MARK"
        saver.threads.archive("t")
        shutil.copytree(tmp_path / "cold", tmp_path / "kept")
        saver.shred("t")
        data = next((tmp_path / "kept").rglob("*.tkb")).read_bytes()
        for sealer in (RING.sealer("portable", ""), RING.sealer("none")):
            with pytest.raises((WrongKeyError, TamperedDataError)):
                opened_file(BytesIO(data), FileKind.ARCHIVE, sealer, "").read()


def test_no_row_is_copied_to_another_tenant(tmp_path: Path, options: Any) -> None:
    """It would keep the source's key. A mirror encrypts it with the target's."""
    with open_backend("sqlite", tmp_path, **{**options, "thread_keys": False}) as saver:
        one, two = saver.for_tenant("one"), saver.for_tenant("two")
        put(one, "t")
        one.threads.tag("t", "urgent")
        (source,) = [thread.id for thread in saver.threads.scan()]
        with pytest.raises(InvalidArgumentError, match="another tenant"):
            saver.copy_thread(source, source.replace("one", "two"))
        one.threads.mirror(two)
        saver.shred_tenant("one")
        assert (text(two, "t"), two.threads.get("t").tags) == ("hello", ("urgent",))
        saver.rotate_keys()
        assert saver.check().ok


def test_two_programs_make_one_key(tmp_path: Path, options: Any) -> None:
    with (
        open_backend("sqlite", tmp_path, **options) as one,
        open_backend("sqlite", tmp_path, **options) as other,
    ):
        for number in range(20):
            put((one, other)[number % 2], f"t{number % 3}", str(number))
        for number in range(3):
            assert len(list(one.list(at(f"t{number}")))) > 5
        assert other.check().ok


def test_the_first_program_decides_whose_keys_are_random(tmp_path: Path, options: Any) -> None:
    with open_backend("sqlite", tmp_path, **options) as saver:
        put(saver, "t")
    with open_backend("sqlite", tmp_path, **{**options, "thread_keys": False}) as saver:
        assert text(saver, "t") == "hello"
        put(saver, "u")
        assert len(saver.shred("u").keys) == 1
    with (
        open_backend("sqlite", tmp_path, keys=RING) as saver,
        pytest.raises(WrongKeyError, match="key store"),
    ):
        text(saver, "t")
    (tmp_path / "other").mkdir()
    with open_backend("sqlite", tmp_path / "other", keys=RING) as saver:
        put(saver, "t")
    with (
        open_backend("sqlite", tmp_path / "other", **options) as saver,
        pytest.raises(InvalidArgumentError, match="begun without key_store="),
    ):
        text(saver, "t")


def test_a_lost_key_store_is_no_new_one(tmp_path: Path, options: Any) -> None:
    with open_backend("sqlite", tmp_path, **options) as saver:
        put(saver, "t")
    (tmp_path / "keys.db").unlink()
    with (
        open_backend("sqlite", tmp_path, **options) as saver,
        pytest.raises((WrongKeyError, TamperedDataError)),
    ):
        saver.get_tuple(at("t"))


def test_without_keys_of_their_own_nothing_is_shredded(tmp_path: Path) -> None:
    with open_backend("sqlite", tmp_path, keys=RING) as saver:
        put(saver, "t")
        with pytest.raises(InvalidArgumentError, match="no keys of their own"):
            saver.shred("t")
        with pytest.raises(InvalidArgumentError, match="cannot be destroyed one by one"):
            saver.shred_tenant("acme")
        assert text(saver, "t") == "hello"
