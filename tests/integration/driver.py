"""One script for both APIs: a scenario awaits a `Driver`, which calls sync or async.

With the sync API nothing is ever really awaited, so the coroutine runs to its end in
one `send`, with no event loop near. Every answer is kept in `log`, in canonical form
and at once, before anybody can change the object.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from kit.canon import Canon
from kit.places import THREAD, at

from .scenarios.table import Scenario


class Driver:
    """The calls of a graph's user, on one saver, by one API, with one durability."""

    def __init__(self, saver: Any, canon: Canon, *, durability: str, use_async: bool) -> None:
        self.saver = saver
        self.durability = durability
        self.use_async = use_async
        self.graph: Any = None
        self.canon = canon
        self.log: list[Any] = []
        self.threads = {THREAD}

    def compile(self, builder: Any, **options: Any) -> Any:
        """Compile for this saver; later calls go to this graph."""
        self.graph = builder.compile(checkpointer=self.saver, **options)
        return self.graph

    def note(self, what: str, answer: Any) -> None:
        self.log.append((what, answer))

    async def _call(self, target: Any, name: str, *args: Any, **options: Any) -> Any:
        if self.use_async:
            return await getattr(target, f"a{name}")(*args, **options)
        return getattr(target, name)(*args, **options)

    async def _collect(self, target: Any, name: str, *args: Any, **options: Any) -> list[Any]:
        if self.use_async:
            return [x async for x in getattr(target, f"a{name}")(*args, **options)]
        return list(getattr(target, name)(*args, **options))

    async def invoke(self, given: Any, config: Any = None, **options: Any) -> Any:
        """Run the graph and keep what it returned; a failing run must be asked for."""
        config = config or at()
        answer = await self._call(
            self.graph, "invoke", given, config, durability=self.durability, **options
        )
        self.note("invoke", self.canon.value(_in_order(answer)))
        return answer

    async def fail(self, given: Any, config: Any = None, **options: Any) -> None:
        """Run the graph, which must raise; keep the error."""
        try:
            await self.invoke(given, config, **options)
        except Exception as error:  # noqa: BLE001 - any node error is an answer here
            self.note("raised", self.canon.value(error))
        else:
            msg = "the run was expected to fail"
            raise AssertionError(msg)

    async def stream(self, given: Any, config: Any = None, **options: Any) -> list[Any]:
        """Stream the graph and keep the chunks in their order."""
        chunks = await self._collect(
            self.graph, "stream", given, config or at(), durability=self.durability, **options
        )
        self.note("stream", self.canon.value(chunks))
        return chunks

    async def state(self, config: Any = None, *, subgraphs: bool = False) -> Any:
        state = await self._call(self.graph, "get_state", config or at(), subgraphs=subgraphs)
        self.note("state", self.canon.snapshot(state))
        return state

    async def history(self, config: Any = None, **options: Any) -> list[Any]:
        """All states, newest first."""
        states = await self._collect(self.graph, "get_state_history", config or at(), **options)
        self.note("history", [self.canon.snapshot(s) for s in states])
        return states

    async def update(self, values: Any, config: Any = None, **options: Any) -> Any:
        config = await self._call(self.graph, "update_state", config or at(), values, **options)
        self.note("update", self.canon.place(config))
        return config

    async def bulk_update(self, supersteps: Any, config: Any = None) -> Any:
        config = await self._call(self.graph, "bulk_update_state", config or at(), supersteps)
        self.note("bulk update", self.canon.place(config))
        return config

    async def before(self, node: str) -> Any:
        """The config of the newest state in which `node` comes next."""
        states = await self._collect(self.graph, "get_state_history", at())
        return next(s.config for s in states if node in s.next)

    async def listed(self) -> None:
        """All that the saver holds, read from it."""
        listed = await self._collect(self.saver, "list", None)
        self.note("listed", self.canon.entries(listed))
        for entry in listed:
            found = await self._call(self.saver, "get_tuple", entry.config)
            assert Canon().entry(found) == Canon().entry(entry), "get_tuple and list disagree"
        self.threads |= {str(e.config["configurable"]["thread_id"]) for e in listed}

    async def shown(self) -> None:
        """All that the graph shows of its threads, in every way."""
        for thread in sorted(self.threads):
            await self._thread(thread)

    async def _thread(self, thread: str) -> None:
        states = await self.history(at(thread))
        for state in states[::3]:
            await self.state(state.config, subgraphs=True)
        await self.state(at(thread), subgraphs=True)


def _in_order(answer: Any) -> Any:
    """Interrupts come in the order in which the nodes happened to ask."""
    if not isinstance(answer, dict) or "__interrupt__" not in answer:
        return answer
    asked = sorted(answer["__interrupt__"], key=lambda i: repr(i.value))
    return {**answer, "__interrupt__": asked}


def play(
    scenario: Scenario, saver: Any, *, durability: str, api: str, listing: bool = True
) -> list[Any]:
    """Run a scenario and return everything that a user could see of it.

    `listing` False leaves out what the saver itself lists: a saver that does not know the
    graph's types may not be allowed to load them.
    """
    canon = Canon(raced_ids=scenario.raced_ids)
    driver = Driver(saver, canon, durability=durability, use_async=api == "async")

    async def whole() -> list[Any]:
        await scenario.script(driver)
        if listing:
            await driver.listed()
        await driver.shown()
        return driver.log

    return asyncio.run(whole()) if driver.use_async else _without_loop(whole())


def _without_loop(coroutine: Coroutine[Any, Any, list[Any]]) -> list[Any]:
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    msg = "a sync call was awaited"
    raise AssertionError(msg)
