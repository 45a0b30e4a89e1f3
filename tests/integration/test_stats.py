"""`saver.stats()` on every store: its parts add up, and equal the registry's sizes."""

import dataclasses
import json
import operator
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import psycopg
import pytest
from kit.backends import BACKENDS, open_backend
from kit.engine import Chain
from kit.graphs import linear
from kit.places import at
from kit.postgres import url as server
from kit.postgres import url_for
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from typing_extensions import TypedDict

from threadkeep import KeyRing, MemorySaver, monitor, open_saver
from threadkeep._core.engine import log_sizes, thread_sizes
from threadkeep._core.engine.model import Batch
from threadkeep._core.engine.registration import read_snapshot
from threadkeep._core.engine.thread_sizes import ThreadStats
from threadkeep._stores.sqlite import threads as counts
from threadkeep._stores.sqlite.opening import create
from threadkeep.errors import CorruptionError, InvalidArgumentError, ThreadNotFoundError
from threadkeep.memory import LayeredCheckpointSaver
from threadkeep.threads import growth, statistics

from .driver import play
from .scenarios import SCENARIOS

LONG = "all work and no play " * 20
PARTS = ("manifests", "pending_writes", "metadata", "unreferenced")
PLAYED = ("agent_with_two_tools", "delta_fanned_out_3", "subgraph_with_a_memory_that_asks")


@pytest.fixture
def filled(saver: Any) -> Any:
    """A saver with threads whose saves came one after the other, which the registry counts."""
    for thread in ("plain", "other"):
        chain = Chain(saver, thread)
        for number in range(12):
            log = [f"{number} {thread}" * 50 for number in range(number)]
            config = chain.put(log=log, text="x" * number * 99)
            saver.put_writes(config, [("log", f"{number}" * 500), ("text", number)], "task")
    return saver


def measured(saver: Any) -> dict[str, ThreadStats]:
    stats = saver.stats()
    for one in stats.by_thread:
        parts = asdict(one)
        assert one.bytes == sum(one.channels.values()) + sum(parts[name] for name in PARTS)
        assert min([*one.channels.values(), *(parts[name] for name in PARTS)]) >= 0
    assert stats.checkpoints == sum(one.checkpoints for one in stats.by_thread)
    return {one.thread: one for one in stats.by_thread}


def registered(saver: Any) -> dict[str, int]:
    return {one.id: one.bytes for one in saver.threads.scan()}


def test_the_parts_are_the_whole(filled: Any) -> None:
    stats = measured(filled)
    assert {name: one.bytes for name, one in stats.items()} == registered(filled)
    one = stats["plain"]
    assert min(one.channels["log"], one.channels["text"], one.pending_writes, one.metadata) > 0
    assert one.unreferenced == 0


@pytest.mark.parametrize("name", PLAYED)
def test_the_parts_of_graphs_are_the_whole(name: str, saver: Any) -> None:
    play(SCENARIOS[name], saver, durability="sync", api="sync")
    assert all(one.unreferenced == 0 for one in measured(saver).values())


def test_what_is_pruned_is_gone_from_every_part(filled: Any) -> None:
    before = measured(filled)
    filled.prune(list(before))
    after = measured(filled)
    assert {name: one.bytes for name, one in after.items()} == registered(filled)
    assert after["plain"].bytes < before["plain"].bytes
    assert all(after[name].bytes <= before[name].bytes for name in before)


def test_what_forks_share_counts_once(filled: Any) -> None:
    """By `stats` for the first that refers to it, by the registry for the one that stored it."""
    family = ("a-fork", "plain", "z-fork")
    filled.threads.fork("plain", None, "a-fork")
    filled.threads.fork("plain", None, "z-fork")
    shared = bool(filled._store.run(read_snapshot("plain", alone=True)).rows.family)
    for thread in family:
        Chain(filled, thread, start=99).follow().put(log=[thread * 1000])
    stats, known = measured(filled), registered(filled)
    whole = sum(stats[name].bytes for name in family)
    stored = sum(known[name] for name in family)
    assert whole == stored if shared else whole > stored
    assert stats["z-fork"].channels["log"] > 0
    assert all(stats[name].unreferenced == 0 for name in family)


