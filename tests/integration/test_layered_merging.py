"""Merges of layered conversations: archived messages stay with the messages after them."""

from typing import Any

import pytest
from kit.conversations import Chat, talk, texts
from kit.places import at
from langchain_core.messages import BaseMessage, HumanMessage

from threadkeep import MemorySaver
from threadkeep.errors import InvalidArgumentError, MergeConflictError
from threadkeep.memory import LayeredCheckpointSaver, Layers

SMALL = Layers(full_window=4, summary_window=8, batch=1)


class Forked:
    """A thread "t" and its fork "f", and the messages of each."""

    def __init__(self, messages: int, policy: Layers = SMALL) -> None:
        self.memory: Any = LayeredCheckpointSaver(MemorySaver(), policy)
        self.chat = Chat(self.memory)
        self.said: dict[str, list[BaseMessage]] = {"t": talk(messages)}
        self.chat.talk("t", self.said["t"])
        self.memory.threads.fork("t", None, "f")
        self.said["f"] = self.said["t"]

    def talk(self, thread: str, messages: int) -> None:
        new = [
            one.model_copy(update={"id": f"{thread}{one.id}"})
            for one in talk(messages, len(self.said[thread]))
        ]
        self.chat.talk(thread, new)
        self.said[thread] = self.said[thread] + new

    def check(self, said: list[BaseMessage]) -> None:
        """Check that "t" holds this conversation, even after its archived messages change."""
        memory = self.memory
        assert texts(memory.full_messages("t")) == texts(said)
        archived = [one.message for one in memory.search_messages("t")]
        shown = [one for one in memory.load(at("t")) if one in said]
        assert texts([*archived, *shown]) == texts(said)
        for one in archived:
            assert [found.message for found in memory.search_messages("t", ids=[one.id])] == [one]
        assert memory.check().ok
        edited = HumanMessage("edited", id=said[0].id)
        self.chat.say("t", [edited, *talk(1, 1000)])
        assert texts(memory.full_messages("t")) == texts([edited, *said[1:], *talk(1, 1000)])


@pytest.mark.parametrize("strategy", [None, "theirs", "ours", "graph", lambda *_: None])
@pytest.mark.parametrize("messages", [2, 10])
def test_a_fork_that_alone_went_on(strategy: Any, messages: int) -> None:
    both = Forked(messages)
    both.talk("f", 20)
    strategy = both.chat.graph if strategy == "graph" else strategy
    assert both.memory.threads.merge_fork("f", "t", strategy, dry_run=True).channels == (
        "messages",
    )
    assert texts(both.memory.full_messages("t")) == texts(both.said["t"])
    assert both.memory.threads.merge_fork("f", "t", strategy).channels == ("messages",)
    both.check(both.said["f"])


def test_a_thread_that_was_deleted_once_and_began_again() -> None:
    both = Forked(2)
    for thread in ("f", "t"):
        both.memory.delete_thread(thread)
    both.chat.talk("t", both.said["t"])
    both.memory.threads.fork("t", None, "f")
    both.talk("f", 20)
    both.memory.threads.merge_fork("f", "t")
    both.check(both.said["f"])


@pytest.mark.parametrize("strategy", [None, "graph", lambda *_: []])
def test_two_archives_are_not_mixed(strategy: Any) -> None:
    both = Forked(10)
    both.talk("f", 20)
    both.talk("t", 6)
    graph = both.chat.graph
    with pytest.raises(InvalidArgumentError if strategy else MergeConflictError, match="messages"):
        both.memory.threads.merge_fork("f", "t", graph if strategy == "graph" else strategy)
    both.check(both.said["t"])


def test_what_is_archived_before_both_is_no_conflict() -> None:
    both = Forked(17, Layers(full_window=4, summary_window=20, batch=10))
    for thread in ("f", "t"):  # (nothing leaves the window)
        new = HumanMessage(f"said in {thread}", id=f"only {thread}")
        both.chat.graph.update_state(at(thread), {"messages": [new]}, as_node="model")
        both.said[thread] = [*both.said[thread], new]
    assert len(both.memory.search_messages("t")) == 10
    both.memory.threads.merge_fork("f", "t", both.chat.graph)
    both.check([*both.said["t"], both.said["f"][-1]])


def test_a_change_of_the_archive_alone_is_merged() -> None:
    both = Forked(10)
    both.memory.edit("f", [HumanMessage("better", id="m0")])
    assert both.memory.threads.merge_fork("f", "t").channels == ("messages",)
    both.check([HumanMessage("better", id="m0"), *both.said["t"][1:]])


def test_a_head_that_was_saved_without_layers_is_refused() -> None:
    both = Forked(10)
    both.talk("f", 10)
    plain = Chat(both.memory._inner)
    plain.say("t", talk(2, 50))
    with pytest.raises(InvalidArgumentError, match="without layers"):
        both.memory.threads.merge_fork("f", "t", "theirs")
    both.memory.save(at("t"), [*both.memory.load(at("t")), HumanMessage("with layers", id="new")])
    both.memory.threads.merge_fork("f", "t", "theirs")
    both.check(both.said["f"])
