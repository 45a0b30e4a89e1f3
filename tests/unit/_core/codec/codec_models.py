"""Classes for the codec tests: one for each way to write a data class."""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import attrs
import pydantic
import pydantic.dataclasses
import pydantic.v1
from langchain_core.documents import Document
from langchain_core.load.serializable import Serializable
from langchain_core.messages import HumanMessage

T = TypeVar("T")


class Colour(enum.Enum):
    RED = 1
    GREEN = (2, "two")
    ALSO_RED = 1  # noqa: PIE796 - an alias


class Level(enum.StrEnum):
    LOW = "low"
    HIGH = "high"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Tagged(str):
    __slots__ = ()


class Noted(str):  # noqa: SLOT000 - it has attributes
    note: str


class Metres(float):
    __slots__ = ()


class Count(int):
    __slots__ = ()


class Digest(bytes):
    __slots__ = ()


class Buffer(bytearray):
    size: int


class Names(set[str]):
    pass


class Fixed(frozenset[Any]):
    __slots__ = ("note",)


class Phase(complex):
    __slots__ = ()


class Stack(list[Any]):
    limit: int = 3


class Config(dict[str, Any]):
    """A dict whose own methods must not be called."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise AssertionError

    def items(self) -> Any:
        raise AssertionError


class Pair(tuple[int, int]):
    __slots__ = ()

    def __new__(cls, left: int, right: int) -> Self:
        return super().__new__(cls, (left, right))


class Point(NamedTuple):
    x: int
    y: float = 0.5


class NamedPoint(Point):
    label: str


@dataclass
class Task:
    name: str
    tags: list[str] = field(default_factory=list)
    kind: ClassVar[str] = "task"


@dataclass
class SubTask(Task):
    parent: Task | None = None


@dataclass(frozen=True)
class Frozen:
    a: int
    b: tuple[int, ...] = ()


@dataclass(slots=True)
class Slotted:
    a: int
    b: Any = None


@dataclass(frozen=True, slots=True)
class FrozenSlotted:
    a: int


@dataclass(init=False)
class NoInit:
    a: int

    def __init__(self) -> None:
        raise AssertionError


@dataclass
class Derived:
    a: int
    total: int = field(init=False)
    unset: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = self.a * 2
        self.note = "not a field"  # attributes that are no fields are kept as well

    @cached_property
    def expensive(self) -> int:
        return self.a


@dataclass
class Box(Generic[T]):
    item: T


@attrs.define
class Wheel:
    size: int
    spokes: list[int] = attrs.field(factory=list)


@attrs.frozen(cache_hash=True)
class Axle:
    length: int


@attrs.define(slots=False)
class Bike(Wheel):
    name: str = "bike"


class Address(pydantic.BaseModel):
    street: str
    number: int = 1


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", validate_assignment=True)

    name: str
    age: int | None = None
    home: Address | None = None
    friends: list[Person] = pydantic.Field(default_factory=list)
    _secret: str = pydantic.PrivateAttr(default="s")
    _later: int = pydantic.PrivateAttr()

    @pydantic.field_validator("name")
    @classmethod
    def never_on_load(cls, value: str) -> str:
        if value == "invalid":
            raise ValueError(value)
        return value

    @cached_property
    def greeting(self) -> str:
        return "hello " + self.name


class FrozenModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)

    a: Any


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Response(pydantic.BaseModel, Generic[T]):
    data: T


IntResponse = Response[int]


class OldPerson(pydantic.v1.BaseModel):
    name: str
    age: int = 3
    _secret: str = pydantic.v1.PrivateAttr("s")

    class Config:
        extra = "allow"
        underscore_attrs_are_private = True


class OldStrict(pydantic.v1.BaseModel):
    a: int
    b: Any = None


@pydantic.dataclasses.dataclass
class Checked:
    a: int
    b: list[int] = pydantic.Field(default_factory=list)


class Ordered(OrderedDict[str, Any]):
    pass


class MyMessage(HumanMessage):
    mood: str = "calm"


class MyDocument(Document):
    score: float = 0.0


class MySerializable(Serializable):
    value: int


class Outer:
    @dataclass
    class Inner:
        a: int


class OddZone(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OddZone)

    def __hash__(self) -> int:
        return 1


class Plain:
    """Plain class, which can be stored only once registered."""

    def __init__(self, a: Any) -> None:
        self.a = a


def function() -> None:
    """Fail: loading must not call this."""
    raise AssertionError


Outer.again = Outer  # type: ignore[attr-defined]
