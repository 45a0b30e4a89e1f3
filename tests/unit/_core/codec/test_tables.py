"""DataFrame, Series and Index come back exactly, without pickle and without registration."""

import os
import subprocess
import sys
from datetime import UTC, date
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import ormsgpack
import pandas as pd
import pandas.testing as check
import pyarrow as pa
import pytest

from threadkeep._core.codec.codecs import NativeCodec
from threadkeep._core.codec.format import OBJECT, Tag
from threadkeep.errors import CorruptionError, UnserializableError

CODEC = NativeCodec()
ENDLESS = ormsgpack.Ext(Tag.IPV6_NETWORK, b"::/0")
DAYS = pd.date_range("2026-01-01", periods=3, tz=ZoneInfo("Europe/Paris"))
OBJECTS = [1, "a", None, pd.NA, pd.NaT, float("nan"), (1, 2), {"k": [date(2026, 1, 1)]}]


def noted(frame: pd.DataFrame) -> pd.DataFrame:
    frame.attrs = {"source": "crm"}
    frame.flags.allows_duplicate_labels = False
    return frame


FRAMES = {
    "empty": pd.DataFrame(),
    "rows alone": pd.DataFrame(index=pd.RangeIndex(2, 20, 3, name="r")),
    "columns alone": pd.DataFrame(columns=["a", "b"]),
    "plain": pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": [1.5, np.nan], "d": [True, False]}),
    "objects": pd.DataFrame({"o": pd.Series(OBJECTS, dtype=object)}),
    "lists": pd.DataFrame({"l": pd.Series([[1], [2], [3, 4]])}),
    "small numbers": pd.DataFrame({"a": np.array([1, 2], ">i4"), "b": np.array([1, 2], "f2")}),
    "equal labels": pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"], index=[5, 5]),
    "odd labels": pd.DataFrame({1: [1], (1, 2): [2], None: [3]}),
    "levels": pd.DataFrame(
        np.arange(8.0).reshape(2, 4),
        index=pd.MultiIndex.from_tuples([("a", 1), (None, 2)], names=["x", None]),
        columns=pd.MultiIndex.from_product([["a", "b"], [1, 2]]),
    ),
    "categories": pd.DataFrame({"c": pd.Categorical(["x", None], ["y", "x"], ordered=True)}),
    "nullable": pd.DataFrame(
        {
            "i": pd.array([1, None, 3], dtype="UInt8"),
            "f": pd.array([1.5, None, 2], dtype="Float32"),
            "b": pd.array([True, None, False], dtype="boolean"),
            "s": pd.array(["a", None, "c"], dtype=pd.StringDtype("python")),
        }
    ),
    "times": pd.DataFrame(
        {
            "naive": pd.Series(pd.to_datetime(["2026-01-01", None])).dt.as_unit("s"),
            "aware": pd.Series(pd.to_datetime(["2026-10-25T00:30", None])).dt.tz_localize(UTC),
            "spans": pd.to_timedelta(["1D", None]),
            "periods": pd.PeriodIndex(["2026-01", None], freq="M"),
        }
    ),
    "days": pd.DataFrame({"v": pd.interval_range(0, 3), "t": [1, 2, 3]}, index=DAYS),
    "weeks": pd.DataFrame({"n": [1, 2]}, index=pd.date_range("2026-01-04", periods=2, freq="W")),
    "notes": noted(pd.DataFrame({"a": [1]})),
    "Arrow": pd.DataFrame(
        {
            "n": pd.array([1, None], dtype="int64[pyarrow]"),
            "l": pd.array([[1], None], dtype=pd.ArrowDtype(pa.list_(pa.int64()))),
            "t": pd.array(["x", None], dtype=pd.ArrowDtype(pa.string())),
            "s": pd.array(["x", None], dtype="string[pyarrow]"),
        }
    ),
}


