"""Streams: their saves, their remains after the end, and the order of waiting."""

import asyncio
import itertools
import logging
import threading
from contextlib import suppress
from typing import Any

import pytest
from kit.places import at
from kit.runs import Gate, Run, story, told
from langchain_core.messages import AIMessageChunk
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver as TheirSqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver as TheirAsyncSqliteSaver

from threadkeep import MemorySaver
from threadkeep.errors import (
    BackendError,
    InvalidArgumentError,
    InvalidConfigError,
    StateError,
    ThreadDeletedError,
    UnknownTypeError,
)
from threadkeep.streaming import PartialStream, Stream, StreamingCheckpointSaver
from threadkeep.threads.partial_output import KEPT, LIVE, NAMESPACE

from .saves import Watched

ROWS = {"configurable": {"thread_id": "thread", "checkpoint_ns": NAMESPACE}}


@pytest.fixture
def memory() -> Any:
    with MemorySaver() as saver:
        yield saver


def now(saver: Any, **options: Any) -> Stream:
    """A stream that saves each update at once."""
    return saver.streaming(at("thread"), max_bytes=1, **options)


def saved(saver: Any, stream: Any, text: str, watched: Watched | None = None) -> PartialStream:
    """Update, and return the stream as it was saved."""
    watched = watched or Watched(saver)
    stream.update(text)

    def found() -> list[PartialStream]:
        streams = [one for one in saver.partial("thread") if one.id == stream.id]
        return [one for one in streams if one.text.endswith(text)]

    watched.until(lambda: bool(found()))
    return found()[0]


# -- saving ----------------------------------------------------------------------------


def test_output_is_there_before_the_stream_ends(saver: Any) -> None:
    story(saver).invoke({"log": ["a"]}, at("thread"))
    head = saver.get_tuple(at("thread")).checkpoint["id"]
    with saver.streaming(at("thread"), interval=0.05) as stream:
        watched = Watched(saver)
        stream.update("Hello ", node="bot", message="m")
        stream.update(AIMessageChunk(content="you", id="m"), node="bot")
        stream.update({"draft": [1]}, event={"done": 1}, node="bot")
        watched.wait(1)
        (found,) = saver.partial("thread")
        assert (found.id, found.status, found.text) == (stream.id, "pending", "Hello you")
        assert [(one.id, one.node) for one in found.messages] == [("m", "bot")]
        assert (found.events, found.values) == (({"done": 1},), {"draft": [1]})
        assert found.updates[0].node == "bot"
        assert found.checkpoint_id == head
        assert found.created_at <= found.saved_at
        assert found.completed_at is None
        # no other reader sees it
        assert saver.get_tuple(at("thread")).checkpoint["id"] == head
        assert NAMESPACE not in {
            one.config["configurable"]["checkpoint_ns"] for one in saver.list(at("thread"))
        }
    (found,) = saver.partial("thread")
    assert (found.status, found.text, found.events, found.values) == ("completed", "", (), {})
    assert found.completed_at >= found.created_at
    assert len(list(saver.list(ROWS))) == 1
    assert saver.check().ok


def test_a_save_stores_the_new_bytes_alone(saver: Any) -> None:
    text = "".join(map(chr, range(33, 127)))
    sizes = []
    with now(saver, max_pending=100) as stream:
        watched = Watched(saver)
        for number in range(40):
            saved(saver, stream, f"{number:2} {text[number:]}{text[:number]}" * 3, watched)
            sizes.append(saver.stats().by_thread[0].bytes)
    steps = [after - before for before, after in itertools.pairwise(sizes)]
    # 291 bytes each: the row beside them, and now and then a whole manifest
    assert max(steps) < 291 + 700
    assert sum(steps[20:]) < sum(steps[:20]) + 700


def test_the_last_saves_are_kept_and_what_is_over_goes(saver: Any) -> None:
    with now(saver, max_pending=3) as stream:
        watched = Watched(saver)
        for number in range(8):
            found = saved(saver, stream, f"{number} ", watched)
            assert found.text == "".join(f"{each} " for each in range(number + 1))
        rows = list(saver.list(ROWS))
        assert 1 <= len(rows) <= 4  # (the last one may be about to remove the others)
    assert len(list(saver.list(ROWS))) == 1
    saver.prune(["thread"])
    assert saver.stats().by_thread[0].unreferenced == 0
    assert saver.check().ok


