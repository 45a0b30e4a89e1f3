"""`partition_by="month"`: partitions are made, rows are moved, a DBA drops months."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from kit.postgres_databases import (
    ADVISORY,
    MADE,
    NOW,
    Writer,
    execute,
    migrate,
    partitions,
    put_as,
    set_up,
    set_up_at_once,
    wait_for_a_lock,
    works,
)
from kit.postgres_server import SECONDS
from kit.rows import checkpoint, metadata, place, put, value_at
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from threadkeep import AsyncPostgresSaver, PostgresSaver, open_saver
from threadkeep.__main__ import main
from threadkeep._stores.postgres import connections as backends
from threadkeep._stores.postgres.migrations import Month, ahead
from threadkeep.errors import BackendError, InvalidArgumentError, ReadOnlyError

LATER = datetime(2027, 2, 1, tzinfo=UTC)
# What may name a checkpoint, and the partition that it belongs into at last.
PLACES = {
    Month(2026, 11).start + "-8000-000000000000": "checkpoints_2026_11",
    Month(2026, 12).start[:-4] + "5fff-8000-000000000000": "checkpoints_2026_11",
    Month(2026, 12).start + "-8000-000000000001": "checkpoints_2026_12",
    Month(2024, 5).start + "-8000-000000000002": "checkpoints_2024_05",
    Month(1990, 5).start + "-8000-000000000003": "checkpoints_default",
    Month(2030, 5).start + "-8000-000000000004": "checkpoints_default",
    Month(2024, 5).start.upper() + "-8000-000000000005": "checkpoints_default",
    "43bf8a5e-37d6-43a5-8196-5c23ed962d8a": "checkpoints_default",
    "1f1d6000-37d6-43a5-8196-5c23ed962d8a": "checkpoints_2026_11",
    "zzz": "checkpoints_default",
    "ünï'\0\1": "checkpoints_default",
    "1": "checkpoints_default",
}


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Set the time by which partitions are made."""

    def turn(moment):
        monkeypatch.setattr(backends, "now", lambda: moment)

    turn(NOW)
    return turn


def places(database):
    """In which partition each checkpoint lies."""
    text = "SELECT checkpoint_id, tableoid::regclass::text FROM threadkeep.checkpoints"
    return {key: name.rpartition(".")[2] for key, name in execute(database, text)}


def packed(key):
    return key.replace("\1", "\1\2").replace("\0", "\1\1")


# -- the option ------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["week", "", "Month", 1, True, ["month"]])
def test_any_other_value_is_refused(given):
    with pytest.raises(InvalidArgumentError, match=r"partition_by(.|\n)*'month'"):
        PostgresSaver("postgresql://127.0.0.1/x", partition_by=given)


@pytest.mark.parametrize("given", ["week", "", "Month"])
def test_any_other_value_in_a_url_is_refused(given, capsys):
    assert main(["migrate", f"postgresql://127.0.0.1/x?partition_by={given}"]) == 2
    assert "'month'" in capsys.readouterr().err


def test_by_options(database):
    with open_saver(database, partition_by="month") as saver:
        saver.setup()
        works(saver)
    assert partitions(database) == MADE


def test_by_a_url(database):
    code, out, error = migrate(f"{database}?schema=agents&partition_by=month")
    assert (code, out.count("\n"), error) == (0, 1, "")
    months = ahead(datetime.now(UTC), 3)
    named = {f"checkpoints_{month.name}" for month in months}
    assert named | {"checkpoints_default"} <= partitions(database, "agents")


async def test_by_awaiting(database):
    async with AsyncPostgresSaver(database, partition_by="month") as saver:
        await saver.setup()
    assert partitions(database) == MADE


def test_on_a_given_pool_and_connection(database):
    with ConnectionPool(database, min_size=1, open=True) as pool:
        set_up(pool)
    assert partitions(database) == MADE
    with psycopg.connect(database) as connection:
        saver = PostgresSaver(connection, schema="other", partition_by="month")
        saver.setup()
        works(saver)
    assert partitions(database, "other") == MADE


