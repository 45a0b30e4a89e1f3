"""Backups by pg_dump and pg_restore: their arguments, and refusals."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from kit.engine import Chain, everything
from kit.postgres import hashed, make, plain, url

from threadkeep import grant_role, open_saver, revoke_role
from threadkeep._stores.postgres.maintenance import Dumps
from threadkeep.errors import (
    BackendError,
    InvalidArgumentError,
    NotOursError,
    NotSetUpError,
    OpenError,
    ThreadExistsError,
    UnreachableError,
)

NOW = 1_763_000_000_000_000
SECONDS = 60  # for a program that hangs
SCHEMA = f"dumped_{os.getpid()}"


@pytest.fixture
def programs():
    folder = os.environ.get("TK_TEST_POSTGRES_BIN")
    assert folder, "no programs of PostgreSQL: run the tests with `make test`, or scripts/services"
    assert {"pg_dump", "pg_restore"} <= {file.name for file in Path(folder).iterdir()}
    return folder


def filled(layout):
    """The URL of a schema that was made so, and holds a thread."""
    make(SCHEMA, layout)
    store = f"{url()}?schema={SCHEMA}"
    with open_saver(store) as saver:
        Chain(saver, "a").put(m=["x" * 90], n=1)
    return store


@pytest.fixture
def store():
    """The URL of a schema that holds a thread."""
    return filled(plain)


@pytest.fixture
def archive(store, programs, tmp_path):
    Dumps(store, programs).back_up(tmp_path / "backup")
    return tmp_path / "backup"


def execute(text):
    with psycopg.connect(url(), autocommit=True) as db:
        cursor = db.execute(text)
        return cursor.fetchall() if cursor.description else []


def contents(store):
    with open_saver(store) as saver:
        return everything(saver)


def fake(folder, name, body):
    """A program of our own."""
    program = folder / name
    program.write_text(f"#!{sys.executable}\n{body}")
    program.chmod(0o700)
    return str(folder)


VERSION = "import sys\nif '--version' in sys.argv: sys.exit(print('pg_dump (PostgreSQL) 99.1'))\n"


# -- what the programs are given ---------------------------------------------------------


def test_a_password_is_in_no_argument(store, tmp_path):
    server = urlsplit(store)
    secret = store.replace(f"{server.username}@", f"{server.username}:s%20ecret@")
    assert secret != store
    seen = tmp_path / "seen.json"
    tell = f"import json, os\njson.dump([sys.argv, dict(os.environ)], open({str(seen)!r}, 'w'))\n"
    folder = fake(tmp_path, "pg_dump", VERSION + tell)
    Dumps(secret, folder).back_up(tmp_path / "backup")
    arguments, environment = json.loads(seen.read_text())
    assert environment["PGPASSWORD"] == "s ecret"
    assert not [argument for argument in arguments if "ecret" in argument]
    assert f'--schema="{SCHEMA}"' in arguments
    assert not [argument for argument in arguments if "schema=dumped" in argument]
    assert f"port={server.port}" in arguments[-1]


def test_other_secrets_are_refused():
    with pytest.raises(InvalidArgumentError, match="without showing it") as caught:
        Dumps("postgresql://localhost/x?sslpassword=hidden")
    assert "hidden" not in str(caught.value)


def test_no_error_shows_a_password(tmp_path):
    folder = fake(tmp_path, "pg_dump", VERSION)
    with pytest.raises(UnreachableError) as caught:
        Dumps("postgresql://user:secret@127.0.0.1:1/x", folder).back_up(tmp_path / "backup")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("version", ["9.6.24", "nonsense"])
def test_an_old_program_is_refused_before_it_is_run(store, tmp_path, version):
    folder = fake(tmp_path, "pg_dump", f"print('pg_dump {version}')")
    with pytest.raises(OpenError, match="and the server of version") as caught:
        Dumps(store, folder).back_up(tmp_path / "backup")
    assert "--pg-bin" in str(caught.value)


@pytest.mark.parametrize("program", ["pg_dump", "pg_restore"])
def test_a_program_that_is_not_there(store, tmp_path, program):
    dumps = Dumps(store, str(tmp_path))
    calls = {"pg_dump": dumps.back_up, "pg_restore": partial(dumps.restore, now=NOW, replace=True)}
    with pytest.raises(OpenError, match=f"no program {program}") as caught:
        calls[program](tmp_path / "backup")
    assert "postgresql-client" in str(caught.value)


def test_what_a_program_says_is_the_reason(store, tmp_path):
    say = "sys.exit('pg_dump: warning: x\\npg_dump: error: no room\\npg_dump: detail: y')"
    folder = fake(tmp_path, "pg_dump", VERSION + say)
    with pytest.raises(BackendError, match=r"pg_dump failed: no room$"):
        Dumps(store, folder).back_up(tmp_path / "backup")


def test_an_interrupted_dump_leaves_no_file(store, tmp_path):
    """Ctrl-C while pg_dump is under way: it has written a part, and waits for the rest."""
    out = tmp_path / "out"
    out.mkdir()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    half = (
        "import signal\n"
        "name = next(a for a in sys.argv if a.startswith('--file='))[7:]\n"
        "open(name, 'w').write('PGDMP half')\n"
        f"open({str(fifo)!r}, 'w').write('begun')\n"
        "signal.pause()\n"
    )
    folder = fake(tmp_path, "pg_dump", VERSION + half)
    command = [sys.executable, "-m", "threadkeep", "backup", "--pg-bin", folder]
    command += [store, str(out / "backup.dump")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        assert fifo.read_text() == "begun"
        assert len(list(out.iterdir())) == 1
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=SECONDS)
    assert (process.returncode, *said) == (130, "", "threadkeep: interrupted\n")
    assert list(out.iterdir()) == []


# -- partitions --------------------------------------------------------------------------


def kinds():
    """The tables and indexes of the schema, and which of them are partitions, all in use."""
    return execute(
        "SELECT c.relname, c.relkind, c.relispartition, coalesce(i.indisvalid, true)"
        " FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid"
        f" WHERE c.relnamespace = '{SCHEMA}'::regnamespace ORDER BY 1"
    )


@pytest.mark.drawn(2)
@pytest.mark.parametrize("there", [plain, hashed, None])
@pytest.mark.parametrize("saved", [plain, hashed])
def test_partitions_are_restored_over_any_others(programs, tmp_path, saved, there):
    store = filled(saved)
    Dumps(store, programs).back_up(tmp_path / "backup")
    want, tables = contents(store), kinds()
    if there is None:
        execute(f"DROP SCHEMA {SCHEMA} CASCADE")
    else:
        filled(there)
        with open_saver(store) as saver:
            Chain(saver, "b").put(n=1)
    Dumps(store, programs).restore(tmp_path / "backup", NOW, replace=there is not None)
    assert contents(store) == want
    assert kinds() == tables
    assert all(is_valid for *_, is_valid in tables)
    with open_saver(store) as saver:
        saver.setup()
        assert saver.check().ok


def test_all_that_a_url_may_say_is_understood(programs, tmp_path):
    """Also in the scheme's other case, as other programs take it."""
    store = filled(hashed).replace("postgresql://", "PostgreSQL://") + "&min_size=0"
    want = contents(store)
    Dumps(store, programs).back_up(tmp_path / "backup")
    Dumps(store, programs).restore(tmp_path / "backup", NOW, replace=True)
    assert contents(store) == want
    with pytest.raises(InvalidArgumentError, match="min_size in the URL: 'few'"):
        Dumps(f"{url()}?schema={SCHEMA}&min_size=few", programs)


