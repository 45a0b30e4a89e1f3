"""`saver.stats(max_age=...)` on every store: the last statistics, which the store holds."""

import json
import stat
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kit.engine import Chain

from threadkeep import MemorySaver, Retention, Saver, SqliteSaver, observe, stats
from threadkeep._core.engine.model import FindThreads, ReadThread
from threadkeep._core.engine.operation import Operation
from threadkeep._core.engine.rows import with_body
from threadkeep._core.engine.thread_sizes import ThreadStats
from threadkeep.errors import InvalidArgumentError, ReadOnlyError
from threadkeep.threads import last_statistics, statistics
from threadkeep.threads.statistics_report import Stats

HOUR = timedelta(hours=1)


def save(saver: Any, thread: str, count: int = 3) -> None:
    chain = Chain(saver, thread)
    for number in range(count):
        config = chain.put(log=[f"{i} {thread}" * 50 for i in range(number)], text="x" * number)
        saver.put_writes(config, [("log", f"{number}" * 300)], "task")


def stored_body(saver: Any) -> bytes:
    (rows,) = saver._store.backend.fetch([ReadThread(last_statistics.THREAD)])
    (row,) = rows.orphans
    body: bytes = row.body
    return body


def store_as(saver: Any, found: Stats, **changed: Any) -> None:
    """Store statistics, with other fields, as another release or process may have done."""
    document = {**found.as_json(), **changed}
    as_json = {"as_json": lambda self: document}
    other: Any = type("Other", (), as_json)()
    saver._store.backend.commit(last_statistics._change(saver._engine, other, None))


# -- on every store ----------------------------------------------------------------------


def test_an_erasure_removes_them_as_they_name_threads(saver: Any) -> None:
    for thread in ("a", "b"):
        save(saver, thread)
    assert "a" in json.dumps([one.thread for one in saver.stats(max_age=HOUR).largest])
    saver.threads.erase("a")
    (rows,) = saver._store.backend.fetch([ReadThread(last_statistics.THREAD)])
    assert not rows.orphans
    assert [one.thread for one in saver.stats(max_age=HOUR).largest] == ["b"]