def test_of_ended_streams_the_newest_are_kept(memory: Any) -> None:
    ids = []
    for _ in range(2 * KEPT + 3):
        with memory.streaming("thread") as stream:
            stream.update("x" * 100)
            ids.append(stream.id)
        assert len(list(memory.list(ROWS))) <= 2 * KEPT
    assert [one.id for one in memory.partial("thread")] == ids[: -KEPT - 1 : -1]
    assert len(list(memory.list(ROWS))) == KEPT + 2
    assert memory.check().ok


def test_what_cannot_be_stored_is_stored_as_text(memory: Any) -> None:
    with now(memory) as stream:
        watched = Watched(memory)
        stream.update("a", event=threading.Lock())
        stream.update("b", event=1)
        watched.until(lambda: [one.text for one in memory.partial("thread")] == ["ab"])
        (found,) = memory.partial("thread")
        assert "lock" in found.events[0]
        assert found.events[1] == 1


# -- how streams end -------------------------------------------------------------------


def test_after_an_exception_all_is_saved_and_stays_pending(saver: Any) -> None:
    with suppress(ZeroDivisionError), saver.streaming("thread") as stream:
        stream.update("a")
        raise ZeroDivisionError
    (found,) = saver.partial("thread")
    assert (found.status, found.text) == ("pending", "a")
    assert saver.discard_partial("thread", "absent") == 0
    assert saver.discard_partial("thread") == 1
    (found,) = saver.partial("thread")
    assert (found.status, found.text) == ("discarded", "")
    assert len(list(saver.list(ROWS))) == 1
    assert saver.discard_partial("thread") == 0


@pytest.mark.parametrize("status", ["completed", "discarded", "pending"])
def test_a_stream_is_stopped_by_hand(memory: Any, status: Any) -> None:
    with memory.streaming("thread") as stream:
        stream.update("a")
        stream.stop(status)
    (found,) = memory.partial("thread")
    assert (found.status, found.text) == (status, "a" if status == "pending" else "")


def left(saver: Any, text: str) -> str:
    """The id of a stream of a process that is gone."""
    stream = saver.streaming("thread").start()
    stream.update(text)
    stream.stop("pending")
    return stream.id


@pytest.mark.parametrize("once", [True, False])
async def test_after_a_cancellation_too(memory: Any, once: bool) -> None:
    """Or after many: anyio cancels a task until it has left the scope."""

    updated = asyncio.Event()

    async def run() -> None:
        async with memory.streaming("thread", interval=60) as stream:
            await stream.aupdate("a")
            updated.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await updated.wait()
    task.cancel()
    while not task.done():
        await asyncio.sleep(0)
        if not once:
            task.cancel()
    assert task.cancelled()
    assert [(one.status, one.text) for one in memory.partial("thread")] == [("pending", "a")]


def test_the_next_stream_that_completes_takes_the_place_of_dead_ones(memory: Any) -> None:
    dead = left(memory, "a")
    with memory.streaming("thread"):
        (found,) = memory.partial("thread")
        assert found.text == "a"  # the run that resumes has it at hand
    assert {one.id: one.status for one in memory.partial("thread")}[dead] == "discarded"
    assert len(list(memory.list(ROWS))) == 2


def test_two_streams_of_a_thread_do_not_disturb_each_other(saver: Any) -> None:
    with now(saver) as first:
        watched = Watched(saver)
        saved(saver, first, "a", watched)
        with now(saver) as second:
            for text in "xyz":
                saved(saver, second, text, watched)
            found = {one.id: one.text for one in saver.partial("thread")}
            assert found == {first.id: "a", second.id: "xyz"}
        assert [one.status for one in saver.partial("thread")] == ["completed", "pending"]
        assert saved(saver, first, "b", watched).text == "ab"
    assert [one.status for one in saver.partial("thread")] == ["completed", "completed"]
    assert saver.check().ok


def test_a_stream_of_another_process_is_left_alone_while_it_is_saved(memory: Any) -> None:
    with memory.streaming("thread") as first, now(memory) as second:
        LIVE.discard(second.id)
        saved(memory, second, "a")
        first.stop()
        assert memory.partial("thread")[0].text == "a"


def test_a_stream_that_was_discarded_under_way_is_whole_again(saver: Any) -> None:
    with now(saver) as stream:
        watched = Watched(saver)
        saved(saver, stream, "a", watched)
        assert saver.discard_partial("thread", stream.id) == 1
        found = saved(saver, stream, "b", watched)
        assert (found.status, found.text) == ("pending", "ab")
    assert saver.check().ok


