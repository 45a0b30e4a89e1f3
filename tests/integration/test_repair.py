"""Damaged rows on every backend: findings by kind, removal, and graphs that continue."""

import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest
from kit.backends import BACKENDS, SHARED, open_backend
from kit.damage import damaging, rows_of
from kit.engine import everything
from kit.graphs import linear
from kit.places import at
from kit.runs import Delta, Plain, story, told
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from threadkeep import Retention
from threadkeep._core.engine.context import read_manifest
from threadkeep._stores.redis.rows import keys_of
from threadkeep.savers.saver import Saver
from threadkeep.threads import RepairReport
from threadkeep.threads.repair import read_quarantine
from threadkeep.threads.repair.check import Kind

LONG = "x" * 3000


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    text: str


def graph(saver: Any) -> Any:
    def step(state: State) -> State:
        number = len(state["log"])
        return {"log": [f"{number} {LONG}"], "text": f"{number} {'y' * 3000}"}

    return linear(saver, State, one=step, two=step)


class Place(NamedTuple):
    """A store with threads to damage."""

    name: str
    saver: Any
    folder: Path
    harm: Any

    def ids(self, thread: str) -> list[str]:
        """The ids of its checkpoints, oldest first."""
        return [stored.row.id for stored in rows_of(self.saver, thread).checkpoints]

    def again(self) -> Any:
        """A saver with an empty working set."""
        return Saver(self.saver._store.backend)

    def repaired(self, *threads: str) -> Any:
        return self.again().threads.repair(threads or None, file=self.folder / "out.tkq")


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with open_backend(request.param, tmp_path) as saver:
        for thread in ("a", "b"):
            for _ in range(2):
                graph(saver).invoke({"log": [f"in {LONG}"]}, at(thread))
        harm = damaging(request.param, saver, tmp_path)
        yield Place(request.param, saver, tmp_path, harm)


def manifest(place: Place) -> tuple[Kind, int]:
    place.harm.manifest("a", place.ids("a")[-1])
    return Kind.CHECKPOINT, -1


def metadata(place: Place) -> tuple[Kind, int]:
    place.harm.metadata("a", place.ids("a")[-1])
    return Kind.CHECKPOINT, -1


def older(place: Place) -> tuple[Kind, int]:
    place.harm.manifest("a", place.ids("a")[3])
    return Kind.CHECKPOINT, 3


def segment_of_head(place: Place) -> tuple[int, int]:
    """The segment with the head's text, which no other channel needs."""
    rows = rows_of(place.saver, "a")
    read, _ = read_manifest(rows.checkpoints[-1])
    ref = read.entries["text"].ref
    assert ref is not None
    log, pos, _ = ref.needs[0]
    (there,) = [s for s in rows.segments if s.log == log and s.start <= pos < s.start + s.count]
    return there.log, there.start


def segment(place: Place) -> tuple[Kind, int]:
    place.harm.segment("a", *segment_of_head(place))
    return Kind.SEGMENT, -1


def no_segment(place: Place) -> tuple[Kind, int]:
    place.harm.no_segment("a", *segment_of_head(place))
    return Kind.VALUE, -1


