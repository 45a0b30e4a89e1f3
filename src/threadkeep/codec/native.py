"""threadkeep's own codec: msgpack with exact types.

Only the codec's face lives here; `encoder` and `decoder` do the work. Invariant: a
codec is immutable and holds no per-call state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from threadkeep.codec.decoder import Decoder
from threadkeep.codec.encoder import AtOnce, Encoder
from threadkeep.codec.finding import Finder
from threadkeep.codec.format import OBJECT, Tag
from threadkeep.codec.protocol import Intern, Resolve
from threadkeep.codec.registry import DEFAULT_REGISTRY, Registry

_KNOWN = Tag.KNOWN
_KNOWN_OBJECT = bytes((OBJECT, _KNOWN))
_AT_ONCE = AtOnce()
_SCALARS = frozenset({type(None), bool, int, float, str})


class NativeCodec:
    """Stores values exactly.

    Args:
        registry: the classes that the program has registered.
        pickle_fallback: pickle what cannot be stored otherwise, and load pickled data.
            Loading a pickle runs whatever code it names: only for data that is trusted.
        allowed: (module, name) of classes that may be loaded even where LangGraph's strict
            mode is on; their modules must have been imported.
    """

    def __init__(
        self,
        registry: Registry = DEFAULT_REGISTRY,
        pickle_fallback: bool = False,  # noqa: FBT001, FBT002 - the name says it where it is used
        allowed: Collection[tuple[str, ...]] | None = None,
    ) -> None:
        self.registry = registry
        self.finder = Finder(registry, frozenset(allowed or ()))
        self.pickle_fallback = pickle_fallback

    def encode(self, value: Any, intern: Intern | None = None) -> bytes:
        """See `Codec.encode`. Scalars and messages of plain values, which are most, go at once."""
        kind = type(value)
        rule = self.registry.rules.get(kind)
        try:
            if kind in _SCALARS and (rule is None or kind is int):
                return _AT_ONCE.pack(value)
            if rule is not None and rule.tag is _KNOWN:
                payload = rule.encode(value, _AT_ONCE)
                if payload is not None:
                    return _KNOWN_OBJECT + payload
        except TypeError:  # (`suppress` would take as long as a scalar)
            pass
        return Encoder(self.registry, self.pickle_fallback, intern).whole(value)

    def decode(self, data: bytes, resolve: Resolve | None = None) -> Any:
        """See `Codec.decode`."""
        return Decoder(self.finder, self.pickle_fallback, resolve).whole(data)

    def decode_many(self, items: Sequence[bytes], resolve: Resolve | None = None) -> list[Any]:
        """See `Codec.decode_many`."""
        return Decoder(self.finder, self.pickle_fallback, resolve).many(items)

    def divides(self, value: Any) -> bool:  # noqa: ARG002 - anything comes back exactly
        """See `Codec.divides`."""
        return True

    def with_allowlist(self, extra: Collection[tuple[str, ...]]) -> NativeCodec:
        """See `Codec.with_allowlist`."""
        finder = self.finder.extended(extra)
        return NativeCodec(finder.registry, self.pickle_fallback, finder.allowed)
