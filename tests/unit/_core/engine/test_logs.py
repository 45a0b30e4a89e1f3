"""Tails of logs hold each position once, and small segments become large ones unnoticed."""

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.engine import (
    Chain,
    Counted,
    Steps,
    config,
    exactly,
    fresh,
    put_operation,
    run_config,
    until_commit,
    values_of,
)
from langchain_core.messages import AIMessage

from threadkeep._core.codec.frame import Compression, pack
from threadkeep._core.engine import draft, logs
from threadkeep._core.engine.logs import OpenLogs
from threadkeep._core.engine.model import ReadThread, Segment
from threadkeep.savers.saver import Saver


def fresh_logs() -> OpenLogs:
    return OpenLogs(threading.Lock(), lambda bits: bits)


def stored(log: int, start: int, count: int) -> Segment:
    return Segment(log, start, count, pack([b"element"] * count, Compression()))


def test_parts_of_what_is_remembered_are_not_noted() -> None:
    """Another process has cut a segment of the tail in two, and this one reads the parts."""
    open_logs = fresh_logs()
    log, start = open_logs.reserve("", "m", 5)
    open_logs.note_tails([stored(log, start, 3)])
    for at, count in ((start, 1), (start + 1, 2), (start + 1, 1), (start, 3), (start + 2, 2)):
        open_logs.note_tails([stored(log, at, count)])
    open_logs.note_tails([stored(log, start + 3, 2)])
    tail = open_logs._logs["", "m"].tail
    assert {at: part.count for at, part in tail.items()} == {start: 3, start + 3: 2}


def test_a_segment_that_others_have_joined_takes_the_place_of_its_parts() -> None:
    open_logs = fresh_logs()
    log, start = open_logs.reserve("", "m", 5)
    open_logs.note_tails([stored(log, start, 4), stored(log, start + 4, 1)])
    open_logs.note_tails([stored(log, start, 5), stored(log, start + 5, 2)])
    open_log = open_logs._logs["", "m"]
    assert {at: p.count for at, p in open_log.tail.items()} == {start: 5, start + 5: 2}
    assert (open_log.old_count, open_log.new_count) == (5, 2)


def test_a_log_continues_where_others_have_ended_it() -> None:
    open_logs = fresh_logs()
    log, start = open_logs.reserve("", "m", 2)
    open_logs.follow({log: start + 9})
    assert open_logs.reserve("", "m", 1) == (log, start + 9)
    open_logs.follow({log: start})
    assert open_logs.reserve("", "m", 1) == (log, start + 10)


def ripe(*counts: int) -> bool:
    """True if a log with these segments, one after the other, is to be sealed."""
    open_logs = fresh_logs()
    log, _ = open_logs.reserve("", "m", sum(counts))
    for number, count in enumerate(counts):
        open_logs.note_tails([stored(log, sum(counts[:number]), count)])
    return open_logs._logs["", "m"].is_ripe


def test_a_short_log_is_sealed_early_so_that_it_is_read_in_few_rows() -> None:
    assert not ripe(*[1] * 15)
    assert ripe(*[1] * 16)


def test_a_log_is_not_sealed_again_for_its_sealed_segment_alone() -> None:
    """As a saver that was just opened finds it."""
    assert not ripe(24)
    assert not ripe(24, *[1] * 15)
    assert ripe(24, *[1] * 16)


def test_a_log_is_sealed_whatever_its_segments_hold() -> None:
    assert ripe(8, 8, 8)
    assert not ripe(8, 8)
    assert not ripe(*[1] * 7, 8)
    assert ripe(*[1] * 8, 8)


def test_a_log_of_large_elements_is_sealed() -> None:
    open_logs = fresh_logs()
    log, _ = open_logs.reserve("", "m", 2)
    large = pack([bytes(logs.SEAL_BYTES + 1)], Compression())
    for start in range(2):
        open_logs.note_tails([Segment(log, start, 1, large)])
        assert open_logs._logs["", "m"].is_ripe is bool(start)


def test_a_log_with_a_large_segment_is_sealed_for_many_elements() -> None:
    assert not ripe(64, *[1] * 31)
    assert ripe(64, *[1] * 32)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9))))
def test_a_tail_holds_each_position_once(given: list[tuple[int, int]]) -> None:
    open_logs = fresh_logs()
    log, _ = open_logs.reserve("", "m", 1)
    for start, count in given:
        open_logs.note_tails([stored(log, start, count)])
    open_log = open_logs._logs["", "m"]
    tail = open_log.tail
    places = [p for at, part in tail.items() for p in range(at, at + part.count)]
    assert len(places) == len(set(places)) == open_log.new_count + open_log.old_count


def test_a_log_of_two_channels_is_weighed_once() -> None:
    open_logs = fresh_logs()
    for channel in ("a", "b"):
        open_logs.resume("", channel, 7, 0)
    open_logs.note_tails([stored(7, 0, 3)])
    assert open_logs.weight == len(stored(7, 0, 3).data)
    open_logs.start("", "a")
    assert open_logs.weight == len(stored(7, 0, 3).data)
    open_logs.start("", "b")
    assert open_logs.weight == 0


LONG = "some text that a message may well have, not very long and not very short "


def segments(backend, thread="t"):
    (rows,) = backend.fetch([ReadThread(thread)])
    return rows.segments


def runs(backend, thread="t"):
    """Return segments by log as (start, stop), which never overlap."""
    found = {}
    for one in segments(backend, thread):
        spans = found.setdefault(one.log, [])
        assert not spans or spans[-1][1] <= one.start
        spans.append((one.start, one.start + one.count))
    return found


@pytest.fixture
def made():
    backend = Counted()
    return Saver(backend), backend


