"""The payloads of LangGraph's stores: a type and bytes, to values.

Only the choice of who reads a payload lives here: our own reader of LangGraph's formats, a
cipher, or the serializer that the program gave its saver. Invariant: a value is what LangGraph
would give, or an error says why not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from threadkeep.codec import Codec, NativeCodec
from threadkeep.codec.format import (
    OWN,
    describe,
)
from threadkeep.codec.langgraph_payloads import (
    Shared,
    decode_langgraph,
)
from threadkeep.errors import (
    CorruptionError,
    InvalidArgumentError,
    OpenError,
    ThreadkeepError,
    WrongKeyError,
)

KEY_SIZES = (16, 24, 32)
"""Of AES, in bytes."""

_GIVE_KEY = "Give the key that LangGraph's EncryptedSerializer had: adopt(..., key=...)."


class Payloads:
    """Reads payloads.

    Args:
        codec: whose classes may be loaded.
        serde: the serializer of the saver that is read; None for LangGraph's own.
        key: of AES, as LangGraph takes it (LANGGRAPH_AES_KEY), 16, 24 or 32 bytes.

    Raises:
        InvalidArgumentError: the key has another length.
        OpenError: a key was given, and pycryptodome is not installed.
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
        """The value of a payload. It may hold objects of others, and must not be changed.

        Raises:
            UnknownTypeError: it names a class that is not allowed, or is of an unknown kind.
            CorruptionError: it is damaged.
            WrongKeyError: it is encrypted, and the key is missing or another one.
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
        """Metadata that is stored as JSON."""
        if text is None:
            return {}
        try:
            return cast("dict[str, Any]", json.loads(text))
        except ValueError as error:
            raise CorruptionError("A checkpoint's metadata is no JSON.") from error

    def _decrypted(self, cipher: str, data: bytes) -> bytes:
        if self._cipher is None:
            raise WrongKeyError(hint=_GIVE_KEY)
        try:
            return self._cipher.decrypt(cipher, data)
        except Exception as error:
            raise WrongKeyError(
                f"The value cannot be decrypted ({cipher}): {describe(error)}.", hint=_GIVE_KEY
            ) from error


def _with_key(
    key: object,
    pickle_fallback: bool,  # noqa: FBT001 - as the codec has it
    serde: SerializerProtocol | None,
) -> EncryptedSerializer:
    data = key.encode() if isinstance(key, str) else key
    if not isinstance(data, bytes) or len(data) not in KEY_SIZES:
        raise InvalidArgumentError(
            "The key must be of 16, 24 or 32 bytes.", hint="Give what LANGGRAPH_AES_KEY held."
        )
    inner = serde or JsonPlusSerializer(pickle_fallback=pickle_fallback)
    try:
        return EncryptedSerializer.from_pycryptodome_aes(inner, key=data)
    except ImportError as error:
        raise OpenError(
            "To read encrypted values needs pycryptodome.", hint="pip install pycryptodome"
        ) from error


@contextmanager
def named(thread: str, ns: str, checkpoint: str) -> Iterator[None]:
    """Name the checkpoint in whatever goes wrong with it."""
    try:
        yield
    except ThreadkeepError as exc:
        exc.at(thread=thread, namespace=ns or None, checkpoint=checkpoint)
        raise
