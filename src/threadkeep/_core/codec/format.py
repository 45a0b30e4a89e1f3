"""The value format: tags, class numbers, and the types and errors that the codec shares.

A value is msgpack. A value without an exact form in msgpack is an extension: a tag and a payload.
At the top level it is written as `OBJECT` (a byte that msgpack never uses), the tag and the
payload. Tags and class numbers are append-only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, TypeAlias

from threadkeep.errors import (
    CorruptionError,
    NewerFormatError,
    ThreadkeepError,
    UnserializableError,
)

OBJECT = 0xC1
MAX_DEPTH = 64  # objects within objects, lists and dicts within one object nest to 254


class Tag(IntEnum):
    """Kind of an extension's payload."""

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
    FOREIGN = 11  # the result of a registered encode=
    PICKLE = 12
    EXCEPTION = 13
    SUBSTITUTE = 14  # the value that LangGraph's savers return for one without an exact form
    SHAPE = 15  # a mark of the shape of a checkpoint's channels: only the engine uses it

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
    PANDAS_NA = 65
    PANDAS_INDEX = 66
    PANDAS_SERIES = 67
    PANDAS_FRAME = 68

    PATCH = 126  # an element stored as a patch of another one: only the engine uses it
    SERDE = 127  # written by a serializer that the user brought


MARKED = bytes((OBJECT, Tag.SHAPE))
"""Begins the keys of a checkpoint that are not LangGraph's own, if its channels have a shape."""

HOMES: dict[int, str] = {
    1: "langchain_core.messages.human:HumanMessage",
    2: "langchain_core.messages.ai:AIMessage",
    3: "langchain_core.messages.tool:ToolMessage",
    4: "langchain_core.messages.system:SystemMessage",
    5: "langchain_core.messages.modifier:RemoveMessage",
    6: "langchain_core.messages.chat:ChatMessage",
    7: "langchain_core.messages.function:FunctionMessage",
    8: "langchain_core.messages.human:HumanMessageChunk",
    9: "langchain_core.messages.ai:AIMessageChunk",
    10: "langchain_core.messages.tool:ToolMessageChunk",
    11: "langchain_core.messages.system:SystemMessageChunk",
    12: "langchain_core.messages.chat:ChatMessageChunk",
    13: "langchain_core.messages.function:FunctionMessageChunk",
    14: "langchain_core.documents.base:Document",
    32: "langchain_core.messages.base:TextAccessor",
    33: "langgraph.types:Send",
    34: "langgraph.types:Command",
    35: "langgraph.types:Interrupt",
    36: "langgraph.types:Overwrite",
    37: "langgraph.types:TimeoutPolicy",
    38: "langgraph.checkpoint.serde.types:_DeltaSnapshot",
    39: "langgraph.store.base:Item",
    40: "langgraph.store.base:SearchItem",
}
"""Code of a class -> its name in data, "module:qualified name"."""

CODES: dict[str, int] = {
    **{home: code for code, home in HOMES.items()},
    "langgraph.constants:Send": 33,  # until langgraph 0.2.24
    "langgraph.constants:Interrupt": 35,
}
"""When a class moves, `HOMES` gets its new name, and its old name is added here."""

PLAIN: dict[int, dict[str, Any]] = {33: {"timeout": None}, 39: {}, 40: {"score": None}}
"""Codes of plain classes fully described by their attributes -> defaults of the attributes that
older releases of LangGraph do not have."""


class Packer(Protocol):
    """Packs the values inside an object."""

    def pack(self, value: Any) -> bytes:
        """Return the value as msgpack."""


class Unpacker(Protocol):
    """Unpacks the values inside an object, and looks up its class."""

    def unpack(self, data: bytes) -> Any:
        """Return the value of a piece of msgpack."""

    def parts(self, data: bytes) -> list[Any]:
        """Return the list in a piece of msgpack. Raises CorruptionError for another value.

        Only a list is as long as its bytes: a range or a network may never end.
        """

    def find(self, reference: str | int, tag: Tag) -> type:
        """Return the class that the data names, if it is allowed and of the stored kind."""


ClassReference: TypeAlias = str | int
"""A class as named in data: its code, or "module:qualified name"."""

Encode: TypeAlias = Callable[[Any, Packer], bytes | None]
Decode: TypeAlias = Callable[[bytes, Any], Any]  # (payload, Unpacker) -> value


class Rule(NamedTuple):
    """Encoding of the instances of one type.

    Instances that are `shareable` may be replaced by references. `otherwise` is the rule for
    instances for which `encode` returns None.
    """

    tag: Tag
    encode: Encode
    shareable: bool = False
    otherwise: Rule | None = None


Intern: TypeAlias = Callable[[object], tuple[int, int] | None]
"""Function from an object to its stored (log, position), or None."""

Resolve: TypeAlias = Callable[[int, int], Any]
"""Function from (log, position) to the decoded element there."""


class Codec(Protocol):
    """Encodes values to bytes and decodes them, exactly or with a typed error.

    A codec keeps no state between calls, so threads can share it.
    """

    def encode(self, value: Any, intern: Intern | None = None) -> bytes:
        """Return the bytes of a value. Equal values of equal types give equal bytes.

        Args:
            value: the value to store.
            intern: called for every message, model, dataclass and similar object inside `value`
                (not for `value` itself), possibly more than once. If it returns an address, a
                reference replaces the object.

        Raises:
            UnserializableError: the value would not come back exactly.
        """

    def decode(self, data: bytes, resolve: Resolve | None = None) -> Any:
        """Decode a value into new objects.

        Raises:
            UnknownTypeError: the data names a type that this program has not allowed.
            CorruptionError: the bytes are damaged, or hold a reference and `resolve` is None.
        """

    def decode_many(self, items: Sequence[bytes], resolve: Resolve | None = None) -> list[Any]:
        """Decode each item, cheaper than one call of `decode` per item."""

    def divides(self, value: Any) -> bool:
        """Return True if the elements of a list, tuple or dict may be stored one by one.

        An element of a dict is the list of its key and value.
        """

    def with_allowlist(self, extra: Collection[tuple[str, ...]]) -> Codec:
        """Return a codec that also loads these (module, name) classes, once imported."""


OWN = (ThreadkeepError, MemoryError, RecursionError)
"""Errors that decoding passes on. Any other error means malformed data."""


class FinalError(UnserializableError):
    """This value cannot be stored exactly, and cannot be pickled instead."""


def describe(error: BaseException) -> str:
    """Return an error as one line, even if its `__str__` fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - code of the program
        return type(error).__name__


def malformed(error: Exception) -> CorruptionError:
    return CorruptionError(f"The stored value is malformed: {describe(error)}.")


def newer(message: str) -> NewerFormatError:
    """Return the error for data that only a later release can read."""
    return NewerFormatError(message, hint="Upgrade threadkeep.")


def dotted(cls: type) -> str:
    """Return a class's name for messages."""
    return f"{cls.__module__}.{cls.__qualname__}"