def test_a_long_thread_has_few_segments(made):
    saver, backend = made
    chain = Chain(saver)
    for i in range(1000):
        chain.put(m=[*chain.values.get("m", []), f"{i} {LONG}"], n=i)
    assert sum(one.count for one in segments(backend)) >= 1000
    assert len(segments(backend)) < 120
    assert values_of(fresh(saver), chain.at)["m"] == chain.values["m"]
    assert fresh(saver).check().ok


def test_sealed_segments_hold_what_the_small_ones_held(made):
    saver, backend = made
    chain, shown = Chain(saver), []
    for i in range(150):
        chain.put(m=[*chain.values.get("m", []), {"i": i, "text": LONG}])
        shown.append((chain.at, exactly(chain.values["m"])))
    assert any(stop - start > 1 for spans in runs(backend).values() for start, stop in spans)
    reader = fresh(saver)
    for at, value in shown:
        assert exactly(values_of(reader, at)["m"]) == value


def test_sealing_costs_little_beside_what_is_new(made):
    saver, backend = made
    rng = random.Random(1)
    chain, written = Chain(saver), 0
    for i in range(1000):
        chain.put(m=[*chain.values.get("m", []), f"{i} {rng.randbytes(60).hex()}"])
        written += sum(len(segment.data) for segment in backend.commits[-1].segments)
    stored = sum(one.size for one in segments(backend))
    assert written < 8 * stored


def test_a_process_that_comes_and_goes_seals_too(made):
    saver, backend = made
    chain = Chain(saver)
    for i in range(400):
        chain.saver = fresh(saver)
        chain.saver.get_tuple({"configurable": {"thread_id": "t", "__pregel_runtime": object()}})
        chain.put(m=[*chain.values.get("m", []), f"{i} {LONG}"])
    assert len(segments(backend)) < 200
    assert values_of(fresh(saver), chain.at)["m"] == chain.values["m"]
    assert fresh(saver).check().ok


def test_positions_that_were_never_written_stay_holes(made):
    saver, backend = made
    chain = Chain(saver)
    chain.put(m=[LONG])
    for i in range(120):
        lost = until_commit(
            Steps(
                put_operation(saver, *chain.arguments(m=[*chain.values["m"], "lost" + LONG])),
                backend,
            )
        )
        lost.close()
        chain.values["m"].pop()
        chain.put(m=[*chain.values["m"], f"{i} {LONG}"])
    assert values_of(fresh(saver), chain.at)["m"] == chain.values["m"]
    assert fresh(saver).check().ok


def test_messages_that_get_their_ids_late_lie_in_order(made):
    """Tasks write messages without ids, out of order; the channel holds them with ids."""
    saver, _ = made
    chain = Chain(saver)
    chain.put(m=[LONG])
    for turn in range(30):
        new = [AIMessage(f"{turn} {i} {LONG}") for i in range(4)]
        for i in random.Random(turn).sample(range(4), 4):
            saver.put_writes(chain.at, [("m", [new[i]])], f"task {i}")
        for i, message in enumerate(new):
            message.id = f"{turn}.{i}"
        chain.put(m=[*chain.values["m"], *new])
    found = values_of(fresh(saver), chain.at)["m"]
    assert exactly(found) == exactly(chain.values["m"])
    assert fresh(saver).check().ok


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 255, 256, 257, 600])
def test_runs_of_many_elements_at_once(made, count):
    saver, backend = made
    chain = Chain(saver)
    for i in range(5):
        chain.put(m=[*chain.values.get("m", []), *[f"{i} {n} {LONG}" for n in range(count)]])
    assert values_of(fresh(saver), chain.at)["m"] == chain.values["m"]
    assert fresh(saver).check().ok
    runs(backend)


def test_a_large_run_is_cut_into_segments(made):
    saver, backend = made
    rng = random.Random(2)
    value = [rng.randbytes(10_000) for _ in range(300)]
    at = Chain(saver).put(m=value)
    sizes = [one.size for one in segments(backend)]
    assert max(sizes) < draft.SEGMENT_BYTES + 11_000
    assert values_of(fresh(saver), at)["m"] == value


def test_two_threads_of_one_process_seal_the_same_log(made):
    saver, backend = made
    chain = Chain(saver)
    for i in range(40):
        chain.put(m=[*chain.values.get("m", []), f"{i} {LONG}"])
    waiting = [
        until_commit(
            Steps(
                put_operation(saver, *chain.arguments(m=[*chain.values["m"], f"{i} {LONG}"])),
                backend,
            )
        )
        for i in range(40)
    ]
    for steps in reversed(waiting):
        steps.finish()
    assert len(list(saver.list(config()))) == 80
    assert fresh(saver).check().ok


def test_a_segment_that_is_removed_before_its_run_hears_of_the_commit(made):
    """Another element may have its position by then, and is sealed in its place."""
    saver, backend = made
    chain = Chain(saver)
    first = chain.put(m=[f"first {LONG}"])
    values, versions = dict(chain.values), dict(chain.versions)
    given = chain.arguments(m=[*values["m"], f"slow {LONG}"])
    slow = until_commit(Steps(put_operation(saver, *given), backend))
    slow.carry_out()
    fresh(saver).delete_checkpoints("t", [given[1]["id"]])
    place = run_config()["configurable"] | first["configurable"]
    assert saver.get_tuple({"configurable": place}) is not None
    slow.tell()
    chain.at, chain.values, chain.versions = first, values, versions
    kept = chain.put(m=[*values["m"], f"kept {LONG}"])
    for turn in range(logs.SEAL_COUNT):
        chain.put(m=[*chain.values["m"], f"{turn} {LONG}"])
    assert values_of(fresh(saver), kept)["m"] == [f"first {LONG}", f"kept {LONG}"]