def test_an_erasure_while_they_are_counted_keeps_them_from_being_stored(
    saver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for thread in ("a", "b"):
        save(saver, thread)
    other, count = Saver(saver.backend), statistics.count

    def interrupted(*arguments: Any, **options: Any) -> Operation[Stats]:
        found = yield from count(*arguments, **options)
        other.threads.erase("a")
        return found

    monkeypatch.setattr(statistics, "count", interrupted)
    saver.stats(max_age=HOUR)
    (rows,) = saver._store.backend.fetch([ReadThread(last_statistics.THREAD)])
    assert not rows.orphans
    monkeypatch.undo()
    assert [one.thread for one in saver.stats(max_age=HOUR).largest] == ["b"]
    assert other.stats(max_age=HOUR) == saver.stats(max_age=HOUR)


def test_the_last_ones_are_returned_until_they_are_too_old(saver: Any) -> None:
    save(saver, "a")
    counted = saver.stats(max_age=HOUR)
    assert (counted.threads, counted.checkpoints, counted.writes) == (1, 3, 3)
    save(saver, "b")
    saver.delete_thread("a")
    save(saver, "c", 1)
    later = saver.stats(max_age=HOUR)
    assert (later, later.at) == (counted, counted.at)
    now = saver.stats()
    assert (now.threads, now.checkpoints) == (2, 4)
    again = saver.stats(max_age=timedelta(microseconds=1))
    assert again.at > counted.at
    assert (again.threads, again.checkpoints, again.bytes) == (2, 4, now.bytes)
    assert saver.stats(max_age=3600).at == again.at


def test_other_processes_find_them(saver: Any) -> None:
    """Another saver of the store returns them, by both kinds of calls."""
    save(saver, "a")
    counted = saver.stats(max_age=HOUR)
    save(saver, "b")
    other = Saver(saver.backend)
    assert other.stats(max_age=HOUR).at == counted.at
    assert other.stats(max_age=HOUR) == counted
    assert stats(observe(other), max_age=HOUR).at == counted.at


def test_nothing_lists_or_counts_them(saver: Any) -> None:
    """No search, check, repair or gc meets the thread that holds them, and it stays one row."""
    save(saver, "a")
    before = saver.stats()
    for _ in range(3):
        saver.stats(max_age=timedelta(microseconds=1))
    assert saver.threads.count() == 1
    assert [one.id for one in saver.threads.search().threads] == ["a"]
    assert [one.id for one in saver.threads.scan()] == ["a"]
    assert {one.config["configurable"]["thread_id"] for one in saver.list(None)} == {"a"}
    assert saver._store.backend.fetch([FindThreads(None, 9)]) == [["a"]]
    report = saver.check()
    assert (report.ok, report.threads) == (True, 1)
    saver.threads.repair(dry_run=True)
    saver.threads.gc(Retention(keep_last=1))
    assert len(stored_body(saver)) > 100
    after = saver.stats()
    assert (before.checkpoints, after.threads, after.checkpoints) == (3, 1, 1)
    assert (before.writes, after.writes) == (3, 1)


def test_unreadable_ones_are_counted_again(saver: Any) -> None:
    """Damaged statistics, and those of another release, do not count."""
    save(saver, "a")
    counted = saver.stats(max_age=HOUR)
    (rows,) = saver._store.backend.fetch([ReadThread(last_statistics.THREAD)])
    change = last_statistics._change(saver._engine, counted, None)
    assert change.rows is not None
    for body in (b"", stored_body(saver)[:-1], with_body(rows.orphans[0], b"\x90").body):
        damaged = rows.orphans[0]._replace(body=body)
        broken = change.rows._replace(writes=(damaged,))
        saver._store.backend.commit(change._replace(rows=broken))
        assert saver.stats(max_age=HOUR).at > counted.at
    for changed in ({"unknown": 1}, {"at": "today"}, {"channels": [{"nme": "x"}]}, {"hours": 3}):
        store_as(saver, counted, **changed)
        assert saver.stats(max_age=HOUR).at > counted.at
    last = saver.stats(max_age=HOUR)
    assert saver.stats(max_age=HOUR).at == last.at


# -- on one store ------------------------------------------------------------------------


def test_ones_of_the_future_are_counted_again() -> None:
    """If a clock was set back, its statistics are not returned until that time."""
    with MemorySaver() as saver:
        counted = saver.stats(max_age=HOUR)
        store_as(saver, counted, at=(counted.at + HOUR).isoformat())
        assert saver.stats(max_age=HOUR * 9).at < counted.at + HOUR


def test_a_store_that_is_only_read_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "threads.db"
    with SqliteSaver(file) as saver:
        save(saver, "a")
        body = saver.stats(max_age=HOUR)
        save(saver, "b")

    def refuse(change: Any) -> None:
        raise ReadOnlyError("only read")

    with SqliteSaver(file) as saver:
        assert saver.stats(max_age=HOUR).at == body.at
        saver._store.backend.commit = refuse  # type: ignore[method-assign]
        saver._store.backend.commit_many = lambda changes: [  # type: ignore[method-assign]
            ReadOnlyError("only read") for _ in changes
        ]
        found = saver.stats(max_age=timedelta(microseconds=1))
        assert found.threads == 2
        assert saver.stats(max_age=HOUR).at == body.at
    assert stat.S_ISREG(file.stat().st_mode)


def test_the_arguments_are_checked() -> None:
    with MemorySaver() as saver:
        for wrong in (0, -1, "1h", timedelta()):
            with pytest.raises(InvalidArgumentError, match="max_age"):
                saver.stats(max_age=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="exact=True"):
            saver.stats(exact=True, max_age=HOUR)


def test_all_fields_come_back() -> None:
    """A new field of the statistics must be readable too."""
    with MemorySaver() as saver:
        save(saver, "a")
        found = saver.stats()
    document = json.loads(json.dumps(found.as_json()))
    again = last_statistics.of_json(document)
    for one in fields(statistics.Stats):
        old, new = getattr(found, one.name), getattr(again, one.name)
        assert (new, type(new)) == (old, type(old)), one.name
    assert isinstance(again.by_thread[0], ThreadStats)
    assert again.largest[0].updated_at == found.largest[0].updated_at > 0
    assert again.report() == found.report()
