"""All types of LangGraph's serializer come back exactly, or as LangGraph returns them."""

import ast
import datetime as dt
import inspect
import ipaddress
import pathlib
import re
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import codec_models as m
import numpy as np
import pandas as pd
import pydantic
import pydantic.v1
import pytest
from codec_same import same
from langchain_core import messages
from langchain_core.documents import Document
from langgraph.checkpoint.serde import _msgpack, jsonplus
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import (
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchItem,
    SearchOp,
)
from langgraph.types import (
    Command,
    Interrupt,
    Overwrite,
    PregelTask,
    Send,
    StateSnapshot,
    TimeoutPolicy,
)

from threadkeep._core.codec import NativeCodec

CODEC = NativeCodec()
LANGGRAPH = JsonPlusSerializer()
NOON = dt.datetime(2026, 6, 1, 12, tzinfo=dt.UTC)


class Attributes:
    """Equal if the attributes are."""

    def __init__(self, a: Any = 1) -> None:
        self.a = a

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = object.__hash__


class Dumps(Attributes):
    def model_dump(self) -> dict[str, Any]:
        return {"a": self.a}


class Dicts(Attributes):
    def dict(self) -> dict[str, Any]:
        return {"a": self.a}


class Fields(Attributes):
    def _asdict(self) -> dict[str, Any]:
        return {"a": self.a}


class Hides(Attributes):
    def get_secret_value(self) -> Any:
        return self.a


class MySend(Send):
    pass


class Line(deque[int]):
    pass


class Defaults(defaultdict[str, Any]):
    pass


class Money(Decimal):
    pass


@dataclass
class Sum(Decimal):
    note: str = ""


class Id(uuid.UUID):
    pass


class Moment(dt.datetime):
    pass


class Day(dt.date):
    pass


class Clock(dt.time):
    pass


class Span(dt.timedelta):
    pass


class Zone(ZoneInfo):
    pass


class File(type(pathlib.Path())):  # type: ignore[misc]
    pass


class Address4(ipaddress.IPv4Address):
    pass


class Address6(ipaddress.IPv6Address):
    pass


class Network4(ipaddress.IPv4Network):
    pass


class Network6(ipaddress.IPv6Network):
    pass


class Interface4(ipaddress.IPv4Interface):
    pass


class Interface6(ipaddress.IPv6Interface):
    pass


class Soup(str):
    """A text with a reference to its parent, as from a parsed page."""

    __slots__ = ("parent",)


class Matrix(np.ndarray):
    pass


