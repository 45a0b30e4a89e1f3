"""Two processes: one maintains a thread while the other runs it, each stopped at any request.

After every request of either, the registry agrees with the rows, and everything protected is
stored: the head, an unanswered question, pins. The run ends as it would have ended alone, and no
operation but those that promise it removes a checkpoint.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from integration.test_thread_status import expected
from kit.engine import Passing, checkpoint, config, exactly
from kit.postgres import empty_schema, url
from kit.selection import FULL, drawn
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from threadkeep import ColdTier, Retention, Tiering, WarmTier
from threadkeep._core.engine.cold_references import LEAST
from threadkeep._core.engine.model import CONTINUES, HIDDEN, FindThreads, ReadThread, ThreadRows
from threadkeep._core.engine.rows import unpack_writes
from threadkeep._core.engine.thread_entry import ReadEntry, ThreadEntry
from threadkeep._stores.base import Backend
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.postgres.backend import PostgresBackend
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.errors import ThreadDeletedError
from threadkeep.memory import LayeredCheckpointSaver, Layers
from threadkeep.savers.saver import Saver
from threadkeep.streaming import stream_saved

LONG = "x" * 1200
SCHEDULES = 40 if FULL else 3


# -- what must hold after each request ---------------------------------------------------


STATUSES = {"__error__": "failed", "__interrupt__": "waiting"}
"""Channels of writes -> the status that they show, the strongest first."""


def status_of(rows: ThreadRows) -> tuple[str, str | None]:
    """Return the status by the newest checkpoint of the root, stored or to come, and its place.

    Any write of these channels counts: no task of these runs is repeated after it failed.
    """
    shown = [one for one in rows.checkpoints if not one.row.ns and not one.row.flags & HIDDEN]
    newest = max(shown, key=lambda one: one.row.id, default=None)
    head = "" if newest is None else newest.row.id
    pending = list(newest.writes) if newest is not None else []
    pending += [w for w in rows.orphans if not w.ns and w.checkpoint_id > head]
    told = [(row.checkpoint_id, write.channel) for row in pending for write in unpack_writes(row)]
    for at in sorted({at for at, channel in told if channel in STATUSES}, reverse=True):
        return next(status for channel, status in STATUSES.items() if (at, channel) in told), at
    continues = newest is not None and newest.row.flags & CONTINUES
    return ("unfinished" if continues else "done"), None


@dataclass
class Witness:
    """Checks the rows after every request."""

    backend: Any
    heads: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    pinned: str | None = None

    def look(self) -> None:
        (threads,) = [self.backend.fetch([FindThreads(None, 100, empty=True)])[0]]
        for thread in threads:
            found = self.backend.fetch([ReadEntry(thread), ReadThread(thread, stub=True)])
            self.compare(thread, *found)

    def compare(self, thread: str, entry: ThreadEntry | None, rows: ThreadRows) -> None:
        if entry is None or entry.state == "deleted":
            status, _ = self.statuses.pop(thread, ("done", None))
            if thread == "t":
                assert status != "waiting", "a waiting thread was deleted"
                self.pinned = None
            self.heads.pop(thread, None)
            return
        told = entry.status or "done", entry.status_at
        if entry.state == "archived":
            assert told == self.statuses[thread]
            return
        assert told == status_of(rows)
        assert entry.state in ("active", "forked") or not rows.checkpoints
        self.statuses[thread] = told
        ids = {one.row.id for one in rows.checkpoints if not one.row.ns}
        head = max(ids, default="")
        assert head >= self.heads.get(thread, ""), "the head was removed"
        self.heads[thread] = head
        if thread == "t" and self.pinned is not None:
            assert self.pinned in ids


class Watched(Passing):
    """A backend whose requests wait for permission, one at a time, and are checked."""

    scrub = Backend.scrub

    def __init__(self, inner: Any, leave: Callable[[], None], witness: Witness) -> None:
        super().__init__(inner)
        self.leave, self.witness = leave, witness
        self.lock = threading.RLock()

    def meet(self, asked: Any, request: Callable[[], Any]) -> Any:
        with self.lock:
            self.leave()
            return request()

    def commit(self, change: Any) -> None:
        with self.lock:
            super().commit(change)
            self.witness.look()

    def close(self) -> None:
        """The inner one continues."""


class Process:
    """Runs in a thread of its own and makes as many requests as it is allowed."""

    def __init__(self) -> None:
        self.allowed, self.stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.requests, self.is_done, self.error = 0, False, None
        self.thread = threading.Thread(target=self._run)
        self.do: Callable[[], object] = int

    def leave(self) -> None:
        if threading.current_thread() is self.thread:
            self.requests += 1
            self.stopped.release()
            self.allowed.acquire()

    def start(self, do: Callable[[], object]) -> None:
        self.do = do
        self.thread.start()

    def go_on(self, requests: int) -> None:
        """Allow so many more requests; it stops before the next one."""
        for _ in range(requests and requests + (self.requests == 0)):
            if not self.is_done:
                self.allowed.release()
                self.stopped.acquire()

    def _run(self) -> None:
        self.allowed.acquire()
        try:
            self.do()
        except BaseException as error:  # noqa: BLE001 - the test reports it
            self.error = error
        self.is_done = True
        self.stopped.release()

    def end(self) -> None:
        self.go_on(1000)
        self.thread.join()


# -- runs --------------------------------------------------------------------------------


def model(state: Any) -> Any:
    return {"messages": [AIMessage(f"{len(state['messages'])} {LONG}")]}


def ask(state: Any) -> Any:
    answer = interrupt("Go on?")
    return {"messages": [AIMessage(str(answer))]}


def built(*nodes: Any, saver: Any = None) -> Any:
    builder = StateGraph(MessagesState)
    for node in nodes:
        name = getattr(node, "__name__", "inner")
        builder.add_node(name, node)
    names = [START, *[getattr(node, "__name__", "inner") for node in nodes]]
    for one, other in pairwise(names):
        builder.add_edge(one, other)
    return builder.compile(checkpointer=saver)


def given(number: int) -> Any:
    return {"messages": [HumanMessage(f"{number} {LONG}")]}


def interrupts(saver: Any) -> Any:
    """A run that asks, is answered, and asks again."""
    graph = built(model, ask, saver=saver)
    graph.invoke(given(0), config())
    graph.invoke(Command(resume="yes"), config())
    graph.invoke(given(1), config())
    return graph


def subgraphs(saver: Any) -> Any:
    """A subgraph asks."""
    graph = built(model, built(model, ask), saver=saver)
    graph.invoke(given(0), config())
    graph.invoke(Command(resume="yes"), config())
    graph.invoke(given(1), config())
    return graph


def streams(saver: Any) -> Any:
    """A partial answer is saved with every part."""
    says = GenericFakeChatModel(messages=iter([AIMessage("one two three")] * 2))

    def talk(state: Any) -> Any:
        return {"messages": [says.invoke(state["messages"])]}

    graph = built(talk, ask, saver=saver)
    list(stream_saved(graph, given(0), config(), max_bytes=1))
    list(stream_saved(graph, Command(resume="yes"), config(), max_bytes=1))
    return graph


def layers(saver: Any) -> Any:
    """Messages leave the view, and a summary takes their place."""
    policy = Layers(full_window=2, summary_window=4, archive_threshold=8, batch=1)
    memory = LayeredCheckpointSaver(saver, policy, lambda *given, **more: "what was said")
    graph = built(model, ask, saver=memory)
    for number in range(2):
        graph.invoke(given(number), config())
        graph.invoke(Command(resume="yes"), config())
    graph.invoke(given(2), config())
    return graph


def failures(saver: Any) -> Any:
    """A node fails once; the next input runs it again, and another one asks."""
    broken = [True]

    def fragile(state: Any) -> Any:
        if broken:
            broken.clear()
            raise OSError("not this time")
        return model(state)

    graph = built(model, fragile, ask, saver=saver)
    with pytest.raises(OSError, match="not this time"):
        graph.invoke(given(0), config())
    graph.invoke(given(1), config())
    return graph


RUNS = [interrupts, subgraphs, streams, layers, failures]


def late(saver: Any) -> Any:
    """The writes of a task are stored before their checkpoint, and so is its question.

    LangGraph promises no order (`durability="async"`), so the order is made by hand.
    """
    at = config()
    for number in range(1, 4):
        made = checkpoint(number, {"m": [number]}, {"m": number})
        to = config(checkpoint_id=made["id"])
        if number == 3:
            saver.put_writes(to, [("__interrupt__", [f"question {number}"])], f"task {number}")
        else:
            saver.put_writes(to, [("m", [number])], f"task {number}")
        at = saver.put(at, made, {"source": "loop", "step": number}, {"m": number})
    return None


# -- maintenance -------------------------------------------------------------------------


def collect(saver: Saver, _folder: Path) -> None:
    saver.threads.gc(Retention(keep_last=1))


def collect_turns(saver: Saver, _folder: Path) -> None:
    saver.threads.gc(Retention(keep="turn_ends", max_bytes=1))


def expire(saver: Saver, _folder: Path) -> None:
    saver.threads.gc(Retention(ttl=0.000001))


def make_room(saver: Saver, _folder: Path) -> None:
    saver.threads.gc(Retention(max_count=1))


def prune(saver: Saver, _folder: Path) -> None:
    saver.prune(["t"])


def repair(saver: Saver, folder: Path) -> None:
    assert saver.check().ok
    saver.threads.repair("t", file=folder / "none.tkq")


def archive(saver: Saver, _folder: Path) -> None:
    saver.threads.archive("t")


def archive_and_restore(saver: Saver, _folder: Path) -> None:
    saver.threads.archive("t")
    saver.threads.restore("t")


def tier(saver: Saver, _folder: Path) -> None:
    saver.threads.tier(Tiering(warm=WarmTier(max_age=0.000001), cold=ColdTier(offload_over=LEAST)))


def offload(saver: Saver, _folder: Path) -> None:
    saver.threads.offload("t", over=LEAST)


def fork(saver: Saver, _folder: Path) -> None:
    fork = saver.threads.fork("t").id
    saver.copy_thread("t", "copy")
    saver.threads.discard_fork(fork, delete=True)


def label(saver: Saver, _folder: Path) -> None:
    saver.threads.tag("t", "kept")
    saver.threads.update("t", metadata={"k": 1})
    saver.threads.retain("t", Retention(keep_last=50))


REMOVES = [collect, collect_turns, expire, make_room, prune]
KEEPS = [repair, archive, archive_and_restore, tier, offload, fork, label]
DELETES = {expire, make_room}


# -- playing -----------------------------------------------------------------------------


class Scene:
    """A store, a run in this process and maintenance in another."""

    def __init__(self, store: Callable[[], Any], folder: Path) -> None:
        self.raw = [store() for _ in range(3)]
        self.witness, self.folder = Witness(self.raw[0]), folder
        self.other, self.asked, self.plan = Process(), 0, dict[int, int]()
        cold = (folder / "cold").as_uri()
        self.saver = Saver(Watched(self.raw[1], self.before, self.witness), cold=cold)
        self.keeper = Saver(Watched(self.raw[2], self.other.leave, self.witness), cold=cold)
        first = checkpoint("00000000", {"m": [0]}, {"m": 0})
        pinned = self.saver.put(config(), first, {"source": "input", "step": -1}, {"m": 0})
        self.saver.threads.pin("t", checkpoint_id=first["id"])
        self.witness.pinned = pinned["configurable"]["checkpoint_id"]
        self.saver.threads.create("other")
        self.asked = 0

    def before(self) -> None:
        self.other.go_on(self.plan.get(self.asked, 0))
        self.asked += 1

    def play(self, run: Any, maintenance: Any, plan: dict[int, int]) -> Any:
        self.plan = plan
        self.other.start(lambda: maintenance(self.keeper, self.folder))
        try:
            graph = run(self.saver)
        except ThreadDeletedError:
            assert maintenance in DELETES
            graph = None
        finally:
            self.other.end()
        if self.other.error is not None:
            raise self.other.error
        self.witness.look()
        assert self.saver.check().ok
        found = self.saver.threads.get("t")
        if graph is not None and found.state != "deleted":
            assert found.status == expected(graph.get_state(config()))
        return graph

    def shown(self, graph: Any, *, history: bool) -> Any:
        """Return the final contents of the thread."""
        if graph is None:
            found = self.saver.get_tuple(config())
            return found and (found.checkpoint["channel_values"], found.pending_writes)
        state = graph.get_state(config())
        texts = [(m.type, m.content) for m in state.values["messages"]]
        every = [*graph.get_state_history(config())] if history else []
        steps = [(len(s.values.get("messages", ())), s.metadata["step"]) for s in every]
        return exactly(texts), state.next, [i.value for i in state.interrupts], steps

    def close(self) -> None:
        for one in self.raw:
            one.close()


def stores(name: str, folder: Path) -> Callable[[], Any]:
    if name == "sqlite":
        return lambda: SqliteBackend(folder / "t.db", synchronous="normal")
    if name == "postgres":
        schema = empty_schema()
        return lambda: PostgresBackend(url(), schema=schema, max_size=2)
    one = MemoryBackend()
    return lambda: one


def plans(requests: int) -> Iterator[dict[int, int]]:
    """Run all of the maintenance before a request of the run, or a part of it first."""
    for at in range(requests):
        yield {at: 1000}
        for some in range(1, 6):
            for later in (1, 2, 5):
                yield {at: some, at + later: 1000}


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])
@pytest.mark.parametrize("run", [*RUNS, late], ids=lambda run: run.__name__)
@pytest.mark.parametrize("maintenance", [*REMOVES, *KEEPS], ids=lambda one: one.__name__)
def test_the_registry_says_what_the_rows_say(
    maintenance: Any, run: Any, store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def scene(name: str) -> Scene:
        folder = tmp_path / name
        folder.mkdir()
        return Scene(stores(store, folder), folder)

    alone, keeps = scene("alone"), maintenance in KEEPS
    expected = alone.shown(alone.play(run, lambda *_: None, {}), history=keeps)
    alone.close()
    for plan in drawn(plans(alone.asked), SCHEDULES, request.node.name):
        beside = scene(f"{plan}")
        graph = beside.play(run, maintenance, plan)
        if maintenance not in DELETES:
            assert beside.shown(graph, history=keeps) == expected, plan
        beside.close()
