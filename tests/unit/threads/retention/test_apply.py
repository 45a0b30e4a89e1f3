"""Removal of checkpoints and threads: rows removed, rows kept, space freed."""

import random

import pytest
from kit.engine import (
    Chain,
    checkpoint,
    config,
    exactly,
    fresh,
    interrupted,
    memory_saver,
    values_of,
)
from langgraph.checkpoint.base import empty_checkpoint

from threadkeep._core.engine.model import ReadSizes, ReadThread
from threadkeep.errors import ConflictError
from threadkeep.threads.retention import apply

LONG = "x" * 90


def ids(saver, thread="t"):
    return [str(found.checkpoint["id"]) for found in saver.list(config(thread))]


def segment_bytes(saver):
    (sizes,) = saver._store.backend.fetch([ReadSizes(None, 10)])
    return sum(size.segment_bytes for size in sizes.threads)


@pytest.fixture
def chain():
    return Chain(memory_saver())


def test_run_ids_of_any_kind(chain):
    saver, at = chain.saver, config()
    for number, run in enumerate(["r", ["r"], 5, None, {"r": 1}, "other", "r"]):
        at = saver.put(at, checkpoint(number, {}, {}), {"run_id": run}, {})
    saver.delete_for_runs(["r", "absent"])
    assert ids(saver) == [f"{number:08d}" for number in (5, 4, 3, 2, 1)]


def test_many_threads_of_one_run():
    saver = memory_saver()
    for number in range(apply._PAGE * 2 + 7):
        saver.put(config(f"{number}"), checkpoint(1, {}, {}), {"run_id": "r"}, {})
    saver.put(config("kept"), checkpoint(1, {}, {}), {"run_id": "s"}, {})
    saver.delete_for_runs(["r"])
    assert [found.config["configurable"]["thread_id"] for found in saver.list(None)] == ["kept"]


def test_pruning_gives_back_what_only_old_checkpoints_held(chain):
    chance = random.Random(1)
    for _ in range(20):
        chain.put(m=[chance.randbytes(90) for _ in range(50)], kept=[LONG] * 9)
    before = segment_bytes(chain.saver)
    chain.saver.prune(["t"])
    assert segment_bytes(chain.saver) < before / 4
    assert exactly(values_of(fresh(chain.saver), chain.at)) == exactly(chain.values)
    assert fresh(chain.saver).check().ok


def test_pruning_keeps_what_pending_writes_hold(chain):
    chain.put(m=[LONG])
    at = chain.put(n=1)
    chain.saver.put_writes(at, [("m", [f"written {LONG}", {"k": LONG}])], "task")
    chain.saver.prune(["t"])
    found = fresh(chain.saver).get_tuple(at)
    assert found.pending_writes == [("task", "m", [f"written {LONG}", {"k": LONG}])]
    assert fresh(chain.saver).check().ok


def test_pruning_leaves_a_patched_value_whole(chain):
    text = "".join(f"line {i}\n" for i in range(500))
    for number in range(40):
        text = text.replace(f"line {number * 3}\n", f"edited {number}\n")
        chain.put(doc=text)
    chain.saver.prune(["t"])
    assert values_of(fresh(chain.saver), chain.at) == {"doc": text}
    chain.put(doc=text + "more")
    assert values_of(fresh(chain.saver), chain.at) == {"doc": text + "more"}
    assert fresh(chain.saver).check().ok


def test_writes_of_checkpoints_that_never_came_go_in_time():
    """Ids contain a time: old orphans are removed, new ones stay."""
    saver = memory_saver()
    old = "1ef4f797-8335-6428-8001-8a1503f9b875"
    new = empty_checkpoint()["id"]
    Chain(saver).put(n=1)
    for checkpoint_id in (old, new, "no time"):
        saver.put_writes(config(checkpoint_id=checkpoint_id), [("m", [LONG])], "task")
    saver.prune(["t"])
    (rows,) = saver._store.backend.fetch([ReadThread("t")])
    assert sorted(row.checkpoint_id for row in rows.orphans) == sorted([new, "no time"])
    assert fresh(saver).check().ok


def test_pruning_a_thread_that_is_written_all_the_time_gives_up(chain):
    saver, names = chain.saver, iter(range(100))
    chain.put(m=[LONG])

    def write():
        saver.put_writes(chain.at, [("n", 1)], f"task {next(names)}")

    with pytest.raises(ConflictError, match="Other writers"):
        interrupted(saver, write, 100).prune(["t"])
    assert fresh(saver).check().ok
    assert len(ids(saver)) == 1
