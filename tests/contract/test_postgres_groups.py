"""A group of batches is one statement: it stores what the batches do one by one."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from kit.postgres import empty_schema, hashed, plain, url
from kit.postgres_proxy import proxy
from kit.tips import link

from threadkeep._core.engine.model import (
    Batch,
    CopyThread,
    DropThread,
    FindThreads,
    ForkThread,
    HeadFence,
    ReadThread,
)
from threadkeep._core.engine.thread_entry import (
    EntryUpdate,
    Lifecycle,
    StatusEvent,
    ThreadEntry,
    metadata_label,
)
from threadkeep._run.group_commit import LoopWriter
from threadkeep._stores.postgres import moves
from threadkeep._stores.postgres.backend import PostgresBackend
from threadkeep.errors import (
    InvalidArgumentError,
    SegmentTakenError,
    StaleThreadError,
    ThreadDeletedError,
)
from threadkeep.testing.records import NOW, checkpoint, segment, uid, write

ROWS = {
    "threads": "thread_id, generation, deleted_at, life, state, updated_at, size, status,"
    " status_at, failed_node, revision, pinned, heap,"
    " CASE WHEN state IS NOT NULL THEN created_at END",
    "thread_labels": "*",
    "segments": "*",
    "checkpoints": "thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run, seen,"
    " flags, ts, ts_text, metadata, metadata_text, exact, key_log, key_pos, manifest",
    "writes": "thread_id, checkpoint_ns, checkpoint_id, seq, run, seen, task_id, task_path, body",
}


def held(schema):
    """All rows of a schema, but for the times at which the server put them."""
    with psycopg.connect(url(), autocommit=True) as db:
        return {
            table: sorted(db.execute(f"SELECT {what} FROM {schema}.{table}").fetchall(), key=repr)
            for table, what in ROWS.items()
        }


# -- the same as one by one ------------------------------------------------------------

THREADS = ("a", "a", "b", "\0c", "fork", "deleted")
LIFE = 77  # of the deleted thread


def begin(backend):
    """Threads in several states: with segments, sharing them, deleted."""
    for thread in ("a", "b", "\0c"):
        rows = {"segments": (segment(0), segment(1, 2)), "checkpoints": (checkpoint(1),)}
        touch = EntryUpdate(10, at=NOW, saves=True, event=StatusEvent(None, uid(1)))
        backend.commit(Batch(thread, NOW, **rows, touch=touch))
    entry = ThreadEntry("fork", Lifecycle.FORKED, NOW, NOW, origin=("a", uid(1)))
    backend.commit(ForkThread("a", "fork", NOW, 0, (("", uid(1)),), (), entry))
    backend.commit(DropThread("deleted", NOW, link=link(LIFE)))


def drawn(draw):
    """A batch that adds rows; now and then it is to be refused, or meets another."""
    number = draw.randrange(2, 9)
    thread = draw.choice([*THREADS, f"new {draw.randrange(1000)}"])
    status = draw.choice([None, "unfinished", "waiting", "failed"])
    event = StatusEvent(status, uid(number), "node" if status == "failed" else None)
    labels = (metadata_label("user", draw.randrange(3)),) * (draw.random() < 0.2)
    touch = EntryUpdate(
        *(number, False, draw.choice([None, NOW + number]), labels, True),
        event=draw.choice([None, event, event]),
    )
    place = draw.choice([0, *range(3, 60)])
    segments = (segment(place, data=b"%d" % draw.choice([place, place, place, 0])),)
    drops = ()
    if draw.random() < 0.2:
        place = draw.choice([0, *range(3, 60)])
        segments, drops = (segment(place, 3),), ((1, place, 1), (1, place + 1, draw.randrange(3)))
    return Batch(
        thread,
        NOW + draw.randrange(9),
        generation=draw.choice([None, None, None, thread in ("a", "fork", "deleted"), 7]),
        life=draw.choice([*[None, LIFE if thread == "deleted" else 0] * 4, 1]),
        segments=segments * (draw.random() < 0.7 or bool(drops)),
        drop_segments=drops,
        checkpoints=(checkpoint(number, 1, ts=draw.choice([NOW, "once"])),) * draw.randrange(2),
        writes=tuple(write(number, body=b"%d" % n) for n in range(draw.randrange(3))),
        touch=draw.choice([None, touch, touch, EntryUpdate(3), EntryUpdate(3, at=NOW + 20)]),
        link=draw.choice([*[None, link(0)] * 5, link(0, 99)]),
    )


@pytest.fixture
def pair():
    """Two stores that hold the same, and how to compare them."""
    made = []

    def both(layout=plain):
        schemas = empty_schema(layout), empty_schema(layout)
        made.extend(PostgresBackend(url(), schema=name, max_size=1) for name in schemas)
        for backend in made:
            begin(backend)
        return (*made, lambda: held(schemas[0]) == held(schemas[1]))

    yield both
    for backend in made:
        backend.close()


@pytest.mark.drawn(1)
@pytest.mark.parametrize("layout", [plain, hashed])
def test_a_group_does_what_its_batches_do_one_by_one(layout, pair):
    draw, refusals = random.Random(layout.__name__), []
    grouped, single, are_same = pair(layout)
    for round_ in range(100):
        group = [drawn(draw) for _ in range(draw.choice([2, 2, 3, 6]))]
        together = [type(error) for error in grouped.commit_many(group)]
        assert together == [type(error) for one in group for error in single.commit_many([one])]
        refusals += together
        assert round_ % 8 or are_same()
    assert are_same()
    assert {type(None), SegmentTakenError, StaleThreadError, ThreadDeletedError} <= {*refusals}


def adds(thread, *segments, drops=()):
    return Batch(thread, NOW, segments=segments, drop_segments=drops)


@pytest.mark.parametrize(
    "group",
    [
        [adds("a", segment(9, 2)), adds("a", segment(10))],
        [adds("a", segment(9)), adds("a", segment(9, data=b"other"))],
        [adds("a", segment(9)), adds("fork", segment(9, data=b"other"))],
        [adds("a", segment(9)), adds("a", segment(9))],
        [adds("a", segment(0, data=b"other")), adds("a", segment(9), drops=((1, 0, 1),))],
        [adds("a", segment(2, data=b"other")), adds("a", segment(9), drops=((1, 1, 2),))],
        [adds("a", segment(9), drops=((1, 0, 1),)), adds("a", segment(0, data=b"other"))],
        [adds("a", segment(9)), adds("a", segment(20), drops=((1, 9, 1),))],
        [adds("a", segment(9)), adds("a", segment(9, 3), drops=((1, 9, 1),))],
        [adds("b", segment(0, data=b"other"), drops=((1, 0, 1),)), adds("a", segment(9))],
        [Batch("a", NOW, checkpoints=(checkpoint(2, manifest=bytes([n])),)) for n in range(3)],
        [Batch("b", NOW, fences=(HeadFence("", None),)), adds("b", segment(9))],
        [adds("b", segment(9)), DropThread("b", NOW, link=link(LIFE)), CopyThread("a", "b", NOW)],
        [Batch("b", NOW, bump_generation=True), Batch("b", NOW, generation=0), Batch("a", NOW)],
    ],
)
def test_batches_of_a_group_that_meet(group, pair):
    grouped, single, are_same = pair()
    together = [type(error) for error in grouped.commit_many(group)]
    assert together == [type(error) for one in group for error in single.commit_many([one])]
    assert are_same()


# -- what a group costs ----------------------------------------------------------------


def batches(count, place=0):
    rows = {"checkpoints": (checkpoint(1),), "writes": (write(1), write(1))}
    return [
        Batch(
            f"t{n}", NOW, segments=(segment(place, data=b"%d" % n),), **rows, touch=EntryUpdate(1)
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("more", [{}, {"statement_timeout": 20}, {"prepare_threshold": None}])
def test_a_group_is_one_round_trip(more):
    with proxy(url()) as way:
        backend = PostgresBackend(way.url, schema=empty_schema(), min_size=1, max_size=1, **more)
        for size in (100, 7, 6, 5, 4, 3, 2):  # (until it is prepared)
            backend.commit_many(batches(size, 100 - size))
        with way.trips(1):
            assert backend.commit_many(batches(64, 101)) == [None] * 64
        backend.close()


# -- failures --------------------------------------------------------------------------


@pytest.fixture
def backend():
    made = PostgresBackend(url(), schema=empty_schema(), max_size=4)
    yield made
    made.close()


LONG = "".join(map(chr, random.Random(1).choices(range(0x4E00, 0x9000), k=5000)))


@pytest.mark.parametrize(
    "bad",
    [
        Batch("\udc00", NOW, writes=(write(1),)),
        Batch("bad", NOW, checkpoints=(checkpoint(1, metadata="{"),)),
        Batch("bad", NOW, checkpoints=(checkpoint(1, metadata='"\\ud800"'),)),
        Batch(LONG, NOW, writes=(write(1),)),
    ],
    ids=["text", "JSON", "JSON text", "length"],
)
def test_what_the_server_cannot_take_leaves_its_neighbours_alone(backend, bad):
    first, *others = batches(4)
    group = [first, bad, *others]

    async def saved():
        writer = LoopWriter(backend.asynchronous)
        results = await asyncio.gather(*map(writer.submit, group), return_exceptions=True)
        await backend.asynchronous.close()
        return [type(result) for result in results]

    none = type(None)
    assert asyncio.run(saved()) == [none, InvalidArgumentError, none, none, none]
    assert backend.fetch([FindThreads(None, 9, empty=True)]) == [["t0", "t1", "t2", "t3"]]


def test_large_groups_are_several_statements(backend, monkeypatch):
    monkeypatch.setattr(moves, "_MOST_BYTES_TOGETHER", 100)
    large = [Batch(f"t{n}", NOW, writes=(write(1, body=b"x" * 40),)) for n in range(5)]
    assert backend.commit_many(large) == [None] * 5
    assert all(one.orphans for one in backend.fetch([ReadThread(f"t{n}") for n in range(5)]))


def test_a_group_whose_answer_was_lost_is_stored_once():
    with proxy(url()) as way:
        backend = PostgresBackend(way.url, schema=(schema := empty_schema()), max_size=1)
        group = [one._replace(writes=()) for one in batches(5)]
        backend.commit_many(batches(1))
        way.lose_the_next_answer()
        assert backend.commit_many(group) == [None] * 5
        assert way.has_lost_it
        backend.close()
    assert [len(held(schema)[table]) for table in ("threads", "segments", "checkpoints")] == [5] * 3


def test_groups_of_several_processes_do_not_wait_for_each_other_in_a_ring(backend):
    """New threads and known ones, in any order."""
    draw, errors = random.Random(7), []

    def work(seed):
        draw = random.Random(seed)
        for step in range(15):
            names = draw.sample(range(40), 12)
            group = [Batch(f"{step // 5} {n}", NOW, writes=(write(seed),)) for n in names]
            errors.extend(error for error in backend.commit_many(group) if error)

    with psycopg.connect(url(), autocommit=True) as db, ThreadPoolExecutor(4) as pool:
        count = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        before = db.execute(count).fetchone()
        list(pool.map(work, draw.sample(range(99), 4)))
        db.execute("SELECT pg_stat_clear_snapshot()")
        assert db.execute(count).fetchone() == before
    assert errors == []
