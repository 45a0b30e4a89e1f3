"""Layered conversations whose threads are moved: they stay what a plain list of messages is."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kit import postgres
from kit.conversations import Chat, talk, texts
from kit.places import at
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage

from threadkeep import MemorySaver, Retention, Tiering, WarmTier, open_saver
from threadkeep.errors import ThreadNotFoundError
from threadkeep.memory import LayeredCheckpointSaver, Layers
from threadkeep.memory.records import NS

SMALL = Layers(full_window=4, summary_window=8, batch=1)
MESSAGES = 14


class Place:
    """A store, and savers with layers over it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.url = {
            "memory": "memory://",
            "sqlite": f"sqlite:///{folder / 'a.db'}",
            "postgres": kind == "postgres" and postgres.url_for(folder),
        }[kind]
        self.cold = f"file://{folder / 'cold'}"
        self.memory = self.opened()

    def opened(self) -> Any:
        return LayeredCheckpointSaver(open_saver(self.url, cold=self.cold), SMALL)

    def other(self) -> Any:
        return closing(open_saver(self.url, cold=self.cold))


def archive(place: Place) -> str:
    place.memory.threads.archive("t")
    return "t"


def archive_by_another(place: Place) -> str:
    with place.other() as other:
        other.threads.archive("t")
    return "t"


def archive_and_restore(place: Place) -> str:
    place.memory.threads.archive("t")
    place.memory.threads.restore("t")
    return "t"


def archive_and_load(place: Place) -> str:
    archive(place)
    place.memory.load(at("t"))
    return "t"


def archive_and_restart(place: Place) -> str:
    archive(place)
    place.memory.close()
    place.memory = place.opened()
    return "t"


def tier(place: Place) -> str:
    report = place.memory.threads.tier(Tiering(warm=WarmTier(max_age=1e-6)))
    assert [one.thread for one in report.archived] == ["t"]
    return "t"


def offload(place: Place) -> str:
    place.memory.threads.offload("t", over=1024)
    return "t"


def fork(place: Place) -> str:
    place.memory.threads.fork("t", None, "f")
    return "f"


def copy(place: Place) -> str:
    place.memory.copy_thread("t", "c")
    return "c"


def export_erase_and_import(place: Place) -> str:
    place.memory.threads.export_bundle("t", place.folder / "t.tkb")
    place.memory.erase("t")
    with pytest.raises(ThreadNotFoundError):
        place.memory.full_messages("t")
    place.memory.threads.import_bundle(place.folder / "t.tkb")
    return "t"


def collect(place: Place) -> str:
    place.memory.threads.gc(Retention(keep_last=1))
    return "t"


def forget_the_index(place: Place) -> str:
    place.memory.index.remove("t")
    return "t"


MOVES: list[Callable[[Place], str]] = [
    *(archive, archive_by_another, archive_and_restore, archive_and_load, archive_and_restart),
    *(tier, offload, fork, copy, export_erase_and_import, collect, forget_the_index),
]
CASES = [
    *[("sqlite", move) for move in MOVES],
    *[("postgres", move) for move in (archive_by_another, archive_and_restore)],
    *[("memory", move) for move in (archive, fork, export_erase_and_import)],
]
NAMES = [f"{kind}-{move.__name__}" for kind, move in CASES]


def numbered(messages: list[Any], start: int = 0) -> list[Any]:
    return [
        one.model_copy(update={"content": f"{one.content} word{number}"})
        for number, one in enumerate(messages, start)
    ]


@pytest.fixture(params=CASES, ids=NAMES)
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
