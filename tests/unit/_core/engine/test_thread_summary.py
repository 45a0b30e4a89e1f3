"""The meaning of channels and writes of a step, compared with LangGraph's."""

from hypothesis import given
from hypothesis import strategies as st
from langgraph._internal import _constants
from langgraph.pregel._task_status import read_task_statuses

from threadkeep._core.engine.thread_summary import following, state_channels, tasks
from threadkeep._core.langgraph_internals import ERROR_SOURCE, NO_TASK

CHANNELS = ["__interrupt__", "__resume__", "__error__", ERROR_SOURCE, "__no_writes__", "log"]
WRITES = st.lists(st.tuples(st.sampled_from([NO_TASK, "1", "2", "3"]), st.sampled_from(CHANNELS)))


def test_the_names_are_langgraphs():
    assert NO_TASK == _constants.NULL_TASK_ID
    assert ERROR_SOURCE == _constants.ERROR_SOURCE_NODE


@given(WRITES)
def test_tasks_stand_as_langgraph_says(writes):
    theirs = read_task_statuses([(task, channel, ("?",)) for task, channel in writes])
    ours = tasks(writes)
    assert set(ours.asked) == {id for id, one in theirs.items() if one.interrupts}
    assert set(ours.waiting) == {id for id, one in theirs.items() if one.pending_interrupts}
    assert set(ours.failed) == {id for id, one in theirs.items() if one.error is not None}


def test_channels_of_the_state_and_of_what_comes_next():
    channels = ["branch:to:b", "log", "__start__", "__pregel_tasks", "branch:to:a"]
    assert state_channels(channels) == ["log"]
    assert following(channels) == ["__start__", "b", "a"]
    assert following(["log"]) == []
