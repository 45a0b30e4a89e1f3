"""Graphs on a serializer that the user brings: all that the engine does with its bytes."""

import json
import operator
import pickle
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from kit.backends import BACKENDS, open_backend
from kit.graphs import linear
from kit.places import at
from kit.rows import place, put, value_at
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver as LangGraphsInMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import add_messages

from threadkeep import MemorySaver


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], operator.add]
    files: Annotated[dict[str, str], operator.or_]
    document: str


class DumpsOnly:
    """The least that is a serializer."""

    def dumps(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def loads(self, data: bytes) -> Any:
        return pickle.loads(data)


class JsonOnly:
    """Gives tuples back as lists, and every key of a dict as text."""

    def dumps(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def loads(self, data: bytes) -> Any:
        return json.loads(data)


def hook(code: int, data: bytes) -> Any:
    """LangGraph's own, wrapped, as programs do that add types to it."""
    return JsonPlusSerializer()._unpack_ext_hook(code, data)


SERIALIZERS = {
    "dumps and loads only": DumpsOnly,
    "LangGraph's": JsonPlusSerializer,
    "LangGraph's with a hook": lambda: JsonPlusSerializer(__unpack_ext_hook__=hook),
    "LangGraph's, encrypted": lambda: EncryptedSerializer.from_pycryptodome_aes(key=b"k" * 16),
}


def answer(state: State) -> dict[str, Any]:
    count = len(state["messages"])
    return {
        "messages": [AIMessage(f"answer {count} " * 20, id=f"a{count}")],
        "notes": [f"note {count} " * 10],
        "files": {f"file {count}": "line\n" * 40},
        "document": state["document"] + f"line {count}\n",
    }


def graph_on(saver: Any) -> Any:
    return linear(saver, State, answer=answer)


def talk(graph: Any, turns: int) -> list[Any]:
    """Some turns, and every state that came of them."""
    for turn in range(turns):
        asked = {"messages": [HumanMessage(f"question {turn} " * 20, id=f"h{turn}")]}
        first = {"document": "a long line\n" * 200} if not turn else {}
        graph.invoke({**asked, **first}, at())
    return [(s.values, s.next, s.metadata["step"]) for s in graph.get_state_history(at())]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SERIALIZERS)
def test_a_graph_s_states_are_langgraph_s(backend: str, name: str, tmp_path: Path) -> None:
    make = SERIALIZERS[name]
    expected = talk(graph_on(LangGraphsInMemorySaver(serde=make())), 12)
    with open_backend(backend, tmp_path, serde=make()) as saver:
        assert talk(graph_on(saver), 12) == expected
        assert saver.check().ok


@pytest.mark.parametrize("name", SERIALIZERS)
def test_what_was_stored_is_read_by_another_process(name: str, tmp_path: Path) -> None:
    make = SERIALIZERS[name]
    with open_backend("sqlite", tmp_path, serde=make()) as saver:
        before = talk(graph_on(saver), 3)
    with open_backend("sqlite", tmp_path, serde=make()) as saver:
        assert [
            (s.values, s.next, s.metadata["step"]) for s in graph_on(saver).get_state_history(at())
        ] == before
        assert len(talk(graph_on(saver), 2)) == len(before) + 6


@pytest.mark.parametrize(
    "value",
    ["x" * 100, b"y" * 5000, ["short"], ["long " * 50] * 3, {"k": "v" * 100}, {}, [], None, ""],
    ids=lambda value: f"{type(value).__name__}{len(value or ())}",
)
@pytest.mark.parametrize("name", SERIALIZERS)
def test_values_of_all_sizes(name: str, value: Any, tmp_path: Path) -> None:
    with open_backend("memory", tmp_path, serde=SERIALIZERS[name]()) as saver:
        put(saver, place(), {"value": value})
        assert value_at(saver, place()) == value


def test_keys_are_what_the_serializer_makes_of_them(tmp_path: Path) -> None:
    with open_backend("memory", tmp_path, serde=JsonOnly()) as saver:
        put(saver, place(), {"value": {1: "one " * 50, 2: "two " * 50}})
        assert value_at(saver, place()) == {"1": "one " * 50, "2": "two " * 50}


@pytest.mark.parametrize("serializer", ["encrypted", "DumpsOnly"])
def test_a_merge_takes_only_what_the_fork_has_changed(serializer: str) -> None:
    secret = EncryptedSerializer.from_pycryptodome_aes(key=b"k" * 16)
    with MemorySaver(serde=secret if serializer == "encrypted" else DumpsOnly()) as saver:
        graph = graph_on(saver)
        graph.update_state(at("t"), {"document": "before", "notes": ["one"]}, as_node="answer")
        saver.threads.fork("t", new_thread_id="fork")
        graph.update_state(at("t"), {"document": "ours"}, as_node="answer")
        graph.update_state(at("fork"), {"notes": ["two"]}, as_node="answer")
        merge = saver.threads.merge_fork("fork", "t", "theirs")
        assert (merge.channels, merge.conflicts) == (("notes",), ())
        assert graph.get_state(at("t")).values["document"] == "ours"
        assert graph.get_state(at("t")).values["notes"] == ["one", "two"]
