"""Offloaded values of threads in use: every call reads them unchanged."""

import logging
import operator
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from kit.backends import open_backend, url_of
from kit.rows import checkpoint, metadata
from kit.runs import extend
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph

from threadkeep import ColdTier, Retention, Tiering, open_saver
from threadkeep._core.engine import thread_sizes
from threadkeep._core.engine.model import Batch, CopyThread, DropThread, ForkThread
from threadkeep._core.engine.operation import Commit
from threadkeep._core.engine.thread_entry import EntryUpdate
from threadkeep._stores.cold_store import ColdStore
from threadkeep.errors import (
    ConflictError,
    CorruptionError,
    InvalidArgumentError,
    StateError,
    ThreadArchivedError,
    ThreadNotFoundError,
)
from threadkeep.savers import backup
from threadkeep.threads.archives import archive, offload

from .test_archive import Between, savers_beside, shown, state_of

T: Any = {"configurable": {"thread_id": "t"}}
OVER = 4096


class State(TypedDict):
    said: Annotated[list[str], operator.add]
    page: bytes


def graph(saver: Any) -> Any:
    """Each turn replaces a page of 20,000 random bytes."""

    def read(state: Any) -> dict[str, Any]:
        number = len(state["said"])
        return {
            "said": [f"re {state['said'][-1]}"],
            "page": random.Random(number).randbytes(20_000),
        }

    builder = StateGraph(State).add_node("read", read).add_edge(START, "read")
    return builder.compile(checkpointer=saver)


def say(saver: Any, *texts: str, thread: str = "t") -> None:
    for text in texts:
        graph(saver).invoke({"said": [text]}, {"configurable": {"thread_id": thread}})


def objects(cold: Path) -> list[Path]:
    return [*cold.rglob("*.tkp")]


def segment_bytes(saver: Any) -> int:
    (one,) = saver._store.run(thread_sizes.all_sizes()).threads
    return int(one.segment_bytes)


@pytest.fixture
def saver_options(cold: Path) -> dict[str, Any]:
    return {"cold": cold.as_uri()}


# -- there and back --------------------------------------------------------------------


def test_old_values_go_and_are_read_as_they_were(saver: Any, cold: Path) -> None:
    say(saver, "one", "two", "three")
    before, size = shown(saver), saver.threads.get("t").bytes
    done = saver.threads.offload("t", over=OVER)
    assert (done.segments > 0, done.skipped) == (True, None)
    assert done.bytes > 40_000
    (file,) = objects(cold)
    assert file.stat().st_size == done.bytes
    assert segment_bytes(saver) < 30_000
    assert size - done.bytes < saver.threads.get("t").bytes < size - done.bytes + 1000
    assert saver.threads.get("t").offloaded_bytes == done.bytes
    assert shown(saver) == before
    assert state_of(saver) == "active"
    assert saver.check().ok
    say(saver, "four")
    assert shown(saver)[-len(before) :] == before
    assert len(saver.get_tuple(T).checkpoint["channel_values"]["said"]) == 8


def test_the_head_needs_nothing_of_the_cold_store(saver: Any, cold: Path) -> None:
    say(saver, "one", "two")
    head = saver.get_tuple(T).checkpoint
    saver.threads.offload("t", over=OVER)
    (file,) = objects(cold)
    file.unlink()
    saver.clear_cache()
    assert saver.get_tuple(T).checkpoint["channel_values"] == head["channel_values"]
    say(saver, "three")


def test_a_part_needs_only_its_own_values(ours: Any, cold: Path) -> None:
    say(ours, "one", "two")
    old = [*ours.list(T)][-3]  # the end of the first turn
    ours.threads.offload("t", over=OVER)
    (file,) = objects(cold)
    file.unlink()
    part = ours.get_tuple(old.config, channels=["said"]).checkpoint["channel_values"]
    assert part == {"said": old.checkpoint["channel_values"]["said"]}
    with pytest.raises(CorruptionError, match=old.checkpoint["id"]):
        ours.get_tuple(old.config, channels=["page"])


