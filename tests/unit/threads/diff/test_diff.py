"""Differences as JSON data and as text."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage

from threadkeep._core.codec import NativeCodec
from threadkeep.threads.diff import Change, ChannelDiff, DiffSide, StateDiff, brief
from threadkeep.threads.diff.values import differences


def side(**more: Any) -> DiffSide:
    return DiffSide(
        **{
            "thread": "t",
            "checkpoint_ns": "",
            "checkpoint": "c1",
            "time": "now",
            "step": 1,
            "source": "loop",
            **more,
        }
    )


def made(a: Any, b: Any, **more: Any) -> StateDiff:
    changes = differences(a, b, NativeCodec().encode)
    channel = ChannelDiff("m", "changed" if changes else "unchanged", 1, 2, changes, **more)
    return StateDiff(side(), side(checkpoint="c2"), {"m": channel})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.frozensets(st.integers() | st.text())
    ),
    max_leaves=12,
)


@given(VALUES, VALUES)
def test_any_difference_has_both_forms(a: Any, b: Any) -> None:
    diff = made({"v": a}, {"v": b})
    data = diff.as_data()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    for line in diff.as_text().split("\n"):
        assert line.isprintable()
        assert len(line) <= 160


def test_a_number_too_long_for_decimals_is_data() -> None:
    (change,) = made([1], [10**5000]).as_data()["channels"]["m"]["changes"]
    assert change["after"] == hex(10**5000)
    json.dumps(change)


def test_what_was_added_has_no_before() -> None:
    data = made(["a"], ["a", "b"]).as_data()
    assert list(data["before"]) == ["thread", "ns", "checkpoint", "time", "step", "source"]
    (change,) = data["channels"]["m"]["changes"]
    assert change == {"kind": "added", "before_at": [1], "after_at": [1], "after": "b"}
    (change,) = made(["a"], []).as_data()["channels"]["m"]["changes"]
    assert change == {"kind": "removed", "before_at": [0], "after_at": [0], "before": "a"}


def test_text_edits_are_data_too() -> None:
    a = "a text that is long enough to be told by its edits"
    (change,) = made(a, a.replace("long", "short")).as_data()["channels"]["m"]["changes"]
    edit = {"before_at": 15, "after_at": 15, "before": "long", "after": "short"}
    assert change["text"] == [edit]


LONG = "The quick brown fox jumps over the lazy dog and runs"


def test_as_text() -> None:
    a = [HumanMessage("hi", id="1"), AIMessage(LONG, id="2"), {"k": 1, "old key": [1, 2]}]
    b = [
        a[0],
        HumanMessage("new", id="3"),
        AIMessage(LONG.replace("brown", "red"), id="2"),
        {"k": 2},
    ]
    assert made(a, b).as_text().splitlines() == [
        "- t c1 step 1 loop now",
        "+ t c2 step 1 loop now",
        "m: changed (1 -> 2)",
        '  + [1] HumanMessage "new"',
        "  ~ [1].content -> [2].content",
        '      at 10: -"brown" +"red"',
        '  - [2]["old key"] [1, 2]',
        "  ~ [2].k -> [3].k 1 -> 2",
    ]


def test_as_text_of_nothing() -> None:
    assert made([1], [1]).as_text().splitlines()[2:] == ["unchanged: m"]
    diff = made([1], [1], is_internal=True)
    assert diff.as_text().splitlines()[2:] == []
    assert diff.as_text(internal=True).splitlines()[2:] == ["unchanged: m"]


def test_as_text_is_kept_short() -> None:
    found = made([], ["x" * 500] * 50).as_text(changes=3, width=60).splitlines()[2:]
    assert len(found) == 5
    assert max(map(len, found)) == 60
    assert found[-1] == "  ... and 47 more"
    words = " ".join(f"word{n} same" for n in range(30))
    found = made(words, words.replace("word", "other")).as_text(width=60).splitlines()[2:]
    assert len(found) == 7
    assert found[-1] == "      ... and 26 more"


def test_what_a_thread_stores_cannot_steer_a_terminal() -> None:
    nasty = "\x1b[2J\x9b31m\u202eevil\n\r"
    a, b = {nasty: nasty}, {nasty: [nasty, AIMessage(nasty)]}
    text = made(a, b).as_text()
    assert all(line.isprintable() for line in text.split("\n"))
    channel = ChannelDiff(nasty, "added", nasty, nasty, (Change("added", (), (), after=nasty),))
    text = StateDiff(side(thread=nasty), side(source=nasty), {nasty: channel}).as_text()
    assert all(line.isprintable() for line in text.split("\n"))
    assert len(text.split("\n")) == 4


def test_a_message_is_shown_with_its_tool_calls():
    call = {"name": "find_order", "args": {"number": 1207}, "id": "call_1"}
    said = 'calls find_order {"number": 1207}'
    assert brief(AIMessage("", tool_calls=[call]), 100) == f"AIMessage {said}"
    assert brief(AIMessage("Yes.", tool_calls=[call]), 100) == f'AIMessage "Yes." {said}'
