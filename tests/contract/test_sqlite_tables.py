"""The views for the sqlite3 shell, and their size."""

import os
import re
import sqlite3
import uuid

import pytest
from kit import sqlite

from threadkeep._core.engine.model import (
    HIDDEN,
    Batch,
    DropThread,
    FindThreads,
    HeadFence,
    ReadCheckpoint,
    ReadPath,
    ReadSegments,
    ReadSizes,
    ScanCheckpoints,
    Span,
    WritesFence,
)
from threadkeep._core.engine.thread_entry import (
    CountThreads,
    EntryUpdate,
    SearchThreads,
    StatusEvent,
    ThreadEntry,
    ThreadQuery,
    metadata_label,
    tag_label,
)
from threadkeep._stores.sqlite import views
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.testing.records import NOW, checkpoint, segment, uid, write
from threadkeep.threads import last_statistics

COUNTS = ("checkpoints", "writes", "segment_bytes", "deleted_at")


@pytest.fixture
def shell(tmp_path):
    path = tmp_path / "threads.db"
    backend = SqliteBackend(path)
    rows = (
        checkpoint(1, ts=1_763_000_000_000_042),
        checkpoint(2, 1, flags=HIDDEN),
        checkpoint(3, id="not a uuid", parent="Ünïcode", ts="yesterday", ns="child"),
        checkpoint(4, id="0"),
    )
    backend.commit(
        Batch(
            "chat",
            1,
            checkpoints=rows,
            writes=(write(1, task_id=uid(9)), write(2, task_path="")),
            segments=(segment(0, 5, data=b"12345"),),
        )
    )
    backend.commit(DropThread("gone", now=NOW))
    backend.commit(Batch(last_statistics.THREAD, NOW, writes=(write(1),)))
    labels = (
        *(tag_label('it\'s "urgent"'), metadata_label("user", {"id": [1, True, None]})),
        metadata_label('k"]', "v"),
    )
    entry = ThreadEntry("asked", "active", NOW, NOW, 0, labels, True, 60_000_000, ("chat", uid(1)))
    backend.commit(Batch("asked", NOW, entry=entry))
    event = StatusEvent("failed", uid(3), "model")
    touch = EntryUpdate(12, at=NOW + 1, saves=True, event=event)
    backend.commit(Batch("asked", NOW, touch=touch))
    backend.close()
    shell = sqlite3.connect(path)
    shell.executescript(views.script())
    shell.row_factory = sqlite3.Row
    yield shell
    shell.close()


def test_checkpoints_are_readable(shell):
    found = [tuple(row) for row in shell.execute("SELECT * FROM checkpoints")]
    metadata = '{"source": "loop", "step": %d}'
    assert found == [
        *[
            ("chat", "", "0", None, "2025-11-13T02:13:20.000004+00:00", metadata % 4, 0, 10),
            ("chat", "", uid(1), None, "2025-11-13T02:13:20.000042+00:00", metadata % 1, 0, 10),
            ("chat", "", uid(2), uid(1), "2025-11-13T02:13:20.000002+00:00", metadata % 2, 1, 10),
            ("chat", "child", "not a uuid", "Ünïcode", "yesterday", metadata % 3, 0, 10),
        ]
    ]
    step = shell.execute(
        "SELECT checkpoint_id FROM checkpoints WHERE json_extract(metadata, '$.step') = 2"
    ).fetchone()
    assert tuple(step) == (uid(2),)


def test_writes_and_segments_are_readable(shell):
    writes = [dict(row) for row in shell.execute("SELECT * FROM writes ORDER BY checkpoint_id")]
    assert [row["checkpoint_id"] for row in writes] == [uid(1), uid(2)]
    assert writes[0] == {
        "thread_id": "chat",
        "checkpoint_ns": "",
        "checkpoint_id": uid(1),
        "seq": 1,
        "task_id": uid(9),
        "task_path": "~__pregel_pull, agent",
        "bytes": 6,
    }
    assert writes[1]["task_path"] == ""
    segments = [tuple(row) for row in shell.execute("SELECT * FROM segments")]
    assert segments == [("chat", 1, 0, 5, 5)]


