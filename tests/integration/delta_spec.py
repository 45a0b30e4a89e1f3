"""Threads with DeltaChannels, which the published conformance suite leaves out.

In its manner: plain async functions that are given a saver and call its async methods.
LangGraph rebuilds a DeltaChannel from `aget_delta_channel_history`, so what this tells,
and what pruning, copying and deleting leave of it, decides what a user reads.
"""

import itertools
import operator
import random
from collections.abc import Sequence
from functools import reduce
from typing import Annotated, Any

from kit.graphs import linear
from kit.places import at
from kit.rows import aput, place
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.types import ERROR, _DeltaSnapshot
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

ROOT = place()


async def history(saver: Any, config: Any, *channels: str) -> Any:
    """The history of each channel, the writes as values alone."""
    found = await saver.aget_delta_channel_history(config=config, channels=channels or ("log",))
    assert set(found) == set(channels or ("log",))
    return {
        c: {**entry, "writes": [value for _, _, value in entry["writes"]]}
        for c, entry in found.items()
    }


async def write(saver: Any, config: Any, value: Any, task: str = "task", path: str = "") -> None:
    await saver.aput_writes(config, [("log", value)], task, path)


async def line(saver: Any, count: int, **first: Any) -> list[Any]:
    """`count` checkpoints, each but the last with one write on it: "0", "1", ..."""
    configs = [await aput(saver, ROOT, first, log=1)]
    for number in range(count - 1):
        await write(saver, configs[-1], str(number))
        configs.append(await aput(saver, configs[-1], log=number + 2))
    return configs


# -- the history itself --------------------------------------------------------------


async def test_a_config_without_a_checkpoint_means_the_head(saver: Any) -> None:
    await line(saver, 3)
    assert await history(saver, ROOT) == {"log": {"writes": ["0", "1"]}}


async def test_no_channels_no_history(saver: Any) -> None:
    await line(saver, 3)
    assert await saver.aget_delta_channel_history(config=ROOT, channels=[]) == {}


async def test_a_channel_asked_for_twice_is_answered_once(saver: Any) -> None:
    await line(saver, 3)
    found = await saver.aget_delta_channel_history(config=ROOT, channels=["log", "log"])
    assert [v for _, _, v in found["log"]["writes"]] == ["0", "1"]


async def test_an_absent_thread_or_checkpoint_has_an_empty_history(saver: Any) -> None:
    await line(saver, 2)
    for config in (place("no such thread"), place(checkpoint="no such checkpoint"), place(ns="x")):
        assert await history(saver, config) == {"log": {"writes": []}}


async def test_namespaces_are_apart(saver: Any) -> None:
    await line(saver, 3)
    child = await aput(saver, place(ns="child"), log=1)
    await write(saver, child, "in the child")
    head = await aput(saver, child, log=2)
    assert await history(saver, head) == {"log": {"writes": ["in the child"]}}


async def test_any_tree_tells_what_the_general_walk_tells(saver: Any) -> None:
    """LangGraph's own walk over `aget_tuple` is the definition."""
    choose = random.Random(7)
    configs = [await aput(saver, place(checkpoint="never stored"), log=1)]
    for number in range(90):
        parent = choose.choice(configs[-6:])
        for task in range(choose.randrange(3)):
            values = [(choose.choice(("log", "other")), f"{number}.{task}.{n}") for n in range(2)]
            await saver.aput_writes(parent, values, f"t{task}", choose.choice("ab"))
        if choose.random() < 0.1:
            await saver.aput_writes(parent, [("log", "w"), (ERROR, "log")], f"failed {number}")
        seeds = ([number], [], {}, "", 0, False, None, *[_DeltaSnapshot([number])] * 4)
        stored = {"log": choose.choice(seeds)} if choose.random() < 0.2 else {}
        configs.append(await aput(saver, parent, stored, log=number + 2, other=number + 2))
    walk = BaseCheckpointSaver.aget_delta_channel_history
    for config, channels in itertools.product(configs, (["log"], ["log", "other"])):
        found = await saver.aget_delta_channel_history(config=config, channels=channels)
        assert found == await walk(saver, config=config, channels=channels)


