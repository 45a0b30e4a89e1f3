"""Another process tidies up right before any one request of a run.

Each maintenance operation, before each request that a run makes, on stores that processes share.
The run ends as it would have ended alone; nothing that was acknowledged is lost, but for what
the operation promises to remove; and the store is sound.
"""

import operator
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from kit.engine import Passing, config, exactly
from kit.postgres import empty_schema, url
from kit.selection import drawn
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from threadkeep import ColdTier, Retention, Tiering, WarmTier
from threadkeep._core.engine.cold_references import LEAST
from threadkeep._stores.base import Backend
from threadkeep._stores.postgres.backend import PostgresBackend
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.savers.saver import Saver

LONG = "x" * 1200
FIRST = "run 0"


class Before:
    """Does something right before request number `at`, with no other request under way."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.put: list[str] = []  # checkpoints that were acknowledged
        self.arm(None)

    def arm(self, at: int | None, do: Callable[[], object] = int) -> None:
        self.asked, self.at, self.do = 0, at, do

    def request(self) -> None:
        self.asked += 1
        if self.asked - 1 == self.at:
            self.do()


class Watched(Passing):
    """A backend whose requests are announced, one at a time."""

    scrub = Backend.scrub

    def __init__(self, inner: Any, before: Before) -> None:
        super().__init__(inner)
        self.before = before

    def meet(self, asked: Any, request: Callable[[], Any]) -> Any:
        with self.before.lock:
            self.before.request()
            return request()

    def commit(self, change: Any) -> None:
        with self.before.lock:
            super().commit(change)
            self.before.put += [row.id for row in getattr(change, "checkpoints", ())]


# -- the run -----------------------------------------------------------------------------


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    seen: Annotated[list[dict[str, str]], operator.add]
    page: str


def think(state: State) -> State:
    count = len(state["messages"])
    return {"messages": [AIMessage(LONG, id=f"thought {count}")], "page": f"{count} {LONG}"}


def look(state: State) -> State:
    return {"seen": [{"at": f"{len(state['messages'])} {LONG}"}]}


def ask(state: State) -> State:
    answer = interrupt("Go on?")
    return {"messages": [AIMessage(str(answer), id=f"answer {len(state['messages'])}")]}


def graph_on(saver: Saver) -> Any:
    builder = StateGraph(State)
    for node in (think, look, ask):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "think")
    builder.add_edge(START, "look")
    builder.add_edge(["think", "look"], "ask")
    builder.add_edge("ask", "think")
    builder.add_edge("ask", "look")
    return builder.compile(checkpointer=saver)


def turn(graph: Any, thread: str, number: int) -> None:
    """One run: it stops to ask, and the next one begins with the answer."""
    given = {"messages": [HumanMessage(f"{number} {LONG}", id=f"given {number}")]}
    at = {"configurable": {"thread_id": thread, "run_id": f"run {number}"}}
    graph.invoke(Command(resume=f"yes {number}") if number else given, at, durability="sync")


def seen(graph: Any, thread: str) -> dict[str, str]:
    """All that the graph shows of a thread, by checkpoint; the newest comes first."""
    found = {}
    for state in graph.get_state_history(config(thread)):
        tasks = sorted((t.name, repr([i.value for i in t.interrupts])) for t in state.tasks)
        step, source = state.metadata["step"], state.metadata["source"]
        values = {name: exactly(value) for name, value in state.values.items()}
        shown = repr((step, source, values, sorted(state.next), tasks))
        found[state.config["configurable"]["checkpoint_id"]] = shown
    return found


class Place:
    """A store with two savers that share nothing in the process."""

    def __init__(self, backend: Callable[[], Backend], cold: str) -> None:
        self.before = Before()
        watched: Any = Watched(backend(), self.before)
        self.saver = Saver(watched, cold=cold)
        self.other = Saver(backend(), cold=cold)
        self.graph, self.reader = graph_on(self.saver), graph_on(self.other)

    def begin(self, thread: str) -> list[str]:
        """Make a thread of two runs, and a fork of it; the thread's checkpoints."""
        if not list(self.other.list(config("begun"), filter={"run_id": FIRST})):
            self.other.delete_thread("begun")  # (some operation has removed a run of it)
            turn(self.reader, "begun", 0)
            turn(self.reader, "begun", 1)
        self.other.copy_thread("begun", thread)
        self.other.threads.fork(thread, new_thread_id=f"{thread} fork")
        return [one.checkpoint["id"] for one in self.other.list(config(thread))]

    def run(self, thread: str, at: int | None = None, do: Callable[[], object] = int) -> list[str]:
        """Another run, something done before one of its requests; its checkpoints."""
        self.before.put.clear()
        self.before.arm(at, do)
        turn(self.graph, thread, 2)
        self.before.at = None
        return sorted({*self.before.put})

    def close(self) -> None:
        self.saver.close()
        self.other.close()