@pytest.mark.parametrize(
    "in_the_way",
    [
        "CREATE VIEW {}.theirs AS SELECT thread_id FROM {}.checkpoints",
        """ALTER TABLE {}.checkpoints DETACH PARTITION {}.checkpoints_0;
        ALTER TABLE {}.checkpoints_0 RENAME TO kept""",
    ],
)
def test_a_restore_over_partitions_that_fails_has_changed_nothing(programs, tmp_path, in_the_way):
    store = filled(hashed)
    Dumps(store, programs).back_up(tmp_path / "backup")
    execute(in_the_way.replace("{}", SCHEMA))
    with open_saver(store) as saver:
        Chain(saver, "b").put(n=1)
    before, tables = contents(store), kinds()
    with pytest.raises(BackendError, match="depend"):
        Dumps(store, programs).restore(tmp_path / "backup", NOW, replace=True)
    assert (contents(store), kinds()) == (before, tables)


# -- refusals ----------------------------------------------------------------------------


def test_a_schema_that_is_not_ours_is_not_backed_up(programs, tmp_path):
    with pytest.raises(NotSetUpError, match="no tables of threadkeep in schema 'public'"):
        Dumps(f"{url()}?schema=public", programs).back_up(tmp_path / "backup")


def test_the_archive_of_another_schema(archive, programs):
    with pytest.raises(NotOursError, match=rf"no schema 'other'.*'{SCHEMA}'"):
        Dumps(f"{url()}?schema=other", programs).restore(archive, NOW, replace=True)


