"""Configuration and records of sessions, which need no store."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypedDict

import pytest
from pydantic import BaseModel

from threadkeep.errors import InvalidArgumentError
from threadkeep.sessions import Checkpoint, CheckpointConfig
from threadkeep.sessions.checkpoint import as_type
from threadkeep.sessions.records import SessionPlace, surplus

VARIABLE = "THREADKEEP_SESSIONS_"
NOW = datetime(2026, 1, 31, tzinfo=UTC)


def test_the_defaults():
    assert CheckpointConfig().to_dict() == {
        "enabled": True,
        "storage_type": "sqlite",
        "url": None,
        "auto_save": True,
        "save_interval": 5,
        "max_checkpoints": 100,
        "retention_days": 30,
        "trigger_conditions": ["tool_call", "state_change"],
        "events": [],
    }


def test_a_dict_is_given_back():
    config = CheckpointConfig(
        url="redis://localhost", max_checkpoints=None, events=["paid"], trigger_conditions=["paid"]
    )
    assert CheckpointConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("text", ["save_interval = 3\n", "[other]\n[sessions]\nsave_interval = 3"])
def test_a_toml_file_is_read_whole_or_its_table(text, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(text)
    assert CheckpointConfig.from_toml(file).save_interval == 3


@pytest.mark.parametrize("text", ["save_interval = ", "\xff", "save_interval = 0", "other = 1"])
def test_a_bad_toml_file_is_named(text, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(InvalidArgumentError, match=r"settings\.toml|save_interval|other"):
        CheckpointConfig.from_toml(file)
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        CheckpointConfig.from_toml(tmp_path / "absent.toml")


def test_the_environment_fills_in_what_is_not_given(monkeypatch):
    monkeypatch.setenv(f"{VARIABLE}MAX_CHECKPOINTS", "7")
    monkeypatch.setenv(f"{VARIABLE}AUTO_SAVE", "false")
    monkeypatch.setenv(f"{VARIABLE}TRIGGER_CONDITIONS", "error, manual")
    found = CheckpointConfig(auto_save=True)
    assert (found.max_checkpoints, found.auto_save) == (7, True)
    assert found.trigger_conditions == ["error", "manual"]
    monkeypatch.setenv(f"{VARIABLE}TRIGGER_CONDITIONS", '["error"]')
    assert CheckpointConfig().trigger_conditions == ["error"]
    monkeypatch.setenv(f"{VARIABLE}MAX_CHECKPOINTS", "many")
    with pytest.raises(InvalidArgumentError, match="max_checkpoints: 'many'"):
        CheckpointConfig()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"save_interval": 0}, "save_interval: 0"),
        ({"max_checkpoints": -1}, "max_checkpoints: -1"),
        ({"retention_days": 0, "enabled": "so"}, "enabled: 'so'. Invalid retention_days: 0"),
        ({"storage_type": "floppy"}, "storage_type: 'floppy'"),
        ({"storage_type": "postgres"}, "url"),
        ({"storage_type": "redis", "url": "postgresql://u:secret@h/d"}, "url"),
        ({"trigger_conditions": ["tool_cal"]}, "tool_cal"),
        ({"trigger_conditions": 5}, "trigger_conditions: 5"),
        ({"interval": 5}, "interval"),
    ],
)
def test_bad_values_are_named(values, named):
    with pytest.raises(InvalidArgumentError) as caught:
        CheckpointConfig.from_dict(values)
    assert named in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_config_is_a_dict():
    with pytest.raises(InvalidArgumentError, match="Use a dict"):
        CheckpointConfig.from_dict(["enabled"])


@pytest.mark.parametrize(
    ("values", "url"),
    [
        ({}, "sqlite:///checkpoints.db"),
        ({"storage_type": "memory"}, "memory://"),
        ({"url": "postgresql://host/db"}, "postgresql://host/db"),
    ],
)
def test_the_store_is_named_by_type_or_url(values, url):
    assert CheckpointConfig(**values).store_url == url
    assert CheckpointConfig(url="postgresql://host/db").storage_type == "postgres"


# -- records ---------------------------------------------------------------------------


def test_a_checkpoint_is_given_back_by_its_dict():
    one = Checkpoint.from_dict({"session_id": "s", "workflow_id": "w", "state_data": [1]})
    assert Checkpoint.from_dict(one.to_dict()) == one
    assert one.created_at.utcoffset() == timedelta(0)
    assert one.metadata == {}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"session_id": "s", "workflow_id": "w"}, "state_data is missing"),
        ({"session_id": "s", "workflow_id": "w", "state_data": 1, "state": 1}, "state is unknown"),
        ({"session_id": 5, "workflow_id": "w", "state_data": 1}, "session_id: 5"),
        ({"session_id": "s", "workflow_id": "threadkeep$w", "state_data": 1}, "workflow_id"),
        ({"session_id": "s", "workflow_id": "w", "state_data": 1, "created_at": "5"}, "created_at"),
        ({"session_id": "s", "workflow_id": "w", "state_data": 1, "metadata": 5}, "metadata"),
        (None, "checkpoint: None"),
    ],
)
def test_a_bad_checkpoint_is_named(values, named):
    with pytest.raises(InvalidArgumentError, match=named.replace("$", r"\$")):
        Checkpoint.from_dict(values)


# -- types -----------------------------------------------------------------------------


@dataclass
class Data:
    number: int
    names: list[str]


class Model(BaseModel):
    number: int


class Typed(TypedDict):
    number: int


class Made:
    def __init__(self, number):
        self.number = number

    @classmethod
    def from_dict(cls, values):
        return cls(values["number"])


def test_a_state_is_made_into_a_type():
    assert as_type({"number": 1, "names": ["a"]}, Data) == Data(1, ["a"])
    assert as_type({"number": 1}, Model) == Model(number=1)
    assert as_type({"number": 1}, Typed) == {"number": 1}
    assert as_type({"number": 1}, Made).number == 1
    assert as_type([1, 2], list[int]) == [1, 2]
    same = Data(1, [])
    assert as_type(same, Data) is same
    assert as_type(same, None) is same


@pytest.mark.parametrize("type", [Data, Model, Typed, Made, list[int]])
def test_a_state_that_does_not_fit_is_refused(type):
    with pytest.raises(InvalidArgumentError, match="is not a valid"):
        as_type({"other": 1}, type)


def test_a_type_that_nothing_can_be_made_into_is_refused():
    with pytest.raises(InvalidArgumentError, match="Invalid type: Lock"):
        as_type({}, type("Lock", (), {}))


# -- limits ----------------------------------------------------------------------------


def test_what_is_beyond_limits():
    def place(name, workflow, days, *, marked=False):
        return SessionPlace(name, workflow, NOW - timedelta(days=days), name, marked)

    places = [
        place("6", "a", 0),
        place("5", "a", 5),
        place("4", "b", 6),
        place("3", "a", 7, marked=True),
        place("2", "a", 8),
        place("1", "c", 9),
        place("0", "c", 9),
    ]

    def names(most, days):
        return [one.id for one in surplus(places, most, days and NOW - timedelta(days=days))]

    assert names(None, None) == []
    assert names(2, None) == ["2", "0"]  # not 4 and 1, the newest of their workflows, nor 3
    assert names(None, 4) == ["5", "2", "0"]
    assert names(6, 8.5) == ["0"]
