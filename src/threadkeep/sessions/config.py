"""Configuration of sessions: keywords, a dict, a TOML file, or the environment."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from threadkeep.errors import InvalidArgumentError, invalid

EVENTS = ("tool_call", "state_change", "message", "node_end", "interrupt", "error", "manual")
"""Events that are known without being declared."""

_PREFIX = "THREADKEEP_SESSIONS_"
_FILE = "sqlite:///checkpoints.db"
_KINDS = ("memory", "sqlite", "postgres", "redis")

_Names = Annotated[list[str], NoDecode]


class CheckpointConfig(BaseSettings):
    """Configuration of a `CheckpointManager` and of its `AutoSaver`s.

    Values that are not given are taken from the environment (`THREADKEEP_SESSIONS_SAVE_INTERVAL`
    and so on; lists with commas or as JSON), or else are the defaults.

    Args:
        enabled: False saves nothing; what was saved before can be read and removed.
        storage_type: "memory", "sqlite", "postgres" or "redis"; used by a manager that is made
            without a saver or store. SQLite without a URL is `checkpoints.db` in the working
            folder.
        url: where the store is, as for `open_saver`.
        auto_save: False: an `AutoSaver` saves only when its `save` is called.
        save_interval: steps after which an `AutoSaver` saves.
        max_checkpoints: newest checkpoints that a session keeps; None for all. The newest one of
            each workflow always stays.
        retention_days: days after which older checkpoints are removed; None for never. The newest
            one of each workflow always stays.
        trigger_conditions: events upon which an `AutoSaver` saves at once. "state_change" also
            saves whenever the state is not the one last saved.
        events: events of your own, beside `EVENTS`.

    Raises:
        InvalidArgumentError: a value is invalid; the message names each.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    enabled: bool = True
    storage_type: Literal["memory", "sqlite", "postgres", "redis"] = "sqlite"
    url: str | None = None
    auto_save: bool = True
    save_interval: int = Field(default=5, ge=1)
    max_checkpoints: int | None = Field(default=100, ge=1)
    retention_days: float | None = Field(default=30, gt=0, le=timedelta.max.days)
    trigger_conditions: _Names = ["tool_call", "state_change"]
    events: _Names = []

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _named(error) from None  # (it would show a password in a URL)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the configuration of a dict, as `to_dict` returns it."""
        if not isinstance(values, Mapping):
            raise invalid("config", values, "Use a dict.")
        return cls(**values)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """Read a TOML file: its table `sessions` if it has one, or else all of it.

        Raises:
            InvalidArgumentError: the file cannot be read, or a value is invalid.
        """
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - whatever may be opened
                found = tomllib.load(file)
        except OSError as error:
            raise InvalidArgumentError(f"{path} cannot be read: {error.strerror}.") from error
        except ValueError as error:  # also where it is not UTF-8
            raise InvalidArgumentError(f"{path} is not valid TOML: {error}.") from None
        return cls.from_dict(found.get("sessions", found))

    def to_dict(self) -> dict[str, Any]:
        """Return all values by name."""
        return self.model_dump()

    @property
    def store_url(self) -> str:
        """URL of the configured store, for `open_saver`."""
        return self.url or ("memory://" if self.storage_type == "memory" else _FILE)

    @field_validator("trigger_conditions", "events", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Split the text of a variable: commas, or a JSON list."""
        if not isinstance(value, str):
            return list(value) if isinstance(value, tuple | set | frozenset) else value
        names = value.strip().removeprefix("[").removesuffix("]").split(",")
        return [name.strip().strip("\"'") for name in names if name.strip()]

    @model_validator(mode="before")
    @classmethod
    def _type_of_url(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Take the storage type from the URL where only that is given."""
        kinds = [kind for kind in _KINDS if str(values.get("url")).startswith(kind)]
        return {"storage_type": kinds[0], **values} if kinds else values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.url is None and self.storage_type in ("postgres", "redis"):
            raise ValueError(f"url: {self.storage_type} needs a URL")
        if self.url is not None and not self.url.startswith(self.storage_type):
            raise ValueError(f"url: it is none of {self.storage_type}")
        known = {*EVENTS, *self.events}
        if unknown := [name for name in self.trigger_conditions if name not in known]:
            raise ValueError(
                f"trigger_conditions: {', '.join(map(ascii, unknown))} is unknown; use"
                f" {', '.join(EVENTS)}, or declare it in events"
            )
        return self

    def check_event(self, event: object) -> None:
        """Raise InvalidArgumentError for an unknown event."""
        if event not in (known := [*EVENTS, *self.events]):
            raise invalid("event", event, f"Use {', '.join(known)}, or declare it in events.")


def _named(error: ValidationError) -> InvalidArgumentError:
    """Return the error that names each invalid value; that of a URL is not shown."""
    texts, hints = [], []
    for one in error.errors(include_url=False):
        name, message = ".".join(map(str, one["loc"])), one["msg"].removeprefix("Value error, ")
        if not name:  # several values do not fit together
            name, _, message = message.partition(": ")
            texts.append(f"Invalid {name}.")
        elif one["type"] == "extra_forbidden":
            texts.append(f"Unknown key {name!r}.")
            message = f"use one of {', '.join(CheckpointConfig.model_fields)}"
        else:
            text = f"Invalid {name}." if name == "url" else invalid(name, one["input"], "").message
            texts.append(text)
        hints.append(f"{name}: {message[:1].lower()}{message[1:]}.")
    return InvalidArgumentError(" ".join(texts), hint=" ".join(hints))
