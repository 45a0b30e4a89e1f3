"""Parts of a stream, stored and read back."""

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage

from threadkeep.threads.partial_output import Part, as_text, fold, merged, of_event, of_message


def text(value, message="m", node="bot", ns=""):
    return Part("text", ns, node, message, value)


def values(**found):
    return Part("values", "", "bot", "", found)


# -- stored parts ----------------------------------------------------------------------


def test_text_of_a_message_is_stored_as_one_part():
    parts = [text("a"), text("x", message="other"), of_event(1), text("b"), text("y", "other")]
    assert merged(parts) == [text("ab"), text("xy", "other"), of_event(1)]


def test_an_empty_chunk_is_no_part():
    assert of_message(AIMessageChunk(content="")) is None


def test_parts_of_a_tool_call_come_back_as_one_message():
    begin = {
        "name": "search",
        "args": '{"q": ',
        "id": "call",
        "index": 0,
        "type": "tool_call_chunk",
    }
    end = {**begin, "name": None, "args": '"x"}', "id": None}
    chunks = [
        AIMessageChunk(content="I search", id="m"),
        AIMessageChunk(content="", id="m", tool_call_chunks=[begin]),
        AIMessageChunk(content="", id="m", tool_call_chunks=[end]),
    ]
    first, rest = [of_message(chunk) for chunk in chunks[:2]], [of_message(chunks[2])]
    (message,), _, _ = fold([*merged(first), *merged(rest)])
    assert message.text == "I search"
    assert message.message.id == message.id == "m"
    assert [(call["name"], call["args"]) for call in message.message.tool_calls] == [
        ("search", {"q": "x"})
    ]


@pytest.mark.parametrize(
    "middle",
    [
        AIMessageChunk("b", id="m", additional_kwargs={"reasoning_content": "x"}),
        AIMessageChunk([{"type": "text", "text": "b", "index": 0}], id="m"),
        AIMessageChunk("b", id="m", response_metadata={"finish_reason": "stop"}),
    ],
)
def test_pieces_of_a_message_stay_in_order(middle):
    chunks = [AIMessageChunk(each, id="m") for each in ("a", "a", "c", "c")]
    chunks.insert(2, middle)
    parts = merged([of_message(chunk) for chunk in chunks])
    assert len(parts) == 3
    (message,), _, _ = fold(parts)
    assert message.text == "aabcc"
    assert message.message.additional_kwargs == middle.additional_kwargs
    assert message.message.response_metadata == middle.response_metadata


def test_chunks_that_do_not_add_up_are_read_as_text():
    chunks = [
        AIMessageChunk(each, id="m", additional_kwargs={"p": number})
        for number, each in zip((1.5, 2.5, 3.5), "abc", strict=True)
    ]
    first, second, third = map(of_message, chunks)
    for parts in (merged([first, second, third]), [first, second, third]):
        (message,), _, _ = fold(parts)
        assert (message.text, message.message.content, message.id) == ("abc", "abc", "m")


def test_blocks_of_content_count_by_their_text():
    chunk = AIMessageChunk(content=[{"type": "text", "text": "a"}, {"type": "image"}, "b"], id="m")
    (message,), _, _ = fold([of_message(chunk)])
    assert message.text == "ab"
    assert message.message == chunk


def test_whole_messages_are_read_as_they_were():
    call = {"name": "search", "args": {}, "id": "call", "type": "tool_call"}
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    whole = [
        AIMessage("a", id="m", tool_calls=[call]),
        AIMessage("b", tool_calls=[call]),
        AIMessage("c", name="ann", usage_metadata=usage),
        ToolMessage("d", tool_call_id="call"),
        HumanMessage("e", id="h"),
    ]
    messages, _, _ = fold(merged(map(of_message, whole)))
    assert [one.message for one in messages] == whole
    assert [one.text for one in messages] == [*"abcde"]


def test_a_whole_message_takes_the_place_of_its_chunks():
    chunks = [AIMessageChunk(each, id="m") for each in "ab"]
    (message,), _, _ = fold(merged(map(of_message, [*chunks, AIMessage("abc", id="m")])))
    assert (message.text, message.message) == ("abc", AIMessage("abc", id="m"))


def test_events_are_copied_if_they_can_be():
    event = {"done": 1}
    part = of_event(event)
    event["done"] = 2
    assert part.value == {"done": 1}
    lasting = (each for each in ())
    assert of_event(lasting).value is lasting


def test_what_cannot_be_stored_is_stored_as_text():
    odd = object()
    found = [
        as_text(of_event(odd)).value,
        as_text(values(a=odd)).value,
        as_text(of_message(AIMessageChunk(content=["a", {"odd": odd}]))).value,
        as_text(text("a")).value,
    ]
    assert found == [found[0], {"a": repr(odd)}, "a", "a"]
    assert isinstance(found[0], str)


def test_values_that_a_checkpoint_holds_are_not_shown():
    inner = Part("values", "sub:1|deep:2", "n", "", {"b": 2})
    parts = [values(a=1), inner, Part("checkpoint", "sub:1", "", "", None), values(c=3)]
    assert [one.values for one in fold(parts)[2]] == [{"a": 1}, {"c": 3}]
    parts = [values(a=1), inner, Part("checkpoint", "", "", "", None), values(c=3)]
    assert [one.values for one in fold(parts)[2]] == [{"c": 3}]
