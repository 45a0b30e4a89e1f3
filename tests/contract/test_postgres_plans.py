"""PostgreSQL finds rows by indexes, in tables of any size."""

import json
from contextlib import contextmanager
from struct import iter_unpack

import psycopg
import pytest
from kit.contract import owning
from kit.postgres import empty_schema, granted, hashed, plain, url, url_of_role

from threadkeep._core.engine.model import (
    Batch,
    FindThreads,
    ReadCheckpoint,
    ReadPath,
    ReadSegments,
    ReadSizes,
    ReadThread,
    ScanCheckpoints,
    Span,
)
from threadkeep._core.engine.rule_reads import ReadHead
from threadkeep._core.engine.thread_entry import (
    CountThreads,
    EntryUpdate,
    SearchThreads,
    StatusEvent,
    ThreadQuery,
)
from threadkeep._core.tenants import label
from threadkeep._stores.committing import plain_move
from threadkeep._stores.items.records import GetItems
from threadkeep._stores.postgres import item_queries, moves, reads
from threadkeep._stores.postgres.backend import PostgresBackend
from threadkeep._stores.postgres.statement import Array, register_types
from threadkeep._stores.records import new_tip
from threadkeep._stores.tenant import Names, for_tenant
from threadkeep.testing.records import NOW, checkpoint, segment, uid, write

THREADS, STEPS, MORE = 10, 8, 3000
FEW = 100  # rows: a partition with no more may well be read without an index
MOST = 1000  # rows of some 24,000 that a read may touch, those of small partitions included
TABLES = ("threads", "checkpoints", "writes", "segments")


# Many times the tenth thread: rows of others, that are not asked for, in all the months to come.
OTHER = """
    (%(starts)s::text[])[1 + mod(get_byte(sha256((thread || {0})::bytea), 0), 4)]
    || md5(thread || {0})
"""
OTHERS = {
    "id": OTHER.format("checkpoint_id"),
    "parent": OTHER.format("parent_checkpoint_id"),
}
MULTIPLY = """
WITH copies AS (
    SELECT '1' || to_char(n, 'FM0000') AS thread, n FROM generate_series(1, %(more)s) n),
t AS (INSERT INTO threads (thread_id, tips, logs)
    SELECT thread, tips, logs FROM copies, threads WHERE thread_id = %(original)s),
w AS (INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, seq, run, seen, task_id,
        task_path, body)
    SELECT thread, '', {id}, seq, run, seen, task_id, task_path, body
    FROM copies, writes WHERE thread_id = %(original)s),
s AS (INSERT INTO segments SELECT thread, log, start, count, data
    FROM copies, segments WHERE thread_id = %(original)s)
INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run, seen,
    flags, ts, metadata, key_log, key_pos, manifest)
SELECT thread, '', {id}, {parent}, run, seen,
    flags, ts, metadata || jsonb_build_object('run_id', n), key_log, key_pos, manifest
FROM copies, checkpoints WHERE thread_id = %(original)s
""".format(**OTHERS)


# A thread of 3,000 checkpoints, each with a segment, before all others.
LONG = """
WITH t AS (INSERT INTO threads (thread_id, tips, logs)
    SELECT %(long)s, tips, logs FROM threads WHERE thread_id = %(original)s),
s AS (INSERT INTO segments
    SELECT %(long)s, log, n, 1, data FROM generate_series(0, 2999) n, segments
    WHERE thread_id = %(original)s AND start = 0)
INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run, seen,
    flags, ts, metadata, key_log, key_pos, manifest)
SELECT %(long)s, '', to_char(n, 'FM00000000'), to_char(n - 1, 'FM00000000'), run, seen, flags, ts,
    '{}', key_log, n, manifest
FROM generate_series(1, 2999) n, checkpoints WHERE thread_id = %(original)s AND key_pos = 0
"""


@pytest.fixture(scope="module", params=[plain, hashed])
def db(request):
    """A connection to a store of some thousand rows, which the server knows about."""
    schema = empty_schema(request.param)
    fill(PostgresBackend(url(), schema=schema), schema)
    with connected(url(), schema) as connection:
        yield connection


@contextmanager
def connected(at, schema):
    with psycopg.connect(at, autocommit=True, prepare_threshold=None) as connection:
        connection.execute(f"SET search_path = {schema}")
        connection.schema_of_test = schema
        yield connection