@pytest.mark.parametrize("saver_options", [{"conflicts": "raise"}])
def test_a_run_goes_on_while_its_stream_is_saved(saver: Any) -> None:
    """Removing rows of a stream makes the run read its thread again."""
    gate = Gate()
    graph = story(saver, gates={"b-second": gate})
    graph.invoke({"log": ["a"]}, at("thread"))
    run = Run(graph.invoke, {"log": ["b"]}, at("thread"))
    gate.wait_until_reached()
    with now(saver, max_pending=1) as stream:
        watched = Watched(saver)
        for text in "xyz":
            saved(saver, stream, text, watched)
    gate.open()
    assert run.finish()["log"] == told("a", "b")
    assert graph.get_state(at("thread")).values["log"] == told("a", "b")
    assert saver.forked_runs == 0
    assert saver.check().ok


def test_a_deleted_thread_is_not_brought_back(saver: Any) -> None:
    story(saver).invoke({"log": ["a"]}, at("thread"))
    stream = saver.streaming("thread").start()
    stream.update("a")
    saver.delete_thread("thread")
    with pytest.raises(ThreadDeletedError):
        stream.stop("pending")
    assert saver.partial("thread") == []


# -- a store that is slow, or fails ----------------------------------------------------


def test_a_slow_store_holds_up_the_stream(memory: Any) -> None:
    watched = Watched(memory)
    watched.gate = Gate()
    with memory.streaming("thread", max_bytes=100) as stream:

        def produce() -> None:
            for number in range(100):
                stream.update(f"{number} ".ljust(50))

        run = Run(produce)
        watched.gate.wait_until_reached()
        run.join(0.05)
        assert run.is_alive()
        assert stream._buffer.bytes < 700
        watched.gate.open()
        assert run.finish() is None
        stream.stop("pending")
    (found,) = memory.partial("thread")
    assert found.text.split() == [str(number) for number in range(100)]


async def test_also_one_that_awaits(memory: Any) -> None:
    watched = Watched(memory)
    watched.gate = Gate()
    async with memory.streaming("thread", max_bytes=100) as stream:

        async def produce() -> None:
            for number in range(100):
                await stream.aupdate(f"{number} ".ljust(50))

        run = asyncio.create_task(produce())
        await asyncio.to_thread(watched.gate.wait_until_reached)
        await asyncio.wait([run], timeout=0.05)
        assert not run.done()
        assert stream._buffer.bytes < 700
        with pytest.raises(StateError, match="aupdate"):
            stream.update("more")  # it would block the loop that saves
        watched.gate.open()
        await run
        await stream.astop("pending")
    (found,) = memory.partial("thread")
    assert found.text.split() == [str(number) for number in range(100)]


def test_a_save_that_fails_is_tried_again(memory: Any, caplog: Any) -> None:
    watched = Watched(memory)
    with memory.streaming("thread", interval=0.01, max_bytes=1000) as stream:
        watched.error = BackendError("down")
        with caplog.at_level(logging.WARNING, "threadkeep"):
            stream.update("a" * 5000)
            with pytest.raises(BackendError, match="down"):
                stream.update("b")  # there is room for no more, and no hope
        assert "tried again" in caplog.text
        watched.error = None
        watched.wait(1)
        assert memory.partial("thread")[0].text == "a" * 5000
        stream.update("c")
    assert memory.partial("thread")[0].status == "completed"


@pytest.mark.parametrize("status", ["completed", "pending"])
def test_a_stop_that_fails_is_made_again(memory: Any, status: Any) -> None:
    stream = memory.streaming("thread", interval=60).start()
    stream.update("a")
    watched = Watched(memory)
    watched.error = BackendError("The disk is full.")
    with pytest.raises(BackendError, match="full"):
        stream.stop(status)
    watched.error = None
    stream.stop(status)
    text = "a" if status == "pending" else ""
    assert [(one.status, one.text) for one in memory.partial("thread")] == [(status, text)]


def test_the_error_of_a_run_is_not_hidden_by_a_failing_store(memory: Any, caplog: Any) -> None:
    watched = Watched(memory)
    with suppress(ZeroDivisionError), memory.streaming("thread") as stream:
        stream.update("a")
        watched.error = BackendError("down")
        raise ZeroDivisionError
    assert "could not be saved" in caplog.text


@pytest.mark.parametrize(
    ("name", "error"), [("list", UnknownTypeError), ("delete_checkpoints", BackendError)]
)
def test_rows_that_cannot_be_read_or_removed_keep_no_stream_from_its_end(
    memory: Any, monkeypatch: Any, name: str, error: Any
) -> None:
    def fail(*given: Any, **options: Any) -> None:
        raise error

    with memory.streaming("thread", max_bytes=1) as stream:
        saved(memory, stream, "a")
        monkeypatch.setattr(memory, name, fail)
    monkeypatch.undo()
    assert [(one.status, one.text) for one in memory.partial("thread")] == [("completed", "")]
    with memory.streaming("thread"):
        pass
    assert len(list(memory.list(ROWS))) == 2


