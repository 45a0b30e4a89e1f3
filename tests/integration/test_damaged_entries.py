"""Damaged entries of the registry: found, left out of listings, corrected."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kit.backends import open_backend, url_of
from kit.damage import damaging
from kit.engine import Chain
from kit.places import at
from langgraph.types import Command

from threadkeep import MemorySaver, Retention, guard
from threadkeep._core.engine.operation import no_progress
from threadkeep._stores.redis.rows import keys_of
from threadkeep.errors import CorruptionError
from threadkeep.savers import backup
from threadkeep.threads.repair.check import Kind

from .test_damaged_cells import graph

POSTGRES = {
    "created_at": "created_at = '-infinity'",
    "updated_at": "updated_at = 'infinity'",
    "deleted_at": "deleted_at = 'infinity'",
    "state": "state = 'odd'",
    "origin": "origin = 'x', origin_checkpoint = NULL",
    "ttl": "ttl = -5",
    "long ttl": "ttl = 9223372036854775807",
    "size": "size = 9223372036854775807",
    "revision": "revision = -1",
    "generation": "generation = -1",
    "status": "status = 'odd'",
    "lease_until": "lease_until = -5",
    "attempts": "attempts = -1",
}
REDIS = {
    **{name: (name, value) for name in ("created_at", "updated_at") for value in ("odd", "9" * 18)},
    "state": ("state", "odd"),
    "origin": ("origin", b"\xff"),
    "status": ("status", "odd"),
    "status_at": ("status_at", b"\xff"),
    "failed_node": ("failed_node", b"\xff"),
    "ttl": ("ttl", "-1"),
    "size": ("size", "odd"),
    "deleted_at": ("deleted_at", "-1"),
    "revision": ("revision", "odd"),
    "generation": ("generation", "odd"),
    "labels": ('l:"tag', b"{"),
}
SQLITE = {
    "created_at": "created_at = 'odd'",
    "updated_at": "updated_at = 'odd'",
    "state": "state = 'odd'",
    "ttl": "ttl = -5",
    "size": "size = 'odd'",
    "pinned": "pinned = 'odd'",
    "revision": "revision = 'odd'",
    "status": "status = 'odd'",
    "status_at": "status_at = 5",
    "failed_node": "failed_node = x'ff'",
    "generation": "generation = 'odd'",
    "holder": "holder = x'ff'",
    "lease_until": "lease_until = -5",
    "attempts": "attempts = 'odd'",
}
LEASES = ("holder", "lease_until", "attempts")
CASES = [("postgres", name) for name in POSTGRES] + [("redis", name) for name in REDIS]


def damage(name: str, case: str, folder: Path) -> None:
    harm = damaging(name, None, folder)
    if name == "redis":
        harm._client.hset(keys_of(harm._prefix, "bad")[0], *REDIS[case])
        return
    if name == "sqlite":
        harm.execute(f"UPDATE tk_threads SET {SQLITE[case]} WHERE thread = ?", "bad")
        return
    schema = harm._names["c"].partition(".")[0]
    harm.execute(f"UPDATE {schema}.threads SET {POSTGRES[case]} WHERE thread_id = ?", "bad")


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_damaged_entry(name: str, case: str, tmp_path: Path) -> None:
    with open_backend(name, tmp_path) as saver:
        for thread in ("good", "bad"):
            graph(saver).invoke({"log": ["in"]}, at(thread))
            saver.threads.tag(thread, "kept")
        before: Any = saver.threads.get("bad")
        damage(name, case, tmp_path)
        if case != "generation":
            with pytest.raises(CorruptionError, match="'bad'"):
                saver.threads.get("bad")
            assert [one.id for one in saver.threads.scan()] == ["good"]
            report = saver.threads.gc(Retention(keep_last=1, ttl=1e9), dry_run=True)
            assert [one.thread for one in report.skipped] == ["bad"]
        found = saver.check().findings
        assert {(one.thread, one.kind) for one in found} == {("bad", Kind.UNREADABLE)}
        done = saver.threads.repair(file=tmp_path / "out.tkq")
        assert done.ok, done.unrepaired
        assert saver.check().findings == saver.check().notes == ()
        after = saver.threads.get("bad")
        assert (after.state, after.status) == ("active", "waiting")
        assert after.status_checkpoint == before.status_checkpoint
        assert after.bytes == before.bytes
        assert after.tags == ("kept",)
        assert len(graph(saver).get_state(at("bad")).values["log"]) == 2
        due = [one.id for one in saver.runs.unfinished()]  # (a worker may have held it)
        assert due == (["bad"] if case in LEASES else [])
        with guard(saver, "bad") as held:
            graph(saver).invoke(Command(resume="yes"), held.config)
        assert [one.id for one in saver.runs.unfinished()] == []


REASON = {"bad": "Its entry in the registry is damaged: state."}


@pytest.mark.parametrize("name", ["sqlite", "postgres", "redis"])
def test_a_walk_over_the_whole_store_skips_a_damaged_entry(name: str, tmp_path: Path) -> None:
    with open_backend(name, tmp_path) as saver, MemorySaver() as other:
        for thread in ("alike", "bad", "good"):
            graph(saver).invoke({"log": ["in"]}, at(thread))
        damage(name, "state", tmp_path)
        file = tmp_path / "threads.tkb"
        exported = saver.threads.export_bundle(None, file)
        assert (exported.threads, exported.skipped) == (2, REASON)
        assert other.threads.import_bundle(file).added == ("alike", "good")
        other.delete_thread("good")
        done = saver.threads.mirror(other, replace=True)
        assert (done.unchanged, done.replaced, done.skipped) == (1, ["good"], REASON)
        back = other.threads.mirror(saver)
        assert (back.unchanged, back.skipped) == (2, {})
        graph(other).invoke({"log": ["in"]}, at("bad"))
        assert other.threads.mirror(saver).skipped == REASON
        for named in (
            lambda: saver.threads.export_bundle(["bad"], file),
            lambda: saver.threads.mirror(other, ["bad"]),
        ):
            with pytest.raises(CorruptionError, match="'bad'"):
                named()
    taken = backup.back_up(url_of(name, tmp_path), file, no_progress, form="bundle")
    assert (taken.threads, taken.skipped) == (2, REASON)


ARCHIVED = [("sqlite", case) for case in SQLITE] + CASES


@pytest.mark.parametrize(("name", "case"), ARCHIVED)
def test_a_damaged_entry_of_an_archived_thread_that_waits(
    name: str, case: str, tmp_path: Path
) -> None:
    with open_backend(name, tmp_path, cold=(tmp_path / "cold").as_uri()) as saver:
        graph(saver).invoke({"log": ["in"]}, at("bad"))
        archived = saver.threads.archive("bad")
        damage(name, case, tmp_path)
        assert {one.kind for one in saver.check().findings} == {Kind.UNREADABLE}
        done = saver.threads.repair(file=tmp_path / "out.tkq")
        assert done.ok, done.unrepaired
        assert saver.check().findings == ()
        after = saver.threads.get("bad")
        assert after.state == "archived"
        assert after.status == archived.status == "waiting" or after.pinned
        assert saver.threads.gc(Retention(ttl=0.000001, max_count=1)).deleted == ()
        back = saver.threads.restore("bad")
        assert (back.status, back.status_checkpoint) == ("waiting", archived.status_checkpoint)
        assert graph(saver).get_state(at("bad")).interrupts


LOST = {
    "damaged": "UPDATE tk_labels SET label = '{' WHERE label LIKE '{\"archive%'",
    "of another form": "UPDATE tk_labels SET label = '{\"archive\":[1]}' WHERE label LIKE '{\"a%'",
    "gone": "DELETE FROM tk_labels WHERE label LIKE '{\"archive%'",
}


@pytest.mark.parametrize("case", LOST)
def test_an_archived_thread_without_the_record_of_its_archive(case: str, tmp_path: Path) -> None:
    with open_backend("sqlite", tmp_path, cold=(tmp_path / "cold").as_uri()) as saver:
        graph(saver).invoke({"log": ["in"]}, at("bad"))
        saver.threads.archive("bad")
        (key,) = [file for file in (tmp_path / "cold").rglob("*") if file.is_file()]
        with closing(sqlite3.connect(tmp_path / "threads.db")) as db, db:
            assert db.execute(LOST[case]).rowcount == 1
        found = saver.check().findings
        assert {(one.thread, one.kind) for one in found} == {("bad", Kind.UNREADABLE)}
        (problem,) = [one.problem for one in found if "does not name the archive" in one.problem]
        assert problem.partition("threads/*/")[2].partition("/")[0] in key.parts
        done = saver.threads.repair(file=tmp_path / "out.tkq")
        assert not done.repaired
        assert done.unrepaired == found
        assert saver.threads.gc(Retention(ttl=0.000001)).deleted == ()
        assert key.exists()


@pytest.mark.parametrize("number", ["77", "2"])  # (2: that of `other`)
def test_a_fork_whose_values_are_not_found_stays(number: str, tmp_path: Path) -> None:
    with open_backend("sqlite", tmp_path) as saver:
        graph(saver).invoke({"log": ["in"]}, at("origin"))
        Chain(saver, "other").put(n=1)
        saver.threads.fork("origin", new_thread_id="fork")
        expected = graph(saver).get_state(at("fork")).values
        saver.delete_thread("origin")
        harm = damaging("sqlite", None, tmp_path)
        harm.execute(f"UPDATE tk_threads SET heap = {number} WHERE thread = ?", "fork")
        done = saver.threads.repair("fork", file=tmp_path / "out.tkq")
        assert (done.repaired, done.file) == ((), None)
        assert [(one.thread, one.kind) for one in done.unrepaired] == [("fork", Kind.VALUE)]
        harm.execute("UPDATE tk_threads SET heap = 1 WHERE thread = ?", "fork")
        assert saver.check().ok
        assert graph(saver).get_state(at("fork")).values == expected


@pytest.mark.parametrize(
    ("damaged", "has_fork"), [("origin", False), ("origin", True), ("fork", True)]
)
def test_a_damaged_heap_takes_no_values_along(damaged: str, has_fork: bool, tmp_path: Path) -> None:
    threads = ["origin", "fork"] if has_fork else ["origin"]
    with open_backend("sqlite", tmp_path) as saver:
        graph(saver).invoke({"log": ["in"]}, at("origin"))
        expected = graph(saver).get_state(at("origin")).values
        if has_fork:
            saver.threads.fork("origin", new_thread_id="fork")
        harm = damaging("sqlite", None, tmp_path)
        harm.execute("UPDATE tk_threads SET heap = 'odd' WHERE thread = ?", damaged)
        assert [one.thread for one in saver.check().findings] == [damaged]
        done = saver.threads.repair(file=tmp_path / "out.tkq")
        assert (done.ok, [one.checkpoints for one in done.repaired]) == (True, [()])
        for thread in threads:
            assert graph(saver).get_state(at(thread)).values == expected
        saver.delete_thread("origin")
        for thread in threads[1:]:
            assert graph(saver).get_state(at(thread)).values == expected
        assert saver.check().ok