# -- threads with DeltaChannels, thinned out, copied and cut -------------------------


def extend(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    return reduce(operator.add, writes, state)


def schema(frequency: int) -> Any:
    channel = DeltaChannel(extend, list, snapshot_frequency=frequency)
    fields = {"log": Annotated[list, channel], "turns": int}
    return TypedDict("DeltaLog", fields, total=False)


def graph(saver: Any, frequency: int = 100, **options: Any) -> Any:
    """Two nodes that each add a line."""
    builder = StateGraph(schema(frequency))
    builder.add_node("a", lambda s: {"log": [f"a{len(s['log'])}"], "turns": s.get("turns", 0) + 1})
    builder.add_node("b", lambda s: {"log": [f"b{len(s['log'])}"]})
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", END)
    return builder.compile(checkpointer=saver, **options)


def lines(turns: int, start: int = 0) -> list[str]:
    """Return the graph's log after a number of turns."""
    three = [(f"turn {n}", f"a{3 * n + 1}", f"b{3 * n + 2}") for n in range(start, turns)]
    return [line for turn in three for line in turn]


async def chat(saver: Any, turns: int, *, frequency: int = 100, thread: str = "thread") -> Any:
    """A thread of so many turns."""
    made = graph(saver, frequency)
    for turn in range(turns):
        await made.ainvoke({"log": [f"turn {turn}"]}, at(thread), durability="sync")
    return made


async def read(made: Any, thread: str = "thread") -> list[Any]:
    return (await made.aget_state(at(thread))).values.get("log")


async def listed(saver: Any, thread: str | None = "thread", **options: Any) -> list[Any]:
    config = None if thread is None else at(thread)
    return [found async for found in saver.alist(config, **options)]


async def test_pruned_thread_still_reads_the_same_and_goes_on(saver: Any) -> None:
    for frequency in (1, 2, 5, 100):
        thread = f"every {frequency}"
        made = await chat(saver, 4, frequency=frequency, thread=thread)
        (before,) = [s async for s in made.aget_state_history(at(thread), limit=1)]
        await saver.aprune([thread])
        assert await made.aget_state(at(thread)) == before
        assert await read(made, thread) == lines(4)
        await made.ainvoke({"log": ["turn 4"]}, at(thread))
        assert await read(made, thread) == lines(5)


async def test_what_is_kept_only_for_others_is_not_shown(saver: Any) -> None:
    made = await chat(saver, 3)
    old = await listed(saver)
    await saver.aprune(["thread"])
    (left,) = await listed(saver)
    assert left.config == old[0].config
    assert len([s async for s in made.aget_state_history(at())]) == 1
    for gone in old[1:]:
        assert await saver.aget_tuple(gone.config) is None
        assert await listed(saver, before=left.config) == []
    assert [t.config for t in await listed(saver, None)] == [left.config]
    assert await listed(saver, None, filter={"source": "input"}) == []


async def test_pruning_after_a_new_snapshot_lets_older_checkpoints_go(saver: Any) -> None:
    made = await chat(saver, 3, frequency=8)
    await saver.aprune(["thread"])
    await made.ainvoke({"log": ["turn 3"]}, at())
    await saver.aprune(["thread"])
    with_snapshot = await rows_of(saver)
    for turn in range(4, 7):
        await made.ainvoke({"log": [f"turn {turn}"]}, at())
        await saver.aprune(["thread"])
        assert await read(made) == lines(turn + 1)
    assert await rows_of(saver) <= with_snapshot
    assert len(await listed(saver)) == 1


async def rows_of(saver: Any) -> int:
    """Return the number of the thread's checkpoints in the store, including hidden ones."""
    stats = await getattr(saver, "inner", saver).astats()
    return stats.checkpoints


async def test_pruned_thread_that_waits_for_the_user_can_be_resumed(saver: Any) -> None:
    def wait(state: Any) -> Any:
        return {"log": [interrupt(len(state["log"]))]}

    made = linear(saver, schema(100), a=lambda _: {"log": ["a"]}, wait=wait)
    await made.ainvoke({"log": ["in"]}, at())
    await saver.aprune(["thread"])
    assert (await made.aget_state(at())).interrupts[0].value == 2
    await made.ainvoke(Command(resume="answer"), at())
    assert await read(made) == ["in", "a", "answer"]


async def test_pruning_keeps_the_deltas_of_a_subgraph(saver: Any) -> None:
    inner = graph(True)
    made = linear(saver, schema(100), inner=inner)
    for turn in range(3):
        await made.ainvoke({"log": [f"turn {turn}"]}, at())
        await saver.aprune(["thread"])
    before = await read(made)
    namespaces = {t.config["configurable"]["checkpoint_ns"] for t in await listed(saver)}
    assert namespaces == {"", "inner"}
    await saver.aprune(["thread"])
    assert await read(made) == before
    await made.ainvoke({"log": ["turn 3"]}, at())
    assert [x for x in await read(made) if x.startswith("turn")][-1] == "turn 3"


async def test_copied_thread_reads_the_same_and_goes_its_own_way(saver: Any) -> None:
    made = await chat(saver, 3)
    await saver.acopy_thread("thread", "copy")
    ours, theirs = await listed(saver), await listed(saver, "copy")
    assert [t.checkpoint for t in theirs] == [t.checkpoint for t in ours]
    assert [t.pending_writes for t in theirs] == [t.pending_writes for t in ours]
    assert [t.metadata for t in theirs] == [t.metadata for t in ours]
    await made.ainvoke({"log": ["turn 3"]}, at("copy"))
    await made.aupdate_state(at(), {"log": ["only here"]})
    assert await read(made, "copy") == lines(4)
    assert await read(made) == [*lines(3), "only here"]


async def test_copy_outlives_its_source(saver: Any) -> None:
    made = await chat(saver, 3)
    await saver.aprune(["thread"])
    await saver.acopy_thread("thread", "copy")
    await saver.adelete_thread("thread")
    assert await read(made, "copy") == lines(3)
    assert len(await listed(saver, "copy")) == 1
    await made.ainvoke({"log": ["turn 3"]}, at("copy"))
    await saver.aprune(["copy"])
    assert await read(made, "copy") == lines(4)


async def turns_by_run(saver: Any, turns: int) -> Any:
    """A thread whose turn `n` is run "run n"."""
    made = graph(saver)
    for turn in range(turns):
        config = {**at(), "metadata": {"run_id": f"run {turn}"}}
        await made.ainvoke({"log": [f"turn {turn}"]}, config, durability="sync")
    return made


async def test_deleting_an_older_run_breaks_no_later_state(saver: Any) -> None:
    made = await turns_by_run(saver, 4)
    await saver.adelete_for_runs(["run 1", "run 0"])
    assert await read(made) == lines(4)
    assert {t.metadata["run_id"] for t in await listed(saver)} == {"run 2", "run 3"}
    states = [s async for s in made.aget_state_history(at())]
    assert states[-1].values["log"][:6] == lines(2)
    await made.ainvoke({"log": ["turn 4"]}, at())
    assert await read(made) == lines(5)


async def test_deleting_the_last_run_goes_back_to_the_one_before(saver: Any) -> None:
    made = await turns_by_run(saver, 3)
    await saver.adelete_for_runs(["run 2"])
    assert await read(made) == lines(2)
    await made.ainvoke({"log": ["another turn 2"]}, at())
    assert await read(made) == [*lines(2), "another turn 2", "a7", "b8"]


ALL_DELTA_TESTS = [test for name, test in globals().items() if name.startswith("test_")]
