"""Tails of logs hold each position to be sealed once."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from threadkeep._core.engine.logs import (
    OpenLogs,
    TailSegment,
)


def logs() -> OpenLogs:
    return OpenLogs(threading.Lock(), lambda bits: bits)


def stored(count: int) -> TailSegment:
    return TailSegment([b"element"] * count, 7 * count, 7 * count)


def test_parts_of_what_is_remembered_are_not_noted() -> None:
    """Another process has cut a segment of the tail in two, and this one reads the parts."""
    open_logs = logs()
    log, start = open_logs.reserve("", "m", 5)
    open_logs.note_tails([(log, start, stored(3))])
    for at, count in ((start, 1), (start + 1, 2), (start + 1, 1), (start, 5), (start + 2, 2)):
        open_logs.note_tails([(log, at, stored(count))])
    open_logs.note_tails([(log, start + 3, stored(2))])
    tail = open_logs._logs["", "m"].tail
    assert {at: len(part.elements) for at, part in tail.items()} == {start: 3, start + 3: 2}


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9))))
def test_a_tail_holds_each_position_once(given: list[tuple[int, int]]) -> None:
    open_logs = logs()
    log, _ = open_logs.reserve("", "m", 1)
    for start, count in given:
        open_logs.note_tails([(log, start, stored(count))])
    open_log = open_logs._logs["", "m"]
    tail = open_log.tail
    places = [p for at, part in tail.items() for p in range(at, at + len(part.elements))]
    assert len(places) == len(set(places)) == open_log.new_count


def test_a_log_of_two_channels_is_weighed_once() -> None:
    open_logs = logs()
    for channel in ("a", "b"):
        open_logs.resume("", channel, 7, 0)
    open_logs.note_tails([(7, 0, stored(3))])
    assert open_logs.tails == 21
    open_logs.start("", "a")
    assert open_logs.tails == 21
    open_logs.start("", "b")
    assert open_logs.tails == 0