class EastOf(dt.tzinfo):
    """A time zone of another library."""

    def utcoffset(self, _: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(hours=2)

    def dst(self, _: dt.datetime | None) -> None:
        return None

    def tzname(self, _: dt.datetime | None) -> str:
        return "EAST"


def with_note(value: Any) -> Any:
    value.note = (1, "an attribute")
    return value


class Like:
    """A value with a substitute, and the substitute."""

    def __init__(self, taken: Any, like: Any) -> None:
        self.taken = taken
        self.like = like


SOUP = Soup("text")
SOUP.parent = object()

TAKEN: dict[str, list[Any]] = {
    # Types that msgpack itself has: subclasses too, but for bytes, tuples and the like.
    "ormsgpack": [
        *(None, True, 1, 1.5, "text", b"bytes", bytearray(b"b"), [1], {"a": 1}, (1, (2,))),
        *(m.Count(1), m.Tagged("t"), m.Stack([1]), m.Config(a=1), {1: 2}),
        *(Counter("aab"), OrderedDict(a=1), m.Level.LOW, m.Size.SMALL, "\ud800"),
        *(memoryview(b"abc"), memoryview(bytearray(b"abc")), memoryview(b"")),
        *(memoryview(np.arange(6.0).reshape(2, 3)), memoryview(b"abcd").cast("H")),
        defaultdict(list, a=[1]),
        Defaults(int, a=1),
        Like(defaultdict(lambda: 1, a=(2,)), {"a": (2,)}),
        Like(Defaults(lambda: 1, a=2), {"a": 2}),
        Like(SOUP, "text"),
        Like(memoryview(np.array([1], ">i4")), b"\0\0\0\1"),
    ],
    "isinstance(obj, _DeltaSnapshot)": [_DeltaSnapshot([1])],
    "hasattr(obj, 'model_dump') and callable(obj.model_dump)": [
        *(
            m.Address(street="s"),
            m.Person(name="n", extra=1),
            m.Numbers([1]),
            m.IntResponse(data=1),
        ),
        *(m.MySerializable(value=1), m.MyMessage("x"), Dumps()),
        *(Document("text"), m.MyDocument("text")),
        *(messages.HumanMessage("h"), messages.HumanMessageChunk("h")),
        *(messages.AIMessage("a"), messages.AIMessageChunk("a")),
        *(messages.SystemMessage("s"), messages.SystemMessageChunk("s")),
        *(messages.ChatMessage("c", role="r"), messages.ChatMessageChunk("c", role="r")),
        *(
            messages.ToolMessage("t", tool_call_id="1"),
            messages.ToolMessageChunk("t", tool_call_id="1"),
        ),
        *(messages.FunctionMessage("f", name="n"), messages.FunctionMessageChunk("f", name="n")),
        *(messages.BaseMessage("b", type="b"), messages.BaseMessageChunk("b", type="b")),
        messages.RemoveMessage(id="1"),
    ],
    "hasattr(obj, 'get_secret_value') and callable(obj.get_secret_value)": [
        *(pydantic.SecretStr("s"), pydantic.SecretBytes(b"s"), pydantic.Secret[int](1)),
        *(pydantic.v1.SecretStr("s"), pydantic.v1.SecretBytes(b"s"), Hides()),
    ],
    "hasattr(obj, 'dict') and callable(obj.dict)": [
        m.OldPerson(name="n"),
        m.OldStrict(a=1),
        Dicts(),
    ],
    "hasattr(obj, '_asdict') and callable(obj._asdict)": [
        *(m.Point(1), m.NamedPoint(1), Fields()),
        *(GetOp(("a",), "k"), PutOp(("a",), "k", {"v": 1}), SearchOp(("a",)), ListNamespacesOp()),
        PregelTask("i", "n", ("a",)),
        StateSnapshot({}, (), {}, None, None, None, (), ()),
    ],
    "isinstance(obj, pathlib.Path)": [pathlib.Path("a/b"), pathlib.Path("/"), File("/a")],
    "isinstance(obj, re.Pattern)": [re.compile("a+", re.IGNORECASE), re.compile(b"a")],
    "isinstance(obj, UUID)": [
        uuid.UUID(int=1),
        Id(int=2, is_safe=uuid.SafeUUID.safe),
        Id("1" * 32),
    ],
    "isinstance(obj, decimal.Decimal)": [Decimal("1.50"), with_note(Money("-0")), Sum(1)],
    "isinstance(obj, (set, frozenset, deque))": [
        *({1}, frozenset({1}), deque([1], 3), m.Names("a"), m.Fixed([1])),
        *(with_note(Line([1, 2], 5)), Line()),
    ],
    "isinstance(obj, (IPv4Address, IPv4Interface, IPv4Network))": [
        *map(ipaddress.ip_address, ("1.2.3.4", "0.0.0.0")),
        *(ipaddress.ip_interface("10.0.0.1/8"), ipaddress.ip_network("10.0.0.0/8")),
        *(with_note(Address4("1.2.3.4")), Interface4("10.0.0.1/8"), Network4("10.0.0.0/31")),
    ],
    "isinstance(obj, (IPv6Address, IPv6Interface, IPv6Network))": [
        *(ipaddress.ip_address("fe80::1%eth0"), ipaddress.ip_interface("fe80::1/64")),
        ipaddress.ip_network("fe80::/64"),
        *(Address6("fe80::1%eth0"), Interface6("fe80::1/64"), with_note(Network6("fe80::/64"))),
    ],
    "isinstance(obj, datetime)": [
        *(NOON, NOON.replace(tzinfo=None), NOON.replace(tzinfo=ZoneInfo("Europe/Paris"), fold=1)),
        *(Moment(2026, 1, 2, 3, 4, 5, 6, dt.UTC, fold=1), with_note(Moment(1, 1, 1))),
        *(
            pd.Timestamp(0),
            pd.Timestamp(5, unit="s"),
            pd.Timestamp("2026-07-25T02:30", tz="Europe/Paris"),
        ),
        *(pd.Timestamp("2026-01-01T00:00:00.000000123", tz="UTC"), pd.NaT),
        pd.Timestamp("9999-01-01").as_unit("s"),
        pd.Timestamp("2026-10-25T00:30", tz="UTC").tz_convert(ZoneInfo("Europe/Paris")),
        pd.Timestamp("2026-10-25T01:30", tz="UTC").tz_convert(ZoneInfo("Europe/Paris")),
        Like(
            NOON.replace(tzinfo=EastOf()), NOON.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)))
        ),
        Like(
            pd.Timestamp(0, tz="UTC").tz_convert(EastOf()),
            pd.Timestamp(0, tz="UTC").tz_convert(dt.timezone(dt.timedelta(hours=2))),
        ),
    ],
    "isinstance(obj, timedelta)": [
        *(dt.timedelta(1, 2, 3), Span(-1, 2, 3), pd.Timedelta(5, unit="ns"), pd.Timedelta(days=-1))
    ],
    "isinstance(obj, date)": [dt.date(2026, 1, 2), Day(2026, 1, 2)],
    "isinstance(obj, time)": [
        *(dt.time(1, 2, 3, 4, dt.UTC, fold=1), Clock(1, 2, 3, 4), Clock(1, tzinfo=dt.UTC, fold=1))
    ],
    "isinstance(obj, timezone)": [dt.UTC, dt.timezone(dt.timedelta(hours=1), "name")],
    "isinstance(obj, ZoneInfo)": [ZoneInfo("Europe/Paris"), Zone("Europe/Paris")],
    "isinstance(obj, Enum)": [m.Colour.GREEN, m.Access.READ | m.Access.RUN, m.Bits(9)],
    "isinstance(obj, SendProtocol)": [
        Send("n", {"a": (1,)}),
        Send("n", 1, timeout=2.5),
        MySend("n", 1),
    ],
    "dataclasses.is_dataclass(obj)": [
        *(m.Task("t"), m.SubTask("t"), m.Frozen(1), m.Slotted(1), m.Box(1), m.Checked(1)),
        *(Command(goto="a", update={"a": 1}), Interrupt(1, id="i"), Overwrite([1])),
        *(TimeoutPolicy(run_timeout=1), MatchCondition("prefix", ("a",))),
    ],
    "isinstance(obj, Item)": [
        Item(value={"a": 1}, key="k", namespace=("n",), created_at=NOON, updated_at=NOON),
        SearchItem(("n",), "k", {"a": 1}, NOON, NOON, score=0.5),
    ],
    "(np_mod := sys.modules.get('numpy')) is not None and isinstance(obj, np_mod.ndarray)": [
        *(np.arange(6).reshape(2, 3), np.asfortranarray(np.ones((2, 3))), np.arange(9)[::2].copy()),
        *(np.array(["a"]), np.array(5)),
        Like(np.arange(3).view(Matrix), np.arange(3)),
        Like(np.ma.array([1, 2], mask=[True, False]), np.array([1, 2])),
        Like(
            np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]).view(np.recarray),
            np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
        ),
    ],
    "isinstance(obj, BaseException)": [  # more of them in test_codec_exceptions.py
        Like(ValueError(object), repr(ValueError(object)))
    ],
}
VALUES = [value for values in TAKEN.values() for value in values]


