"""Row checksums are the same on every version of Python, and cover every column."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep._core.engine import rows
from threadkeep._core.engine.model import FREE, HIDDEN, CheckpointRow, WriteRow
from threadkeep.errors import CorruptionError

ROW = CheckpointRow("", "1", None, 0, 0, 0, 17, "{}", None, 1, 0, b"")
WRITES = WriteRow("", "1", 0, 0, "task", "~path", b"")


@given(st.binary(max_size=50), st.text(max_size=20))
def test_round_trip(payload, text):
    assert rows.unseal(rows.seal(payload, (text, 1)), (text, 1)) == payload


@given(st.binary(max_size=50), st.data())
def test_a_flipped_bit_is_noticed(payload, data):
    sealed = bytearray(rows.seal(payload, ()))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptionError):
        rows.unseal(bytes(sealed), ())


@pytest.mark.parametrize("sealed", [b"", b"x"])
def test_too_short(sealed):
    with pytest.raises(CorruptionError):
        rows.unseal(sealed, ())


@pytest.mark.parametrize(
    "change",
    [
        {"ns": "a"},
        {"id": "2"},
        {"parent": "0"},
        {"parent": ""},
        {"run": 1},
        {"seen": 1},
        {"flags": FREE},
        {"ts": 18},
        {"ts": "17"},
        {"metadata": '{"a":1}'},
        {"exact": b""},
        {"key_log": 2},
        {"key_pos": 1},
    ],
    ids=str,
)
def test_every_column_of_a_checkpoint_counts(change):
    sealed = rows.seal(b"manifest", rows.checkpoint_fields(ROW))
    with pytest.raises(CorruptionError):
        rows.unseal(sealed, rows.checkpoint_fields(ROW._replace(**change)))


def test_hiding_a_checkpoint_is_no_damage():
    sealed = rows.seal(b"manifest", rows.checkpoint_fields(ROW))
    rows.unseal(sealed, rows.checkpoint_fields(ROW._replace(flags=HIDDEN)))


@pytest.mark.parametrize(
    "change",
    [
        {"ns": "a"},
        {"checkpoint_id": "2"},
        {"run": 1},
        {"seen": 1},
        {"task_id": "t"},
        {"task_path": ""},
    ],
    ids=str,
)
def test_every_column_of_a_write_counts(change):
    sealed = rows.seal(b"body", rows.write_fields(WRITES))
    with pytest.raises(CorruptionError):
        rows.unseal(sealed, rows.write_fields(WRITES._replace(**change)))


def test_the_same_on_every_python():
    # A character that is missing in Python 3.11's Unicode tables, but not in 3.13's.
    assert rows.seal(b"body", ("\U0001fae8", 1, None, "é")).hex() == "626f6479db3e"
