"""Every scenario shows the same on threadkeep as on LangGraph's `InMemorySaver`.

What LangGraph's saver shows with the sync API is expected of ours with both APIs: on a
file by the sync API in every durability, in memory by the async one where a run
does not wait for each put, and crosswise in LangGraph's default durability. There, options
that must not show do not show either, nor does it show that the calls of one run come to
several savers on one file.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from kit.backends import open_backend
from kit.selection import drawn
from langgraph.checkpoint.memory import InMemorySaver

from .driver import play
from .scenarios import SCENARIOS
from .turns import TakingTurns

# Runs that follow one another never conflict; forgotten rows are read again.
UNUSUAL = {"conflicts": "raise", "working_set_bytes": 1}

RUNS = {
    "sync": [
        *(("sync", "sqlite"), ("async", "postgres"), ("async", "redis"), ("sync", "mysql")),
    ],
    "async": [
        *(("sync", "sqlite"), ("async", "memory"), ("sync", "postgres"), ("async", "redis")),
        ("async", "mysql"),
    ],
    "exit": [
        *(("sync", "sqlite"), ("async", "memory"), ("async", "postgres"), ("sync", "redis")),
        ("sync", "mysql"),
    ],
}
CASES = [
    pytest.param(name, durability, *run, id="-".join((name, durability, *run)))
    for name, scenario in SCENARIOS.items()
    for durability in drawn(scenario.durabilities, 1, name)
    for run in drawn(RUNS[durability], 1, (name, durability))
]
DEFAULT = {n: "async" if "async" in s.durabilities else "sync" for n, s in SCENARIOS.items()}


@cache
def expected(name: str, durability: str) -> list[Any]:
    """Return the result of LangGraph's own saver."""
    return play(SCENARIOS[name], InMemorySaver(), durability=durability, api="sync")


def check(name: str, durability: str, api: str, saver: Any) -> None:
    want = expected(name, durability)
    got = play(SCENARIOS[name], saver, durability=durability, api=api)
    assert [kind for kind, _ in got] == [kind for kind, _ in want]
    for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        assert mine == theirs, f"answer {number} differs"
    assert saver.check().ok


@pytest.mark.parametrize(("name", "durability", "api", "backend"), CASES)
def test_scenario(name: str, durability: str, api: str, backend: str, tmp_path: Path) -> None:
    with open_backend(backend, tmp_path) as saver:
        check(name, durability, api, saver)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_crosswise(name: str, tmp_path: Path) -> None:
    with open_backend("sqlite", tmp_path) as saver:
        check(name, DEFAULT[name], "async", saver)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_with_unusual_options(name: str, tmp_path: Path) -> None:
    with open_backend("memory", tmp_path, **UNUSUAL) as saver:
        check(name, DEFAULT[name], "sync", saver)


IN_TURNS = [
    "agent_with_two_tools",
    "ask_again_after_going_back",
    "chat_that_removes_messages",
    "copy_and_update_at_once",
    "delta_fanned_out_3",
    "delta_forked_3",
    "delta_updated_from_outside_100",
    "fan_out",
    "lists_that_are_edited_everywhere",
    "nested_values_that_change_deep_inside",
    "subgraph_with_a_memory_that_asks",
]


@pytest.mark.parametrize("name", IN_TURNS)
def test_scenario_with_savers_that_take_turns(name: str, another: Any) -> None:
    check(name, "sync", "sync", TakingTurns([another() for _ in range(3)]))