def fill(backend, schema, original="0009"):
    for thread in range(THREADS):
        steps = range(1, STEPS + 1)
        said = [json.dumps({"step": n, "run_id": f"{thread}/{n}", "kind": "loop"}) for n in steps]
        rows = {
            "segments": tuple(segment(n) for n in range(STEPS)),
            "checkpoints": tuple(
                checkpoint(
                    1000 * thread + n, 1000 * thread + n - 1, metadata=said[n - 1], key_pos=n - 1
                )
                for n in steps
            ),
            "writes": tuple(write(1000 * thread + n) for n in steps),
        }
        backend.commit(Batch(f"{thread:04}", NOW, **rows))
    backend.close()
    with connected(url(), schema) as connection:
        long = original.replace("0009", "long")
        connection.execute(LONG, {"original": original, "long": long})
        starts = ["1f0a", "1f0b", "1f0c", "1f0d"]
        connection.execute(MULTIPLY, {"more": MORE, "starts": starts, "original": original})
        connection.execute("; ".join(f"ANALYZE {schema}.{table}" for table in TABLES))


def scan(**asked):
    nothing = {"thread": None, "ns": None, "id": None, "before": None, "filter": {}, "after": None}
    return ScanCheckpoints(**{**nothing, **asked}, limit=20)


HEAD = 1000 * 7 + STEPS
READS = {
    "the head of a thread": ReadCheckpoint("0007", ""),
    "by id": ReadCheckpoint("0007", "", uid(HEAD)),
    "segments": ReadSegments("0007", (Span(1, 2, 5),)),
    "a path": ReadPath("0007", "", uid(HEAD), 5),
    "the head of a long thread": ReadCheckpoint("long", ""),
    "an early checkpoint of a long thread": ReadCheckpoint("long", "", "00000007"),
    "the end of a long log": ReadSegments("long", (Span(1, 2990, 3000),)),
    "a path in a long thread": ReadPath("long", "", "00002999", 5),
    "a page of a long thread": scan(thread="long", ns=""),
    "a page of a thread": scan(thread="0007", ns=""),
    "a page of all threads": scan(),
    "the next page of all threads": scan(after=(uid(HEAD), "0007", "")),
    "by id in all threads": scan(id=uid(HEAD)),
    "a filter that few rows match": scan(filter={"run_id": "7/3"}),
    "a filter that few rows of a thread match": scan(thread="0007", filter={"run_id": "7/3"}),
    "everything of a thread": ReadThread("0007"),
    "threads": FindThreads(None, 20),
    "threads behind a cursor": FindThreads("0300", 20),
    "all threads behind a cursor": FindThreads("0300", 20, empty=True),
    "threads of runs": FindThreads(None, 20, ("7/3", "8/4")),
    "threads of runs behind a cursor": FindThreads("0001", 20, ("7/3", "8/4")),
    "a page of a tenant": scan(prefix="000"),
    "the next page of a tenant": scan(prefix="000", after=(uid(HEAD), "0007", "")),
    "a filter in a tenant": scan(prefix="000", filter={"run_id": "7/3"}),
    "threads of a tenant": FindThreads(None, 20, prefix="000"),
    "threads of a tenant behind a cursor": FindThreads("0003", 20, prefix="000"),
    "runs of a tenant": FindThreads(None, 20, ("7/3", "8/4"), prefix="000"),
    "sizes of a tenant": ReadSizes("0003", 5, "000"),
    "a search of a tenant": SearchThreads(
        ThreadQuery(prefix="000"), "updated_at", descending=True, after=None, limit=20
    ),
    "active threads of a tenant": CountThreads(ThreadQuery(("active",), prefix="000")),
}


def nodes(plan):
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def shown(plan, depth=0):
    what = plan["Node Type"], plan.get("Relation Name"), plan.get("Index Name")
    rows = plan["Actual Rows"], plan.get("Rows Removed by Filter", 0), plan["Actual Loops"]
    terms = plan.get("Index Cond"), plan.get("Filter")
    lines = [f"{'  ' * depth}{what} {rows} {terms}"]
    return "\n".join([*lines, *(shown(below, depth + 1) for below in plan.get("Plans", ()))])


def as_text(value):
    """A parameter for a text of SQL, as the client fills it in."""
    return [n for _, n in iter_unpack("!iq", value[20:])] if isinstance(value, Array) else value


def plans(db, read, mode):
    """Return the plan of each statement of a read, and the number of rows it touched."""
    for statement in reads.query(read).statements:
        db.execute(f"SET plan_cache_mode = {mode if statement.keep else 'force_custom_plan'}")
        text = statement.sql.replace("{schema}", db.schema_of_test)
        values = [*map(as_text, statement.values)]
        count = len(values)
        db.execute("DEALLOCATE ALL")
        for n in range(count):
            text = text.replace("%s", f"${n + 1}", 1)
        db.execute("PREPARE asked AS " + text)
        given = f"({', '.join(['%s'] * count)})" if count else ""
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE asked{given}"
        with psycopg.ClientCursor(db) as cursor:
            for _ in range(6 if mode == "auto" else 0):
                cursor.execute(f"EXECUTE asked{given}", values)
            ((((plan,),),),) = [cursor.execute(explain, values).fetchall()]
        yield plan["Plan"]


