"""Observed savers show graphs what the saver inside shows."""

import pytest
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from prometheus_client import CollectorRegistry

from threadkeep import MemorySaver
from threadkeep.monitor import observe

from .driver import play
from .scenarios import SCENARIOS
from .test_conformance import published

PLAYED = ["agent_with_two_tools", "delta_forked_3", "subgraph_with_a_memory_that_asks"]


@pytest.mark.parametrize("capability", Capability)
async def test_published_suite(capability: Capability) -> None:
    for case in published(capability):
        async with observe(MemorySaver(), registry=CollectorRegistry()) as saver:
            await case(saver)


@pytest.mark.parametrize("api", ["sync", "async"])
@pytest.mark.parametrize("scenario", PLAYED)
def test_scenario(scenario: str, api: str) -> None:
    durability = SCENARIOS[scenario].durabilities[-1]
    expected = play(SCENARIOS[scenario], InMemorySaver(), durability=durability, api=api)
    saver = observe(InMemorySaver(), registry=CollectorRegistry())
    assert play(SCENARIOS[scenario], saver, durability=durability, api=api) == expected


def test_scenario_on_the_sqlite_saver_of_langgraph() -> None:
    scenario = SCENARIOS["ask_again_after_going_back"]
    with SqliteSaver.from_conn_string(":memory:") as saver:
        expected = play(scenario, saver, durability="sync", api="sync")
    with SqliteSaver.from_conn_string(":memory:") as saver:
        assert play(scenario, observe(saver), durability="sync", api="sync") == expected
