"""Values come back with their own type, alone and inside others, and encode the same again.

More values of each type that LangGraph has are in test_codec_langgraph_types.py.
"""

import datetime as dt
import math
import pathlib
import re
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

import codec_models as m
import numpy as np
import pydantic
import pydantic.v1
import pytest
from codec_same import same
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item, SearchItem
from langgraph.types import Command, Interrupt, Overwrite, Send, TimeoutPolicy

from threadkeep._core.codec import NativeCodec

CODEC = NativeCodec()
PARIS = ZoneInfo("Europe/Paris")
NOON = dt.datetime(2026, 10, 25, 2, 30, 0, 123456, tzinfo=PARIS)


def noted() -> m.Noted:
    value = m.Noted("text")
    value.note = "an attribute"
    return value


def buffer() -> m.Buffer:
    value = m.Buffer(b"bytes")
    value.size = 3
    return value


def named_point() -> m.NamedPoint:
    value = m.NamedPoint(1, 2.0)
    value.label = "here"
    return value


VALUES = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
    -(2**63) - 1,
    2**4000,
    0.0,
    -0.0,
    1.0,
    math.nan,
    math.inf,
    -math.inf,
    5e-324,
    "",
    "text",
    "é\u0100\u4e2d\U0001f600",
    "\0",
    "\ud800",
    "\ud83d\ude00",
    "a" * 100_000,
    b"",
    b"\xc4\xc5\xc6",
    b"x" * 100_000,
    bytearray(),
    bytearray(b"ab"),
    1 + 2j,
    complex(-0.0, math.nan),
    range(5),
    range(10, 0, -2),
    Fraction(1, 3),
    Decimal("-0"),
    Decimal("1E+5"),
    Decimal("NaN"),
    Decimal("-sNaN12"),
    Decimal("Infinity"),
    [],
    {},
    (),
    set(),
    frozenset(),
    deque(),
    OrderedDict(),
    [[], {}, (), None],
    (1, (2, [3, (4,)])),
    [(1, 2), [1, 2]],
    {"b": 1, "a": 2},
    {1: "int", "1": "str"},
    {1.5: 1, None: 2, True: 3, (1, 2): 4, b"k": 5, frozenset({1}): 6},
    {"\ud800": 1},
    {"a": {2: {"b": {None: [bytearray(b"x")]}}}},
    {1, 2, "a", (3, 4), None},
    {frozenset({1}), frozenset({frozenset()})},
    frozenset({1.0, "x"}),
    deque([1, [2]], maxlen=5),
    OrderedDict([("b", 1), (2, "a")]),
    defaultdict(list, {"a": [1], 2: []}),
    defaultdict(None, {"a": 1}),
    Counter("hello"),
    NOON,
    NOON.replace(fold=1),
    NOON.replace(tzinfo=None, year=1),
    NOON.max,
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-5, seconds=3), "odd")),
    dt.date(2026, 2, 28),
    dt.time(1, 2, 3, 4),
    dt.time(1, 2, fold=1, tzinfo=PARIS),
    dt.timedelta(days=-3, microseconds=7),
    dt.timedelta.max,
    dt.UTC,
    dt.timezone(dt.timedelta(0)),
    dt.timezone(dt.timedelta(hours=1)),
    PARIS,
    pathlib.Path("a/../b"),
    pathlib.Path(),
    pathlib.PurePosixPath("/x/y"),
    pathlib.PureWindowsPath(r"c:\x"),
    pathlib.Path("caf\udce9"),
    re.compile("a+", re.IGNORECASE | re.MULTILINE),
    re.compile(rb"\x00", re.DOTALL),
    re.compile("(?i)x"),
    uuid.uuid4(),
    uuid.UUID(int=5, is_safe=uuid.SafeUUID.safe),
    pydantic.SecretStr("hush"),
    pydantic.SecretBytes(b"hush"),
    pydantic.v1.SecretStr("hush"),
    pydantic.v1.SecretBytes(b"hush"),
    m.Colour.ALSO_RED,
    m.Size.LARGE,
    m.Access(0),
    m.Bits.A | m.Bits.B,
    {m.Level.LOW: 1, "low2": m.Size.SMALL, m.Size.LARGE: [m.Level.HIGH]},
    noted(),
    {m.Tagged("key"): m.Tagged("value")},
    m.Metres(-0.0),
    m.Count(7),
    m.Count(2**70),
    m.Digest(b"\x01"),
    buffer(),
    m.Names({"a", "b"}),
    m.Fixed([(1, 2)]),
    m.Phase(1, -0.0),
    m.Stack([1, 2]),
    m.Config(a=1, b=[2]),
    m.Pair(1, 2),
    m.Point(1, 2),
    named_point(),
    Send("node", {"a": (1,)}),
    Send("node", 1, timeout=3.5),
    Command(goto=Send("a", 1), update={"x": (1, 2)}, resume={"i": 2}, graph=Command.PARENT),
    Interrupt(value={"q": 1}, id="abc"),
    Overwrite([1, (2,)]),
    TimeoutPolicy(run_timeout=dt.timedelta(seconds=3)),
    _DeltaSnapshot([1, (2,)]),
    Item(value={"a": 1}, key="k", namespace=("n", "m"), created_at=NOON, updated_at=NOON),
    SearchItem(("n",), "k", {"a": 1}, NOON, NOON, score=0.5),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(10)[::3],
    np.array(5, dtype="u1"),
    np.zeros((0, 3), dtype="i4"),
    np.array(["a", "bcd", ""]),
    np.array([b"a", b"bcd"]),
    np.array([(1, 2.5, "x")], dtype=[("a", ">i4"), ("b", "f8"), ("c", "U3")]),
    np.array(["2026-01-01"], dtype="M8[ms]"),
    np.array([True, False]),
    np.array([1 + 2j], dtype="c8"),
    np.float64(1.5),
    np.float32("nan"),
    np.int8(-3),
    np.bool_(True),
    np.str_("text\0"),
    np.bytes_(b"ab\0"),
    np.datetime64("2026-01-01T00:00"),
    np.longdouble(1.25),
]


