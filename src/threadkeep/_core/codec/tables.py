"""Payloads of pandas: DataFrame, Series and Index, column by column, and its scalars.

pandas is used only if the program has imported it. A column is a list: its kind, and the parts from
which pandas' public constructors build it. Columns with an Arrow dtype are in Arrow's stream format
(https://arrow.apache.org/docs/format/Columnar.html), and need pyarrow. Subclasses such as
GeoDataFrame, and sparse columns, are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from threadkeep._core.codec.format import Decode, Packer, Rule, Tag, Unpacker
from threadkeep._core.codec.values import (
    check_zone,
    describe_dtype,
    imported,
    make_array,
)
from threadkeep.errors import CorruptionError, UnknownTypeError, UnserializableError

_Column = list[Any]  # its kind and its parts


def rule_for(cls: type) -> Rule | None:
    """Return the rule for a class of pandas, or None."""
    pandas: Any = sys.modules.get("pandas")
    if not hasattr(pandas, "DataFrame"):  # not imported, or just being imported
        return None
    if cls is pandas.Timestamp:
        return Rule(Tag.PANDAS_TIMESTAMP, _pack_timestamp)
    if cls is pandas.Timedelta:
        return Rule(Tag.PANDAS_TIMEDELTA, lambda value, packer: packer.pack(_units(value)))
    if cls is type(pandas.NaT):
        return Rule(Tag.PANDAS_NAT, lambda _, __: b"")
    if cls is type(pandas.NA):
        return Rule(Tag.PANDAS_NA, lambda _, __: b"")
    if cls is pandas.DataFrame:
        return Rule(Tag.PANDAS_FRAME, _pack_frame)
    if cls is pandas.Series:
        return Rule(Tag.PANDAS_SERIES, _pack_series)
    if issubclass(cls, pandas.Index) and cls.__module__.split(".")[0] == "pandas":
        return Rule(Tag.PANDAS_INDEX, lambda index, packer: packer.pack(_index(index)))
    return None


def _pack_frame(frame: Any, packer: Packer) -> bytes:
    columns = [_column(series) for _, series in frame.items()]
    return packer.pack([_index(frame.columns), _index(frame.index), *_extras(frame), *columns])


def _read_frame(data: bytes, unpacker: Unpacker) -> Any:
    pandas = imported("pandas")
    labels, rows, attrs, unique, *columns = unpacker.parts(data)
    index = _make_index(rows)
    series = [_make_series(column, index, None) for column in columns]
    frame = pandas.DataFrame(dict(enumerate(series)), index=index)
    frame.columns = _make_index(labels)
    return _with_extras(frame, attrs, unique)


def _pack_series(series: Any, packer: Packer) -> bytes:
    parts = [_column(series), _index(series.index), series.name, *_extras(series)]
    return packer.pack(parts)


def _read_series(data: bytes, unpacker: Unpacker) -> Any:
    column, rows, name, attrs, unique = unpacker.parts(data)
    return _with_extras(_make_series(column, _make_index(rows), name), attrs, unique)


def _make_series(column: _Column, index: Any, name: Any) -> Any:
    values = _make_column(column)
    if len(values) != len(index):  # (pandas would repeat a single value)
        raise CorruptionError("A stored column is not as long as its index.")
    return imported("pandas").Series(values, index=index, dtype=values.dtype, name=name)


def _extras(value: Any) -> list[Any]:
    return [value.attrs, not value.flags.allows_duplicate_labels]


def _with_extras(value: Any, attrs: dict[Any, Any], unique: bool) -> Any:  # noqa: FBT001 - as stored
    value.attrs = attrs
    value.flags.allows_duplicate_labels = not unique
    return value


def _units(value: Any) -> list[Any]:
    return [int(value.asm8.view("i8")), imported("numpy").datetime_data(value.asm8.dtype)[0]]


def _pack_timestamp(value: Any, packer: Packer) -> bytes:
    check_zone(value.tzinfo)
    return packer.pack([*_units(value), value.tzinfo, value.fold])


def _read_timestamp(data: bytes, unpacker: Unpacker) -> Any:
    pandas = imported("pandas")
    number, unit, zone, fold = unpacker.unpack(data)
    value = pandas.Timestamp(imported("numpy").datetime64(number, unit))
    if zone is not None:
        value = value.tz_localize("UTC").tz_convert(zone)
    return value if value.fold == fold else value.replace(fold=fold)


def _index(index: Any) -> _Column:
    """Describe an index: rows, columns or categories."""
    pandas = imported("pandas")
    names = list(index.names)
    if type(index) is pandas.RangeIndex:
        return ["range", names, index.start, index.stop, index.step]
    if type(index) is pandas.MultiIndex:
        levels = zip(index.levels, index.codes, strict=True)
        return ["levels", names, *([_index(level), _numbers(codes)] for level, codes in levels)]
    return ["index", names, _column(index), _frequency(index)]


def _make_index(described: _Column) -> Any:
    pandas = imported("pandas")
    kind, names, *parts = _list(described)
    names = _list(names)
    if kind == "range":
        return pandas.RangeIndex(*parts, name=names[0])
    if kind == "levels":
        levels = [_make_index(level) for level, _ in map(_list, parts)]
        codes = [_make_column(code) for _, code in map(_list, parts)]
        return pandas.MultiIndex(levels=levels, codes=codes, names=names)
    if kind != "index":
        raise CorruptionError(f"There is no index of kind {kind!r}.")
    values = _make_column(parts[0])
    index = pandas.Index(values, dtype=values.dtype, name=names[0])
    if parts[1] is not None:
        index.freq = parts[1]
    return index


def _frequency(index: Any) -> str | None:
    """Return the step of an index of times, if it has one, by its name."""
    pandas = imported("pandas")
    if not isinstance(index, (pandas.DatetimeIndex, pandas.TimedeltaIndex)) or index.freq is None:
        return None
    name = str(index.freqstr)
    try:
        same = pandas.tseries.frequencies.to_offset(name) == index.freq
    except ValueError:
        same = False
    if not same:
        raise UnserializableError(
            f"An index with the frequency {index.freq!r} cannot be stored exactly.",
            hint="Set index.freq = None first.",
        )
    return name


def _column(values: Any) -> _Column:
    """Describe the values of a Series or an Index."""
    pandas, numpy = imported("pandas"), imported("numpy")
    dtype, array = values.dtype, values.array
    if isinstance(dtype, numpy.dtype):
        if dtype.kind == "O":
            return ["objects", values.to_numpy().tolist()]
        return _numbers(values.to_numpy())
    if isinstance(dtype, pandas.StringDtype):
        nan = dtype.na_value is not pandas.NA
        texts = array.to_numpy(dtype=object, na_value=None).tolist()
        return ["texts", dtype.storage, nan, texts]
    if isinstance(array, _masked(pandas)):
        plain = array.to_numpy(dtype=dtype.numpy_dtype, na_value=0)
        return ["masked", _numbers(plain), _numbers(array.isna())]
    if isinstance(dtype, pandas.CategoricalDtype):
        return ["categories", _numbers(array.codes), _index(dtype.categories), dtype.ordered]
    if isinstance(dtype, pandas.DatetimeTZDtype):
        check_zone(dtype.tz)
        return ["moments", _numbers(array.tz_convert(None).to_numpy()), dtype.tz]
    if isinstance(dtype, pandas.PeriodDtype):
        return ["periods", _numbers(array.asi8), dtype.name[len("period[") : -1]]
    if isinstance(dtype, pandas.IntervalDtype):
        return ["intervals", _index(array.left), _index(array.right), dtype.closed]
    if isinstance(dtype, pandas.ArrowDtype):
        return ["arrow", _pack_arrow(array)]
    raise UnserializableError(
        f"A column of dtype {dtype!r} cannot be stored exactly.",
        hint="Convert it first: frame.astype(...), or series.sparse.to_dense().",
    )


def _numbers(values: Any) -> _Column:
    return ["numbers", len(values), describe_dtype(values.dtype), values.tobytes()]


def _list(part: Any) -> list[Any]:
    """Return a list; raise CorruptionError for another value, which may never end."""
    if type(part) is not list:
        raise CorruptionError("A part of a stored table is no list.")
    return part


def _masked(pandas: Any) -> Any:
    kinds = pandas.arrays
    return kinds.IntegerArray, kinds.FloatingArray, kinds.BooleanArray


def _make_column(described: _Column) -> Any:
    kind, *parts = _list(described)
    make = _MAKERS.get(kind)
    if make is None:
        raise CorruptionError(f"There is no column of kind {kind!r}.")
    return make(*parts)


def _make_objects(values: list[Any]) -> Any:
    array = imported("numpy").empty(len(_list(values)), dtype=object)
    array[:] = values
    return array


def _make_numbers(length: int, description: Any, raw: bytes) -> Any:
    return make_array(description, (length,), "C", raw)


def _make_texts(storage: str, nan: bool, texts: list[str | None]) -> Any:  # noqa: FBT001 - as stored
    pandas = imported("pandas")
    missing = {"na_value": float("nan")} if nan else {}
    if sys.modules.get("pyarrow") is None:  # (pandas' default depends on it)
        storage = "python"
    return pandas.array(_list(texts), dtype=pandas.StringDtype(storage, **missing))


def _make_masked(described: _Column, mask: _Column) -> Any:
    values = _make_column(described)
    integers, floats, booleans = _masked(imported("pandas"))
    kind = {"f": floats, "b": booleans}.get(values.dtype.kind, integers)
    return kind(values, _make_column(mask))


def _make_categories(codes: _Column, categories: _Column, ordered: bool) -> Any:  # noqa: FBT001
    pandas = imported("pandas")
    dtype = pandas.CategoricalDtype(_make_index(categories), ordered)
    return pandas.Categorical.from_codes(_make_column(codes), dtype=dtype)


def _make_moments(described: _Column, zone: Any) -> Any:
    moments = imported("pandas").DatetimeIndex(_make_column(described))
    return moments.tz_localize("UTC").tz_convert(zone).array


def _make_periods(ordinals: _Column, frequency: str) -> Any:
    period = imported("pandas").PeriodIndex
    return period.from_ordinals(_make_column(ordinals), freq=frequency).array


def _make_intervals(left: _Column, right: _Column, closed: str) -> Any:
    kind = imported("pandas").arrays.IntervalArray
    return kind.from_arrays(_make_index(left), _make_index(right), closed=closed)


def _pack_arrow(array: Any) -> bytes:
    arrow = _pyarrow()
    column = arrow.chunked_array(arrow.array(array)).combine_chunks()
    batch, sink = arrow.record_batch([column], names=[""]), arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _make_arrow(data: bytes) -> Any:
    arrow = _pyarrow()
    with arrow.ipc.open_stream(data) as stream:
        table = stream.read_all()
    table.validate(full=True)
    return imported("pandas").arrays.ArrowExtensionArray(table.column(0))


def _pyarrow() -> Any:
    """Return pyarrow, which pandas imports if it is installed."""
    module = sys.modules.get("pyarrow")
    if module is None:
        raise UnknownTypeError(
            "The stored table has columns with an Arrow dtype, and pyarrow is not installed.",
            hint="Install it: pip install pyarrow",
        )
    return module


_MAKERS: dict[str, Callable[..., Any]] = {
    "objects": _make_objects,
    "numbers": _make_numbers,
    "texts": _make_texts,
    "masked": _make_masked,
    "categories": _make_categories,
    "moments": _make_moments,
    "periods": _make_periods,
    "intervals": _make_intervals,
    "arrow": _make_arrow,
}

DECODERS: dict[int, Decode] = {
    Tag.PANDAS_TIMESTAMP: _read_timestamp,
    Tag.PANDAS_TIMEDELTA: lambda data, unpacker: imported("pandas").Timedelta(
        imported("numpy").timedelta64(*unpacker.parts(data))
    ),
    Tag.PANDAS_NAT: lambda _, __: imported("pandas").NaT,
    Tag.PANDAS_NA: lambda _, __: imported("pandas").NA,
    Tag.PANDAS_INDEX: lambda data, unpacker: _make_index(unpacker.parts(data)),
    Tag.PANDAS_SERIES: _read_series,
    Tag.PANDAS_FRAME: _read_frame,
}
