"""Every scenario shows the same on threadkeep as on LangGraph's `InMemorySaver`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from .backends import BACKENDS, open_backend
from .driver import play
from .scenarios import SCENARIOS

if TYPE_CHECKING:
    from pathlib import Path

CASES = [
    pytest.param(name, durability, api, id=f"{name}-{durability}-{api}")
    for name, scenario in SCENARIOS.items()
    for durability in scenario.durabilities
    for api in scenario.apis
]


@cache
def expected(name: str, durability: str, api: str) -> list[Any]:
    """What LangGraph's own saver shows; the same for every backend."""
    return play(SCENARIOS[name], InMemorySaver(), durability=durability, api=api)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "durability", "api"), CASES)
def test_scenario(
    name: str, durability: str, api: str, backend: str, tmp_path: Path
) -> None:
    want = expected(name, durability, api)
    with open_backend(backend, tmp_path) as saver:
        got = play(SCENARIOS[name], saver, durability=durability, api=api)
    assert [kind for kind, _ in got] == [kind for kind, _ in want]
    for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        assert mine == theirs, f"answer {number} differs"
