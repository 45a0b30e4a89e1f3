"""Values of the golden files, by file: append new files, never change an existing one."""

from __future__ import annotations

import datetime as dt
import enum
import ipaddress
import pathlib
import re
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import attrs
import numpy as np
import pandas as pd
import pydantic
import pydantic.v1
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    ChatMessageChunk,
    FunctionMessage,
    FunctionMessageChunk,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
)
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item
from langgraph.types import Command, Interrupt, Overwrite, Send, TimeoutPolicy

from threadkeep import Migrations
from threadkeep._core.codec import codec_of
from threadkeep._core.codec.shapes import ShapedCodec
from threadkeep._core.engine.model import CheckpointRow, Segment, WriteRow
from threadkeep.threads.transfer.whole_thread import WholeThread


class Colour(enum.Enum):
    RED = 1


class Level(enum.StrEnum):
    LOW = "low"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Tagged(str):
    __slots__ = ()


class Stack(list[Any]):
    pass


class Point(NamedTuple):
    x: int
    y: float = 0.5


@dataclass
class Task:
    name: str
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen:
    a: int


@attrs.define
class Wheel:
    size: int


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    name: str
    age: int | None = None
    _secret: str = pydantic.PrivateAttr(default="s")


class OldPerson(pydantic.v1.BaseModel):
    name: str
    age: int = 3


class RefusedError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class Moment(dt.datetime):
    pass


class Money(Decimal):
    pass


class Line(deque[int]):
    pass


class Id(uuid.UUID):
    pass


class Address(ipaddress.IPv4Address):
    pass


class Network(ipaddress.IPv4Network):
    pass


def with_notes() -> KeyError:
    error = KeyError("key")
    error.add_note("a note")
    return error


def with_stack() -> Stack:
    stack = Stack([1, 2])
    stack.limit = 3  # type: ignore[attr-defined]
    return stack


NOON = dt.datetime(2026, 6, 1, 12, 30, 15, 999, tzinfo=dt.UTC)
PARIS = ZoneInfo("Europe/Paris")
CALL = {"name": "search", "args": {"q": "x"}, "id": "call-1"}
USAGE = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
TEXT = "a text that is long enough to be worth compressing, "