async def test_on_a_given_async_pool(database):
    async with AsyncConnectionPool(database, min_size=1, open=False) as pool:
        saver = AsyncPostgresSaver(pool, partition_by="month")
        await saver.setup()
    assert partitions(database) == MADE


@pytest.mark.parametrize("name", ['a"b', "it's", "{literal}", "x" * 63])
def test_in_schemas_of_any_name(database, name):
    set_up(database, schema=name)
    with PostgresSaver(database, schema=name) as saver:
        works(saver)
    query = "SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent"
    assert execute(database, query + " WHERE c.relname = 'checkpoints'") == [(len(MADE),)]


# -- once, twice, at once --------------------------------------------------------------


def test_to_find_that_nothing_is_to_be_done_takes_no_lock(database):
    set_up(database)
    with psycopg.connect(database) as rival:
        rival.execute(ADVISORY)
        rival.execute(
            "LOCK threadkeep.checkpoints, threadkeep.checkpoints_default IN ACCESS EXCLUSIVE MODE"
        )
        set_up(database)
    assert partitions(database) == MADE


def test_ten_processes_at_once_on_an_empty_database(database):
    set_up_at_once(database, 10, partition_by="month")
    assert len(partitions(database)) == len(MADE)
    with PostgresSaver(database) as saver:
        works(saver)


def test_ten_processes_at_once_next_to_a_writer(database):
    with PostgresSaver(database) as saver:
        saver.setup()
        writer = Writer(database)
        try:
            set_up_at_once(database, 10, partition_by="month")
        finally:
            steps = writer.finish()
        found = [found.checkpoint["channel_values"] for found in saver.list(place())]
        assert found == [{"value": step} for step in range(steps, 0, -1)]
        assert saver.check().ok
    assert len(partitions(database)) == len(MADE)
    assert "checkpoints_default" not in places(database).values()


# -- months to come --------------------------------------------------------------------


def test_partitions_are_made_ahead(database, clock):
    set_up(database)
    clock(LATER)
    set_up(database)
    names = ("2027_02", "2027_03", "2027_04", "2027_05", "default")
    assert partitions(database) == {f"checkpoints_{name}" for name in names}, "and empty ones go"


def test_rows_of_a_new_month_are_moved_out_of_the_default_partition(database, clock):
    set_up(database)
    keys = [
        Month(2027, 3).start + "-8000-000000000001",
        Month(2027, 5).start + "-8000-000000000002",
        Month(2027, 6).start + "-8000-000000000003",
        "zzz",
    ]
    with PostgresSaver(database) as saver:
        for n, key in enumerate(keys):
            put_as(saver, key, n)
        assert set(places(database).values()) == {"checkpoints_default"}
        before = execute(database, "SELECT * FROM threadkeep.checkpoints ORDER BY 3")
        clock(LATER)
        set_up(database)
        assert execute(database, "SELECT * FROM threadkeep.checkpoints ORDER BY 3") == before
        assert [value_at(saver, place(checkpoint=key)) for key in keys] == [0, 1, 2, 3]
        assert [found.config["configurable"]["checkpoint_id"] for found in saver.list(None)] == (
            sorted(keys, reverse=True)
        )
        assert saver.check().ok
    now = ["checkpoints_2027_03", "checkpoints_2027_05", *["checkpoints_default"] * 2]
    assert places(database) == dict(zip(keys, now, strict=True))


def test_a_row_that_is_being_added_to_the_default_partition_is_waited_for(database, clock):
    set_up(database)
    with PostgresSaver(database) as saver:
        put_as(saver, "zzz", 1)
    clock(LATER)
    key = Month(2027, 3).start + "-8000-000000000001"
    copy = "UPDATE threadkeep.checkpoints SET checkpoint_id = %s"
    with psycopg.connect(database) as rival, ThreadPoolExecutor(1) as pool:
        rival.execute(copy, (key,))
        waiting = pool.submit(set_up, database)
        wait_for_a_lock(database, waiting)
        rival.commit()
        waiting.result(SECONDS)
    assert places(database) == {key: "checkpoints_2027_03"}


