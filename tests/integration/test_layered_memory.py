"""Layered memory through graphs: what a model is shown, and that nothing is lost."""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from kit.backends import open_backend
from kit.conversations import Chat, State, call, result, talk, texts
from kit.graphs import linear
from kit.places import at
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.graph.message import add_messages as langgraph_add_messages
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from threadkeep import MemorySaver, Retention, Saver
from threadkeep import SqliteSaver as OurSqliteSaver
from threadkeep._stores.message_index import ScanIndex
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.errors import (
    InvalidArgumentError,
    StateError,
    ThreadDeletedError,
    ThreadNotFoundError,
)
from threadkeep.memory import (
    ArchiveSuggestion,
    IntegratedCheckpointManager,
    LayeredCheckpointSaver,
    Layers,
    SplitSuggestion,
)
from threadkeep.memory.records import NS
from threadkeep.memory.window import DETAILS, is_marker, marked

SMALL = Layers(full_window=4, summary_window=10, archive_threshold=20, batch=1)
TITLE = "[Summary of the earlier conversation]"


def told(messages: Any, previous: Any) -> str:
    return f"{len(messages)} more after {previous.message_count if previous else 0}"


def layered(inner: Any, policy: Any = SMALL, summarizer: Any = told, **options: Any) -> Any:
    return LayeredCheckpointSaver(inner, policy, summarizer, **options)


@pytest.fixture
def memory(saver: Any) -> Any:
    """Layers over each backend."""
    return layered(saver)


@pytest.fixture(params=["memory", "sqlite"])
def foreign(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Any]:
    """Layers over LangGraph's own savers."""
    if request.param == "memory":
        yield layered(InMemorySaver())
        return
    with SqliteSaver.from_conn_string(str(tmp_path / "lg.db")) as opened:
        yield layered(opened)


@pytest.fixture
def plain() -> Any:
    """Layers over a saver in memory, for what does not depend on the store."""
    return layered(MemorySaver())


def ids(messages: Any) -> list[str]:
    """The ids of messages; those that memory has put there by their kind."""
    return [str(one.id).split(":")[0] if is_marker(one) else one.id for one in messages]


def names(start: int, stop: int) -> list[str]:
    return [f"m{number}" for number in range(start, stop)]


def history(memory: Any, thread: str = "t") -> list[tuple[Any, Any, Any]]:
    """Each checkpoint of a thread: its config, its view, its whole conversation."""
    return [
        (
            one.config,
            texts(one.checkpoint["channel_values"].get("messages") or []),
            texts(memory.full_messages(one.config)),
        )
        for one in memory.list(at(thread))
    ]


# -- the layers ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [20, 22, 50, 52, 100, 120])
def test_what_a_model_is_shown(count: int) -> None:
    suggestions: list[Any] = []
    memory = layered(MemorySaver(), Layers(batch=1), on_suggestion=suggestions.append)
    chat, said = Chat(memory), talk(count)
    chat.talk("t", said)
    view = memory.load(at("t"))
    if count <= 20:
        assert view == said
    else:
        assert ids(view) == ["threadkeep-memory", *names(count - 20, count)]
        assert isinstance(view[0], SystemMessage)
        assert view[0].content.startswith(TITLE)
    assert memory.full_messages("t") == said
    kinds = {one.layer for one in memory.layers("t")}
    wanted = {"full"} | ({"summary"} if count > 20 else set())
    assert kinds - {"archive"} == wanted
    assert ("archive" in kinds) == (count > 50)
    assert sum(one.messages for one in memory.layers("t")) == count
    kinds_of = [type(one) for one in suggestions]
    assert kinds_of == [ArchiveSuggestion, SplitSuggestion][: (count > 50) + (count > 100)]


def test_suggestions_are_events_log_lines_and_tags(
    saver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Any] = []
    memory = layered(saver, on_suggestion=events.append)
    with caplog.at_level(logging.INFO, "threadkeep.memory"):
        Chat(memory).talk("t", talk(30))
    assert [(type(one), one.thread) for one in events] == [
        (ArchiveSuggestion, "t"),
        (SplitSuggestion, "t"),
    ]
    own = [one for one in caplog.records if one.name == "threadkeep.memory"]
    assert len([one for one in own if "t" in one.getMessage()]) == 2
    tags = {ArchiveSuggestion.tag, SplitSuggestion.tag}
    assert tags <= set(saver.threads.get("t").tags)


