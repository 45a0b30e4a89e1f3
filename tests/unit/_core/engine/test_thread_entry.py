"""Entries of the registry as stores return them: damaged fields are named and get safe values."""

from typing import Any

import pytest

from threadkeep._core.engine.thread_entry import ThreadEntry, checked, sound
from threadkeep.errors import CorruptionError

SOUND = ThreadEntry(
    *("t", "active", 1, 2, 3, ('"tag"', '["a",1]', '{"at":["","1"],"tag":"x"}', '{"kept":[1]}')),
    pinned=True,
    ttl=5,
    origin=("o", "1"),
    revision=7,
    status="failed",
    status_at="1",
    failed_node="node",
)


def test_a_sound_entry_stays_as_it_is() -> None:
    assert checked(SOUND) is SOUND
    assert sound(SOUND) is SOUND
    assert sound(None) is None


@pytest.mark.parametrize(
    ("field", "value", "safe"),
    [
        ("state", "odd", ""),
        ("state", None, ""),
        ("created_at", "odd", 0),
        ("created_at", -(2**63), -(2**63)),  # (fields that entries are sorted by stay)
        ("updated_at", 2**63 - 1, 2**63 - 1),
        ("updated_at", 1.5, 0),
        ("size", None, 0),
        ("size", 2**63 - 1, 2**63 - 1),
        ("pinned", "odd", True),
        ("ttl", -1, None),
        ("origin", "o", None),
        ("status", "odd", None),
        ("status", b"failed", None),
        ("status_at", b"x", None),
        ("failed_node", 5, None),
        ("deleted_at", -1, 0),
        ("revision", 2**63 - 1, 0),
        ("labels", ('"tag"', "{"), ('"tag"',)),
        ("labels", ('{"at":[1,"2"]}', "5", b"x"), ()),
    ],
)
def test_a_damaged_field_is_named(field: str, value: Any, safe: Any) -> None:
    entry = checked(SOUND._replace(**{field: value}))
    assert entry == SOUND._replace(**{field: safe}, damage=entry.damage)
    assert entry.damage.endswith(f": {field}")
    with pytest.raises(CorruptionError, match="'t'"):
        sound(entry)