FILES: dict[str, list[Any]] = {
    "v1-plain": [None, True, False, 0, -1, 2**64 - 1, -(2**63), 1.5, -0.0, "", "é", b"", b"\0\xff"],
    "v1-plain-containers": [[], {}, [1, [2, []]], {"b": 1, "a": {"c": [None]}}],
    "v1-numbers": [2**64, -(2**100), 1 + 2j, range(1, 9, 3), Fraction(1, 3), Decimal("1.50")],
    "v1-containers": [
        (),
        (1, (2, "x")),
        {3, 1, 2},
        frozenset({"a"}),
        deque([1], 4),
        OrderedDict([("b", 1), (2, 3)]),
        defaultdict(list, {"a": [1]}),
        {1: "a", None: "b", (1, 2): "c"},
        bytearray(b"ab"),
        "\ud800",
        Counter("aab"),
    ],
    "v1-time": [
        NOON,
        NOON.replace(tzinfo=None),
        NOON.replace(tzinfo=PARIS, fold=1),
        dt.date(2026, 2, 28),
        dt.time(1, 2, 3, 4, tzinfo=PARIS),
        dt.timedelta(days=-1, microseconds=3),
        dt.UTC,
        dt.timezone(dt.timedelta(hours=-5), "odd"),
        PARIS,
    ],
    "v1-names": [
        pathlib.PurePosixPath("/a/b"),
        pathlib.PureWindowsPath("c:/x"),
        re.compile("a+", re.IGNORECASE),
        re.compile(rb"\x00"),
        uuid.UUID(int=7),
        uuid.UUID(int=7, is_safe=uuid.SafeUUID.unsafe),
        ipaddress.ip_address("1.2.3.4"),
        ipaddress.ip_address("::1"),
        ipaddress.ip_interface("10.0.0.1/8"),
        ipaddress.ip_interface("::1/64"),
        ipaddress.ip_network("10.0.0.0/8"),
        ipaddress.ip_network("fe80::/64"),
        pydantic.SecretStr("s"),
        pydantic.SecretBytes(b"s"),
        pydantic.v1.SecretStr("s"),
        pydantic.v1.SecretBytes(b"s"),
    ],
    "v1-posix-paths": [pathlib.PosixPath("/a/b")],
    "v1-records": [
        Colour.RED,
        Level.LOW,
        Access.READ,
        Access.READ | Access.WRITE,
        Tagged("t"),
        with_stack(),
        Point(1),
        Task("t", ["x"]),
        Frozen(1),
        Wheel(3),
        Person(name="a", other=1),
        OldPerson(name="a"),
    ],
    "v1-messages": [
        HumanMessage("hi", id="1"),
        HumanMessage([{"type": "text", "text": "t"}], name="n"),
        HumanMessage("hi", custom="extra"),
        HumanMessage("hi", id=None),
        AIMessage("", tool_calls=[CALL], usage_metadata=USAGE, response_metadata={"m": 1}),
        AIMessage("x", additional_kwargs={"a": 1}, invalid_tool_calls=[]),
        ToolMessage("r", tool_call_id="c", artifact=(1,), status="error"),
        SystemMessage("s"),
        RemoveMessage(id="1"),
        ChatMessage("c", role="critic"),
        FunctionMessage("f", name="fn"),
        HumanMessageChunk("h"),
        AIMessageChunk("a", tool_call_chunks=[{"name": "f", "args": "{}", "id": "c", "index": 0}]),
        AIMessageChunk("a", chunk_position="last"),
        ToolMessageChunk("t", tool_call_id="c"),
        SystemMessageChunk("s"),
        ChatMessageChunk("c", role="r"),
        FunctionMessageChunk("f", name="fn"),
        Document("text", metadata={"page": 1}, id="d"),
        HumanMessage("text").text,
        [HumanMessage("nested"), {"k": AIMessage("nested")}],
    ],
    "v1-langgraph": [
        Send("n", {"a": 1}),
        Command(goto="x", update={"a": (1,)}),
        Interrupt(value=1, id="i"),
        Overwrite([1]),
        TimeoutPolicy(run_timeout=1.5),
        _DeltaSnapshot([1]),
        Item(value={"a": 1}, key="k", namespace=("n",), created_at=NOON, updated_at=NOON),
    ],
    "v1-numpy": [
        np.arange(6, dtype="<i8").reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype="<f4").reshape(2, 3)),
        np.array([(1, b"x")], dtype=[("a", ">i4"), ("b", "S3")]),
        np.float32(1.5),
        np.str_("text"),
        np.datetime64("2026-01-01"),
    ],
    "v1-exceptions": [
        ValueError("boom", 1, (2,)),
        with_notes(),
        FileNotFoundError(2, "No such file", "a.txt"),
        ImportError("no", name="mod", path="/x"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        ExceptionGroup("group", [ValueError("a"), KeyError(1)]),
        RefusedError(503),
    ],
    "v1-substitutes": [ValueError(object), defaultdict(with_notes, a=1)],
    "v1-views": [memoryview(b"abc"), memoryview(bytearray(b"abcdefgh")).cast("H", [2, 2])],
    "v1-pandas": [
        pd.Timestamp("2026-06-01T12:30:15.000000999"),
        pd.Timestamp("2026-06-01T12:30", tz=PARIS),
        pd.Timestamp("9999-01-01").as_unit("s"),
        pd.Timedelta(-5, unit="ns").as_unit("ns"),
        pd.NaT,
    ],
    "v1-tables": [
        pd.DataFrame({"n": [1, 2], "t": ["a", None], "o": pd.Series([1, (2,)], dtype=object)}),
        pd.Series(
            pd.Categorical(["x", None], ["y", "x"]),
            pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["k", None]),
        ),
        pd.DataFrame(
            {
                "i": pd.array([1, None], dtype="Int8"),
                "p": pd.PeriodIndex(["2026-01"] * 2, freq="M"),
            },
            pd.date_range("2026-01-01", periods=2, tz=PARIS),
        ),
        pd.Series([1, None], dtype="int64[pyarrow]", name="arrow"),
        pd.interval_range(0, 3),
        pd.NA,
    ],
    "v1-subclasses": [
        Moment(2026, 1, 2, 3, 4, 5, 6, dt.UTC),
        Money("1.50"),
        Line([1, 2], 3),
        Id(int=7),
        Address("1.2.3.4"),
        Network("10.0.0.0/8"),
    ],
    "v1-compressed": [TEXT * 100, [HumanMessage(TEXT * 10)] * 5],
}
"""File -> its values, each an element of the file's one frame."""

SHAPED = [
    Colour.RED,
    Tagged("a"),
    Point(1),
    Task("a", ["b"]),
    Wheel(2),
    Person(name="a"),
    [Frozen(1)],
]
"""The values of `v1-shapes.bin`, stored in these shapes."""


def in_shapes() -> ShapedCodec:
    """The codec of a program that has changed each of these classes once."""
    migrations = Migrations()
    for number, cls in enumerate((Colour, Tagged, Point, Task, Wheel, Person, Frozen), 2):
        migrations.type(cls, number)(lambda fields: fields)
    codec = codec_of(migrations)
    assert isinstance(codec, ShapedCodec)
    return codec


ROWS = [
    WholeThread(
        "thread \0 é 😀",
        1_763_000_000_000_000,
        (Segment(1, 0, 3, b"\0\xff data"), Segment(2**63 - 1, 5, 1, b"")),
        (
            CheckpointRow("", "a", None, 0, 0, 0, 17, "{}", None, 1, 0, b"manifest"),
            CheckpointRow("ns", "b", "a", 2**31, 2, 7, "no time", "{}", b"exact", 1, 2, b""),
        ),
        (
            WriteRow("", "a", 0, 0, "task", "~path", b"body", 1),
            WriteRow("", "a", 3, 1, "", "", b"", 2),
        ),
    ),
    WholeThread("", 5, (), (), ()),
]
"""The threads of `v1-rows.tkb`."""