@pytest.mark.parametrize("harm", [manifest, metadata, older, segment, no_segment])
def test_damage_is_told_by_kind_and_taken_out(
    place: Place, harm: Callable[[Place], tuple[Kind, int]]
) -> None:
    before, ids = everything(place.saver), place.ids("a")
    kind, number = harm(place)
    report = place.again().check()
    assert kind in {finding.kind for finding in report.findings}
    assert {finding.thread for finding in report.findings} == {"a"}
    broken = {f.checkpoint for f in report.findings if f.checkpoint and f.kind is not Kind.WRITE}
    lost = {f.checkpoint for f in report.findings if f.kind is Kind.WRITE}
    assert ids[number] in broken
    assert broken < set(ids)
    done = place.repaired()
    assert {id for _, id in done.repaired[0].checkpoints} == broken
    assert done.ok
    after = place.again().check()
    assert (after.findings, after.notes) == ((), ())
    after_all = everything(place.again())
    assert after_all.keys() == {at for at in before if at[2] not in broken}
    for where, one in after_all.items():
        writes = one["writes"] if where[2] in lost else before[where]["writes"]
        assert one == {**before[where], "writes": writes}
    (taken,) = read_quarantine(done.file)
    assert {row.id for row in taken.whole.checkpoints} == broken
    left = [id for id in ids if id not in broken]
    assert [(head.before, head.after) for head in done.repaired[0].heads] == (
        [(ids[-1], left[-1])] if ids[-1] in broken else []
    )
    run = graph(place.again())
    assert "more" in run.invoke({"log": ["more"]}, at("a"))["log"]
    assert place.again().check().ok


def test_the_keyframes_segment_is_lost(place: Place) -> None:
    rows = rows_of(place.saver, "a")
    key = rows.checkpoints[-1].row
    (there,) = [
        s
        for s in rows.segments
        if s.log == key.key_log and s.start <= key.key_pos < s.start + s.count
    ]
    place.harm.no_segment("a", there.log, there.start)
    assert Kind.KEYFRAME in {finding.kind for finding in place.again().check().findings}
    place.repaired()
    assert place.again().check().ok
    graph(place.again()).invoke({"log": ["more"]}, at("a"))
    assert place.again().check().ok


def test_a_damaged_write(place: Place) -> None:
    id = place.ids("a")[-1]
    place.saver.put_writes(at("a", id, checkpoint_ns=""), [("log", ["late"])], "task 1")
    place.saver.put_writes(at("a", id, checkpoint_ns=""), [("text", "kept")], "task 2")
    place.harm.write("a", id)
    (finding,) = place.again().check().findings
    assert (finding.kind, finding.checkpoint) == (Kind.WRITE, id)
    done = place.repaired()
    assert (done.repaired[0].checkpoints, done.repaired[0].writes) == ((), 1)
    found = place.again().get_tuple(at("a"))
    assert found.checkpoint["id"] == id
    assert found.pending_writes == [("task 2", "text", "kept")]
    assert place.again().check().ok
    (taken,) = read_quarantine(done.file)
    assert [row.task_id for row in taken.whole.writes] == ["task 1"]


@pytest.mark.parametrize("schema", [Plain, Delta])
def test_what_is_rebuilt_through_it_goes_too(place: Place, schema: Any) -> None:
    saver = place.saver
    for who in ("a", "b"):
        story(saver, schema).invoke({"log": [who]}, at("story"))
    ids = place.ids("story")
    place.harm.manifest("story", ids[4])
    place.repaired()
    assert place.again().check().ok
    state = story(place.again(), schema).get_state(at("story"))
    if schema is Plain:
        assert state.values["log"] == told("a", "b")
    else:
        assert state.config["configurable"]["checkpoint_id"] == ids[3]
    story(place.again(), schema).invoke({"log": ["c"]}, at("story"))
    state = story(place.again(), schema).get_state(at("story"))
    assert state.values["log"][-3:] == ["c", "c-first", "c-second"]


def test_a_damaged_write_that_a_delta_channel_is_rebuilt_from(place: Place) -> None:
    story(place.saver, Delta).invoke({"log": ["a"]}, at("story"))
    ids = place.ids("story")
    place.harm.write("story", ids[1])
    deltas = {f.checkpoint for f in place.again().check().findings if f.kind is Kind.DELTA}
    assert deltas == set(ids[2:])
    done = place.repaired("story")
    assert done.repaired[0].heads[0].after == ids[1]
    assert place.again().check().ok
    assert story(place.again(), Delta).get_state(at("story")).values["log"] == ["a"]


def broken(report: RepairReport) -> list[str]:
    """Threads with more than a wrong size.

    (On Redis, what two calls store at the same time in a new thread may be counted twice.)
    """
    real = [one for one in report.repaired if {f.kind for f in one.findings} != {Kind.REGISTRY}]
    return [one.thread for one in real]


