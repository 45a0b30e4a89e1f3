"""Readers of LangGraph's stores: their records, what they share, and that of InMemorySaver.

A source is never changed, not even migrated. A value is what LangGraph would return, or an error
says why not.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from langgraph.checkpoint.base import BaseCheckpointSaver, writes_sort_key
from langgraph.checkpoint.memory import InMemorySaver
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

_KEY_HINT = "Use the key that LangGraph's EncryptedSerializer had: adopt(..., key=...)."


class SourceWrite(NamedTuple):
    """Pending write, with its index in its task."""

    task_id: str
    task_path: str
    idx: int
    channel: str
    value: Any


@dataclass(frozen=True, slots=True)
class SourceCheckpoint:
    """Checkpoint as LangGraph's own saver returns it; `size` is about its bytes as read."""

    ns: str
    id: str
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: list[SourceWrite] = field(default_factory=list)
    size: int = 0


class Source:
    """Store of LangGraph's, for reading by one thread at a time; calls may block."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads

    def threads(self) -> dict[str, int]:
        """Count the checkpoints of each thread, by its id, in order."""
        raise NotImplementedError

    def parents(self, thread: str) -> dict[CheckpointKey, str | None]:
        """Return the parent of each checkpoint of a thread; reads no values."""
        raise NotImplementedError

    def begin(self) -> None:
        """Read one state from now on."""

    def end(self) -> None:
        """End what `begin` began, if anything."""

    def checkpoints(self, thread: str) -> Generator[SourceCheckpoint, None, None]:
        """Yield a thread's checkpoints, by namespace and id, in ascending order.

        Raises:
            UnknownTypeError, CorruptionError, WrongKeyError: a value cannot be read; the
                error names the checkpoint.
            OpenError, BackendError: the store failed.
        """
        raise NotImplementedError

    def saver(self) -> BaseCheckpointSaver[Any]:
        """Return LangGraph's own saver, which reads the same state.

        Raises:
            OpenError: its library is not installed.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release everything. Idempotent."""


# -- payloads --------------------------------------------------------------------------


class Payloads:
    """Reader of payloads: a type and bytes, to values.

    Raises:
        InvalidArgumentError: the key has another length.
        OpenError: there is a key, and pycryptodome is not installed.
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
            UnknownTypeError: it names a class that is not allowed, or is of an unknown kind.
            CorruptionError: it is damaged.
            WrongKeyError: it is encrypted, and the key is missing or wrong.
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
        """Read metadata that is stored as JSON."""
        if text is None:
            return {}
        try:
            return cast("dict[str, Any]", json.loads(text))
        except ValueError as error:
            raise CorruptionError("A checkpoint's metadata is no JSON.") from error

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
    """Raise OpenError if an import in the block fails."""
    try:
        yield
    except ImportError as error:
        raise OpenError(
            f"{package} is needed to {purpose}.", hint=f"pip install {package}"
        ) from error


def own_store(what: str) -> NotLangGraphError:
    """Return the error for a source that is threadkeep's own."""
    return NotLangGraphError(
        f"{what} is a store of threadkeep already.",
        hint="Open it as it is, or copy threads: export_bundle() and import_bundle().",
    )


@contextmanager
def naming(thread: str, ns: str, checkpoint: str) -> Iterator[None]:
    """Add a checkpoint's place to errors."""
    try:
        yield
    except ThreadkeepError as exc:
        exc.at(thread=thread, namespace=ns or None, checkpoint=checkpoint)
        raise


# -- InMemorySaver ---------------------------------------------------------------------

_EMPTY = "empty"


class MemorySource(Source):
    """Reader of the three public dicts: methods do not return the paths of the writes' tasks.

    What is read of a checkpoint is never changed there, only replaced.
    """

    def __init__(self, saver: InMemorySaver, payloads: Payloads) -> None:
        super().__init__(payloads)
        self._saver = saver
        self._keys: dict[str, Any] = {}  # a thread's id may be no text there

    def threads(self) -> dict[str, int]:
        """See `Source.threads`."""
        self._keys = {str(key): key for key in list(self._saver.storage)}
        counts = {name: self._count(key) for name, key in sorted(self._keys.items())}
        return {name: count for name, count in counts.items() if count}

    def _count(self, key: Any) -> int:
        return sum(map(len, list(self._saver.storage.get(key, {}).values())))

    def parents(self, thread: str) -> dict[CheckpointKey, str | None]:
        """See `Source.parents`."""
        found = dict(self._saver.storage[self._keys.get(thread, thread)])
        return {
            (ns, checkpoint): parent or None
            for ns, rows in found.items()
            for checkpoint, (_, _, parent) in list(rows.items())
        }

    def checkpoints(self, thread: str) -> Generator[SourceCheckpoint, None, None]:
        """See `Source.checkpoints`."""
        key = self._keys.get(thread, thread)
        namespaces = {ns: dict(found) for ns, found in dict(self._saver.storage[key]).items()}
        for ns in sorted(namespaces):
            for checkpoint, row in sorted(namespaces[ns].items()):
                with naming(thread, ns, checkpoint):
                    found = self._found(key, ns, checkpoint, *row)
                yield found

    def _found(
        self, key: Any, ns: str, checkpoint: str, stored: Any, metadata: Any, parent: str | None
    ) -> SourceCheckpoint:
        writes, value = self._writes(key, ns, checkpoint), self._payloads.value(*stored)
        blobs = self._blobs(key, ns, value["channel_versions"])
        values = {channel: self._payloads.value(*blob) for channel, blob in blobs.items()}
        size = len(stored[1]) + sum([len(blob[1]) for blob in blobs.values()])
        own = self._payloads.value(*metadata)
        whole = {**value, "channel_values": values}
        return SourceCheckpoint(ns, checkpoint, parent or None, whole, own, writes, size)

    def _blobs(self, key: Any, ns: str, versions: dict[str, Any]) -> dict[str, tuple[str, bytes]]:
        found = {c: self._saver.blobs.get((key, ns, c, version)) for c, version in versions.items()}
        return {c: blob for c, blob in found.items() if blob is not None and blob[0] != _EMPTY}

    def _writes(self, key: Any, ns: str, checkpoint: str) -> list[SourceWrite]:
        rows = dict(self._saver.writes.get((key, ns, checkpoint), {}))
        writes = [
            SourceWrite(task, path, idx, channel, self._payloads.value(*stored))
            for (_, idx), (task, channel, stored, path) in rows.items()
        ]
        return sorted(writes, key=lambda one: writes_sort_key(one.task_path, one.task_id, one.idx))

    def saver(self) -> BaseCheckpointSaver[Any]:
        """See `Source.saver`."""
        return self._saver
