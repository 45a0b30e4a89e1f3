"""A codec over a serializer that the user brings: any of LangGraph's, or one's own.

Only the adapter lives here. Invariant: the serializer alone decides what comes back;
its type tag is stored with its bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from langgraph.checkpoint.serde.base import (
    SerializerProtocol,
    UntypedSerializerProtocol,
    maybe_add_typed_methods,
)
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from threadkeep.codec.failures import OWN, told
from threadkeep.codec.format import OBJECT, Tag
from threadkeep.codec.protocol import Intern, Resolve
from threadkeep.errors import (
    CorruptionError,
    InvalidArgumentError,
    ThreadkeepError,
    UnserializableError,
)

_MARK = bytes((OBJECT, Tag.SERDE))
_MAX_TAG = 255  # bytes: its length is stored in one


class SerdeCodec:
    """Stores values as a LangGraph serializer does.

    Args:
        serde: has `dumps_typed` and `loads_typed`, or `dumps` and `loads`.

    Raises:
        InvalidArgumentError: it has neither pair.
    """

    def __init__(self, serde: SerializerProtocol | UntypedSerializerProtocol) -> None:
        if not (_has(serde, "dumps_typed", "loads_typed") or _has(serde, "dumps", "loads")):
            raise InvalidArgumentError(
                f"{serde!r} is no serializer.",
                hint="Give serde= an object with dumps_typed and loads_typed, or dumps and loads.",
            )
        self.serde = maybe_add_typed_methods(serde)

    def encode(self, value: Any, intern: Intern | None = None) -> bytes:  # noqa: ARG002 - as the docstring says
        """See `Codec.encode`; nothing is interned: no serializer knows references."""
        try:
            kind, data = self.serde.dumps_typed(value)
            return _framed(kind, data)
        except ThreadkeepError:
            raise
        except Exception as error:
            raise UnserializableError(
                f"{type(self.serde).__name__} cannot store a {type(value).__qualname__}: "
                f"{told(error)}.",
                hint="dumps_typed gives a type tag, which is a str, and bytes.",
            ) from error

    def decode(self, data: bytes, resolve: Resolve | None = None) -> Any:  # noqa: ARG002 - see encode
        """See `Codec.decode`."""
        if data[:2] != _MARK or len(data) < 3 + (data[2:] or b"\0")[0]:
            raise CorruptionError(
                f"The value was not written by {type(self.serde).__name__}.",
                hint="Open the store with the serde= (or none) that it was written with.",
            )
        end = 3 + data[2]
        try:
            return self.serde.loads_typed((data[3:end].decode(), data[end:]))
        except OWN:
            raise
        except Exception as error:
            raise CorruptionError(
                f"{type(self.serde).__name__} cannot read the stored value: {told(error)}."
            ) from error

    def decode_many(self, items: Sequence[bytes], resolve: Resolve | None = None) -> list[Any]:
        """See `Codec.decode_many`."""
        return [self.decode(item, resolve) for item in items]

    def divides(self, value: Any) -> bool:
        """See `Codec.divides`. What a serializer makes of a key is its own affair."""
        return type(value) is not dict or all(type(key) is str for key in value)

    def with_allowlist(self, extra: Collection[tuple[str, ...]]) -> SerdeCodec:
        """Pass the list on to the serializer, if it has a use for it."""
        serde = _extended(self.serde, extra)
        return self if serde is self.serde else SerdeCodec(serde)


def _framed(kind: str, data: bytes) -> bytes:
    tag = kind.encode()
    if len(tag) > _MAX_TAG:
        raise UnserializableError(f"The serializer's type tag {kind[:40]!r}... is too long.")
    return b"".join((_MARK, bytes((len(tag),)), tag, data))


def _extended(serde: SerializerProtocol, extra: Collection[tuple[str, ...]]) -> SerializerProtocol:
    if isinstance(serde, EncryptedSerializer):
        inner = _extended(serde.serde, extra)
        return serde if inner is serde.serde else EncryptedSerializer(serde.cipher, inner)
    return serde.with_msgpack_allowlist(extra) if isinstance(serde, JsonPlusSerializer) else serde


def _has(serde: object, *methods: str) -> bool:
    return all(callable(getattr(serde, name, None)) for name in methods)
