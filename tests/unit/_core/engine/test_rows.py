"""Rows: metadata and times come back, which pending writes count, times of ids, checksums."""

import enum
import json
import math
import time
from collections import OrderedDict
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.engine import exactly
from kit.values import VALUES
from langgraph.checkpoint.base import empty_checkpoint

from threadkeep._core.codec import NativeCodec
from threadkeep._core.engine import rows
from threadkeep._core.engine.model import FREE, HIDDEN, CheckpointRow, Child, WriteRow
from threadkeep._core.engine.refs import Inline
from threadkeep._core.engine.rows import created_at
from threadkeep.errors import CorruptionError, UnserializableError

CODEC = NativeCodec()


class Level(enum.StrEnum):
    LOW = "low"


# -- metadata --------------------------------------------------------------------------


def back(metadata):
    text, exact = rows.pack_metadata(metadata, CODEC)
    text.encode()
    assert isinstance(json.loads(text), dict)
    return rows.unpack_metadata(text, exact, CODEC)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_metadata_comes_back_as_from_langgraphs_savers(metadata):
    """As from those of SQLite and PostgreSQL. Values that they refuse come back too."""
    found = back(metadata)
    try:
        expected = json.loads(json.dumps(metadata, ensure_ascii=False))
    except (TypeError, ValueError):
        assert found.keys() == metadata.keys()
    else:
        assert types_of(found) == types_of(expected)


def types_of(value):
    """Return the types of the containers at every level."""
    if isinstance(value, dict):
        return type(value), [types_of(part) for part in value.values()]
    if isinstance(value, (list, tuple)):
        return type(value), [types_of(part) for part in value]
    return None


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    ),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3), st.dictionaries(st.text(max_size=3), parts, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_what_json_can_hold_is_stored_as_json_alone(metadata):
    _, exact = rows.pack_metadata(metadata, CODEC)
    surrogates = any(0xD800 <= ord(c) < 0xE000 for c in json.dumps(metadata, ensure_ascii=False))
    assert (exact is None) == (not surrogates)


WORDS = st.sampled_from(["source", "loop", "step", "ü", "a b", 'a"b', "a\\", "", "\n", "\ud800"])
SAID = st.one_of(WORDS, st.integers(), st.booleans(), st.sampled_from([None, {}, [], {"": "id"}]))


@given(st.dictionaries(WORDS, SAID, max_size=4))
def test_short_metadata_is_stored_as_json_has_it(metadata):
    text, exact = rows.pack_metadata(metadata, CODEC)
    if exact is None:
        assert text == json.dumps(metadata, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize(
    "value",
    [math.inf, "\ud800", "\x00", b"x", {"a": {"b": {1.5}}}, 2**80, -0.0, [1, True, 1.0]],
    ids=repr,
)
def test_unusual_metadata(value):
    metadata = {"source": "loop", "odd": value}
    assert exactly(back(metadata)) == exactly(metadata)
    text, _ = rows.pack_metadata(metadata, CODEC)
    assert json.loads(text)["source"] == "loop"


@pytest.mark.parametrize(
    ("value", "given"),
    [
        ((1, (2,)), [1, [2]]),
        ({1: 2}, {"1": 2}),
        (OrderedDict(a=(1,)), {"a": [1]}),
        (Level.LOW, "low"),
        ({"id": UUID(int=1), "n": (1, {"m": (2,)})}, {"id": UUID(int=1), "n": [1, {"m": [2]}]}),
        (
            {"counters": {"messages": (3, 4)}, "nan": math.inf},
            {"counters": {"messages": [3, 4]}, "nan": math.inf},
        ),
    ],
    ids=repr,
)
def test_containers_come_back_as_json_has_them(value, given):
    found = back({"source": "loop", "odd": value})
    assert exactly(found) == exactly({"source": "loop", "odd": given})


def test_metadata_that_contains_itself_is_refused():
    metadata = {"a": [UUID(int=1)]}
    metadata["a"].append(metadata)
    with pytest.raises(UnserializableError):
        rows.pack_metadata(metadata, CODEC)


def test_nan_in_metadata():
    found = back({"score": math.nan, "step": 1})
    assert math.isnan(found["score"])
    assert found["step"] == 1


def test_unusual_keys_in_metadata():
    assert back({"source": "loop", 1: "one", None: 0}) == {"source": "loop", "1": "one", "null": 0}
    metadata = {"source": "loop", "\ud800": 1, (1, 2): 3}
    assert exactly(back(metadata)) == exactly(metadata)


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '"x"', "null", "\x00"])
def test_damaged_metadata_is_named(text):
    with pytest.raises(CorruptionError):
        rows.unpack_metadata(text, None, CODEC)


# -- times -----------------------------------------------------------------------------


@given(st.datetimes(timezones=st.timezones()))
def test_any_iso_time(when):
    assert rows.unpack_time(rows.pack_time(when.isoformat())) == when.isoformat()


