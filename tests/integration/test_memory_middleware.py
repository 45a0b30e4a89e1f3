"""Agents of LangChain whose models see the view of layered memory."""

import subprocess
import sys
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import Field

from threadkeep import MemorySaver
from threadkeep.errors import InvalidArgumentError, InvalidConfigError
from threadkeep.memory import LayeredCheckpointSaver, LayeredMemoryMiddleware, Layers, records

CONFIG: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 1000}
WINDOW = 6
TITLE = "[Summary of the earlier conversation]"


class Model(BaseChatModel):
    """Calls a tool so many times in a turn, then answers."""

    calls: int = 0
    sent: list[list[Any]] = Field(default_factory=list)

    _llm_type = "fake"

    def bind_tools(self, tools, **_options):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **_options):
        self.sent.append(messages)
        number = len(self.sent)
        answer = AIMessage(f"answer {number}", id=f"ai-{number}")
        if number % (self.calls + 1):
            answer.tool_calls = [
                {"name": "look", "args": {"n": number}, "id": f"c{number}", "type": "tool_call"}
            ]
        return ChatResult(generations=[ChatGeneration(message=answer)])


@tool
def look(n: int) -> str:
    """Look."""
    return f"result {n}"


def summarise(messages, previous):
    covered = len(messages) + (previous.message_count if previous else 0)
    return f"{covered} messages, the last of them {messages[-1].content}"


def layered_saver(summarizer=summarise, inner=None, batch=1, **limits):
    limits |= {"full_window": WINDOW, "summary_window": 12, "archive_threshold": 24}
    policy = Layers(batch=batch, **limits)
    return LayeredCheckpointSaver(inner or MemorySaver(), policy, summarizer)


def agent_of(model, layered, checkpointer):
    return create_agent(
        model,
        [look],
        system_prompt="Be brief.",
        middleware=[LayeredMemoryMiddleware(layered)],
        checkpointer=checkpointer,
    )


def ask(agent, text="hi", config=CONFIG):
    return agent.invoke({"messages": [HumanMessage(text, id=text)]}, config)["messages"]


def in_full(sent):
    """The messages of a request without the system message, a summary and the user's last one."""
    rest = [one for one in sent if TITLE not in one.text and not isinstance(one, SystemMessage)]
    return rest[1:] if isinstance(rest[0], HumanMessage) else rest


def check_request(sent):
    """A request is within the window, separates no tool call, and takes the roles models want."""
    assert [one.text for one in sent if isinstance(one, SystemMessage)] == ["Be brief."]
    assert isinstance(sent[1], HumanMessage)
    assert len(in_full(sent)) <= WINDOW + 1  # (a tool call and its result)
    called = {call["id"] for one in sent if isinstance(one, AIMessage) for call in one.tool_calls}
    assert called == {one.tool_call_id for one in sent if isinstance(one, ToolMessage)}


@pytest.fixture(params=["layered", "another saver", "none"])
def checkpointer(request):
    return request.param


def saver_of(checkpointer, layered):
    return {"layered": layered, "another saver": InMemorySaver(), "none": None}[checkpointer]


def test_a_long_turn_stays_within_the_window(checkpointer):
    model, layered = Model(calls=40), layered_saver()
    agent = agent_of(model, layered, saver_of(checkpointer, layered))
    messages = ask(agent, "read it all")
    assert len(model.sent) == 41
    for sent in model.sent:
        check_request(sent)
        assert "read it all" in [one.text for one in sent]
    assert len(messages) == 82
    assert not any(TITLE in one.text for one in messages)
    assert "the last of them result" in model.sent[-1][1].text


