"""Rows go back to an earlier state behind living savers, between any two requests of a run.

So it is after a crash of a server that had not written its last seconds, after a failover to a
standby that lacked them, and after somebody restored a backup below a running service. In all
cases, on every store and with every cache:

- each save that was acknowledged after the loss is readable, with exactly its values;
- no checkpoint ever shows a value that was not saved with it;
- every saver sees what the store has, the head included, and `check` finds no fault.

A saver that remembers nothing is the judge.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from kit import redis as redis_kit
from kit.backends import BACKENDS, open_backend
from kit.engine import config, everything, exactly, shown
from kit.put_back import copy_rows
from kit.requests import Requests
from kit.selection import SEED, some
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from threadkeep import ReadCache, WriteBehind, errors
from threadkeep.memory import LayeredCheckpointSaver, Layers, add_messages
from threadkeep.savers.saver import Saver

LONG = "x" * 90
AT = config()
HEAD = {"configurable": {"thread_id": "t"}}
LAYERS = Layers(full_window=4, summary_window=6, archive_threshold=20, batch=1)

FRONTS: dict[str, dict[str, Any]] = {
    "default": {},
    "fenced": {"conflicts": "raise"},
    "cache": {"cache": ReadCache()},
    "cache alone": {"cache": ReadCache(), "working_set_bytes": 0},
    "relaxed": {"write_behind": WriteBehind(flush_interval=60)},
    "layers": {},
}
CASES = [(name, front) for name in BACKENDS for front in FRONTS]
CASES += [("postgres", "hot"), ("postgres", "hot alone")]


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    seen: Annotated[list[str], lambda old, new: [*old, *new]]
    page: str


def page_after(text: str) -> str:
    return f"the page after {text} " * 40


def graph_on(saver: Any, who: str) -> Any:
    """Two nodes at once and a third: each names the last message, and who has run it."""

    def think(state: State) -> State:
        count, last = len(state["messages"]), state["messages"][-1].content.strip()
        text = f"{who} answers {last[:30]}"
        return {
            "messages": [AIMessage(f"{text} {LONG}", id=f"{text} {count}")],
            "page": page_after(text),
        }

    def look(state: State) -> State:
        return {"seen": [f"{who} saw {state['messages'][-1].content[:30]} {LONG}"]}

    def end(state: State) -> State:
        return {"seen": [f"{who} ended {state['page'][:40]} {LONG}"]}

    builder = StateGraph(State)
    for node in (think, look, end):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "think").add_edge(START, "look")
    builder.add_edge(["think", "look"], "end")
    return builder.compile(checkpointer=saver)


class Scene:
    """A store with two workers, what they were told is stored, and the rows of earlier."""

    def __init__(self, name: str, front: str, folder: Path, stack: ExitStack) -> None:
        self.name, self.front, self.folder, self.stack = name, front, folder, stack
        options = dict(FRONTS.get(front, {}))
        if front.startswith("hot"):
            options["hot"] = f"{redis_kit.url()}?prefix={redis_kit.prefix_for(folder / 'hot')}"
            options |= {"working_set_bytes": 0} if front == "hot alone" else {}
        self.saver = stack.enter_context(open_backend(name, folder, **options))
        self.is_relaxed = front == "relaxed"
        self.unannounced = copy.copy(self.saver.backend)
        self.requests = Requests(self.saver)
        self.other = self.opened()
        self.told: dict[Any, Any] = {}
        self.kept: set[Any] = set()
        self.flushed: set[Any] = set()
        for one in (self.saver, self.other):
            self.note_puts(one)
        layered = partial(LayeredCheckpointSaver, policy=LAYERS)
        self.face = layered(self.saver) if front == "layers" else self.saver
        self.graph = graph_on(self.face, "A")
        self.beside = graph_on(layered(self.other) if front == "layers" else self.other, "B")

    def opened(self) -> Any:
        """Open a saver of the store, as another process would; it remembers nothing."""
        if self.name == "memory":
            return Saver(copy.copy(self.unannounced))
        return self.stack.enter_context(open_backend(self.name, self.folder))

    def note_puts(self, saver: Any) -> None:
        """Note the values of each checkpoint that this saver is told to store."""
        put, aput = saver.put, saver.aput

        def note(at: Any, made: Any) -> Any:
            where = at["configurable"]
            place = (where["thread_id"], where.get("checkpoint_ns", ""), made["id"])
            self.told[place] = {c: exactly(v) for c, v in made["channel_values"].items()}
            return place

        def noted(at: Any, made: Any, *more: Any) -> Any:
            place = note(at, made)
            stored = put(at, made, *more)
            self.acknowledge(place, saver)
            return stored

        async def anoted(at: Any, made: Any, *more: Any) -> Any:
            place = note(at, made)
            stored = await aput(at, made, *more)
            self.acknowledge(place, saver)
            return stored

        saver.put, saver.aput = noted, anoted

    def acknowledge(self, place: Any, saver: Any) -> None:
        if not place[1]:  # (not the layers' own)
            (self.flushed if self.is_relaxed and saver is self.saver else self.kept).add(place)

    # -- steps --------------------------------------------------------------------------

    def take(self) -> None:
        self.put_back = copy_rows(self.name, self.folder, self.saver)
        self.kept_then = set(self.kept)

    def lose(self, turns: int) -> None:
        """Put the rows back; then the other worker runs the thread so many times."""
        self.put_back()
        self.kept = set(self.kept_then)
        self.flushed.clear()
        for number in range(turns):
            self.beside.invoke(self.said(f"B{number}"), AT, durability="sync")

    def said(self, text: str) -> Any:
        return {"messages": [HumanMessage(f"{text} {LONG}", id=text)]}

    def flush(self) -> None:
        self.saver.flush()
        self.kept |= self.flushed
        self.flushed.clear()

    async def turn(self, text: str, *, awaited: bool) -> None:
        if awaited:
            await self.graph.ainvoke(self.said(text), AT, durability="sync")
        else:
            self.graph.invoke(self.said(text), AT, durability="sync")
        self.flush()

    # -- what must hold -----------------------------------------------------------------

    def check(self) -> None:
        """Compare what a fresh saver, the two workers and the acknowledgements say."""
        with ExitStack() as stack:
            fresh = (
                self.opened()
                if self.name == "memory"
                else stack.enter_context(open_backend(self.name, self.folder))
            )
            there = everything(fresh)
            report = fresh.check()
            assert report.ok, report.findings
            head = fresh.get_tuple(HEAD)
            assert (None if head is None else shown(head)["place"]) == max(there, default=None)
            layers = LayeredCheckpointSaver(fresh, LAYERS)
            view = graph_on(layers if self.front == "layers" else fresh, "F").get_state(AT)
        assert {place: one["values"] for place, one in there.items()} == {
            place: self.told[place] for place in there
        }
        assert self.kept <= there.keys(), "an acknowledged save is not readable"
        for saver in (self.saver, self.other):
            assert everything(saver) == there
        if self.front != "layers":
            for saver in (self.saver, self.other):
                assert saver.get_tuple(HEAD) is None or shown(saver.get_tuple(HEAD)) == shown(head)
        assert self.graph.get_state(AT) == self.beside.get_state(AT) == view


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Scene]]:
    """Makes one scene after the other on the store and behind the cache of the case."""
    name, front = request.param
    with ExitStack() as stack:
        numbers = iter(range(1000))
        folder = tmp_path / "0"

        def make() -> Scene:
            nonlocal folder
            stack.close()
            folder = tmp_path / str(next(numbers))
            folder.mkdir()
            return Scene(name, front, folder, stack)

        yield make


async def turn_of_a_run_that_is_interrupted(scene: Scene, *, awaited: bool) -> None:
    """The turn may be refused, if the saver is one that refuses; the error says why."""
    try:
        await scene.turn("LOST", awaited=awaited)
    except errors.ConflictError:
        assert scene.front in ("fenced", "relaxed")


async def play(scene: Scene, *, taken: int, back: int, turns: int, awaited: bool) -> None:
    """A turn, and the one that is lost: copied before request `taken`, put back before `back`."""
    scene.beside.invoke(scene.said("first"), AT, durability="sync")
    if taken < 0:
        scene.take()
    await scene.turn("second", awaited=awaited)
    scene.requests.arm()
    if taken >= 0:
        scene.requests.before(taken, scene.take)
    scene.requests.before(back, partial(scene.lose, turns))
    await turn_of_a_run_that_is_interrupted(scene, awaited=awaited)
    if scene.requests.count <= back:  # (the loss is between two runs)
        if scene.requests.count <= taken:
            scene.take()
        scene.requests.arm()
        scene.lose(turns)
    scene.check()
    for again in ("LOST", "third"):
        await scene.turn(again, awaited=awaited)
        scene.check()
        scene.beside.invoke(scene.said(f"B after {again}"), AT, durability="sync")
        scene.check()


PLACES = 8
"""About the number of requests of a turn; after the last one, the loss is between two runs."""


@pytest.mark.drawn(16)
@pytest.mark.parametrize("turns", range(3))
@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaiting"])
@pytest.mark.parametrize("scene", CASES, ids=" ".join, indirect=True)
async def test_rows_put_back_between_two_requests(
    scene: Any, turns: int, awaited: bool, request: pytest.FixtureRequest
) -> None:
    chance = random.Random(f"{SEED} {request.node.name}")
    for _ in range(some(1, 3)):
        taken = chance.randrange(-1, PLACES)
        back = chance.randrange(max(taken, 0), PLACES + 1)
        await play(scene(), taken=taken, back=back, turns=turns, awaited=awaited)
