"""A thread is deleted while a run is in progress: nothing that was saved before is ever read again.

A run that loaded the thread before its end saves nothing more, in no namespace and with no
durability, and a run that begins after it starts with an empty thread. No clock decides: that of
the program that deletes may be behind or ahead.
"""

import copy
import operator
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from kit.backends import BACKENDS, open_backend
from kit.engine import config, everything
from kit.selection import SEED, some
from kit.stepwise import Requests
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import id as ids
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphsSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from threadkeep import astream_saved, stream_saved
from threadkeep._core.engine.model import ReadThread
from threadkeep._core.engine.operation import fetch
from threadkeep._core.langgraph_internals import RUNTIME
from threadkeep.errors import ThreadDeletedError, ThreadkeepError
from threadkeep.memory import LayeredCheckpointSaver, Layers, add_messages
from threadkeep.savers.saver import Saver
from threadkeep.sessions import CheckpointManager

AT = config()
DURABILITIES = ("sync", "async", "exit")
CLOCKS = (0, -50_000_000, 10_000_000_000, -10_000_000_000)
"""Nanoseconds by which the clock of the program that deletes is ahead."""

BESIDE = ("layered", "streamed")


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    log: Annotated[list[str], operator.add]


class Work:
    """The nodes of a run; a deed is done inside the second node of a run that has loaded."""

    def __init__(self) -> None:
        self.deed: Callable[[], object] | None = None

    def first(self, state: State) -> State:
        said = state["log"][-1] if state.get("log") else "nothing"
        name = f"first after {said} {len(state['messages'])}"
        return {"log": [name], "messages": [AIMessage(name, id=name)]}

    def second(self, state: State) -> State:
        deed, self.deed = self.deed, None
        if deed:
            deed()
        return {"log": [f"second after {state['log'][-1]}"]}

    def third(self, _state: State) -> State:
        return {"log": ["third"]}


def plain(work: Work) -> Any:
    builder = StateGraph(State)
    for name in ("first", "second", "third"):
        builder.add_node(name, getattr(work, name))
    builder.add_edge(START, "first").add_edge("first", "second").add_edge("second", "third")
    return builder


def inside(*, keeps: bool | None) -> Any:
    sub = StateGraph(State)
    sub.add_node("in", lambda state: {"log": [f"inside after {state['log'][0]}"]})
    sub.add_node("out", lambda _: {"log": ["outside"]})
    return sub.add_edge(START, "in").add_edge("in", "out").compile(checkpointer=keeps)


def subgraph(work: Work, *, keeps: bool | None = None) -> Any:
    """The second node calls a graph after the deed, and another one is a node."""
    called, node = inside(keeps=None), inside(keeps=keeps)

    def second(state: State) -> State:
        work.second(state)
        return {"log": called.invoke({"log": [*state["log"]]})["log"][-1:]}

    builder = StateGraph(State)
    builder.add_node("first", work.first).add_node("second", second).add_node("third", node)
    return builder.add_edge(START, "first").add_edge("first", "second").add_edge("second", "third")


def keeping_subgraph(work: Work) -> Any:
    return subgraph(work, keeps=True)


def sending(work: Work) -> Any:
    """The first of three tasks does the deed, and each of them calls a graph."""
    called = inside(keeps=None)

    def task(given: dict[str, Any]) -> State:
        if given["number"] == 0:
            work.second({"log": given["log"]})
        return {"log": called.invoke({"log": given["log"]})["log"][-1:]}

    builder = StateGraph(State)
    builder.add_node("first", work.first).add_node("task", task).add_node("third", work.third)
    builder.add_edge(START, "first").add_edge("task", "third")
    builder.add_conditional_edges(
        "first",
        lambda state: [Send("task", {"number": n, "log": [*state["log"]]}) for n in range(3)],
        ["task"],
    )
    return builder


WAYS: dict[str, Callable[[Work], Any]] = {
    "plain": plain,
    "subgraph": subgraph,
    "keeping subgraph": keeping_subgraph,
    "sending": sending,
    "streamed": subgraph,
    "layered": plain,
    "rolling": plain,
    "fork": plain,
}
TURNS = [(way, False) for way in WAYS]
TURNS += [(way, True) for way in WAYS if way not in ("rolling", "fork")]
"""Each way, and if the thread is deleted during its first run."""
LAYERS = Layers(full_window=2, summary_window=4, archive_threshold=20, batch=1)