def test_a_fork_shares_what_is_damaged(place: Place) -> None:
    place.saver.threads.fork("a", new_thread_id="fork")
    shared = rows_of(place.saver, "a").family == ("fork",)
    place.harm.segment("a", *segment_of_head(place))
    findings = place.again().check().findings
    assert {finding.thread for finding in findings} == ({"a", "fork"} if shared else {"a"})
    done = place.again().threads.repair("a", file=place.folder / "one.tkq")
    assert done.ok is not shared
    assert all("'fork' needs it too" in finding.problem for finding in done.unrepaired)
    done = place.repaired()
    assert broken(done) == (["fork"] if shared else [])
    assert place.again().check().ok
    assert broken(place.again().threads.repair(file=place.folder / "more.tkq")) == []
    for thread in ("a", "fork"):
        graph(place.again()).invoke({"log": ["more"]}, at(thread))
    assert place.again().check().ok


def test_an_interrupt_waits_again_where_the_answer_was_lost(
    place: Place,
) -> None:
    class Asked(TypedDict, total=False):
        answer: str

    def asking(_: Asked) -> Asked:
        return {"answer": interrupt("well?")}

    builder = StateGraph(Asked)
    builder.add_node("asking", asking)
    builder.add_edge(START, "asking")
    builder.add_edge("asking", END)
    run = builder.compile(checkpointer=place.saver)
    run.invoke({"answer": ""}, at("asked"))
    run.invoke(Command(resume="yes"), at("asked"))
    place.harm.manifest("asked", place.ids("asked")[-1])
    place.repaired()
    entry = place.saver.threads.get("asked")
    assert place.again().check().notes == ()
    assert entry.status in ("waiting", "unfinished")
    final = builder.compile(checkpointer=place.again())
    if entry.status == "waiting":
        final.invoke(Command(resume="no"), at("asked"))
    else:
        final.invoke(None, at("asked"))
    assert final.get_state(at("asked")).values["answer"] in ("yes", "no")


def torn(harm: Any, thread: str, ids: list[str]) -> None:
    harm.torn(thread, ids[-1])


def wrong_columns(harm: Any, thread: str, ids: list[str]) -> None:
    harm.execute("UPDATE {c} SET manifest = 5 WHERE {t} AND {i} = ?", thread, ids[-1])
    harm.execute("UPDATE {c} SET ns = CAST(x'ff' AS TEXT) WHERE {t} AND {i} = ?", thread, ids[-2])


def torn_members(harm: Any, thread: str, _: list[str]) -> None:
    keys, client = keys_of(harm._prefix, thread), harm._client
    for number in (1, 2, 3, 4):
        client.zadd(keys[number], {b"torn": 0})
    client.hset(keys[5], b"x" * 16, b"data of nobody")


UNREADABLE = [  # the store, the damage, the fewest unreadable rows, and the checkpoints lost
    ("redis", torn, 1, 1),
    ("sqlite", wrong_columns, 1, 2),
    ("redis", torn_members, 5, None),  # (in all tables: more than one sound result is possible)
]


@pytest.mark.parametrize(("name", "harm_rows", "count", "lost"), UNREADABLE)
def test_rows_that_the_store_cannot_read(
    name: str, harm_rows: Callable[..., None], count: int, lost: int | None, tmp_path: Path
) -> None:
    with open_backend(name, tmp_path) as saver:
        for thread in ("a", "b"):
            graph(saver).invoke({"log": [f"in {LONG}"]}, at(thread))
        before = everything(saver)
        place = Place(name, saver, tmp_path, damaging(name, saver, tmp_path))
        harm_rows(place.harm, "a", place.ids("a"))
        assert Kind.UNREADABLE in {finding.kind for finding in place.again().check().findings}
        planned = place.again().threads.repair(dry_run=True)
        done = place.repaired()
        assert planned.repaired == done.repaired
        assert done.ok, done.unrepaired
        after = place.again().check()
        assert (after.findings, after.notes) == ((), ())
        (taken,) = read_quarantine(done.file)
        assert len(taken.unreadable) == done.repaired[0].unreadable >= count
        assert all(row.data for row in taken.unreadable)
        kept = everything(place.again())
        assert kept.items() >= {at: one for at, one in before.items() if at[0] == "b"}.items()
        if lost is not None:
            assert kept == {at: one for at, one in before.items() if at in kept}
            assert len(before) - len(kept) == lost
        graph(place.again()).invoke({"log": ["more"]}, at("a"))
        assert place.again().check().ok


