"""Looking at a thread while others prune, damage or delete it."""

import pytest
from kit.engine import Chain, Counted, Steps

from threadkeep._core.engine.model import Batch
from threadkeep._core.engine.operation import CheckpointRef
from threadkeep.errors import CheckpointNotFoundError, CorruptionError, ThreadNotFoundError
from threadkeep.savers.saver import Saver
from threadkeep.threads import forks
from threadkeep.threads.diff import checkpoints


@pytest.fixture
def made():
    backend = Counted()
    saver = Saver(backend)
    chain = Chain(saver)
    for number in range(6):
        chain.put(m=[f"{number} {'x' * 200}"] * (number + 1), n=number // 3)
    return saver, backend


def test_a_prune_between_the_reads_of_a_diff_is_noticed(made):
    saver, backend = made
    places = CheckpointRef("t", "", "00000001"), CheckpointRef("t", "", "00000006")
    steps = Steps(checkpoints.compare(saver._engine, *places), backend)
    steps.step()
    saver.prune(["t"])
    with pytest.raises(CheckpointNotFoundError) as caught:
        steps.finish()
    assert caught.value.checkpoint == "00000001"


def test_a_diff_goes_on_where_what_it_compares_is_still_there(made):
    saver, backend = made
    steps = Steps(
        checkpoints.compare(saver._engine, CheckpointRef("t"), CheckpointRef("t", "", "00000006")),
        backend,
    )
    steps.step()
    saver.prune(["t"])
    assert all(pair.before is pair.after for pair in steps.finish()[2].values())


def test_damage_is_no_reason_to_try_for_ever(made):
    saver, backend = made
    segments = [s for c in backend.commits if isinstance(c, Batch) for s in c.segments]
    drops = tuple({(s.log, s.start, s.count) for s in segments if s.log != 0})
    backend.inner.commit(Batch("t", 1, drop_segments=drops))
    with pytest.raises(CorruptionError):
        saver.threads.diff("t", "00000001")


def test_a_prune_between_the_stretches_of_a_history_is_noticed(made):
    saver, backend = made
    steps = Steps(checkpoints.versions(saver._engine, "t", "n", "", None, None), backend)
    steps.step()
    saver.prune(["t"])
    (found,) = steps.finish()
    assert (found.checkpoint, found.version, found.is_first) == ("00000006", 6, False)


def test_a_thread_that_is_deleted_meanwhile_is_not_there(made):
    saver, backend = made
    steps = Steps(checkpoints.versions(saver._engine, "t", "n", "", None, None), backend)
    steps.step()
    saver.delete_thread("t")
    with pytest.raises(ThreadNotFoundError):
        steps.finish()


def test_a_tree_whose_thread_is_deleted_between_pages_is_as_it_was_read(made):
    saver, backend = made
    steps = Steps(forks.branches(saver._engine, "t", ""), backend)
    steps.step()
    saver.delete_thread("t")
    found = steps.finish()
    assert len(found.checkpoints) == 6


def test_a_damaged_manifest_names_its_checkpoint(made):
    saver, backend = made
    row = next(r for c in backend.commits if isinstance(c, Batch) for r in c.checkpoints)
    damaged = row._replace(manifest=row.manifest[:-1] + b"?")
    backend.inner.commit(Batch("t", 1, checkpoints=(damaged,)))
    for look in (
        lambda t: t.versions("t", "n", limit=None),
        lambda t: t.diff("t", row.id),
        lambda t: t.branches("t"),
    ):
        with pytest.raises(CorruptionError) as caught:
            look(saver.threads)
        assert (caught.value.thread, caught.value.checkpoint) == ("t", row.id)