class Scene:
    """A store with the saver of the runs, and with the saver of another process."""

    def __init__(self, name: str, way: str, folder: Path, stack: ExitStack) -> None:
        self.name, self.way, self.folder, self.stack = name, way, folder, stack
        self.work = Work()
        self.options: dict[str, Any] = {}
        if way == "rolling":
            self.options["migrate_from"] = str(folder / "old.db")
            with LangGraphsSaver.from_conn_string(str(folder / "old.db")) as old:
                plain(self.work).compile(checkpointer=old).invoke(self.said("SECRET"), AT)
        self.one = stack.enter_context(open_backend(name, folder, **self.options))
        self.unannounced = copy.copy(self.one.backend)
        self.two = self.opened()
        self.requests = Requests(self.one)
        self.graph = WAYS[way](self.work).compile(checkpointer=self.face(self.one))
        self.is_loaded = False
        self._note_loads()

    def opened(self) -> Any:
        if self.name == "memory":
            return Saver(copy.copy(self.unannounced), **self.options)
        return self.stack.enter_context(open_backend(self.name, self.folder, **self.options))

    def face(self, saver: Any) -> Any:
        return LayeredCheckpointSaver(saver, LAYERS) if self.way == "layered" else saver

    def _note_loads(self) -> None:
        get, aget = self.one.get_tuple, self.one.aget_tuple

        def get_tuple(at: Any, **options: Any) -> Any:
            found = get(at, **options)
            self.is_loaded |= RUNTIME in at["configurable"]  # (not a stream's own)
            return found

        async def aget_tuple(at: Any, **options: Any) -> Any:
            found = await aget(at, **options)
            self.is_loaded |= RUNTIME in at["configurable"]
            return found

        self.one.get_tuple, self.one.aget_tuple = get_tuple, aget_tuple

    def said(self, text: str) -> Any:
        return {"log": [text], "messages": [HumanMessage(text, id=text)]}

    async def run(self, text: str, durability: str, *, awaited: bool) -> Any:
        """The log at the end of a run, or the error that it got."""
        given: Any = (self.said(text), AT)
        try:
            if self.way == "streamed" and awaited:
                async for _ in astream_saved(self.graph, *given, durability=durability):
                    pass
            elif self.way == "streamed":
                for _ in stream_saved(self.graph, *given, durability=durability):
                    pass
            elif awaited:
                await self.graph.ainvoke(*given, durability=durability)
            else:
                self.graph.invoke(*given, durability=durability)
        except ThreadkeepError as error:
            return error
        return self.graph.get_state(AT).values.get("log", [])

    def begin(self) -> None:
        """Save the turn that is deleted later."""
        if self.way == "fork":
            graph = plain(self.work).compile(checkpointer=self.one)
            graph.invoke(self.said("SECRET"), config("origin"))
            self.one.threads.fork("origin", new_thread_id="t")
        elif self.way != "rolling":
            self.graph.invoke(self.said("SECRET"), AT)

    # -- what must hold -------------------------------------------------------------------

    def check_nothing_is_left(self) -> None:
        fresh = self.opened()
        assert fresh.get_tuple(AT) is None
        assert list(fresh.list({"configurable": {"thread_id": "t"}})) == []
        assert [place for place in everything(fresh) if place[0] == "t"] == []
        assert fresh.partial("t") == []
        assert fresh.threads.get("t").state == "deleted"
        rows = fresh._store.run(fetch(ReadThread("t")))
        assert (rows.checkpoints, rows.orphans, rows.segments) == ((), (), ())

    async def check_a_run_begins_anew(self, durability: str) -> None:
        """Both savers run the thread, at once."""
        log = await self.run("NEW", durability, awaited=False)
        assert isinstance(log, list), log
        assert log[0] == "NEW"
        assert "SECRET" not in f"{log}"
        graph = WAYS[self.way](Work()).compile(checkpointer=self.face(self.two))
        assert graph.get_state(AT).values["log"] == log
        graph.invoke(self.said("NEXT"), AT, durability=durability)
        fresh = self.opened()
        found = [one for place, one in everything(fresh).items() if place[0] == "t"]
        assert found
        assert "SECRET" not in f"{found}"
        assert fresh.get_tuple({"configurable": {"thread_id": "t"}}) is not None
        report = fresh.check()
        assert report.ok, report.findings