def test_without_the_option_partitions_are_left_alone(database, clock):
    set_up(database)
    clock(LATER)
    with PostgresSaver(database) as saver:
        saver.setup()
        works(saver)
    assert partitions(database) == MADE


def test_a_default_partition_that_was_dropped_is_made_again(database):
    set_up(database)
    execute(database, "DROP TABLE threadkeep.checkpoints_default")
    set_up(database)
    assert partitions(database) == MADE
    with PostgresSaver(database) as saver:
        put_as(saver, "zzz", 1)
        assert saver.check().ok


def test_a_table_in_the_way_is_named(database, clock):
    set_up(database)
    name = "checkpoints_2026_12"
    execute(database, f"ALTER TABLE threadkeep.checkpoints DETACH PARTITION threadkeep.{name}")
    clock(LATER - timedelta(days=70))
    with pytest.raises(BackendError, match=rf"{name}(.|\n)*Attach"):
        set_up(database)
    execute(database, f"DROP TABLE threadkeep.{name}")
    set_up(database)
    assert partitions(database) == MADE


# -- tables that were there before -------------------------------------------------------

INDEXES = """
SELECT c.relname, pg_get_indexdef(i.indexrelid)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = 'threadkeep.checkpoints'::regclass ORDER BY 1
"""
COLUMNS = """
SELECT attname, atttypid, attnotnull, attstorage, attcollation, atthasdef,
    col_description(attrelid, attnum)
FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum
"""


def test_tables_that_were_there_are_parted_with_all_that_they_had(database):
    with PostgresSaver(database) as saver:
        saver.setup()
        for n, key in enumerate(PLACES):
            put_as(saver, key, n)
            put_as(saver, key, -n, thread="other")
        execute(database, "CREATE INDEX mine ON threadkeep.checkpoints (run) WHERE run > 0")
        text = "SELECT * FROM threadkeep.checkpoints ORDER BY 1, 2, 3"
        before = execute(database, text), execute(database, COLUMNS, "threadkeep.checkpoints")
        names = execute(database, INDEXES)
        set_up(database)
        after = execute(database, text), execute(database, COLUMNS, "threadkeep.checkpoints")
        assert after == before
        assert [
            (name, text.replace(" ON ONLY ", " ON ")) for name, text in execute(database, INDEXES)
        ] == names
        # (the first digits of ids from a month's first minutes are of the month before, too)
        also = {"checkpoints_2024_04", "checkpoints_2026_10"}
        assert partitions(database) == MADE | also | set(PLACES.values())
        for name in partitions(database):
            assert execute(database, COLUMNS, f"threadkeep.{name}") == before[1]
        assert places(database) == {packed(key): name for key, name in PLACES.items()}
        for n, key in enumerate(PLACES):
            assert value_at(saver, place(checkpoint=key)) == n
            assert value_at(saver, place("other", key)) == -n
        assert saver.check().ok
        saver.delete_thread("thread")
        works(saver)
    valid = "SELECT DISTINCT indisvalid FROM pg_index WHERE indrelid = %s::regclass"
    assert execute(database, valid, "threadkeep.checkpoints") == [(True,)]