def test_the_table_has_every_type_that_langgraph_s_serializer_knows() -> None:
    """Fails if a release of LangGraph accepts another type: add values of it above."""
    function: Any = ast.parse(inspect.getsource(jsonplus._msgpack_default)).body[0]
    branch, known = function.body[0], set()
    while isinstance(branch, ast.If):
        known.add(ast.unparse(branch.test))
        branch = branch.orelse[0]
    assert known == TAKEN.keys() - {"ormsgpack"}
    met = {(cls.__module__, cls.__name__) for v in VALUES for cls in type(v).__mro__}
    assert _msgpack.SAFE_MSGPACK_TYPES - met <= {("re", "compile"), *ELSEWHERE}


ELSEWHERE = {  # classes of other systems and of other Pythons
    *(
        (home, name)
        for home in ("pathlib", "pathlib._local")
        for name in ("Path", "PosixPath", "WindowsPath")
    )
}


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_it_comes_back_exactly_or_as_langgraph_gives_it(value) -> None:
    like = value
    if isinstance(value, Like):
        value, like = value.taken, value.like
    else:
        LANGGRAPH.dumps_typed([value])  # it is taken
    data = CODEC.encode(value)
    back = CODEC.decode(data)
    assert value is not like or CODEC.encode(back) == data
    assert same(back, like), back
    assert getattr(back, "note", None) == getattr(like, "note", None)
    assert CODEC.encode(value) == data
    for wrap in (lambda v: [v], lambda v: (v,), lambda v: {"k": v}, lambda v: {1: v}, m.Slotted):
        assert same(CODEC.decode(CODEC.encode(wrap(value))), wrap(like))


@pytest.mark.parametrize(
    "value", [v for v in VALUES if isinstance(v, Like)], ids=lambda v: type(v.taken).__name__
)
def test_what_is_like_a_value_is_what_langgraph_gives(value) -> None:
    given = LANGGRAPH.loads_typed(LANGGRAPH.dumps_typed(value.taken))
    if isinstance(value.taken, (pd.Timestamp, np.recarray)):
        return  # LangGraph returns a str, or nonsense; ours are closer
    assert repr(given) == repr(value.like).replace("(2,)", "[2]")