async def test_a_long_turn_stays_within_the_window_of_awaiting_callers(checkpointer):
    model, layered = Model(calls=40), layered_saver()
    agent = agent_of(model, layered, saver_of(checkpointer, layered))
    await agent.ainvoke({"messages": [HumanMessage("hi", id="hi")]}, CONFIG)
    for sent in model.sent:
        check_request(sent)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_what_was_summarised_in_a_turn_is_used_by_the_next(durability):
    counts = []
    layered = layered_saver(lambda some, _: counts.append(len(some)) or "what was")
    model = Model(calls=12)
    agent = agent_of(model, layered, layered)
    originals = []
    for turn in range(4):
        text = f"turn {turn}"
        found = agent.invoke({"messages": [("user", text)]}, CONFIG, durability=durability)
        originals += [one.id for one in found["messages"] if one.id not in originals]
    for sent in model.sent:
        check_request(sent)
    full = layered.full_messages("t")
    assert len(full) == 4 * 26
    assert [one.id for one in full] == [id for id in originals if "threadkeep" not in id]
    if durability != "exit":
        there = {one.config["configurable"]["checkpoint_id"] for one in layered.list(CONFIG)}
        made_at = {one.metadata["parents"][""] for one in layered.list(records.place("t"))}
        assert made_at <= there
    archived = sum(one.messages for one in layered.layers("t") if one.layer != "full")
    regrouped = sum(one.messages for one in layered.layers("t") if one.layer == "archive")
    assert counts
    assert sum(counts) <= archived + 2 * regrouped + 20


def test_turns_that_are_stored_elsewhere_are_summarised_once():
    counts = []
    layered = layered_saver(lambda some, _: counts.append(len(some)) or "what was")
    model = Model()
    agent = agent_of(model, layered, InMemorySaver())
    for turn in range(5):
        ask(agent, f"turn {turn}")
    assert len(in_full(model.sent[-1])) <= WINDOW
    assert sum(counts) == 3
    agent = agent_of(model, layered_saver(summarise, layered._inner), agent.checkpointer)
    ask(agent, "turn 5")
    assert model.sent[-1][1].text == f"{TITLE} 5 messages, the last of them turn 2"


def test_a_conversation_that_goes_back_has_the_view_that_it_had():
    layered = layered_saver()
    model, saver = Model(), InMemorySaver()
    agent = agent_of(model, layered, saver)
    for turn in range(8):
        ask(agent, f"turn {turn}")
    before = [[one.text for one in sent] for sent in model.sent]
    earlier = [one.config for one in agent.get_state_history(CONFIG) if not one.next]
    made = len(list(layered.list(records.place("t"))))
    for turn in (1, 4, 6):
        ask(agent, "another", earlier[8 - turn])
        texts = [one.text for one in model.sent[-1]]
        assert texts == [*before[turn][:-1], "another"]
    assert len(list(layered.list(records.place("t")))) == made


def test_the_view_is_the_same_within_a_turn_with_batches():
    model, layered = Model(calls=30), layered_saver(batch=8)
    ask(agent_of(model, layered, layered))
    heads = [sent[1].text for sent in model.sent]
    assert len(set(heads)) == 1 + (61 - WINDOW) // 8
    for before, sent in zip(model.sent, model.sent[1:], strict=False):
        if before[1].text == sent[1].text:
            assert sent[: len(before)] == before  # what a provider has cached is its beginning


def test_a_summary_that_fails_loses_nothing(checkpointer, caplog):
    def fail(messages, previous):
        raise RuntimeError("no model")

    model, layered = Model(calls=10), layered_saver(fail)
    agent = agent_of(model, layered, saver_of(checkpointer, layered))
    messages = ask(agent)
    assert len(messages) == 22
    assert [len(sent) for sent in model.sent] == list(range(2, 24, 2))
    assert "its next turn tries again" in caplog.text
    if checkpointer != "none":
        assert len(agent.get_state(CONFIG).values["messages"]) == 22


