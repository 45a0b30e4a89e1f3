"""Ids that graph runs return are plain text, and are held no longer than needed.

LangGraph passes a load's id on by reference: that it is a text of a class of its own, or that we
keep it alive, shows in no comparison of values.
"""

import gc
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import pytest
from kit.backends import BACKENDS, open_backend
from kit.graphs import linear
from kit.places import at
from kit.runs import Gate, Plain, Run, story
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, interrupt

from threadkeep._core.engine.snapshots import LOADS

MODES = ["values", "updates", "checkpoints", "tasks", "debug", "messages"]


def odd_texts(found: Any, path: str = "") -> Iterator[str]:
    """Return the places of texts, at any depth, that are not a plain `str`."""
    if isinstance(found, str):
        if type(found) is not str and not isinstance(found, Enum):
            yield f"{path}: {type(found)}"
    elif isinstance(found, Mapping):
        for key, value in found.items():
            yield from odd_texts(key, f"{path} key")
            yield from odd_texts(value, f"{path}[{key!r}]")
    elif isinstance(found, list | tuple | set | frozenset):
        for number, value in enumerate(found):
            yield from odd_texts(value, f"{path}[{number}]")
    elif is_dataclass(found) and not isinstance(found, type):
        for field in fields(found):
            yield from odd_texts(getattr(found, field.name), f"{path}.{field.name}")


def compiled(saver: Any, seen: list[Any] | None = None) -> Any:
    """A graph with a subgraph that waits; its nodes report their view on request.

    Then they keep ids of checkpoints in the state too.
    """

    def look(_: Any, config: RunnableConfig) -> Any:
        if seen is None:
            return {"log": ["looked"]}
        seen.append(dict(config["configurable"]) | {"metadata": dict(config["metadata"])})
        return {"log": [config["configurable"].get("checkpoint_map")]}

    return linear(
        saver,
        Plain,
        look=look,
        inner=linear(None, Plain, look=look, ask=lambda _: {"log": [interrupt("?")]}),
    )


def test_everything_that_a_graph_hands_out_has_plain_texts(saver: Any) -> None:
    seen: list[Any] = []
    graph = compiled(saver, seen)
    for _ in range(2):
        seen += graph.stream({"log": ["in"]}, at(), stream_mode=MODES, subgraphs=True)
        seen.append(graph.get_state(at(), subgraphs=True))
        seen += graph.stream(Command(resume="yes"), at(), stream_mode=MODES, subgraphs=True)
        seen.append(graph.update_state(at(), {"log": ["updated"]}, as_node="inner"))
    for state in graph.get_state_history(at()):
        seen += [state, graph.get_state(state.config)]
    seen += [*saver.list(None), saver.get_tuple(seen[-1].config), saver.get(at())]
    assert list(odd_texts(seen)) == []


async def test_everything_that_async_runs_hand_out_has_plain_texts(saver: Any) -> None:
    seen: list[Any] = []
    graph = compiled(saver, seen)
    for command in ({"log": ["in"]}, Command(resume="yes"), {"log": ["in"]}):
        stream = graph.astream(command, at(), stream_mode=MODES, subgraphs=True)
        seen += [each async for each in stream]
        seen.append(await graph.aget_state(at(), subgraphs=True))
    async for state in graph.aget_state_history(at()):
        seen += [state, await graph.aget_state(state.config)]
    seen += [each async for each in saver.alist(None)]
    assert list(odd_texts(seen)) == []


def remembered() -> int:
    """Loads whose ids somebody holds."""
    gc.collect()
    LOADS.sweep()
    return len(LOADS)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("store", BACKENDS)
def test_nothing_of_ours_holds_an_id_after_the_run(store: str, tmp_path: Any) -> None:
    before = remembered()
    with open_backend(store, tmp_path) as saver:
        graph = compiled(saver)
        for command in ({"log": ["in"]}, Command(resume="yes"), {"log": ["in"]}):
            graph.invoke(command, at())
        old = list(graph.get_state_history(at()))[-1].config
        graph.invoke({"log": ["again"]}, old)
        graph.update_state(at(), None, as_node="__copy__")
        found = saver.get_tuple(at())
        saver.put_writes(found.config, [("log", ["by hand"])], "task")
        saver.put(found.config, found.checkpoint, found.metadata, {})
        assert remembered() > before
        del found, old
        assert remembered() == before


def test_a_run_that_is_under_way_lends_to_nobody_and_one_that_ended_does(ours: Any) -> None:
    marks: list[Any] = []

    def note(state: Any) -> Any:
        marks.append(state["log"][0])
        return {}

    graph = linear(ours, Plain, note=note)
    graph.invoke({"log": [["mark"]]}, at())
    for _ in range(2):
        graph.invoke({"log": []}, at())
    assert marks[1] is marks[2]
    gate = Gate()
    slow = Run(story(ours, gates={"slow-first": gate}).invoke, {"log": ["slow"]}, at())
    gate.wait_until_reached()
    graph.invoke({"log": []}, at())
    gate.open()
    slow.finish()
    assert marks[3] is not marks[2]
    assert marks[3] == ["mark"]