def test_over_savers_of_langgraph(foreign: Any) -> None:
    chat, said = Chat(foreign), talk(30)
    chat.talk("t", said)
    assert foreign.full_messages("t") == said
    assert ids(foreign.load(at("t"))) == ["threadkeep-memory", *names(26, 30)]
    assert [one.message.id for one in foreign.search_messages("t", query="message 7")] == ["m7"]
    foreign.delete_thread("t")
    with pytest.raises(ThreadNotFoundError):
        foreign.full_messages("t")


def test_a_summary_tells_what_it_was_made_of(plain: Any) -> None:
    plain.save(at("t"), talk(10))
    marker = plain.load(at("t"))[0]
    details = marker.additional_kwargs[DETAILS]
    assert details["message_count"] == 6
    assert {"key_topics", "decisions", "entities", "open_questions"} <= set(details)
    assert plain.summary("t").content == "6 more after 0"
    plain.save(at("t"), [*plain.load(at("t")), *talk(2, 10)])
    assert plain.summary("t").content == "2 more after 6"
    assert marked(plain.load(at("t"))[0]) != marked(marker)


def test_system_and_pinned_messages_stay_in_view(plain: Any) -> None:
    said: list[Any] = [SystemMessage("be kind", id="s"), *talk(12)]
    said[2].additional_kwargs["pinned"] = True
    chat = Chat(plain)
    for start in range(0, len(said), 3):
        chat.say("t", said[start : start + 3])
    assert ids(plain.load(at("t"))) == ["s", "threadkeep-memory", "m1", *names(8, 12)]
    assert plain.full_messages("t") == said
    plain.pin("t", "m3")
    assert "m3" in ids(plain.load(at("t")))
    plain.pin("t", "m1", pinned=False)
    assert "m1" not in ids(plain.load(at("t")))


# -- the archive ---------------------------------------------------------------------------


async def test_the_archive(memory: Any) -> None:
    before = datetime.now(UTC) - timedelta(hours=1)
    Chat(memory).talk("t", talk(30))
    found = memory.search_messages("t")
    assert [one.position for one in found] == [*range(26)]
    assert [one.message.id for one in found] == names(0, 26)
    assert await memory.asearch_messages("t") == found

    def some(**filters: Any) -> list[Any]:
        return [one.message.id for one in memory.search_messages("t", **filters)]

    assert some(ids=["m3", "m29", "absent"]) == ["m3"]
    assert some(after=22) == names(23, 26)
    assert some(before=3) == names(0, 3)
    assert some(after=5, before=8) == ["m6", "m7"]
    assert some(limit=2) == ["m0", "m1"]
    assert some(after=before) == names(0, 26)
    assert some(before=before) == []
    assert some(query="message 12") == ["m12"]
    assert some(query="MESSAGE", limit=3) == names(23, 26)[::-1]
    assert some(query="absent") == []
    keys = [one.key for one in memory.layers("t") if one.key is not None]
    parts = [some(key=key) for key in keys]
    assert [each for part in parts for each in part] == names(0, 26)
    for key, layer in zip(keys, memory.layers("t"), strict=False):
        assert layer.archived_at is not None
        assert len(some(key=key)) == layer.messages
    with pytest.raises(InvalidArgumentError):
        memory.search_messages("t", limit=-1)
    with pytest.raises(ThreadNotFoundError):
        memory.search_messages("absent")


def test_archived_messages_are_found_by_their_own_times(tmp_path: Any) -> None:
    day = datetime(2026, 1, 1, tzinfo=UTC)
    times = [day + timedelta(days=number) for number in range(16)]
    said: list[Any] = [HumanMessage(f"{at}", id=at.isoformat(), timestamp=at) for at in times[:4]]
    said += [AIMessage("", id=f"{at}", response_metadata={"created_at": f"{at}"}) for at in times]
    said += talk(8)
    path = str(tmp_path / "a.db")
    with layered(OurSqliteSaver(path)) as saving:
        saving.save(at("t"), said)
        archived = saving.search_messages("t")
    with layered(OurSqliteSaver(path)) as memory:
        found = memory.search_messages("t", after=times[1], before=times[4])
        assert [one.message for one in found] == [said[at] for at in (2, 3, 6, 7)]
        assert [one.time for one in found] == [times[at] for at in (2, 3, 2, 3)]
        (*_, last) = memory.search_messages("t", after=times[-1])
        assert last == archived[-1]
        assert last.time == last.archived_at  # (it states none)


