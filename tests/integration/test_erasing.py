"""Erasure on every store: data removed, data that other threads keep, and the report."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kit.engine import Chain, Passing, everything, fresh
from kit.places import at

from threadkeep import SqliteSaver
from threadkeep._core.codec.frame import Compression
from threadkeep._core.engine.model import Batch, ReadSegments, ReadThread, Span
from threadkeep._core.engine.operation import fetch
from threadkeep._stores.base import Backend
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.errors import (
    ConflictError,
    CorruptionError,
    InvalidArgumentError,
    ThreadNotFoundError,
    UnfinishedErasureError,
)
from threadkeep.savers.saver import Saver
from threadkeep.threads.erasure import EraseReport

from .test_retention import _chat

MARKER = "marker-0c7be2519d"
PLAIN = Compression(level=0)


def _told(report: EraseReport) -> list[tuple[str, int]]:
    return [(one.thread, one.checkpoints) for one in report.threads]


def _holds(saver: Any, thread: str) -> bool:
    rows = saver._store.run(fetch(ReadThread(thread)))
    return bool(rows.checkpoints or rows.orphans or rows.segments)


async def test_by_name_and_by_metadata(saver: Any) -> None:
    for thread, user in (("a", "u1"), ("b", "u1"), ("c", "u2"), ("d", "u1")):
        _chat(saver, thread, turns=2)
        saver.threads.update(thread, metadata={"user_id": user, "n": 1})
    saver.threads.create("e", metadata={"user_id": "u1"})
    kept = {place: one for place, one in everything(saver).items() if place[0] == "c"}
    dry = saver.threads.erase("a", dry_run=True)
    assert dry == await saver.threads.aerase("a", dry_run=True)
    assert dry.dry_run
    assert (dry.cleared, dry.remains, dry.unfinished) == ((), (), ())
    done = saver.threads.erase("a")
    assert (done.threads, done.shared_with, done.ok) == (dry.threads, (), True)
    assert done.threads[0].bytes > 0
    assert done.threads[0].segments > 0
    assert done.cleared[0] == "rows, entries and labels"
    dry = await saver.threads.aerase(metadata={"user_id": "u1", "n": 1}, dry_run=True)
    done = await saver.threads.aerase(metadata={"user_id": "u1"})
    assert [one.thread for one in done.threads] == ["b", "d", "e"]
    assert [one for one in done.threads if one.thread != "e"] == list(dry.threads)
    assert everything(saver) == kept
    assert not any(_holds(saver, name) for name in "abde")
    assert {one.state for one in map(saver.threads.get, "abde")} == {"deleted"}
    assert saver.threads.get("b").metadata == {}
    assert saver.check().ok
    again = saver.threads.erase("a")
    assert _told(again) == [("a", 0)]
    assert again.cleared == done.cleared
    assert saver.threads.erase(metadata={"user_id": "u1"}).threads == ()


async def test_what_has_no_meaning_is_refused(ours: Any) -> None:
    _chat(ours, turns=1)
    before = everything(ours)
    refused: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}),
        (("thread",), {"metadata": {"a": 1}}),
        ((), {"metadata": {}}),
        ((), {"metadata": "a=1"}),
        ((True,), {}),
        ((), {"metadata": {"a": object()}}),
        (("thread",), {"forks": 1}),
        (("thread",), {"rewrite": "yes"}),
        (("thread",), {"dry_run": None}),
    ]
    for arguments, options in refused:
        with pytest.raises(InvalidArgumentError):
            ours.threads.erase(*arguments, **options)
        with pytest.raises(InvalidArgumentError):
            await ours.threads.aerase(*arguments, **options)
    with pytest.raises(ThreadNotFoundError, match="Nothing was erased"):
        ours.threads.erase("absent")
    with pytest.raises(ThreadNotFoundError):
        await ours.threads.aerase("absent", dry_run=True)
    assert everything(ours) == before


def test_progress_is_told(saver: Any) -> None:
    for name in "abc":
        saver.threads.create(name, metadata={"k": 1})
    told: list[tuple[str, int, int]] = []
    saver.threads.erase(metadata={"k": 1}, progress=lambda *one: told.append(one))
    assert told[:3] == [("threads erased", n, 3) for n in (1, 2, 3)]
    what, done, total = told[-1]
    assert (what, done) == ("places cleared", total)


def test_more_threads_than_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadkeep._core.engine.registration.PAGE", 3)
    saver = Saver(MemoryBackend())
    for number in range(10):
        saver.threads.create(f"t{number}", metadata={"k": number % 5 > 0})
    report = saver.threads.erase(metadata={"k": True})
    assert [one.thread[1] for one in report.threads] == list("12346789")


# -- forks ---------------------------------------------------------------------------


def _family(saver: Any) -> Any:
    """A thread, a fork that continues with marked values, and a fork of that."""
    graph = _chat(saver, "origin", turns=3)
    saver.threads.fork("origin", new_thread_id="fork")
    for turn in range(8):
        graph.invoke({"said": [f"{turn} {MARKER}"]}, at("fork"))
    saver.threads.fork("fork", new_thread_id="second")
    graph.invoke({"said": ["go on"]}, at("second"))
    graph.invoke({"said": ["go on"]}, at("origin"))
    return graph


def _bytes(saver: Any, thread: str) -> bytes:
    """All stored bytes of a thread and of those that share its segments."""
    everywhere = tuple(Span(log, 0, 2**40) for log in _logs(saver, thread))
    segments = saver._store.run(fetch(ReadSegments(thread, everywhere)))
    rows = saver._store.run(fetch(ReadThread(thread)))
    return repr((segments, rows.checkpoints, rows.orphans)).encode()


def _logs(saver: Any, thread: str) -> set[int]:
    return {place.log for place in saver._store.run(fetch(ReadThread(thread))).segments}


@pytest.fixture
def plain(saver: Any) -> Any:
    """The saver without compression, so that tests can search the stored bytes."""
    saver._engine = saver._engine._replace(compression=PLAIN)
    return saver


def test_threads_that_share_are_named(plain: Any) -> None:
    graph = _family(plain)
    states = {name: graph.get_state(at(name)).values for name in ("origin", "second")}
    dry = plain.threads.erase("fork", dry_run=True)
    assert (dry.forks, dry.shared_with) == (("second",), ("origin",))
    report = plain.threads.erase("fork")
    assert (report.forks, report.shared_with) == (("second",), ("origin",))
    assert MARKER.encode() in _bytes(plain, "second")  # its own copy, as reported
    assert {name: graph.get_state(at(name)).values for name in states} == states
    assert plain.check().ok
    # (the tombstone has no origin; the other thread's entry has)
    assert plain.threads.erase("fork").forks == ("second",)
    plain.threads.erase("second")
    assert MARKER.encode() not in _bytes(plain, "origin")
    assert graph.get_state(at("origin")).values == states["origin"]
    assert graph.invoke({"said": ["on"]}, at("origin"))["said"][-1] == "yes, on"
    assert plain.check().ok


async def test_forks_are_erased_with_their_origin(saver: Any) -> None:
    graph = _family(saver)
    saver.threads.fork("origin", new_thread_id="sibling")
    _chat(saver, "other", turns=1)
    states = {n: graph.get_state(at(n)).values for n in ("origin", "sibling", "other")}
    dry = saver.threads.erase("fork", forks=True, dry_run=True)
    report = await saver.threads.aerase("fork", forks=True)
    assert [one.thread for one in report.threads] == ["second", "fork"]
    assert report.forks == ()
    assert "origin" in report.shared_with
    assert not {"other", "second", "fork"} & set(report.shared_with)
    assert (dry.threads, dry.shared_with) == (report.threads, report.shared_with)
    assert {n: graph.get_state(at(n)).values for n in states} == states
    assert not any(saver.threads.get(n).state != "deleted" for n in ("fork", "second"))
    assert saver.check().ok
    dry = saver.threads.erase("origin", forks=True, dry_run=True)
    report = saver.threads.erase("origin", forks=True)
    assert sum(one.bytes for one in dry.threads) == sum(one.bytes for one in report.threads)
    assert [one.thread for one in report.threads] == ["sibling", "origin"]
    assert (report.forks, report.shared_with) == ((), ())
    assert not any(_holds(saver, name) for name in ("origin", "sibling", "fork", "second"))


def test_of_sealed_segments_what_others_need_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both threads have appended to a log: only the elements of the erased one are removed."""
    monkeypatch.setattr("threadkeep._core.engine.logs.SEAL_COUNT", 4)
    saver = Saver(MemoryBackend(), compression=PLAIN)
    chain = Chain(saver, "origin")
    for number in range(6):
        chain.put(said=[f"plain {n}" for n in range(number)])
    saver.threads.fork("origin", new_thread_id="fork")
    other = fresh(saver)
    fork = Chain(other, "fork", start=100)
    found = other.get_tuple({"configurable": {"thread_id": "fork"}})
    assert found is not None
    fork.at, fork.versions = found.config, dict(found.checkpoint["channel_versions"])
    fork.values = dict(found.checkpoint["channel_values"])
    for number in range(9):
        fork.put(said=[*fork.values["said"], f"{number} {MARKER}"])
    before = {p: one for p, one in everything(saver).items() if p[0] == "origin"}
    shared = [s for s in saver._store.run(fetch(ReadThread("origin"))).segments if s.count > 1]
    assert MARKER.encode() in _bytes(saver, "origin")
    assert shared
    saver.threads.erase("fork")
    assert MARKER.encode() not in _bytes(saver, "origin")
    assert everything(fresh(saver)) == before
    assert saver.check().ok


