"""Months and the ids that were made in them."""

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from threadkeep._core.engine.rows import created_at
from threadkeep._stores.postgres.migrations import (
    Month,
    ahead,
    months_of,
)

EPOCH_OF_UUIDS = datetime(1582, 10, 15, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MONTHS = [(1970, 1), (1999, 12), (2024, 2), (2026, 11), (2026, 12), (2100, 1), (5000, 6)]


def uuid6(ticks, rest=0):
    """An id of version 6 as RFC 9562, section 5.6, lays out its fields."""
    high, mid, low = ticks >> 28, ticks >> 12 & 0xFFFF, ticks & 0xFFF
    return str(UUID(int=high << 96 | mid << 80 | 6 << 76 | low << 64 | 2 << 62 | rest))


def ticks_at(moment):
    return (moment - EPOCH_OF_UUIDS) // timedelta(microseconds=1) * 10


@pytest.mark.parametrize("rest", [0, 2**62 - 1])
@pytest.mark.parametrize(("year", "number"), MONTHS)
def test_a_month_holds_the_ids_from_its_first_tick_to_its_last(year, number, rest):
    month = Month(year, number)
    first = ticks_at(datetime(year, number, 1, tzinfo=UTC))
    last = ticks_at(datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC)) - 1
    assert uuid6(first - 1, rest) < month.start <= uuid6(first, rest)
    assert uuid6(last, rest) < month.next.start <= uuid6(last + 1, rest)


@pytest.mark.parametrize(("year", "number"), MONTHS)
def test_a_start_is_what_ids_tell_as_their_time(year, number):
    time = created_at(Month(year, number).start + "-8000-000000000000")
    assert EPOCH + timedelta(microseconds=time) == datetime(year, number, 1, tzinfo=UTC)


def test_langgraphs_new_ids_are_of_this_month():
    before = datetime.now(UTC)
    made = empty_checkpoint()["id"]
    after = datetime.now(UTC)
    assert Month.of(before).start <= made < Month.of(after).next.start


def test_months_begin_in_utc():
    east, west = timezone(timedelta(hours=9)), timezone(timedelta(hours=-9))
    assert Month.of(datetime(2026, 12, 1, 8, tzinfo=east)) == Month(2026, 11)
    assert Month.of(datetime(2026, 11, 30, 16, tzinfo=west)) == Month(2026, 12)


def test_months_ahead():
    found = list(ahead(datetime(2026, 11, 30, 23, 59, tzinfo=UTC), 3))
    assert found == [Month(2026, 11), Month(2026, 12), Month(2027, 1), Month(2027, 2)]
    assert [month.name for month in found] == ["2026_11", "2026_12", "2027_01", "2027_02"]


def test_prefixes_name_the_months_of_all_ids_that_have_them():
    start = Month(2026, 11).start
    assert months_of([start[:6]]) == {Month(2026, 10), Month(2026, 11)}
    assert months_of([uuid6(ticks_at(datetime(2026, 11, 15, tzinfo=UTC)))[:6]]) == {Month(2026, 11)}
    assert months_of(["000000", "ffffff"]) == {Month(1582, 10), Month(5236, 3)}
    assert months_of([]) == set()