TRIGGER = "EXECUTE FUNCTION suppress_redundant_updates_trigger()"
LEFT_BEHIND = {
    "a view": ("CREATE VIEW mine AS SELECT * FROM threadkeep.checkpoints", "DROP VIEW mine"),
    "a publication": (
        "CREATE PUBLICATION mine FOR TABLE threadkeep.checkpoints",
        "DROP PUBLICATION mine",
    ),
    "a policy": (
        "CREATE POLICY mine ON threadkeep.checkpoints USING (true)",
        "DROP POLICY mine ON threadkeep.checkpoints",
    ),
    "row security": (
        "ALTER TABLE threadkeep.checkpoints ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE threadkeep.checkpoints DISABLE ROW LEVEL SECURITY",
    ),
    "a trigger": (
        f"CREATE TRIGGER mine BEFORE UPDATE ON threadkeep.checkpoints FOR EACH ROW {TRIGGER}",
        "DROP TRIGGER mine ON threadkeep.checkpoints",
    ),
    "a grant on a column": (
        "GRANT SELECT (run) ON threadkeep.checkpoints TO PUBLIC",
        "REVOKE SELECT (run) ON threadkeep.checkpoints FROM PUBLIC",
    ),
}


@pytest.mark.parametrize("what", LEFT_BEHIND)
def test_what_a_new_table_would_not_have_is_not_left_behind(database, what):
    make, drop = LEFT_BEHIND[what]
    with PostgresSaver(database) as saver:
        saver.setup()
        put_as(saver, "zzz", 1)
        execute(database, make)
        with pytest.raises(BackendError, match=r"policies, triggers(.|\n)*Leave partition_by out"):
            set_up(database)
        assert (partitions(database), value_at(saver, place())) == (set(), 1)
        execute(database, drop)
        set_up(database)
        assert (partitions(database), value_at(saver, place())) == (MADE, 1)


def test_a_table_that_is_partitioned_in_another_way_is_left_alone(database):
    with PostgresSaver(database) as saver:
        saver.setup()
        text = (
            "CREATE TABLE threadkeep.new (LIKE threadkeep.checkpoints INCLUDING ALL)"
            " PARTITION BY HASH (thread_id);"
            " CREATE TABLE threadkeep.only PARTITION OF threadkeep.new"
            " FOR VALUES WITH (MODULUS 1, REMAINDER 0);"
            " DROP TABLE threadkeep.checkpoints;"
            " ALTER TABLE threadkeep.new RENAME TO checkpoints"
        )
        execute(database, text)
        with pytest.raises(InvalidArgumentError, match=r"not by(.|\n)*Leave partition_by out"):
            set_up(database)
        saver.setup()
        works(saver)
    assert partitions(database) == {"only"}


def test_an_old_snapshot_is_refused(database):
    with PostgresSaver(database) as saver:
        saver.setup()
    with psycopg.connect(database, autocommit=True) as given:
        given.execute("SET default_transaction_isolation = 'repeatable read'")
        with pytest.raises(BackendError, match="READ COMMITTED"):
            PostgresSaver(given, partition_by="month").setup()
    assert partitions(database) == set()


# -- rights ----------------------------------------------------------------------------


def test_a_program_without_rights_leaves_it_to_the_owner(own_server, database, clock):
    name = database.rpartition("/")[2]
    execute(database, f"CREATE ROLE owner_{name} LOGIN; CREATE ROLE app_{name} LOGIN")
    execute(database, f"GRANT CREATE ON DATABASE {name} TO owner_{name}")
    owner = own_server.url(user=f"owner_{name}", database=name)
    app = own_server.url(user=f"app_{name}", database=name)
    with PostgresSaver(owner) as saver:
        saver.setup()
    execute(
        owner,
        f"GRANT USAGE ON SCHEMA threadkeep TO app_{name};"
        f" GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA threadkeep TO app_{name}",
    )
    with PostgresSaver(app, partition_by="month") as saver:
        with pytest.raises(ReadOnlyError, match="owns the schema"):
            saver.setup()
        set_up(database)  # as the superuser: the tables are the owner's all the same
        saver.setup()
        works(saver)
        put_as(saver, Month(2027, 3).start + "-8000-000000000000", 1)
        clock(LATER)
        saver.setup()
        assert partitions(database) == MADE
        set_up(owner)
        assert set(places(database).values()) == {"checkpoints_2027_03"}
        assert value_at(saver, place()) == 1
        assert saver.stats().threads
    owners = "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'threadkeep'"
    assert execute(database, owners) == [(f"owner_{name}",)]


