"""The numbers of the value format, and what encoders and decoders share.

Only constants and the small types that every part of the codec needs live here.
Invariant: a tag is never renumbered and never reused; new ones are added.

A value is msgpack. What msgpack has no exact form for is an extension: one of these
tags and a payload. An extension that is the whole value is written as `OBJECT`, a byte
that msgpack never uses, the tag, and the payload: two bytes instead of three to six.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

OBJECT = 0xC1
MAX_DEPTH = 64  # objects within objects; lists and dicts within one object nest to 254


class Tag(IntEnum):
    """What an extension's payload holds."""

    REFERENCE = 0  # an element of a log, stored once and referred to
    KNOWN = 1  # a LangChain message or document, by its code and field numbers
    PYDANTIC = 2
    PYDANTIC_V1 = 3
    DATACLASS = 4
    ATTRS = 5
    NAMEDTUPLE = 6
    ENUM = 7
    FLAG = 8  # a combination of enum flags
    SUBCLASS = 9  # a Python subclass of str, int, dict, ...
    PLAIN = 10  # a plain class that was registered, by its attributes
    FOREIGN = 11  # what a registered encode= gave
    PICKLE = 12
    EXCEPTION = 13
    LIKENESS = 14  # what LangGraph's savers give for a value that has no exact form

    TUPLE = 16
    SET = 17
    FROZENSET = 18
    DEQUE = 19
    ORDERED_DICT = 20
    DEFAULT_DICT = 21
    PAIRS = 22  # a dict with keys that are not all str
    BYTEARRAY = 23
    BIG_INT = 24
    SURROGATES = 25  # a str that is not valid Unicode
    COMPLEX = 26
    RANGE = 27
    FRACTION = 28
    DECIMAL = 29
    MEMORYVIEW = 30

    DATETIME = 32
    DATE = 33
    TIME = 34
    TIMEDELTA = 35
    TIMEZONE = 36
    ZONE_INFO = 37

    POSIX_PATH = 40
    WINDOWS_PATH = 41
    PURE_POSIX_PATH = 42
    PURE_WINDOWS_PATH = 43
    PATTERN = 44
    UUID = 45
    IPV4_ADDRESS = 46
    IPV6_ADDRESS = 47
    IPV4_INTERFACE = 48
    IPV6_INTERFACE = 49
    IPV4_NETWORK = 50
    IPV6_NETWORK = 51
    SECRET_STR = 52
    SECRET_BYTES = 53
    SECRET_STR_V1 = 54
    SECRET_BYTES_V1 = 55

    NDARRAY = 60
    NUMPY_SCALAR = 61
    PANDAS_TIMESTAMP = 62
    PANDAS_TIMEDELTA = 63
    PANDAS_NAT = 64

    PATCH = 126  # an element that is a change to another one: the engine's, never a value
    SERDE = 127  # written by a serializer that the user brought


class Packer(Protocol):
    """What a type's encoding may use: packing of the values inside."""

    def pack(self, value: Any) -> bytes:
        """Return the value as msgpack."""


class Unpacker(Protocol):
    """What a type's decoding may use."""

    def unpack(self, data: bytes) -> Any:
        """Return the value of a piece of msgpack."""

    def find(self, reference: str | int, tag: Tag) -> type:
        """Return the class that data names, if it is allowed and of the stored kind."""


class Rule(NamedTuple):
    """How instances of one type are written.

    `shareable`: `intern` is asked for them. `otherwise` is the rule for an instance that
    `encode` gives None for.
    """

    tag: Tag
    encode: Callable[[Any, Packer], bytes | None]
    shareable: bool = False
    otherwise: Rule | None = None


Decode = Callable[[bytes, Any], Any]  # payload, Unpacker -> value
