"""Classes defined inside functions, created by each call."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, NamedTuple

import attrs
import pydantic
import pydantic.v1
from langchain_core.messages import AIMessage

HERE = f"{__name__}.make_classes.<locals>."


def make_classes() -> dict[str, Any]:
    class Model(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        a: int = 1
        key: pydantic.SecretStr = pydantic.SecretStr("hush")

    class OldModel(pydantic.v1.BaseModel):
        a: int = 1

    class Mine(AIMessage):
        mood: str = "calm"

    @dataclass
    class Record:
        a: Any = 1

    @attrs.define
    class Attrs:
        a: int = 1

    class Point(NamedTuple):
        a: int = 1

    class Colour(enum.Enum):
        RED = 1

    class Access(enum.Flag):
        READ = 1
        WRITE = 2

    class Name(str):
        __slots__ = ()

    class LocalError(Exception):
        pass

    return {name: cls for name, cls in locals().items() if isinstance(cls, type)}


def instances(classes: dict[str, Any]) -> dict[str, Any]:
    """An object of each class."""
    special = {
        "Model": lambda: classes["Model"](b=2),
        "Colour": lambda: classes["Colour"].RED,
        "Access": lambda: classes["Access"](3),
        "Name": lambda: classes["Name"]("ann"),
        "LocalError": lambda: classes["LocalError"]("no", 2),
        "Mine": lambda: classes["Mine"]("yes"),
    }
    return {name: make() for name, make in {**classes, **special}.items()}
