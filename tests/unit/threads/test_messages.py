"""Messages read from the forms in which graphs and sessions store them."""

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage

from threadkeep.threads.messages import ToolCall, are_messages, conversation, message


def test_a_conversation_of_all_kinds():
    call = {"name": "search", "args": {"q": 1}, "id": "c1", "type": "tool_call"}
    openai = {"id": "c2", "type": "function", "function": {"name": "find", "arguments": '{"a":1}'}}
    items = [
        HumanMessage("hi", name="ann"),
        AIMessage("", tool_calls=[call]),
        ToolMessage("found", tool_call_id="c1", name="search", status="error"),
        {"role": "assistant", "content": None, "tool_calls": [openai]},
        ("user", "again"),
        "text",
        7,
    ]
    read = conversation({"messages": items})
    assert [(m.role, m.text) for m in read] == [
        ("human", "hi"),
        ("ai", ""),
        ("tool", "found"),
        ("assistant", ""),
        ("user", "again"),
        ("human", "text"),
        ("int", "7"),
    ]
    assert (read[0].name, read[2].tool_call_id, read[2].status) == ("ann", "c1", "error")
    assert read[1].tool_calls == (ToolCall("search", {"q": 1}, "c1"),)
    assert read[3].tool_calls == (ToolCall("find", '{"a":1}', "c2"),)


def test_blocks_are_their_text_or_their_kind():
    blocks = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:..."}},
        {"type": "tool_use", "name": "x", "input": {}},
        "plain",
    ]
    assert message(HumanMessage(blocks)).text == "[thinking] hm\nsee\n[image_url]\nplain"


@pytest.mark.parametrize("values", [{}, {"messages": None}, {"messages": "text"}])
def test_no_conversation(values):
    assert conversation(values) is None


def test_calls_in_blocks_and_calls_that_could_not_be_parsed():
    block = {"type": "tool_use", "name": "find", "input": {"a": 1}, "id": "c1"}
    assert message({"role": "assistant", "content": [block]}).tool_calls == (
        ToolCall("find", {"a": 1}, "c1"),
    )
    bad = {"name": "find", "args": "{", "id": "c2", "error": "no JSON"}
    assert message(AIMessage("", invalid_tool_calls=[bad])).tool_calls == (
        ToolCall("find", "{", "c2", "no JSON"),
    )
    both = AIMessage([block], tool_calls=[{"name": "find", "args": {}, "id": "c1"}])
    assert [one.args for one in message(both).tool_calls] == [{}], "each call once"


def test_items_of_openais_responses():
    items = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look it up."}]},
        {"type": "function_call", "name": "find", "arguments": "{}", "call_id": "c1", "id": "i1"},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "So"}],
        },
    ]
    read = [message(one) for one in items]
    assert [(m.role, m.text) for m in read] == [
        ("ai", "[reasoning] Look it up."),
        ("ai", ""),
        ("tool", "found"),
        ("assistant", "So"),
    ]
    assert read[1].tool_calls == (ToolCall("find", "{}", "c1"),)
    assert (read[1].id, read[2].tool_call_id) == ("i1", "c1")


def test_thoughts_and_the_origin_of_a_message():
    used = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    thoughts = {"reasoning_content": "Hm."}
    read = message(AIMessageChunk("So", additional_kwargs=thoughts, usage_metadata=used))
    assert (read.role, read.text) == ("ai", "[reasoning] Hm.\nSo")
    assert read.origin == ("", 3, 4, "")
    said = {
        "model": "m",
        "usage": 1,
        "token_usage": {"prompt_tokens": 5},
        "finish_reason": "length",
    }
    assert message(AIMessage("So", response_metadata=said)).origin == ("m", 5, None, "length")
    assert message(AIMessage("So", response_metadata={"stop_reason": "end_turn"})).origin.end == ""


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ([HumanMessage("hi")], True),
        ([{"role": "user", "content": None}], True),
        ([{"type": "function_call_output", "call_id": "c", "output": ""}], True),
        ([{"type": "order", "number": 1}], False),
        (["text"], False),
        ([], False),
        ("text", False),
    ],
)
def test_lists_of_messages_are_recognized(value, want):
    assert are_messages(value) is want
