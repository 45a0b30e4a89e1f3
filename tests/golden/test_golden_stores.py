"""Bundles and SQLite files of format version 1 are read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from codec_golden_values import ROWS
from kit.engine import Chain, config, memory_saver
from make_golden import FOLDER, RING, renamed

from threadkeep import MemorySaver, SqliteSaver
from threadkeep.errors import NewerShapeError
from threadkeep.threads.transfer.bundle_format import read_bundle


def check_thread(saver: Any) -> None:
    assert [found.checkpoint["channel_values"]["n"] for found in saver.list(None)] == [
        *(4, 3, 2, 1, 0)
    ]
    head = saver.get_tuple(config("real"))
    assert head.checkpoint["channel_values"]["m"] == [f"{i} {'x' * 90}" for i in range(5)]
    assert head.pending_writes == [("task", "n", 4), ("task", "m", ["w" * 100])]
    assert saver.check().ok


def test_rows_of_a_bundle_are_read() -> None:
    with (FOLDER / "bundles" / "v1-rows.tkb").open("rb") as file:
        assert list(read_bundle(file)) == ROWS


def test_a_bundle_is_imported() -> None:
    with memory_saver() as saver:
        assert saver.threads.import_bundle(FOLDER / "bundles" / "v1-thread.tkb").added == ("real",)
        check_thread(saver)


def test_a_bundle_with_channels_of_a_newer_shape_is_imported() -> None:
    file = FOLDER / "bundles" / "v1-shapes.tkb"
    with MemorySaver(migrations=renamed()) as saver:
        saver.threads.import_bundle(file)
        found = saver.get_tuple(config("real"))
        assert found.checkpoint["channel_values"]["number"] == 4
        assert found.pending_writes == [("task", "number", 4), ("task", "m", ["w" * 100])]
        assert saver.check().ok
    with memory_saver() as saver:
        saver.threads.import_bundle(file)
        with pytest.raises(NewerShapeError, match="shape 3 of the channels"):
            saver.get_tuple(config("real"))
        assert saver.check().ok


def test_an_encrypted_bundle_is_imported() -> None:
    with memory_saver(keys=RING) as saver:
        saver.threads.import_bundle(FOLDER / "bundles" / "v1-keys.tkb")
        check_thread(saver)


def test_an_encrypted_sqlite_file_is_read_and_written_to(tmp_path: Path) -> None:
    file = shutil.copy(FOLDER / "sqlite" / "v1-keys.sqlite", tmp_path)
    with SqliteSaver(str(file), keys=RING.rotated()) as saver:
        assert saver.backend.keys._record.value is None  # (not read yet)
        search = saver.threads.search
        for found in (search(metadata={"user": "u1"}), search(metadata={"plan": "p1"})):
            assert [one.id for one in found.threads][-1] == "real"
        assert [one.id for one in search(tags=["urgent"]).threads] == ["real"]
        values = saver.get_tuple(config("fork")).checkpoint["channel_values"]
        assert values == saver.get_tuple(config("real")).checkpoint["channel_values"]
        at = Chain(saver, "real", start=5).follow().put(n=5)
        assert saver.get_tuple(at).checkpoint["channel_values"]["n"] == 5
        assert saver.rotate_keys().changed > 0
        assert saver.check().ok


def test_digests_are_the_same_in_every_release() -> None:
    """A reader of a bundle computes the digests again and compares."""
    with (FOLDER / "bundles" / "v1-thread.tkb").open("rb") as file:
        (thread,) = read_bundle(file)
    assert thread.digests is not None
    assert [digest.hex()[:8] for digest in thread.digests] == DIGESTS


DIGESTS = ["409e145e", "bc498b73", "33283463", "a2000b8e", "ba427faf"]


@pytest.fixture
def database(tmp_path) -> Path:
    return Path(shutil.copy(FOLDER / "sqlite" / "v1.sqlite", tmp_path))


def test_a_sqlite_file_is_read_and_written_to(database) -> None:
    with SqliteSaver.from_conn_string(str(database)) as saver:
        check_thread(saver)
        assert [thread.id for thread in saver.threads.search(status="done")] == ["real"]
        at = Chain(saver, "real", start=5).follow().put(n=5)
        assert saver.get_tuple(at).checkpoint["channel_values"]["n"] == 5
        assert saver.check().ok