@pytest.mark.parametrize("name", SHARED)
def test_the_registry_is_put_right(name: str, tmp_path: Path) -> None:
    """An entry that doesn't match the rows is a note, and repair corrects it."""
    with open_backend(name, tmp_path) as saver:
        graph(saver).invoke({"log": ["in"]}, at("a"))
        graph(saver).invoke({"log": ["in"]}, at("b"))
        wanted = saver.threads.get("a")
        forget(name, tmp_path)
        report = saver.check()
        assert report.ok
        assert {note.kind for note in report.notes} == {Kind.REGISTRY}
        assert {note.thread for note in report.notes} == {"a", "b"}
        done = saver.threads.repair(file=tmp_path / "out.tkq")
        assert (len(done.repaired), done.file) == (2, None)
        assert saver.check().notes == ()
        found = saver.threads.get("a")
        assert (found.state, found.bytes) == (wanted.state, wanted.bytes)
        assert {one.id for one in saver.threads.search().threads} == {"a", "b"}


def asking(saver: Any) -> Any:
    def ask(state: State) -> State:
        return {"text": interrupt("go on?")}

    return linear(saver, State, one=lambda _: {"log": [LONG]}, ask=ask)


@pytest.fixture(params=SHARED)
def statuses(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """A store with a thread that waits, a fork of it, and a finished thread."""
    with open_backend(request.param, tmp_path) as saver:
        asking(saver).invoke({"log": ["in"]}, at("waits"))
        saver.threads.fork("waits", new_thread_id="fork")
        graph(saver).invoke({"log": ["in"]}, at("done"))
        assert saver.check().notes == ()
        yield request.param, saver


THREADS = ("waits", "fork", "done")
WRONG = pytest.mark.parametrize(
    "wrong", [("failed", "waiting"), ("unfinished", "failed"), (None, "unfinished")]
)


def falsify(place: tuple[str, Any], folder: Path, wrong: tuple[str | None, str]) -> dict[str, Any]:
    """Give each thread a wrong status, and return what the threads were."""
    name, saver = place
    before = {thread: saver.threads.get(thread) for thread in THREADS}
    for thread in THREADS:
        set_status(name, folder, thread, wrong[thread == "done"])
        assert saver.threads.get(thread).status == (wrong[thread == "done"] or "done")
    return before


def set_status(name: str, folder: Path, thread: str, status: str | None) -> None:
    harm = damaging(name, None, folder)
    if name == "redis":
        key = keys_of(harm._prefix, thread)[0]
        harm._client.hset(key, "status", status) if status else harm._client.hdel(key, "status")
        return
    if name == "mysql":
        harm.head(thread, status=status)
        return
    value = f"'{status}'" if status else "NULL"
    if name == "sqlite":
        harm.execute(f"UPDATE tk_threads SET status = {value} WHERE thread = ?", thread)
        return
    schema = harm._names["c"].partition(".")[0]
    harm.execute(f"UPDATE {schema}.threads SET status = {value} WHERE thread_id = ?", thread)


def as_known(found: Any) -> Any:
    return found.state, found.status, found.status_checkpoint, found.failed_node, found.bytes


@WRONG
def test_a_wrong_status_is_put_right(
    statuses: tuple[str, Any], wrong: tuple[str | None, str], tmp_path: Path
) -> None:
    _, saver = statuses
    before = falsify(statuses, tmp_path, wrong)
    report = saver.check()
    assert report.ok
    notes = {note.thread: note for note in report.notes}
    assert {thread: note.kind for thread, note in notes.items()} == dict.fromkeys(
        THREADS, Kind.REGISTRY
    )
    for thread, note in notes.items():
        at = before[thread].status_checkpoint
        real = f"waiting at '{at}'" if at else "done"
        said = f"its status in the registry is {wrong[thread == 'done'] or 'done'}"
        assert note.problem == f"{said}, but its rows show {real}"
    done = saver.threads.repair(file=tmp_path / "out.tkq")
    assert (done.ok, len(done.repaired), done.file) == (True, 3, None)
    assert saver.check().notes == ()
    for thread in THREADS:
        assert as_known(saver.threads.get(thread)) == as_known(before[thread])
    found = saver.threads.search(status="waiting", order="thread").threads
    assert [one.id for one in found] == ["fork", "waits"]


@WRONG
def test_a_wrong_status_deletes_nothing_and_the_next_gc_corrects_it(
    statuses: tuple[str, Any], wrong: tuple[str | None, str], tmp_path: Path
) -> None:
    _, saver = statuses
    before = falsify(statuses, tmp_path, wrong)
    assert not {"waits", "fork"} & {*saver.threads.gc(Retention(ttl=0.000001)).deleted}
    saver.threads.gc(Retention(keep_last=1))
    for thread in ("waits", "fork"):
        found = saver.threads.get(thread)
        assert as_known(found)[:-1] == as_known(before[thread])[:-1]
    assert "status" not in str(saver.check().notes)


@pytest.mark.parametrize("name", ["postgres", "sqlite"])
def test_a_damaged_entry_leaves_the_threads_that_share_its_segments_alone(
    name: str, tmp_path: Path
) -> None:
    with open_backend(name, tmp_path) as saver:
        graph(saver).invoke({"log": ["in"]}, at("a"))
        for fork in ("f", "g"):
            saver.threads.fork("a", None, fork)
        harm = damaging(name, None, tmp_path)
        if name == "sqlite":
            harm.execute("UPDATE tk_threads SET ttl = -1 WHERE thread = ?", "a")
        else:
            schema = harm._names["c"].partition(".")[0]
            harm.execute(f"UPDATE {schema}.threads SET ttl = -1 WHERE thread_id = %s", "a")
        saver.delete_thread("f")
        done = saver.threads.repair(file=tmp_path / "out.tkq")
        assert [one.thread for one in done.repaired] == ["a"]
        assert saver.check().ok
        graph(saver).invoke({"log": ["more"]}, at("g"))


def forget(name: str, folder: Path) -> None:
    """Remove the entry of one thread, and falsify the size of another."""
    harm = damaging(name, None, folder)
    if name == "redis":
        harm._client.hdel(
            keys_of(harm._prefix, "a")[0], "state", "created_at", "updated_at", "size"
        )
        harm._client.hset(keys_of(harm._prefix, "b")[0], "size", "5")
        return
    if name == "sqlite":
        nothing = "state = NULL, created_at = NULL, updated_at = NULL, size = NULL"
        harm.execute(f"UPDATE tk_threads SET {nothing} WHERE thread = ?", "a")
        harm.execute("UPDATE tk_threads SET size = 5 WHERE thread = ?", "b")
        return
    if name == "mysql":
        harm.head("a", state=None, created_at=None, updated_at=None, size=0)
        harm.head("b", size=5)
        return
    schema = harm._names["c"].partition(".")[0]
    nothing = "state = NULL, created_at = NULL, updated_at = NULL, size = 0"
    harm.execute(f"UPDATE {schema}.threads SET {nothing} WHERE thread_id = ?", "a")
    harm.execute(f"UPDATE {schema}.threads SET size = 5 WHERE thread_id = ?", "b")