def test_output_that_cannot_be_read_is_discarded(memory: Any, monkeypatch: Any) -> None:
    with memory.streaming("thread") as stream:
        stream.update("a")
        stream.stop("pending")

    def fail(*given: Any, **options: Any) -> None:
        raise UnknownTypeError("The class is not there.")

    monkeypatch.setattr(memory, "list", fail)
    with pytest.raises(UnknownTypeError):
        memory.partial("thread")
    assert memory.discard_partial("thread") == 1
    monkeypatch.undo()
    assert [one.status for one in memory.partial("thread")] == ["discarded"]


# -- bad input -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [{"interval": 0}, {"interval": "3"}, {"max_pending": 0}, {"max_bytes": 0}, {"max_bytes": 1.5}],
)
def test_invalid_options(memory: Any, wrong: Any) -> None:
    message = f"Invalid {next(iter(wrong))}"
    with pytest.raises(InvalidArgumentError, match=message):
        memory.streaming("thread", **wrong)
    with pytest.raises(InvalidArgumentError, match=message):
        StreamingCheckpointSaver(memory, **wrong)


def test_a_config_without_a_thread(memory: Any) -> None:
    with pytest.raises(InvalidConfigError, match="thread_id"):
        memory.streaming({"configurable": {}})
    with pytest.raises(InvalidArgumentError, match="Invalid thread_id: None"):
        memory.streaming(None)
    with pytest.raises(InvalidArgumentError):
        memory.partial(True)


def test_a_stream_that_is_not_running(memory: Any) -> None:
    stream = memory.streaming("thread")
    with pytest.raises(StateError, match=r"not started.*\n.*start\(\)"):
        stream.update("a")
    with stream, pytest.raises(StateError, match="was started"):
        stream.start()
    with pytest.raises(StateError, match=r"has ended.*\n.*streaming\(config\)"):
        stream.update("a")
    with pytest.raises(StateError, match="has ended"):
        stream.stop()


async def test_a_stream_with_a_thread_is_stopped_by_an_awaiting_caller(memory: Any) -> None:
    stream = memory.streaming("thread").start()
    await stream.aupdate("a")
    await stream.astop("pending")
    assert [one.text for one in memory.partial("thread")] == ["a"]


async def test_calls_that_would_block_the_loop_that_saves(memory: Any) -> None:
    async with memory.streaming("thread") as stream:
        with pytest.raises(InvalidArgumentError, match="astop"):
            stream.stop()
        with pytest.raises(InvalidArgumentError, match="status"):
            await stream.astop("done")
        with pytest.raises(InvalidArgumentError, match="output"):
            stream.update(5)
        await stream.aupdate("a")  # it continues
        await stream.astop("pending")
    assert [one.text for one in memory.partial("thread")] == ["a"]


def test_a_stream_whose_event_loop_has_ended(memory: Any) -> None:
    async def begin() -> Stream:
        stream = await memory.streaming("thread", interval=60).astart()
        await stream.aupdate("a")
        return stream

    stream = asyncio.run(begin())
    with pytest.raises(StateError, match=r"worker.*\n.*astop"):
        stream.update("b")
    asyncio.run(stream.astop("pending"))
    assert [one.text for one in memory.partial("thread")] == ["a"]


# -- in front of any saver -------------------------------------------------------------


@pytest.fixture(params=["ours", "memory", "sqlite"])
def wrapped(request: Any, tmp_path: Any) -> Any:
    """A streaming saver in front of ours, and of LangGraph's."""
    if request.param == "sqlite":
        with TheirSqliteSaver.from_conn_string(str(tmp_path / "theirs.db")) as inner:
            yield StreamingCheckpointSaver(inner, max_bytes=1)
    else:
        inner = MemorySaver() if request.param == "ours" else InMemorySaver()
        with StreamingCheckpointSaver(inner, max_bytes=1) as found:
            yield found


