"""Decoder: bytes to values. Nothing that the data names is imported or called."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import ormsgpack

from threadkeep._core.codec import (
    data_classes,
    introspection,
    langchain_types,
    numpy_pandas,
    subclasses,
    values,
)
from threadkeep._core.codec.format import (
    MAX_DEPTH,
    OBJECT,
    OWN,
    Decode,
    Resolve,
    Tag,
    describe,
    malformed,
    newer,
)
from threadkeep._core.codec.registry import Finder
from threadkeep.errors import CorruptionError, UnknownTypeError

_unpackb = ormsgpack.unpackb
_OBJECT = bytes((OBJECT,))
_KNOWN_OBJECT = bytes((OBJECT, Tag.KNOWN))


class Decoder:
    """State of one call of `decode` or `decode_many`."""

    __slots__ = ("classes", "depth", "failure", "finder", "levels", "pickle_fallback", "resolve")

    decoders: ClassVar[Mapping[int, Decode]] = {}
    options: ClassVar[int | None] = None

    def __init__(
        self,
        finder: Finder,
        pickle_fallback: bool = False,  # noqa: FBT001, FBT002 - the name says it where it is used
        resolve: Resolve | None = None,
    ) -> None:
        self.finder = finder
        self.pickle_fallback = pickle_fallback
        self.resolve = resolve
        self.depth = 0  # of objects within objects
        self.levels = 0  # of lists and dicts, from `introspection.SHALLOW` objects on
        self.failure: BaseException | None = None
        self.classes: dict[tuple[str | int, Tag], type] = {}

    def decode(self, data: bytes) -> Any:
        """Return the value whose bytes these are."""
        if data[:2] == _KNOWN_OBJECT:  # most values: the short way, a tenth faster
            try:
                return langchain_types.decode(data[2:], self)
            except OWN:
                raise
            except Exception as error:
                raise malformed(error) from error
        if data[:1] == _OBJECT:
            return self.extension(data[1] if len(data) > 1 else -1, data[2:])
        return self.unpack(data)

    def decode_many(self, items: Iterable[bytes]) -> list[Any]:
        """Return the values of several pieces of bytes."""
        hook, options, codecs = self.on_extension, self.options, langchain_types.FIELD_CODECS
        found = []
        for data in items:
            if data[:2] == _KNOWN_OBJECT:
                try:
                    parts = _unpackb(data[2:], ext_hook=hook, option=options)
                    found.append(codecs[parts[0]].decode(parts[1], parts[2:]))
                except Exception:  # noqa: BLE001 - `decode` raises the right error
                    afresh = type(self)(self.finder, self.pickle_fallback, self.resolve)
                    found.append(afresh.decode(data))
            else:
                found.append(self.decode(data))
        return found

    def unpack(self, data: bytes) -> Any:
        """Return the value of a piece of msgpack."""
        if self.depth > introspection.SHALLOW:
            self.levels += introspection.depth_of_bytes(data)
            if self.levels > 2 * introspection.LIMIT:  # the measure may be too high by as much
                raise CorruptionError("The stored value is nested too deeply.")
        try:
            return _unpackb(data, ext_hook=self.on_extension, option=self.options)
        except ValueError as error:
            refusal = error
        if self.failure is not None:
            raise self.failure
        raise CorruptionError(f"The stored value is not whole: {refusal}.") from refusal

    def unpickle(self, data: bytes) -> Any:
        """Load a pickle if `pickle_fallback` allows it."""
        if not self.pickle_fallback:
            raise UnknownTypeError(
                "The stored value is a pickle, and loading a pickle runs the code that it names.",
                hint="If you trust the data, open the saver with pickle_fallback=True.",
            )
        try:
            return pickle.loads(data)  # noqa: S301 - only where the program asked for it by name
        except OWN:
            raise
        except (ImportError, AttributeError) as error:
            raise UnknownTypeError(
                f"A stored pickle names what this program does not have: {describe(error)}.",
                hint="Bring the class back under its old name, if only as an alias.",
            ) from error
        except Exception as error:
            raise CorruptionError(
                f"A stored pickle cannot be loaded: {describe(error)}."
            ) from error

    def on_extension(self, tag: int, data: bytes) -> Any:
        """Callback of ormsgpack for extensions."""
        try:
            return self.extension(tag, data)
        except BaseException as error:
            self.failure = error  # ormsgpack replaces it by one of its own
            raise

    def extension(self, tag: int, data: bytes) -> Any:
        """Return the object of a tag and a payload."""
        levels = self.levels
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise CorruptionError("The stored value is nested too deeply.")
        decode = self.decoders.get(tag)
        if decode is None:
            if tag == Tag.SERDE:
                raise CorruptionError(
                    "The value was written by a serializer, with serde=.",
                    hint="Open the store with the same serde= again.",
                )
            if not 0 <= tag < Tag.SERDE:
                raise CorruptionError(f"There is no value of kind {tag}.")
            raise newer(f"The kind {tag} of the stored value is unknown to this release.")
        try:
            value = decode(data, self)
        except OWN:
            raise
        except Exception as error:
            raise malformed(error) from error
        self.depth -= 1
        self.levels = levels
        return value

    def find(self, reference: str | int, tag: Tag) -> type:
        """Return the class that data names, if it is allowed and of the stored kind."""
        try:
            return self.classes[reference, tag]
        except KeyError:
            cls = self.classes[reference, tag] = self.finder.find(reference, tag)
            return cls


def _read_reference(data: bytes, decoder: Decoder) -> Any:
    log, position = decoder.unpack(data)
    resolve = decoder.resolve
    if resolve is None:
        raise CorruptionError("The value refers to an element of a log where none can be.")
    return resolve(log, position)


def _read_foreign(data: bytes, decoder: Decoder) -> Any:
    name, value = decoder.unpack(data)
    foreign = decoder.finder.registry.foreign.get(name)
    if foreign is None:
        raise UnknownTypeError(
            f"The stored value is a {name.replace(':', '.')}, whose decode= is not registered.",
            hint=f"threadkeep.register({name.partition(':')[2]}, encode=..., decode=...)",
        )
    try:
        return foreign.decode(value)
    except OWN:
        raise
    except Exception as error:
        raise CorruptionError(
            f"The decode= registered for {name.replace(':', '.')} cannot read the stored value: "
            f"{describe(error)}.",
            hint="It must stay able to read all results of its encode=.",
        ) from error


Decoder.decoders = {
    **values.DECODERS,
    Tag.REFERENCE: _read_reference,
    Tag.KNOWN: langchain_types.decode,
    Tag.PYDANTIC: data_classes.decode_model,
    Tag.PYDANTIC_V1: data_classes.decode_model_v1,
    Tag.DATACLASS: data_classes.decode_record(Tag.DATACLASS),
    Tag.ATTRS: data_classes.decode_record(Tag.ATTRS),
    Tag.PLAIN: data_classes.decode_record(Tag.PLAIN),
    Tag.NAMEDTUPLE: data_classes.decode_namedtuple,
    Tag.ENUM: data_classes.decode_enum(Tag.ENUM),
    Tag.FLAG: data_classes.decode_enum(Tag.FLAG),
    Tag.SUBCLASS: subclasses.decode_subclass,
    Tag.EXCEPTION: subclasses.decode_exception,
    Tag.FOREIGN: _read_foreign,
    Tag.SUBSTITUTE: lambda data, decoder: decoder.unpack(data),
    Tag.PICKLE: lambda data, decoder: decoder.unpickle(data),
    **numpy_pandas.DECODERS,
}
