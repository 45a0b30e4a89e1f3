"""The buffer of a stream, which decides when to save."""

import pytest
from langchain_core.messages import AIMessage

from threadkeep.threads.partial_output import Part, merged
from threadkeep.threads.stream import Buffer, weight


def text(value):
    return Part("text", "", "bot", "m", value)


def values(**found):
    return Part("values", "", "bot", "", found)


def test_a_part_weighs_about_what_it_holds():
    endless = []
    endless.append(endless)
    assert weight("a" * 1000) == 1000
    assert 1000 < weight({"a": [AIMessage("a" * 500), ("b" * 500, 1)]}) < 2000
    assert weight(endless) < 1000


def test_a_save_ends_before_the_oldest_part_is_as_old_as_the_interval():
    buffer = Buffer(3.0, 1000)
    assert buffer.delay(0.0) is None
    assert buffer.add(text("a"), 10.0)
    assert not buffer.add(text("b"), 11.0)
    assert 10 + 3 - 1 < 11 + buffer.delay(11.0) < 10 + 3
    buffer.take(12.0)
    buffer.saved(12.5)  # it took half a second
    assert buffer.delay(12.5) is None
    buffer.add(text("c"), 20.0)
    assert buffer.delay(20.0) == pytest.approx(2.0)
    buffer.take(22.0)
    buffer.saved(60.0)  # a slow one: never more often than twice an interval
    buffer.add(text("d"), 60.0)
    assert buffer.delay(60.0) == pytest.approx(1.5)


def test_much_output_is_saved_at_once():
    buffer = Buffer(3.0, 1000)
    assert buffer.add(text("a"), 0.0)
    assert buffer.add(text("b" * 1000), 0.0)
    assert buffer.delay(0.0) == 0
    assert not buffer.add(text("c"), 0.0)


def test_parts_of_a_save_count_until_it_has_ended():
    buffer = Buffer(3.0, 1000)
    while not buffer.is_full:
        buffer.add(text("a" * 500), 0.0)
    most = buffer.bytes
    assert 4000 <= most < 5000
    taken = buffer.take(1.0)
    assert buffer.is_full
    assert buffer.bytes == most
    buffer.saved(2.0)
    assert buffer.is_empty
    assert len(taken) == 8


def test_after_a_failure_all_waits_for_an_interval():
    buffer = Buffer(3.0, 1000)
    buffer.add(text("a" * 2000), 0.0)
    buffer.take(0.0)
    buffer.add(text("b"), 0.5)
    buffer.failed(1.0)
    assert buffer.delay(1.0) == pytest.approx(3.0)
    assert merged(buffer.take(4.0)) == [text("a" * 2000 + "b")]


def test_values_are_dropped_once_a_checkpoint_holds_them():
    buffer = Buffer(3.0, 1000)
    buffer.add(values(a="x" * 5000), 0.0)
    buffer.add(text("a"), 0.0)
    assert buffer.drop_values("") is None  # none was saved: there is nothing to say
    assert not buffer.is_full
    assert buffer.take(1.0) == [text("a")]
    buffer.saved(1.0)
    buffer.add(values(a=1), 2.0)
    buffer.take(2.0)
    assert buffer.drop_values("") == Part("checkpoint", "", "", "", None)
    buffer.saved(2.0)
    assert buffer.drop_values("sub") is None
    assert buffer.drop_values("") is not None
    assert buffer.drop_values("") is None
