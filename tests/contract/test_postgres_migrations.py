"""Migrations of PostgreSQL's tables: by several roles, repeatedly, at once, and beside writers."""

import asyncio
import re
import shlex
import threading
from urllib.parse import quote

import psycopg
import pytest
from kit.postgres_databases import ADVISORY, Writer, execute, migrate, set_up_at_once, works
from kit.postgres_server import SECONDS, free_port
from kit.rows import aput, place, put
from langgraph.checkpoint.postgres import PostgresSaver as LangGraphSaver

from threadkeep import AsyncPostgresSaver, PostgresSaver
from threadkeep.__main__ import main
from threadkeep._stores.postgres import migrations
from threadkeep.errors import NewerDatabaseError, NotOursError, NotSetUpError, ReadOnlyError
from threadkeep.store import Store

# -- once, twice, at once --------------------------------------------------------------


def test_ten_processes_set_up_an_empty_database_at_once(database):
    set_up_at_once(database, 10)
    versions = execute(database, "SELECT version FROM threadkeep.migrations")
    assert versions == [(m.version,) for m in migrations.migrations()]
    with PostgresSaver(database) as saver:
        works(saver)


async def test_set_up_twice_and_by_ten_tasks(database):
    async with AsyncPostgresSaver(database) as saver:
        await asyncio.gather(*(saver.setup() for _ in range(10)))
        config = await aput(saver, place(), {"value": 1})
        await saver.setup()
        await saver.asetup()
        assert (await saver.aget_tuple(place())).config == config


def test_set_up_twice_takes_no_lock_and_changes_nothing(database):
    with PostgresSaver(database) as saver:
        saver.setup()
        config = put(saver, place(), {"value": 1})
        before = execute(database, "SELECT * FROM threadkeep.migrations")
        with psycopg.connect(database) as rival:
            rival.execute(ADVISORY)
            saver.setup()
        assert execute(database, "SELECT * FROM threadkeep.migrations") == before
        assert saver.get_tuple(place()).config == config


def test_a_set_up_that_finds_another_under_way_waits_for_it(database):
    with PostgresSaver(database) as saver, psycopg.connect(database) as rival:
        rival.execute(ADVISORY)
        waiting = threading.Thread(target=saver.setup)
        waiting.start()
        query = "SELECT 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(0.05)'"
        while not rival.execute(query).fetchone():
            rival.commit()  # a transaction sees one state of that view
        assert waiting.is_alive()
        rival.execute("SELECT pg_advisory_unlock_all()")
        rival.commit()
        waiting.join(SECONDS)
        works(saver)


# -- tables that are not there, or newer -----------------------------------------------


def test_absent_tables_are_an_error_that_says_how_to_make_them(database):
    with PostgresSaver(database) as saver:
        for call in (
            lambda: saver.get_tuple(place()),
            lambda: put(saver, place(), {"value": 1}),
            lambda: list(saver.list(None)),
            lambda: saver.delete_thread("thread"),
        ):
            with pytest.raises(NotSetUpError, match=r"setup\(\)(.|\n)*threadkeep migrate"):
                call()
        saver.setup()
        works(saver)


def test_tables_of_a_newer_release_are_left_alone(database):
    with PostgresSaver(database) as saver:
        saver.setup()
        execute(database, "INSERT INTO threadkeep.migrations (version) VALUES (9999)")
        with pytest.raises(NewerDatabaseError, match=r"version 9999(.|\n)*Upgrade"):
            saver.setup()
    assert migrate(database)[0] == 2


# -- tables of others ------------------------------------------------------------------


def test_langgraphs_tables_are_named_and_left_alone(database):
    with LangGraphSaver.from_conn_string(database) as theirs:
        theirs.setup()
        put(theirs, place(), {"value": 1})
        with PostgresSaver(database, schema="public") as saver:
            for call in (lambda: saver.get_tuple(place()), lambda: put(saver, place(), {})):
                with pytest.raises(NotSetUpError):
                    call()
            with pytest.raises(NotOursError, match="LangGraph's own PostgresSaver") as raised:
                saver.setup()
        assert theirs.get_tuple(place()) is not None
    (command,) = re.findall("threadkeep (adopt .*)", raised.value.hint)
    joint = "&" if "?" in database else "?"
    assert migrate(database)[0] == 0
    assert main(shlex.split(command.replace("URL?", database + joint))) == 0
    with PostgresSaver(database) as saver:
        assert saver.get_tuple(place()) is not None


@pytest.mark.parametrize(
    "table", ["migrations (version int)", "threads (id int)", "checkpoints (id int)"]
)
def test_tables_of_another_program_are_named_and_left_alone(database, table):
    execute(database, f"CREATE SCHEMA app; CREATE TABLE app.{table}")
    named = pytest.raises(NotOursError, match=f"another program(.|\n)*{table.split()[0]}")
    with PostgresSaver(database, schema="app") as saver, named:
        saver.setup()
    query = "SELECT count(*) FROM pg_class WHERE relnamespace = 'app'::regnamespace"
    assert execute(database, query) == [(1,)]


# -- rights ----------------------------------------------------------------------------