def test_what_nothing_refers_to_is_told(saver: Any) -> None:
    for number in range(9):
        Chain(saver, "t", start=number).follow().put(log=[f"{number}" * 3000])
    rows = saver._store.run(read_snapshot("t", alone=True)).rows
    gone = tuple([(one.row.ns, one.row.id) for one in rows.checkpoints[5:]])
    saver._store.backend.commit(Batch("t", 0, rows.generation, drop_checkpoints=gone))
    assert measured(saver)["t"].unreferenced > 0


# -- checkpoint by checkpoint ------------------------------------------------------------


def grown(saver: Any, thread: str) -> Any:
    """The growth of a thread, which adds up to its statistics."""
    found = saver.threads.growth(thread)
    one, _ = saver._store.run(thread_sizes.thread_stats(thread, {}))
    assert (found.thread, len(found.steps)) == (thread, one.checkpoints)
    rows = saver._store.run(read_snapshot(thread, alone=True)).rows
    assert found.bytes == one.bytes - (one.unreferenced if rows.family else 0)
    assert [step.checkpoint for step in found.steps] == sorted(s.checkpoint for s in found.steps)
    assert all(step.other_bytes > 0 for step in found.steps)
    whole = sum(step.full_copy_bytes for step in found.steps)
    assert whole == one.full_copy_bytes
    return found


