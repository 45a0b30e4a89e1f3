"""Serializers that programs assign to a saver which is open, as LangGraph's savers allow."""

from pathlib import Path
from typing import Any

import pytest
from kit.graphs import linear
from kit.places import at
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import MessagesState

from threadkeep import MemorySaver, SqliteSaver
from threadkeep.cache import InMemoryCache
from threadkeep.errors import CorruptionError, InvalidArgumentError
from threadkeep.memory import LayeredCheckpointSaver, Layers
from threadkeep.monitor import observe
from threadkeep.streaming import StreamingCheckpointSaver

from .inner import put, values
from .test_serializers import JsonOnly, graph_on, talk

SECRET = "TOP-SECRET-VALUE" * 3
WAYS: dict[str, Any] = {
    "itself": lambda saver: saver,
    "observed": observe,
    "streaming": StreamingCheckpointSaver,
    "layered": LayeredCheckpointSaver,
}


def encrypted() -> Any:
    return EncryptedSerializer.from_pycryptodome_aes(key=b"k" * 16)


def bytes_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))


@pytest.mark.parametrize("outer", [True, False], ids=["assigned-outside", "assigned-inside"])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_assigned_encrypts_all_values(way: str, outer: bool, tmp_path: Path) -> None:
    inner = SqliteSaver(tmp_path / "a.db")
    saver = WAYS[way](inner)
    clone, threads = saver.with_allowlist({("a", "B")}), saver.threads
    secret = encrypted()
    (saver if outer else inner).serde = secret
    assert saver.serde is inner.serde is clone.serde is secret
    first = put(saver, "t", values=[SECRET])
    saver.put_writes(first, [("values", SECRET)], "task")
    put(clone, "clone", values=SECRET)
    threads.fork("t", new_thread_id="fork")
    assert threads.diff_checkpoints(("t", None), ("fork", None)).is_same
    assert values(saver) == {"values": [SECRET]}
    assert values(saver, "clone") == {"values": SECRET}
    assert SECRET.encode() not in bytes_in(tmp_path)
    assert saver.check().ok
    saver.close()
    with SqliteSaver(tmp_path / "a.db", serde=encrypted()) as again:
        assert values(again) == values(again, "fork") == {"values": [SECRET]}


def test_an_index_of_archived_messages_gets_no_plain_text(tmp_path: Path) -> None:
    saver = LayeredCheckpointSaver(
        SqliteSaver(tmp_path / "a.db"), Layers(full_window=2, summary_window=4)
    )
    messages = [HumanMessage(f"word{n}", id=str(n)) for n in range(20)]
    saver.save("plain", messages)
    saver.serde = encrypted()
    assert [one.message.id for one in saver.search_messages("plain", query="word3")] == ["3"]
    before = bytes_in(tmp_path)
    saver.save("t", [HumanMessage(f"SECRET {one.text}", id=one.id) for one in messages])
    assert [one.message.id for one in saver.search_messages("t", query="secret word3")] == ["3"]
    found = bytes_in(tmp_path)
    assert b"word3" in before
    assert b"secret" not in found.lower()
    saver.close()


def test_values_of_before_are_read_and_built_on(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "a.db") as saver:
        before = talk(graph_on(saver), 2)
        saver.serde = encrypted()
        assert talk(graph_on(saver), 0) == before
        put(saver, "u", 1, a=["x"])
        after = talk(graph_on(saver), 2)
        assert saver.check().ok
    with SqliteSaver(tmp_path / "a.db") as saver:
        with pytest.raises(CorruptionError, match="with serde="):
            talk(graph_on(saver), 0)
        saver.serde = encrypted()
        assert talk(graph_on(saver), 0) == after
    with SqliteSaver(tmp_path / "a.db", serde=encrypted()) as saver:
        with pytest.raises(CorruptionError, match="not written by") as error:
            list(saver.list(None))
        assert "assign that serializer again" in (error.value.hint or "")


def test_what_is_no_serializer_is_refused() -> None:
    saver = MemorySaver()
    put(saver, "t", 1, a=(1, 2))
    for bad in (None, object()):
        with pytest.raises(InvalidArgumentError, match="dumps_typed"):
            saver.serde = bad
    saver.serde = saver.serde  # changes nothing
    put(saver, "t", 2, a=(3,))
    assert values(saver)["a"] == (3,)


def test_objects_are_not_lent_over_serializers() -> None:
    met: list[Any] = []

    def look(state: MessagesState) -> Any:
        met.append(state["messages"][0])

    saver = MemorySaver()
    graph = linear(saver, MessagesState, look=look)
    for turn in range(4):
        if turn == 3:
            saver.serde = JsonPlusSerializer()
        graph.invoke({"messages": [HumanMessage(f"turn {turn}", id=str(turn))]}, at())
    assert met[1] is met[2]
    assert met[2] is not met[3]
    assert met[2] == met[3]


def test_a_cache_of_nodes_uses_what_it_is_assigned() -> None:
    cache = InMemoryCache()
    one, two = (("ns",), "one"), (("ns",), "two")
    cache.set({one: ((1,), None)})
    cache.serde = JsonOnly()
    cache.set({two: ((2,), None)})
    assert cache.get([one, two]) == {two: [2]}
