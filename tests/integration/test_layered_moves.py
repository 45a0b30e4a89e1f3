"""Layered conversations whose index lacks their records, or fails."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kit import postgres
from kit.conversations import Chat, talk, texts
from kit.places import at
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage

from threadkeep import MemorySaver, open_saver
from threadkeep.memory import LayeredCheckpointSaver, Layers
from threadkeep.memory.records import NS

SMALL = Layers(full_window=4, summary_window=8, batch=1)
MESSAGES = 14


class Place:
    """A store, and savers with layers over it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        is_file = kind == "sqlite"
        self.url = f"sqlite:///{folder / 'a.db'}" if is_file else postgres.url_for(folder)
        self.cold = f"file://{folder / 'cold'}"
        self.memory = self.opened()

    def opened(self) -> Any:
        return LayeredCheckpointSaver(open_saver(self.url, cold=self.cold), SMALL)

    def other(self) -> Any:
        return closing(open_saver(self.url, cold=self.cold))


def archive_by_another(place: Place) -> str:
    with place.other() as other:
        other.threads.archive("t")
    return "t"


def forget_the_index(place: Place) -> str:
    place.memory.index.remove("t")
    return "t"


def numbered(messages: list[Any], start: int = 0) -> list[Any]:
    return [
        one.model_copy(update={"content": f"{one.content} word{number}"})
        for number, one in enumerate(messages, start)
    ]


@pytest.fixture(params=[("postgres", archive_by_another), ("sqlite", forget_the_index)])
def moved(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, str, list[Any]]]:
    """A saver that has moved a thread, the thread's name now, and its whole conversation."""
    kind, move = request.param
    place, said = Place(tmp_path, kind), numbered(talk(MESSAGES))
    said[5] = AIMessage("message 5 word5" + " and so on" * 1000, id="m5")  # (for `offload`)
    for stop in (8, 10, MESSAGES):  # (each makes a record)
        place.memory.save(at("t"), said[:stop])
    place.memory.edit("t", [HumanMessage("edited once word2", id="m2")])
    said[2] = HumanMessage("edited once word2", id="m2")
    assert place.memory.search_messages(
        "t", query="word2 once"
    )  # (so this process knows the thread well)
    thread = move(place)
    yield place.memory, thread, said
    place.memory.close()


def check(memory: Any, thread: str, said: list[Any]) -> None:
    assert texts(memory.full_messages(thread)) == texts(said)
    archived = memory.search_messages(thread)
    assert texts([one.message for one in archived] + memory.load(at(thread))[1:]) == texts(said)
    for one in archived:
        word = str(one.message.content).split()[2]
        for found in (
            memory.search_messages(thread, query=word),
            memory.search_messages(thread, ids=[one.message.id]),
        ):
            assert [(each.position, each.message) for each in found] == [
                (one.position, one.message)
            ]


def test_the_conversation_is_whole(moved: Any) -> None:
    memory, thread, said = moved
    check(memory, thread, said)


def test_archived_messages_are_edited_and_removed(moved: Any) -> None:
    memory, thread, said = moved
    edited = HumanMessage("edited again word2", id="m2")
    Chat(memory).say(thread, [edited, RemoveMessage(id="m3"), RemoveMessage(id="m4")])
    check(memory, thread, [*said[:2], edited, *said[5:]])


def test_archived_messages_are_edited_turns_later(tmp_path: Path) -> None:
    """The records of the turns are in the index then; those before have left it."""
    place, said = Place(tmp_path, "sqlite"), numbered(talk(MESSAGES))
    chat = Chat(place.memory)
    chat.talk("t", said)
    with place.other() as other:
        other.threads.archive("t")
        other.threads.restore("t")
    new = numbered(talk(6, MESSAGES), MESSAGES)
    chat.talk("t", new)
    edited = HumanMessage("edited again word2", id="m2")
    chat.say("t", [edited, RemoveMessage(id="m3"), RemoveMessage(id="m4")])
    check(place.memory, "t", [*said[:2], edited, *said[5:], *new])
    place.memory.close()


def test_a_check_notes_archived_messages_that_are_missing() -> None:
    memory: Any = LayeredCheckpointSaver(MemorySaver(), SMALL)
    Chat(memory).talk("t", talk(12))
    report = memory.check()
    assert not [*report.findings, *report.notes]
    records = [*memory._inner.list({"configurable": {"thread_id": "t", "checkpoint_ns": NS}})]
    gone = records[2].checkpoint["id"]
    memory.delete_checkpoints("t", [gone], NS)
    report = memory.check()
    assert report.ok
    assert report.notes
    assert all(one.kind == "layers" and gone in one.problem for one in report.notes)
    assert not memory.threads.repair(dry_run=True).repaired


@pytest.mark.parametrize("name", ["find", "search", "has", "add"])
def test_the_records_answer_where_the_index_fails(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("the disk is full")

    place, said = Place(tmp_path, "sqlite"), numbered(talk(MESSAGES))
    place.memory.save(at("t"), said)
    place.memory.index.remove("t")
    monkeypatch.setattr(place.memory.index, name, fail)
    edited = HumanMessage("edited word2 word2", id="m2")
    Chat(place.memory).say("t", [edited, RemoveMessage(id="m3"), RemoveMessage(id="m4")])
    check(place.memory, "t", [*said[:2], edited, *said[5:]])
    place.memory.close()