def test_groups_are_the_whole_conversation(plain: Any) -> None:
    Chat(plain).talk("t", talk(40))
    groups = plain.groups("t")
    assert [one.start for one in groups] == [0, *[one.stop for one in groups[:-1]]]
    assert groups[-1].stop == 40
    assert {one.status for one in groups} == {"archived", "summarized", "open"}
    assert all(one.summary for one in groups if one.status != "open")


def test_groups_have_their_size_however_messages_were_saved() -> None:
    said = talk(100)
    policies = {size: Layers(full_window=4, summary_window=4 + size) for size in (4, 30)}
    for size, policy in policies.items():
        together = layered(MemorySaver(), policy, None)
        together.save("t", said)
        one_by_one = layered(MemorySaver(), policy, None)
        for count in range(2, 101, 2):
            one_by_one.save("t", [*one_by_one.load("t"), *said[count - 2 : count]])
        for memory in (together, one_by_one):
            groups = memory.groups("t")
            assert [one.start for one in groups] == [0, *[one.stop for one in groups[:-1]]]
            assert groups[-1].stop == 100
            *archived, summarized, _ = groups
            assert {one.messages for one in archived} == {size}
            assert 0 < summarized.messages <= size
            for one in groups[:-1]:
                found = memory.search_messages("t", key=one.key)
                assert [each.position for each in found] == [*range(one.start, one.stop)]
                times = {each.position: each.archived_at for each in found}
                (layer,) = [each for each in memory.layers("t") if each.key == one.key]
                assert layer.archived_at == times[one.stop - 1]


def test_usage(plain: Any) -> None:
    plain.save(at("t"), talk(40))
    usage = plain.usage("t")
    assert (usage.messages, usage.view_messages) == (40, 5)
    assert usage.tokens > usage.view_tokens
    assert usage.saved_tokens == usage.tokens - usage.view_tokens
    assert 0 < usage.saved < 1


# -- time travel ---------------------------------------------------------------------------


def test_what_is_deleted_or_erased_is_gone(memory: Any, saver: Any) -> None:
    for thread in ("t", "u", "v"):
        Chat(memory).talk(thread, talk(16))
    memory.delete_thread("t")
    memory.erase("u")
    for thread in ("t", "u"):
        with pytest.raises(ThreadNotFoundError):
            memory.full_messages(thread)
        memory.save(at(thread), talk(2))
        assert memory.search_messages(thread, query="message") == []
    assert memory.full_messages("v") == talk(16)
    assert saver.check().ok


# -- runs ----------------------------------------------------------------------------------


class Asked(TypedDict, total=False):
    messages: Annotated[list[Any], langgraph_add_messages]


def test_a_run_that_is_interrupted_in_a_turn(plain: Any) -> None:
    def first(state: Asked) -> Any:
        return {"messages": [call("call", "c1")]}

    def second(state: Asked) -> Any:
        return {"messages": [result("c1", interrupt("which?")), AIMessage("done", id="done")]}

    graph = linear(plain, Asked, first=first, second=second)
    plain.save(at("t"), talk(9))
    graph.invoke({"messages": [HumanMessage("q", id="q")]}, at("t"))
    assert plain.full_messages("t")[-1].id == "call"
    view = graph.invoke(Command(resume="this one"), at("t"))["messages"]
    assert ids(view)[-4:] == ["q", "call", "result c1", "done"]
    assert ids(plain.full_messages("t")) == [*names(0, 9), "q", "call", "result c1", "done"]
    assert plain.full_messages("t")[-2].content == "this one"


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_every_durability(plain: Any, durability: Any) -> None:
    chat, said = Chat(plain), talk(24)
    for start in range(0, 24, 3):
        chat.tape.extend([[said[start + 1]], [said[start + 2]]])
        turn: Any = {"messages": [said[start]]}
        if start % 2:
            await chat.graph.ainvoke(turn, at("t"), durability=durability)
        else:
            chat.graph.invoke(turn, at("t"), durability=durability)
    assert plain.full_messages("t") == said
    assert await plain.afull_messages("t") == said
    assert ids(await plain.aload(at("t"))) == ["threadkeep-memory", *names(20, 24)]


