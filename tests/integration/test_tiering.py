"""`threads.tier` on every store: archiving and offloading by age and size."""

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from threadkeep import ColdTier, SqliteSaver, Tiering, WarmTier, open_saver
from threadkeep._core.engine.thread_summary import LAG
from threadkeep._stores.cold_store import ColdStore
from threadkeep.errors import (
    CorruptionError,
    InvalidArgumentError,
    ThreadNotFoundError,
    UnreachableError,
)
from threadkeep.threads.archives import archive, offload

from .test_archive import archives, shown, state_of
from .test_offload import OVER, T, objects, say

DAY = 24 * 3600 * 1_000_000
HOW = Tiering(cold=ColdTier(offload_over=OVER))


@pytest.fixture
def saver_options(cold: Path) -> dict[str, Any]:
    return {"cold": cold.as_uri()}


def at(saver: Any, micros: int) -> None:
    """Set the saver's clock."""
    saver._engine = saver._engine._replace(now=lambda: micros)


def updated_at(saver: Any, thread: str = "t") -> int:
    """In microseconds since 1970."""
    moment = saver.threads.get(thread).updated_at
    return round(moment.timestamp() * 1_000_000)


def test_what_rests_for_a_day_is_archived(saver: Any) -> None:
    say(saver, "one")
    say(saver, "one", thread="pinned")
    saver.threads.pin("pinned")
    saver.threads.create("empty")
    before = shown(saver)
    at(saver, updated_at(saver) + DAY - 10)
    assert saver.threads.tier().archived == ()
    at(saver, updated_at(saver) + DAY + LAG)  # (the rows may be so much newer than the entry)
    would = saver.threads.tier(dry_run=True)
    assert state_of(saver) == "active"
    done = saver.threads.tier()
    assert would.archived == done.archived
    assert [one.thread for one in done.archived] == ["t"]
    assert (would.dry_run, done.dry_run, done.examined) == (True, False, 3)
    assert done.bytes == done.archived[0].bytes > 20_000
    assert (state_of(saver), state_of(saver, "pinned")) == ("archived", "active")
    assert saver.threads.tier().archived == ()
    assert shown(saver) == before


def test_what_is_in_use_loses_old_values(saver: Any, cold: Path) -> None:
    say(saver, "one", "two")
    at(saver, updated_at(saver) + 10_000_000)  # (after it began)
    say(saver, "three")
    before = shown(saver)
    at(saver, updated_at(saver) + DAY - 10)
    (would,) = saver.threads.tier(HOW, dry_run=True).offloaded
    assert objects(cold) == []
    done = saver.threads.tier(HOW)
    assert (done.archived, would.segments > 0, would.bytes > 20_000) == ((), True, True)
    assert done.offloaded[0].thread == would.thread == "t"
    assert done.bytes == done.offloaded[0].bytes
    assert saver.threads.tier(HOW).offloaded == ()
    assert shown(saver) == before
    assert saver.check().ok


