"""Savers with keys: searches, refusals, and the keys of the command line."""

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit.backends import SHARED, open_backend
from kit.cli import threadkeep
from kit.places import at
from kit.rows import say as put

from threadkeep import KeyRing, MemoryCache, MemorySaver, Retention, Saver, open_saver
from threadkeep._core.engine.model import DropThread
from threadkeep._core.parts import parts_of
from threadkeep._core.tenants import STORE
from threadkeep._stores.key_record import KNOWN_FOR
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.store_keys import StoreKeys
from threadkeep._stores.sync_bridge import finish
from threadkeep.errors import InvalidArgumentError, TamperedDataError, WrongKeyError
from threadkeep.threads.archives import offload

RING = KeyRing([b"k" * 32])


def ids(found: Any) -> list[str]:
    return [one.id for one in found.threads]


@pytest.fixture
def saver_options() -> dict[str, Any]:
    return {"keys": RING, "searchable": ["user_id"]}


def test_searches_find_what_is_declared_and_all_else(saver: Any) -> None:
    for number in range(5):
        user = f"u{number % 2}"
        put(saver, f"t{number}", user_id=user, step=number)
        saver.threads.update(f"t{number}", metadata={"user_id": user, "plan": f"p{number % 3}"})
    saver.threads.tag("t2", "urgent")
    for _ in range(2):
        search = saver.threads.search
        assert ids(search(metadata={"user_id": "u0"}, order="thread")) == ["t0", "t2", "t4"]
        assert ids(search(metadata={"plan": "p1"}, order="thread")) == ["t1", "t4"]
        assert ids(search(metadata={"user_id": "u0", "plan": "p1"})) == ["t4"]
        assert ids(search(tags=["urgent"])) == ["t2"]
        assert saver.threads.count(metadata={"plan": "p0"}) == 2
        assert saver.threads.count(metadata={"user_id": "u1"}) == 2
        first = search(metadata={"plan": "p0"}, order="thread", limit=1)
        rest = search(metadata={"plan": "p0"}, order="thread", limit=1, cursor=first.cursor)
        assert ids(first) + ids(rest) == ["t0", "t3"]
        for found in ({"user_id": "u1"}, {"user_id": "u1", "step": 3}, {"step": 3}):
            listed = list(saver.list(None, filter=found))
            steps = [3] if "step" in found else [3, 1]
            assert [one.metadata["step"] for one in listed] == steps
    saver.threads.untag("t2", "urgent")
    saver.threads.update("t2", metadata={"user_id": "other"})
    assert ids(saver.threads.search(tags=["urgent"])) == []
    assert ids(saver.threads.search(metadata={"user_id": "u0"}, order="thread")) == ["t0", "t4"]


@pytest.mark.parametrize("store", SHARED)
def test_a_store_with_plain_threads_is_refused_until_it_is_migrated(
    store: str, tmp_path: Path
) -> None:
    with open_backend(store, tmp_path) as plain:
        put(plain, "old")
        plain.threads.tag("old", "before")
    with open_backend(store, tmp_path, keys=RING) as refused:
        with pytest.raises(InvalidArgumentError, match="not encrypted"):
            put(refused, "new")
        with pytest.raises(TamperedDataError, match="not encrypted"):
            refused.get_tuple(at("old"))
    with open_backend(store, tmp_path, keys=RING, allow_plaintext="migrate") as migrating:
        put(migrating, "new")
        assert ids(migrating.threads.search(order="thread")) == ["new", "old"]
        assert migrating.threads.get("old").tags == ("before",)
        put(migrating, "old")
        listed = list(migrating.list(at("old")))
        assert len(listed) == 2
        assert migrating.check().ok


def test_without_the_key_the_error_names_it(ours: Any, tmp_path: Path) -> None:
    put(ours, "t")
    with open_backend("sqlite", tmp_path) as plain, pytest.raises(WrongKeyError) as no_keys:
        plain.get_tuple(at("t"))
    assert f"key {RING.current}, and no keys were given" in str(no_keys.value)
    other = KeyRing.generate()
    with open_backend("sqlite", tmp_path, keys=other) as wrong:
        with pytest.raises(WrongKeyError, match=f"key {RING.current}, which was not given"):
            wrong.get_tuple(at("t"))
        with pytest.raises(WrongKeyError, match=RING.current):
            put(wrong, "u")


def test_a_ring_without_a_key_in_use_is_refused_at_once(tmp_path: Path) -> None:
    old = KeyRing.generate()
    new = old.rotated()
    with open_backend("sqlite", tmp_path, keys=old) as saver:
        put(saver, "t")
    with open_backend("sqlite", tmp_path, keys=new) as saver:
        put(saver, "u", user_id="x")
        assert saver.get_tuple(at("t")) is not None
    with (
        open_backend("sqlite", tmp_path, keys=new.without(old.current)) as saver,
        pytest.raises(WrongKeyError, match=f"may be encrypted with key {old.current}"),
    ):
        saver.get_tuple(at("u"))


