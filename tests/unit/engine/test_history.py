"""The history of DeltaChannels over long, broken and circular paths."""

from __future__ import annotations

import pytest
from engine_kit import Counted, checkpoint, config, fresh
from langgraph.checkpoint.memory import InMemorySaver

from threadkeep.saver import Saver


def tell(saver, count, seed_at=0):
    """A path on which every step writes to channel d, which is stored at `seed_at` alone."""
    at = config()
    for i in range(count):
        values = {"d": ["seed"]} if i == seed_at else {}
        versions = {"d": f"{i + 1:032}.0.5"}
        at = saver.put(at, checkpoint(i, values, versions), {"step": i}, versions)
        saver.put_writes(at, [("d", f"write {i}"), ("other", i)], f"task {i}")
    return at


@pytest.fixture
def made():
    backend = Counted()
    return Saver(backend), backend


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 34, 97, 300])
@pytest.mark.parametrize("seed_at", [0, 20, 10_000])
def test_as_with_langgraphs_saver(made, count, seed_at):
    saver, _ = made
    theirs = InMemorySaver()
    at, same = tell(saver, count, seed_at), tell(theirs, count, seed_at)
    for reader in (saver, fresh(saver)):
        found = reader.get_delta_channel_history(config=at, channels=["d", "absent"])
        assert found == theirs.get_delta_channel_history(config=same, channels=["d", "absent"])


def test_a_long_path_is_read_in_few_stretches(made):
    saver, backend = made
    at = tell(saver, 600)
    backend.asked()
    found = saver.get_delta_channel_history(config=at, channels=["d"])
    assert len(found["d"]["writes"]) == 599
    assert backend.asked()[0] <= 8


def test_a_near_seed_is_read_in_one_stretch(made):
    saver, backend = made
    at = tell(saver, 600, seed_at=590)
    backend.asked()
    found = saver.get_delta_channel_history(config=at, channels=["d"])
    assert found["d"] == {
        "writes": [(f"task {i}", "d", f"write {i}") for i in range(590, 599)],
        "seed": ["seed"],
    }
    assert backend.asked()[0] <= 3


def test_a_checkpoint_that_is_its_own_parent(made):
    saver, _ = made
    at = saver.put(config(), checkpoint(1, {}, {"d": 1}), {}, {})
    saver.put_writes(at, [("d", "a write")], "task")
    saver.put(at, checkpoint(1, {}, {"d": 2}), {}, {})
    after = saver.put(
        at, checkpoint(2, {}, {"d": 3}), {"counters_since_delta_snapshot": {"d": (1, 1)}}, {}
    )
    for _ in range(2):
        found = saver.get_delta_channel_history(config=after, channels=["d"])
        assert found == {"d": {"writes": [("task", "d", "a write")]}}
        saver.prune(["t"])
    assert fresh(saver).check().ok


def test_checkpoints_that_are_each_others_parents(made):
    saver, _ = made
    first = saver.put(config(), checkpoint(1, {}, {"d": 1}), {}, {})
    second = saver.put(first, checkpoint(2, {}, {"d": 2}), {}, {})
    saver.put(second, checkpoint(1, {}, {"d": 3}), {}, {})
    for at in (first, second):
        assert saver.get_delta_channel_history(config=at, channels=["d"]) == {"d": {"writes": []}}
    saver.prune(["t"])
    assert len(list(saver.list(config()))) == 1
    assert fresh(saver).check().ok


def test_no_thread_and_no_channels(made):
    saver, _ = made
    assert saver.get_delta_channel_history(config=config(), channels=["d"]) == {"d": {"writes": []}}
    assert saver.get_delta_channel_history(config=config(), channels=[]) == {}
