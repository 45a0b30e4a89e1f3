"""The codec reads its golden files and writes the same bytes."""

from __future__ import annotations

import os

import make_golden
import pytest
from codec_golden_values import FILES, SHAPED, in_shapes

from threadkeep._core.codec import NativeCodec, unpack
from threadkeep.errors import NewerShapeError

CODEC = NativeCodec()


def stored(name: str) -> bytes:
    return (make_golden.FOLDER / "codec" / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_values_are_read_and_written(name) -> None:
    if name == "v1-posix-paths" and os.name == "nt":
        pytest.skip("such paths cannot exist on this system")
    items = unpack(stored(name))
    values = CODEC.decode_many(items)
    if name == "v1-substitutes":
        assert values == [repr(FILES[name][0]), dict(FILES[name][1])]
    else:
        assert [type(value) for value in values] == [type(value) for value in FILES[name]]
        if name != "v1-views":  # whose `repr` is an address
            assert repr(values) == repr(FILES[name])
        # The encoding is exact: equal bytes are equal values, types included.
        assert [CODEC.encode(value) for value in values] == items
    assert [CODEC.encode(value) for value in FILES[name]] == items


def test_shapes_are_read_and_written() -> None:
    codec, items = in_shapes(), unpack(stored("v1-shapes"))
    assert codec.decode_many(items) == SHAPED
    assert [codec.encode(value) for value in SHAPED] == items
    for item in items:
        with pytest.raises(NewerShapeError):
            CODEC.decode(item)


@pytest.mark.parametrize("name", [name for name in FILES if not name.endswith("-compressed")])
def test_frames_are_the_same_bytes_too(name) -> None:
    assert make_golden.encoded(name) == stored(name)


def test_every_golden_file_has_a_writer() -> None:
    files = [path for path in make_golden.FOLDER.glob("*/v*") if path.is_file()]
    names = {path.relative_to(make_golden.FOLDER).as_posix() for path in files}
    assert names == make_golden.WRITERS.keys()


def test_the_generator_leaves_existing_files_alone(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(make_golden, "FOLDER", tmp_path)
    existing = tmp_path / "codec" / "v1-plain.bin"
    existing.parent.mkdir()
    existing.write_bytes(b"as it was")
    make_golden.main()
    assert existing.read_bytes() == b"as it was"
    assert "v1-plain.bin exists: left alone" in capsys.readouterr().out
    assert all((tmp_path / name).exists() for name in make_golden.WRITERS)
