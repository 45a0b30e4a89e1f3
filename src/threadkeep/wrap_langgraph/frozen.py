"""Values of a checkpoint as bytes, each on its own.

Only that lives here. A serializer may keep a kind of value on its own that it does not keep
within another one (LangGraph's keeps a `bytearray` so): savers that store values one by one give
them back exactly, and so must whatever stands in front of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from langgraph.checkpoint.serde.base import SerializerProtocol

Typed: TypeAlias = tuple[str, bytes]


class Frozen(NamedTuple):
    """Something, and the values that belong into it, as bytes."""

    rest: Typed
    values: tuple[Typed, ...]

    @property
    def size(self) -> int:
        """How many bytes that is."""
        return sum(len(data) for _, data in (self.rest, *self.values))


def freeze(serde: SerializerProtocol, rest: Any, values: Sequence[Any]) -> Frozen:
    """Turn them into bytes. Raises what the serializer raises."""
    return Frozen(serde.dumps_typed(rest), tuple(serde.dumps_typed(value) for value in values))


def thaw(serde: SerializerProtocol, frozen: Frozen) -> tuple[Any, list[Any]]:
    """Turn them back: fresh objects."""
    return serde.loads_typed(frozen.rest), [serde.loads_typed(value) for value in frozen.values]
