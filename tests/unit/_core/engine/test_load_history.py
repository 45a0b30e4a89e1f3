"""The history of DeltaChannels over long, broken and circular paths."""

from random import Random

import pytest
from kit.engine import Counted, checkpoint, config, fresh, memory_saver, rows_in_memory
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep._core.engine.model import ReadThread
from threadkeep.errors import ConflictError
from threadkeep.savers.saver import Saver


def tell(saver, count, seed_at=0):
    """A path whose every step writes to channel d, stored only at `seed_at`."""
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


@pytest.mark.drawn(6)
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


def test_a_checkpoint_that_is_removed_after_it_was_loaded(made):
    saver, _ = made
    tell(saver, 3)
    loaded, never = saver.get_tuple(config()).config, tell(InMemorySaver(), 3)
    saver.delete_thread("t")
    with pytest.raises(ConflictError, match="removed meanwhile"):
        saver.get_delta_channel_history(config=loaded, channels=["d"])
    assert saver.get_delta_channel_history(config=never, channels=["d"]) == {"d": {"writes": []}}


# -- pruned, where no metadata counts the channel --------------------------------------


def put_uncounted(saver, values, *, write):
    """Six steps, only the second with values; optionally with writes to d."""
    at = config()
    for i in range(6):
        versions = {"d": i + 1, "n": i + 1}
        at = saver.put(at, checkpoint(i, values if i == 1 else {}, versions), {}, versions)
        saver.put_writes(at, [("d" if write else "other", f"write {i}")], f"task {i}")
    return at


def left(saver):
    """Count the stored checkpoints, hidden or not."""
    (rows,) = saver._store.backend.fetch([ReadThread("t")])
    return len(rows.checkpoints)


@pytest.mark.parametrize(
    ("serde", "size"),
    [(None, 1), (None, 3000), (JsonPlusSerializer(), 1)],
    ids=["inline", "cell", "serde"],
)
@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("call", ["prune", "delete_for_runs"])
def test_an_uncounted_snapshot_stays(serde, write, size, call):
    saver = memory_saver(serde=serde)
    seed = _DeltaSnapshot([Random(1).randbytes(size).hex()])
    at = put_uncounted(saver, {"d": seed}, write=write)
    before = saver.get_delta_channel_history(config=at, channels=["d"])
    assert before["d"]["seed"] == seed
    for _ in range(2):
        if call == "prune":
            saver.prune(["t"])
        else:
            saver.delete_for_runs(["none"])
        assert fresh_history(saver, at, serde) == before
        assert fresh(saver).check().ok
    assert left(saver) == (5 if call == "prune" else 6)


def fresh_history(saver, at, serde):
    other = Saver(saver._store.backend, serde=serde)
    return other.get_delta_channel_history(config=at, channels=["d"])


def test_uncounted_writes_without_a_snapshot_stay():
    saver = memory_saver()
    at = put_uncounted(saver, {}, write=True)
    before = saver.get_delta_channel_history(config=at, channels=["d"])
    assert len(before["d"]["writes"]) == 5
    saver.prune(["t"])
    assert fresh(saver).get_delta_channel_history(config=at, channels=["d"]) == before


@pytest.mark.parametrize("value", [None, "short", "x" * 5000, ["x" * 5000], (1, 2)])
def test_an_emptied_channel_keeps_nothing(value):
    saver = memory_saver()
    put_uncounted(saver, {"d": value}, write=False)
    saver.prune(["t"])
    assert left(saver) == 1


def test_a_seed_that_cannot_be_read_stays():
    """It may be a snapshot, and repair may still mend it."""
    saver = memory_saver()
    snapshot = _DeltaSnapshot([Random(1).randbytes(3000).hex()])
    put_uncounted(saver, {"d": snapshot}, write=False)
    logs = rows_in_memory(saver)["t"].heap
    log = next(
        log for log in logs.values() if any(len(s.data) > 999 for s in log.segments.values())
    )
    log.drop(log.starts[0], log.segments[log.starts[0]].count)
    fresh(saver).prune(["t"])
    assert left(saver) == 5