def test_streams_by_the_id_of_their_thread(wrapped: Any) -> None:
    graph = story(wrapped)
    graph.invoke({"log": ["a"]}, at("thread"))
    listed = [one.checkpoint["id"] for one in wrapped.list(at("thread"))]
    watched = Watched(wrapped._inner)
    first = wrapped.start_streaming("thread")
    second = wrapped.start_streaming(at("thread"))
    wrapped.update("thread", "a", stream=first.id)
    wrapped.update("thread", "x", node="bot", event=(1, 2))
    wrapped.update("thread", "y", node="bot")
    watched.until(lambda: sorted(one.text for one in wrapped.partial("thread")) == ["a", "xy"])
    found = {one.id: one for one in wrapped.partial("thread")}
    assert list(found) == [second.id, first.id]
    assert (found[first.id].text, found[second.id].text) == ("a", "xy")
    assert tuple(found[second.id].events[0]) == (1, 2)
    assert found[first.id].checkpoint_id == listed[0]
    wrapped.stop_streaming("thread", stream=second.id)
    wrapped.stop_streaming("thread", status="discarded")
    assert [one.status for one in wrapped.partial("thread")] == ["completed", "discarded"]
    assert not any(one.text for one in wrapped.partial("thread"))
    assert len(list(wrapped.list(ROWS))) == 2
    with pytest.raises(StateError, match="no running stream"):
        wrapped.stop_streaming("thread")
    # listings are as without streams
    assert [one.checkpoint["id"] for one in wrapped.list(at("thread"))] == listed
    assert len(list(wrapped.list(at("thread"), limit=1))) == 1
    assert len(list(graph.get_state_history(at("thread")))) == len(listed)
    assert "b" in graph.invoke({"log": ["b"]}, at("thread"))["log"]


async def test_likewise_awaited() -> None:
    async with TheirAsyncSqliteSaver.from_conn_string(":memory:") as sqlite:
        for inner in (MemorySaver(), InMemorySaver(), sqlite):
            await check_awaited(inner)


async def check_awaited(inner: Any) -> None:
    async with StreamingCheckpointSaver(inner, max_bytes=1) as wrapped:
        await story(wrapped).ainvoke({"log": ["a"]}, at("thread"))
        listed = [one.checkpoint["id"] async for one in wrapped.alist(at("thread"))]
        stream = await wrapped.astart_streaming("thread")
        await wrapped.aupdate("thread", "a")
        await wrapped.astop_streaming("thread", status="pending")
        (found,) = await wrapped.apartial("thread")
        assert (found.id, found.text) == (stream.id, "a")
        assert await wrapped.adiscard_partial("thread") == 1
        assert [one.checkpoint["id"] async for one in wrapped.alist(at("thread"))] == listed
        few = [one.checkpoint["id"] async for one in wrapped.alist(at("thread"), limit=2)]
        assert few == listed[:2]
        assert [one async for one in wrapped.alist(None, limit=0)] == []
        assert len([one async for one in wrapped.alist(ROWS, limit=5)]) == 1


def test_streams_under_way_are_pending_when_the_saver_is_closed() -> None:
    inner = InMemorySaver()
    with StreamingCheckpointSaver(inner) as wrapped:
        wrapped.start_streaming("thread")
        wrapped.update("thread", "a")
    found = StreamingCheckpointSaver(inner).partial("thread")
    assert [(one.status, one.text) for one in found] == [("pending", "a")]


async def test_a_stream_that_cannot_be_stopped_disturbs_no_other() -> None:
    inner = InMemorySaver()
    wrapped = StreamingCheckpointSaver(inner, interval=60)
    awaited = await wrapped.astart_streaming("thread")
    first = wrapped.start_streaming("thread")
    second = wrapped.start_streaming("other")
    wrapped.update("thread", "a", stream=first.id)
    wrapped.update("other", "b")
    with pytest.raises(InvalidArgumentError, match="status"):
        wrapped.stop_streaming("other", status="done")
    assert awaited.is_started
    with pytest.raises(InvalidArgumentError, match="astop"):
        wrapped.stop_streaming("thread", status="pending")
    assert (awaited.is_started, first.is_started, second.is_started) == (True, False, True)
    with pytest.raises(InvalidArgumentError, match="astop"):
        wrapped.close()
    assert not second.is_started
    await wrapped.astop_streaming("thread")
    assert [one.text for one in wrapped.partial("thread")] == ["a", ""]
    assert [one.text for one in wrapped.partial("other")] == ["b"]


def test_a_stream_that_was_stopped_by_itself_is_forgotten() -> None:
    with StreamingCheckpointSaver(MemorySaver()) as wrapped:
        wrapped.start_streaming("thread").stop()
        with pytest.raises(StateError, match="no running stream"):
            wrapped.update("thread", "a")
        stream = wrapped.start_streaming("thread")
        assert list(wrapped._streams) == [stream.id]


def test_what_is_no_saver() -> None:
    with pytest.raises(InvalidArgumentError, match="base_saver"):
        StreamingCheckpointSaver("threads.db")