@pytest.mark.parametrize("store", SHARED)
def test_a_rotation_gives_all_values_the_current_key(store: str, tmp_path: Path) -> None:
    old = KeyRing.generate()
    new = old.rotated()
    with open_backend(store, tmp_path, keys=old) as saver:
        for number in range(40):
            put(saver, "t", f"{number} " * 40, user_id="u")
        config = put(saver, "asked")
        saver.put_writes(config, [("messages", ["an answer"])], "task")
        saver.threads.tag("asked", "urgent")
        saver.threads.update("t", metadata={"user_id": "u"})
        saver.threads.fork("t", new_thread_id="fork")
        saver.copy_thread("t", "copy")
        known = len(list(saver.list(None, filter={"user_id": "u"})))
        before = {name: saver.get_tuple(at(name)) for name in ("t", "asked", "fork", "copy")}
    with open_backend(store, tmp_path, keys=new, searchable=["user_id"]) as saver:
        assert ids(saver.threads.search(metadata={"user_id": "u"}, order="thread")) == [
            "copy",
            "fork",
            "t",
        ]
        counted = saver.rotate_keys(dry_run=True)
        assert saver.stats(exact=True).key_bytes == counted.key_bytes
        assert f"Encrypted with key {old.current}: " in saver.stats(exact=True).report()
        assert counted.changed > 0 < counted.key_bytes[old.current]
        assert 0 < saver.rotate_keys().changed <= counted.changed  # (forks share values)
        again = saver.rotate_keys(dry_run=True)
        assert (again.changed, list(again.key_bytes)) == (0, [new.current])
    with open_backend(store, tmp_path, keys=new.without(old.current), searchable=["x"]) as saver:
        assert {name: saver.get_tuple(at(name)) for name in before} == before
        assert saver.threads.get("asked").tags == ("urgent",)
        put(saver, "late", user_id="u")
        found = saver.list(None, filter={"user_id": "u"})
        assert len(list(found)) == known + 1 > 80
        assert saver.check().ok


def test_a_key_that_only_some_programs_search_by(tmp_path: Path) -> None:
    """One that does not know it leaves the digest of an earlier value."""
    with (
        open_backend("sqlite", tmp_path, keys=RING) as older,
        open_backend("sqlite", tmp_path, keys=RING, searchable=["user_id"]) as newer,
    ):
        put(older, "t", user_id="before")
        put(newer, "t", user_id="first")
        put(older, "t", user_id="second")
        for saver in (older, newer):
            assert saver.threads.get("t").metadata["user_id"] == "second"
            assert ids(saver.threads.search(metadata={"user_id": "first"})) == []
        newer.rotate_keys()
        assert ids(newer.threads.search(metadata={"user_id": "second"})) == ["t"]
        assert newer.threads.count(metadata={"user_id": "first"}) == 0
        assert newer.check().ok


def test_a_rotation_continues_beside_writers_and_after_an_end(ours: Any, tmp_path: Path) -> None:
    """It is cut off in its middle, writers continue, and it is done when it is run again."""
    for number in range(300):
        put(ours, f"t{number % 3}", f"{number} " * 40)
    new = RING.rotated()
    with open_backend("sqlite", tmp_path, keys=new) as saver:

        def progress(stage: str, done: int, total: int) -> None:
            put(saver, "t2", "while it rotates")
            if done == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            saver.rotate_keys(progress=progress)
        left = saver.rotate_keys(dry_run=True)
        assert {*left.key_bytes} == {*new.ids}
        saver.rotate_keys(progress=lambda *_: put(saver, "t1", "more"))
        assert {*saver.rotate_keys(dry_run=True).key_bytes} == {new.current}
        assert saver.check().ok


