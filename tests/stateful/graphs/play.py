"""Carries out a plan's turns on a saver, and keeps everything that a user could see.

LangGraph's `InMemorySaver` is sound to compare with only if it reads values before nodes edit them.
So it is always played by the async API, in which each of its puts and writes is one uninterrupted
step of the event loop that begins before the next nodes; and with durability "sync" instead of
"async", which must show the same. Ours saves in other threads meanwhile, and may store this value
as it was a little later. Those values are left out of the comparison (`Plan.loose_values`,
`Plan.loose_writes`), and each must have existed during its call (`journal`). The last checkpoint of
a run is stored when no node runs any more, so that runs continue from equal states.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from integration.driver import Driver, _without_loop
from kit.backends import open_backend
from kit.canon import Canon
from kit.places import THREAD, at
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.types import Command, Send

from .build import built
from .disturb import disturbed
from .journal import Journal, Journaled
from .plan import Plan, Turn
from .values import Told, edit, make

LANGGRAPHS = (InvalidUpdateError, ValueError, KeyError, TypeError)  # as `get_state` raises
OPTIONS: dict[str, Any] = {
    "default": dict,
    "forgetful": lambda: {"conflicts": "raise", "working_set_bytes": 1},
}
LOOSE = "<edited meanwhile>"


class LooseCanon(Canon):
    """A canonical form without the values that may be edited while they are saved."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._in_write = not plan.ids  # (a write may hold a message that had no id yet)
        self._values, self._writes = plan.loose_values, plan.loose_writes

    def value(self, value: Any) -> Any:
        return super().value(bytes(value) if isinstance(value, bytearray) else value)

    def written(self, value: Any) -> Any:
        return self.value(value)

    def channels(self, values: Any) -> Any:
        return super().channels(self._without(values, self._values))

    def entry(self, found: Any) -> Any:
        writes = [
            (task, channel, LOOSE if channel in self._writes else value)
            for task, channel, value in found.pending_writes or ()
        ]
        return super().entry(found._replace(pending_writes=writes))

    def snapshot(self, state: Any) -> Any:
        values = state.values
        if isinstance(values, dict):
            state = state._replace(values=self._without(values, self._values))
        return super().snapshot(state)

    def _task(self, task: Any) -> Any:
        if isinstance(task.result, dict):
            task = task._replace(result=self._without(task.result, self._writes))
        return super()._task(task)

    def _without(self, values: Any, loose: frozenset[str]) -> Any:
        return {k: LOOSE if k.split(":")[0] in loose else v for k, v in values.items()}


class Store:
    """Our saver of a play, which can be closed and opened again."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan, self._folder = plan, folder
        self._journal = Journal()
        self._inner = self._open()
        Told.edit = self._journal.edit

    def _open(self) -> Any:
        options = OPTIONS[self._plan.options]()
        return open_backend(self._plan.backend, self._folder, **options)

    def saver(self) -> Journaled:
        unsure = {"join"} if self._plan.ids else {"join", "messages", "__start__"}
        return Journaled(self._inner, self._journal, frozenset(unsure))

    def reopen(self) -> Journaled:
        if self._plan.backend != "memory":
            self._inner.close()
            self._inner = self._open()
        return self.saver()

    def verify(self) -> None:
        """Fail unless every stored value existed, and the store is sound."""
        saver = self.reopen()
        saver.verify(saver.inner)
        assert saver.inner.check().ok

    def close(self) -> None:
        self._inner.close()


class Theirs:
    """LangGraph's own saver."""

    def __init__(self) -> None:
        self._saver = InMemorySaver()
        Told.edit = nullcontext

    def saver(self) -> Any:
        return self._saver

    reopen = saver


