"""Retention on every store: graphs continue after a collection."""

import operator
import random
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from kit.engine import bytes_held
from kit.graphs import linear
from kit.places import at
from kit.rows import checkpoint, metadata
from kit.runs import Delta, Gate, Run, extend, story, told
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from threadkeep import MemorySaver, Retention
from threadkeep._core.engine.model import ReadThread
from threadkeep._core.engine.operation import fetch
from threadkeep.errors import CheckpointNotFoundError, InvalidArgumentError, ThreadNotFoundError
from threadkeep.threads import GcReport, Mark
from threadkeep.threads.retention import gc


class State(TypedDict):
    said: Annotated[list[str], operator.add]


def _ask(state: State) -> dict[str, Any]:
    said = state["said"][-1]
    return {"said": [interrupt("and then?") if said.endswith("?") else f"yes, {said}"]}


def _talk(saver: Any, *, inner: Any = None) -> Any:
    """A graph of one step that answers, or interrupts if asked to."""
    return linear(saver, State, answer=inner or _ask)


def _chat(saver: Any, thread: str = "thread", turns: int = 4, **options: Any) -> Any:
    graph = _talk(saver, **options)
    for turn in range(turns):
        graph.invoke({"said": [f"{turn} " + "x" * 300]}, at(thread))
    return graph


def _ids(graph: Any, thread: str = "thread") -> list[str]:
    states = graph.get_state_history(at(thread))
    return [s.config["configurable"]["checkpoint_id"] for s in states]


def _gc(saver: Any, policy: Retention | None = None) -> GcReport:
    """Collect; a dry run before reports the same, and a second run does nothing."""
    before = {one.id: one.bytes for one in saver.threads.scan()}
    dry = saver.threads.gc(policy, dry_run=True)
    assert {one.id: one.bytes for one in saver.threads.scan()} == before
    done = saver.threads.gc(policy)
    assert dry.threads == done.threads
    after = {one.id: one.bytes for one in saver.threads.scan()}
    for one in done.threads:
        assert before[one.thread] - after.get(one.thread, 0) == one.bytes
        assert (one.deleted is not None) == (one.thread not in after)
    for name, size in after.items():
        assert bytes_held(saver, name) == size
    assert saver.check().ok
    again = saver.threads.gc(policy)
    assert again.threads == ()
    return done