def test_a_pinned_message_stays():
    model, layered = Model(), layered_saver()
    agent = agent_of(model, layered, InMemorySaver())
    pinned = HumanMessage("the order is 7", additional_kwargs={"pinned": True})
    agent.invoke({"messages": [pinned]}, CONFIG)
    for turn in range(6):
        ask(agent, f"turn {turn}")
    texts = [one.text for one in model.sent[-1]]
    assert texts[0] == "Be brief."
    assert TITLE in texts[1]
    assert texts[2] == "the order is 7"


def test_a_pinned_message_that_is_removed_is_not_sent():
    model, layered = Model(), layered_saver()
    agent = agent_of(model, layered, layered)
    pinned = HumanMessage("the order is 7", id="pin", additional_kwargs={"pinned": True})
    agent.invoke({"messages": [pinned]}, CONFIG)
    for turn in range(6):
        ask(agent, f"turn {turn}")
    assert "the order is 7" in [one.text for one in model.sent[-1]]
    agent.invoke({"messages": [RemoveMessage("pin"), ("user", "next")]}, CONFIG)
    assert "the order is 7" not in [one.text for one in model.sent[-1]]


@pytest.mark.parametrize("turns", [2, 5])
def test_a_collapsed_group_stays_one_message_until_it_leaves(turns):
    summarised = []
    layered = layered_saver(lambda some, _: summarised.extend(some) or "what was")
    model = Model()
    agent = agent_of(model, layered, layered)
    for turn in range(turns):
        ask(agent, f"turn {turn}")
    layered.groups.collapse("t", 2 * turns - 4, 2 * turns - 2, "small talk", "they talked")
    hidden = {one.text for one in layered.full_messages("t")[2 * turns - 4 : 2 * turns - 2]}
    model.calls = 20
    ask(agent, "next")
    shown = [[one.text for one in sent] for sent in model.sent[turns:]]
    before = [texts for texts in shown if any("small talk: they talked" in one for one in texts)]
    assert 2 <= len(before) < len(shown)
    assert shown[: len(before)] == before
    for texts in shown:
        assert not hidden & set(texts)
    for texts in before:
        assert f"turn {turns - 1}" in texts
    assert hidden <= {one.text for one in summarised}
    assert not [one.text for one in summarised if TITLE in one.text]
    assert len(layered.full_messages("t")) == 2 * len(model.sent)


async def test_messages_without_ids_have_a_view():
    layered = layered_saver()
    pinned = HumanMessage("the order is 7", additional_kwargs={"pinned": True})
    messages = [SystemMessage("Be kind."), pinned, *(HumanMessage(f"{i}") for i in range(20))]
    view = layered.view(CONFIG, messages)
    texts = [one.text for one in view]
    assert texts[0] == "Be kind."
    assert texts[1].startswith(TITLE)
    assert texts[2:] == ["the order is 7", *(f"{i}" for i in range(14, 20))]
    assert await layered.aview(CONFIG, messages) == view


def test_a_view_that_another_process_has_loaded_is_continued():
    layered = layered_saver()
    pinned = HumanMessage("the order is 7", additional_kwargs={"pinned": True})
    layered.save(CONFIG, [pinned, *(HumanMessage(f"{i}") for i in range(20))])
    other = layered_saver(inner=layered._inner)
    new = [HumanMessage(f"{i}") for i in range(20, 23)]
    texts = [one.text for one in other.view(CONFIG, [*layered.load(CONFIG), *new])]
    assert texts[0] == f"{TITLE} 18 messages, the last of them 16"
    assert texts[1:] == ["the order is 7", *(f"{i}" for i in range(17, 23))]


def test_importing_memory_does_not_import_langchain():
    code = "import sys, threadkeep.memory; sys.exit('langchain' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_arguments_are_checked():
    with pytest.raises(InvalidArgumentError, match="layered"):
        LayeredMemoryMiddleware(MemorySaver())
    layered = layered_saver()
    with pytest.raises(InvalidConfigError, match="no thread_id"):
        ask(agent_of(Model(), layered, None), "hi", {})
