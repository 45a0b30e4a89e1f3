"""Summaries of layered memory: when they are made, by whom, and what happens where one fails."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import threading
from concurrent.futures import wait
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kit.conversations import Chat, call, originals, result, talk
from kit.forked import python
from kit.places import at
from kit.runs import WAIT, Gate, Run
from langchain_core.messages import AIMessage, HumanMessage

from threadkeep import MemorySaver, SqliteSaver
from threadkeep.memory import LayeredCheckpointSaver, Layers, Summary, records

SMALL = Layers(full_window=4, summary_window=10, archive_threshold=20, batch=1)


class Summarizer:
    """Notes what it is asked; it can be down, and wait at a gate."""

    def __init__(self, gate: Gate | None = None) -> None:
        self.asked: list[list[Any]] = []
        self.gate, self.is_down = gate, False

    def __call__(self, messages: Any, previous: Any) -> str:
        self.asked.append([one.id for one in messages])
        if self.gate is not None:
            self.gate.pass_through()
        if self.is_down:
            raise TimeoutError("the model is down")
        return f"summary {len(self.asked)}"


def layered(inner: Any, summarizer: Any, **options: Any) -> Any:
    return LayeredCheckpointSaver(inner, SMALL, summarizer, **options)


def names(start: int, stop: int) -> list[str]:
    return [f"m{number}" for number in range(start, stop)]


def test_only_what_newly_leaves_is_summarized() -> None:
    summarizer = Summarizer()
    memory = layered(MemorySaver(), summarizer)
    chat = Chat(memory)
    for count in range(0, 12, 2):
        chat.say("t", talk(2, count))
        for _ in range(3):
            memory.load(at("t"))
            memory.full_messages("t")
    assert summarizer.asked == [names(0, 2), names(2, 4), names(4, 6), names(6, 8)]


def test_a_summary_is_never_one_of_the_messages() -> None:
    found: list[Any] = []

    def told(messages: Any, previous: Any) -> str:
        found.extend(messages)
        return "a summary"

    Chat(layered(MemorySaver(), told)).talk("t", talk(10))
    assert found
    assert originals(found) == found
    assert [one.id for one in found] == names(0, 4)


def test_a_turn_goes_on_where_no_summary_can_be_made(
    saver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    summarizer = Summarizer()
    memory = layered(saver, summarizer)
    chat = Chat(memory)
    chat.talk("t", talk(4))
    summarizer.is_down = True
    for count in range(4, 14, 2):
        view = chat.say("t", talk(2, count))
        assert view == talk(count + 2)  # (all of it: nothing leaves without a summary)
        assert memory.full_messages("t") == talk(count + 2)
    assert "Thread 't' was not summarized" in caplog.text
    assert {one.layer for one in memory.layers("t")} == {"full"}
    summarizer.is_down = False
    chat.say("t", talk(2, 14))
    assert memory.full_messages("t") == talk(16)
    assert len(memory.load(at("t"))) == 5


# -- a long conversation -------------------------------------------------------------------


class Slow(Summarizer):
    """Waits at its gate from the second call on."""

    def __init__(self, slow: Gate) -> None:
        super().__init__()
        self.slow = slow

    def __call__(self, messages: Any, previous: Any) -> str:
        self.gate = self.slow if self.asked else None
        return super().__call__(messages, previous)


PARTS = [names(start, min(start + 50, 130)) for start in (0, 50, 100)]


def test_a_turn_on_a_long_conversation_waits_for_one_call(another: Any) -> None:
    gate, inner = Gate(), another()
    summarizer = Slow(gate)
    policy = Layers(full_window=134, summary_window=135, archive_threshold=135)
    writer = LayeredCheckpointSaver(another(), policy)
    writer.save(at("t"), talk(134))
    memory = layered(inner, summarizer)
    view = memory.load(at("t"))
    assert originals(view) == talk(84, 50)
    gate.wait_until_reached()  # (the rest is made beside the turn)
    said = talk(2, 134)
    assert originals(Chat(memory).say("t", said)) == talk(86, 50)
    other = Summarizer()
    assert originals(layered(another(), other).load(at("t"))) == talk(86, 50)
    assert other.asked == []  # (the part is claimed)
    gate.open()
    memory.close()  # (the call that is under way is the last one)
    assert summarizer.asked == PARTS[:2]
    again = layered(another(), other)
    assert originals(again.load(at("t"))) == talk(4, 132)
    assert other.asked == [names(100, 132)]
    assert again.full_messages("t") == talk(136)


ROUNDS = [*talk(1), call("c1", "a", "b"), result("a"), result("b"), call("c2", "c"), result("c")]


@pytest.mark.parametrize(
    ("said", "tokens", "batch", "parts"),
    [(ROUNDS, 2, 3, [1, 3]), (talk(100), 80, 20, [50, 20])],  # (each time a new batch)
)
def test_what_leaves_in_steps_is_summarized_once(
    another: Any, said: list[Any], tokens: int, batch: int, parts: list[int]
) -> None:
    summarizer, other = Summarizer(), Summarizer()
    policy = Layers(full_window=1, batch=batch, max_tokens=tokens, counter=_words)
    memory = LayeredCheckpointSaver(another(), policy, summarizer)
    memory.save(at("t"), said)
    wait([*memory._background._running.values()], WAIT)
    memory.close()
    assert [len(one) for one in summarizer.asked] == parts
    again = LayeredCheckpointSaver(another(), policy, other)
    for _ in range(2):
        assert originals(again.load(at("t"))) == said[sum(parts) :]
        assert [one.messages for one in again.layers("t")][-1] == len(said) - sum(parts)
    again.close()
    assert other.asked == []


def _words(messages: Any) -> int:
    return sum(len(str(one.content).split()) for one in messages)


def test_a_thread_that_is_deleted_meanwhile_stays_deleted(another: Any) -> None:
    gate, inner = Gate(), another()
    memory = layered(inner, Slow(gate))
    memory.save(at("t"), talk(134))
    gate.wait_until_reached()
    memory.delete_thread("t")
    gate.open()
    memory.close()
    again = another()
    assert [*again.list(at("t"))] == [*again.list(records.place("t"))] == []
    assert "t" not in layered(again, None).index.threads()


async def test_an_async_turn_waits_for_one_call_too() -> None:
    asked, go, parts = asyncio.Event(), asyncio.Event(), []

    async def told(messages: Any, previous: Any) -> str:
        parts.append([one.id for one in messages])
        if len(parts) > 1:
            asked.set()
            await go.wait()
        return "a summary"

    async with LayeredCheckpointSaver(MemorySaver(), SMALL, told) as memory:
        await asyncio.wait_for(memory.asave(at("t"), talk(134)), WAIT)
        await asyncio.wait_for(asked.wait(), WAIT)
        assert originals(await memory.aload(at("t"))) == talk(84, 50)
        go.set()
        await asyncio.gather(*memory._background._running.values())
        assert originals(await memory.aload(at("t"))) == talk(4, 130)
        assert await memory.afull_messages("t") == talk(134)
        assert parts == PARTS


def test_without_a_model_a_long_conversation_is_summarized_at_once() -> None:
    memory = layered(MemorySaver(), None)
    memory.save(at("t"), talk(134))
    assert originals(memory.load(at("t"))) == talk(4, 130)


def test_a_call_that_fails_is_not_repeated_in_the_background(
    caplog: pytest.LogCaptureFixture,
) -> None:
    summarizer = Summarizer()
    summarizer.is_down = True
    memory = layered(MemorySaver(), summarizer)
    memory.save(at("t"), talk(134))
    assert memory._background._running == {}
    assert summarizer.asked == PARTS[:1]
    assert "its next turn tries again" in caplog.text


ENDING = """
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threadkeep import MemorySaver
from threadkeep.memory import LayeredCheckpointSaver