def test_nodes_that_write_no_messages(plain: Any) -> None:
    chat, said = Chat(plain), talk(12)
    chat.talk("t", said)
    for note in range(8):
        chat.graph.update_state(at("t"), {"notes": note}, as_node="model")
        assert chat.graph.get_state(at("t")).values["notes"] == note
        assert plain.full_messages("t") == said
    assert ids(plain.load(at("t"))) == ["threadkeep-memory", *names(8, 12)]


def test_a_node_that_returns_the_whole_view(plain: Any) -> None:
    graph = linear(
        plain, State, model=lambda state: {"messages": [*state["messages"], ("ai", "answer")]}
    )
    for number in range(12):
        graph.invoke({"messages": [HumanMessage(f"q{number}", id=f"q{number}")]}, at("t"))
    found = [one.content for one in plain.full_messages("t")]
    assert found == [text for number in range(12) for text in (f"q{number}", "answer")]


def test_messages_as_dicts_and_pairs(plain: Any) -> None:
    chat = Chat(plain)
    for number in range(10):
        chat.say("t", [{"role": "user", "content": f"q{number}"}, ("ai", f"a{number}")])
    assert [one.content for one in plain.full_messages("t")] == [
        f"{kind}{number}" for number in range(10) for kind in "qa"
    ]


def test_a_channel_without_a_reducer(plain: Any) -> None:
    class Held(TypedDict):
        messages: list[Any]

    graph = linear(
        plain, Held, model=lambda state: {"messages": [*state["messages"], talk(1, 50)[0]]}
    )
    graph.invoke({"messages": talk(8)}, at("t"))
    assert plain.full_messages("t") == [*talk(8), *talk(1, 50)]
    graph.invoke({"messages": talk(2, 90)}, at("t"))  # in place of all that was there
    assert plain.full_messages("t") == [*talk(2, 90), *talk(1, 50)]


@pytest.mark.parametrize("value", ["text", {"a": [1]}, [1, 2], ["text"], None, 7])
def test_a_channel_that_holds_something_else(plain: Any, value: Any) -> None:
    class Other(TypedDict):
        messages: Any
        other: Any

    graph = linear(plain, Other, model=lambda state: {"other": state["messages"]})
    graph.invoke({"messages": value}, at("t"))
    assert graph.get_state(at("t")).values == {"messages": value, "other": value}
    assert next(graph.get_state_history(at("t"))).values["other"] == value


@pytest.mark.parametrize("is_kept", [None, True])
def test_subgraphs_keep_their_own_messages(plain: Any, is_kept: bool | None) -> None:
    class Inner(TypedDict):
        messages: Annotated[list[Any], langgraph_add_messages]
        own: int

    outer = StateGraph(State).add_node(
        "inner",
        linear(
            is_kept, Inner, reply=lambda state: {"messages": [("ai", f"{len(state['messages'])}")]}
        ),
    )
    graph = outer.add_edge(START, "inner").compile(checkpointer=plain)
    for number in range(9):
        graph.invoke({"messages": [HumanMessage(f"q{number}", id=f"q{number}")]}, at("t"))
    full = plain.full_messages("t")
    assert [one.content for one in full if one.type == "human"] == [f"q{n}" for n in range(9)]
    assert not [one for one in full if is_marker(one)]


def test_a_strict_list_of_types(monkeypatch: pytest.MonkeyPatch, ours: Any) -> None:
    monkeypatch.setenv("LANGGRAPH_STRICT_MSGPACK", "true")
    chat, said = Chat(layered(ours)), talk(16)
    chat.talk("t", said)
    clone = layered(ours).with_allowlist([("langchain_core.messages.ai", "AIMessage")])
    assert clone.full_messages("t") == said
    clone.save(at("t"), [*clone.load(at("t")), *talk(2, 16)])
    assert layered(ours).full_messages("t") == talk(18)


# -- edits and removals --------------------------------------------------------------------


EDITED = AIMessage("edited", id="m3")


