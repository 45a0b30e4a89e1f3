"""Steps: the nodes that ran, how long, and tasks that wait or failed after it."""

from contextlib import suppress
from itertools import pairwise

import pytest
from kit.graphs_to_look_at import asks, desk, failing, named, refund
from kit.rows import checkpoint, place
from langgraph.checkpoint.serde.types import ERROR
from langgraph.types import Command

from threadkeep import MemorySaver
from threadkeep.threads.steps import read_steps, seconds_between, step_of


@pytest.fixture
def saver():
    with MemorySaver() as found:
        yield found


def steps_of(saver, thread, values):
    """The steps of a thread without forks, newest first."""
    found = [*saver.list(named(thread), values=values)]
    return [step_of(one, above, is_tip=one is found[0]) for one, above in pairwise([*found, None])]


@pytest.mark.parametrize("values", ["eager", "lazy"])
def test_nodes_and_times(saver, values):
    desk(saver).invoke(asks("Where is ORDER-17?"), named("order"))
    steps = steps_of(saver, "order", values)
    assert [one.ran for one in steps] == [("answer",), ("find_order",), ("look_up",), (), ()]
    assert [one.number for one in steps] == [3, 2, 1, 0, -1]
    assert [one.tasks for one in steps] == [1, 1, 1, 1, 0]
    assert [one.kind for one in steps][-2:] == ["start", "input"]
    assert all(0 <= one.seconds < 60 for one in steps[:-1])
    assert steps[-1].seconds is None
    assert "messages" in steps[0].wrote


@pytest.mark.parametrize("values", ["eager", "lazy"])
def test_what_waits(saver, values):
    graph = refund(saver)
    graph.invoke(asks("Refund me"), named("refund"))
    tip = steps_of(saver, "refund", values)[0]
    assert tip.next == ("ask_finance", "ask_manager")
    assert len(tip.waiting) == 2
    assert not tip.waited
    pending = graph.get_state(named("refund")).interrupts
    graph.invoke(Command(resume={one.id: True for one in pending}), named("refund"))
    answered = next(one for one in steps_of(saver, "refund", values) if len(one.ran) == 2)
    assert answered.waited
    assert answered.is_idle
    assert not answered.waiting, "it has a child"


def test_what_failed(saver):
    with suppress(ValueError):
        failing(saver).invoke(asks("Fail"), named("failed"))
    (found, *_) = saver.list(named("failed"), values="lazy")
    tip = step_of(found)
    assert len(tip.failed) == 1
    assert tip.errors == ("""ValueError("The carrier's service is down")""",)


async def test_a_part_of_a_list_is_read_as_the_whole(saver):
    """Parents outside of it are read, and a checkpoint that another one continues has no tasks."""
    with suppress(ValueError):
        failing(saver).invoke(asks("Fail"), named("failed"))
    found = [*saver.list(named("failed"), values="lazy")]
    whole = await read_steps(saver, found, len(found))
    assert whole[0].errors
    assert whole == steps_of(saver, "failed", "lazy")
    listed = [*saver.list(named("failed"), values="lazy", limit=1)]
    assert await read_steps(saver, listed, 1) == whole[:1]
    (tip,) = await read_steps(saver, listed, 1, {(whole[0].ns, whole[0].id)})
    assert (tip.next, tip.failed, tip.ran) == ((), (), whole[0].ran)


def test_what_others_wrote_is_read(saver):
    config = saver.put(place(), checkpoint({"a": 1}), {"source": 7, "step": ["x"]}, {"a": 1})
    saver.put_writes(config, [(ERROR, "odd")], "task")
    found = saver.get_tuple(config)
    found.checkpoint.update(ts="soon", versions_seen=None, updated_channels="all")
    found.checkpoint["channel_values"]["__pregel_tasks"] = 7
    one = step_of(found, found)
    assert (one.source, one.number, one.seconds, one.ran, one.wrote) == ("7", None, None, (), ())
    assert one.next == ()
    assert one.errors == ("odd",)


def test_seconds():
    assert seconds_between("2026-01-01T00:00:00+00:00", "2026-01-01T00:01:30+00:00") == 90
    assert seconds_between("2026-01-01T00:00:01+00:00", "2026-01-01T00:00:00+00:00") == 0
    assert seconds_between("then", "2026-01-01T00:00:00+00:00") is None
