"""A serializer of the program alone decides how values come back."""

import json
import pickle
from typing import Any

import codec_models as m
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from threadkeep._core.codec import NativeCodec, SerdeCodec
from threadkeep.errors import CorruptionError, InvalidArgumentError, UnserializableError


class DumpsOnly:
    def dumps(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def loads(self, data: bytes) -> Any:
        return json.loads(data)


VALUES = [None, b"bytes", bytearray(b"ba"), {"a": [1, "x"]}, [HumanMessage("hi", id="1")]]


def test_langgraph_s_serializer() -> None:
    codec = SerdeCodec(JsonPlusSerializer())
    for value in VALUES:
        assert codec.decode(codec.encode(value)) == value
    assert codec.decode_many([codec.encode(value) for value in VALUES]) == VALUES


def test_an_unpack_hook_is_used() -> None:
    codec = SerdeCodec(JsonPlusSerializer(__unpack_ext_hook__=lambda code, data: ("hook", code)))
    assert codec.decode(codec.encode({"a": {1, 2}})) == {"a": ("hook", 0)}


def test_dumps_and_loads_are_enough() -> None:
    codec = SerdeCodec(DumpsOnly())
    assert codec.decode(codec.encode({"a": [1]})) == {"a": [1]}
    module = SerdeCodec(pickle)
    assert module.decode(module.encode({1: (2,)})) == {1: (2,)}


def test_encryption_of_langgraph() -> None:
    codec = SerdeCodec(EncryptedSerializer.from_pycryptodome_aes(key=b"k" * 16))
    data = codec.encode(VALUES)
    assert codec.decode(data) == VALUES
    assert b"bytes" not in data
    with pytest.raises(CorruptionError, match="EncryptedSerializer"):
        codec.decode(data[:-1] + bytes((data[-1] ^ 1,)))


def test_an_allowlist_reaches_the_serializer_also_inside_encryption() -> None:
    plain = JsonPlusSerializer(allowed_msgpack_modules=None)
    for serde in (plain, EncryptedSerializer.from_pycryptodome_aes(plain, key=b"k" * 16)):
        codec = SerdeCodec(serde)
        data = codec.encode(m.Task("t"))
        assert codec.decode(data) == {"name": "t", "tags": []}
        assert codec.with_allowlist([("codec_models", "Task")]).decode(data) == m.Task("t")
        assert codec.decode(data) == {"name": "t", "tags": []}
    other = SerdeCodec(DumpsOnly())
    assert other.with_allowlist([("a", "b")]) is other


def test_what_is_no_serializer_is_refused() -> None:
    for serde in (None, object(), "json", 3):
        with pytest.raises(InvalidArgumentError, match="Invalid serde"):
            SerdeCodec(serde)


def test_values_and_bytes_that_it_cannot_handle_are_typed_errors() -> None:
    codec = SerdeCodec(DumpsOnly())
    with pytest.raises(UnserializableError, match="set"):
        codec.encode({1})
    data = codec.encode([1])
    with pytest.raises(CorruptionError):
        codec.decode(data[:-1])


def test_the_two_codecs_tell_each_other_s_data_apart() -> None:
    native, foreign = NativeCodec(), SerdeCodec(DumpsOnly())
    with pytest.raises(CorruptionError, match="serde="):
        native.decode(foreign.encode([1]))
    for value in ([1], HumanMessage("hi"), "", b""):
        with pytest.raises(CorruptionError, match="was not written by"):
            foreign.decode(native.encode(value))
    for data in (b"", b"\xc1", b"\xc1\x7f", b"\xc1\x7f\x09abc"):
        with pytest.raises(CorruptionError):
            foreign.decode(data)


def test_a_type_tag_that_cannot_be_stored_is_refused() -> None:
    class Long(DumpsOnly):
        def dumps_typed(self, value: Any) -> tuple[str, bytes]:
            return "t" * 300, b""

        def loads_typed(self, data: tuple[str, bytes]) -> Any: ...

    with pytest.raises(UnserializableError, match="too long"):
        SerdeCodec(Long()).encode(1)


@pytest.mark.parametrize("given", [("t", "text"), (b"t", b""), (None, b""), b"bytes", None, ("t",)])
def test_what_is_not_a_tag_and_bytes_is_refused(given: Any) -> None:
    class Odd(DumpsOnly):
        def dumps_typed(self, value: Any) -> Any:
            return given

        def loads_typed(self, data: tuple[str, bytes]) -> Any: ...

    with pytest.raises(UnserializableError, match="Odd cannot store a int"):
        SerdeCodec(Odd()).encode(1)


def test_whatever_a_serializer_raises_is_a_typed_error() -> None:
    class Failing(DumpsOnly):
        def dumps(self, value: Any) -> bytes:
            raise RuntimeError("own error")

        def loads(self, data: bytes) -> Any:
            raise OSError("own error")

    with pytest.raises(UnserializableError, match="own error") as caught:
        SerdeCodec(Failing()).encode(1)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(CorruptionError, match="own error"):
        SerdeCodec(Failing()).decode(SerdeCodec(DumpsOnly()).encode(1))
