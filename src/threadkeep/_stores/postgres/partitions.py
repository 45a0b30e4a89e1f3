"""Partitions of the checkpoints by month: the option `partition_by="month"`.

An id of UUID version 6 (RFC 9562, section 5.6) begins with its time, most significant digit first:
as text it sorts by time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from threadkeep._core.engine.rows import UUID6_OFFSET
from threadkeep._stores.postgres.migrations import KEY, Plan, locked, said
from threadkeep.errors import InvalidArgumentError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS = 15  # of an id's time, the version's digit not counted
_TICKS = 10  # in a microsecond


class Month(NamedTuple):
    """A month of the calendar; `number` is 1 to 12."""

    year: int
    number: int

    @classmethod
    def of(cls, moment: datetime) -> Month:
        """Return the month in UTC of a moment with a time zone."""
        utc = moment.astimezone(UTC)
        return cls(utc.year, utc.month)

    @property
    def next(self) -> Month:
        """The month after it."""
        return Month(self.year + self.number // 12, self.number % 12 + 1)

    @property
    def name(self) -> str:
        """The month in names of tables: 2026_11."""
        return f"{self.year:04}_{self.number:02}"

    @property
    def start(self) -> str:
        """The prefix that all ids of version 6 made from then on have, or sort behind."""
        first = datetime(self.year, self.number, 1, tzinfo=UTC)
        micros = (first - _EPOCH) // timedelta(microseconds=1)
        digits = f"{(micros + UUID6_OFFSET) * _TICKS:0{_DIGITS}x}"
        return f"{digits[:8]}-{digits[8:12]}-6{digits[12:]}"


def ahead(now: datetime, count: int) -> Iterator[Month]:
    """Yield the month of a moment, and as many after it."""
    month = Month.of(now)
    for _ in range(count + 1):
        yield month
        month = month.next


def months_of(prefixes: Iterable[str]) -> set[Month]:
    """Return the months of the first and the last id of each prefix (up to 8 hex digits)."""
    return {
        Month.of(_moment(int(prefix.ljust(_DIGITS, digit), 16)))
        for prefix in prefixes
        for digit in "0f"
    }


def _moment(ticks: int) -> datetime:
    return _EPOCH + timedelta(microseconds=ticks // _TICKS - UUID6_OFFSET)


_AHEAD = 3  # months
_PAST = timedelta(days=3653)  # how old rows may be to get a partition of their month
_KEY = "r checkpoint_id"  # by range
_PATIENCE = "500ms"  # for locks to drop a month; others wait as long, behind those that wait
_NAME = re.compile(r"checkpoints_([1-9][0-9]{3})_(0[1-9]|1[0-2]) ")


def plan(schema: str, now: datetime) -> Plan:
    """Partition `checkpoints` by month, and make the partitions that are needed soon.

    Empty ones of past months are dropped, unless others hold locks. A role that does not own
    the table leaves a partitioned one as it is.
    """
    ((key, is_owner, names, described),) = yield said(_TEXTS["look"], schema)
    if key not in ("", _KEY):
        raise InvalidArgumentError(
            f"The table checkpoints in {schema} is partitioned, but not by checkpoint_id.",
            hint="Leave partition_by out: it works as it is.",
        )
    if key and not is_owner:
        return
    months = set(ahead(now, _AHEAD))
    if not key:
        found = months_of(prefix for (prefix,) in (yield said(_TEXTS["prefixes"], schema)))
        months |= {month for month in found if Month.of(now - _PAST) <= month <= max(months)}
    missing = [month for month in sorted(months) if _table(month) not in names]
    if missing or "checkpoints_default" not in names:
        yield from locked(schema, _body(missing), _TEXTS["declarations"])
    past = sorted(_past(described, now))
    if past:
        yield said(_dropping(past), schema)


def _table(month: Month) -> str:
    return f"checkpoints_{month.name}"


def _described(month: Month) -> str:
    """Return the name and the bounds of a month's partition as the server writes them."""
    return f"{_table(month)} FOR VALUES FROM ('{month.start}') TO ('{month.next.start}')"


def _past(described: Iterable[str], now: datetime) -> Iterator[str]:
    """Yield those of past months that are as they were made here."""
    for text in described:
        found = _NAME.match(text)
        month = Month(int(found[1]), int(found[2])) if found else Month.of(now)
        if month < Month.of(now) and text == _described(month):
            yield text


def _dropping(described: Sequence[str]) -> str:
    months = ", ".join(["'" + text.replace("'", "''") + "'" for text in described])
    return _TEXTS["drop"].replace("{patience}", _PATIENCE).replace("{months}", months)


def _body(months: Iterable[Month]) -> str:
    texts = _TEXTS
    made = [
        texts["month"]
        .replace("{table}", _table(month))
        .replace("{start}", month.start)
        .replace("{stop}", month.next.start)
        for month in months
    ]
    rest = texts["rest"].replace("{table}", "checkpoints_default")
    return "\n".join([texts["is_newest"], texts["part"], *made, rest])


def _read() -> dict[str, str]:
    file = Path(__file__).with_suffix(".sql")
    _, *parts = re.split(r"(?m)^-- name: (\w+)\n", file.read_text("utf-8"))
    texts = {"key": KEY}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        texts[name] = re.sub(r"\{(\w+)\}", lambda found: texts.get(found[1], found[0]), text)
    return texts


_TEXTS = _read()  # (now: not in an event loop)
