"""Questions of interrupts as forms, and filled-in forms as answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from threadkeep.errors import InvalidArgumentError
from threadkeep.threads import PendingInterrupt
from threadkeep.threads.diff import plain
from threadkeep.ui.text import as_json, read_json

DECISIONS = ("approve", "edit", "reject", "respond")
"""Decisions on an action, as LangChain's human-in-the-loop names them."""

_OPTIONS = 20  # that are shown side by side
_FORMS = {"string": "text", "number": "number", "integer": "number"}
_FORMS |= dict.fromkeys(("object", "array"), "json")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "number": (int, float),
    "integer": (int,),
    "object": (dict,),
    "array": (list,),
}


class AskedAction(NamedTuple):
    """An action that a person decides on, and the decisions that are allowed."""

    name: str
    args: Any
    description: str
    allowed: tuple[str, ...]


class AskedValue(NamedTuple):
    """The form of any other answer, by the schema that the graph gave.

    `form` is "choice" of the `options`, "text", "number", "json", or "any" without a usable schema.
    """

    form: str
    type: str = ""
    options: tuple[Any, ...] = ()


def value_of(interrupt: PendingInterrupt) -> AskedValue:
    """Return the form of an answer that is no decision."""
    schema: Any = plain(interrupt.response_schema)
    schema = schema if isinstance(schema, dict) else {}
    kind, options = schema.get("type"), schema.get("enum")
    options = [True, False] if kind == "boolean" and options is None else options
    if isinstance(options, list) and 0 < len(options) <= _OPTIONS:
        return AskedValue("choice", options=tuple(options))
    kind = kind if isinstance(kind, str) else ""
    return AskedValue(_FORMS.get(kind, "any"), kind)


def actions_of(interrupt: PendingInterrupt) -> tuple[AskedAction, ...]:
    """Return the actions that an interrupt asks to decide on, or none for any other question."""
    value: Any = plain(interrupt.value)
    try:
        if is_single(interrupt):
            schema = as_json(interrupt.response_schema)
            named = [one for one in DECISIONS if f'"const": "{one}"' in schema]
            return (_action(value, named or DECISIONS),)
        allowed = {one["action_name"]: one["allowed_decisions"] for one in value["review_configs"]}
        return tuple([_action(one, allowed[one["name"]]) for one in value["action_requests"]])
    except (LookupError, TypeError, ValueError):  # of another shape
        return ()


def is_single(interrupt: PendingInterrupt) -> bool:
    """Return True if the answer is one decision, not a list of them."""
    value = plain(interrupt.value)
    return isinstance(value, dict) and value.get("type") == "tool_approval"


def _action(asked: Any, allowed: Any) -> AskedAction:
    known = tuple([one for one in DECISIONS if one in allowed])
    if not known or not isinstance(asked["name"], str):
        raise ValueError("no decision is allowed on it, or it has no name")
    text = f"{asked.get('description') or ''}"
    return AskedAction(asked["name"], asked.get("args"), text, known)


def answer_of(interrupt: PendingInterrupt, given: Mapping[str, str]) -> Any:
    """Return the answer that a form gives. `InvalidArgumentError` names an invalid field."""
    decisions = [_decision(one, at, given) for at, one in enumerate(actions_of(interrupt))]
    if decisions:
        return decisions[0] if is_single(interrupt) else {"decisions": decisions}
    return _value(value_of(interrupt), given)


def _value(asked: AskedValue, given: Mapping[str, str]) -> Any:
    text = given.get("answer", "")
    if asked.form == "choice":
        if text not in map(str, range(len(asked.options))):
            raise InvalidArgumentError("Choose an answer.")
        return asked.options[int(text)]
    if not text.strip():
        raise InvalidArgumentError("Write an answer.", hint='An empty text is "" as JSON.')
    if asked.form == "text" or (asked.form == "any" and given.get("as") != "json"):
        return text
    value = read_json(text)
    if asked.type in _TYPES and type(value) not in _TYPES[asked.type]:
        raise InvalidArgumentError(f"The question asks for JSON of the type {asked.type}.")
    return value


def _decision(action: AskedAction, at: int, given: Mapping[str, str]) -> dict[str, Any]:
    kind, message = given.get(f"decision-{at}", ""), given.get(f"message-{at}", "").strip()
    if kind not in action.allowed:
        raise InvalidArgumentError(f"Choose a decision on {action.name}.")
    if kind == "edit":
        args = read_json(given.get(f"args-{at}", ""), f"Arguments of {action.name}: this")
        if not isinstance(args, dict):
            raise InvalidArgumentError(f"Arguments of {action.name}: use a JSON object.")
        return {"type": kind, "edited_action": {"name": action.name, "args": args}}
    if kind == "respond" and not message:
        raise InvalidArgumentError(f"Write the response to {action.name}.")
    said = {"message": message} if message and kind != "approve" else {}
    return {"type": kind, **said}