def test_a_damaged_relative_is_told_before_anything_goes(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    with SqliteSaver(path) as saver:
        _family(saver)
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute(
                "UPDATE tk_checkpoints SET manifest = x'00' WHERE thread ="
                " (SELECT number FROM tk_threads WHERE thread = 'second')"
            )
        _chat(saver, "other", turns=1)
        for name in ("fork", "other"):
            saver.threads.update(name, metadata={"k": 1})
        assert len(saver.threads.erase(metadata={"k": 1}, dry_run=True).unfinished) == 1
        before = saver._store.run(fetch(ReadThread("fork"))).checkpoints
        with pytest.raises(UnfinishedErasureError, match="Repair the threads") as caught:
            saver.threads.erase(metadata={"k": 1})
        report = caught.value.report
        assert report is not None
        assert _told(report) == [("other", 3)]
        assert "the SQLite file and its WAL, rewritten" in report.cleared
        with pytest.raises(CorruptionError, match="Repair the threads"):
            saver.threads.erase("fork")
        assert saver._store.run(fetch(ReadThread("fork"))).checkpoints == before
        report = saver.threads.erase("second")  # (a damaged thread can be erased)
        assert report.ok
        assert saver.threads.erase("fork").ok
        assert saver.check().ok


# -- cut off -------------------------------------------------------------------------


class Death(BaseException):
    """Stands for a killed process."""


class Dying(Passing):
    """Fails at a request, before or after it is carried out."""

    left, after = -1, False

    def meet(self, asked: Any, request: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left == -1:
            if self.after:
                request()
            raise Death
        return request()


@pytest.mark.drawn(1)
@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_cut_off_anywhere_it_is_completed(tmp_path: Path, *, forks: bool, after: bool) -> None:
    for left in range(100):
        path = tmp_path / f"{left}" / "threads.db"
        path.parent.mkdir()
        dying = Dying(SqliteBackend(path, synchronous="normal"))
        saver = Saver(dying, compression=PLAIN)
        graph = _chat(saver, "origin", turns=2)
        saver.threads.fork("origin", new_thread_id="fork")
        graph.invoke({"said": [MARKER]}, at("fork"))
        shown = everything(saver)
        kept = {p: one for p, one in shown.items() if p[0] == "origin" and not forks}
        named = "origin" if forks else "fork"
        dying.left, dying.after = left, after
        try:
            saver.threads.erase(named, forks=forks)
        except Death:
            dying.left = -1
            again = fresh(saver)
            again.threads.erase(named, forks=forks)
        else:
            assert left > 10
            dying.left = -1
            break
        finally:
            assert everything(fresh(saver)) == kept
            files = [file.read_bytes() for file in path.parent.iterdir()]
            assert not any(MARKER.encode() in data for data in files)
            assert saver.check().ok
            saver.close()
    else:
        pytest.fail("it does not end")


class Busy(MemoryBackend):
    """Store that writes to the origin with every write to the fork."""

    def commit(self, change: Any) -> None:
        if change.thread == "fork" and isinstance(change, Batch) and change.drop_checkpoints:
            (rows,) = self.fetch([ReadThread("origin")])
            super().commit(Batch("origin", 1, writes=(rows.checkpoints[0].writes[0],)))
        super().commit(change)


def test_somebody_who_writes_all_the_time_is_told_of() -> None:
    saver = Saver(Busy())
    _family(saver)
    before = everything(saver)
    with pytest.raises(ConflictError, match="Other writers"):
        saver.threads.erase("fork")
    left = {place: one for place, one in everything(saver).items() if place[0] == "fork"}
    assert left
    assert left.items() <= before.items()
    assert saver.check().ok


class Mute(MemoryBackend):
    """Third-party store without a `scrub` method."""

    has_identity = False
    scrub = Backend.scrub


def test_a_store_that_cannot_scrub_is_told_of() -> None:
    saver = Saver(Mute())
    _chat(saver, turns=1)
    report = saver.threads.erase("thread")
    assert report.ok
    assert report.remains[0] == "Mute cannot report removed rows left in its files."


def test_the_error_has_the_report() -> None:
    class Broken(MemoryBackend):
        def scrub(self, *, rewrite: bool) -> Any:
            raise ConflictError(hint=f"rewrite={rewrite}")

    saver = Saver(Broken())
    _chat(saver, turns=1)
    with pytest.raises(UnfinishedErasureError, match="rewrite=True") as caught:
        saver.threads.erase("thread", rewrite=True)
    assert caught.value.retryable
    report = caught.value.report
    assert report is not None
    assert _told(report) == [("thread", 3)]
    assert len(report.unfinished) == 1
    assert report.as_json()["ok"] is False
