"""A server carries out a request, and its answer is lost: the client repeats the request.

Meanwhile another process may have gone on with the thread, also by more commits than the thread's
row names. Nothing is stored or deleted twice.
"""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit.backends import open_backend
from kit.engine import Chain, config, everything, run_config
from kit.runs import Plain
from kit.sync_face import FACES, SyncFace
from langgraph.checkpoint.serde.types import RESUME
from langgraph.graph import START, StateGraph

from threadkeep._core.engine.model import ReadThread
from threadkeep._core.engine.tips import MOST

AT = config()
LONG = "x" * 100


class Repeated:
    """Repeats each request of a saver once, as after a lost answer; `between` runs in between."""

    def __init__(self, saver: Any) -> None:
        self.between: Callable[[], object] = int
        backend = saver.backend
        for face in (getattr(backend, "face", backend), backend.asynchronous):
            if face is not None:
                face.retried = partial(self._repeat, face.count_retry)

    async def _repeat(
        self, count: Callable[[], None], call: Callable[[], Awaitable[Any]], *_: object
    ) -> Any:
        await call()
        self.between()
        count()
        return await call()


@pytest.fixture(params=["postgres", "redis", "mysql"])
def savers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A saver whose requests are repeated, and one of another process."""
    with (
        open_backend(request.param, tmp_path) as saver,
        open_backend(request.param, tmp_path) as other,
    ):
        yield saver, other, Repeated(saver)


def once(is_due: Callable[[], bool], do: Callable[[], object]) -> Callable[[], object]:
    done: list[object] = []

    def between() -> None:
        if not done and is_due():
            done.append(do())

    return between


@pytest.mark.parametrize("face", FACES.values(), ids=FACES)
async def test_what_began_after_a_deletion_stays(savers: Any, face: Any) -> None:
    saver, other, repeated = savers
    chain = Chain(saver)
    chain.put(said=["old", LONG])
    repeated.between = once(
        lambda: other.get_tuple(AT) is None, lambda: Chain(other, start=10).put(said=["new"])
    )
    await face(saver).adelete_thread("t")
    (found,) = everything(other).values()
    assert found["place"] == ("t", "", "00000011")
    assert everything(saver) == everything(other)
    assert [one.id for one in other.threads.search()] == ["t"]
    assert other.check().ok

    repeated.between = int
    await face(saver).adelete_thread("t")
    assert everything(other) == {}
    assert [one.id for one in other.threads.search()] == []


@pytest.mark.parametrize("face", FACES.values(), ids=FACES)
async def test_a_fork_that_was_discarded_stays_gone(savers: Any, face: Any) -> None:
    saver, other, repeated = savers
    Chain(saver).put(said=["old", LONG])
    fork = saver.threads.fork("t").id
    repeated.between = int
    if face is SyncFace:
        gone = saver.threads.discard_fork(fork, delete=True)
    else:
        gone = await saver.threads.adiscard_fork(fork, delete=True)
    assert (gone.id, gone.state) == (fork, "deleted")
    assert [one.id for one in other.threads.search()] == ["t"]
    assert other.check().ok


@pytest.mark.parametrize("face", FACES.values(), ids=FACES)
async def test_a_thread_is_copied_once(savers: Any, face: Any) -> None:
    saver, other, repeated = savers
    Chain(saver).put(said=["old", LONG])
    repeated.between = int
    await face(saver).acopy_thread("t", "copy")
    assert [place[0] for place in everything(other)] == ["copy", "t"]
    assert everything(saver) == everything(other)
    assert other.check().ok


@pytest.mark.parametrize("commits", [0, 1, MOST + 4])
@pytest.mark.parametrize("face", FACES.values(), ids=FACES)
async def test_a_save_is_stored_once(savers: Any, face: Any, commits: int) -> None:
    saver, other, repeated = savers
    mine, theirs = Chain(saver), Chain(other, start=10)
    first = mine.put(said=["old", LONG])

    def go_on() -> None:
        theirs.follow()
        for number in range(commits):
            theirs.put(said=[*theirs.values["said"], f"{number} {LONG}"])

    await face(saver).aput_writes(first, [("said", [LONG])], "task")
    given = mine.arguments(said=["old", LONG, "new"])
    repeated.between = once(lambda: other.get_tuple(AT).checkpoint["id"] == "00000002", go_on)
    saved = await face(saver).aput(*given)
    there = everything(other)
    assert there == everything(saver)
    assert [len(one["writes"]) for one in there.values()] == [0] * (commits + 1) + [1]
    assert other.get_tuple(saved).checkpoint["channel_values"] == {"said": ["old", LONG, "new"]}
    assert len(other.get_tuple(AT).checkpoint["channel_values"]["said"]) == 3 + commits
    assert other.check().ok


@pytest.mark.parametrize("commits", [1, MOST + 4])
@pytest.mark.parametrize("face", FACES.values(), ids=FACES)
async def test_a_later_answer_stays(savers: Any, face: Any, commits: int) -> None:
    saver, other, repeated = savers
    Chain(saver).put(said=["old"])
    at = (await face(saver).aget_tuple(run_config())).config

    def go_on() -> None:
        for number in range(commits):
            other.put_writes(at, [(RESUME, [number])], "task")

    repeated.between = once(lambda: other.get_tuple(AT).pending_writes, go_on)
    await face(saver).aput_writes(at, [(RESUME, ["first"])], "task")
    assert other.get_tuple(AT).pending_writes == [("task", RESUME, [commits - 1])]
    (rows,) = other.backend.fetch([ReadThread("t")])
    assert len(rows.checkpoints[0].writes) == commits + 1


def test_a_write_that_a_program_repeats_counts(savers: Any) -> None:
    theirs, saver, _ = savers
    at = Chain(saver).put(said=["old"])
    saver.put_writes(at, [(RESUME, ["yes"])], "task")
    for _ in range(MOST + 4):
        theirs.put_writes(at, [(RESUME, ["no"])], "task")
    saver.put_writes(at, [(RESUME, ["yes"])], "task")
    assert theirs.get_tuple(AT).pending_writes == [("task", RESUME, ["yes"])]


@pytest.mark.parametrize("face", FACES.values(), ids=FACES)
async def test_an_input_that_was_run_meanwhile_runs_once(savers: Any, face: Any) -> None:
    saver, other, repeated = savers
    names = [f"node {number}" for number in range(MOST)]
    builder = StateGraph(Plain)
    builder.add_sequence([(name, lambda _, name=name: {"log": [name]}) for name in names])
    builder.add_edge(START, names[0])
    mine, theirs = (builder.compile(checkpointer=one) for one in (saver, other))
    repeated.between = once(
        lambda: [*other.runs.unfinished()], lambda: other.runs.resume(theirs, "t")
    )
    if face is SyncFace:
        stored = saver.runs.submit(mine, "t", {"log": ["in"]})
    else:
        stored = await saver.runs.asubmit(mine, "t", {"log": ["in"]})
    repeated.between = int
    assert stored.is_taken
    assert [*other.runs.unfinished()] == []
    assert theirs.get_state(AT).values == {"log": ["in", *names]}
