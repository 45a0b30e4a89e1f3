"""Any set of rows makes a tree, and reading them is cheap."""

from hypothesis import example, given
from hypothesis import strategies as st
from kit.engine import Chain, Counted, checkpoint, config, counted_saver

from threadkeep._core.engine.model import Batch
from threadkeep.savers.saver import Saver
from threadkeep.threads.forks import BranchCheckpoint, tree

IDS = st.integers(0, 14).map(lambda n: f"{n:02}")
PARENTS = st.dictionaries(IDS, st.none() | IDS | st.just("absent"), min_size=1)


def made(parents, pruned=()):
    shown = {
        id: BranchCheckpoint(id, parent, "", {"step": 1})
        for id, parent in parents.items()
        if id not in pruned
    }
    hidden = {id: parent for id, parent in parents.items() if id in pruned}
    return tree("t", "", shown, hidden) if shown else None


def walked(id, parents, pruned):
    """Walk up from a checkpoint: last one, hidden ones passed, reason for the end."""
    met, hidden, at = [], 0, parents[id]
    while at in pruned and at not in met and at in parents:
        met.append(at)
        hidden += 1
        at = parents[at]
    return at, hidden, met


@given(PARENTS, st.sets(IDS))
@example({"01": "01"}, set())
@example({"01": "02", "02": "01", "03": "02"}, set())
@example({"01": "02", "02": "02"}, {"02"})
@example({"03": "02", "02": "01", "01": "absent"}, {"01", "02"})
def test_any_rows_make_a_tree(parents, pruned):
    found = made(parents, pruned)
    if found is None:
        return
    visible = parents.keys() - pruned
    assert found.checkpoints.keys() == visible
    met = set()
    for id, one in found.checkpoints.items():
        assert one.id == id
        assert one.visible_parent is None or one.visible_parent in met, "behind what it hangs from"
        met.add(id)
        assert list(one.children) == sorted(
            other.id for other in found.checkpoints.values() if other.visible_parent == id
        )
        assert one.parent == parents[id]
    assert found.head == max(visible)
    assert [one.id for one in found.checkpoints.values() if one.is_head] == [found.head]
    assert list(found.roots) == sorted(
        i for i in visible if found.checkpoints[i].visible_parent is None
    )
    assert list(found.tips) == sorted(i for i in visible if not found.checkpoints[i].children)
    assert list(found.forks) == sorted(i for i in visible if len(found.checkpoints[i].children) > 1)


@given(PARENTS, st.sets(IDS))
def test_ways_up_are_told_as_they_are(parents, pruned):
    found = made(parents, pruned)
    for id, one in found.checkpoints.items() if found else ():
        end, hidden, met = walked(id, parents, pruned)
        in_circle = end in met
        assert one.is_cut == (end is not None and end not in parents and not in_circle)
        if not in_circle:
            assert one.hidden == hidden
        if one.visible_parent is not None:
            assert one.visible_parent == end


def test_a_circle_begins_at_its_oldest():
    found = made({"05": "07", "06": "05", "07": "06", "08": "06"})
    assert found.roots == ("05",)
    assert found.tips == ("07", "08")
    assert found.forks == ("06",)
    assert found.checkpoints["05"].parent == "07"


def test_thousands_of_checkpoints_are_read_in_pages_and_no_value_is_decoded():
    saver, backend, codec = counted_saver()
    chain = Chain(saver)
    for number in range(1000):
        chain.put(m=["x" * 100, number])
        saver.put_writes(chain.at, [("m", ["x" * 100])], "task")
    backend.asked()
    codec.decoded = 0
    found = saver.threads.branches("t")
    assert len(found.checkpoints) == 1000
    assert backend.asked() == (4, 0)
    assert codec.decoded == 0


@given(PARENTS)
def test_what_led_to_a_checkpoint_alone(parents):
    found = made(parents)
    for id in found.checkpoints:
        *ways, last = found.since_fork(id)
        assert last == id
        assert all(len(found.checkpoints[way].children) == 1 for way in ways)
        above = found.checkpoints[(*ways, last)[0]].visible_parent
        assert above is None or above in found.forks


def test_hidden_ancestors_are_read_in_stretches():
    backend = Counted()
    saver = Saver(backend)
    for start in range(40):  # each its own line, with only the ends left
        chain = Chain(saver, start=start * 100)
        for _ in range(20):
            chain.put(n=1)
    hidden = [("", f"{s * 100 + n:08d}") for s in range(40) for n in range(2, 20)]
    backend.commit(Batch("t", 1, hide_checkpoints=tuple(hidden)))
    backend.asked()
    found = saver.threads.branches("t")
    assert len(found.checkpoints) == 80
    assert {one.hidden for one in found.checkpoints.values() if one.visible_parent} == {18}
    assert backend.asked()[0] <= 5


def test_a_long_hidden_line_is_read_in_few_stretches():
    backend = Counted()
    saver = Saver(backend)
    chain = Chain(saver)
    for _ in range(900):
        chain.put(n=1)
    hidden = [("", f"{n:08d}") for n in range(1, 900)]
    backend.commit(Batch("t", 1, hide_checkpoints=tuple(hidden)))
    backend.asked()
    (one,) = saver.threads.branches("t").checkpoints.values()
    assert (one.hidden, one.visible_parent, one.is_cut) == (899, None, False)
    assert backend.asked()[0] <= 12


def test_of_an_answered_interrupt_nothing_waits():
    saver = Saver(Counted())
    at = saver.put(config(), checkpoint(1, {}, {}), {}, {})

    def waits():
        return saver.threads.branches("t").checkpoints["00000001"].waiting

    saver.put_writes(at, [("other", 1)], "task 1")
    assert not waits()
    saver.put_writes(at, [("__interrupt__", "?")], "task 2")
    assert waits()
    saver.put_writes(at, [("__resume__", "!")], "task 2")
    assert waits()
    saver.put_writes(at, [("log", "!")], "task 2")
    assert not waits()
    saver.put_writes(at, [("__interrupt__", "?")], "task 3")
    assert waits()
    saver.put(at, checkpoint(2, {}, {}), {}, {})
    assert not waits()
