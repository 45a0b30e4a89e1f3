"""Checkpoint of a session as a record, and its state as the type that a program wants."""

from __future__ import annotations

import dataclasses
import sys
import typing
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from inspect import isclass
from typing import Any, NotRequired, Self

from langgraph.checkpoint.base.id import uuid6
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from typing_extensions import TypedDict, is_typeddict

from threadkeep._core import validation
from threadkeep._core.engine.model import OWN_NS
from threadkeep.errors import InvalidArgumentError, invalid

_REQUIRED = ("session_id", "workflow_id", "state_data")
_OPTIONAL = ("id", "metadata", "created_at", "updated_at")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Checkpoint of a session.

    Attributes:
        id: its id, unique in the session.
        session_id: the session it belongs to.
        workflow_id: the workflow that saved it.
        state_data: the state itself.
        metadata: whatever the workflow said of it.
        created_at: the time at which the id was first saved.
        updated_at: the time at which it was last saved.
    """

    id: str
    session_id: str
    workflow_id: str
    state_data: Any
    metadata: dict[str, Any]
    created_at: datetime
    updated_at: datetime

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name; times as ISO texts, the state as it is."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        times = {name: fields[name].isoformat() for name in ("created_at", "updated_at")}
        return {**fields, **times}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the checkpoint of a dict as `to_dict` returns it.

        An id is made where there is none; without `created_at` it was created now.

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
    """Return an id, which is text and not empty."""
    if isinstance(value, uuid.UUID):
        return str(value)
    is_text = isinstance(value, str) and validation.is_unicode(value)
    if not is_text or not value or "\0" in str(value):
        raise invalid(name, value, "Use a str that is not empty, without NUL.")
    return str.__str__(value)


def session(value: object) -> str:
    """Return the id of a session, which is that of a thread as well: alone, or in a config."""
    is_config = validation.is_mapping(value)
    return text("session_id", validation.thread_in(value) if is_config else value)


def workflow(value: object) -> str:
    """Return the id of a workflow, which is the checkpoint namespace as well."""
    found = text("workflow_id", value)
    if found.startswith(OWN_NS):
        raise invalid("workflow_id", value, f"Names that begin with {OWN_NS} are threadkeep's own.")
    return found


def metadata(value: object) -> dict[str, Any]:
    """Return a copy of metadata; none is an empty dict."""
    if value is not None and not isinstance(value, Mapping):
        raise invalid("metadata", value, "Use a dict.")
    return dict(value or {})


def count(name: str, value: object) -> int:
    """Return a number of checkpoints."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise invalid(name, value, "Use a whole number, 0 or more.")
    return value


def now() -> datetime:
    """Return the time, in UTC."""
    return datetime.now(UTC)


def time(name: str, value: object) -> datetime | None:
    """Return a datetime or the time of an ISO text, in UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise invalid(name, value, "Use a datetime, or its ISO text.") from None
    if value is not None and not isinstance(value, datetime):
        raise invalid(name, value, "Use a datetime, or its ISO text.")
    return value and (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)


# -- the state as a type ---------------------------------------------------------------


def as_type(state: Any, type: Any) -> Any:
    """Return a state as an instance of a type.

    Raises:
        InvalidArgumentError: it does not fit the type, or the type cannot be made of it.
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
    """Return `state.to_dict()`, which `from_dict` of its class reads; None if it has not both."""
    if isclass(state) or not callable(getattr(state.__class__, "from_dict", None)):
        return None
    to_dict = getattr(state, "to_dict", None)
    return to_dict() if callable(to_dict) else None


def _readable(type: Any) -> Any:
    """Return a TypedDict as pydantic can read it: one of `typing` only since Python 3.12."""
    if sys.version_info >= (3, 12) or not typing.is_typeddict(type):
        return type
    fields: dict[str, Any] = typing.get_type_hints(type)
    fields |= {name: NotRequired[fields[name]] for name in type.__optional_keys__}
    return TypedDict(type.__name__, fields)  # type: ignore[operator] # fields that are known only now


def _unfit(state: Any, name: str, reasons: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"The state, of type {state.__class__.__name__}, is no valid {name}: {reasons}.",
        hint="Leave out type= for the state as it was saved.",
    )
