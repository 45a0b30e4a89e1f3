"""Another process does something with a thread whose guard is held.

Deletions win: the run is refused, and nothing comes back. Everything else leaves the lease, and the
run continues.
"""

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from kit.backends import SHARED, open_backend
from kit.graphs import linear
from kit.guards import die
from kit.places import at
from langgraph.checkpoint.sqlite import SqliteSaver as TheirSqliteSaver
from langgraph.types import interrupt

from threadkeep import Retention, guard, open_saver
from threadkeep.errors import LeaseLostError, ThreadDeletedError, ThreadLockedError


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    page: str


class NodeError(Exception):
    """An error of a node."""


def says(_: State) -> Any:
    return {"log": ["a"], "page": "x" * 3000}


def graph_on(saver: Any) -> Any:
    return linear(saver, State, a=says)


def asking(saver: Any) -> Any:
    return linear(saver, State, ask=lambda _: {"log": [interrupt("May I?")]})


INPUT: Any = {"log": ["q"]}


def updates(saver: Any) -> None:
    saver.threads.update("thread", metadata={"user": "u"})
    saver.threads.tag("thread", "mine")


def streams(saver: Any) -> None:
    with saver.streaming(at(), max_bytes=1) as stream:
        stream.update("text")


def submits(saver: Any) -> None:
    saver.runs.submit(graph_on(saver), "thread", INPUT)


def answers(saver: Any) -> None:
    (one,) = saver.threads.interrupts("thread")
    saver.threads.answer("thread", {one.id: "yes"}, resume=True)


def removes(saver: Any) -> None:
    *_, oldest = saver.list(at())
    saver.delete_checkpoints("thread", [oldest.checkpoint["id"]])


def restores(saver: Any) -> None:
    saver.threads.archive("thread")
    saver.threads.restore("thread")


def limits(saver: Any) -> None:
    saver.threads.gc(Retention(ttl=0.000001, max_count=1))


KEEPS: dict[str, Callable[[Any], Any]] = {
    "forked": lambda saver: saver.threads.fork("thread", None, "other"),
    "copied": lambda saver: saver.copy_thread("thread", "other"),
    "edited": lambda saver: saver.threads.edit("thread", {"page": "edited"}),
    "updated by a graph": lambda saver: graph_on(saver).update_state(at(), {"page": "updated"}),
    "its entry updated": updates,
    "streamed": streams,
    "an input submitted": submits,
    "archived": lambda saver: saver.threads.archive("thread"),
    "archived and restored": restores,
    "offloaded": lambda saver: saver.threads.offload("thread", over=1024),
    "pruned": lambda saver: saver.prune(["thread"]),
    "a checkpoint removed": removes,
    "collected": lambda saver: saver.threads.gc(Retention(keep_last=1)),
    "limited": limits,
    "released": lambda saver: saver.runs.release("thread"),
}
DELETES: dict[str, Callable[[Any], Any]] = {
    "deleted": lambda saver: saver.delete_thread("thread"),
    "pruned": lambda saver: saver.prune(["thread"], strategy="delete"),
    "erased": lambda saver: saver.threads.erase("thread"),
    "own ttl": lambda saver: (
        saver.threads.update("thread", ttl=0.000001),
        saver.threads.gc(Retention(keep_last=9)),
    ),
}


