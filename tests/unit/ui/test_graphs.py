"""The graph of a page: what names it, its text, its marks, and its runs."""

import asyncio
import sys
from contextlib import suppress

import pytest
from kit.graphs_to_look_at import asks, desk, failing, named, nested, refund
from langgraph.graph import START, MessagesState, StateGraph

from threadkeep import MemorySaver
from threadkeep.errors import InvalidArgumentError, StateError, ThreadLockedError
from threadkeep.memory import LayeredCheckpointSaver
from threadkeep.monitor import observe
from threadkeep.runs import guard
from threadkeep.threads.steps import read_steps
from threadkeep.ui.graphs import PageGraph, graph_of, load_graph

MODULE = """
from langgraph.graph import START, MessagesState, StateGraph
builder = StateGraph(MessagesState).add_node("one", lambda state: {}).add_edge(START, "one")
graph = builder.compile()
number = 3
class Inside:
    graph = graph
def make(): return builder
def needs(config, more=1): return graph
async def later(): return graph
def fails(): raise KeyError("API_KEY")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with modules that no other test has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    (tmp_path / "drawn_agent.py").write_text(MODULE)
    (tmp_path / "broken_agent.py").write_text("import no_such_library\n")
    (tmp_path / "ends.py").write_text("raise SystemExit(3)\n")
    yield tmp_path
    for name in {*sys.modules} - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    "name",
    [
        *("drawn_agent:graph", "drawn_agent:builder", "drawn_agent:make"),
        *("drawn_agent:Inside.graph", "./drawn_agent.py:graph", "drawn_agent.py:make"),
    ],
)
def test_a_graph_is_found_by_its_name(folder, name):
    assert "one" in graph_of(load_graph(name)).nodes


def test_a_file_is_imported_beside_another_module_of_its_name(folder):
    (folder / "json.py").write_text(f"{MODULE}\nimport drawn_agent")
    assert "one" in graph_of(load_graph("json.py:graph")).nodes
    assert sys.modules["json"].loads("1") == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("drawn_agent", "names no graph"),
        (":graph", "names no graph"),
        ("nowhere:graph", "no module nowhere. *Start the command in its folder"),
        ("drawn_agent.deep:graph", "no module drawn_agent.deep"),
        ("nowhere.py:graph", "no file nowhere.py"),
        ("drawn_agent:other", "no other. *Its graphs are: builder, graph"),
        ("drawn_agent:number", "no graph: int"),
        ("drawn_agent:Inside", "no graph: type"),
        ("drawn_agent:needs", "needs arguments: config"),
        ("drawn_agent:later", "is async"),
        ("drawn_agent:fails", r"fails failed: KeyError: 'API_KEY' \(drawn_agent.py:11\)"),
        ("broken_agent:graph", r"cannot be imported: .*no_such_library.*\(broken_agent.py:1\)"),
        ("ends:graph", r"cannot be imported: SystemExit: 3"),
        ("..:graph", "cannot be imported"),
        ("sys:exit", "failed: SystemExit|needs arguments|no graph"),
    ],
)
def test_a_name_of_no_graph_is_refused(folder, name, text):
    with pytest.raises(InvalidArgumentError, match=f"(?s){text}".replace(". *", r".\s*")):
        graph_of(load_graph(name))


def test_a_builder_that_cannot_be_compiled_is_refused():
    with pytest.raises(InvalidArgumentError, match="cannot be compiled"):
        graph_of(StateGraph(MessagesState).add_node("one", lambda _: {}))


def named_graph(name):
    inner = StateGraph(MessagesState).add_sequence([("look up", lambda _: {}), ("b", lambda _: {})])
    outer = StateGraph(MessagesState).add_node(name, lambda _: {})
    outer.add_node("the inner", inner.add_edge(START, "look up").compile())
    return outer.add_edge(START, name).add_edge(name, "the inner").compile()


@pytest.mark.parametrize(
    ("name", "id"),
    [("end", "_end"), ("style-it", "_style-it"), ("ends", "ends"), ("größe", r"gr\f6\dfe")],
)
def test_names_that_mermaid_reserves_are_written_otherwise(name, id):
    text = PageGraph(named_graph(name)).text
    assert f"\t{id}({name})\n" in text
    assert f"\t__start__ --> {id};\n\t{id} --> the\\20inner\\3alook\\20up;" in text
    assert '\tsubgraph the\\20inner["the inner"]\n' in text


def test_a_graph_that_cannot_be_drawn_has_no_text(monkeypatch):
    page = PageGraph(desk(None))
    monkeypatch.setattr(type(page.graph), "get_graph", lambda *_, **__: 1 / 0)
    assert page.text == ""


async def marks_of(saver, page, thread, failed=None, **place):
    place = {"configurable": {"thread_id": thread, **place}}
    found = [one async for one in saver.alist(place, values="lazy")]
    return [page.marks(one, failed) for one in await read_steps(saver, found, len(found))]


async def test_marks_name_nodes_that_ran_wait_and_failed():
    saver = MemorySaver()
    with suppress(ValueError):
        failing(saver).invoke(asks("Try"), named("failed"))
    (head, *_) = await marks_of(saver, PageGraph(failing(None)), "failed", checkpoint_ns="")
    assert head == "look_up ran\nfail failed"
    refund(saver).invoke(asks("Refund"), named("refund"))
    (head, *_) = await marks_of(saver, PageGraph(refund(None)), "refund")
    assert head == "ask_finance waiting\nask_manager waiting"
    nested(saver).invoke(asks("Research"), named("nested"))
    page = PageGraph(nested(None))
    (head, after, *_) = await marks_of(saver, page, "nested", checkpoint_ns="")
    assert (head, after) == ("answer ran", "research ran")
    inner = await marks_of(saver, page, "nested")
    assert "research\\3afind_order ran" in inner
    assert await marks_of(saver, PageGraph(desk(None)), "nested", checkpoint_ns="") == [
        "answer ran",
        *[""] * 3,
    ]


def test_a_checkpointer_of_the_same_store_is_kept():
    saver = MemorySaver()
    layered = LayeredCheckpointSaver(saver)
    assert PageGraph(desk(layered), saver).graph.checkpointer is layered
    assert PageGraph(desk(MemorySaver()), saver).graph.checkpointer is saver
    tenant = saver.for_tenant("acme")
    assert PageGraph(desk(saver), tenant).graph.checkpointer is tenant


@pytest.mark.parametrize("wrapped", [observe, LayeredCheckpointSaver])
async def test_a_wrapped_saver_runs_threads(wrapped):
    saver = MemorySaver()
    page = PageGraph(desk(None), wrapped(saver))
    await saver.runs.asubmit(desk(saver), "one", asks("Hello"))
    assert await page.start(named("one")) == "ended"
    assert saver.threads.get("one").status == "done"


class Waiting(MessagesState, total=False):
    """State of a graph whose nodes wait for an event."""


def waiting(event):
    async def first(_: Waiting):
        await event.wait()

    builder = StateGraph(Waiting).add_node("first", first).add_node("second", lambda _: {})
    return builder.add_edge(START, "first").add_edge("first", "second")


async def started(saver, page, count):
    for number in range(count):
        await saver.runs.asubmit(page.graph, f"{number}", asks("Hello"))
        assert await page.start(named(f"{number}")) == "running"


async def test_too_many_runs_and_a_second_run_of_a_thread_are_refused(monkeypatch):
    monkeypatch.setattr("threadkeep.ui.graphs._WAIT", 0.05)
    saver, event = MemorySaver(), asyncio.Event()
    page = PageGraph(waiting(event), saver)
    await started(saver, page, 1)
    with pytest.raises(ThreadLockedError, match="Wait for the end of that run"):
        await page.start(named("0"))
    monkeypatch.setattr("threadkeep.ui.graphs._MOST", 1)
    with pytest.raises(StateError, match="1 runs are under way"):
        await page.start(named("other"))
    event.set()
    await page.drain(5, lambda: False)
    assert saver.threads.get("0").status in ("done", "unfinished")
    async with guard(saver, "0"):
        pass


@pytest.mark.parametrize("is_urgent", [True, False])
async def test_runs_end_their_step_or_are_cancelled(is_urgent, monkeypatch, caplog):
    monkeypatch.setattr("threadkeep.ui.graphs._WAIT", 0.05)
    saver, event = MemorySaver(), asyncio.Event()
    page = PageGraph(waiting(event), saver)
    await started(saver, page, 2)
    if not is_urgent:
        asyncio.get_running_loop().call_later(0.05, event.set)
    await page.drain(20, lambda: is_urgent)
    assert "Runs end their step: 2." in caplog.text
    assert "has failed" not in caplog.text
    left = [one.id for one in saver.runs.unfinished()]
    assert sorted(left) == ["0", "1"], "due at once"
    state = waiting(event).compile(checkpointer=saver).get_state(named("0"))
    assert state.next == (("first",) if is_urgent else ("second",))


def test_a_thread_of_another_graph_is_refused():
    with pytest.raises(StateError, match="no node 'charge'"):
        PageGraph(desk(None)).check(["look_up", "charge"])
