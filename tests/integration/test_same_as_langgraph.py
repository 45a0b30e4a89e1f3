"""Every scenario shows the same on threadkeep as on LangGraph's `InMemorySaver`.

What LangGraph's saver shows with the sync API is expected of ours with both APIs. In
memory each scenario runs in every durability by both APIs, on a file in every durability
by one of them: what differs between the stores does not depend on the API.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from .backends import open_backend
from .driver import play
from .scenarios import SCENARIOS

if TYPE_CHECKING:
    from pathlib import Path

ON_A_FILE = {"sync": "sync", "async": "async", "exit": "sync"}
CASES = [
    pytest.param(name, durability, api, backend, id=f"{name}-{durability}-{api}-{backend}")
    for name, scenario in SCENARIOS.items()
    for durability in scenario.durabilities
    for backend, apis in (("memory", ("sync", "async")), ("sqlite", (ON_A_FILE[durability],)))
    for api in apis
]


@cache
def expected(name: str, durability: str) -> list[Any]:
    """What LangGraph's own saver shows."""
    return play(SCENARIOS[name], InMemorySaver(), durability=durability, api="sync")


@pytest.mark.parametrize(("name", "durability", "api", "backend"), CASES)
def test_scenario(name: str, durability: str, api: str, backend: str, tmp_path: Path) -> None:
    want = expected(name, durability)
    with open_backend(backend, tmp_path) as saver:
        got = play(SCENARIOS[name], saver, durability=durability, api=api)
    assert [kind for kind, _ in got] == [kind for kind, _ in want]
    for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        assert mine == theirs, f"answer {number} differs"