@pytest.mark.parametrize(
    "text",
    [
        "2024-05-01T10:20:30.123456+00:00",
        "2024-05-01T10:20:30+00:00",
        "1969-12-31T23:59:59.999999+00:00",
        "0001-01-01T00:00:00+00:00",
        "9999-12-31T23:59:59.999999+00:00",
        "2024-05-01T10:20:30Z",
        "2024-05-01T10:20:30.123456",
        "2024-05-01",
        "2024-05-01T10:20:30.1+00:00",
        "2024-05-01T12:20:30+02:00",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "",
        "yesterday",
        "20240501T102030+0000",
    ],
)
def test_times(text):
    assert rows.unpack_time(rows.pack_time(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "2024-05-01T10:20:30.000000+00:00",
        "2024-05-01T10:20:30.123+00:00",
        "2024-05-01T10:20:30,123456+00:00",
        "2024-05-01 10:20:30.123456+00:00",
        "2024-05-01T10:20:30.123456-00:00",
        "2024-W18-3T10:20:30.123456+00:00",
        "2024-05-01T10:20:30.123456+00:00\n",
        "\uff12\uff10\uff12\uff14-05-01T10:20:30.123456+00:00",
        "2024-02-30T10:20:30.123456+00:00",
        "2024-05-01T24:00:00.000001+00:00",
    ],
)
def test_other_forms_are_stored_as_text(text):
    assert rows.pack_time(text) is text


def test_langgraphs_times_are_stored_as_numbers():
    now = empty_checkpoint()["ts"]
    assert rows.unpack_time(rows.pack_time(now)) == now
    assert isinstance(rows.pack_time(empty_checkpoint()["ts"]), int)
    assert rows.pack_time("1970-01-01T00:00:01+00:00") == 1_000_000


# -- writes that count -----------------------------------------------------------------


def row(seq, run, seen, writes, task="task", path=""):
    """A write row; `writes` maps indexes to values, and the index names the channel."""
    bare = WriteRow("", "1", run, seen, task, path, b"", seq)
    packed = [(idx, f"channel {idx}", Inline(CODEC.encode(value))) for idx, value in writes.items()]
    return bare._replace(body=rows.seal(rows.pack_writes(packed), rows.write_fields(bare)))


def counted(stored, child=None):
    return [(w.task_id, w.idx, CODEC.decode(w.ref.data)) for w in rows.counting(stored, child)]


def test_of_ordinary_writes_the_first_counts_of_special_ones_the_last():
    stored = [row(1, 0, 0, {0: "a", -1: "error"}), row(2, 0, 0, {0: "b", 1: "c", -1: "other"})]
    assert counted(stored) == [("task", -1, "other"), ("task", 0, "a"), ("task", 1, "c")]


def test_order_is_that_of_paths_then_tasks_then_indexes():
    stored = [
        row(1, 0, 0, {0: 1}, "b", "~2"),
        row(2, 0, 0, {1: 2, 0: 3}, "a", "~10"),
        row(3, 0, 0, {0: 4}, "c"),
        row(4, 0, 0, {0: 5, -2: 6}, "a", "~1"),
    ]
    found = [(task, idx) for task, idx, _ in counted(stored)]
    assert found == [("c", 0), ("a", -2), ("a", 0), ("a", 1), ("b", 0)]


def test_two_runs_of_one_task_are_not_mixed():
    one, two = row(1, 1, 0, {0: "one"}), row(2, 2, 0, {0: "two", 1: "two more"})
    assert counted([one, two]) == [("task", 0, "one")]
    assert counted([two._replace(seq=1), one._replace(seq=2)]) == [
        ("task", 0, "two"),
        ("task", 1, "two more"),
    ]


def test_a_run_that_loaded_anothers_writes_goes_on_with_them():
    stored = [row(1, 1, 0, {0: "one"}), row(2, 2, 1, {0: "again", 1: "two"})]
    assert counted(stored) == [("task", 0, "one"), ("task", 1, "two")]


def test_the_childs_run_decides():
    stored = [
        row(1, 1, 0, {0: "one"}),
        row(2, 2, 0, {0: "two"}),
        row(3, 3, 2, {0: "three"}, "other"),
    ]
    assert counted(stored, Child("2", 1, 0)) == [("task", 0, "one")]
    assert counted(stored, Child("2", 2, 0)) == [("task", 0, "two")]
    assert counted(stored, Child("2", 2, 1)) == [("task", 0, "one")]
    assert counted(stored, Child("2", 4, 0)) == []
    assert counted(stored, Child("2", 4, 3)) == [("other", 0, "three"), ("task", 0, "one")]


def test_special_writes_of_another_run_do_not_reach_the_childs():
    stored = [row(1, 1, 0, {0: "one"}), row(2, 2, 0, {-1: "error of two"})]
    assert counted(stored, Child("2", 1, 0)) == [("task", 0, "one")]


BATCHES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.dictionaries(st.integers(-3, 3), st.integers(0, 99), min_size=1, max_size=4),
    ),
    max_size=6,
)


@given(BATCHES, st.booleans())
def test_one_runs_writes_count_as_with_langgraphs_savers(batches, committed):
    expected = {}
    stored = []
    for seq, (task, writes) in enumerate(batches, 1):
        stored.append(row(seq, 0, 0, writes, task))
        for idx, value in writes.items():
            if idx < 0 or (task, idx) not in expected:
                expected[task, idx] = value
    found = {
        (task, idx): value
        for task, idx, value in counted(stored, Child("2", 0, 0) if committed else None)
    }
    assert found == expected


TEXT = "1ef4f797-8335-6428-8001-8a1503f9b875"


def test_creation_time_of_langgraphs_ids():
    before = time.time_ns() // 1000
    made = created_at(empty_checkpoint()["id"])
    after = time.time_ns() // 1000
    assert before - 1000 <= made <= after + 1000


@pytest.mark.parametrize(
    "other",
    [
        None,
        "",
        "1",
        "x" * 36,
        "43bf8a5e-37d6-43a5-8196-5c23ed962d8a",
        TEXT[:-1],
        TEXT.replace("1ef4", "zzzz"),
    ],
)
def test_other_ids_do_not_tell(other):
    assert created_at(other) is None


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