@pytest.mark.parametrize("how", ["method", "graph", "langgraph"])
def test_an_archived_message_is_edited(memory: Any, how: str) -> None:
    chat = Chat(memory, Asked if how == "langgraph" else State)
    chat.talk("t", talk(12))
    if how == "method":
        memory.edit("t", [EDITED])
    else:
        chat.graph.update_state(at("t"), {"messages": [EDITED]}, as_node="model")
    full = memory.full_messages("t")
    assert ids(full) == names(0, 12)
    assert full[3].content == "edited"
    assert ids(memory.load(at("t"))) == ["threadkeep-memory", *names(8, 12)]
    assert [one.message.id for one in memory.search_messages("t", query="edited")] == ["m3"]
    assert memory.search_messages("t", query="message 3") == []


def test_what_is_not_there_is_refused(plain: Any) -> None:
    plain.save(at("t"), talk(12))
    with pytest.raises(InvalidArgumentError):
        plain.remove("t", ["absent"])
    with pytest.raises(InvalidArgumentError):
        plain.edit("t", [AIMessage("text", id="absent")])
    with pytest.raises(InvalidArgumentError):
        plain.edit("t", [AIMessage("text")])
    with pytest.raises(ThreadNotFoundError):
        plain.remove("absent", ["m1"])
    assert plain.full_messages("t") == talk(12)


def test_all_messages_are_removed(plain: Any) -> None:
    chat = Chat(plain)
    chat.talk("t", talk(12))
    before = history(plain)
    update = {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]}
    chat.graph.update_state(at("t"), update, as_node="model")
    assert plain.full_messages("t") == []
    assert plain.search_messages("t", query="message") == []
    assert history(plain)[1:] == before
    chat.talk("t", talk(8, 50))
    assert plain.full_messages("t") == talk(8, 50)


def test_a_summary_that_is_removed_alone_comes_back(plain: Any) -> None:
    chat = Chat(plain)
    chat.talk("t", talk(12))
    marker = plain.load(at("t"))[0]
    chat.graph.update_state(at("t"), {"messages": [RemoveMessage(id=marker.id)]}, as_node="model")
    assert plain.full_messages("t") == talk(12)
    assert plain.load(at("t"))[0] == marker


def test_a_summary_is_made_anew(plain: Any) -> None:
    plain.save(at("t"), talk(12))
    plain.edit("t", [EDITED])
    assert plain.resummarize("t").content == "8 more after 0"
    assert plain.load(at("t"))[0].content == f"{TITLE} 8 more after 0"
    assert sum(one.messages for one in plain.layers("t")) == 12
    assert plain.groups("t")[0].start == 0


# -- groups --------------------------------------------------------------------------------


def test_a_collapsed_group_counts_as_one(plain: Any) -> None:
    plain.save(at("t"), talk(4))
    group = plain.groups.collapse("t", 0, 3, "a topic", "it was said")
    assert plain.groups.effective_count("t") == 2
    view = plain.load(at("t"))
    assert ids(view) == ["threadkeep-group", "m3"]
    assert view[0].content == f"{TITLE} a topic: it was said"
    plain.save(at("t"), [*view, *talk(2, 4)])
    assert plain.full_messages("t") == talk(6)
    assert ids(plain.load(at("t"))) == ["threadkeep-group", *names(3, 6)]
    assert plain.groups.expand("t", group.key).status == "open"
    assert plain.groups.effective_count("t") == 6
    assert plain.full_messages("t") == talk(6)


def test_an_archived_group_is_shown_again(plain: Any) -> None:
    Chat(plain).talk("t", talk(30))
    group = plain.groups("t")[0]
    plain.groups.expand("t", group.key)
    assert set(names(0, group.stop)) <= set(ids(plain.load(at("t"))))
    assert sum(one.messages for one in plain.layers("t")) == 30
    Chat(plain).talk("t", talk(6, 30))
    assert plain.full_messages("t") == talk(36)


def test_topics_by_hand(plain: Any) -> None:
    Chat(plain).talk("t", talk(12))
    groups = plain.groups.regroup("t", [(0, 3, "greeting"), (3, 8, "business")])
    assert [(one.start, one.stop, one.topic) for one in groups[:2]] == [
        (0, 3, "greeting"),
        (3, 8, "business"),
    ]
    assert plain.groups("t") == groups
    assert plain.full_messages("t") == talk(12)
    assert len(plain.search_messages("t", key=groups[1].key)) == 5
    for wrong in ((3, 3, ""), (-1, 2, ""), (0, 13, ""), (6, 10, "")):
        with pytest.raises(InvalidArgumentError):
            plain.groups.regroup("t", [wrong])
    with pytest.raises(InvalidArgumentError):
        plain.groups.expand("t", "absent")