@pytest.mark.parametrize("is_first", [True, False])
def test_a_rotation_reaches_the_cold_store(
    is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is a program's first operation: the store's record lists the old key alone."""
    monkeypatch.setattr(offload, "parts_of", partial(parts_of, most_items=1))
    old = KeyRing.generate()
    new, cold = old.rotated(), (tmp_path / "cold").as_uri()
    with open_backend("sqlite", tmp_path, keys=old, cold=cold) as saver:
        for thread in ("archived", "offloaded"):
            for number in range(4):
                put(saver, thread, f"{number} {os.urandom(4000).hex()}")
        saver.threads.archive("archived")
        assert saver.threads.offload("offloaded", over=1024).bytes > 0
        before = saver.threads.get("offloaded").offloaded_bytes
    objects = {*(tmp_path / "cold").rglob("*.tkp")}
    assert len(objects) > 1
    with open_backend("sqlite", tmp_path, keys=new) as saver:
        if not is_first:
            put(saver, "other")
        with pytest.raises(InvalidArgumentError, match="older key"):
            saver.rotate_keys()
    with open_backend("sqlite", tmp_path, keys=new, cold=cold) as saver:
        assert saver.rotate_keys(dry_run=True).archives == 2
        assert {*(tmp_path / "cold").rglob("*.tkp")} == objects
        assert saver.rotate_keys().archives == 2
        assert saver.threads.get("archived").state == "archived"
        assert saver.threads.get("offloaded").offloaded_bytes == pytest.approx(before, rel=0.1)
    assert len({*(tmp_path / "cold").rglob("*.tkp")} - objects) == len(objects)
    for path in objects:
        path.unlink()
    with open_backend("sqlite", tmp_path, keys=new.without(old.current), cold=cold) as saver:
        saver.threads.offload("offloaded", over=1024)  # (it would notice missing objects)
        for thread in ("archived", "offloaded"):
            assert len(list(saver.list(at(thread)))) == 4
        assert saver.check().ok


def test_only_a_saver_with_keys_rotates() -> None:
    with MemorySaver() as saver, pytest.raises(InvalidArgumentError, match="has no keys"):
        saver.rotate_keys()
    with (
        MemorySaver(keys=RING) as saver,
        pytest.raises(InvalidArgumentError, match="of the tenant"),
    ):
        saver.for_tenant("acme").rotate_keys()


def test_options_that_need_keys_or_have_them_twice(ours: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="searchable= needs keys"):
        open_saver("memory://", searchable=["user_id"])
    with pytest.raises(InvalidArgumentError, match="allow_plaintext= needs keys"):
        MemoryCache(allow_plaintext="migrate")
    with pytest.raises(InvalidArgumentError, match="encrypts its rows already"):
        Saver(ours.backend, keys=RING)


def test_what_forks_share_opens_after_either_was_pruned(saver: Any) -> None:
    """Values that one thread stores again in place of shared ones are for all of them."""
    for number in range(30):
        put(saver, "t", f"{number} " * 40)
    saver.threads.fork("t", new_thread_id="fork")
    saver.threads.fork("fork", new_thread_id="second")
    for thread in ("second", "fork", "t"):
        put(saver, thread, "its own")
        saver.threads.gc(Retention(keep_last=2), thread_ids=[thread])
        for other in ("t", "fork", "second"):
            config = {"configurable": {"thread_id": other}}
            assert saver.get_tuple(config).checkpoint["channel_values"]["messages"]
        assert saver.check().ok


def test_the_command_line_takes_keys_from_the_environment_or_a_file(
    ours: Any, tmp_path: Path
) -> None:
    put(ours, "t")
    url, file = f"sqlite:///{tmp_path / 'threads.db'}", tmp_path / "keys"
    RING.save(file)
    for name, value in (("TK_KEYS", RING.as_text()), ("THREADKEEP_KEYS_FILE", str(file))):
        code, out, _ = threadkeep("show", url, "t", env={**os.environ, name: value})
        assert (code, "hello" in "".join(out)) == (0, True)
    code, _, errors = threadkeep("show", url, "t")
    assert (code, RING.current in "".join(errors)) == (2, True)


def test_a_key_that_a_late_program_writes_with_is_named_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = KeyRing([b"k" * 32, b"n" * 32]), KeyRing([b"n" * 32, b"k" * 32])
    with (
        open_backend("sqlite", tmp_path, keys=old) as late,
        open_backend("sqlite", tmp_path, keys=new) as saver,
    ):
        put(late, "t")
        saver.rotate_keys()
        assert saver.backend.keys._record.value.keys == [new.current]
        late.get_tuple(at("t"))
        monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + KNOWN_FOR)
        late.get_tuple(at("t"))
        put(late, "t")
        saver.stats(exact=True)
        assert saver.backend.keys._record.value.keys == [old.current, new.current]
    with (
        open_backend("sqlite", tmp_path, keys=new.without(old.current)) as saver,
        pytest.raises(WrongKeyError, match=old.current),
    ):
        saver.get_tuple(at("t"))


def test_a_store_that_is_emptied_gets_its_record_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_backend("sqlite", tmp_path, keys=RING) as saver:
        put(saver, "t")
        saver.backend.face.below.commit(DropThread(STORE, time.time_ns() // 1000))
        put(saver, "u")
        monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + KNOWN_FOR)
        put(saver, "u")
    with open_backend("sqlite", tmp_path, keys=RING) as saver:
        assert saver.get_tuple(at("u")) is not None


def test_a_store_in_the_place_of_another_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = MemoryBackend(), MemoryBackend()
    for store in (one, two):
        finish(StoreKeys(RING).for_store(store).prepare())
    keys = StoreKeys(RING).for_store(one)
    finish(keys.prepare())
    monkeypatch.setattr(keys, "_store", two)
    finish(keys.prepare())
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + KNOWN_FOR)
    with pytest.raises(WrongKeyError, match="in the place of this one"):
        finish(keys.prepare())
