"""What the engine asks of a codec: values to bytes and back.

Only the protocol and the two callback types live here. Invariant: a codec holds no
I/O and no per-call state, so one object serves any number of threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeAlias

Intern: TypeAlias = Callable[[object], tuple[int, int] | None]
"""An object met while encoding -> the (log, position) where it is stored already, if it is."""

Resolve: TypeAlias = Callable[[int, int], Any]
"""(log, position) -> the decoded element that a reference stands for."""


class Codec(Protocol):
    """Turns values into bytes and back, exactly or with a typed error."""

    def encode(self, value: Any, intern: Intern | None = None) -> bytes:
        """Return the value's bytes; equal values of equal types give equal bytes.

        Args:
            value: what to store.
            intern: asked for every message, model, dataclass and the like inside
                `value` (never for `value` itself); where it gives an address, a
                reference is written in the object's place. It may be asked for the
                same object more than once.

        Raises:
            UnserializableError: the value would not come back exactly.
        """

    def decode(self, data: bytes, resolve: Resolve | None = None) -> Any:
        """Return the value that `encode` was given, as fresh objects.

        Raises:
            UnknownTypeError: the data names a type that this program has not allowed.
            CorruptionError: the bytes are damaged, or hold a reference and `resolve` is None.
        """

    def decode_many(self, items: Sequence[bytes], resolve: Resolve | None = None) -> list[Any]:
        """Decode each item; cheaper than as many calls of `decode`. Errors as there."""

    def divides(self, value: Any) -> bool:
        """Tell whether the elements of a list, tuple or dict may be stored one by one.

        A dict's element is the list of its key and its value.
        """

    def with_allowlist(self, extra: Collection[tuple[str, ...]]) -> Codec:
        """Return a codec that also loads these (module, name) classes once imported."""