def test_each_value_comes_back_exactly() -> None:
    for value in VALUES:
        data = CODEC.encode(value)
        back = CODEC.decode(data)
        assert same(value, back), (value, back)
        assert CODEC.encode(value) == data
        assert CODEC.encode(back) == data, value


@pytest.mark.parametrize(
    "wrap",
    [
        lambda v: [v, v],
        lambda v: (v,),
        lambda v: {"key": v},
        lambda v: {1: v},
        lambda v: deque([v]),
        m.Box,
        lambda v: m.FrozenModel(a=v),
        lambda v: Send("n", v),
    ],
    ids=["list", "tuple", "dict", "int-keyed", "deque", "dataclass", "model", "send"],
)
def test_each_value_comes_back_exactly_inside_others(wrap) -> None:
    for value in VALUES:
        whole = wrap(value)
        data = CODEC.encode(whole)
        assert same(whole, CODEC.decode(data)), value
        assert CODEC.encode(CODEC.decode(data)) == data, value


def test_equal_values_of_other_types_stay_apart() -> None:
    values = [1, True, 1.0, 1 + 0j, m.Size.SMALL, m.Count(1), np.int64(1), Decimal(1), Fraction(1)]
    assert len({CODEC.encode(value) for value in values}) == len(values)
    assert same(values, CODEC.decode(CODEC.encode(values)))


def test_a_set_has_the_same_bytes_whatever_its_history() -> None:
    grown = set(range(1000))
    grown -= set(range(8, 1000))
    assert CODEC.encode(grown) == CODEC.encode(set(range(8)))
    assert CODEC.encode({"b", "a"}) == CODEC.encode({"a", "b"})


def test_decoded_values_are_fresh() -> None:
    data = CODEC.encode({"a": [1]})
    CODEC.decode(data)["a"].append(2)
    assert CODEC.decode(data) == {"a": [1]}


def test_decode_many_gives_what_decode_gives() -> None:
    items = [CODEC.encode(value) for value in VALUES]
    assert same([CODEC.decode(item) for item in items], CODEC.decode_many(items))
    assert CODEC.decode_many([]) == []


def test_read_only_arrays_stay_read_only_and_others_can_be_written() -> None:
    array = np.arange(3)
    CODEC.decode(CODEC.encode(array))[0] = 7
    array.setflags(write=False)
    assert not CODEC.decode(CODEC.encode(array)).flags.writeable


def test_a_generic_instance_forgets_its_type_argument_only() -> None:
    box = m.Box[int](1)
    assert CODEC.decode(CODEC.encode(box)) == box


def test_large_values() -> None:
    text = "x" * 100_000_000
    assert CODEC.decode(CODEC.encode(text)) == text