def test_growth_adds_up_to_the_statistics(filled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = grown(filled, "plain")
    assert [step.step for step in found.steps] == [
        one.metadata.get("step") for one in filled.list(at("plain"))
    ][::-1]
    assert "text" not in found.steps[0].channels, "small values are in the row"
    assert found.steps[-1].channels["log"] > 0
    assert [step.full_copy_bytes for step in found.steps] == sorted(
        step.full_copy_bytes for step in found.steps
    )
    monkeypatch.setattr(log_sizes, "_TOGETHER", 100)
    monkeypatch.setattr(growth, "BATCH", 3)
    done: list[int] = []
    again = filled.threads.growth("plain", progress=lambda stage, now, _: done.append(now))
    assert again == found, "also if values are read a few at a time"
    assert done == [3, 6, 9, 12]
    with pytest.raises(ThreadNotFoundError):
        filled.threads.growth("nobody")


@pytest.mark.parametrize("name", PLAYED)
def test_growth_of_graphs_adds_up(name: str, saver: Any) -> None:
    play(SCENARIOS[name], saver, durability="sync", api="sync")
    for thread in saver.threads.scan():
        grown(saver, thread.id)


def test_growth_after_a_fork_and_without_orphans(filled: Any) -> None:
    filled.threads.fork("plain", None, "z-fork")
    filled.delete_checkpoints("plain", [grown(filled, "plain").steps[4].checkpoint])
    for thread in ("plain", "z-fork"):
        grown(filled, thread)
    Chain(filled, "z-fork", start=99).follow().put(log=["new" * 1000])
    found = grown(filled, "z-fork")
    assert found.steps[-1].channels["log"] > 0
    Chain(filled, "plain", start=99).follow().put(log=["other" * 1000])
    assert filled.threads.growth("z-fork") == found


# -- without a look at all threads -------------------------------------------------------


@pytest.mark.drawn(3)
def test_some_threads_stand_for_all(saver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates are near what a count of all parts gives; totals are counted."""
    monkeypatch.setattr(statistics, "_SAMPLE", 8)
    monkeypatch.setattr(statistics, "MOST", 2)
    for number in range(24):
        chain = Chain(saver, f"thread-{number}")
        for step in range(4 + 8 * (number == 7)):
            chain.put(log=[f"{i} {number} {LONG}" for i in range(step)], step=step)
    found, exact = saver.stats(), saver.stats(exact=True)
    assert (found.estimated, exact.estimated) == (True, False)
    assert 8 <= len(found.by_thread) <= 10 < len(exact.by_thread) == 24
    assert (found.threads, found.checkpoints) == (24, 24 * 4 + 8)
    assert found.largest[0].thread == "thread-7"
    assert "from" in found.note
    for name in ("threads", "checkpoints", "writes", "bytes", "hours", "largest"):
        assert getattr(found, name) == getattr(exact, name)
    assert found.full_copy_bytes == pytest.approx(exact.full_copy_bytes, rel=0.05)
    (log, *_), (all_of_it, *_) = found.channels, exact.channels
    assert (log.name, log.longest) == ("log", 11) == (all_of_it.name, all_of_it.longest)
    assert log.bytes == pytest.approx(all_of_it.bytes, rel=0.05)
    report = found.report()
    assert "24 threads, 104 checkpoints" in report
    assert "  thread-7: " in report
    assert json.loads(json.dumps(found.as_json()))["channels"][0]["name"] == "log"


@pytest.mark.parametrize("name", BACKENDS)
def test_rows_of_hidden_threads_do_not_count(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of an encrypted store and its families are pending writes of such threads."""
    monkeypatch.setattr(statistics, "_SAMPLE", 2)
    monkeypatch.setattr(statistics, "MOST", 2)
    with open_backend(name, tmp_path, keys=KeyRing([b"k" * 32])) as saver:
        for number in range(6):
            config = Chain(saver, str(number)).put(text="x" * number)
            saver.put_writes(config, [("text", "y")], "task")
        saver.threads.fork("0", None, "fork")
        found, exact = saver.stats(), saver.stats(exact=True)
    assert (found.estimated, exact.estimated) == (True, False)
    for one in (found, exact):
        assert (one.threads, one.checkpoints, one.writes) == (7, 7, 7)
    assert found.largest == exact.largest


def test_threads_that_take_long_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_SAMPLE_CHECKPOINTS", 5)
    with MemorySaver() as saver:
        for thread, count in (("long", 9), ("short", 2), ("also short", 3)):
            for step in range(count):
                Chain(saver, thread, start=step).follow().put(log=["x" * 1000] * step)
        found = saver.stats()
        assert [one.thread for one in found.by_thread] == ["also short", "short"]
        assert found.estimated
        (log,) = found.channels
        read = sum(one.bytes for one in found.by_thread)
        assert log.bytes < read == found.bytes - found.parts["unread"]
        assert "of others not read" in found.note
        stored = log.bytes + found.parts["manifests"] + found.parts["unread"]
        assert found.deltas_saved == found.full_copy_bytes - stored - found.compression_saved


class Noting(TypedDict, total=False):
    last: str


class Counting(Noting, total=False):
    n: int
    lines: Annotated[list[str], operator.add]


def counting(saver: Any, steps: int, *, keep: bool, inner: bool = False) -> Any:
    """A graph that counts its steps, in a growing state or in one of a constant size."""
    steps_of = StateGraph(Counting)
    line = {"lines": ["a line of the log"]} if keep else {"last": "x" * 700}
    steps_of.add_node("tick", lambda state: {"n": state.get("n", 0) + 1, **line})
    steps_of.add_edge(START, "tick")
    if inner:
        work = StateGraph(Noting).add_node("work", lambda _: {"last": "y" * 300})
        steps_of.add_node("call", work.add_edge(START, "work").compile(checkpointer=True))
        steps_of.add_edge("tick", "call")
    steps_of.add_conditional_edges(
        "call" if inner else "tick", lambda state: "tick" if state["n"] < steps else END
    )
    return steps_of.compile(checkpointer=saver)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", [{"keep": True}, {"keep": False}, {"keep": True, "inner": True}])
def test_full_copies_of_a_thread_that_takes_long_are_estimated(
    kind: Any, saver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From some of its checkpoints: it is not left out of the savings, which it makes up."""
    monkeypatch.setattr(statistics, "_SAMPLE_CHECKPOINTS", 100)
    for thread, steps in (("long", 150), ("short", 3)):
        config = {"recursion_limit": 1000, **at(thread)}
        counting(saver, steps, **kind).invoke({"n": 0}, config)
    found, exact = saver.stats(), saver.stats(exact=True)
    assert [one.thread for one in found.by_thread] == ["short"]
    assert found.full_copy_bytes == pytest.approx(exact.full_copy_bytes, rel=0.2)
    monkeypatch.setattr(statistics, "_SAMPLE_BYTES", 0)
    found = saver.stats()
    assert found.full_copy_bytes > found.parts["unread"], "never less than is stored"


def test_a_damaged_thread_is_left_out_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = thread_sizes.thread_stats

    def reading(thread: str, families: Any) -> Any:
        if thread == "damaged":
            raise CorruptionError("The keyframe of a checkpoint is missing.")
        return real(thread, families)

    monkeypatch.setattr(thread_sizes, "thread_stats", reading)
    with MemorySaver() as saver:
        for thread in ("damaged", "sound"):
            Chain(saver, thread).put(log=["x" * 1000])
        for exact in (False, True):
            found = saver.stats(exact=exact)
            assert [one.thread for one in found.by_thread] == ["sound"]
            assert (found.threads, found.checkpoints) == (2, 2)
            assert "1 thread not read: 'damaged' (threadkeep check)" in found.note


@pytest.mark.parametrize("function", [monitor.stats, monitor.advise])
def test_only_savers_have_statistics(function: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="Invalid saver: 3"):
        function(3)


def test_what_deltas_and_compression_saved() -> None:
    with MemorySaver() as saver:
        chain = Chain(saver)
        for step in range(20):
            chain.put(log=[f"{i} {LONG * 10}" for i in range(step)])
        found = saver.stats()
    assert found.full_copy_bytes == pytest.approx(sum(range(20)) * 10 * len(LONG), rel=0.05)
    whole = 19 * 10 * len(LONG)
    assert 0.5 * whole < found.compression_saved < whole
    stored = found.channels[0].bytes + found.parts["manifests"]
    assert found.deltas_saved == found.full_copy_bytes - stored - found.compression_saved


# -- any saver ---------------------------------------------------------------------------


@pytest.mark.parametrize("listed", [1000, 4])
async def test_savers_of_other_makers(monkeypatch: pytest.MonkeyPatch, listed: int) -> None:
    """Counted from `list`: the same threads, checkpoints and writes as ours has."""
    monkeypatch.setattr(statistics, "LISTED", listed)
    ours, theirs = MemorySaver(), InMemorySaver()
    for saver in (ours, theirs):
        chat = linear(saver, MessagesState, answer=lambda _: {"messages": ["b" * 200]})
        for thread in ("x", "y", "y"):
            chat.invoke({"messages": ["a" * 200]}, {"configurable": {"thread_id": thread}})
    found, own = monitor.stats(theirs), await monitor.astats(ours)
    again = await monitor.astats(theirs)
    assert dataclasses.replace(again, at=found.at) == found
    assert own == monitor.stats(LayeredCheckpointSaver(ours)) == ours.stats()
    assert own.full_copy_bytes > 0
    if listed == 4:
        assert (found.checkpoints, found.estimated) == (4, True)
        assert "first 4" in found.note
        return
    assert (found.threads, found.checkpoints) == (own.threads, own.checkpoints) == (2, 9)
    assert (found.estimated, found.writes > 0) == (False, True)
    assert found.hours[-1].checkpoints == own.hours[-1].checkpoints == 9
    assert found.largest[0].thread == found.busiest[0].thread == "y"
    (messages,) = (one for one in found.channels if one.name == "messages")
    assert messages.longest == 4
    assert messages.full_copy_bytes >= messages.bytes > 800
    assert "2 threads, 9 checkpoints" in found.report()


# -- indexes -----------------------------------------------------------------------------


def test_a_missing_index_is_made_by_its_statement(tmp_path: Any) -> None:
    url = url_for(tmp_path)
    schema = url.rpartition("=")[2]
    with open_saver(url) as saver, psycopg.connect(server(), autocommit=True) as db:
        assert saver.stats().missing_indexes == ()
        db.execute(f"DROP INDEX {schema}.threads_by_ttl")
        try:
            (statement,) = saver.stats().missing_indexes
        finally:
            db.execute(f"CREATE INDEX threads_by_ttl ON {schema}.threads (ttl)")
        db.execute(f"DROP INDEX {schema}.threads_by_ttl")
        db.execute(statement)
        assert saver.stats().missing_indexes == ()


def test_the_counts_of_sqlite_read_no_segment() -> None:
    """Rows of checkpoints and writes are counted once, others found by index of their thread."""
    values = {"now": 0, "since": 0, "idle_since": 0, "most": 9, "below": 9}
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        create(db, ":memory:")
        for text in (counts.TOTALS, counts.ACTIVITY, counts.MOST_BYTES, counts.SAMPLE):
            plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {text}", values)]
            assert not any("heap" in step for step in plan)
            scans = {step.split()[1] for step in plan if step.startswith("SCAN")}
            counted = {"tk_checkpoints", "tk_writes"} if text == counts.TOTALS else set()
            assert {name for name in scans if name.startswith("t")} == {"t", *counted}
