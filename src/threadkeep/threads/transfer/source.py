"""The interface to readers of LangGraph's stores, their records and their payloads.

A reader never changes or migrates its store. A value is read as LangGraph would return it, or
raises an error.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from threadkeep._core.codec import Codec, NativeCodec
from threadkeep._core.codec.format import OWN, describe
from threadkeep._core.codec.langgraph_payloads import Shared, decode_langgraph
from threadkeep.errors import (
    CorruptionError,
    InvalidArgumentError,
    NotLangGraphError,
    OpenError,
    ThreadkeepError,
    WrongKeyError,
)
from threadkeep.threads.transfer.whole_thread import CheckpointKey

KEY_SIZES = (16, 24, 32)
"""Sizes of AES keys, in bytes."""

_KEY_HINT = "Use the key of LangGraph's EncryptedSerializer: adopt(..., key=...)."


class SourceWrite(NamedTuple):
    """A pending write, with its index in its task."""

    task_id: str
    task_path: str
    idx: int
    channel: str
    value: Any


@dataclass(frozen=True, slots=True)
class SourceCheckpoint:
    """A checkpoint as LangGraph's own saver returns it; `size` estimates the bytes read."""

    ns: str
    id: str
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: list[SourceWrite] = field(default_factory=list)
    size: int = 0


class Source:
    """A store of LangGraph's, for one reading thread at a time. Calls may block."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads

    def threads(self) -> dict[str, int]:
        """Count the checkpoints of each thread, sorted by id."""
        raise NotImplementedError

    def parents(self, thread: str) -> dict[CheckpointKey, str | None]:
        """Return the parent of each checkpoint of a thread, without reading values."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin to read one consistent state."""

    def end(self) -> None:
        """End the read that `begin` began. Idempotent."""

    def checkpoints(self, thread: str) -> Generator[SourceCheckpoint, None, None]:
        """Yield a thread's checkpoints, sorted by namespace and id.

        Raises:
            UnknownTypeError, CorruptionError, WrongKeyError: a value cannot be read; the
                error names the checkpoint.
            OpenError, BackendError: the store failed.
        """
        raise NotImplementedError

    def saver(self) -> BaseCheckpointSaver[Any]:
        """Return LangGraph's own saver for the same state.

        Raises:
            OpenError: its library is not installed.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release everything. Idempotent."""


# -- payloads --------------------------------------------------------------------------


class Payloads:
    """Decoder of payloads: a type and bytes.

    Raises:
        InvalidArgumentError: the key has an invalid length.
        OpenError: a key is given, and pycryptodome is not installed.
    """

    def __init__(
        self, codec: Codec, serde: SerializerProtocol | None, key: str | bytes | None
    ) -> None:
        native = codec if isinstance(codec, NativeCodec) else NativeCodec()
        if key is not None:
            serde = _with_key(key, native.pickle_fallback, serde)
        inner = serde
        self._cipher: CipherProtocol | None = None
        if isinstance(serde, EncryptedSerializer):
            self._cipher, inner = serde.cipher, serde.serde
        is_own = inner is None or type(inner) is JsonPlusSerializer
        if is_own and inner is not None and getattr(inner, "pickle_fallback", False):
            native = NativeCodec(native.registry, True, native.finder.allowed)  # noqa: FBT003 - by position there
        self._codec = native
        self._other = None if is_own else inner
        self._shared = Shared()
        self.serde = serde or JsonPlusSerializer(pickle_fallback=native.pickle_fallback)

    def value(self, kind: str, data: bytes | None) -> Any:
        """Read a value. It may share objects with others, and must not be changed.

        Raises:
            UnknownTypeError: the value names a class that is not allowed, or its kind is unknown.
            CorruptionError: the value is damaged.
            WrongKeyError: the value is encrypted, and the key is missing or wrong.
        """
        data = b"" if data is None else data
        kind, _, cipher = str(kind).partition("+")
        if cipher:
            data = self._decrypted(cipher, data)
        if self._other is None:
            return decode_langgraph(kind, data, self._codec, self._shared)
        try:
            return self._other.loads_typed((kind, data))
        except OWN:
            raise
        except Exception as error:
            raise CorruptionError(
                f"{type(self._other).__name__} cannot read the value: {describe(error)}."
            ) from error

    def metadata(self, text: str | bytes | None) -> dict[str, Any]:
        """Read metadata stored as JSON."""
        if text is None:
            return {}
        try:
            return cast("dict[str, Any]", json.loads(text))
        except ValueError as error:
            raise CorruptionError("The metadata of a checkpoint is not valid JSON.") from error

    def _decrypted(self, cipher: str, data: bytes) -> bytes:
        if self._cipher is None:
            raise WrongKeyError(hint=_KEY_HINT)
        try:
            return self._cipher.decrypt(cipher, data)
        except Exception as error:
            raise WrongKeyError(
                f"The value cannot be decrypted ({cipher}): {describe(error)}.", hint=_KEY_HINT
            ) from error


def _with_key(
    key: object,
    pickle_fallback: bool,  # noqa: FBT001 - as the codec has it
    serde: SerializerProtocol | None,
) -> EncryptedSerializer:
    data = key.encode() if isinstance(key, str) else key
    if not isinstance(data, bytes) or len(data) not in KEY_SIZES:
        raise InvalidArgumentError(
            "Invalid key.", hint="Use the value of LANGGRAPH_AES_KEY: 16, 24 or 32 bytes."
        )
    inner = serde or JsonPlusSerializer(pickle_fallback=pickle_fallback)
    with needs("pycryptodome", "read encrypted values"):
        return EncryptedSerializer.from_pycryptodome_aes(inner, key=data)


# -- errors ----------------------------------------------------------------------------


@contextmanager
def needs(package: str, purpose: str) -> Iterator[None]:
    """Raise OpenError for an import that fails in the block."""
    try:
        yield
    except ImportError as error:
        raise OpenError(
            f"{package} is needed to {purpose}.", hint=f"pip install {package}"
        ) from error


def own_store(what: str) -> NotLangGraphError:
    """Return the error for a source that is threadkeep's own."""
    return NotLangGraphError(
        f"{what} is a threadkeep store already.",
        hint="Open it with threadkeep, or copy threads: export_bundle() and import_bundle().",
    )


@contextmanager
def naming(thread: str, ns: str, checkpoint: str) -> Iterator[None]:
    """Add the thread, namespace and checkpoint to errors."""
    try:
        yield
    except ThreadkeepError as exc:
        exc.at(thread=thread, namespace=ns or None, checkpoint=checkpoint)
        raise