def assert_same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, pd.Index):
        check.assert_index_equal(a, b, exact=True)
        assert list(a.names) == list(b.names)
        assert getattr(a, "freq", None) == getattr(b, "freq", None)
        return
    assert (a.attrs, a.flags) == (b.attrs, b.flags)
    assert_same(a.index, b.index)
    if isinstance(a, pd.Series):
        assert (a.dtype, a.name) == (b.dtype, b.name)
        check.assert_series_equal(a, b)
        return
    assert_same(a.columns, b.columns)
    for at in range(a.shape[1]):
        assert_same(a.iloc[:, at], b.iloc[:, at])


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_tables_come_back_exactly(frame: pd.DataFrame) -> None:
    values = [frame, frame.index, frame.columns, *(frame.iloc[:, n] for n in range(frame.shape[1]))]
    for value in values:
        data = CODEC.encode(value)
        back = CODEC.decode(data)
        assert_same(value, back)
        assert CODEC.encode(back) == data
        assert_same(value, CODEC.decode(CODEC.encode({"k": [(value,)]}))["k"][0][0])


def test_a_table_that_was_read_can_be_changed() -> None:
    frame = CODEC.decode(CODEC.encode(FRAMES["plain"]))
    frame.loc[0, "a"] = 9
    frame["e"] = frame["c"] * 2
    assert frame.loc[0].tolist() == [9, "x", 1.5, True, 3.0]


class Prices(pd.DataFrame):
    """A subclass: pandas would lose what it adds."""


REFUSED = [
    (pd.DataFrame({"a": pd.arrays.SparseArray([0, 1])}), r"dtype Sparse.*\n.*to_dense"),
    (pd.Series([object()]), "builtins.object"),
    (
        pd.DatetimeIndex(["2026-01-05"], freq=pd.offsets.CustomBusinessDay(weekmask="Mon")),
        r"frequency.*\n.*index\.freq = None",
    ),
    (Prices({"a": [1]}), "Prices"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=lambda case: type(case).__name__)
def test_inexact_tables_are_refused(value: Any, message: str) -> None:
    with pytest.raises(UnserializableError, match=message):
        CODEC.encode([value])


@pytest.mark.parametrize(
    ("tag", "parts"),
    [
        (Tag.PANDAS_INDEX, ["index", [None], ["lambda", 1], None]),
        (Tag.PANDAS_INDEX, ["os", [None]]),
        (Tag.PANDAS_INDEX, ["range", [None], 0, 2, 0]),
        (Tag.PANDAS_SERIES, [["objects", [1]], ["range", [None], 0, 9**9, 1], None, {}, False]),
        (Tag.PANDAS_SERIES, [["numbers", 9**9, "<i8", b""], ["range", [None], 0, 1, 1], 0, {}, 0]),
        (Tag.PANDAS_SERIES, [["arrow", b"\xff\xff"], ["range", [None], 0, 1, 1], 0, {}, False]),
        (Tag.PANDAS_INDEX, ["index", [None], ["texts", "python", True, ENDLESS], None]),
        (Tag.PANDAS_INDEX, ["levels", ENDLESS]),
        (Tag.PANDAS_SERIES, [ENDLESS, ENDLESS, None, {}, False]),
        (Tag.PANDAS_FRAME, [["range", [None], 0, 2, 1], ["range", [None], 0, 1, 1], {}, False]),
    ],
)
def test_damaged_tables_are_corruption(tag: Tag, parts: list[Any]) -> None:
    with pytest.raises(CorruptionError):
        CODEC.decode(bytes((OBJECT, tag)) + ormsgpack.packb(parts))


WITHOUT_ARROW = """
import sys
if sys.argv[2] == "without":
    sys.modules["pyarrow"] = None
import pandas as pd
from threadkeep._core.codec.codecs import NativeCodec
from threadkeep.errors import UnknownTypeError
codec, path = NativeCodec(), sys.argv[1]
frame = pd.DataFrame({"s": ["a", None]})
if sys.argv[2] == "with":
    assert frame.s.dtype.storage == "pyarrow"
    open(path, "wb").write(codec.encode(frame))
    open(path + "n", "wb").write(codec.encode(pd.Series([1], dtype="int8[pyarrow]")))
    sys.exit()
assert frame.s.dtype.storage == "python"
assert codec.decode(open(path, "rb").read()).equals(frame)
try:
    codec.decode(open(path + "n", "rb").read())
except UnknownTypeError as error:
    assert "pip install pyarrow" in error.hint
else:
    sys.exit("a column with an Arrow dtype was read without pyarrow")
"""


def test_tables_need_pyarrow_only_for_columns_of_arrow(tmp_path: Path) -> None:
    for kind in ("with", "without"):
        command = [sys.executable, "-c", WITHOUT_ARROW, str(tmp_path / "frame"), kind]
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
