"""Time travel: continuing from an older checkpoint, updates, copies and forks."""

from typing import Any

from kit.places import at
from langgraph.graph import END
from langgraph.types import StateUpdate

from .pauses import line
from .table import scenario

STEPPED = ("sync", "async")  # with durability="exit" there is nothing to go back to


async def two_turns(run: Any) -> None:
    run.compile(line("a", "b", "c"))
    await run.invoke({"log": ["one"]})
    await run.invoke({"log": ["two"]})


@scenario(durabilities=STEPPED)
async def replay_from_an_old_checkpoint(run: Any) -> None:
    await two_turns(run)
    await run.invoke(None, await run.before("b"))
    await run.state()
    await run.invoke({"log": ["three"]})


@scenario(durabilities=STEPPED)
async def new_input_on_an_old_checkpoint(run: Any) -> None:
    await two_turns(run)
    old = await run.before("c")
    await run.invoke({"log": ["another two"]}, old)
    await run.invoke({"log": ["yet another two"]}, old)
    await run.invoke({"log": ["three"]})


@scenario
async def replay_from_the_end_of_a_turn(run: Any) -> None:
    await two_turns(run)
    first, *_ = [s for s in await run.history() if not s.next][-1:]
    await run.invoke(None, first.config)
    await run.invoke({"log": ["another two"]}, first.config)


@scenario(durabilities=STEPPED)
async def go_back_twice_and_walk_both_branches(run: Any) -> None:
    await two_turns(run)
    start, later = await run.before("b"), await run.before("c")
    left = await run.update({"log": ["left"]}, start)
    right = await run.update({"log": ["right"]}, later, as_node="b")
    await run.invoke(None, left)
    await run.invoke(None, right)
    await run.invoke({"log": ["on the left"]}, left)
    await run.state(left)
    await run.state(right)


@scenario
async def update_the_head(run: Any) -> None:
    await two_turns(run)
    await run.update({"last": "updated"})
    await run.update({"log": ["as a"]}, as_node="a")
    await run.state()
    await run.invoke(None)
    await run.update({"log": ["three"]})
    await run.update(None, as_node=END)
    await run.invoke({"log": ["four"]})


@scenario
async def update_a_fresh_thread(run: Any) -> None:
    run.compile(line("a", "b"))
    await run.update({"log": ["first of all"]}, as_node="__start__")
    await run.state()
    await run.invoke(None)
    await run.update({"log": ["input"]}, at("other"), as_node="__input__")
    await run.invoke(None, at("other"))


@scenario
async def several_updates_at_once(run: Any) -> None:
    run.compile(line("a", "b", "c"))
    await run.bulk_update([
        [StateUpdate({"log": ["in"]}, "__input__")],
        [StateUpdate({"log": ["start"]}, "__start__")],
        [StateUpdate({"log": ["by a"], "last": 1}, "a")],
        [StateUpdate({"log": ["by b"]}, "b")],
    ])  # fmt: skip
    await run.invoke(None)
    await run.bulk_update([[StateUpdate({"log": ["b"]}, "b"), StateUpdate({"log": ["c"]}, "c")]])
    await run.invoke({"log": ["after"]})


@scenario(durabilities=STEPPED)
async def copy_a_checkpoint(run: Any) -> None:
    await two_turns(run)
    copied = await run.update(None, await run.before("b"), as_node="__copy__")
    await run.state(copied)
    await run.invoke(None, copied)
    await run.update(None, as_node="__copy__")
    await run.state()
    await run.invoke({"log": ["three"]})


@scenario(durabilities=STEPPED)
async def copy_and_update_at_once(run: Any) -> None:
    await two_turns(run)
    again = [StateUpdate({"log": ["another a"]}, "a")]
    forked = await run.update(again, await run.before("a"), as_node="__copy__")
    await run.invoke(None, forked)


@scenario
async def run_on_where_nothing_is_left_to_do(run: Any) -> None:
    await two_turns(run)
    await run.invoke(None)
    await run.fail(None, at("a thread that never was"))


@scenario
async def history_in_parts(run: Any) -> None:
    await two_turns(run)
    states = await run.history(limit=2)
    await run.history(before=states[-1].config)
    await run.history(before=states[-1].config, limit=1)
    await run.history(filter={"source": "input"})
    await run.history(filter={"source": "loop", "step": 1})
    await run.history(limit=0)
    await run.history(states[-1].config)
