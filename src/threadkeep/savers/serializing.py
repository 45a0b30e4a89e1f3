"""The serializer of a saver, which you may replace after opening the saver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol, maybe_add_typed_methods

from threadkeep._core.codec import with_serde
from threadkeep._core.codec.codecs import RawCodec

if TYPE_CHECKING:
    from threadkeep._core.engine.context import Engine
    from threadkeep.threads.facade import Threads


class Serializing:
    """A saver with a serializer, shared by its clones and its `threads`."""

    _engine: Engine
    _clones: dict[Any, Any]  # made by `with_allowlist`

    def _begin_serde(self, serde: SerializerProtocol | None) -> None:
        self._serde = maybe_add_typed_methods(serde or BaseCheckpointSaver.serde)
        self._family: WeakSet[Serializing | Threads] = WeakSet([self])

    @property
    def serde(self) -> SerializerProtocol:
        """The serializer. If you assign another one, it stores all values from then on.

        Values already stored by threadkeep's codec stay readable. Assigning an object that is no
        serializer raises `InvalidArgumentError`.
        """
        return self._serde

    @serde.setter
    def serde(self, serde: SerializerProtocol) -> None:
        if serde is self._serde:
            return
        for one in [*self._family]:
            codec = with_serde(one._engine.codec, serde)  # noqa: SLF001 - one of this saver
            one._engine = one._engine._replace(codec=codec)  # noqa: SLF001 - likewise
            if isinstance(one, Serializing):
                one._serde = codec.serde  # noqa: SLF001 - a clone
                one._clones.clear()  # noqa: SLF001 - a clone


def show_raw(saver: Serializing) -> None:
    """Let a saver return objects of unknown classes as `Raw`: to show threads, never to run them.

    Call it before the saver is used. The saver must have no serializer of its own.
    """
    saver._engine = saver._engine._replace(codec=RawCodec())  # noqa: SLF001 - as above
