"""Advice from statistics: the proposals, whose commands and lines of code are valid."""

import random
import shlex
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import pytest
from kit.engine import Chain
from langgraph import channels
from langgraph.graph import START, StateGraph

from threadkeep import MemorySaver, Retention, SqliteSaver
from threadkeep.__main__ import main
from threadkeep._core.engine.usage import Hour
from threadkeep.monitor import Advice, ChannelStats, Stats, advise
from threadkeep.monitor.advice import propose
from threadkeep.store import Store
from threadkeep.threads import statistics

MB = 1_000_000


def stats(*found: ChannelStats, **fields: Any) -> Stats:
    size = sum(one.bytes for one in found) or 10 * MB
    empty: dict[str, Any] = {
        "at": datetime(2026, 5, 1, tzinfo=UTC),
        "threads": 10,
        "checkpoints": 1000,
        "writes": 0,
        "bytes": size,
        "bytes_on_disk": 2 * size,
        "full_copy_bytes": 9 * size,
        "compression_saved": 0,
        "channels": found,
        "parts": {},
        "hours": (Hour(0, 0),) * 24,
        "largest": (),
        "busiest": (),
    }
    return Stats(**{**empty, **fields})


MESSAGES = ChannelStats("messages", 8 * MB, 80 * MB, changes=900, longest=400)
LOG = ChannelStats("log", 8 * MB, 80 * MB, changes=900, longest=400)
REWRITTEN = ChannelStats("scratch", 8 * MB, 8 * MB, changes=900)
PATCHED = ChannelStats("plan", 8 * MB, 80 * MB, changes=900)
BUSY = (Hour(0, 0),) * 23 + (Hour(20_000, 5 * MB),)
INDEX = "CREATE INDEX tk_threads_by_state ON tk_threads (state, updated_at, thread)"

CASES = {
    "a list of messages": (stats(MESSAGES), {}, True, "channel", "LayeredCheckpointSaver"),
    "another list": (stats(LOG), {}, True, "channel", "log: Annotated"),
    "a list stored whole": (stats(LOG), {}, False, "adopt", "DeltaChannel"),
    "a rewritten value": (stats(REWRITTEN), {"scratch": 7 * MB}, True, "channel", "--latest"),
    "theirs": (stats(REWRITTEN), {}, False, "channel", "UntrackedValue"),
    "old checkpoints": (stats(), {"": 5 * MB}, True, "retention", "--keep-last 10"),
    "idle": (stats(idle_threads=4, idle_bytes=5 * MB), {}, True, "tiering", "--warm 30d"),
    "an index": (stats(missing_indexes=(INDEX,)), {}, True, "index", "sqlite3 threads.db"),
    "expired": (stats(items=9, expired_items=6, item_bytes=9 * MB), {}, True, "items", "sweep"),
    "waiting": (stats(items=9, waiting_items=1), {}, True, "items", "embed_pending"),
    "a large cache": (stats(cache_entries=9, cache_bytes=20 * MB), {}, True, "cache", "max_bytes="),
}


@pytest.fixture
def store(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    with SqliteSaver("threads.db") as saver:
        Chain(saver).put(log=["a"], scratch="b")
    return "threads.db"


@pytest.mark.parametrize("case", CASES)
def test_each_finding_comes_with_what_does_it(case: str, store: str) -> None:
    found, freed, is_own, topic, part = CASES[case]
    (one,) = propose(found, freed, url=store, is_own=is_own)
    assert (one.topic, part in one.command + one.code) == (topic, True)
    expired = found.item_bytes * 6 // 9
    assert one.frees in (None, *freed.values(), found.idle_bytes, expired, found.cache_bytes // 2)
    runs(one)


def runs(one: Advice) -> None:
    """Run the command as a dry run, and the line of code."""
    assert one.command or one.code
    if one.command.startswith("threadkeep"):
        _, name, *arguments = shlex.split(one.command)
        assert main([name, "--help"] if name == "adopt" else [name, *arguments, "--dry-run"]) == 0
    if one.code.startswith(("saver", "store", "cache")):
        saver = MemorySaver()
        store = Store(saver.backend, index={"embed": lambda texts: [[1.0]] * len(texts), "dims": 1})
        names: dict[str, Any] = {"url": "sqlite:///new.db", "saver": saver, "store": store}
        imports = "from threadkeep import *\nfrom threadkeep.memory import *\n"
        imports += "from threadkeep.store import Store\nfrom threadkeep.cache import NodeCache\n"
        exec(imports + one.code, names)
        for name in ("store", "saver"):
            names[name].close()
    elif one.code:
        names = {**vars(channels), "Annotated": Annotated, "TypedDict": TypedDict}
        state = f"class State(TypedDict):\n    {one.code}"
        exec(compile(state, "advice", "exec", dont_inherit=True), names)
        graph = StateGraph(names["State"]).add_node("n", lambda _: {name: value})
        ((name, value),) = [(name, ["b"]) for name in names["State"].__annotations__]
        assert graph.add_edge(START, "n").compile().invoke({name: ["a"]})[name][-1] == "b"


def test_no_advice_where_all_is_well() -> None:
    small = ChannelStats("messages", 1000, 10_000, changes=9, longest=400)
    assert propose(stats(small), {"": 500}) == []
    assert propose(stats(PATCHED), {"": 0}) == []
    assert propose(stats(MESSAGES, LOG, bytes=900 * MB), {"": 50 * MB}) == []
    cached = stats(items=9, expired_items=1, item_bytes=4 * MB, cache_bytes=9 * MB)
    assert propose(cached, {}) == []


def test_the_most_bytes_come_first() -> None:
    found = stats(REWRITTEN, idle_threads=4, idle_bytes=5 * MB)
    advice = propose(found, {"scratch": 2 * MB, "": 6 * MB})
    assert [one.topic for one in advice] == ["retention", "tiering", "channel"]


def test_freed_bytes_are_those_of_a_dry_run() -> None:
    chance = random.Random(1)
    with MemorySaver() as saver:
        for thread in ("a", "b"):
            chain = Chain(saver, thread)
            for _ in range(20):
                chain.put(scratch=chance.randbytes(60_000))
        by_topic = {one.topic: one for one in advise(saver)}
        retention = by_topic["retention"].frees
        assert retention == saver.threads.gc(Retention(keep_last=10)).bytes
        assert by_topic["channel"].frees > retention > 0


def test_what_retention_frees_of_some_threads_stands_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The largest threads are not extrapolated."""
    monkeypatch.setattr(statistics, "MOST", 1)
    monkeypatch.setattr(statistics, "_SAMPLE", 4)
    chance = random.Random(1)
    with MemorySaver() as saver:
        for number in range(20):
            chain = Chain(saver, f"thread-{number}")
            for _ in range(50 if number == 5 else 3):
                chain.put(scratch=chance.randbytes(40_000))
        (advice,) = [one for one in advise(saver) if one.topic == "retention"]
        assert advice.frees == saver.threads.gc(Retention(keep_last=10)).bytes


def test_statistics_that_were_counted_before_are_not_counted_again(monkeypatch):
    with MemorySaver() as saver:
        monkeypatch.setattr(type(saver), "stats", None)
        (advice,) = advise(saver, url="threads.db", stats=stats(missing_indexes=(INDEX,)))
    assert advice.topic == "index"
