"""The table itself: the decorator that fills it and the record of one scenario."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

DURABILITIES = ("sync", "async", "exit")


@dataclass(frozen=True)
class Scenario:
    """A script for a `Driver`, and where it is meaningful."""

    name: str
    script: Callable[[Any], Coroutine[Any, Any, None]]
    durabilities: tuple[str, ...]
    raced_ids: bool


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    script: Any = None, *, durabilities: tuple[str, ...] = DURABILITIES, raced_ids: bool = False
) -> Any:
    """Enter a script into the table under its own name.

    Name durabilities only where LangGraph itself, on its own saver, does not always show
    the same in the others; for `raced_ids` see `Canon`.
    """

    def enter(script: Any) -> Any:
        name = script.__name__
        assert name not in SCENARIOS, f"two scenarios are named {name}"
        SCENARIOS[name] = Scenario(name, script, durabilities, raced_ids)
        return script

    return enter(script) if script else enter
