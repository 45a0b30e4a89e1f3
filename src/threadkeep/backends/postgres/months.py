"""Months, and which checkpoint ids were made in them.

Only this arithmetic lives here. Invariants: a month begins at its first moment in UTC; the ids
made in it sort from its `start` on, and before the `start` of the next one.

An id of UUID version 6 (RFC 9562, section 5.6) begins with its time, most significant digit first:
as text it sorts by time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from threadkeep.engine.rows import UUID6_OFFSET

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS = 15  # of an id's time, the version's digit not counted
_TICKS = 10  # in a microsecond


class Month(NamedTuple):
    """A month of the calendar; `number` is 1 to 12."""

    year: int
    number: int

    @classmethod
    def of(cls, moment: datetime) -> Month:
        """The month in UTC that a moment (with a time zone) lies in."""
        utc = moment.astimezone(UTC)
        return cls(utc.year, utc.month)

    @property
    def next(self) -> Month:
        """The month after it."""
        return Month(self.year + self.number // 12, self.number % 12 + 1)

    @property
    def name(self) -> str:
        """As names of tables have it: 2026_11."""
        return f"{self.year:04}_{self.number:02}"

    @property
    def start(self) -> str:
        """What all ids of version 6 begin with, or sort behind, that were made from then on."""
        first = datetime(self.year, self.number, 1, tzinfo=UTC)
        micros = (first - _EPOCH) // timedelta(microseconds=1)
        digits = f"{(micros + UUID6_OFFSET) * _TICKS:0{_DIGITS}x}"
        return f"{digits[:8]}-{digits[8:12]}-6{digits[12:]}"


def ahead(now: datetime, count: int) -> Iterator[Month]:
    """The month of that moment, and as many after it."""
    month = Month.of(now)
    yield month
    for _ in range(count):
        month = month.next
        yield month


def named(prefixes: Iterable[str]) -> set[Month]:
    """The months in which ids with these prefixes (up to 8 hex digits) begin and end."""
    return {
        Month.of(_moment(int(prefix.ljust(_DIGITS, digit), 16)))
        for prefix in prefixes
        for digit in "0f"
    }


def _moment(ticks: int) -> datetime:
    return _EPOCH + timedelta(microseconds=ticks // _TICKS - UUID6_OFFSET)