def test_what_came_back_stays_for_a_day(saver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is read every hour is not archived again every hour."""
    say(saver, "one")
    now = time.time_ns() // 1000
    at(saver, now + 2 * DAY)
    saver.threads.tier()
    monkeypatch.setattr("threadkeep.threads.archives.layer._now", lambda: now + 2 * DAY)
    assert saver.get_tuple(T) is not None
    at(saver, now + 3 * DAY - 10)
    assert saver.threads.tier().archived == ()
    at(saver, now + 3 * DAY + 10)
    assert [one.thread for one in saver.threads.tier().archived] == ["t"]


def test_what_was_brought_back_rests_for_a_day(saver: Any) -> None:
    say(saver, "one", "two")
    at(saver, updated_at(saver) + 10_000_000)
    say(saver, "three")
    now = updated_at(saver) + DAY - 10
    at(saver, now)
    moved = saver.threads.tier(HOW).bytes
    assert moved > 20_000
    saver.threads.restore("t")
    say(saver, "four")
    assert saver.threads.tier(HOW).bytes == 0
    at(saver, now + DAY - 10)
    assert saver.threads.tier(HOW).bytes == 0


def test_forks_keep_what_they_share(ours: Any) -> None:
    say(ours, "one", "two")
    at(ours, updated_at(ours) + 10_000_000)
    say(ours, "three")
    ours.threads.fork("t", new_thread_id="fork")
    at(ours, updated_at(ours) + DAY - 10)
    report = ours.threads.tier(HOW)
    assert "t" in report.shared
    assert report.skipped == report.offloaded == ()


def test_only_what_is_asked_for(ours: Any) -> None:
    for thread in ("a", "b", "c"):
        say(ours, "one", "two", thread=thread)
    at(ours, updated_at(ours, "c") + 2 * DAY)
    told: list[tuple[str, int, int]] = []
    report = ours.threads.tier(thread_ids=["a", "b", "a"], progress=lambda *done: told.append(done))
    assert [one.thread for one in report.archived] == ["a", "b"]
    assert told[-1] == ("threads tiered", 2, 3)
    none = Tiering(cold=ColdTier(archive=False, offload_over=None))
    assert ours.threads.tier(none).bytes == 0
    values = ours.threads.tier(Tiering(cold=ColdTier(archive=False, offload_over=OVER)))
    assert [one.thread for one in values.offloaded] == ["c"]
    with pytest.raises(ThreadNotFoundError):
        ours.threads.tier(thread_ids=["c", "nobody"])
    assert state_of(ours, "c") == "active"


def test_what_was_offloaded_goes_when_the_thread_is_archived(
    ours: Any, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(ours, "one", "two")
    before = shown(ours)
    ours.threads.offload("t", over=OVER)
    ours.threads.archive("t")
    for grace in (-3600, -7200):  # marked in the first round, removed in the second
        monkeypatch.setattr(offload, "GRACE", grace)
        ours.threads.tier()
    assert objects(cold) == []
    assert ours.threads.get("t").offloaded_bytes == 0
    assert len(archives(cold)) == 1
    assert shown(ours) == before


def test_one_that_is_damaged_keeps_nobody_from_the_others(
    ours: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for thread in ("a", "b"):
        say(ours, "one", thread=thread)
    pack = archive.pack

    def damaged(whole: Any, *rest: Any) -> Any:
        if whole.thread == "a":
            raise CorruptionError("Torn.")
        return pack(whole, *rest)

    monkeypatch.setattr(archive, "pack", damaged)
    at(ours, updated_at(ours, "b") + 2 * DAY)
    report = ours.threads.tier()
    assert [(one.thread, one.skipped) for one in report.skipped] == [("a", "Torn.")]
    assert [one.thread for one in report.archived] == ["b"]


def test_a_cold_store_that_fails_ends_it(ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: ColdStore, key: str, data: bytes) -> None:
        raise UnreachableError

    say(ours, "one")
    monkeypatch.setattr(ColdStore, "put", fails)
    at(ours, updated_at(ours) + 2 * DAY)
    with pytest.raises(UnreachableError):
        ours.threads.tier()
    assert state_of(ours) == "active"


def test_it_is_done_now_and_then(tmp_path: Path, cold: Path) -> None:
    """Tier with `gc_every`, in the saver's background thread."""
    tiering = Tiering(warm=WarmTier(max_age=1e-6))
    options: dict[str, Any] = {"cold": cold.as_uri(), "tiering": tiering, "gc_every": 0.01}
    with SqliteSaver(str(tmp_path / "threads.db")) as saver:
        say(saver, "one")
    deadline = time.monotonic() + 60
    with SqliteSaver(str(tmp_path / "threads.db"), **options) as saver:
        while state_of(saver) != "archived":
            assert time.monotonic() < deadline


def test_what_has_no_meaning() -> None:
    for wrong in (
        lambda: WarmTier(max_age=0),
        lambda: ColdTier(offload_over=10),
        lambda: ColdTier(archive=1),  # type: ignore[arg-type] # the refused value
        lambda: Tiering(warm=timedelta(days=1)),  # type: ignore[arg-type] # the same
        lambda: open_saver("memory://", tiering="cold"),
    ):
        with pytest.raises(InvalidArgumentError):
            wrong()
    with open_saver("memory://") as saver:
        with pytest.raises(InvalidArgumentError, match="cold="):
            saver.threads.tier()
        with pytest.raises(InvalidArgumentError, match="Tiering"):
            saver.threads.tier(7)  # type: ignore[arg-type] # the same
        assert saver.threads.tier(dry_run=True).examined == 0
