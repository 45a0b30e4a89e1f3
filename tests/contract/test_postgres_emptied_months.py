"""`partition_by="month"`: months of the past that hold nothing any more are dropped."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from kit.postgres_databases import (
    ADVISORY,
    MADE,
    NOW,
    Writer,
    execute,
    partitions,
    put_as,
    set_up,
    set_up_at_once,
    wait_for_a_lock,
    works,
)
from kit.postgres_server import SECONDS
from kit.rows import place, value_at

from threadkeep import PostgresSaver, Retention
from threadkeep._stores.postgres import connections as backends
from threadkeep._stores.postgres import migrations as module
from threadkeep._stores.postgres.migrations import Month
from threadkeep.errors import BackendError

OLD, OLDER = Month(2024, 5), Month(2023, 7)
GONE, ALSO = "checkpoints_2024_05", "checkpoints_2023_07"
PARENT = "threadkeep.checkpoints"


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monkeypatch.setattr(backends, "now", lambda: NOW)


@pytest.fixture
def patience(monkeypatch):
    """Set how long locks are waited for."""
    return lambda given: monkeypatch.setattr(module, "_LOCK_TIMEOUT", given)


def some_days_into(month, number=1):
    """The id of a checkpoint, whose first digits name no other month."""
    return f"{int(month.start[:8], 16) + 0x4000:08x}{month.start[8:]}-8000-{number:012}"


def save(database, *months, thread="old"):
    with PostgresSaver(database) as saver:
        saver.setup()
        for month in months:
            put_as(saver, some_days_into(month), 1, thread=thread)


def empty(database, thread="old"):
    with PostgresSaver(database) as saver:
        saver.delete_thread(thread)


@pytest.fixture
def old(database):
    """A database with a month of the past whose only thread was deleted."""
    save(database, OLD)
    set_up(database)
    assert partitions(database) == MADE | {GONE}
    empty(database)
    return database


# -- they go -----------------------------------------------------------------------------


def test_an_emptied_month_goes_and_its_space_with_it(database):
    save(database, OLD)
    set_up(database)
    sizes = "SELECT pg_relation_filepath(%s), pg_total_relation_size(%s) > 0"
    ((path, has_size),) = execute(database, sizes, f"threadkeep.{GONE}", f"threadkeep.{GONE}")
    empty(database)
    on_disk = "SELECT size FROM pg_stat_file(%s, true) WHERE size > 0"
    assert has_size
    assert execute(database, on_disk, path) != []
    set_up(database)
    assert partitions(database) == MADE
    assert execute(database, on_disk, path) == []
    assert execute(database, "SELECT to_regclass(%s)", f"threadkeep.{GONE}") == [(None,)]


def test_what_retention_has_emptied_goes(database):
    with PostgresSaver(database) as saver:
        saver.setup()
        parent, keys = None, []
        for number in range(20):
            keys.append(some_days_into(OLD if number < 12 else Month.of(NOW), number))
            put_as(saver, keys[-1], number, parent)
            parent = keys[-1]
        set_up(database)
        saver.threads.gc(Retention(keep_last=9))
        set_up(database)
        assert partitions(database) == MADE | {GONE}
        saver.threads.gc(Retention(keep_last=5))
        set_up(database)
        assert partitions(database) == MADE
        found = [one.checkpoint["channel_values"]["value"] for one in saver.list(place())]
        assert found == [19, 18, 17, 16, 15]
        assert saver.check().ok


def test_all_that_are_empty_go_at_once_in_a_schema_of_any_name(database):
    name = 'it\'s {literal} "x"'
    with PostgresSaver(database, schema=name) as saver:
        saver.setup()
        for month in (OLD, OLDER, Month(1999, 12)):
            put_as(saver, some_days_into(month), 1)
        before = f'"{name.replace(chr(34), chr(34) * 2)}"'
        execute(
            database,
            f"ALTER ROLE CURRENT_USER IN DATABASE {database.rpartition('/')[2]}"
            " SET search_path = ''",
        )
        set_up(database, schema=name)
        assert len(partitions(database, before)) == len(MADE) + 2, "1999 is too long ago"
        saver.delete_thread("thread")
        set_up(database, schema=name)
        assert partitions(database, before) == MADE
        works(saver)


def test_what_comes_later_for_it_has_the_default_partition(old):
    set_up(old)
    with PostgresSaver(old) as saver:
        put_as(saver, some_days_into(OLD, 2), "late")
        set_up(old)
        assert partitions(old) == MADE
        where = f"SELECT tableoid = 'threadkeep.checkpoints_default'::regclass FROM {PARENT}"
        assert execute(old, where) == [(True,)]
        assert value_at(saver, place()) == "late"
        assert saver.check().ok


def test_several_processes_next_to_a_writer(database):
    save(database, OLD, OLDER)
    set_up(database)
    empty(database)
    writer = Writer(database)
    try:
        set_up_at_once(database, 4, partition_by="month")
        for _ in range(20):  # (each time it waits for half a second at most)
            if {GONE, ALSO}.isdisjoint(partitions(database)):
                break
            set_up(database)
    finally:
        steps = writer.finish()
    assert {GONE, ALSO}.isdisjoint(partitions(database))
    with PostgresSaver(database) as saver:
        found = [found.checkpoint["channel_values"] for found in saver.list(place())]
        assert found == [{"value": step} for step in range(steps, 0, -1)]
        assert saver.check().ok


# -- they stay ---------------------------------------------------------------------------


def test_a_month_with_a_single_row_stays(database):
    save(database, OLD, OLDER)
    save(database, OLD, thread="last")
    set_up(database)
    empty(database)
    set_up(database)
    assert partitions(database) == MADE | {GONE}
    with PostgresSaver(database) as saver:
        assert value_at(saver, place("last")) == 1


def test_this_month_and_those_to_come_stay_though_they_are_empty(database):
    for _ in range(2):
        set_up(database)
        assert partitions(database) == MADE


INSERT = f"INSERT INTO {PARENT} SELECT (c).* FROM mine"


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
def test_a_month_that_gets_a_row_between_look_and_lock_stays(database, patience, ends):
    patience("60s")
    save(database, OLD)
    set_up(database)
    execute(database, f"CREATE TABLE mine AS SELECT c FROM {PARENT} c")
    empty(database)
    with psycopg.connect(database) as rival, ThreadPoolExecutor(1) as pool:
        rival.execute(INSERT)
        waiting = pool.submit(set_up, database)
        wait_for_a_lock(database, waiting)
        rival.execute(ends)
        waiting.result(SECONDS)
    expected = {"COMMIT": (1, {GONE}), "ROLLBACK": (0, set())}[ends]
    count = execute(database, f"SELECT count(*) FROM {PARENT}")[0][0]
    assert (count, partitions(database) - MADE) == expected


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_month_that_somebody_else_takes_away_is_no_more_ours(old, patience, is_kept):
    patience("60s")
    text = f"ALTER TABLE {PARENT} DETACH PARTITION" if is_kept else "DROP TABLE"
    with psycopg.connect(old) as rival, ThreadPoolExecutor(1) as pool:
        rival.execute(f"{text} threadkeep.{GONE}")
        waiting = pool.submit(set_up, old)
        wait_for_a_lock(old, waiting)
        rival.commit()
        waiting.result(SECONDS)
    assert partitions(old) == MADE
    there = "SELECT to_regclass(%s) IS NOT NULL"
    assert execute(old, there, f"threadkeep.{GONE}") == [(is_kept,)]


def test_who_reads_for_long_is_not_waited_for_long(old, patience):
    patience("1ms")
    with psycopg.connect(old) as rival:
        rival.execute(f"SELECT FROM {PARENT}")
        set_up(old)
        assert partitions(old) == MADE | {GONE}
    set_up(old)
    assert partitions(old) == MADE


def test_while_others_migrate_it_is_left_to_them(old, patience):
    patience("60s")
    with psycopg.connect(old) as rival:
        rival.execute(ADVISORY)
        set_up(old)
        assert partitions(old) == MADE | {GONE}


def test_to_find_that_no_month_is_empty_takes_a_readers_lock(database, patience):
    patience("60s")
    save(database, OLD, OLDER)
    set_up(database)
    with psycopg.connect(database) as rival:
        rival.execute(ADVISORY)
        rival.execute(f"LOCK {PARENT}, threadkeep.checkpoints_default IN EXCLUSIVE MODE")
        set_up(database)
        rival.execute(f"LOCK {PARENT} IN ACCESS EXCLUSIVE MODE")
        patience("1ms")
        set_up(database)
    assert partitions(database) == MADE | {GONE, ALSO}


BOUNDS = f"FROM ('{OLDER.start}') TO ('{OLDER.next.start}')"
WIDER = f"FROM ('{OLDER.start}') TO ('{OLDER.next.next.start}')"
FOREIGN = {
    "another name": f"CREATE TABLE threadkeep.mine PARTITION OF {PARENT} FOR VALUES {BOUNDS}",
    "more than a month": (
        f"CREATE TABLE threadkeep.{ALSO} PARTITION OF {PARENT} FOR VALUES {WIDER}"
    ),
    "another schema, and a table in its place": (
        f"CREATE TABLE public.{ALSO} PARTITION OF {PARENT} FOR VALUES {BOUNDS};"
        f" CREATE TABLE threadkeep.{ALSO} (LIKE {PARENT})"
    ),
    "partitions of its own": (
        f"CREATE TABLE threadkeep.{ALSO} PARTITION OF {PARENT} FOR VALUES {BOUNDS}"
        " PARTITION BY HASH (thread_id)"
    ),
    "policies, which may hide rows": (
        f"CREATE TABLE threadkeep.{ALSO} PARTITION OF {PARENT} FOR VALUES {BOUNDS};"
        f" ALTER TABLE threadkeep.{ALSO} ENABLE ROW LEVEL SECURITY"
    ),
    "a view": (
        f"CREATE TABLE threadkeep.{ALSO} PARTITION OF {PARENT} FOR VALUES {BOUNDS};"
        f" CREATE VIEW mine AS SELECT * FROM threadkeep.{ALSO}"
    ),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_not_only_ours_stays(old, what):
    execute(old, FOREIGN[what])
    others = partitions(old) - MADE - {GONE}
    tables = "SELECT oid FROM pg_class WHERE relname IN (%s, 'mine')"
    before = execute(old, tables, ALSO)
    set_up(old)
    assert partitions(old) == MADE | others, "and ours goes"
    assert execute(old, tables, ALSO) == before != []


def test_one_like_ours_goes(old):
    execute(old, f"CREATE TABLE threadkeep.{ALSO} PARTITION OF {PARENT} FOR VALUES {BOUNDS}")
    set_up(old)
    assert partitions(old) == MADE


@pytest.mark.parametrize("name", ["0000_01", "0001_01", "2024_13", "2024_5", "9999_12"])
def test_names_of_no_month_are_nobodys(old, name):
    bounds = "FROM ('0') TO ('1')"
    text = f"CREATE TABLE threadkeep.checkpoints_{name} PARTITION OF {PARENT} FOR VALUES {bounds}"
    execute(old, text)
    set_up(old)
    assert partitions(old) == MADE | {f"checkpoints_{name}"}


def test_without_the_option_nothing_is_dropped(old):
    with PostgresSaver(old) as saver:
        saver.setup()
    assert partitions(old) == MADE | {GONE}


def test_a_role_that_does_not_own_the_table_leaves_it_alone(own_server, old):
    role = f"app_{old.rpartition('/')[2]}"
    execute(
        old,
        f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA threadkeep TO {role};"
        f" GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA threadkeep TO {role}",
    )
    app = own_server.url(user=role, database=old.rpartition("/")[2])
    set_up(app)
    execute(old, f"ALTER TABLE {PARENT} OWNER TO {role}")
    set_up(app)
    assert partitions(old) == MADE | {GONE}, "the partition is another's"
    execute(old, f"ALTER TABLE threadkeep.{GONE} OWNER TO {role}")
    set_up(app)
    assert partitions(old) == MADE


def test_where_nothing_may_be_written_nothing_is_tried(old):
    set_up(f"{old}?options=-c%20default_transaction_read_only%3Don")
    assert partitions(old) == MADE | {GONE}


def test_an_old_snapshot_is_refused(old):
    with psycopg.connect(old, autocommit=True) as given:
        given.execute("SET default_transaction_isolation = 'repeatable read'")
        with pytest.raises(BackendError, match="READ COMMITTED"):
            set_up(given)
    assert partitions(old) == MADE | {GONE}
