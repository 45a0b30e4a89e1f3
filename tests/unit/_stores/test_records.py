"""Records as bytes."""

import ormsgpack
import pytest

from threadkeep.backends import CheckpointRow, Head, Segment, WriteRow, pack_record, unpack_record
from threadkeep.errors import CorruptionError

RECORDS = (
    Head(""),
    Head("t", (3, 2**62 - 1), 7, -(2**63), logs={1: 5, 2**40: 2**62}, origin=("a", "b")),
    Head("\0é", number="text", state="active", pinned=True, ttl=0),
    Head("t", state="active", status="failed", status_at="1", failed_node="\0é"),
    CheckpointRow("", "1", None, 0, 0, 4, "no time", "{}", None, 1, 0, b"\0\xff"),
    CheckpointRow("ns", "2", "1", 2**62, 9, 0, 17, '{"step": 1}', b"exact", 1, 0, b""),
    WriteRow("ns", "1", 1, 2, "task", "~", b"body", 3),
    Segment(-1, 2, 3, b"frame"),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_read_as_it_was_packed(record):
    again = unpack_record(type(record), pack_record(record))
    assert again == record
    assert type(again) is type(record)


def test_gaps_of_logs_are_not_stored():
    packed = pack_record(Head("t", (1,), 1, gaps={1: ((2, 3),)}))
    assert unpack_record(Head, packed) == Head("t", (1,), 1)


def test_fields_that_an_older_release_did_not_have_get_their_defaults():
    assert unpack_record(Head, ormsgpack.packb({"thread": "t"})) == Head("t")


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\xc0", ormsgpack.packb({"other": 1})])
def test_damaged_bytes_are_a_typed_error(data):
    with pytest.raises(CorruptionError, match="A stored Head is damaged"):
        unpack_record(Head, data)