@pytest.fixture(params=SHARED)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Two savers on one store, as of two processes."""
    cold = (tmp_path / "cold").as_uri()
    with (
        open_backend(request.param, tmp_path, cold=cold) as one,
        open_backend(request.param, tmp_path, cold=cold) as two,
    ):
        yield one, two


@pytest.mark.drawn(6)
@pytest.mark.parametrize("what", KEEPS)
def test_the_run_continues(pair: Any, what: str) -> None:
    ours, other = pair
    graph = graph_on(ours)
    with guard(ours, "thread", worker="me") as held:
        graph.invoke(INPUT, held.config)
        KEEPS[what](other)
        found = other.threads.get("thread")
        assert (found.status, found.worker) == ("running", "me")
        with pytest.raises(ThreadLockedError), guard(other, "thread"):
            pass
        result = graph.invoke(INPUT, held.config)
        assert result["log"] == ["q", "a"] * 2
        assert graph.get_state(at()).values == result
        assert not held.lost
    assert ours.threads.get("thread").worker is None
    for one in ours.threads.search():
        if one.id == "other":
            assert (one.worker, one.status, one.attempts) == (None, "done", 0)
    with guard(other, "thread"):
        pass
    assert ours.check().ok


@pytest.mark.drawn(2)
@pytest.mark.parametrize("what", DELETES)
def test_deletions_win(pair: Any, what: str) -> None:
    ours, other = pair
    graph = graph_on(ours)

    def run() -> None:
        with guard(ours, "thread") as held:
            graph.invoke(INPUT, held.config)
            submits(other)
            DELETES[what](other)
            graph.invoke(INPUT, held.config)

    with pytest.raises((ThreadDeletedError, LeaseLostError)):
        run()
    assert list(ours.list(at())) == []
    assert [one.id for one in other.runs.unfinished()] == []
    assert ours.runs.resume(graph, "thread") is None
    assert other.threads.search().threads == ()
    with guard(other, "thread") as held:
        assert graph_on(other).invoke(INPUT, held.config)["log"] == ["q", "a"]
    assert ours.check().ok


def test_an_answer_beside_a_guard(pair: Any) -> None:
    """It is to be resumed once the run that asked has left its guard."""
    ours, other = pair
    graph = asking(ours)
    with guard(ours, "thread", worker="me") as held:
        graph.invoke(INPUT, held.config)
        answers(other)
        assert other.threads.get("thread").worker == "me"
    assert [one.id for one in other.runs.unfinished()] == ["thread"]
    assert ours.runs.resume(graph, "thread") == {"log": ["q", "yes"]}


def test_retention_keeps_what_is_to_be_resumed(pair: Any) -> None:
    """Until it is done."""
    ours, other = pair
    graph = graph_on(ours)
    ours.runs.submit(graph, "input", INPUT)
    graph.invoke(INPUT, at("dead"))
    die(ours, "dead")
    graph.invoke(INPUT, at("done"))
    other.threads.gc(Retention(ttl=0.000001))
    assert sorted(one.id for one in other.threads.search()) == ["dead", "input"]
    for thread in ("input", "dead"):
        ours.runs.resume(graph, thread)
    other.threads.gc(Retention(ttl=0.000001))
    assert other.threads.search().threads == ()


@pytest.mark.parametrize("what", ["forked", "copied"])
def test_stored_inputs_run_in_their_own_thread(pair: Any, what: str) -> None:
    ours, other = pair
    graph = graph_on(ours)
    graph.invoke(INPUT, at())
    submits(other)
    KEEPS[what](other)
    assert [one.id for one in ours.runs.unfinished()] == ["thread"]
    assert other.runs.resume(graph_on(other), "other") is None
    assert ours.runs.resume(graph, "thread")["log"] == ["q", "a"] * 2
    assert ours.check().ok


def test_an_archive_keeps_stored_inputs(pair: Any) -> None:
    ours, other = pair
    graph = graph_on(ours)
    graph.invoke(INPUT, at())
    submits(other)
    ours.threads.archive("thread")
    assert [one.id for one in other.runs.unfinished()] == ["thread"]
    assert other.runs.resume(graph_on(other), "thread")["log"] == ["q", "a"] * 2
    ours.threads.archive("thread")
    submits(other)
    assert ours.runs.resume(graph, "thread")["log"] == ["q", "a"] * 3
    assert ours.check().ok


def test_a_thread_that_is_taken_over_from_langgraph(tmp_path: Path) -> None:
    """While its guard is held: before it is copied, and after a program there has continued it."""
    theirs = tmp_path / "theirs.db"
    with TheirSqliteSaver.from_conn_string(str(theirs)) as old:
        old.setup()
        graph_on(old).invoke(INPUT, at())
        url = f"sqlite:///{tmp_path / 'threads.db'}"
        with open_saver(url, migrate_from=str(theirs)) as ours, open_saver(url) as other:
            graph = graph_on(ours)
            with guard(ours, "thread", worker="me") as held:
                assert graph.get_state(at()).values["log"] == ["q", "a"]
                assert graph.invoke(INPUT, held.config)["log"] == ["q", "a"] * 2
                graph_on(old).invoke(INPUT, at())
                graph.get_state(at())
                assert other.threads.get("thread").worker == "me"
                graph.invoke(INPUT, held.config)
            assert other.threads.get("thread").worker is None
            assert ours.runs.submit(graph, "thread", INPUT).is_taken is False
            assert ours.runs.resume(graph, "thread")["log"][-2:] == ["q", "a"]


@pytest.mark.parametrize("submits_first", [False, True])
def test_a_failed_thread_of_langgraph_is_resumed(tmp_path: Path, submits_first: bool) -> None:
    """It is copied first, also if `submit` or `resume` are the first to ask for it."""

    def fails(_: State) -> Any:
        if not is_over:
            raise NodeError
        return says(_)

    is_over = False
    theirs = tmp_path / "theirs.db"
    with TheirSqliteSaver.from_conn_string(str(theirs)) as old:
        old.setup()
        with pytest.raises(NodeError):
            linear(old, State, a=fails).invoke(INPUT, at())
    is_over = True
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    with open_saver(url, migrate_from=str(theirs)) as ours:
        graph = linear(ours, State, a=fails)
        if submits_first:
            ours.runs.submit(graph, "thread", INPUT)
        found = ours.runs.resume(graph, "thread")
        assert found["log"] == ["q", "a"] * (1 + submits_first)
