"""A saver with layers shows graphs what the saver inside shows, as long as nothing leaves."""

import pytest
from langgraph.checkpoint.conformance.capabilities import Capability

from threadkeep import MemorySaver
from threadkeep.memory import LayeredCheckpointSaver

from .driver import play
from .scenarios import SCENARIOS
from .test_conformance import published


@pytest.mark.parametrize("capability", Capability)
async def test_published_suite(capability: Capability) -> None:
    for case in published(capability):
        async with LayeredCheckpointSaver(MemorySaver()) as saver:
            await case(saver)


@pytest.mark.parametrize("api", ["sync", "async"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_graphs(scenario: str, api: str) -> None:
    durability = SCENARIOS[scenario].durabilities[-1]
    expected = play(SCENARIOS[scenario], MemorySaver(), durability=durability, api=api)
    saver = LayeredCheckpointSaver(MemorySaver())
    assert play(SCENARIOS[scenario], saver, durability=durability, api=api) == expected