@contextmanager
def clock_ahead(nanoseconds: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        now = time.time_ns
        patch.setattr(time, "time_ns", lambda: now() + nanoseconds)
        patch.setattr(ids, "_last_v6_timestamp", None)  # (ids never run behind the last one)
        yield


def delete(saver: Any) -> None:
    saver.delete_thread("t")


def erase(saver: Any) -> None:
    saver.threads.erase("t")


def prune(saver: Any) -> None:
    saver.prune(["t"], strategy="delete")


DEEDS = (delete, delete, erase, prune)


def clocks(way: str) -> list[int]:
    # (LangGraph's tables know of no lives: times in ids say if a thread was begun again there)
    return [ahead for ahead in CLOCKS if ahead >= 0 or way != "rolling"]


@pytest.fixture
def scenes(tmp_path: Path) -> Iterator[Callable[[str, str], Scene]]:
    """Makes one scene after the other; closes them in the end."""
    with ExitStack() as stack:
        made = iter(range(1000))

        def make(name: str, way: str) -> Scene:
            stack.close()
            folder = tmp_path / str(next(made))
            folder.mkdir()
            return Scene(name, way, folder, stack)

        yield make


@pytest.mark.drawn(5)
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", BACKENDS)
async def test_a_thread_deleted_before_any_request_of_a_run_stays_deleted(
    scenes: Any, name: str, way: str, durability: str
) -> None:
    chance = random.Random(f"{SEED} {name} {way} {durability}")
    for _ in range(some(1, 4)):
        scene, done = scenes(name, way), list[Any]()
        scene.begin()
        awaited, deed = chance.random() < 0.5, chance.choice(DEEDS)
        ahead, at = chance.choice(clocks(way)), chance.randrange(12)

        def do(scene: Any = scene, done: Any = done, deed: Any = deed, ahead: int = ahead) -> None:
            done += [scene.is_loaded, len(scene.requests.names)]
            with clock_ahead(ahead):
                deed(scene.two)

        scene.is_loaded = False
        scene.requests.arm()
        scene.requests.before(at, do)
        result = await scene.run("more", durability, awaited=awaited)
        names = scene.requests.names
        scene.requests.arm()
        if not done:  # the run had fewer requests: it is deleted after it
            deed(scene.two)
            scene.check_nothing_is_left()
        elif done[0]:
            saves = [one for one in names[done[1] - 1 :] if one != "fetch"]
            # (layers and streams save something of their own after a run)
            assert isinstance(result, ThreadDeletedError) or not saves or way in BESIDE, result
            scene.check_nothing_is_left()
        else:  # before the run has loaded it, or while it does
            anew = isinstance(result, list) and "SECRET" not in f"{result}"
            assert anew or isinstance(result, ThreadDeletedError), result
            scene.two.delete_thread("t")
        await scene.check_a_run_begins_anew(durability)


@pytest.mark.drawn(5)
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize(("way", "is_new"), TURNS)
@pytest.mark.parametrize("name", BACKENDS)
async def test_a_thread_deleted_by_a_node_stays_deleted(
    scenes: Any, name: str, way: str, durability: str, is_new: bool
) -> None:
    """By the saver of the run itself, or by that of another process."""
    chance = random.Random(f"{SEED} {name} {way} {durability} {is_new}")
    for _ in range(some(1, 2)):
        scene = scenes(name, way)
        if not is_new:
            scene.begin()
        # (`erase` refuses a thread without rows)
        deed, ahead = chance.choice(DEEDS[:1] if is_new else DEEDS), chance.choice(clocks(way))
        by = chance.choice((scene.one, scene.two))

        def do(by: Any = by, deed: Any = deed, ahead: int = ahead) -> None:
            with clock_ahead(ahead):
                deed(by)

        scene.work.deed = do
        result = await scene.run("more", durability, awaited=chance.random() < 0.5)
        assert isinstance(result, ThreadDeletedError), (result, deed, ahead, by is scene.one)
        scene.check_nothing_is_left()
        await scene.check_a_run_begins_anew(durability)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("name", BACKENDS)
async def test_a_fork_goes_on_when_its_origin_is_deleted(
    name: str, durability: str, scenes: Any
) -> None:
    """The deletion ends one thread and no other, in the middle of a run of the fork, too."""
    scene = scenes(name, "fork")
    scene.begin()
    scene.work.deed = lambda: scene.two.delete_thread("origin")
    log = await scene.run("more", durability, awaited=False)
    assert isinstance(log, list), log
    assert (log[0], log[-1]) == ("SECRET", "third")
    fresh = scene.opened()
    assert fresh.get_tuple(config("origin")) is None
    assert fresh.get_tuple(AT).checkpoint["channel_values"]["log"] == log
    assert fresh.check().ok


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("ahead", CLOCKS)
def test_checkpoints_of_a_session_begin_anew(name: str, ahead: int, scenes: Any) -> None:
    scene = scenes(name, "plain")
    manager = CheckpointManager(scene.one)
    for number in range(3):
        manager.create_checkpoint("t", "talk", {"said": f"SECRET {number}"})
    with clock_ahead(ahead):
        scene.two.delete_thread("t")
    with pytest.raises(ThreadDeletedError):  # (once)
        manager.create_checkpoint("t", "talk", {"said": "late"})
    for number in range(2):
        manager.create_checkpoint("t", "talk", {"said": f"NEW {number}"})
    for saver in (scene.one, scene.two, scene.opened()):
        found = CheckpointManager(saver).list_checkpoints("t")
        assert [one.state_data["said"] for one in found] == ["NEW 1", "NEW 0"]


# -- two processes -----------------------------------------------------------------------
