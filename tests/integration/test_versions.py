"""`saver.threads.versions`: the history of one channel, on every backend by both APIs."""

import operator
from typing import Annotated, Any

import pytest
from kit.graphs import linear
from kit.places import THREAD, at
from kit.rows import aput, place
from langgraph.types import Overwrite
from typing_extensions import TypedDict

from threadkeep.errors import CheckpointNotFoundError, InvalidArgumentError, ThreadNotFoundError

from . import delta_spec


class State(TypedDict, total=False):
    log: Annotated[list, operator.add]
    note: str


def graph(saver: Any) -> Any:
    return linear(
        saver,
        State,
        a=lambda s: {"log": [f"a{len(s['log'])}"]},
        b=lambda s: {"note": f"{len(s['log'])} lines"},
    )


def ids(found: Any) -> list[str]:
    return [one.checkpoint for one in found]


async def expected(saver: Any, channel: str, config: Any) -> list[Any]:
    """Version and checkpoint, oldest first, found by reading whole states."""
    path: list[Any] = []
    while config is not None:
        found = await saver.aget_tuple(config)
        if found is None:
            break
        path.insert(0, found.checkpoint)
        config = found.parent_config
    told: list[Any] = []
    last = None
    for checkpoint in path:
        version = checkpoint["channel_versions"].get(channel)
        if version is not None and version != last:
            told.append((version, checkpoint["id"], checkpoint["ts"]))
        last = version
    return told[::-1]


def told(found: Any) -> list[Any]:
    return [(one.version, one.checkpoint, one.time) for one in found]


@pytest.mark.parametrize("channel", ["log", "note", "__start__", "branch:to:b"])
async def test_as_a_walk_over_whole_states_tells(look: Any, channel: str) -> None:
    made = graph(look.saver)
    for turn in range(4):
        await made.ainvoke({"log": [f"turn {turn}"]}, at())
    found = await look("versions", THREAD, channel, limit=None)
    assert told(found) == await expected(look.saver, channel, at())
    assert len(found) >= 4
    assert all(one.is_first for one in found)
    assert await look("versions", THREAD, channel, limit=3) == found[:3]
    assert await look("versions", THREAD, channel, limit=0) == []


async def test_ten_at_most_unless_asked_for_more(look: Any) -> None:
    config = place()
    for number in range(1, 16):
        config = await aput(look.saver, config, {"v": number}, v=number)
    found = await look("versions", THREAD, "v")
    assert [one.version for one in found] == list(range(15, 5, -1))


async def test_it_tells_step_and_source(look: Any) -> None:
    made = graph(look.saver)
    await made.ainvoke({"log": ["turn"]}, at())
    await made.aupdate_state(at(), {"note": "by hand"})
    newest, older = await look("versions", THREAD, "note")
    assert (newest.source, newest.step) == ("update", 3)
    assert (older.source, older.step) == ("loop", 2)
    assert newest.has_value


async def test_only_the_branch_of_the_checkpoint_asked_for(look: Any) -> None:
    made = graph(look.saver)
    await made.ainvoke({"log": ["turn"]}, at())
    old = (await made.aget_state(at())).config
    left = await made.aupdate_state(old, {"log": Overwrite(["left"])})
    right = await made.aupdate_state(old, {"log": ["right"]})
    branch = left["configurable"]["checkpoint_id"]
    assert told(await look("versions", THREAD, "log", limit=None)) == await expected(
        look.saver, "log", right
    )
    found = await look("versions", THREAD, "log", limit=None, checkpoint_id=branch)
    assert told(found) == await expected(look.saver, "log", left)
    assert right["configurable"]["checkpoint_id"] not in ids(found)


async def test_a_channel_that_goes_away_and_comes_back(look: Any) -> None:
    config = place()
    for versions in ({"v": 1}, {"v": 1}, {}, {"v": 1}, {"v": 1.0}):
        config = await aput(look.saver, config, **versions)
    found = await look("versions", THREAD, "v")
    assert [(one.version, type(one.version)) for one in found] == [(1.0, float), (1, int), (1, int)]
    assert not any(one.has_value for one in found)


async def test_what_was_pruned_is_not_taken_for_the_first(look: Any) -> None:
    made = graph(look.saver)
    await made.ainvoke({"log": ["turn"]}, at())
    await look.saver.aprune([THREAD])
    (found,) = await look("versions", THREAD, "log")
    head = await look.saver.aget_tuple(at())
    assert found.checkpoint == head.checkpoint["id"]
    assert not found.is_first
    (note,) = await look("versions", THREAD, "note")
    assert not note.is_first  # (its parent was removed, so this is unknown)


async def test_hidden_ancestors_tell_what_is_first(look: Any) -> None:
    made = await delta_spec.chat(look.saver, 3)
    before = await look("versions", THREAD, "turns", limit=None)
    assert [one.is_first for one in before] == [True] * 3
    await look.saver.aprune([THREAD])
    (left,) = await look("versions", THREAD, "turns", limit=None)
    assert left.version == before[0].version
    assert not left.is_first
    await made.ainvoke({"log": ["again"]}, at())
    newest, same = await look("versions", THREAD, "turns", limit=None)
    assert newest.is_first
    assert same == left


async def test_subgraphs_have_namespaces_of_their_own(look: Any) -> None:
    inner = graph(True)
    await linear(look.saver, State, inner=inner).ainvoke({"log": ["turn"]}, at())
    namespaces = {c.config["configurable"]["checkpoint_ns"] for c in look.saver.list(at())}
    (ns,) = namespaces - {""}
    found = await look("versions", THREAD, "note", checkpoint_ns=ns)
    assert len(found) == 1
    assert found[0].checkpoint not in ids(await look("versions", THREAD, "note"))


async def test_a_path_that_leads_back_to_itself_ends(look: Any) -> None:
    own = (await aput(look.saver, place(), {"v": 1}, v=1))["configurable"]["checkpoint_id"]
    made = {"v": 1, "id": own, "ts": "", "channel_values": {}, "channel_versions": {"v": 2}}
    await look.saver.aput(place(checkpoint=own), {**made, "versions_seen": {}}, {}, {})
    (found,) = await look("versions", THREAD, "v", limit=None)
    assert found.version == 2
    assert (found.step, found.source) == (None, None)


async def test_what_is_not_there(look: Any) -> None:
    await aput(look.saver, place(), {"v": 1}, v=1)
    assert await look("versions", THREAD, "unheard of") == []
    error = await look.refuses(ThreadNotFoundError, "versions", "nobody", "v")
    assert error.thread == "nobody"
    await look.refuses(ThreadNotFoundError, "versions", THREAD, "v", checkpoint_ns="nowhere")
    await look.refuses(CheckpointNotFoundError, "versions", THREAD, "v", checkpoint_id="none")
    await look.saver.adelete_thread(THREAD)
    await look.refuses(ThreadNotFoundError, "versions", THREAD, "v")


async def test_wrong_arguments(look: Any) -> None:
    for arguments in (("t", 1), ("t", "v", 1), ("t", "v", "", -1), ("\ud800", "v")):
        await look.refuses(InvalidArgumentError, "versions", *arguments)
