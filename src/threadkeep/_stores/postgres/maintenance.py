"""Maintenance of a schema: scrubbing of its files, backup and restore by pg_dump and pg_restore.

VACUUM FULL keeps rows that an older transaction may still see: tables are reported clean only if
no such transaction was left.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeAlias

import psycopg
import psycopg.errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from threadkeep import errors
from threadkeep._core.engine.tips import MOST
from threadkeep._stores.base import ScrubReport
from threadkeep._stores.postgres import migrations
from threadkeep._stores.postgres.connections import PostgresDatabase, settings_of
from threadkeep._stores.postgres.statement import NO_RIGHT, Statement, mapped_errors

_TABLES = (
    *("threads", "thread_labels", "checkpoints", "writes", "segments"),
    *("store_items", "store_item_versions"),
)
_NAMES = ", ".join([f"{{schema}}.{table}" for table in _TABLES])
# ANALYZE: pg_statistic, where the planner keeps samples of columns, has values from the rows.
_VACUUM = Statement(f"VACUUM (ANALYZE) {_NAMES}", keep=False)
_REWRITE = Statement(f"VACUUM (FULL, ANALYZE) {_NAMES}", keep=False)
# Tables that not every schema has: archived messages (message_index.py), vectors (items.py).
# (ANALYZE keeps the statistics of an emptied table: the first statement drops those of words.)
_REWRITE_INDEXES = (
    "ALTER TABLE {schema}.threadkeep_memory_messages ALTER COLUMN words TYPE tsvector",
    "VACUUM (FULL, ANALYZE) {schema}.threadkeep_memory_messages",
    "ALTER TABLE {schema}.threadkeep_words ALTER COLUMN words TYPE tsvector",
    "VACUUM (FULL, ANALYZE) {schema}.threadkeep_words",
    "VACUUM (FULL, ANALYZE) {schema}.store_item_vectors",
)
_STATISTICS = Statement("VACUUM (FULL) pg_catalog.pg_statistic", keep=False)
_CHECKPOINT = Statement("CHECKPOINT", keep=False)
_PAUSE = 0.1  # seconds between two checks
_PATIENCE = 10.0  # seconds for others' transactions to end

_NOW = Statement("SELECT mod(txid_current(), 4294967296)::text", keep=False)
# Transactions of this database, except VACUUMs, whose rows no snapshot sees. (Every role can see
# that they run, but not every role can see their snapshots.)
_RUNNING = Statement(
    """
    SELECT l.virtualtransaction, 'process ' || l.pid
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'virtualxid' AND l.granted AND l.pid <> pg_backend_pid()
        AND a.datname = current_database()
        AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = l.pid)
    UNION ALL
    SELECT 'prepared ' || gid, 'prepared transaction ' || gid
    FROM pg_prepared_xacts WHERE database = current_database()
    """,
    keep=False,
)
_BEHIND = """
SELECT 'replication slot ' || slot_name FROM pg_replication_slots WHERE age(xmin) > age(%s::xid)
UNION ALL
SELECT 'replica ' || application_name FROM pg_stat_replication
WHERE age(backend_xmin) > age(%s::xid)
"""

_LOG = (
    "PostgreSQL's write-ahead log (pg_wal), until its files are reused: pg_switch_wal() and"
    " CHECKPOINT speed this up. Archived WAL, base backups and replicas: let them expire."
)
_PAGES = (
    "PostgreSQL's table files, in free space that was not reused yet: use rewrite=True"
    " (--rewrite), or VACUUM FULL the schema's tables in a quiet hour."
)
_NOT_VACUUMED = "(VACUUM could not be run, and is left to autovacuum: {})"
_NOT_WRITTEN = "PostgreSQL's old table files are removed by its next checkpoint, in some minutes."
_NOTES = (
    "The PostgreSQL planner's statistics of columns: VACUUM (FULL) pg_catalog.pg_statistic, as the"
    " database's owner."
)


async def scrub(database: PostgresDatabase, *, rewrite: bool) -> ScrubReport:
    if rewrite:
        await _wait_for_older_transactions(database)
        return await _rewrite(database)
    try:
        _, warnings = await database.send_alone(_VACUUM)
    except psycopg.Error as error:
        warnings = (str(error.diag.message_primary or error),)
    reason = (_NOT_VACUUMED.format(warnings[0]),) if warnings else ()
    return ScrubReport((), (" ".join((_PAGES, *reason)), _NOTES, _LOG))


async def _rewrite(database: PostgresDatabase) -> ScrubReport:
    try:
        _, warnings = await database.send_alone(_REWRITE)
    except psycopg.errors.ActiveSqlTransaction as error:
        raise errors.InvalidArgumentError(
            "The given connection begins transactions by itself, and VACUUM must not be in one.",
            hint="Use a URL, or connections with autocommit=True.",
        ) from error
    if warnings:
        raise errors.ReadOnlyError(
            f"PostgreSQL has not rewritten all tables: {warnings[0]}.",
            hint="Erase as the role that owns the schema's tables.",
        )
    for text in _REWRITE_INDEXES:
        with suppress(psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege):
            await database.send_alone(Statement(text, keep=False))
    notes = () if await _is_allowed(database, _STATISTICS) else (_NOTES,)
    written = () if await _is_allowed(database, _CHECKPOINT) else (_NOT_WRITTEN,)
    return ScrubReport(("PostgreSQL's tables and indexes, rewritten",), (_LOG, *written, *notes))


async def _is_allowed(database: PostgresDatabase, statement: Statement) -> bool:
    try:
        _, warnings = await database.send_alone(statement)
    except psycopg.Error as error:
        if error.sqlstate != NO_RIGHT:
            raise
        return False
    return not warnings


async def _wait_for_older_transactions(database: PostgresDatabase) -> None:
    ((now,),), _ = await database.send_alone(_NOW)
    behind = Statement(_BEHIND, (now, now), keep=False)
    older: dict[str, str] = dict((await database.send_alone(_RUNNING))[0])
    for _ in range(round(_PATIENCE / _PAUSE)):
        still: dict[str, str] = dict((await database.send_alone(_RUNNING))[0])
        names = [name for key, name in older.items() if key in still]
        names += [name for (name,) in (await database.send_alone(behind))[0]]
        if not names:
            return
        await database.pause(_PAUSE)
    raise errors.LockedError(
        f"An older transaction may still see removed rows: {', '.join(names)}.", hint="End it."
    )


_SECRETS = ("sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
_INSTALL = (
    "Install PostgreSQL's client programs (postgresql-client), or name the folder they are in:"
    " --pg-bin or THREADKEEP_PG_BIN."
)

_THREADS = """
SELECT t.thread_id, t.generation, t.deleted_at,
    EXISTS (SELECT FROM {schema}.checkpoints c WHERE c.thread_id = t.thread_id)
        OR EXISTS (SELECT FROM {schema}.writes w WHERE w.thread_id = t.thread_id)
