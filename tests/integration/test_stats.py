"""`saver.stats()` on every store: its parts add up, and are what the registry tells of threads."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from kit.engine import Chain

from threadkeep.engine.model import Batch
from threadkeep.transfer import whole_thread

from .driver import play
from .scenarios import SCENARIOS

if TYPE_CHECKING:
    from threadkeep.monitor.thread_sizes import ThreadStats

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
    shared = bool(filled._store.run(whole_thread.read_rows("plain"))[0].family)
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
    rows = saver._store.run(whole_thread.read_rows("t"))[0]
    gone = tuple([(one.row.ns, one.row.id) for one in rows.checkpoints[5:]])
    saver._store.backend.commit(Batch("t", 0, rows.generation, drop_checkpoints=gone))
    assert measured(saver)["t"].unreferenced > 0
