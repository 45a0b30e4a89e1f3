"""Reading of values whose classes this process does not have, only to show them.

Invariant: no codec stores a `Raw`, so what was read this way cannot come back into a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

from threadkeep._core.codec.codecs import NativeCodec
from threadkeep._core.codec.decoder import Decoder
from threadkeep._core.codec.format import HOMES, Tag, malformed
from threadkeep.errors import UnknownTypeError

CLASS = "__class__"
_NONE: Mapping[str, Any] = {}


class Raw(Mapping[str, Any]):
    """Stored parts of an object of an unknown class, by name; `__class__` is the class's name."""

    __slots__ = ("parts",)

    def __init__(self, name: str, parts: Mapping[str, Any]) -> None:
        self.parts = {CLASS: name, **parts}

    def __getitem__(self, name: str) -> Any:
        return self.parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __hash__(self) -> int:
        return hash(self.parts[CLASS])

    def __repr__(self) -> str:
        return repr(self.parts)


class RawDecoder(Decoder):
    """Decoder that returns a `Raw` for an object of an unknown class."""

    __slots__ = ("unpacked",)

    def unpack(self, data: bytes) -> Any:
        """See `Decoder.unpack`. The parts of an object are unpacked before its class is found."""
        self.unpacked = super().unpack(data)
        return self.unpacked

    def extension(self, tag: int, data: bytes) -> Any:
        """See `Decoder.extension`."""
        before = self.depth, self.levels
        try:
            return super().extension(tag, data)
        except UnknownTypeError:
            self.depth, self.levels = before
            make = _PARTS.get(tag)
            if make is None:  # (a pickle needs its classes, and others may be secrets)
                return Raw(Tag(tag).name.lower(), {"bytes": len(data)})
            reference, *parts = self.unpacked
            name = str(HOMES.get(reference, reference)).replace(":", ".")
            try:
                return Raw(name, make(*parts))
            except Exception as error:
                raise malformed(error) from error


class RawCodec(NativeCodec):
    """Codec of a saver that only shows threads."""

    decoder: ClassVar[type[Decoder]] = RawDecoder


Parts: TypeAlias = Mapping[str, Any]


def _model(fields: Parts, _: Any = None, extra: Parts | None = None, *__: Any) -> Parts:
    return {**fields, **(extra or {})}


def _record(fields: Parts, *_: Any) -> Parts:
    return {**fields}


def _member(member: Any) -> Parts:
    return {"value": member}


def _subclass(_: int, value: Any, own: Parts = _NONE) -> Parts:
    return {"value": value, **own}


def _exception(args: Any = (), own: Parts = _NONE, fields: Parts = _NONE) -> Parts:
    return {"args": args, **own, **fields}


_PARTS: dict[int, Callable[..., Parts]] = {
    Tag.PYDANTIC: _model,
    Tag.PYDANTIC_V1: _model,
    Tag.DATACLASS: _record,
    Tag.ATTRS: _record,
    Tag.PLAIN: _record,
    Tag.NAMEDTUPLE: _record,
    Tag.ENUM: _member,
    Tag.FLAG: _member,
    Tag.FOREIGN: _member,
    Tag.SUBCLASS: _subclass,
    Tag.EXCEPTION: _exception,
}