FROM {schema}.threads t
"""
_HOLDS_TABLES = "SELECT FROM pg_class WHERE relnamespace = to_regnamespace(%s) LIMIT 1"
# Positions of logs may hold other elements from now on: see `ThreadState.generation`.
_TIP = "(1 + random() * 2 ^ 52)::bigint"
_RAISE = f"""
UPDATE {{schema}}.threads SET generation = generation + %s, tips = ({_TIP} || tips)[1:{MOST}]
"""
# A thread that existed before the restore, and is not in the archive, becomes a deleted thread.
_BURY = f"""
INSERT INTO {{schema}}.threads (thread_id, generation, deleted_at, life, tips)
VALUES (%s, %s, %s, {_TIP}, ARRAY[{_TIP}])
ON CONFLICT DO NOTHING
"""


_Before: TypeAlias = list[tuple[str, int, Any, bool]]  # of threads: the columns of `_THREADS`


@contextmanager
def _temporary_file(text: str) -> Iterator[str]:
    """Write a temporary file, and give its name."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(NamedTemporaryFile("w", prefix=".threadkeep-"))
            file.write(text)
            file.flush()
        except OSError as error:
            raise errors.OpenError(
                f"A temporary file cannot be written: {error.strerror}.",
                hint="Name a folder that has room for one in TMPDIR.",
            ) from error
        yield file.name