def test_all_of_it_comes_back(saver: Any, cold: Path) -> None:
    say(saver, "one", "two", "three")
    before, size = shown(saver), saver.threads.get("t").bytes
    saver.threads.offload("t", over=OVER)
    assert abs(saver.threads.restore("t").bytes - size) < 100
    (file,) = objects(cold)  # (the segments may not be on the disk yet)
    file.unlink()
    assert shown(saver) == before


def test_what_is_young_stays(saver: Any) -> None:
    say(saver, "one", "two")
    assert saver.threads.offload("t", over=OVER, older_than=3600).segments == 0
    assert saver.threads.offload("t", over=60_000).segments == 0
    assert saver.threads.offload("t", over=OVER, older_than=1e-6).segments > 0


def test_much_goes_object_by_object(ours: Any, cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadkeep._core.parts._MOST_BYTES", 50_000)
    say(ours, *map(str, range(12)))
    before = shown(ours)
    assert ours.threads.offload("t", over=OVER).bytes > 11 * 20_000
    assert len(objects(cold)) > 1
    assert shown(ours) == before
    ours.threads.restore("t")
    assert shown(ours) == before


def test_what_would_not_save_room_stays(ours: Any) -> None:
    """A list with every second element in use, one of them large."""
    made = [random.Random(n).randbytes(100) for n in range(60)]
    made[20] = random.Random(60).randbytes(100_000)
    for number, values in enumerate((made, made[::2])):
        row = checkpoint({"m": values}, m=number + 1)
        place = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        ours.put(place, row, metadata(), row["channel_versions"])
    size = ours.threads.get("t").bytes
    assert ours.threads.offload("t", over=OVER).segments == 0
    assert ours.threads.get("t").bytes == size


class Grown(TypedDict):
    said: Annotated[list[str], DeltaChannel(extend)]
    page: bytes


def test_what_a_delta_channel_is_rebuilt_through_stays(saver: Any, cold: Path) -> None:
    def reply(state: Any) -> dict[str, Any]:
        return {"said": ["re"], "page": random.Random(len(state["said"])).randbytes(20_000)}

    builder = StateGraph(Grown).add_node("reply", reply).add_edge(START, "reply")
    compiled = builder.compile(checkpointer=saver)
    for number in range(4):
        compiled.invoke({"said": [str(number)]}, T)
    before = [one.values for one in compiled.get_state_history(T)]
    assert saver.threads.offload("t", over=OVER).bytes > 50_000
    assert [one.values for one in compiled.get_state_history(T)] == before
    for file in objects(cold):
        file.unlink()
    assert len(compiled.get_state(T).values["said"]) == 8
    compiled.invoke({"said": ["more"]}, T)


# -- what else is done with the thread -------------------------------------------------


def test_forks_share_what_is_in_the_store(saver: Any, cold: Path) -> None:
    say(saver, "one", "two")
    before = [one[1] for one in shown(saver)]
    saver.threads.offload("t", over=OVER)
    saver.threads.fork("t", new_thread_id="fork")
    again = saver.threads.offload("t", over=OVER)
    if again.segments == 0:  # (Redis shares nothing)
        assert again.skipped == "it shares its segments with forks"
    saver.delete_thread("t")
    assert objects(cold) == []
    assert [one[1] for one in shown(saver, "fork")] == before
    assert saver.check().ok
    assert saver.threads.offload("fork", over=OVER).segments > 0


def test_it_goes_elsewhere_whole(saver: Any, tmp_path: Path) -> None:
    say(saver, "one", "two")
    before = shown(saver)
    saver.threads.offload("t", over=OVER)
    saver.threads.export_bundle("t", tmp_path / "t.tkb")
    with open_saver("memory://") as other:
        saver.threads.mirror(other)
        assert shown(other) == before
        other.threads.import_bundle(tmp_path / "t.tkb", "u")
        assert [one[1] for one in shown(other, "u")] == [one[1] for one in before]
        assert other.threads.get("u").offloaded_bytes == 0


def test_it_is_archived_whole(saver: Any, cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(saver, "one", "two")
    before = shown(saver)
    saver.threads.offload("t", over=OVER)
    saver.threads.archive("t")
    for file in objects(cold):
        file.unlink()
    assert shown(saver) == before
    saver.threads.offload("t", over=OVER)
    saver.threads.archive("t")
    saver.delete_thread("t")
    assert [file for file in cold.rglob("*") if file.is_file()] == []


def test_what_retention_removes_goes_later(
    saver: Any, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(saver, "one", "two", "three")
    saver.threads.offload("t", over=OVER)
    saver.threads.gc(Retention(keep_last=1))
    saver.threads.offload("t", over=OVER)
    assert len(objects(cold)) == 1  # (the removal of the stubs may not be on the disk yet)
    hours = iter((-3600, -7200))
    for _ in range(2):  # marked in the first round, removed in the second
        grace = next(hours)
        monkeypatch.setattr(offload, "GRACE", grace)
        saver.threads.offload("t", over=OVER)
    assert [file for file in cold.rglob("*") if file.is_file()] == []
    assert saver.threads.get("t").offloaded_bytes == 0
    assert saver.check().ok


def test_an_object_that_is_needed_again_stays(
    ours: Any, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a machine failure, before the removal of the stubs was on its disk."""
    monkeypatch.setattr(offload, "GRACE", -3600)
    say(ours, "one", "two", "three")
    ours.threads.offload("t", over=OVER)
    (file,) = objects(cold)
    (file.parent / f"{file.name}.loose").write_bytes(b"")
    for _ in range(2):
        ours.threads.offload("t", over=OVER)
        assert [file for file in cold.rglob("*") if file.is_file()] == [file]


def test_objects_go_with_a_thread_that_is_offloaded_while_it_goes(rivals: Any, cold: Path) -> None:
    one, other, between = rivals
    between.when = lambda asked: isinstance(asked, DropThread)
    between.what = lambda: other.threads.offload("t", over=OVER)
    one.delete_thread("t")
    assert objects(cold) == []
    assert state_of(one) == "deleted"


def test_backups_take_the_stubs_along(saver: Any, tmp_path: Path, cold: Path, request: Any) -> None:
    kind = request.node.callspec.params["saver"]
    if kind == "memory":
        return
    say(saver, "one", "two")
    before = shown(saver)
    saver.threads.offload("t", over=OVER)
    (file,) = objects(cold)
    sound = file.read_bytes()
    file.unlink()  # (a backup doesn't need it)
    backup.back_up(url_of(kind, tmp_path), tmp_path / "all.tkb", lambda *_: None)
    again = f"sqlite:///{tmp_path / 'again.db'}"
    backup.restore(tmp_path / "all.tkb", again, lambda *_: None)
    file.write_bytes(sound)
    with open_saver(again, cold=cold.as_uri()) as other:
        assert shown(other) == before
        assert other.threads.get("t").offloaded_bytes == len(sound)
    with open_saver(again) as other:
        report = other.check()
        assert (report.ok, [str(note.kind) for note in report.notes]) == (True, ["away"])
    if kind == "sqlite":
        backup.back_up(url_of(kind, tmp_path), tmp_path / "all.db", lambda *_: None)
        third = f"sqlite:///{tmp_path / 'third.db'}"
        assert backup.restore(tmp_path / "all.db", third, lambda *_: None).threads == 1


@pytest.mark.parametrize("since", ["more", "restored", "archived"])
def test_a_backup_in_the_place_of_what_it_was_taken_of(
    ours: Any, tmp_path: Path, cold: Path, since: str
) -> None:
    """Objects that a copy's stubs name stay in the cold store."""
    url = url_of("sqlite", tmp_path)
    say(ours, "one", "two")
    ours.threads.offload("t", over=OVER)
    before = shown(ours)
    backup.back_up(url, tmp_path / "all.tkb", lambda *_: None)
    say(ours, "three")
    if since == "restored":
        ours.threads.restore("t")
    elif since == "archived":
        ours.threads.archive("t")
    backup.restore(tmp_path / "all.tkb", url, lambda *_: None, replace=True)
    assert shown(ours) == before
    assert ours.check().ok


def test_a_backup_is_no_bundle_for_elsewhere(ours: Any, tmp_path: Path) -> None:
    say(ours, "one", "two")
    ours.threads.offload("t", over=OVER)
    backup.back_up(url_of("sqlite", tmp_path), tmp_path / "all.tkb", lambda *_: None)
    with open_saver("memory://") as other, pytest.raises(InvalidArgumentError, match="is a backup"):
        other.threads.import_bundle(tmp_path / "all.tkb")


# -- what can be wrong -----------------------------------------------------------------


def test_the_size_is_set_right(ours: Any) -> None:
    """Two processes that bring back the same stub count it twice."""
    say(ours, "one", "two", "three")
    ours.threads.offload("t", over=OVER)
    ours._store.run(_wrong_size())
    assert ours.check().notes != ()
    ours.threads.tier(Tiering(cold=ColdTier(archive=False, offload_over=None)))
    assert ours.check().notes == ()


def _wrong_size() -> Any:
    yield Commit(Batch("t", 0, touch=EntryUpdate(size=1_000_000)))


def test_without_the_cold_store(tmp_path: Path, cold: Path) -> None:
    with open_backend("sqlite", tmp_path, cold=cold.as_uri()) as saver:
        say(saver, "one", "two")
        before = shown(saver)
        saver.threads.offload("t", over=OVER)
    with open_backend("sqlite", tmp_path) as saver:
        assert saver.get_tuple(T).checkpoint == before[0][1]
        say(saver, "three")
        for call in CALLS:
            with pytest.raises(ThreadArchivedError, match="cold=") as caught:
                call(saver)
            assert caught.value.thread == "t"
        say(saver, "one", thread="u")
        assert saver.stats().threads == 2
        report = saver.check()
        assert (report.threads, report.ok, len(report.notes)) == (2, True, 1)
        assert saver.threads.repair(dry_run=True).repaired == ()
    with open_backend("sqlite", tmp_path, cold=cold.as_uri()) as saver:
        assert shown(saver)[-len(before) :] == before


CALLS: tuple[Callable[[Any], Any], ...] = (
    shown,
    lambda saver: saver.threads.fork("t", new_thread_id="fork"),
    lambda saver: saver.copy_thread("t", "copy"),
    lambda saver: saver.threads.restore("t"),
    lambda saver: saver.threads.export_bundle("t", "never.tkb"),
)


@pytest.mark.parametrize("damage", ["changed", "cut", "cut short", "gone"])
def test_what_is_damaged_is_told_where_it_is_needed(
    ours: Any, cold: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    say(ours, "one", "two", "three")
    before = shown(ours)
    ours.threads.offload("t", over=OVER)
    (file,) = objects(cold)
    sound = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        bad = {"changed": b"?" * len(sound), "cut": sound[:-1], "cut short": b"?"}
        file.write_bytes(bad[damage])
    assert ours.get_tuple(T).checkpoint == before[0][1]
    with caplog.at_level(logging.ERROR), pytest.raises(CorruptionError, match="cold store"):
        shown(ours)
    assert file.name in caplog.text
    with pytest.raises(CorruptionError, match="cold store"):
        ours.threads.fork("t", new_thread_id="fork")
    found = [one.problem for one in ours.check().findings]
    assert found
    assert all("cold store" in one or "missing" in one for one in found), found
    say(ours, "four")
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(sound)
    assert shown(ours)[-len(before) :] == before


def test_an_object_that_is_missing_for_a_moment(ours: Any, cold: Path) -> None:
    """Missing objects, or another cold store, don't clear the record of stubs."""
    say(ours, "one", "two")
    before = [one[1] for one in shown(ours)]
    size = ours.threads.offload("t", over=OVER).bytes
    (file,) = objects(cold)
    sound = file.read_bytes()
    file.unlink()
    for _ in range(2):
        with pytest.raises(CorruptionError, match="cold store lacks"):
            ours.threads.offload("t", over=OVER)
        (skipped,) = ours.threads.tier().skipped
        assert skipped.thread == "t"
    assert ours.threads.get("t").offloaded_bytes == size
    file.write_bytes(sound)
    ours.threads.fork("t", new_thread_id="fork")
    ours.delete_thread("t")
    assert [one[1] for one in shown(ours, "fork")] == before


def test_what_a_crash_leaves_is_removed(
    ours: Any, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that no stub names."""
    say(ours, "one", "two")
    with monkeypatch.context() as patched:
        patched.setattr(archive, "commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ours.threads.offload("t", over=OVER)
    assert len(objects(cold)) == 1
    ours.threads.pin("t")
    for grace in (-3600, -7200):
        monkeypatch.setattr(offload, "GRACE", grace)
        ours.threads.tier()
    assert [file for file in cold.rglob("*") if file.is_file()] == []
    assert ours.threads.get("t").offloaded_bytes == 0


def test_what_cannot_be_offloaded(tmp_path: Path, ours: Any) -> None:
    with pytest.raises(ThreadNotFoundError):
        ours.threads.offload("nobody")
    ours.threads.create("new")
    with pytest.raises(StateError, match="created"):
        ours.threads.offload("new")
    say(ours, "one")
    for options in ({"over": 1023}, {"over": "9999"}, {"over": True}, {"older_than": -1}):
        with pytest.raises(InvalidArgumentError):
            ours.threads.offload("t", **options)
    ours.threads.archive("t")
    with pytest.raises(StateError, match="archived"):
        ours.threads.offload("t")
    with (
        open_backend("sqlite", tmp_path) as saver,
        pytest.raises(InvalidArgumentError, match="cold="),
    ):
        saver.threads.offload("t")


# -- others who are faster -------------------------------------------------------------


@pytest.fixture
def rivals(tmp_path: Path, cold: Path) -> Iterator[tuple[Any, Any, Between]]:
    with savers_beside(tmp_path, cold) as found:
        say(found[1], "one", "two")
        yield found


def _is_exchange(asked: Any) -> bool:
    return isinstance(asked, Batch) and bool(asked.segments) and bool(asked.drop_segments)


def test_a_save_comes_first(rivals: Any, cold: Path) -> None:
    one, other, between = rivals
    between.when, between.what = _is_exchange, lambda: say(other, "three")
    assert one.threads.offload("t", over=OVER).bytes > 40_000
    assert len(objects(cold)) == 1  # the first attempt has removed its archive
    assert len(shown(one)) == 9


@pytest.mark.parametrize("kind", ["fork", "copy"])
def test_it_is_offloaded_just_before_it_is_shared(rivals: Any, kind: str, cold: Path) -> None:
    one, other, between = rivals
    before = [found[1] for found in shown(other)]
    between.when = lambda asked: isinstance(asked, CopyThread | ForkThread)
    between.what = lambda: other.threads.offload("t", over=OVER)
    if kind == "fork":
        one.threads.fork("t", new_thread_id=kind)
    else:
        one.copy_thread("t", kind)
    other.delete_thread("t")
    assert objects(cold) == []
    assert [found[1] for found in shown(one, kind)] == before


def test_it_is_forked_just_before_it_is_offloaded(rivals: Any, cold: Path) -> None:
    one, other, between = rivals
    between.when = _is_exchange
    between.what = lambda: other.threads.fork("t", new_thread_id="fork")
    assert one.threads.offload("t", over=OVER).skipped is not None
    assert objects(cold) == []


def test_two_who_bring_it_back(rivals: Any) -> None:
    one, other, between = rivals
    before = shown(other)
    one.threads.offload("t", over=OVER)
    between.when, between.what = _is_exchange, lambda: other.threads.restore("t")
    one.threads.restore("t")
    assert shown(one) == before
    assert shown(other) == before


def test_it_is_written_all_the_time(rivals: Any, cold: Path) -> None:
    one, other, between = rivals

    def again() -> None:
        say(other, "more")
        between.when = _is_exchange

    between.when, between.what = _is_exchange, again
    with pytest.raises(ConflictError, match="Other writers"):
        one.threads.offload("t", over=OVER)
    assert objects(cold) == []
    assert one.check().ok


def test_an_answer_that_was_lost(rivals: Any, cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _, between = rivals
    before, commit = shown(one), between.inner.commit

    def lose(change: Any) -> None:
        commit(change)
        if _is_exchange(change):
            raise ConflictError  # as a retry finds it

    monkeypatch.setattr(between.inner, "commit", lose)
    assert one.threads.offload("t", over=OVER).segments > 0
    assert len(objects(cold)) == 1
    assert shown(one) == before
    assert archive.GRACE == offload.GRACE
    assert ColdStore(cold.as_uri()).objects("threads")