def seen(node):
    """Rows that were looked at, each time."""
    return node["Actual Rows"] + node.get("Rows Removed by Filter", 0)


def touched(plan):
    """Rows that were looked at, whether they were wanted or not."""
    found = [node for node in nodes(plan) if "Relation Name" in node]
    return sum(seen(node) * node["Actual Loops"] for node in found)


@pytest.mark.parametrize("mode", ["force_custom_plan", "auto"])
@pytest.mark.parametrize("asked", READS)
def test_reads_use_indexes(db, asked, mode):
    """With the values at hand; and as a prepared statement that was asked often before."""
    for plan in plans(db, READS[asked], mode):
        scanned = [n for n in nodes(plan) if n["Node Type"] == "Seq Scan" and seen(n) > FEW]
        assert scanned == [], shown(plan)
        assert touched(plan) < MOST, shown(plan)


@pytest.mark.parametrize("asked", ["segments", "the end of a long log"])
def test_segments_are_found_by_index_whatever_the_estimate(db, asked):
    """A plan for any thread expects few segments, and this one has thousands."""
    for plan in plans(db, READS[asked], "force_generic_plan"):
        assert touched(plan) < MOST, shown(plan)


@pytest.fixture(scope="module")
def role():
    """A connection of a role that sees ten threads among thousands."""
    schema, names = empty_schema(granted), Names("acme")
    backend = PostgresBackend(url(), schema=schema)
    fill(owning(for_tenant(backend, names), backend), schema, names.stored("0009"))
    at = url_of_role(f"{url()}?schema={schema}", "acme")
    with connected(at.partition("?")[0], schema) as connection:
        yield connection


@pytest.mark.parametrize("mode", ["force_custom_plan", "auto"])
@pytest.mark.parametrize("asked", READS)
def test_reads_of_a_role_use_indexes(role, asked, mode):
    """A filter of metadata reads all rows of the tenant; nothing reads all rows of the store."""
    most = 4 * MOST if "filter" in asked or "runs" in asked else MOST
    for plan in plans(role, Names("acme").to_store(READS[asked]), mode):
        scanned = [n for n in nodes(plan) if n["Node Type"] == "Seq Scan" and seen(n) > FEW]
        assert scanned == [], shown(plan)
        assert touched(plan) < most, shown(plan)


SPACES = """
INSERT INTO store_items (path, key, version, created_at, updated_at, body)
SELECT %(label)s || '.users.' || n || '.', 'k', n, 1, 1, '{}' FROM generate_series(1, 2000) n;
ANALYZE store_items
"""


def test_an_item_of_a_role_is_found_by_index(role):
    """The policy of items reads no other rows of the tenant."""
    with connected(url(), role.schema_of_test) as owner, psycopg.ClientCursor(owner) as cursor:
        cursor.execute(SPACES, {"label": label("acme")})
    (statement,) = item_queries.query(
        GetItems((((label("acme"), "users", "7"), "k"),)), ""
    ).statements
    with psycopg.Cursor(role) as cursor:
        register_types(cursor.adapters)
        text = "EXPLAIN (ANALYZE, FORMAT JSON) " + statement.sql.replace("{schema}.", "")
        ((plan,),) = cursor.execute(text, statement.values).fetchone()
        assert plan["Plan"]["Actual Rows"] == 1
        assert touched(plan["Plan"]) < 9, shown(plan["Plan"])


def test_saves_of_a_role_use_indexes(role):
    names, known = Names("acme"), ["long", *[f"{n:04}" for n in range(THREADS)]]
    with psycopg.Cursor(role) as cursor:
        register_types(cursor.adapters)
        for number in range(10, 20):
            group = [names.change(groups_batch(thread, number)) for thread in known]
            for statement in saving(role, group), *[saving(role, [one]) for one in group[:2]]:
                text = statement.sql.replace("{schema}", role.schema_of_test)
                with role.transaction(force_rollback=True):
                    before = rows_read(role)
                    cursor.execute(text, statement.values)
                    sequential, by_index = map(int.__sub__, rows_read(role), before)
                assert sequential < MOST
                assert by_index < MOST


