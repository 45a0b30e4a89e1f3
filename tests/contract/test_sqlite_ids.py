"""Ids as SQLite stores them: short, back again as they were, and in the same order."""

import sqlite3
import uuid

from hypothesis import given
from hypothesis import strategies as st

from threadkeep._stores.sqlite.records import (
    pack_id,
    unpack_id,
)
from threadkeep.testing.reads import MIXED_IDS

UUIDS = st.uuids().map(str)
# Texts that differ from a UUID somewhere: cut off, longer, or with another character.
NEARLY = st.builds(
    lambda key, at, other: key[:at] + other + key[at + 1 :],
    UUIDS,
    st.integers(0, 36),
    st.sampled_from(["", "-", "0", "f", "g", "F", "A", ":", "/", "\0", "é", "00"]),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
IDS = st.one_of(UUIDS, NEARLY, TEXTS, st.text("0123456789abcdef-", max_size=40))


@given(IDS)
def test_ids_come_back(text):
    assert unpack_id(pack_id(text)) == text


@given(UUIDS)
def test_uuids_take_16_bytes(text):
    assert pack_id(text) == uuid.UUID(text).bytes


@given(st.lists(IDS, max_size=20))
def test_sqlite_orders_them_as_python_does(texts):
    texts = [*texts, *MIXED_IDS]
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE t (id PRIMARY KEY) WITHOUT ROWID")
    db.executemany("INSERT OR IGNORE INTO t VALUES (?)", [(pack_id(text),) for text in texts])
    found = [unpack_id(packed) for (packed,) in db.execute("SELECT id FROM t ORDER BY id")]
    db.close()
    assert found == sorted(set(texts))
