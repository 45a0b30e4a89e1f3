"""Checkpoints of sessions as records, their arguments, and the configuration of managers."""

from __future__ import annotations

import dataclasses
import os
import sys
import tomllib
import typing
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from inspect import isclass
from typing import Annotated, Any, NotRequired, Self

from langgraph.checkpoint.base.id import uuid6
from pydantic import (
    Field,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from typing_extensions import TypedDict, is_typeddict

from threadkeep._core import validation
from threadkeep._core.engine.model import OWN_NS
from threadkeep._core.texts import is_unicode
from threadkeep._stores.open import DATABASES, as_url, named
from threadkeep.errors import InvalidArgumentError, invalid

EVENTS = ("tool_call", "state_change", "message", "node_end", "interrupt", "error", "manual")
"""The built-in events."""

_PREFIX = "THREADKEEP_SESSIONS_"
_URLS = {"memory": "memory://", "sqlite": "sqlite:///checkpoints.db"}  # if none is given

_Names = Annotated[list[str], NoDecode]
_REQUIRED = ("session_id", "workflow_id", "state_data")
_OPTIONAL = ("id", "metadata", "created_at", "updated_at")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint of a session.

    Attributes:
        id: the id, unique in the session.
        session_id: the session.
        workflow_id: the workflow that saved the checkpoint.
        state_data: the state itself.
        metadata: metadata given by the workflow.
        created_at: the time of the first save with this id.
        updated_at: the time of the last save with this id.
    """

    id: str
    session_id: str
    workflow_id: str
    state_data: Any
    metadata: dict[str, Any]
    created_at: datetime
    updated_at: datetime

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name: times as ISO texts, the state unchanged."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        times = {name: fields[name].isoformat() for name in ("created_at", "updated_at")}
        return {**fields, **times}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a checkpoint from a dict, as `to_dict` returns it.

        Without `id` it gets a new id, and without `created_at` the present time.

        Raises:
            InvalidArgumentError: a key is missing or unknown, or its value is invalid.
        """
        if not isinstance(values, Mapping):
            raise invalid("checkpoint", values, "Use a dict, as Checkpoint.to_dict() returns it.")
        missing = [name for name in _REQUIRED if name not in values]
        unknown = [str(name) for name in values if name not in (*_REQUIRED, *_OPTIONAL)]
        if missing or unknown:
            raise InvalidArgumentError(
                f"Invalid checkpoint: {', '.join(missing or unknown)}"
                f" {'is missing' if missing else 'is unknown'}.",
                hint=f"Use {', '.join(_REQUIRED)}; and, as needed, {', '.join(_OPTIONAL)}.",
            )
        created = time("created_at", values.get("created_at")) or now()
        own_id = values.get("id")
        return cls(
            id=str(uuid6()) if own_id is None else text("id", own_id),
            session_id=text("session_id", values["session_id"]),
            workflow_id=workflow(values["workflow_id"]),
            state_data=values["state_data"],
            metadata=metadata(values.get("metadata")),
            created_at=created,
            updated_at=time("updated_at", values.get("updated_at")) or created,
        )


# -- arguments -------------------------------------------------------------------------


def text(name: str, value: object) -> str:
    """Check an id."""
    if isinstance(value, uuid.UUID):
        return str(value)
    is_text = isinstance(value, str) and is_unicode(value)
    if not is_text or not value or "\0" in str(value):
        raise invalid(name, value, "Use a str that is not empty, without NUL.")
    return str.__str__(value)


def session(value: object) -> str:
    """Check a session id, which is the thread id too: alone, or in a config."""
    is_config = validation.is_mapping(value)
    return text("session_id", validation.thread_in(value) if is_config else value)


def workflow(value: object) -> str:
    """Check a workflow id, which is the checkpoint namespace too."""
    found = text("workflow_id", value)
    if found.startswith(OWN_NS):
        raise invalid("workflow_id", value, f"Names that begin with {OWN_NS} are reserved.")
    return found


def metadata(value: object) -> dict[str, Any]:
    """Copy metadata. None gives an empty dict."""
    if value is not None and not isinstance(value, Mapping):
        raise invalid("metadata", value, "Use a dict.")
    return dict(value or {})


def count(name: str, value: object) -> int:
    """Check a number of checkpoints."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise invalid(name, value, "Use a whole number, 0 or more.")
    return value


def now() -> datetime:
    """Return the present time, in UTC."""
    return datetime.now(UTC)


def time(name: str, value: object) -> datetime | None:
    """Convert a datetime or an ISO text to UTC."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if value is not None and not isinstance(value, datetime):
        raise invalid(name, value, "Use a datetime, or its ISO text.")
    return value and (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)


# -- the state as a type ---------------------------------------------------------------


def as_type(state: Any, type: Any) -> Any:
    """Convert a state to a type.

    Raises:
        InvalidArgumentError: the state does not fit the type, or the type is not supported.
    """
    if is_typeddict(type):
        type = _readable(type)
    elif type is None or (isclass(type) and isinstance(state, type)):
        return state
    name = getattr(type, "__qualname__", str(type))
    try:
        make = getattr(type, "from_dict", None) or TypeAdapter(type).validate_python
        return make(state)
    except PydanticUserError as error:
        hint = "Use a dataclass, a pydantic model, a TypedDict, or a class with from_dict."
        raise InvalidArgumentError(f"Invalid type: {name}.", hint=hint) from error
    except ValidationError as error:
        found = [(".".join(map(str, one["loc"])), one["msg"]) for one in error.errors()]
        reasons = "; ".join(f"{at}: {message}" if at else message for at, message in found)
        raise _unfit(state, name, reasons) from None
    except (AttributeError, TypeError, ValueError, LookupError) as error:
        raise _unfit(state, name, f"{error.__class__.__name__}: {error}") from error


def as_dict(state: Any) -> Any:
    """Return `state.to_dict()`, or None if it has none."""
    to_dict = None if isclass(state) else getattr(state, "to_dict", None)
    return to_dict() if callable(to_dict) else None


def _readable(type: Any) -> Any:
    """Make a TypedDict for pydantic, which reads `typing`'s only since Python 3.12."""
    if sys.version_info >= (3, 12) or not typing.is_typeddict(type):
        return type
    fields: dict[str, Any] = typing.get_type_hints(type)
    fields |= {name: NotRequired[fields[name]] for name in type.__optional_keys__}
    return TypedDict(type.__name__, fields)  # type: ignore[operator] # fields that are known only now


def _unfit(state: Any, name: str, reasons: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"The state, of type {state.__class__.__name__}, is not a valid {name}: {reasons}.",
        hint="Leave out type= to get the state as it was saved.",
    )


# -- configuration ---------------------------------------------------------------------


class CheckpointConfig(BaseSettings):
    """Configuration of a `CheckpointManager` and its `AutoSaver`s.

    If you leave out a value, it is read from the environment (`THREADKEEP_SESSIONS_SAVE_INTERVAL`
    and so on, lists with commas or as JSON), or else has its default.

    Args:
        enabled: False saves nothing, but you can still read and remove saved checkpoints.
        storage_type: "memory", "sqlite", "postgres", "redis" or "mysql", for a manager without a
            saver or store. SQLite without a URL is `checkpoints.db` in the working folder.
        url: the store's URL, as for `open_saver`.
        auto_save: if False, an `AutoSaver` saves only when you call `save`.
        save_interval: steps after which an `AutoSaver` saves.
        max_checkpoints: the number of newest checkpoints that a session keeps, or None for all. The
            newest checkpoint of each workflow always stays.
        retention_days: days after which older checkpoints are removed, or None for never. The
            newest checkpoint of each workflow always stays.
        trigger_conditions: events after which an `AutoSaver` saves at once. "state_change" also
            saves whenever the state differs from the last saved state.
        events: your own events, in addition to `EVENTS`.

    Raises:
        InvalidArgumentError: a value is invalid. The message names each invalid value.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    enabled: bool = True
    storage_type: str = "sqlite"
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
            raise _named(error) from None  # (its text may show a password in a URL)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a configuration from a dict, as `to_dict` returns it."""
        if not isinstance(values, Mapping):
            raise invalid("config", values, "Use a dict.")
        return cls(**values)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """Read a TOML file: its table `sessions` if it has one, or else the whole file.

        Raises:
            InvalidArgumentError: the file cannot be read, or a value is invalid.
        """
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - any type of path
                found = tomllib.load(file)
        except OSError as error:
            raise InvalidArgumentError(f"{path} cannot be read: {error.strerror}.") from error
        except ValueError as error:  # (or it is not UTF-8)
            raise InvalidArgumentError(f"{path} is not valid TOML: {error}.") from None
        return cls.from_dict(found.get("sessions", found))

    def to_dict(self) -> dict[str, Any]:
        """Return all values by name."""
        return self.model_dump()

    @property
    def store_url(self) -> str:
        """URL of the configured store, for `open_saver`."""
        return self.url or _URLS[self.storage_type]

    @field_validator("trigger_conditions", "events", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Split the text of an environment variable: commas, or a JSON list."""
        if not isinstance(value, str):
            return list(value) if isinstance(value, tuple | set | frozenset) else value
        names = value.strip().removeprefix("[").removesuffix("]").split(",")
        return [name.strip().strip("\"'") for name in names if name.strip()]

    @field_validator("storage_type")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in DATABASES:
            raise ValueError(f"use {', '.join(DATABASES)}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _type_of_url(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Derive the storage type from the URL, if only the URL is given."""
        kind = named(url) if "://" in (url := str(values.get("url"))) else None
        return {"storage_type": kind, **values} if kind else values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.url is None and self.storage_type not in _URLS:
            raise ValueError(f"url: {self.storage_type} needs a URL")
        if self.url is not None and named(as_url(self.url)) != self.storage_type:
            raise ValueError(f"url: it does not name a {self.storage_type} store")
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
    """Make the error that names each invalid value, but never shows a URL."""
    texts, hints = [], []
    for one in error.errors(include_url=False):
        name, message = ".".join(map(str, one["loc"])), one["msg"].removeprefix("Value error, ")
        if not name:  # (the values contradict each other)
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