def test_no_group_cuts_a_tool_call(plain: Any) -> None:
    plain.save(at("t"), [*talk(1), call("call", "c"), result("c"), *talk(1, 1)])
    with pytest.raises(InvalidArgumentError):
        plain.groups.collapse("t", 0, 2)
    with pytest.raises(InvalidArgumentError):
        plain.groups.collapse("t", 2, 4)
    assert plain.groups.collapse("t", 1, 3).messages == 2


def test_layers_and_groups_together(plain: Any) -> None:
    manager = IntegratedCheckpointManager(plain)
    saved = manager.save_checkpoint_optimized(at("t"), talk(6))
    assert (saved.layer, saved.messages, saved.effective_count) == ("summary", 6, 6)
    assert manager.load(at("t")) == plain.load(at("t"))
    plain.delete_thread("t")
    manager.save_checkpoint_optimized(at("t"), talk(4))
    manager.groups.collapse("t", 0, 3)
    saved = manager.save_checkpoint_optimized(at("t"), [*manager.load(at("t")), *talk(2, 4)])
    assert (saved.layer, saved.messages, saved.effective_count) == ("full", 6, 4)


# -- without a graph -----------------------------------------------------------------------


@pytest.mark.parametrize("is_whole", [False, True])
def test_save_and_load(plain: Any, is_whole: bool) -> None:
    assert plain.load(at("t")) == []
    for count in range(2, 26, 2):
        before = talk(count - 2) if is_whole else plain.load(at("t"))
        plain.save(at("t"), [*before, *talk(2, count - 2)])
        assert plain.full_messages("t") == talk(count)
        assert ids(plain.load(at("t")))[-2:] == names(count - 2, count)
    assert len(plain.load(at("t"))) == 5


def test_messages_without_ids_are_saved_again(plain: Any) -> None:
    said = [("user", "same"), ("ai", "same")] * 6
    for count in range(2, 14, 2):
        plain.save(at("t"), said[:count])
        assert [one.content for one in plain.full_messages("t")] == ["same"] * count
    found = [one.id for one in plain.full_messages("t")]
    assert len(set(found)) == 12


def test_another_language() -> None:
    memory = layered(MemorySaver(), language="zh")
    memory.save(at("t"), talk(8))
    assert memory.load(at("t"))[0].content.startswith("[之前的对话总结]")


def test_a_thread_is_split(memory: Any, saver: Any) -> None:
    said: list[Any] = [SystemMessage("be kind", id="s"), *talk(24)]
    memory.save(at("t"), said)
    config = memory.split("t", "next")
    view = memory.load(config)
    assert ids(view) == ["s", "threadkeep-memory"]
    assert saver.threads.get("next").metadata["split_from"] == "t"
    assert saver.threads.get("t").metadata["split_into"] == "next"
    Chat(memory).talk("next", talk(4, 50))
    assert [one.id for one in memory.full_messages("next") if one.id != "s"] == names(50, 54)
    assert memory.full_messages("t") == said
    with pytest.raises(StateError):
        memory.split("t", "next")
    with pytest.raises(ThreadNotFoundError):
        memory.split("absent")


def test_a_deleted_thread_may_be_used_again(memory: Any) -> None:
    for _ in range(2):
        assert len(memory.view(at("t"), talk(24))) < 24
        memory.save(at("before"), talk(24))
        memory.split("before", "next")
        for thread in ("t", "before", "next"):
            memory.delete_thread(thread)


def test_a_view_under_way_does_not_bring_a_deleted_thread_back(saver: Any) -> None:
    def deleting(messages: Any, previous: Any) -> str:
        saver.delete_thread("t")
        return told(messages, previous)

    memory = layered(saver, summarizer=deleting)
    memory.view(at("t"), talk(24))
    saver.delete_thread("t")
    before = [*saver.list(None)]
    memory.view(at("t"), talk(24))
    assert [*saver.list(None)] == before == []