def back_up(url: str, file: Path, _: object, programs: str) -> None:
    """Write a database's schema to an archive. Returns no number of threads."""
    Dumps(url, _folder(programs)).back_up(file)


def restore(file: Path, url: str, now: int, *, replace: bool, programs: str) -> None:
    """Restore an archive (see `Dumps.restore`)."""
    Dumps(url, _folder(programs)).restore(file, now, replace=replace)


def _folder(programs: str) -> str:
    """Return the folder of PostgreSQL's programs, or "" for the PATH."""
    folder = programs or os.environ.get("THREADKEEP_PG_BIN", "")
    if folder and not Path(folder).is_dir():
        hint = "Correct --pg-bin or THREADKEEP_PG_BIN."
        raise errors.OpenError(f"There is no folder {folder}.", hint=hint)
    return folder


class Dumps:
    """Backups of one schema, by the programs in a folder ("": by those in the PATH)."""

    def __init__(self, url: str, folder: str = "") -> None:
        self._settings = settings_of(url)
        self._schema = self._settings.quoted_schema
        self._folder = folder
        arguments, self._environment = _without_password(self._settings.conninfo)
        self._at = f"--dbname={arguments}"

    def back_up(self, file: Path) -> None:
        """Write the schema, as it is now, to an archive."""
        program = self._program("pg_dump")
        with self._connected() as db:
            if not self._is_ours(db):
                raise errors.NotSetUpError(
                    f"There are no tables of threadkeep in schema {self._settings.schema!r}.",
                    hint="Name their schema in the URL: ?schema=name.",
                )
            self._check_version(program, db.info.server_version // 10000)
        place = f"--schema={self._schema}", f"--file={file}", self._at
        self._run(program, "--format=custom", *place)

    def restore(self, file: Path, now: int, *, replace: bool) -> None:
        """Create the schema from an archive, in one transaction.

        `now` is in microseconds since 1970. With `replace`, a schema that holds threads is dropped.
        """
        program = self._program("pg_restore")
        contents = self._run(program, "--list", str(file))
        self._check_archive(contents)
        with self._connected() as db:
            exists, before = self._before(db)
        if any(has_rows for *_, has_rows in before) and not replace:
            raise errors.ThreadExistsError(
                f"The schema {self._settings.schema!r} holds threads already.",
                hint="Restore into a database without this schema, or --replace all it holds.",
            )
        # (policies name roles, which this server may lack, and are of no use without privileges)
        contents = _POLICY.sub("", contents)
        if exists:
            contents = _restore_order(contents, self._settings.schema)
        with _temporary_file(contents) as order:
            whole = ("--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges")
            clean = ("--clean", "--if-exists") if exists else ()
            self._run(program, *clean, *whole, f"--use-list={order}", self._at, str(file))
        if before:
            with self._connected() as db:
                self._outdate(db, before, now)

    def _check_archive(self, contents: str) -> None:
        schema = self._settings.schema
        # (a partitioned table is there without data)
        tables = (f" TABLE {schema} checkpoints ", f" TABLE DATA {schema} migrations ")
        if all(table in contents for table in tables):
            return
        others = ", ".join(map(repr, _SCHEMA.findall(contents))) or "none"
        raise errors.NotOursError(
            f"The archive holds no schema {schema!r} of threadkeep; its schemas: {others}.",
            hint="Name the schema that was backed up in the URL: ?schema=name.",
        )

    def _is_ours(self, db: psycopg.Connection[Any]) -> bool:
        return migrations.are_ours(dict(self._rows(db, migrations.tables_in(self._schema).sql)))

    def _before(self, db: psycopg.Connection[Any]) -> tuple[bool, _Before]:
        """Return True if the schema exists, and its contents."""
        exists = "SELECT 1 WHERE to_regnamespace(%s) IS NOT NULL"
        if self._is_ours(db):
            return True, self._rows(db, _THREADS)
        if self._rows(db, _HOLDS_TABLES, self._schema):
            raise errors.NotOursError(
                f"The schema {self._settings.schema!r} holds tables of another program.",
                hint="It is left as it is: restore into another database.",
            )
        return bool(self._rows(db, exists, self._schema)), []

    def _outdate(self, db: psycopg.Connection[Any], before: _Before, now: int) -> None:
        """Raise generations, so that other processes drop their cached values of the threads."""
        beyond = 1 + max(generation for _, generation, *_ in before)
        ((end,),) = self._rows(db, "SELECT {schema}.time_of(%s)", now)
        gone = [
            (thread, generation + 1, end if has_rows else deleted_at)
            for thread, generation, deleted_at, has_rows in before
        ]
        with db.transaction(), db.cursor() as cursor:
            cursor.execute(self._sql(_RAISE), (beyond,))
            cursor.executemany(self._sql(_BURY), gone)

    def _sql(self, text: str) -> bytes:
        return text.replace("{schema}", self._schema).encode()

    def _rows(self, db: psycopg.Connection[Any], text: str, *values: object) -> list[Any]:
        return db.execute(self._sql(text), values).fetchall()

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        conninfo, arguments = self._settings.conninfo, self._settings.arguments
        with (
            mapped_errors(self._settings.server),
            closing(psycopg.connect(conninfo, row_factory=tuple_row, **arguments)) as db,
        ):
            yield db

    # -- programs --------------------------------------------------------------------

    def _program(self, name: str) -> str:
        found = shutil.which(name, path=self._folder or None)
        if found is None:
            raise errors.OpenError(
                f"There is no program {name} in {self._folder or 'the PATH'}.", hint=_INSTALL
            )
        return found

    def _check_version(self, program: str, server: int) -> None:
        found = re.search(r"(\d+)", self._run(program, "--version"))
        if found is None or int(found[1]) < server:
            version = found[1] if found else "unknown"
            raise errors.OpenError(
                f"{program} is of version {version}, and the server of version {server}.",
                hint=f"pg_dump must not be older than the server. {_INSTALL}",
            )

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(  # noqa: S603 - a program of PostgreSQL, without a shell
            [program, *arguments],
            env=os.environ | self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            lines = done.stderr.splitlines()
            wrong = [line.partition("error: ")[2] for line in lines if "error: " in line]
            reason = (wrong[:1] or lines[-1:] or ["no message"])[0]
            raise errors.BackendError(f"{Path(program).name} failed: {reason}")
        return done.stdout


def _without_password(conninfo: str) -> tuple[str, dict[str, str]]:
    parts = conninfo_to_dict(conninfo)
    for name in _SECRETS:
        if name in parts:
            raise errors.InvalidArgumentError(
                f"{name} cannot be given to pg_dump without showing it to others.",
                hint="Put it into a service file of libpq, and write ?service=name in the URL.",
            )
    password = parts.pop("password", None)
    environment = {"LC_MESSAGES": "C"}  # to distinguish errors from warnings
    if password is not None:
        environment["PGPASSWORD"] = str(password)
    return make_conninfo("", **parts), environment


# -- the list of an archive, as `pg_restore --list` prints it --------------------------

_SCHEMA = re.compile(r"^\d+; \d+ \d+ SCHEMA - (.+) \S+$", re.MULTILINE)
_POLICY = re.compile(r"^\d+; \d+ \d+ POLICY .*\n", re.MULTILINE)
_CONSTRAINT = re.compile(r"^\d+; \d+ \d+ CONSTRAINT ")  # a primary key or the like, no foreign key
_DUMPED_TABLES = ("threads", "checkpoints", "writes", "segments", "thread_labels")


def _restore_order(contents: str, schema: str) -> str:
    """Sort the list so that existing tables can be dropped first, partitions too.

    pg_restore drops in the opposite order. The primary key of a partition can only be dropped
    together with that of its table: all keys are put next to each other, those of the parent
    tables last. A key needs only its table, and tables come before all keys.
    """
    lines = contents.splitlines(keepends=True)
    keys = [line for line in lines if _CONSTRAINT.match(line)]
    if not keys:
        return contents
    first = lines.index(keys[0])
    rest = [line for line in lines[first:] if not _CONSTRAINT.match(line)]
    ours = tuple(f" CONSTRAINT {schema} {table} " for table in _DUMPED_TABLES)
    keys.sort(key=lambda line: any(one in line for one in ours))
    return "".join([*lines[:first], *keys, *rest])