def test_a_role_without_rights_to_make_tables_works_once_the_owner_has_migrated(
    own_server, database
):
    name = database.rpartition("/")[2]
    execute(database, f"CREATE ROLE owner_{name} LOGIN; CREATE ROLE app_{name} LOGIN")
    execute(
        database,
        f"REVOKE ALL ON DATABASE {name} FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC",
    )
    execute(database, f"GRANT CONNECT ON DATABASE {name} TO app_{name}")
    execute(database, f"GRANT CONNECT, CREATE ON DATABASE {name} TO owner_{name}")
    owner = own_server.url(user=f"owner_{name}", database=name)
    app = own_server.url(user=f"app_{name}", database=name)
    with PostgresSaver(app, schema="agents") as saver:
        with pytest.raises(ReadOnlyError, match="owns the schema"):
            saver.setup()
        code, out, error = migrate(f"{owner}?schema=agents")
        assert (code, error) == (0, "")
        assert out.count("\n") == 1
        grants = GRANTS.format(schema="agents", role=f"app_{name}")
        execute(owner, grants)
        saver.setup()
        works(saver)
        saver.setup()
        assert saver.stats()
        store = Store(saver.backend)
        store.put(("a",), "key", {"n": 1})
        assert store.get(("a",), "key").value == {"n": 1}


# As docs/operating-postgres.md has them.
GRANTS = """
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};
GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role};
ALTER DEFAULT PRIVILEGES IN SCHEMA {schema}
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role};
"""


def test_an_owner_of_a_schema_needs_no_right_on_the_database(own_server, database):
    name = database.rpartition("/")[2]
    execute(database, f"CREATE ROLE tenant_{name} LOGIN")
    execute(database, f"CREATE SCHEMA mine AUTHORIZATION tenant_{name}")
    tenant = own_server.url(user=f"tenant_{name}", database=name)
    with PostgresSaver(tenant, schema="mine") as saver:
        saver.setup()
        works(saver)


# -- names -----------------------------------------------------------------------------

NAMES = [
    "my-app",
    'a"b',
    "ünï",
    "it's",
    "select",
    "Mixed Case",
    "x" * 63,
    "{literal}",
    "a\\b",
    "é" * 31,
]


@pytest.mark.parametrize("name", NAMES)
def test_schemas_of_any_name(database, name):
    assert main(["migrate", f"{database}?schema={quote(name)}"]) == 0
    with PostgresSaver(database, schema=name) as saver:
        saver.setup()
        works(saver)
        assert saver.stats()
    with PostgresSaver(f"{database}?schema={quote(name)}") as saver:
        works(saver)
    found = execute(database, "SELECT 1 FROM pg_namespace WHERE nspname = %s", name)
    assert len(found) == 1


# -- new versions ----------------------------------------------------------------------


def add_versions(monkeypatch, *added):
    known = migrations.migrations()
    more = [migrations.Migration(1000 + n, text) for n, text in enumerate(added)]
    monkeypatch.setattr(migrations, "migrations", lambda: [*known, *more])


def test_new_versions_are_applied_next_to_writers_and_several_migrators(database, monkeypatch):
    with PostgresSaver(database) as saver:
        saver.setup()
        add_versions(
            monkeypatch,
            "ALTER TABLE {schema}.threads ADD COLUMN note text",
            "CREATE INDEX by_task ON {schema}.writes (thread_id, task_id)",
        )
        writers = [Writer(database)]
        migrators = [threading.Thread(target=saver.setup) for _ in range(4)]
        for one in migrators:
            one.start()
        for one in migrators:
            one.join(SECONDS)
        assert sum(one.finish() for one in writers) > 0
        query = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'threadkeep.by_task'::regclass"
        assert execute(database, query) == [(True,)]
        versions = execute(database, "SELECT version FROM threadkeep.migrations ORDER BY 1")
        assert versions[-2:] == [(1000,), (1001,)]
        assert saver.check().ok


def test_a_version_that_fails_leaves_nothing_and_no_lock(database, monkeypatch):
    with PostgresSaver(database) as saver:
        with monkeypatch.context() as broken:
            add_versions(broken, "CREATE TABLE {schema}.half (x int); SELECT 1/0")
            with pytest.raises(Exception, match="division by zero"):
                saver.setup()
        query = "SELECT to_regclass('threadkeep.half'), max(version) FROM threadkeep.migrations"
        assert execute(database, query) == [(None, migrations.migrations()[-1].version)]
        locks = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'"
        assert execute(database, locks) == []
        add_versions(monkeypatch, "ALTER TABLE {schema}.threads ADD COLUMN note text")
        saver.setup()
        works(saver)


# -- the command -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "postgresql://[half",
        "postgresql://u:swordfish@127.0.0.1:{port}/x",
        "postgresql://127.0.0.1/x?nonsense=1",
        "postgresql://127.0.0.1/x?schema=",
        "mysql://127.0.0.1/x",
        "{server}/absent",
    ],
)
def test_a_bad_url_is_one_clear_line(own_server, capsys, url):
    base = own_server.url().rpartition("/")[0]
    assert main(["migrate", url.format(port=free_port(), server=base)]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("threadkeep: ")
    assert error.count("\n") == 1
    assert "swordfish" not in error