class Player(Driver):
    """Plays the turns of a plan; an error is an answer too."""

    def __init__(self, plan: Plan, store: Any, durability: str, api: str) -> None:
        super().__init__(
            store.saver(), LooseCanon(plan), durability=durability, use_async=api == "async"
        )
        self.plan, self.store = plan, store
        self.builder = built(plan)
        self.thread = THREAD
        self.last: Any = None
        self._compile()

    def _compile(self) -> None:
        options: dict[str, Any] = {}
        if self.plan.stop is not None:
            nodes = sorted(self.builder.nodes)
            options = {self.plan.stop[0]: [nodes[self.plan.stop[1] % len(nodes)]]}
        self.compile(self.builder, **options)

    async def play(self) -> None:
        for number, turn in enumerate(self.plan.turns):
            name = turn.kind.replace(" ", "_")
            try:
                await getattr(self, f"_{name}")(turn, number)
            except Exception as error:  # noqa: BLE001 - what a call raises is an answer
                self.note(f"{turn.kind} raised", self.canon.value(error))

    async def state(self, config: Any = None, *, subgraphs: bool = False) -> Any:
        return await self._answer("state", super().state(config, subgraphs=subgraphs))

    async def history(self, config: Any = None, **options: Any) -> Any:
        return await self._answer("history", super().history(config, **options)) or []

    async def _answer(self, what: str, asked: Any) -> Any:
        try:
            return await asked
        except LANGGRAPHS as error:
            self.note(f"{what} raised", self.canon.value(error))

    def given(self, number: int) -> Any:
        """A graph's input."""
        found: dict[str, Any] = {"log": [f"turn {number}"]}
        if number % 2 == 0:
            said = HumanMessage(f"hi {number}", id=f"in {number}" if self.plan.ids else None)
            found["messages"] = [said]
        if number % 3 == 0:
            found["doc"] = make(number, self.plan.size)
        if number % 3 == 1:
            found["delta"] = [f"in {number}"]
            found["items"] = [make(number, 3)]
        return found

    def here(self) -> Any:
        return at(self.thread)

    async def _older(self, turn: Turn) -> Any:
        states = await self._collect(self.graph, "get_state_history", self.here())
        return states[turn.pick % len(states)].config if states else self.here()

    async def _invoke(self, turn: Turn, number: int) -> None:
        self.last = await self.invoke(self.given(number), self.here())

    async def _continue(self, turn: Turn, number: int) -> None:
        self.last = await self.invoke(None, self.here())

    async def _resume(self, turn: Turn, number: int) -> None:
        """Answer all interrupts, or (by `pick`) one; else begin again."""
        state = await self.state(self.here())
        asked = sorted(state.interrupts if state else (), key=lambda i: repr(i.value))
        if not asked:
            await self._invoke(turn, number)
            return
        answers = {i.id: {"answer": number, "to": i.value} for i in asked}
        if turn.pick % 3 == 0:
            one = asked[turn.pick % len(asked)].id
            answers = {one: answers[one]}
        more = {"update": {"log": ["with it"]}} if turn.pick % 4 == 3 else {}
        self.last = await self.invoke(Command(resume=answers, **more), self.here())

    async def _update(self, turn: Turn, number: int) -> None:
        await self.update(self.given(number), self.here())

    async def _update_as(self, turn: Turn, number: int) -> None:
        nodes = sorted(self.builder.nodes)
        await self.update(self.given(number), self.here(), as_node=nodes[turn.pick % len(nodes)])

    async def _fork(self, turn: Turn, number: int) -> None:
        self.last = await self.invoke(None, await self._older(turn))

    async def _fork_with_input(self, turn: Turn, number: int) -> None:
        self.last = await self.invoke(self.given(number), await self._older(turn))

    async def _fork_with_update(self, turn: Turn, number: int) -> None:
        config = await self.update(self.given(number), await self._older(turn))
        self.last = await self.invoke(None, config)

    async def _copy(self, turn: Turn, number: int) -> None:
        await self.update(None, self.here(), as_node="__copy__")

    async def _send(self, turn: Turn, number: int) -> None:
        nodes = sorted(self.builder.nodes)
        job = {"log": ["sent by the user"], "doc": {"i": number, "lines": []}}
        command = Command(goto=Send(nodes[turn.pick % len(nodes)], job))
        self.last = await self.invoke(command, self.here())

    async def _scribble(self, turn: Turn, number: int) -> None:
        """Edit the last run's result, without any effect on the thread."""
        if isinstance(self.last, dict):
            for name in sorted(self.last):
                with contextlib.suppress(IndexError):
                    for _ in edit(self.last[name], number):
                        pass

    async def _reopen(self, turn: Turn, number: int) -> None:
        self.saver = self.store.reopen()
        self._compile()

    async def _elsewhere(self, turn: Turn, number: int) -> None:
        self.thread = f"thread {turn.pick % 2}"
        self.threads.add(self.thread)
        await self._invoke(turn, number)

    async def _history(self, turn: Turn, number: int) -> None:
        await self.history(self.here(), limit=turn.pick or None)

    async def _state(self, turn: Turn, number: int) -> None:
        await self.state(self.here(), subgraphs=True)


def play(plan: Plan, store: Any, durability: str, api: str) -> list[Any]:
    """Play a plan on a store; return everything visible."""
    player = Player(plan, store, durability, api)

    async def whole() -> list[Any]:
        await player.play()
        await player.listed()
        await player.shown()
        return player.log

    return asyncio.run(whole()) if player.use_async else _without_loop(whole())


def expected(plan: Plan) -> list[Any]:
    """Play a plan on LangGraph's own saver; return everything visible."""
    return play(plan, Theirs(), "exit" if plan.durability == "exit" else "sync", "async")


@contextmanager
def _opened(plan: Plan, folder: Path) -> Iterator[Store]:
    store = Store(plan, folder)
    try:
        yield store
    finally:
        store.close()


def compare(plan: Plan, folder: Path) -> None:
    """Fail if a plan shows anything else on ours than on LangGraph's own saver."""
    want = expected(plan)
    with disturbed(plan.seed), _opened(plan, folder) as store:
        got = play(plan, store, plan.durability, plan.api)
        store.verify()
    assert [kind for kind, _ in got] == [kind for kind, _ in want]
    for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        assert mine == theirs, f"answer {number} differs"