def test_one_that_was_put_again_elsewhere_is_not_read_each_time(
    saver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size counts twice until the next collection."""
    made = checkpoint({"said": ["x" * 300]}, said=1)
    place: Any = {"configurable": {"thread_id": "again", "checkpoint_ns": ""}}
    for _ in range(2):
        saver.put(place, made, metadata(), made["channel_versions"])
        saver.clear_cache()
    read, thin = [], gc.thin
    monkeypatch.setattr(gc, "thin", lambda *args, **more: read.append(args) or thin(*args, **more))
    for count in (1, 1):
        saver.threads.gc(Retention(keep_last=1))
        assert len(read) == count


# -- checkpoints -----------------------------------------------------------------------


def test_the_newest_checkpoints_stay(saver: Any) -> None:
    graph = _chat(saver)
    before = _ids(graph)
    state = graph.get_state(at())
    found = _gc(saver, Retention(keep_last=3))
    assert _ids(graph) == before[:3]
    assert (found.checkpoints, found.examined) == (len(before) - 3, 1)
    assert found.bytes == sum(one.bytes for one in found.threads) > 0
    assert graph.get_state(at()) == state
    graph.invoke({"said": ["more"]}, at())
    assert len(graph.get_state(at()).values["said"]) == 10


def test_the_ends_of_turns_and_runs_stay(saver: Any) -> None:
    graph = _chat(saver)
    _gc(saver, Retention(keep="turn_ends"))
    found = list(graph.get_state_history(at()))
    assert [len(state.values["said"]) for state in found] == [8, 6, 4, 2]
    _gc(saver, Retention(keep="turn_ends", keep_last=2))
    assert [len(s.values["said"]) for s in graph.get_state_history(at())] == [8, 6]
    for turn in range(3):
        graph.invoke({"said": ["and"]}, {**at("runs"), "metadata": {"run_id": f"{turn}"}})
    _gc(saver, Retention(keep="run_ends"))
    found = list(graph.get_state_history(at("runs")))
    assert [(len(s.values["said"]), s.metadata["run_id"]) for s in found] == [
        *((6, "2"), (4, "1"), (2, "0"))
    ]


def test_a_thread_is_made_to_fit(saver: Any) -> None:
    graph = _chat(saver, turns=12)
    before, whole = _ids(graph), bytes_held(saver, "thread")
    _gc(saver, Retention(max_bytes=whole // 2))
    left = _ids(graph)
    assert left == before[: len(left)]
    assert 1 < len(left) < len(before)
    assert bytes_held(saver, "thread") <= whole // 2
    saver.threads.gc(Retention(max_bytes=0))
    assert _ids(graph) == before[:1]


def test_an_interrupt_is_waited_for(saver: Any) -> None:
    graph = _talk(saver)
    graph.invoke({"said": ["well?"]}, at())
    waiting = graph.get_state(at()).config
    _gc(saver, Retention(keep_last=1))
    graph.update_state(graph.get_state(at()).config, {"said": ["never mind"]}, as_node="answer")
    graph.invoke({"said": ["well?"]}, at())
    _gc(saver, Retention(keep_last=1))
    assert len(_ids(graph)) == 1
    graph.invoke(Command(resume="this"), at())
    assert graph.get_state(at()).values["said"][-2:] == ["well?", "this"]
    assert saver.get_tuple(waiting) is None


def test_subgraphs_go_with_their_task(saver: Any) -> None:
    graph = _chat(saver, inner=_talk(None))
    graph.invoke({"said": ["well?"]}, at())

    def spaces() -> set[str]:
        rows = saver._store.run(fetch(ReadThread("thread")))
        return {s.row.ns for s in rows.checkpoints}

    assert len(spaces()) == 1 + 5
    _gc(saver, Retention(keep_last=1))
    assert len(spaces()) == 2
    graph.invoke(Command(resume="this"), at())
    assert graph.get_state(at()).values["said"][-1] == "this"


@pytest.mark.parametrize("limits", [{"keep_last": 1}, {"keep": "turn_ends"}, {"max_bytes": 1500}])
def test_deltas_are_rebuilt(saver: Any, limits: Any) -> None:
    graph = story(saver, Delta)
    for turn in range(6):
        graph.invoke({"log": [f"{turn}"]}, at())
    before = {s.config["configurable"]["checkpoint_id"]: s for s in graph.get_state_history(at())}
    _gc(saver, Retention(**limits))
    left = list(graph.get_state_history(at()))
    assert len(left) < len(before)
    for state in left:
        assert state.values == before[state.config["configurable"]["checkpoint_id"]].values
    graph.invoke({"log": ["more"]}, at())
    assert graph.get_state(at()).values["log"] == told(*map(str, range(6)), "more")


# -- protection of threads, and policies of single threads -----------------------------


def test_a_pinned_thread_is_left_alone(saver: Any) -> None:
    graph = _chat(saver)
    saver.threads.pin("thread")
    policy = Retention(keep_last=1, ttl=timedelta(microseconds=1), max_count=0)
    assert _gc(saver, policy).threads == ()
    saver.threads.unpin("thread")
    assert _gc(saver, Retention(keep_last=1)).checkpoints == 11
    assert len(_ids(graph)) == 1


def test_a_thread_may_keep_something_else(saver: Any) -> None:
    own = Retention(keep_last=5, max_age=timedelta(days=1))
    graph = _chat(saver)
    _chat(saver, "other")
    assert saver.threads.retain("thread", own).retention == own
    found = saver.threads.get("thread")
    assert found.retention == own
    assert found.as_json()["retention"] == {"v": 1, "keep_last": 5, "max_age": 86400.0}
    assert saver.threads.get("other").retention is None
    _gc(saver, Retention(keep_last=2))
    assert (len(_ids(graph)), len(_ids(graph, "other"))) == (5, 2)
    assert saver.threads.retain("thread", None).retention is None
    _gc(saver, Retention(keep_last=2))
    assert len(_ids(graph)) == 2
    saver.threads.tag("thread", "a tag")
    assert saver.threads.get("thread").tags == ("a tag",)


def test_without_a_policy_only_what_was_said_of_threads_counts(saver: Any) -> None:
    graph = _chat(saver)
    _chat(saver, "other")
    saver.threads.retain("other", Retention(keep_last=1))
    assert {one.thread for one in _gc(saver).threads} == {"other"}
    assert len(_ids(graph)) == 12


def test_what_cannot_be_said_is_refused(ours: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="policy"):
        ours.threads.gc({"keep_last": 1})
    _chat(ours, turns=1)
    with pytest.raises(InvalidArgumentError, match="max_count"):
        ours.threads.retain("thread", Retention(max_count=1))
    with pytest.raises(ThreadNotFoundError):
        ours.threads.retain("absent", Retention(keep_last=1))


# -- threads ---------------------------------------------------------------------------

MOMENT = timedelta(microseconds=1)


def test_threads_that_rested_go(saver: Any) -> None:
    graph = _chat(saver, "one")
    _chat(saver, "tagged")
    saver.threads.tag("tagged", "vip")
    graph.invoke({"said": ["well?"]}, at("waiting"))
    assert _gc(saver, Retention(ttl=3600)).threads == ()
    found = _gc(saver, Retention(ttl=MOMENT))
    assert found.deleted == ("one",)
    assert [one.deleted for one in found.threads] == ["ttl"]
    assert (saver.threads.get("one").state, saver.get_tuple(at("one"))) == ("deleted", None)
    assert _gc(saver, Retention(ttl=MOMENT, keep_tagged=False)).deleted == ("tagged",)
    assert saver.threads.get("waiting").status == "waiting"
    graph.invoke({"said": ["again"]}, at("one"))
    assert saver.threads.get("one").state == "active"


@pytest.mark.parametrize("limit", [{"ttl": MOMENT}, {"max_count": 1}])
def test_a_question_is_kept_in_forks_and_archives(tmp_path: Path, limit: Any) -> None:
    with MemorySaver(cold=(tmp_path / "cold").as_uri()) as saver:
        graph = _chat(saver, "asked", turns=1)
        graph.invoke({"said": ["well?"]}, at("asked"))
        saver.threads.fork("asked", new_thread_id="fork")
        saver.copy_thread("asked", "archived")
        saver.threads.archive("archived")
        _chat(saver, "other", turns=1)
        assert saver.threads.gc(Retention(**limit)).deleted == ("other",)
        for thread in ("asked", "fork", "archived"):
            assert saver.threads.get(thread).status == "waiting"
            answered = graph.invoke(Command(resume="fine"), at(thread))
            assert answered["said"][-1] == "fine"
            assert saver.threads.get(thread).status == "done"


def test_a_ttl_of_its_own_counts_first(saver: Any) -> None:
    saver.threads.create("short", ttl=MOMENT, tags=["vip"])
    saver.threads.create("long", ttl=3600)
    saver.threads.create("pinned", ttl=MOMENT)
    saver.threads.pin("pinned")
    for thread in ("short", "long", "pinned", "none"):
        _chat(saver, thread, turns=1)
    assert _gc(saver).deleted == ("short",)
    assert _gc(saver, Retention(ttl=MOMENT)).deleted == ("none",)


def test_the_threads_that_are_too_many_go(saver: Any) -> None:
    for number in range(5):
        _chat(saver, f"{number}", turns=1)
        saver.threads.create(f"empty {number}")
        saver.delete_thread(f"empty {number}")
    saver.threads.tag("0", "vip")
    order = [one.id for one in saver.threads.search(order="updated_at").threads]
    found = _gc(saver, Retention(max_count=3))
    assert found.deleted == tuple(name for name in order if name != "0")[:2]
    assert {one.deleted for one in found.threads} == {"max_count"}
    both = Retention(max_count=1, ttl=MOMENT)
    assert set(_gc(saver, both).deleted) == {"1", "2", "3", "4"} - set(found.deleted)


# -- while runs are under way ----------------------------------------------------------


@pytest.mark.parametrize("schema", ["plain", "delta"])
def test_a_run_goes_on_over_a_collection(saver: Any, schema: str) -> None:
    gates = {"2-first": Gate(), "2-second": Gate()}
    graph = story(saver, Delta, gates) if schema == "delta" else story(saver, gates=gates)
    for who in ("0", "1"):
        graph.invoke({"log": [who]}, at())
    run = Run(graph.invoke, {"log": ["2"]}, at(), durability="sync")
    for gate in gates.values():
        gate.wait_until_reached()
        assert saver.threads.gc(Retention(keep_last=1)).skipped == ()
        assert saver.check().ok
        gate.open()
    assert run.finish()["log"] == told("0", "1", "2")
    assert graph.get_state(at()).values["log"] == told("0", "1", "2")
    assert saver.check().ok


# -- tags and pins of checkpoints ------------------------------------------------------


def test_marked_checkpoints_stay(saver: Any) -> None:
    graph = _chat(saver)
    ids = _ids(graph)
    saver.threads.tag("thread", "release", "best", checkpoint_id=ids[5])
    saver.threads.pin("thread", checkpoint_id=ids[8])
    _gc(saver, Retention(keep_last=1))
    assert _ids(graph) == [ids[0], ids[5], ids[8]]
    found = saver.threads.get("thread")
    assert found.marks == (
        Mark("", ids[8], (), pinned=True),
        Mark("", ids[5], ("best", "release"), pinned=False),
    )
    assert found.as_json()["marks"][1] == {
        "ns": "",
        "checkpoint": ids[5],
        "tags": ["best", "release"],
        "pinned": False,
    }
    assert (found.tags, found.pinned) == ((), False)
    assert saver.threads.search(tags=["best"]).threads == ()
    _gc(saver, Retention(keep_last=1, keep_tagged=False))
    assert _ids(graph) == [ids[0], ids[8]]
    saver.threads.unpin("thread", checkpoint_id=ids[8])
    saver.threads.untag("thread", "best", "release", checkpoint_id=ids[5])
    assert saver.threads.get("thread").marks == ()
    _gc(saver, Retention(keep_last=1))
    assert _ids(graph) == ids[:1]


def test_pruning_keeps_what_is_marked(saver: Any) -> None:
    graph = _chat(saver)
    ids = _ids(graph)
    saver.threads.pin("thread", checkpoint_id=ids[3])
    saver.threads.tag("thread", "try", checkpoint_id=ids[5])
    saver.prune(["thread"])
    assert _ids(graph) == [ids[0], ids[3], ids[5]]
    saver.threads.pin("thread")
    saver.threads.unpin("thread", checkpoint_id=ids[3])
    saver.prune(["thread"])
    assert _ids(graph) == [ids[0], ids[3], ids[5]]
    saver.threads.unpin("thread")
    saver.prune(["thread"])
    assert _ids(graph) == [ids[0], ids[5]]


def test_marks_do_not_outlive_a_thread_and_are_copied_with_it(saver: Any) -> None:
    graph = _chat(saver)
    old = _ids(graph)[-1]
    saver.threads.pin("thread", checkpoint_id=old)
    saver.copy_thread("thread", "copy")
    saver.delete_thread("thread")
    assert saver.threads.get("thread").marks == ()
    _gc(saver, Retention(keep_last=1))
    assert _ids(graph, "copy")[-1] == old


async def test_marks_are_awaited_and_refused(saver: Any) -> None:
    graph = _chat(saver, turns=1)
    ids = _ids(graph)
    await saver.threads.atag("thread", "one", checkpoint_id=ids[0])
    await saver.threads.apin("thread", checkpoint_id=ids[0])
    assert saver.threads.get("thread").marks == (Mark("", ids[0], ("one",), pinned=True),)
    await saver.threads.auntag("thread", "one", checkpoint_id=ids[0])
    await saver.threads.aunpin("thread", checkpoint_id=ids[0])
    assert saver.threads.get("thread").marks == ()
    for name, given in (("pin", ()), ("tag", ("a",))):
        call = getattr(saver.threads, name)
        with pytest.raises(CheckpointNotFoundError):
            call("thread", *given, checkpoint_id="absent")
        with pytest.raises(ThreadNotFoundError):
            call("absent", *given, checkpoint_id=ids[0])
    for number in range(200):
        saver.threads.tag("thread", f"{number}", checkpoint_id=ids[0])
    with pytest.raises(InvalidArgumentError, match="at most 200"):
        saver.threads.pin("thread", checkpoint_id=ids[0])
    with pytest.raises(InvalidArgumentError, match="tag"):
        saver.threads.tag("thread", "x" * 1000, checkpoint_id=ids[0])


def test_a_thread_full_of_tags_can_be_collected_and_changed(saver: Any) -> None:
    _chat(saver, turns=2)
    saver.threads.tag("thread", *[f"{number}" for number in range(200)])
    saver.threads.retain("thread", Retention(keep_last=1))
    assert _gc(saver).checkpoints == 5
    assert len(saver.threads.tag("thread", "0").tags) == 200
    assert len(saver.threads.untag("thread", "0").tags) == 199


# -- channels that keep only their latest value -----------------------------------------


class Sketching(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    scratch: bytes
    log: Annotated[list[str], DeltaChannel(extend, list, snapshot_frequency=3)]


def _sketch(saver: Any, turns: int = 5) -> Any:
    """A graph whose every step makes a scratch value of a few kilobytes."""

    def draw(state: Sketching) -> dict[str, Any]:
        number = len(state.get("said", []))
        scratch = random.Random(number).randbytes(4000)
        return {"said": [f"{number}"], "scratch": scratch, "log": [f"{number}"]}

    builder = StateGraph(Sketching).add_sequence([("one", draw), ("two", draw)])
    graph = builder.add_edge(START, "one").compile(checkpointer=saver)
    for turn in range(turns):
        graph.invoke({"said": [f"turn {turn}"], "log": [f"turn {turn}"]}, at())
    return graph


def test_only_the_latest_value_of_a_channel_stays(saver: Any) -> None:
    graph = _sketch(saver)
    before = list(graph.get_state_history(at()))
    pinned = before[7]
    saver.threads.pin("thread", checkpoint_id=pinned.config["configurable"]["checkpoint_id"])
    found = _gc(saver, Retention(channels={"scratch": "latest"}))
    (one,) = found.threads
    assert (one.checkpoints, one.skipped_channels) == (0, ())
    had = [s for s in before if "scratch" in s.values]
    assert one.channel_values == len(had) - 2
    assert one.bytes > 4000 * 6  # (each was made once and is in several checkpoints)
    after = list(graph.get_state_history(at()))
    for was, state in zip(before, after, strict=True):
        whole = state.config in (before[0].config, pinned.config)
        expected = was.values if whole else {k: v for k, v in was.values.items() if k != "scratch"}
        assert state.values == expected
        assert (state.next, state.metadata) == (was.next, was.metadata)
    graph.invoke({"said": ["more"], "log": ["more"]}, at())
    assert len(graph.get_state(at()).values["scratch"]) == 4000
    forked = graph.update_state(after[6].config, {"said": ["apart"]}, as_node="two")
    values = graph.get_state(forked).values
    assert values["said"] == [*after[6].values["said"], "apart"]
    assert "scratch" not in values
    assert saver.check().ok


def test_what_has_no_value_any_more_is_no_delta_channel(saver: Any) -> None:
    graph = _sketch(saver)
    _gc(saver, Retention(channels={"scratch": "latest"}))
    ids = _ids(graph)
    found = saver.threads.diff("thread", ids[5], ids[4]).channels["scratch"]
    assert (found.is_same, found.is_delta) == (True, False)
    _gc(saver, Retention(keep_last=3))
    rows = saver._store.run(fetch(ReadThread("thread")))
    assert len(rows.checkpoints) < 3 + 3 * 3  # what `log` needs, and no more
    assert graph.get_state(at()).values["log"][-1] == "14"


def test_a_delta_channel_is_left_whole(saver: Any) -> None:
    graph = _sketch(saver)
    before = list(graph.get_state_history(at()))
    policy = Retention(channels={"log": "latest", "scratch": "latest", "absent": "latest"})
    (one,) = _gc(saver, policy).threads
    assert one.skipped_channels == ("log",)
    assert one.channel_values > 0
    after = list(graph.get_state_history(at()))
    assert [s.values.get("log") for s in after] == [s.values.get("log") for s in before]
    (said,) = saver.threads.gc(Retention(channels={"log": "latest"})).threads
    assert (said.skipped_channels, said.bytes) == (("log",), 0)


@pytest.mark.parametrize("given", [{"a": "first"}, ["a"], {1: "latest"}, {"__start__": "latest"}])
def test_channels_that_have_no_meaning_are_refused(given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="channels"):
        Retention(channels=given)
