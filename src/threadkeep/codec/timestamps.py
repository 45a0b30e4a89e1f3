"""Times of pandas, for programs that use pandas themselves.

Only `Timestamp`, `Timedelta` and `NaT` live here. Invariant: pandas is never imported; it is
used only where the program has imported it.

A payload is a number of units, the unit's name, and for a `Timestamp` its zone and fold.
"""

from __future__ import annotations

import sys
from datetime import timezone
from typing import Any
from zoneinfo import ZoneInfo

from threadkeep.codec.format import Decode, Packer, Rule, Tag, Unpacker
from threadkeep.errors import UnknownTypeError, UnserializableError


def rule_for(cls: type) -> Rule | None:
    """Return the rule for a time of pandas, None for any other class."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not hasattr(pandas, "Timestamp"):
        return None
    if cls is pandas.Timestamp:
        return Rule(Tag.PANDAS_TIMESTAMP, _timestamp)
    if cls is pandas.Timedelta:
        return Rule(Tag.PANDAS_TIMEDELTA, lambda value, packer: packer.pack(_units(value)))
    return Rule(Tag.PANDAS_NAT, lambda _, __: b"") if cls is type(pandas.NaT) else None


def _units(value: Any) -> list[Any]:
    import numpy as np  # noqa: PLC0415 - pandas has imported it

    return [int(value.asm8.view("i8")), np.datetime_data(value.asm8.dtype)[0]]


def _timestamp(value: Any, packer: Packer) -> bytes:
    zone = value.tzinfo
    if zone is not None and type(zone) not in (timezone, ZoneInfo):
        raise UnserializableError(
            f"A time zone of type {type(zone).__qualname__} cannot be stored exactly.",
            hint="Use zoneinfo.ZoneInfo or datetime.timezone.",
        )
    return packer.pack([*_units(value), zone, value.fold])


def _read_timestamp(data: bytes, unpacker: Unpacker) -> Any:
    pandas = _pandas()
    import numpy as np  # noqa: PLC0415 - pandas has imported it

    number, unit, zone, fold = unpacker.unpack(data)
    value = pandas.Timestamp(np.datetime64(number, unit))
    if zone is not None:
        value = value.tz_localize("UTC").tz_convert(zone)
    return value if value.fold == fold else value.replace(fold=fold)


def _read_timedelta(data: bytes, unpacker: Unpacker) -> Any:
    pandas = _pandas()
    import numpy as np  # noqa: PLC0415 - pandas has imported it

    return pandas.Timedelta(np.timedelta64(*unpacker.unpack(data)))


def _pandas() -> Any:
    pandas = sys.modules.get("pandas")
    if pandas is None:
        raise UnknownTypeError(
            "The stored value is a time of pandas, which this program has not imported.",
            hint="Add to your program: import pandas",
        )
    return pandas


DECODERS: dict[int, Decode] = {
    Tag.PANDAS_TIMESTAMP: _read_timestamp,
    Tag.PANDAS_TIMEDELTA: _read_timedelta,
    Tag.PANDAS_NAT: lambda _, __: _pandas().NaT,
}
