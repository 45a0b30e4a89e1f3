"""The window of a conversation: what leaves it, what stays, and the reducer."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.conversations import Speaker, call, id_of, pairs, result, talk
from kit.selection import settings_of
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
)
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.graph.message import add_messages as langgraph_add_messages

from threadkeep.errors import InvalidArgumentError
from threadkeep.memory import Layers, Summary, add_messages
from threadkeep.memory.window import (
    DETAILS,
    MARK,
    digest,
    full_groups,
    is_marker,
    leaving,
    marked,
    removed_by,
    same,
    staying,
    summary_message,
    whole,
)


def window(size: int, batch: int = 1, **limits: Any) -> Layers:
    limits |= {"full_window": size, "summary_window": size + 1, "archive_threshold": size + 1}
    return Layers(batch=batch, **limits)


def words(messages: Sequence[BaseMessage]) -> int:
    return sum(len(str(one.content).split()) for one in messages)


# -- what leaves ---------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "left"), [(0, 0), (1, 0), (4, 0), (5, 1), (20, 16)])
def test_the_newest_messages_stay(count: int, left: int) -> None:
    assert leaving(talk(count), window(4)) == left


@pytest.mark.parametrize(("count", "left"), [(6, 0), (7, 3), (8, 4)])
def test_a_batch_leaves_together(count: int, left: int) -> None:
    assert leaving(talk(count), window(4, batch=3)) == left


def test_a_window_of_tokens() -> None:
    policy = window(1, max_tokens=6, counter=words)
    assert leaving(talk(3), policy) == 0  # (each has two words)
    assert leaving(talk(5), policy) == 2
    long = [*talk(4), HumanMessage("word " * 50)]
    assert leaving(long, policy) == 4  # (the newest one stays, whatever its length)
    assert leaving([HumanMessage("word " * 50)], policy) == 0


@pytest.mark.parametrize(
    ("count", "left"), [(0, 0), (6, 0), (7, 3), (8, 3), (9, 3), (10, 4), (1, 0)]
)
def test_a_batch_leaves_as_soon_as_a_limit_of_tokens_is_exceeded(count: int, left: int) -> None:
    policy = window(1, batch=3, max_tokens=12, counter=words)  # (six messages)
    assert leaving(talk(count), policy) == left


@pytest.mark.parametrize(("size", "left"), [(1, 7), (2, 4), (3, 3), (12, 1)])
def test_a_batch_leaves_half_of_what_fits_in_a_limit_of_tokens(size: int, left: int) -> None:
    said: list[Any] = [HumanMessage("word " * size) for _ in range(12 // size + 1)]
    policy = window(1, batch=10, max_tokens=12, counter=words)
    assert leaving(said, policy) == left


def test_the_default_batch() -> None:
    found = [leaving(talk(count), Layers()) for count in (20, 21, 29, 30, 31, 300)]
    assert found == [0, 0, 0, 10, 11, 280]


def groups(said: Sequence[Any], size: int, start: int = 0) -> list[tuple[int, int]]:
    found = [*full_groups([*enumerate(said, start)], start, start + len(said), size)]
    assert [one for _, _, some in found for one in some] == said[: sum(len(f[2]) for f in found)]
    return [(begin, end) for begin, end, _ in found]


@pytest.mark.parametrize(
    ("count", "size", "wanted"),
    [
        (0, 4, []),
        (4, 4, []),
        (5, 4, [(0, 4)]),
        (12, 4, [(0, 4), (4, 8)]),
        (13, 4, [(0, 4), (4, 8), (8, 12)]),
        (3, 1, [(0, 1), (1, 2)]),
    ],
)
def test_groups_are_full_once_others_follow(
    count: int, size: int, wanted: list[tuple[int, int]]
) -> None:
    assert groups(talk(count), size) == wanted
    assert groups(talk(count), size, 7) == [(start + 7, stop + 7) for start, stop in wanted]


def test_a_group_separates_no_tool_call_from_its_results() -> None:
    said = [*talk(3), call("c", "1", "2"), result("1"), result("2"), *talk(4, 3)]
    assert groups(said, 4) == [(0, 3), (3, 7)]
    assert groups(said, 2) == [(0, 2), (2, 3), (3, 6), (6, 8)]
    assert groups(said[:6], 5) == [(0, 3)]
    assert groups([call("c", "1", "2"), result("1"), result("2")], 1) == [(0, 3)]


def test_a_group_has_the_positions_of_removed_messages() -> None:
    said = [(at, one) for at, one in enumerate(talk(10)) if at not in {1, 4, 5, 6, 7}]
    found = [(a, b, len(some)) for a, b, some in full_groups(said, 0, 10, 4)]
    assert found == [(0, 4, 3), (4, 8, 0)]


PARALLEL = [
    *talk(2),
    call("calls", "a", "b"),
    result("b"),
    HumanMessage("between", id="between"),
    result("a"),
    AIMessage("answer", id="answer"),
]


@pytest.mark.parametrize(("size", "left"), [(1, 6), (2, 2), (3, 2), (4, 2), (5, 2), (6, 1)])
def test_a_tool_call_stays_with_all_its_results(size: int, left: int) -> None:
    assert leaving(PARALLEL, window(size)) == left


def test_ids_of_calls_that_are_used_again() -> None:
    found = [call("one", "x"), result("x"), call("two", "x"), result("x", name="r2"), *talk(1)]
    assert [whole(found, cut) for cut in range(6)] == [0, 0, 2, 2, 4, 5]


def test_invalid_tool_calls_have_results_too() -> None:
    broken = {"name": "tool", "args": "{", "id": "x", "error": "no JSON"}
    broken["type"] = "invalid_tool_call"
    found = [
        *talk(1),
        AIMessage("", id="calls", invalid_tool_calls=[broken]),
        result("x"),
        *talk(1),
    ]
    assert [whole(found, cut) for cut in range(5)] == [0, 1, 1, 3, 4]
    found[1].additional_kwargs["pinned"] = True
    assert [one.id for one in staying(found, window(1))] == ["calls", "result x"]


def test_a_call_without_a_result_and_a_result_without_a_call() -> None:
    found = [result("nobody's"), call("unanswered", "x"), *talk(3)]
    assert [whole(found, cut) for cut in range(6)] == [0, 1, 2, 3, 4, 5]


def test_exchanges_that_overlap() -> None:
    found = [call("one", "x"), call("two", "y"), result("x"), result("y"), *talk(1)]
    assert [whole(found, cut) for cut in range(6)] == [0, 0, 0, 0, 4, 5]


def test_a_collapsed_range_counts_as_one_and_stays_whole() -> None:
    assert leaving(talk(10), window(4), [range(2, 9)]) == 0
    assert leaving(talk(12), window(4), [range(2, 9)]) == 2
    assert leaving(talk(13), window(4), [range(2, 9)]) == 9


# -- what stays in view --------------------------------------------------------------------


def test_system_and_pinned_messages_stay() -> None:
    pinned = HumanMessage("pinned", id="p", additional_kwargs={"pinned": True})
    found = [SystemMessage("be kind", id="s"), *talk(2), pinned, *talk(1)]
    assert [one.id for one in staying(found, window(4))] == ["s", "p"]
    assert staying(found, window(4, pinned=lambda one: one.id == "m1"))[1].id == "m1"


def test_of_an_exchange_all_stays() -> None:
    found = [*talk(1), call("calls", "a", "b"), result("a"), result("b"), *talk(1)]
    found[2].additional_kwargs["pinned"] = True
    kept = [one.id for one in staying(found, window(1))]
    assert kept == ["calls", "result a", "result b"]


@settings_of(quick=50, full=10_000)
@given(st.integers(0, 10**9), st.integers(1, 12), st.integers(1, 5), st.booleans())
def test_no_tool_call_is_ever_separated(seed: int, size: int, batch: int, tokens: bool) -> None:
    speaker = Speaker(seed)
    limits: dict[str, Any] = {"max_tokens": 5 * size, "counter": words} if tokens else {}
    policy = window(size, batch=batch, **limits)
    live: list[BaseMessage] = []
    kept: list[BaseMessage] = []
    for _ in range(speaker.chance.randrange(1, 12)):
        for one in [speaker.question(), *speaker.replies()]:
            if speaker.chance.random() < 0.1:
                one.additional_kwargs["pinned"] = True
            live.append(one)
            cut = leaving(live, policy)
            pairs_before = pairs(live)
            gone, live = live[:cut], live[cut:]
            stay = staying(gone, policy)
            kept += stay
            for pair in pairs_before:
                for part in (gone, stay):
                    assert len({id_of(each) in {id_of(o) for o in part} for each in pair}) == 1
            assert live


# -- messages ------------------------------------------------------------------------------


def test_equal_messages() -> None:
    one = AIMessage("text", id="one")
    assert same(one, AIMessage("text", id="other"))
    assert not same(one, HumanMessage("text", id="one"))
    assert not same(one, AIMessage("text", id="one", additional_kwargs={"pinned": True}))
    assert not same(call("a", "x"), call("a", "y"))
    some = talk(6)
    assert digest(digest("", some[:2]), some[2:]) == digest("", some)
    assert digest("", some) != digest("", some[::-1])


@pytest.mark.parametrize(
    ("language", "title"),
    [("en", "[Summary of the earlier conversation]"), ("zh", "[之前的对话总结]")],
)
def test_the_message_of_a_summary(language: str, title: str) -> None:
    summary = Summary("It was said.", key_topics=("talk",), decisions=("go",), entities=("Bob",))
    found = summary_message(summary, language, {"record": "key"})
    assert (found.type, found.content) == ("system", f"{title} It was said.")
    assert is_marker(found)
    assert marked(found) == "key"
    details = found.additional_kwargs[DETAILS]
    assert [details[name] for name in ("key_topics", "decisions", "entities")] == [
        ["talk"],
        ["go"],
        ["Bob"],
    ]
    assert not is_marker(SystemMessage("another", id="x"))


# -- the reducer ---------------------------------------------------------------------------

MARKER = summary_message(Summary("Much was said."), "en", {"record": "key"})


def test_it_is_langgraphs_where_nothing_is_archived() -> None:
    before = talk(3)
    for update in (talk(2, 3), AIMessage("edited", id="m1"), RemoveMessage(id="m2")):
        assert add_messages(before, update) == langgraph_add_messages(before, update)
    with pytest.raises(ValueError, match="doesn't exist"):
        add_messages(before, RemoveMessage(id="absent"))


def test_a_removal_of_an_archived_message_is_noted() -> None:
    view = add_messages([MARKER, *talk(2, 10)], [RemoveMessage(id="m3"), *talk(1, 12)])
    assert [one.id for one in view] == [MARKER.id, "m10", "m11", "m12"]
    assert removed_by(view) == ["m3"]
    again = add_messages(view, [RemoveMessage(id="m4"), RemoveMessage(id="m11")])
    assert removed_by(again) == ["m3", "m4"]
    assert [one.id for one in again] == [MARKER.id, "m10", "m12"]
    assert not removed_by([MARKER])  # (no message is changed in place)


def test_all_messages_can_be_removed() -> None:
    update = [RemoveMessage(id=REMOVE_ALL_MESSAGES), *talk(1)]
    assert [one.id for one in add_messages([MARKER, *talk(2, 10)], update)] == ["m0"]


# -- the policy ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits",
    [
        {"full_window": 0},
        {"summary_window": 20},
        {"archive_threshold": 49},
        {"batch": 0},
        {"max_tokens": 0},
        {"full_window": True},
        {"counter": 3},
        {"pinned": None},
    ],
)
def test_limits_that_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"Invalid {next(iter(limits))}"):
        Layers(**limits)


def test_the_layers_of_a_count() -> None:
    found = [Layers().layer(count) for count in (1, 29, 30, 50, 51, 10_000)]
    assert found == ["full", "full", "summary", "summary", "archive", "archive"]
    assert [Layers(batch=1).layer(count) for count in (20, 21)] == ["full", "summary"]


def test_summaries_of_earlier_turns_are_left_out_by_the_reducer() -> None:
    left = [SystemMessage("new", id=f"{MARK}2"), HumanMessage("a", id="a")]
    given = [SystemMessage("old", id=f"{MARK}1"), left[0], left[1], HumanMessage("b", id="b")]
    assert [one.id for one in add_messages(left, given)] == [f"{MARK}2", "a", "b"]