ROWS_READ = """
SELECT coalesce(sum(seq_tup_read), 0)::bigint, coalesce(sum(idx_tup_fetch), 0)::bigint
FROM pg_stat_xact_user_tables WHERE schemaname = %s
"""


def rows_read(db):
    """Rows that this session has read from tables: from end to end, and by an index."""
    return db.execute(ROWS_READ, (db.schema_of_test,)).fetchone()


def saving(db, group):
    """The statement of a group whose heads are known."""
    made = []
    for batch in group:
        query = reads.query(ReadHead(batch.thread))
        text = query.statements[0].sql.replace("{schema}", db.schema_of_test)
        found = db.execute(text, query.statements[0].values).fetchall()
        made.append(plain_move(query.reply([found]), batch, new_tip()))
    (((_, (statement,)),),) = [[*moves.statements(made)]]
    return statement


def groups_batch(thread, number):
    rows = {"segments": (segment(10_000 + number),), "checkpoints": (checkpoint(50_000 + number),)}
    writes = (write(50_000 + number), write(50_000 + number))
    touch = EntryUpdate(9, saves=True, event=StatusEvent("unfinished", uid(50_000 + number)))
    return Batch(thread, NOW, 0, 0, **rows, writes=writes, touch=touch)


def test_a_group_uses_indexes(db):
    """Of known threads and new ones, and also when its plans were made before."""
    known = [f"1{n:04}" for n in range(1, 20)]
    with psycopg.Cursor(db) as cursor:
        register_types(cursor.adapters)
        for number in range(10, 13):
            group = [groups_batch(thread, number) for thread in (*known, f"new {number}")]
            statement = saving(db, group)
            text = statement.sql.replace("{schema}", db.schema_of_test)
            with db.transaction():
                before = rows_read(db)
                assert len(cursor.execute(text, statement.values).fetchall()) == len(group)
                sequential, by_index = map(int.__sub__, rows_read(db), before)
            assert sequential < MOST
            assert 20 <= by_index < MOST


STATUSES = """
INSERT INTO threads (thread_id, tips, logs, state, created_at, updated_at, status, status_at)
SELECT 'status ' || n, tips, logs, 'active', to_timestamp(n), to_timestamp(n),
    CASE WHEN n % 500 = 0 THEN 'failed' WHEN n % 50 = 0 THEN 'waiting' END, 'x'
FROM generate_series(1, 5000) n, threads WHERE thread_id = '0009';
ANALYZE threads
"""


@pytest.fixture(scope="module")
def statuses():
    """A connection to a store of thousands of threads; a few have failed or wait."""
    schema = empty_schema()
    backend = PostgresBackend(url(), schema=schema)
    backend.commit(Batch("0009", NOW))
    backend.close()
    with connected(url(), schema) as connection:
        connection.execute(STATUSES)
        yield connection


BY_STATUS = {
    name: (SearchThreads(query, "updated_at", descending=True, after=None, limit=20), rows)
    for name, query, rows in (
        ("failed", ThreadQuery(statuses=("failed",)), 10),
        ("failed and active", ThreadQuery(("active",), statuses=("failed",)), 10),
        ("failed lately", ThreadQuery(statuses=("failed",), updated=(4000 * 10**6, None)), 2),
    )
}
BY_STATUS["count"] = CountThreads(ThreadQuery(statuses=("failed", "waiting"))), 100


@pytest.mark.parametrize("asked", BY_STATUS)
def test_failed_threads_are_found_by_index(statuses, asked):
    read, rows = BY_STATUS[asked]
    (plan,) = plans(statuses, read, "force_custom_plan")
    used = {node.get("Index Name") for node in nodes(plan)} - {None, "thread_labels_pkey"}
    assert used == {"threads_by_status"}, shown(plan)
    assert touched(plan) <= 2 * rows, shown(plan)


def test_a_page_of_failed_threads_is_not_sorted(statuses):
    """Each page is read from the index in its order, and not beyond its end."""
    first, _ = BY_STATUS["failed"]
    for read in (first, first._replace(after=(4500 * 10**6, "status 4500"))):
        (plan,) = plans(statuses, read._replace(limit=3), "force_custom_plan")
        assert "Sort" not in {node["Node Type"] for node in nodes(plan)}, shown(plan)
        assert touched(plan) <= 4, shown(plan)


def test_a_sequential_scan_would_be_seen(db):
    db.execute(
        "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off"
    )
    try:
        (plan,) = plans(db, READS["the head of a thread"], "force_custom_plan")
    finally:
        db.execute("RESET ALL")
    assert any(node["Node Type"] == "Seq Scan" for node in nodes(plan))
    assert touched(plan) > MOST
