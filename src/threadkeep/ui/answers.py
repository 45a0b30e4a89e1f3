"""Questions of interrupts as forms, and filled-in forms as answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from threadkeep.errors import InvalidArgumentError
from threadkeep.threads import PendingInterrupt
from threadkeep.threads.diff import plain
from threadkeep.ui.text import read_json

DECISIONS = ("approve", "edit", "reject", "respond")
"""Decisions on an action, as LangChain's human-in-the-loop names them."""


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
        schema: JSON schema of the answer, if the graph gave one.
    """

    value: Any
    actions: tuple[AskedAction, ...] = ()
    is_single: bool = False
    schema: Any = None


def question_of(interrupt: PendingInterrupt) -> AskedQuestion:
    """Return the question of an interrupt."""
    value, schema = plain(interrupt.value), plain(interrupt.response_schema)
    if isinstance(value, dict):
        requests, configs = value.get("action_requests"), value.get("review_configs")
        if isinstance(requests, list) and isinstance(configs, list):
            actions = [_action(one, _allowed(one, at, configs)) for at, one in enumerate(requests)]
            if all(actions):
                return AskedQuestion(value, tuple(filter(None, actions)), schema=schema)
        if value.get("type") == "tool_approval":
            text = json.dumps(schema)
            named = [one for one in DECISIONS if f'"const": "{one}"' in text]
            if action := _action(value, named or DECISIONS):
                return AskedQuestion(value, (action,), is_single=True)
    return AskedQuestion(value, schema=schema)


def _action(request: Any, allowed: Any) -> AskedAction | None:
    """Return an action to decide on; None if it has no name or no decision is allowed."""
    known = tuple(
        [one for one in DECISIONS if isinstance(allowed, list | tuple) and one in allowed]
    )
    if not known or not isinstance(request, dict) or not isinstance(request.get("name"), str):
        return None
    text = str(request.get("description") or "")
    return AskedAction(request["name"], request.get("args"), text, known)


def _allowed(request: Any, at: int, configs: list[Any]) -> Any:
    """Return the decisions of the review at the same place, else of the first by the name."""
    name = request.get("name") if isinstance(request, dict) else None
    reviews = [one for one in [*configs[at : at + 1], *configs] if isinstance(one, dict)]
    named = [one for one in reviews if one.get("action_name") == name]
    return named[0].get("allowed_decisions") if named else None


def answer_of(question: AskedQuestion, given: Mapping[str, str]) -> Any:
    """Return the answer that a form gives.

    Raises:
        InvalidArgumentError: a field is missing or invalid; the error names it.
    """
    if question.actions:
        decisions = [_decision(one, at, given) for at, one in enumerate(question.actions)]
        return decisions[0] if question.is_single else {"decisions": decisions}
    text = given.get("answer", "")
    return read_json(text) if given.get("as") == "json" else text


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
