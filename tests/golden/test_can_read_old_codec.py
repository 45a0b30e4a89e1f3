"""What earlier releases wrote is read, and this release writes the same bytes."""

from __future__ import annotations

import os
from pathlib import Path

import make_codec_golden
import pytest
from codec_golden_values import FILES

from threadkeep.codec import NativeCodec, unpack

CODEC = NativeCodec()
STORED = sorted(path.stem for path in make_codec_golden.FOLDER.glob("*.bin"))


@pytest.mark.parametrize("name", STORED)
def test_can_read_old(name) -> None:
    if name == "v1-posix-paths" and os.name == "nt":
        pytest.skip("such paths cannot exist on this system")
    stored = unpack((make_codec_golden.FOLDER / f"{name}.bin").read_bytes())
    values = CODEC.decode_many(stored)
    if name == "v1-likenesses":  # what was stored was like the value
        assert values == [repr(FILES[name][0]), dict(FILES[name][1])]
    else:
        assert [type(value) for value in values] == [type(value) for value in FILES[name]]
        if name != "v1-views":  # whose `repr` is an address
            assert repr(values) == repr(FILES[name])
        # The bytes say exactly what a value is: equal bytes are equal values, types included.
        assert [CODEC.encode(value) for value in values] == stored
    assert [CODEC.encode(value) for value in FILES[name]] == stored


@pytest.mark.parametrize("name", [name for name in STORED if not name.endswith("-compressed")])
def test_frames_are_the_same_bytes_too(name) -> None:
    stored = (make_codec_golden.FOLDER / f"{name}.bin").read_bytes()
    assert make_codec_golden.encoded(name) == stored


def test_every_file_is_there_and_known() -> None:
    assert set(STORED) == FILES.keys()


def test_the_generator_leaves_files_alone(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(make_codec_golden, "FOLDER", tmp_path)
    kept = Path(tmp_path / "v1-plain.bin")
    kept.write_bytes(b"as it was")
    make_codec_golden.main()
    assert kept.read_bytes() == b"as it was"
    assert "v1-plain.bin exists: left alone" in capsys.readouterr().out
    assert len(list(tmp_path.iterdir())) == len(FILES)