def test_an_archive_of_another_program(store, programs, tmp_path):
    archive = tmp_path / "backup"
    arguments = ["--format=custom", "--schema=public", f"--file={archive}", f"--dbname={url()}"]
    subprocess.run([Path(programs, "pg_dump"), *arguments], check=True)
    with pytest.raises(NotOursError, match="its schemas: "):
        Dumps(store, programs).restore(archive, NOW, replace=True)
    assert len(contents(store)) == 1


def test_a_schema_of_another_program_is_left_alone(archive, programs):
    execute(f"DROP SCHEMA {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA};")
    execute(f"CREATE TABLE {SCHEMA}.migrations (version int)")
    with pytest.raises(NotOursError, match="of another program"):
        Dumps(f"{url()}?schema={SCHEMA}", programs).restore(archive, NOW, replace=True)
    assert execute(f"SELECT count(*) FROM {SCHEMA}.migrations") == [(0,)]


def test_threads_are_replaced_only_if_that_is_asked_for(store, archive, programs):
    want = contents(store)
    with open_saver(store) as saver:
        Chain(saver, "b").put(n=1)
    dumps = Dumps(store, programs)
    with pytest.raises(ThreadExistsError, match="holds threads already"):
        dumps.restore(archive, NOW, replace=False)
    assert len(contents(store)) == 2
    dumps.restore(archive, NOW, replace=True)
    assert contents(store) == want


def test_a_restore_that_fails_has_changed_nothing(store, archive, programs):
    """Cut short, or in the way of what others have built upon our tables."""
    with open_saver(store) as saver:
        Chain(saver, "b").put(n=1)
    before = contents(store)
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-200])
    with pytest.raises(BackendError, match="pg_restore failed: "):
        Dumps(store, programs).restore(archive, NOW, replace=True)
    assert contents(store) == before
    archive.write_bytes(whole)
    execute(f"CREATE VIEW {SCHEMA}.theirs AS SELECT thread_id FROM {SCHEMA}.threads")
    with pytest.raises(BackendError, match="depend"):
        Dumps(store, programs).restore(archive, NOW, replace=True)
    assert contents(store) == before


def test_policies_are_left_out(store, programs, tmp_path):
    """They name roles, which another server may lack."""
    role = f"tenant_{os.getpid()}"
    execute(f"CREATE ROLE {role}")
    grant_role(store, role, tenant="acme")
    before = contents(store)
    Dumps(store, programs).back_up(tmp_path / "backup")
    revoke_role(store, role)
    execute(f"DROP ROLE {role}")
    for replace in (True, False):
        Dumps(store, programs).restore(tmp_path / "backup", NOW, replace=replace)
        assert contents(store) == before
        table = f"'{SCHEMA}.threads'::regclass"
        assert execute(f"SELECT FROM pg_policy WHERE polrelid = {table}") == []
        assert execute(f"SELECT relrowsecurity FROM pg_class WHERE oid = {table}") == [(True,)]
        execute(f"DROP SCHEMA {SCHEMA} CASCADE")


def test_a_role_that_is_not_there_is_not_needed(store, programs, tmp_path):
    """Rights are the database's, not the backup's: the restored schema is the restorer's."""
    role = f"reader_{os.getpid()}"
    execute(f"CREATE ROLE {role}")
    try:
        execute(f"GRANT USAGE ON SCHEMA {SCHEMA} TO {role}")
        execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO {role}")
        Dumps(store, programs).back_up(tmp_path / "backup")
    finally:
        execute(f"DROP SCHEMA {SCHEMA} CASCADE; DROP ROLE {role}")
    Dumps(store, programs).restore(tmp_path / "backup", NOW, replace=False)
    assert len(contents(store)) == 1