started, pool = threading.Event(), ThreadPoolExecutor(1)

def told(messages, previous):
    if threading.current_thread() is not threading.main_thread():
        started.set()
        with suppress(RuntimeError):  # (until the program ends)
            while True:
                pool.submit(int).result()
    print(len(messages), flush=True)
    return "a summary"

memory = LayeredCheckpointSaver(MemorySaver(), summarizer=told)
memory.save("t", [("user", str(number)) for number in range(300)])
started.wait(20)
"""


def test_a_program_that_ends_waits_for_the_call_under_way_alone() -> None:
    done = subprocess.run(
        [*python(), "-c", ENDING], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["50", "50"]
    assert done.stderr == ""


def test_the_child_of_a_fork_has_a_background_of_its_own() -> None:
    memory = layered(MemorySaver(), Summarizer())
    background = memory._background
    background.busy.add("t")
    background.after_fork(in_child=True)  # (its other threads are not there)
    memory.save(at("t"), talk(8))
    assert originals(memory.load(at("t"))) == talk(4, 4)


def test_in_the_background_no_turn_waits(another: Any) -> None:
    gate, summarizer = Gate(), Summarizer()
    summarizer.gate = gate
    memory = layered(another(), summarizer, background=True)
    chat = Chat(memory)
    for count in range(0, 12, 2):
        assert len(chat.say("t", talk(2, count))) == count + 2
    gate.wait_until_reached()
    gate.open()
    memory.close()  # (waits for running summaries)
    assert len(summarizer.asked) == 1
    again = layered(another(), summarizer)
    assert again.full_messages("t") == talk(12)
    assert len(again.load(at("t"))) == 5


async def test_in_the_background_of_an_event_loop(tmp_path: Any) -> None:
    gate = Gate()
    summarizer = Summarizer(gate)
    path = str(tmp_path / "a.db")
    memory = layered(SqliteSaver(path), summarizer, background=True)
    chat = Chat(memory)
    for count in range(0, 12, 2):
        chat.tape.append(talk(1, count + 1))
        await chat.graph.ainvoke({"messages": talk(1, count)}, at("t"))
    await asyncio.to_thread(gate.wait_until_reached)
    gate.open()
    await memory.aclose()
    async with layered(SqliteSaver(path), summarizer) as again:
        assert await again.afull_messages("t") == talk(12)
        assert len(await again.aload(at("t"))) == 5


@pytest.mark.parametrize("is_done", [False, True])
async def test_close_in_the_event_loop_cancels_what_is_under_way(
    is_done: bool, caplog: pytest.LogCaptureFixture
) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def summarized(messages: Any, previous: Any) -> str:
        asked.set()
        await answer.wait()
        return "a summary"

    memory = LayeredCheckpointSaver(
        MemorySaver(), Layers(full_window=4, batch=1), summarizer=summarized, background=True
    )
    await memory.asave(at("t"), talk(12))
    await asyncio.wait_for(asked.wait(), WAIT)
    (task,) = memory._background._running.values()
    if is_done:
        answer.set()  # (and the task would continue with the store at its next step)
    memory.close()
    answer.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert caplog.text == ""


def test_a_summary_under_way_is_not_asked_for_again(another: Any) -> None:
    """Two savers, as of two processes: one waits for its model, the other one sees all."""
    gate, other = Gate(), Summarizer()
    first, second = layered(another(), Summarizer(gate)), layered(another(), other)
    first.save(at("t"), talk(4))
    chat = Chat(second)
    writer = Chat(LayeredCheckpointSaver(another(), Layers(full_window=40, summary_window=50)))
    writer.say("t", talk(4, 4))
    run = Run(first.load, at("t"))
    gate.wait_until_reached()
    assert second.load(at("t")) == talk(8)
    assert chat.say("t", talk(2, 8)) == talk(10)
    assert other.asked == []
    gate.open()
    assert len(run.finish()) == 5
    assert second.full_messages("t") == talk(10)
    assert len(second.load(at("t"))) == 5
    assert other.asked == [names(4, 6)]  # (what the first one has summarized is taken from it)


def test_many_loads_at_once_make_one_summary(another: Any) -> None:
    summarizers = [Summarizer() for _ in range(4)]
    Chat(LayeredCheckpointSaver(another())).say("t", talk(12))
    savers = [layered(another(), one) for one in summarizers]
    start = threading.Barrier(len(savers))

    def load(memory: Any) -> Any:
        start.wait(WAIT)
        return memory.load(at("t"))

    found = [run.finish() for run in [Run(load, one) for one in savers]]
    assert all(len(originals(view)) in (4, 12) for view in found)
    asked = [ids for one in summarizers for ids in one.asked]
    assert asked == [names(0, 8)]
    for memory in savers:
        assert memory.full_messages("t") == talk(12)
        assert len(memory.load(at("t"))) == 5


class Hanging:
    """A summarizer whose model does not answer, at first."""

    model, prompt_version = "model", "1"

    def __init__(self) -> None:
        self.asked, self.is_hanging = asyncio.Event(), True

    def summarize(self, messages: Any, previous: Any) -> Summary:
        raise NotImplementedError

    async def asummarize(self, messages: Any, previous: Any) -> Summary:
        self.asked.set()
        if self.is_hanging:
            await asyncio.Event().wait()
        return Summary("a summary", message_count=len(messages))


async def test_a_turn_that_is_cancelled_in_its_summary() -> None:
    summarizer = Hanging()
    memory = layered(MemorySaver(), summarizer)
    chat = Chat(memory)
    for count in range(0, 6, 2):
        chat.tape.append(talk(1, count + 1))
        await chat.graph.ainvoke({"messages": talk(1, count)}, at("t"))
    turn = asyncio.ensure_future(chat.graph.ainvoke({"messages": talk(1, 6)}, at("t")))
    await asyncio.wait_for(summarizer.asked.wait(), WAIT)
    turn.cancel()
    done, _ = await asyncio.wait([turn], timeout=2)
    assert done, "the turn did not end"
    summarizer.is_hanging = False
    assert len(await memory.aload(at("t"))) == 5
    assert await memory.afull_messages("t") == talk(6)


# -- killed --------------------------------------------------------------------------------


def _killed_behind(path: str, call: str, number: int, is_long: bool) -> None:
    """Talk until the saver inside is asked for the n-th time to store a record; die there."""
    inner: Any = SqliteSaver(path)
    counted = {"put": 0, "put_writes": 0}
    method = getattr(inner, call)

    def dying(config: Any, *args: Any, **options: Any) -> Any:
        stored = method(config, *args, **options)
        if str(config["configurable"].get("checkpoint_ns")).startswith("threadkeep$"):
            counted[call] += 1
            if counted[call] == number:
                os.kill(os.getpid(), signal.SIGKILL)
        return stored

    setattr(inner, call, dying)
    memory = layered(inner, lambda messages, previous: "a summary")
    if not is_long:
        Chat(memory).talk("t", talk(40))
    memory.save(at("t"), talk(200))
    while True:  # (the background is killed)
        memory.load(at("t"))


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("call", "number", "is_long"),
    [
        ("put", 1, False),
        ("put", 2, False),
        ("put", 5, False),
        ("put", 4, True),
        ("put_writes", 2, False),
        ("put_writes", 3, True),
    ],
)
def test_killed_between_a_record_and_the_checkpoint(
    tmp_path: Any, call: str, number: int, is_long: bool
) -> None:
    path = str(tmp_path / "killed.db")
    name = Path(__file__).stem
    program = (
        f"from integration.{name} import _killed_behind as run; run{path, call, number, is_long}"
    )
    folder = Path(__file__).parents[1]
    done = subprocess.run([*python(), "-c", program], cwd=folder, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    with closing(layered(SqliteSaver(path), lambda messages, previous: "a summary")) as memory:
        assert memory.check().ok
        found = memory.full_messages("t")
        assert found == talk(len(found))
        assert len(found) >= 4
        view = originals(memory.load(at("t")))
        assert view == found[-len(view) :]
        said = [HumanMessage("on", id="on"), AIMessage("we go", id="go")]
        Chat(memory).say("t", said)
        assert memory.full_messages("t") == [*found, *said]
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
