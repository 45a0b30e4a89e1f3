"""A thread that another process has continued: only the new part of it is read."""

from typing import Any

import pytest
from kit.engine import Counted, exactly
from kit.graphs import linear
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.graph import MessagesState

from threadkeep._core.engine.model import ReadSegments
from threadkeep.savers.saver import Saver


def graph_of(saver: Saver) -> Any:
    return linear(saver, MessagesState, model=lambda state: {"messages": [AIMessage("so " * 30)]})


def say(graph: Any, number: int) -> list[Any]:
    at = {"configurable": {"thread_id": "t"}}
    found: list[Any] = graph.invoke({"messages": [HumanMessage(f"{number} " * 30)]}, at)["messages"]
    return found


@pytest.fixture
def store() -> Counted:
    return Counted()


def positions(store: Counted) -> int:
    """Count the positions in the spans that were read since the last call."""
    spans = [
        span
        for reads in store.fetches
        for read in reads
        if isinstance(read, ReadSegments)
        for span in read.spans
    ]
    store.fetches.clear()
    return sum(span.stop - span.start for span in spans)


def test_only_the_new_messages_are_read(store: Counted) -> None:
    one, other = graph_of(Saver(store)), graph_of(Saver(store))
    for number in range(8):
        say(one, number)
    say(other, 8)
    store.fetches.clear()
    said = say(one, 9)
    assert positions(store) == 2
    assert [message.content for message in said[::2]] == [f"{number} " * 30 for number in range(10)]
    fresh = Saver(store).get_tuple({"configurable": {"thread_id": "t"}})
    assert exactly(fresh.checkpoint["channel_values"]["messages"]) == exactly(said)


def test_saves_continue_the_logs_that_others_have_ended(store: Counted) -> None:
    graphs = [graph_of(Saver(store)) for _ in range(2)]
    for number in range(8):
        say(graphs[number % 2], number)
    batches = len(store.commits)
    for number in range(8, 30):
        say(graphs[number % 2], number)
    logs = {one.log for batch in store.commits[batches:] for one in batch.segments}
    assert len(logs) <= 6  # (a log that was taken would be left for another one)


def test_a_message_that_was_changed_in_place_is_read_again(store: Counted) -> None:
    one, other = graph_of(Saver(store)), graph_of(Saver(store))
    said = say(one, 0)
    say(other, 1)
    said[0].content = "changed by the program"
    assert [message.content for message in say(one, 2)[:1]] == ["0 " * 30]


def test_a_list_that_others_have_cut_is_read_again(store: Counted) -> None:
    one, other = graph_of(Saver(store)), graph_of(Saver(store))
    for number in range(3):
        say(one, number)
    at = {"configurable": {"thread_id": "t"}}
    first = other.get_state(at).values["messages"][0]

    other.update_state(at, {"messages": [RemoveMessage(id=first.id)]})
    assert [m.content for m in say(one, 3)[1::2]] == ["1 " * 30, "2 " * 30, "3 " * 30]
