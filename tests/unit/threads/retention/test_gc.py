"""Collection: effects on segments and rows, and its costs."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.engine import (
    Chain,
    config,
    counted_saver,
    elements_stored,
    everything,
    exactly,
    fresh,
    interrupted,
    memory_saver,
    values_of,
)
from kit.selection import settings_of

from threadkeep import Retention
from threadkeep._core.engine import logs, registration, thread_entry
from threadkeep._core.engine.lineage import overlap
from threadkeep._core.engine.model import Batch, ReadThread, SegmentInfo, Span
from threadkeep._core.engine.refs import covering
from threadkeep._core.engine.thread_entry import EntryUpdate
from threadkeep.errors import NewerFormatError
from threadkeep.threads.retention import apply, gc

CHANCE = random.Random(1)
LAST = Retention(keep_last=1)


def noise(count: int) -> list[bytes]:
    return [CHANCE.randbytes(90) for _ in range(count)]


# -- mostly unused segments ---------------------------------------------------------------


def test_a_segment_of_which_little_is_needed_is_written_anew() -> None:
    saver = memory_saver()
    chain = Chain(saver)
    chain.put(m=noise(200))
    first = chain.values["m"]
    chain.put(m=[*first[10:50], *first[100:130]])
    (one,) = saver.threads.gc(LAST).threads
    assert one.segments == 1
    assert one.bytes > 90 * 120
    assert elements_stored(saver._store.backend) < 80
    assert exactly(values_of(fresh(saver), chain.at)) == exactly(chain.values)
    assert saver.check().ok
    for writer in (saver, fresh(saver)):
        chain.saver = writer
        chain.put(m=[*chain.values["m"], *noise(3)])
        assert exactly(values_of(fresh(saver), chain.at)) == exactly(chain.values)
        assert fresh(saver).check().ok


def test_a_segment_of_which_half_is_needed_stays() -> None:
    saver = memory_saver()
    chain = Chain(saver)
    chain.put(m=noise(200))
    chain.put(m=chain.values["m"][:100])
    assert saver.threads.gc(LAST).threads[0].bytes < 1000


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9))), st.integers(0, 40))
def test_what_is_alive_of_a_span(given: Any, start: int) -> None:
    used = [Span(7, a, a + n) for a, n in given]
    positions = {p for span in used for p in range(span.start, span.stop)}
    covered = covering(used)
    found = overlap({7: covered}, Span(7, start, start + 10))
    inside = positions & set(range(start, start + 10))
    assert [p for span in found for p in range(span.start, span.stop)] == sorted(inside)
    info = SegmentInfo(7, start, 10, 100)
    assert apply._is_dead(info, {7: covered}, wholly=False) == (len(inside) < 5)
    assert apply._is_dead(info, {7: covered}, wholly=True) == (len(inside) < 10)


# -- whatever was written ----------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 12)),
        st.tuples(st.just("cut"), st.integers(0, 30)),
        st.tuples(st.just("change"), st.integers(0, 30)),
        st.tuples(st.just("fork"), st.integers(0, 9)),
        st.tuples(st.just("collect"), st.integers(1, 5)),
        st.tuples(st.just("fit"), st.integers(0, 6000)),
        st.tuples(st.just("bare"), st.just(0)),
        st.tuples(st.just("other"), st.just(0)),
    ),
    max_size=25,
)


@settings_of(quick=30, full=300)
@given(STEPS)
def test_what_stays_is_what_was_there(steps: Any) -> None:
    """Append to, cut, change, fork and collect lists in two processes."""
    first = memory_saver()
    savers = [first, fresh(first)]
    chain = Chain(first)
    shown: dict[str, Any] = {}
    for number, (what, size) in enumerate(steps):
        value = chain.values.get("m", [])
        if what == "append":
            chain.put(m=[*value, *[f"{number} {i} " + "x" * 90 for i in range(size)]], n=number)
        elif what == "cut":
            chain.put(m=value[size:], s=f"{number}" * 500)
        elif what == "change":
            chain.put(m=[f"new {number}" if i == size else x for i, x in enumerate(value)])
        elif what == "fork" and shown:
            at = sorted(shown)[size % len(shown)]
            chain.at = config("t", "", at)
            chain.values = dict(shown[at])
        elif what == "other":
            savers.reverse()
        else:
            limits: dict[str, Any] = {
                "collect": {"keep_last": size},
                "fit": {"max_bytes": size},
                "bare": {"channels": {"s": "latest"}},
            }
            if what in limits:
                savers[0].threads.gc(Retention(**limits[what]))
                assert fresh(first).check().ok
        chain.saver = savers[0]
        head = chain.at["configurable"].get("checkpoint_id")
        if head is not None:
            shown[head] = dict(chain.values)
        left = everything(fresh(first))
        shown = {id: values for id, values in shown.items() if ("t", "", id) in left}
        for id, values in shown.items():
            found = left["t", "", id]["values"]
            missing = values.keys() - found.keys()
            assert missing <= ({"s"} if any(s[0] == "bare" for s in steps) else set())
            assert found == {c: exactly(values[c]) for c in found}
    assert len(everything(fresh(first))) == len(shown)


# -- what it costs -----------------------------------------------------------------------


def test_a_thread_is_read_when_it_was_written() -> None:
    saver, backend, _ = counted_saver()
    for number in range(7):
        Chain(saver, f"{number}").put(m=noise(3))
    saver.threads.gc(LAST)
    backend.asked()
    saver.threads.gc(LAST)
    assert backend.asked() == (2, 0)  # the count, and one page
    Chain(saver, "3", start=5).put(m=noise(3))
    found = saver.threads.gc(LAST)
    assert [one.thread for one in found.threads] == ["3"]
    assert backend.asked()[1] == 2  # the put, and the removal
    saver.threads.gc(Retention(keep_last=2))
    assert backend.asked()[1] == 7  # a note for each thread under this policy


def test_a_dry_run_changes_nothing() -> None:
    saver, backend, _ = counted_saver()
    chain = Chain(saver)
    for _ in range(3):
        chain.put(m=noise(3))
    saver.threads.create("old", ttl=0.000001)
    backend.asked()
    assert len(saver.threads.gc(LAST, dry_run=True).threads) == 2
    assert backend.asked()[1] == 0


def test_threads_are_met_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (registration, gc):
        monkeypatch.setattr(module, "PAGE", 3)
    saver = memory_saver()
    for number in range(10):
        chain = Chain(saver, f"{number}")
        chain.put(m=[1])
        chain.put(m=[2])
    seen: list[tuple[int, int]] = []
    found = saver.threads.gc(LAST, progress=lambda _, done, of: seen.append((done, of)))
    assert (len(found.threads), found.examined) == (10, 10)
    assert seen == [(n, 10) for n in range(1, 11)]
    assert len(saver.threads.gc(Retention(max_count=4)).deleted) == 6


# -- beside others -----------------------------------------------------------------------


def test_what_comes_meanwhile_stays() -> None:
    saver = memory_saver()
    chain = Chain(saver)
    for _ in range(4):
        chain.put(m=noise(3))
    old = chain.at
    other = interrupted(saver, lambda: chain.put(m=noise(3)))
    (one,) = other.threads.gc(Retention(keep_last=2)).threads
    assert one.checkpoints == 3
    assert [str(t.checkpoint["id"]) for t in saver.list(config())] == [
        chain.at["configurable"]["checkpoint_id"],
        old["configurable"]["checkpoint_id"],
    ]


def test_a_pin_that_is_set_meanwhile_counts() -> None:
    saver = memory_saver()
    chain = Chain(saver)
    first = chain.put(m=noise(3))
    chain.put(m=noise(3))
    id = first["configurable"]["checkpoint_id"]
    other = interrupted(saver, lambda: saver.threads.pin("t", checkpoint_id=id))
    assert other.threads.gc(LAST).threads == ()
    other = interrupted(saver, lambda: saver.threads.pin("t"))
    assert other.threads.gc(Retention(ttl=0.000001)).threads == ()
    assert values_of(saver, first)


def test_a_thread_that_is_written_all_the_time_is_skipped() -> None:
    saver = memory_saver()
    chain = Chain(saver)
    chain.put(m=[1])
    chain.put(m=[1])
    other = interrupted(saver, lambda: chain.put(m=noise(1)), 99)
    (one,) = other.threads.gc(LAST).skipped
    assert (one.thread, one.checkpoints) == ("t", 0)
    assert one.skipped is not None
    assert "Other writers" in one.skipped


def test_a_run_that_begins_while_its_thread_is_deleted_goes_on() -> None:
    saver = memory_saver()
    Chain(saver).put(m=[1])
    new = Chain(saver, start=50)
    other = interrupted(saver, lambda: new.put(m=["new"]), 99)
    report = other.threads.gc(Retention(ttl=0.000001))
    assert report.deleted == ()
    assert [one.skipped for one in report.threads] == ["Other writers keep changing this thread."]
    new.put(m=["new", "newer"])
    assert values_of(fresh(saver), new.at) == {"m": ["new", "newer"]}


def test_damaged_threads_are_told_and_the_others_collected() -> None:
    saver = memory_saver()
    for name in ("bad", "good", "newer"):
        chain = Chain(saver, name)
        chain.put(m=noise(3))
        chain.put(m=noise(3))
    rows = saver._store.backend.fetch([ReadThread("bad")])[0]
    broken = rows.checkpoints[0].row._replace(manifest=b"broken")
    saver._store.backend.commit(Batch("bad", 1, checkpoints=(broken,)))
    entry = saver.threads.get("newer")
    assert entry is not None
    touch = thread_entry.record_label("retention", {"v": 99})
    saver._store.backend.commit(Batch("newer", 1, touch=EntryUpdate(labels=(touch,))))
    found = saver.threads.gc(Retention(keep_last=1, channels={"m": "latest"}))
    assert {one.thread for one in found.skipped} == {"bad", "newer"}
    (newer,) = [one for one in saver.threads.search().threads if one.id == "newer"]
    with pytest.raises(NewerFormatError):
        assert newer.retention
    assert len(list(saver.list(config("good")))) == 1


def test_writes_of_several_runs_stay_as_they_are() -> None:
    """Their order decides which of them count."""
    saver = memory_saver()
    chain = Chain(saver)
    at = chain.put(s="old" * 500)
    loaded = saver.get_tuple({"configurable": {**config()["configurable"], "__pregel_runtime": 1}})
    assert loaded is not None
    saver.put_writes(loaded.config, [("s", "new" * 500)], "task")
    saver.put_writes(at, [("s", "newer" * 500)], "other")
    chain.put(s="newest" * 500)
    (one,) = saver.threads.gc(Retention(channels={"s": "latest"})).threads
    assert (one.channel_values, one.writes) == (1, 0)
    found = fresh(saver).get_tuple(at)
    assert found is not None
    assert "s" not in found.checkpoint["channel_values"]
    assert [channel for _, channel, _ in found.pending_writes or ()] == ["s"]


@pytest.fixture(autouse=True)
def small_seals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seal early, so that some segments are mostly unused."""
    monkeypatch.setattr(logs, "SEAL_COUNT", 4)
    monkeypatch.setattr(logs, "SEAL_KEYFRAMES", 2)
