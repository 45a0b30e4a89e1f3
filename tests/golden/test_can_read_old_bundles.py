"""Bundles of earlier releases are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_kit import config, memory_saver

from threadkeep.engine.model import CheckpointRow, Segment, WriteRow
from threadkeep.transfer.bundle_format import read_bundle
from threadkeep.transfer.bundling import WholeThread

FOLDER = Path(__file__).parent / "bundles"
ROWS = [
    WholeThread(
        "thread \0 é 😀",
        1_763_000_000_000_000,
        (Segment(1, 0, 3, b"\0\xff data"), Segment(2**63 - 1, 5, 1, b"")),
        (
            CheckpointRow("", "a", None, 0, 0, 0, 17, "{}", None, 1, 0, b"manifest"),
            CheckpointRow("ns", "b", "a", 2**31, 2, 7, "no time", "{}", b"exact", 1, 2, b""),
        ),
        (
            WriteRow("", "a", 0, 0, "task", "~path", b"body", 1),
            WriteRow("", "a", 3, 1, "", "", b"", 2),
        ),
    ),
    WholeThread("", 5, (), (), ()),
]


def test_rows_of_version_1() -> None:
    with (FOLDER / "v1-rows.tkb").open("rb") as file:
        assert list(read_bundle(file)) == ROWS


@pytest.mark.parametrize("name", ["v1-thread.tkb", "v2-thread.tkb"])
def test_a_thread_is_imported(name: str) -> None:
    saver = memory_saver()
    assert saver.threads.import_bundle(FOLDER / name).put == ("real",)
    assert [found.checkpoint["channel_values"]["n"] for found in saver.list(None)] == [
        *(4, 3, 2, 1, 0)
    ]
    head = saver.get_tuple(config("real"))
    assert head.checkpoint["channel_values"]["m"] == [f"{i} {'x' * 90}" for i in range(5)]
    assert head.pending_writes == [("task", "n", 4), ("task", "m", ["w" * 100])]
    assert saver.check().ok


def test_digests_are_the_same_in_every_release() -> None:
    """What is noted in a bundle must be found again by whoever reads it."""
    with (FOLDER / "v2-thread.tkb").open("rb") as file:
        (noted,) = read_bundle(file)
    assert noted.digests is not None
    assert [digest.hex()[:8] for digest in noted.digests] == DIGESTS


DIGESTS = ["272d54b8", "e6431ae5", "0769fb26", "8f7fb138", "6e525271"]