def test_arguments_that_are_refused() -> None:
    inner = MemorySaver()
    for wrong in (
        {"saver": object()},
        {"saver": LayeredCheckpointSaver(inner)},
        {"policy": {"full_window": 3}},
        {"language": "fr"},
        {"channel": ""},
        {"background": "yes"},
        {"summarizer": 3},
    ):
        with pytest.raises(InvalidArgumentError):
            LayeredCheckpointSaver(**{"saver": inner, **wrong})
    with pytest.raises(InvalidArgumentError, match="saver: None"):
        LayeredCheckpointSaver()
    assert LayeredCheckpointSaver(base_saver=inner).threads.count() == 0


# -- what programs do ------------------------------------------------------------------


def test_an_id_that_was_removed_comes_again(plain: Any) -> None:
    chat = Chat(plain)
    chat.talk("t", talk(10))
    plain.remove("t", ["m0"])
    again = [HumanMessage("zebra", id="m0"), AIMessage("yes", id="yes")]
    chat.say("t", again)
    chat.talk("t", talk(10, 20))
    assert plain.full_messages("t") == [*talk(10)[1:], *again, *talk(10, 20)]
    assert [one.message for one in plain.search_messages("t", query="zebra")] == again[:1]
    assert [one.message for one in plain.search_messages("t", ids=["m0"])] == again[:1]
    assert plain.search_messages("t", query="message 0") == []


def removed(plain: Any) -> list[Any]:
    """A conversation whose only archived message was removed, and that begins with its equal."""
    plain.save("t", [HumanMessage("hi", id="a"), *talk(4)])
    plain.remove("t", ["a"])
    plain.resummarize("t")
    assert plain.load(at("t")) == talk(4)
    return [HumanMessage("hi", id="b"), *talk(4)]


def test_a_message_that_equals_a_removed_one_is_saved(plain: Any) -> None:
    said = removed(plain)
    plain.save("t", said)
    assert plain.full_messages("t") == said


def test_a_message_that_equals_a_removed_one_is_in_the_view(plain: Any) -> None:
    view = plain.view(at("t"), removed(plain))
    assert view[0].content == f"{TITLE} 1 more after 0"


def test_equal_messages_that_are_sent_again_are_no_edit(plain: Any) -> None:
    chat, said = Chat(plain), talk(12)
    chat.talk("t", said)
    plain.save(at("t"), said)
    chat.graph.update_state(at("t"), {"messages": said}, as_node="model")
    assert plain.full_messages("t") == said
    found = list(plain.list({"configurable": {"thread_id": "t", "checkpoint_ns": NS}}))
    assert [one for one in found if one.checkpoint["channel_values"]["edits"]] == []


def test_a_view_is_saved_without_its_ids(plain: Any) -> None:
    said: list[str] = []
    for turn in range(12):
        shown = [{"role": one.type, "content": one.content} for one in plain.load(at("t"))]
        new = [("human", f"q{turn}"), ("ai", f"a{turn}")]
        said += [text for _, text in new]
        plain.save(at("t"), [*shown, *new])
    assert [one.content for one in plain.full_messages("t")] == said
    with pytest.raises(InvalidArgumentError, match="load"):
        plain.save(at("t"), [("system", f"{TITLE} of another time"), ("human", "q")])
    assert [one.content for one in plain.full_messages("t")] == said


def test_bytes_in_a_message_leave_the_window_too(plain: Any) -> None:
    image = HumanMessage([{"type": "media", "data": b"\xff\xd8"}], id="image")
    plain.save(at("t"), [image, *talk(9)])
    assert len(plain.load(at("t"))) == 5
    assert plain.full_messages("t") == [image, *talk(9)]


def test_a_call_stays_in_the_window_while_its_result_may_come(plain: Any) -> None:
    plain.save(at("t"), [*talk(2), call("a", "c1"), *talk(8, 10)])
    assert ids(plain.load(at("t")))[1:] == ["a", *names(10, 18)]
    chat = Chat(plain)
    chat.graph.update_state(at("t"), {"messages": [result("c1")]}, as_node="model")
    assert ids(plain.load(at("t")))[1] == "a"
    offline = layered(MemorySaver(), summarizer=None)
    offline.save(at("old"), [*talk(2), call("a", "c1"), *talk(120, 10)])
    assert len(offline.load(at("old"))) == 5


