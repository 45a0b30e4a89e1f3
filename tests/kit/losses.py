"""Two workers on a store that loses its last commits, and what must hold afterwards.

A saver that remembers nothing is the judge: it reads each save that was acknowledged after the loss
with exactly its values, it reads nothing that was not saved, and all living savers see the same.
"""

from collections.abc import Callable
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from kit.engine import config, everything, exactly, shown
from kit.stepwise import Requests
from threadkeep.errors import ConflictError
from threadkeep.memory import LayeredCheckpointSaver, Layers, add_messages

LONG = "x" * 90
AT = config()
HEAD = {"configurable": {"thread_id": "t"}}
LAYERS = Layers(full_window=4, summary_window=6, archive_threshold=20, batch=1)

PutBack = Callable[[], object]


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    seen: Annotated[list[str], lambda old, new: [*old, *new]]
    page: str


def graph_on(saver: Any, who: str) -> Any:
    """Two nodes at once and a third: each names the last message, and who has run it."""

    def think(state: State) -> State:
        count, last = len(state["messages"]), state["messages"][-1].content.strip()
        text = f"{who} answers {last[:30]}"
        answer = AIMessage(f"{text} {LONG}", id=f"{text} {count}")
        return {"messages": [answer], "page": f"the page after {text} " * 40}

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


def said(text: str) -> Any:
    return {"messages": [HumanMessage(f"{text} {LONG}", id=text)]}


class Workers:
    """A worker that may have caches, another one, and what both were told is stored.

    Args:
        saver: of the worker that lives on when the store loses something.
        opened: opens a saver of the store as another process would.
        copied: notes the state of the store; what it returns leads back to this state.
        layered: the workers have layered memory.
    """

    def __init__(
        self,
        saver: Any,
        opened: Callable[[], Any],
        copied: Callable[[], PutBack],
        *,
        layered: bool = False,
    ) -> None:
        self.saver, self.opened, self.copied = saver, opened, copied
        self.is_layered = layered
        self.requests = Requests(saver)
        self.other = opened()
        self.told: dict[Any, Any] = {}
        self.kept: set[Any] = set()
        for one in (saver, self.other):
            self._note_puts(one)
        self.graph = graph_on(self.face(saver), "A")
        self.beside = graph_on(self.face(self.other), "B")

    def face(self, saver: Any) -> Any:
        return LayeredCheckpointSaver(saver, LAYERS) if self.is_layered else saver

    def _note_puts(self, saver: Any) -> None:
        """Note the values of each checkpoint that this saver stores."""
        put, aput = saver.put, saver.aput

        def note(at: Any, made: Any) -> Any:
            where = at["configurable"]
            place = (where["thread_id"], where.get("checkpoint_ns", ""), made["id"])
            self.told[place] = {c: exactly(v) for c, v in made["channel_values"].items()}
            return place

        def acknowledge(place: Any) -> None:
            if not place[1]:  # (not the layers' own)
                self.kept.add(place)

        def noted(at: Any, made: Any, *more: Any) -> Any:
            place = note(at, made)
            stored = put(at, made, *more)
            acknowledge(place)
            return stored

        async def anoted(at: Any, made: Any, *more: Any) -> Any:
            place = note(at, made)
            stored = await aput(at, made, *more)
            acknowledge(place)
            return stored

        saver.put, saver.aput = noted, anoted

    # -- steps ----------------------------------------------------------------------------

    def copy(self) -> None:
        """Note the state for `lose`."""
        self._put_back, self._kept_then = self.copied(), set(self.kept)

    def lose(self, turns: int) -> None:
        """Go back; then the other worker runs the thread so many times."""
        self._put_back()
        self.kept = set(self._kept_then)
        for number in range(turns):
            self.turn_beside(f"B{number}")

    def turn_beside(self, text: str) -> None:
        self.beside.invoke(said(text), AT, durability="sync")

    async def turn(self, text: str, *, awaited: bool) -> None:
        if awaited:
            await self.graph.ainvoke(said(text), AT, durability="sync")
        else:
            self.graph.invoke(said(text), AT, durability="sync")

    async def play(self, *, copied: int, back: int, turns: int, awaited: bool) -> None:
        """Play some turns; the third is copied before a request, and put back before another one.

        Args:
            copied: the number of the request; -1: before the second turn.
            back: the number of the request; a number too large: after the turn.
            turns: of the other worker, after the loss.
            awaited: the runs are awaited.
        """
        self.turn_beside("first")
        if self.is_layered:  # so that the third turn archives
            self.turn_beside("beside")
        if copied < 0:
            self.copy()
        await self.turn("second", awaited=awaited)
        self.requests.arm()
        if copied >= 0:
            self.requests.before(copied, self.copy)
        self.requests.before(back, lambda: self.lose(turns))
        try:
            await self.turn("LOST", awaited=awaited)
        except ConflictError:  # it says that the run was refused
            assert self.is_layered or self.saver._engine.conflicts == "raise"
        if self.requests.count <= back:
            if self.requests.count <= copied:
                self.copy()
            self.requests.arm()
            self.lose(turns)
        self.check()
        for again in ("LOST", "third"):
            await self.turn(again, awaited=awaited)
            self.check()
            self.turn_beside(f"B after {again}")
            self.check()

    # -- what must hold -------------------------------------------------------------------

    def check(self) -> None:
        with self.opened() as fresh:
            there = everything(fresh)
            report = fresh.check()
            assert report.ok, report.findings
            head = fresh.get_tuple(HEAD)
            assert (None if head is None else shown(head)["place"]) == max(there, default=None)
            left = self.graph.get_state(AT)  # (it may hold the claim to the next summary)
            view = graph_on(self.face(fresh), "F").get_state(AT)
        found = {place: one["values"] for place, one in there.items()}
        assert found == {place: self.told[place] for place in there}
        assert self.kept <= there.keys(), "an acknowledged save cannot be read"
        for saver in (self.saver, self.other):
            assert everything(saver) == there
            if not self.is_layered:
                assert shown(saver.get_tuple(HEAD)) == shown(head)
        assert left == self.beside.get_state(AT) == view