# -- months that are dropped -------------------------------------------------------------


def conversation(database):
    """A thread of twenty checkpoints, half of them from May 2024; their ids."""
    keys = [
        f"{Month(year, number).start}-8000-{n:012}"
        for year, number in ((2024, 5), (2026, 11))
        for n in range(10)
    ]
    with PostgresSaver(database) as saver:
        saver.setup()
        said, parent = [], place()
        for n, key in enumerate(keys):
            said = [*said, f"message {n} " * 50]
            made = {**checkpoint({"said": said, "once": "at the start"}, said=n + 1), "id": key}
            new = made["channel_versions"] if n == 0 else {"said": n + 1}
            parent = saver.put(parent, made, metadata(n), new)
            saver.put_writes(parent, [("said", n)], f"task {n}")
    set_up(database)
    return keys, said


@pytest.mark.parametrize(
    "gone", ["DROP TABLE", "ALTER TABLE threadkeep.checkpoints DETACH PARTITION"]
)
def test_without_an_old_month_newer_checkpoints_are_whole(database, gone):
    keys, said = conversation(database)
    execute(database, f"{gone} threadkeep.checkpoints_2024_05")
    with PostgresSaver(database) as saver:
        kept = keys[10:]
        found = list(saver.list(place()))
        assert [one.config["configurable"]["checkpoint_id"] for one in found] == kept[::-1]
        for n, key in enumerate(kept, 11):
            loaded = saver.get_tuple(place(checkpoint=key))
            values = loaded.checkpoint["channel_values"]
            assert values == {"said": said[:n], "once": "at the start"}
            assert loaded.pending_writes == [(f"task {n - 1}", "said", n - 1)]
        assert saver.get_tuple(place(checkpoint=kept[0])).parent_config == place(checkpoint=keys[9])
        assert saver.get_tuple(place(checkpoint=keys[9])) is None
        assert saver.check().findings == ()
        newest = put(saver, place(checkpoint=kept[-1]), {"said": [*said, "more"]}, said=99)
        assert value_at(saver, newest, "said") == [*said, "more"]
        saver.prune(["thread"])
        assert value_at(saver, place(), "said") == [*said, "more"]
        assert saver.check().findings == ()
        saver.delete_thread("thread")
        assert [rows(database, table) for table in ("segments", "writes")] == [0, 0]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_thread_goes_on_whose_checkpoints_are_all_dropped(database, is_known):
    """By a saver that remembers them; and by another, for which it is a new thread."""
    old = Month(2024, 5).start
    with PostgresSaver(database) as first, PostgresSaver(database) as second:
        first.setup()
        put_as(first, f"{old}-8000-000000000001", ["a", "b"])
        set_up(database)
        last = put_as(
            first, f"{old}-8000-000000000002", ["a", "b", "c"], f"{old}-8000-000000000001"
        )
        execute(database, "DROP TABLE threadkeep.checkpoints_2024_05")
        assert second.get_tuple(place()) is None
        saver, parent = (first, last) if is_known else (second, place())
        values = {"value": ["a", "b", "c", "d"]}
        put(saver, parent, values, value=9)
        for one in (first, second):
            assert one.get_tuple(place()).checkpoint["channel_values"] == values
            assert one.check().findings == ()


def test_segments_of_a_dropped_month_stay_until_their_thread_is_pruned(database):
    conversation(database)
    before = rows(database, "segments"), rows(database, "writes")
    execute(database, "DROP TABLE threadkeep.checkpoints_2024_05")
    assert (rows(database, "segments"), rows(database, "writes")) == before
    with PostgresSaver(database) as saver:
        saver.prune(["thread"])
    assert rows(database, "segments") < before[0]
    assert rows(database, "writes") < before[1]


def rows(database, table):
    return execute(database, f"SELECT count(*) FROM threadkeep.{table}")[0][0]
