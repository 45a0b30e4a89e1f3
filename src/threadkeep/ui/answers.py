"""Questions of interrupts as forms, and filled-in forms as answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from threadkeep.errors import InvalidArgumentError
from threadkeep.threads import PendingInterrupt
from threadkeep.threads.diff import plain

DECISIONS = ("approve", "edit", "reject", "respond")
"""Decisions on an action, as LangChain's human-in-the-loop names them."""

_DEEPEST = 12  # levels of a schema


class AskedAction(NamedTuple):
    """An action that a person decides on, and the decisions that are allowed."""

    name: str
    args: Any
    description: str
    allowed: tuple[str, ...]


class AskedQuestion(NamedTuple):
    """A question to show.

    Args:
        value: as JSON.
        actions: actions to decide on, in order; none for any other question.
        is_single: True if the answer is one decision, not a list of them.
        options: values to choose from, if the graph says which.
        schema: JSON schema of the answer, if the graph gave one.
    """

    value: Any
    actions: tuple[AskedAction, ...] = ()
    is_single: bool = False
    options: tuple[Any, ...] = ()
    schema: Any = None


def question_of(interrupt: PendingInterrupt) -> AskedQuestion:
    """Return the question of an interrupt."""
    value, schema = plain(interrupt.value), plain(interrupt.response_schema)
    if isinstance(value, dict):
        requests, configs = value.get("action_requests"), value.get("review_configs")
        if isinstance(requests, list) and isinstance(configs, list):
            actions = [_action(one, at, configs) for at, one in enumerate(requests)]
            if found := tuple([one for one in actions if one is not None]):
                return AskedQuestion(value, found if len(found) == len(requests) else ())
        if value.get("type") == "tool_approval" and isinstance(value.get("name"), str):
            allowed = [one for one in DECISIONS if one in set(_types(schema, _DEEPEST))]
            text = str(value.get("description") or "")
            action = AskedAction(
                value["name"], value.get("args"), text, tuple(allowed or DECISIONS)
            )
            return AskedQuestion(value, (action,), is_single=True, schema=schema)
    options: Any = ()
    if isinstance(schema, dict):
        options = [True, False] if schema.get("type") == "boolean" else schema.get("enum")
    return AskedQuestion(value, options=tuple(options or ()), schema=schema)


def _action(request: Any, at: int, configs: list[Any]) -> AskedAction | None:
    """Return an action with its review, at the same place or by name; None if it has none."""
    if not isinstance(request, dict) or not isinstance(request.get("name"), str):
        return None
    name = request["name"]
    named = [one for one in configs if isinstance(one, dict) and one.get("action_name") == name]
    review = configs[at] if at < len(configs) and configs[at] in named else next(iter(named), None)
    chosen = None if review is None else review.get("allowed_decisions")
    allowed = tuple([one for one in DECISIONS if isinstance(chosen, list) and one in chosen])
    text = str(request.get("description") or "")
    return AskedAction(name, request.get("args"), text, allowed) if allowed else None


def _types(schema: Any, depth: int) -> Iterator[str]:
    """Yield the constants of properties named `type`, anywhere in a schema."""
    if isinstance(schema, dict) and depth:
        kind = schema.get("type")
        if isinstance(kind, dict) and isinstance(kind.get("const"), str):
            yield kind["const"]
        for part in schema.values():
            yield from _types(part, depth - 1)
    elif isinstance(schema, list) and depth:
        for part in schema:
            yield from _types(part, depth - 1)


# -- answers ---------------------------------------------------------------------------


def answer_of(question: AskedQuestion, given: Mapping[str, str]) -> Any:
    """Return the answer that a form gives.

    Raises:
        InvalidArgumentError: a field is missing or invalid; the error names it.
    """
    if question.actions:
        decisions = [_decision(one, at, given) for at, one in enumerate(question.actions)]
        return decisions[0] if question.is_single else {"decisions": decisions}
    if question.options:
        chosen = given.get("option", "")
        if not chosen.isdecimal() or int(chosen) >= len(question.options):
            raise InvalidArgumentError("Choose an answer.")
        return question.options[int(chosen)]
    text = given.get("answer", "")
    return _json(text, "The answer") if given.get("as") == "json" else text


def _decision(action: AskedAction, at: int, given: Mapping[str, str]) -> dict[str, Any]:
    kind, message = given.get(f"decision-{at}", ""), given.get(f"message-{at}", "").strip()
    if kind not in action.allowed:
        raise InvalidArgumentError(f"Choose a decision on {action.name}.")
    if kind == "edit":
        args = _json(given.get(f"args-{at}", ""), f"Arguments of {action.name}")
        if not isinstance(args, dict):
            raise InvalidArgumentError(f"Arguments of {action.name}: use a JSON object.")
        return {"type": "edit", "edited_action": {"name": action.name, "args": args}}
    if kind == "respond" and not message:
        raise InvalidArgumentError(f"Write the response to {action.name}.")
    return (
        {"type": kind} if kind == "approve" or not message else {"type": kind, "message": message}
    )


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise InvalidArgumentError(f"{what}: this JSON is too deep.") from None
    except ValueError as error:
        raise InvalidArgumentError(f"{what}: this is not JSON: {error}.") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
