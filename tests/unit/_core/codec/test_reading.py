"""Frames and messages that are read by the compiled module: the same results as in Python."""

import gc
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from threadkeep._core.codec import NativeCodec, frame, langchain_types
from threadkeep._core.codec.frame import Compression, pack, portable_split, split, unpack
from threadkeep._core.codec.langchain_types import FIELD_CODECS, build, portable_build
from threadkeep.errors import CorruptionError

compiled = pytest.mark.skipif(split is portable_split, reason="it could not be compiled")
ELEMENTS = st.lists(st.binary(max_size=300), min_size=1, max_size=20)
NO_COMPRESSION = Compression(level=None)


def read(data: bytes, count: int | None, way: Any, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(frame, "split", way)
    try:
        return unpack(data, count)
    except CorruptionError as error:
        return str(error)
    finally:
        monkeypatch.undo()


@given(ELEMENTS, st.sampled_from((0, 1, 2, -1, None)), st.data())
def test_frames_are_read_alike(
    elements: list[bytes], more: int | None, data: st.DataObject
) -> None:
    """Also those with wrong counts, and those with changed bytes."""
    stored = bytearray(pack(elements, NO_COMPRESSION))
    if data.draw(st.booleans(), "change a byte"):
        stored[data.draw(st.integers(0, len(stored) - 1))] ^= data.draw(st.integers(1, 255))
    stored = stored[: len(stored) - data.draw(st.sampled_from((0, 0, 0, 1, 9)), "cut off")]
    count = None if more is None else len(elements) + more
    with pytest.MonkeyPatch.context() as patch:
        found = read(bytes(stored), count, split, patch)
        assert found == read(bytes(stored), count, portable_split, patch)
    if more == 0 and bytes(stored) == pack(elements, NO_COMPRESSION):
        assert found == elements


@compiled
@pytest.mark.parametrize("elements", [[b""], [b"x"], [b"a", b""], [b"a" * 300] * 3, [b""] * 200])
def test_common_frames_take_no_closer_look(elements: list[bytes]) -> None:
    assert split(pack(elements, NO_COMPRESSION), len(elements)) == elements


@pytest.mark.parametrize(
    "given", [(b"", 1), (b"\xb7\x10", 1), (bytes(9), 1), (b"\xb7\x10" * 9, 2**80)]
)
def test_what_is_no_frame_is_left_to_python(given: tuple[bytes, int]) -> None:
    assert split(*given) is None


MODELS = [
    HumanMessage("hello", id="1"),
    AIMessage([{"type": "text", "text": "a"}], name="b", response_metadata={"model": "m"}),
    ToolMessage("found", tool_call_id="t", status="error"),
    Document("text", metadata={"page": 1}),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_models_are_built_alike(model: Any) -> None:
    codec = NativeCodec()
    back = codec.decode(codec.encode(model))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(langchain_types, "build", portable_build)
        same = codec.decode(codec.encode(model))
    for name in (
        "__dict__",
        "__pydantic_fields_set__",
        "__pydantic_extra__",
        "__pydantic_private__",
    ):
        assert getattr(back, name) == getattr(same, name) == getattr(model, name)
    assert gc.is_tracked(back)
    back.metadata = {} if isinstance(back, Document) else None
    assert getattr(same, "metadata", None) == getattr(model, "metadata", None)


@compiled
def test_wrong_arguments_are_refused() -> None:
    shape = FIELD_CODECS[1].shape(0)
    for wrong in ((), (1, shape, [], 0, set(), True), (HumanMessage, (1,) * 6, [], 0, set(), True)):
        with pytest.raises(TypeError):
            build(*wrong)
    with pytest.raises(ValueError, match="one value"):
        build(HumanMessage, shape, [1], 0, frozenset(), True)


@compiled
def test_nothing_is_kept() -> None:
    shape, value = FIELD_CODECS[1].shape(1), ["text"]
    before = sys.getrefcount(value)
    for _ in range(10):
        build(HumanMessage, shape, [0, 0, value], 2, shape.fields_set, True)
    assert sys.getrefcount(value) == before