# -- what others do ----------------------------------------------------------------------


def archive(saver: Saver, thread: str, _folder: Path) -> None:
    saver.threads.archive(thread)


def restore(saver: Saver, thread: str, _folder: Path) -> None:
    saver.threads.archive(thread)
    saver.threads.restore(thread)


def offload(saver: Saver, thread: str, _folder: Path) -> None:
    saver.delete_thread(f"{thread} fork")  # (shared values are not offloaded)
    saver.threads.offload(thread, over=LEAST)


def fork(saver: Saver, thread: str, _folder: Path) -> None:
    saver.threads.fork(thread, new_thread_id=f"{thread} other fork")


def discard_fork(saver: Saver, thread: str, _folder: Path) -> None:
    saver.threads.discard_fork(f"{thread} fork")


def delete_fork(saver: Saver, thread: str, _folder: Path) -> None:
    saver.threads.discard_fork(f"{thread} fork", delete=True)


def erase_fork(saver: Saver, thread: str, _folder: Path) -> None:
    saver.threads.erase(f"{thread} fork")


def copy_thread(saver: Saver, thread: str, _folder: Path) -> None:
    saver.copy_thread(thread, f"{thread} copy")


def check(saver: Saver, _thread: str, _folder: Path) -> None:
    assert saver.check().ok


def repair(saver: Saver, thread: str, folder: Path) -> None:
    saver.threads.repair(thread, file=folder / "none.tkq")


def tier(saver: Saver, thread: str, _folder: Path) -> None:
    tiering = Tiering(warm=WarmTier(max_age=0.000001), cold=ColdTier(offload_over=LEAST))
    assert saver.threads.tier(tiering, thread_ids=[thread]).archived


def label(saver: Saver, thread: str, _folder: Path) -> None:
    saver.threads.tag(thread, "kept")
    saver.threads.retain(thread, Retention(keep_last=50))


def prune(saver: Saver, thread: str, _folder: Path) -> None:
    saver.prune([thread, f"{thread} fork"])


def collect(saver: Saver, thread: str, _folder: Path) -> None:
    saver.threads.gc(Retention(keep_last=1), thread_ids=[thread])


def delete_for_runs(saver: Saver, _thread: str, _folder: Path) -> None:
    saver.delete_for_runs([FIRST])


KEEPING = [archive, restore, offload, fork, discard_fork, delete_fork, erase_fork]
KEEPING += [copy_thread, check, repair, tier, label]
REMOVING = [prune, collect, delete_for_runs]


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: Any, tmp_path: Path) -> Callable[[], Backend]:
    """Makes backends of one store."""
    if request.param == "sqlite":
        return lambda: SqliteBackend(tmp_path / "t.db", synchronous="normal")
    schema = empty_schema()
    return lambda: PostgresBackend(url(), schema=schema, max_size=2)


@pytest.fixture
def place(backend: Any, tmp_path: Path) -> Iterator[Place]:
    made = Place(backend, (tmp_path / "cold").as_uri())
    yield made
    made.close()


@pytest.mark.drawn(4)
@pytest.mark.parametrize("tidy", [*KEEPING, *REMOVING], ids=lambda tidy: tidy.__name__)
def test_a_run_ends_as_if_nothing_had_been(
    place: Place, tidy: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place.begin("alone")
    place.run("alone")
    requests, expected = place.before.asked, [*seen(place.reader, "alone").values()]
    assert requests > len(expected)
    for at in drawn(range(requests), 4, request.node.name):
        thread, before = f"t{at}", list[str]()
        known = place.begin(thread)

        def do(thread: str = thread, before: list[str] = before) -> None:
            tidy(place.other, thread, tmp_path)
            before += place.before.put

        ids = sorted({*known, *place.run(thread, at, do)}, reverse=True)
        found, whole = seen(place.reader, thread), dict(zip(ids, expected, strict=True))
        assert next(iter(found.items())) == (ids[0], expected[0]), at
        assert found.items() <= whole.items(), at
        assert {*found} >= {*ids} - ({*known, *before} if tidy in REMOVING else set()), at
        assert place.graph.get_state(config(thread)) == place.reader.get_state(config(thread))
    report = place.other.check()
    assert report.ok, report.findings