def test_threads_are_readable(shell):
    threads = [tuple(row) for row in shell.execute("SELECT * FROM threads ORDER BY thread_id")]
    assert [row[:5] for row in threads] == [
        ("asked", 0, 0, 0, None),
        ("chat", 4, 2, 5, None),
        ("gone", 0, 0, 0, "2025-11-13T02:13:20.000000+00:00"),
    ]


def test_the_registry_is_readable(shell):
    found = [dict(row) for row in shell.execute("SELECT * FROM threads ORDER BY thread_id")]
    assert [{k: v for k, v in row.items() if k not in COUNTS} for row in found[:1] + found[2:]] == [
        {
            "thread_id": "asked",
            "state": "active",
            "created_at": "2025-11-13T02:13:20.000000+00:00",
            "updated_at": "2025-11-13T02:13:20.000001+00:00",
            "bytes": 12,
            "tags": '["it\'s \\"urgent\\""]',
            "metadata": '{"k\\"]":"v","user":{"id":[1,true,null]}}',
            "pinned": 1,
            "ttl_seconds": 60,
            "forked_from": "chat",
            "forked_from_checkpoint": uid(1),
            "status": "failed",
            "status_checkpoint": uid(3),
            "failed_node": "model",
            "holder": None,
            "lease_until": None,
            "attempts": 0,
        },
        {
            "thread_id": "gone",
            "state": "deleted",
            "created_at": "2025-11-13T02:13:20.000000+00:00",
            "updated_at": "2025-11-13T02:13:20.000000+00:00",
            "bytes": 0,
            "tags": "[]",
            "metadata": "{}",
            "pinned": 0,
            "ttl_seconds": None,
            "forked_from": None,
            "forked_from_checkpoint": None,
            "status": None,
            "status_checkpoint": None,
            "failed_node": None,
            "holder": None,
            "lease_until": None,
            "attempts": 0,
        },
    ]


def test_the_file_says_what_it_is(shell):
    assert tuple(shell.execute("PRAGMA application_id").fetchone()) == (0x74686B70,)
    assert tuple(shell.execute("PRAGMA user_version").fetchone()) == (1,)


def test_rows_are_compact(tmp_path):
    """A checkpoint of a usual size takes at most 205 bytes, a write 165."""
    path = tmp_path / "threads.db"
    backend = SqliteBackend(path, synchronous="normal")
    metadata = '{"source":"loop","step":1234,"parents":{}}'
    previous = None
    for number in range(600):
        key = str(uuid.UUID(int=(0x1EF << 116) + (number << 70) + number))
        row = checkpoint(0, id=key, parent=previous, manifest=os.urandom(70), metadata=metadata)
        put = write(
            0, checkpoint_id=key, task_id=str(uuid.UUID(int=number + 1)), body=os.urandom(60)
        )
        backend.commit(Batch("t", 1, checkpoints=(row,), writes=(put,)))
        previous = key
    backend.close()
    assert path.stat().st_size < 600 * (205 + 165) + 14 * 4096


HOT = [
    ReadCheckpoint("t", ""),
    ReadCheckpoint("t", "", uid(30)),
    ReadSegments("t", (Span(1, 3, 5), Span(1, 30, 50))),
    ReadSegments("t", tuple(Span(1, n, n + 1) for n in range(0, 49, 2)), generation=0),
    ReadSegments("t", (Span(1, 0, 100_000),)),
    ReadPath("t", "", uid(30), 5),
    ScanCheckpoints("t", "", None, None, {"step": 3}, None, 5),
    ScanCheckpoints("t", "", None, uid(30), {}, (uid(20), "t", ""), 5),
    ScanCheckpoints("t", "", uid(30), None, {}, None, 5),
    Batch(
        "t",
        1,
        generation=0,
        fences=(HeadFence("", uid(99)), HeadFence("a", None), WritesFence("", uid(30), 1, 0)),
        segments=(segment(100),),
        checkpoints=(checkpoint(99, 98),),
        writes=(write(30),),
        drop_segments=((1, 3, 1), (1, 4, 1)),
        hide_checkpoints=(("", uid(3)),),
        bump_generation=True,
    ),
]