def test_a_store_that_cannot_be_written_is_read(tmp_path: Any) -> None:
    path = tmp_path / "threads.db"
    with layered(OurSqliteSaver(path)) as memory:
        Chat(memory).talk("t", talk(10))
    inner = Saver(SqliteBackend(path, read_only=True))
    with layered(inner, index=ScanIndex()) as memory:
        assert memory.full_messages("t") == talk(10)
        assert memory.usage("t").messages == 10
        assert Chat(memory).graph.get_state(at("t")).values["messages"]


def test_a_chat_that_waits_for_each_answer_has_layers(plain: Any) -> None:
    builder = StateGraph(State)
    builder.add_node("human", lambda _: {"messages": [("user", interrupt("and then?"))]})
    builder.add_node("bot", lambda state: {"messages": [("ai", f"{len(state['messages'])}")]})
    builder.add_edge(START, "human")
    builder.add_edge("human", "bot")
    builder.add_edge("bot", "human")
    graph = builder.compile(checkpointer=plain)
    graph.invoke({"messages": []}, at("t"))
    for turn in range(10):
        graph.invoke(Command(resume=f"answer {turn}"), at("t"))
    full = plain.full_messages("t")
    assert [one.content for one in full[::2]] == [f"answer {turn}" for turn in range(10)]
    assert max(int(one.content) for one in full[1::2]) == 6


def test_pinned_messages_are_in_the_order_of_the_conversation(plain: Any) -> None:
    Chat(plain).talk("t", talk(20))
    plain.pin("t", "m8")
    plain.pin("t", "m2")
    assert ids(plain.load(at("t")))[1:3] == ["m2", "m8"]


def test_a_program_without_layers_continues_the_archive(plain: Any) -> None:
    chat, said = Chat(plain), talk(20)
    chat.talk("t", said)
    more = [HumanMessage("by another program", id="other")]
    Chat(plain._inner).graph.update_state(at("t"), {"messages": more}, as_node="model")
    assert plain.full_messages("t") == [*said, *more]
    chat.talk("t", talk(4, 50))
    assert plain.full_messages("t") == [*said, *more, *talk(4, 50)]


def test_an_older_view_that_is_saved_has_its_own_archive(plain: Any) -> None:
    said = talk(16)
    plain.save(at("t"), said)
    old = plain.load(at("t"))
    for start in range(20, 28, 2):
        plain.save("t", [*plain.load("t"), *talk(2, start)])
    plain.save(at("t"), [*old, *talk(2, 40)])
    assert plain.full_messages("t") == [*said, *talk(2, 40)]


def test_branches_that_say_the_same_have_ids_of_their_own() -> None:
    policy = Layers(full_window=1, summary_window=5, archive_threshold=9, batch=1)
    memory = layered(MemorySaver(), policy)
    chat = Chat(memory)
    chat.say("t", talk(2))
    config = chat.graph.get_state(at("t")).config
    for name in ("yes-1", "yes-2"):
        chat.say(config, [HumanMessage("yes", id=name), AIMessage("fine", id=f"{name} fine")])
        memory.load("t")
    assert ids(memory.full_messages("t"))[2:] == ["yes-2", "yes-2 fine"]
    memory.remove("t", ["yes-2"])
    assert ids(memory.full_messages("t"))[2:] == ["yes-2 fine"]


def test_the_tags_of_suggestions_protect_no_thread(plain: Any) -> None:
    for name in ("t", "u"):
        Chat(plain).talk(name, talk(30))
    plain.threads.tag("u", "threadkeep.mine")
    plain.threads.gc(Retention(ttl=0.000_001))
    assert [one.id for one in plain.threads.scan()] == ["u"]


@pytest.mark.parametrize("is_repeated", [False, True], ids=["before", "answer lost"])
@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_a_deleted_thread_leaves_no_words_in_the_index(
    name: str, is_repeated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program deletes it while its first record is added to the index."""
    with open_backend(name, tmp_path) as inner, open_backend(name, tmp_path) as other:
        inner.setup()
        memory = layered(inner)
        add, added = memory.index._add, list[Any]()

        def adding(*args: Any) -> Any:
            if is_repeated:
                add(*args)
            if not added:
                layered(other).delete_thread("t")
            added.append(args)
            return add(*args)

        monkeypatch.setattr(memory.index, "_add", adding)
        with pytest.raises(ThreadDeletedError):
            Chat(memory).talk("t", talk(40))
        assert added
        assert memory.index.threads() == set()