_SEARCHING = ("SELECT", "INSERT", "DELETE", "UPDATE", "WITH")


@pytest.mark.parametrize("work", HOT, ids=lambda work: type(work).__name__)
def test_hot_statements_search_by_key(work):
    """No read or commit of single checkpoints may walk through a whole table."""
    backend = SqliteBackend(":memory:")
    rows = tuple(checkpoint(n, n - 1) for n in range(1, 50))
    backend.commit(Batch("t", 1, checkpoints=rows, segments=tuple(segment(n) for n in range(50))))
    backend._connections.heads.clear()
    db = backend._connections.writer()
    with sqlite.statements(backend) as told:
        backend.commit(work) if isinstance(work, Batch) else backend.fetch([work])
    statements = [text for text in told if text.lstrip().startswith(_SEARCHING)]
    assert statements
    for statement in statements:
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}")]
        walks = [step for step in plan if step.startswith("SCAN") and "json_each" not in step]
        walks = [step for step in walks if not re.fullmatch(r"SCAN( \d+)? CONSTANT ROWS?", step)]
        assert set(walks) <= {"SCAN path", "SCAN q"}, statement  # (`q` is the query)
        # At most one row, or the few of a path: sorting those costs nothing.
        few = "c.id = " in statement or "path" in statement
        assert few or not [step for step in plan if "TEMP B-TREE" in step], statement
    backend.close()


@pytest.mark.parametrize("order", ["updated_at", "size"])
@pytest.mark.parametrize("states", [(), ("active",)])
def test_failed_threads_are_found_by_index(states, order):
    """A search in order of `updated_at` needs no sort, and the next page begins in the index."""
    backend = SqliteBackend(":memory:")
    db = backend._connections.writer()
    query = ThreadQuery(states, statuses=("failed",))
    search = SearchThreads(query, order, descending=True, after=None, limit=9)
    with sqlite.statements(backend) as told:
        backend.fetch([search, search._replace(after=(5, "t")), CountThreads(query)])
    about_threads = [text for text in told if "FROM tk_threads t" in text]
    assert len(about_threads) == 3
    for statement in about_threads:
        steps = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}")]
        assert re.match(r"SEARCH t USING .*INDEX tk_threads_by_status \(status=\?", steps[0]), steps
        is_sorted = order == "size" and "ORDER BY" in statement
        assert len(steps) == 1 + is_sorted, steps
    backend.close()


OF_A_TENANT = [
    FindThreads(None, 9, prefix="a "),
    FindThreads("a 3", 9, ("r",), prefix="a "),
    ReadSizes("a 3", 9, "a "),
    ScanCheckpoints(None, None, None, None, {"step": 3}, None, 9, "a "),
    SearchThreads(ThreadQuery(prefix="a "), "updated_at", descending=True, after=None, limit=9),
    SearchThreads(
        ThreadQuery(("active",), prefix="a "),
        "size",
        descending=False,
        after=(1, "a 3"),
        limit=9,
    ),
    SearchThreads(
        ThreadQuery(prefix="a "), "thread", descending=False, after=("a 3", "a 3"), limit=9
    ),
    CountThreads(ThreadQuery(("active",), created=(1, None), prefix="a ")),
]


@pytest.mark.parametrize("read", OF_A_TENANT, ids=lambda read: type(read).__name__)
def test_reads_of_a_tenant_begin_with_its_names(read):
    """Rows of other tenants are not looked at."""
    backend = SqliteBackend(":memory:")
    db = backend._connections.writer()
    with sqlite.statements(backend) as told:
        backend.fetch([read])
    about_threads = [text for text in told if "FROM tk_threads t" in text]
    assert about_threads
    for statement in about_threads:
        first = next(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}"))
        assert first.startswith("SEARCH t USING"), (first, statement)
        assert "(thread>? AND thread<?)" in first, (first, statement)
    backend.close()
