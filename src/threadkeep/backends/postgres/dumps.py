"""Backups by PostgreSQL's own programs: pg_dump and pg_restore.

No secret is ever an argument of a program. A restore that fails has changed nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from threadkeep.backends.postgres import migrations
from threadkeep.backends.postgres.failures import DRIVER_ERRORS, mapped
from threadkeep.backends.postgres.settings import settings_of
from threadkeep.errors import (
    BackendError,
    InvalidArgumentError,
    NotOursError,
    NotSetUpError,
    OpenError,
    ThreadExistsError,
)

_SECRETS = ("sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
_INSTALL = (
    "Install PostgreSQL's client programs (postgresql-client), or name the folder they are in:"
    " --pg-bin or TK_PG_BIN."
)

_THREADS = """
SELECT t.thread_id, t.generation, t.deleted_at,
    EXISTS (SELECT FROM {schema}.checkpoints c WHERE c.thread_id = t.thread_id)
        OR EXISTS (SELECT FROM {schema}.writes w WHERE w.thread_id = t.thread_id)
FROM {schema}.threads t
"""
_HOLDS_TABLES = "SELECT FROM pg_class WHERE relnamespace = to_regnamespace(%s) LIMIT 1"
# Positions of logs may hold other elements from now on: see `ThreadState.generation`.
_RAISE = "UPDATE {schema}.threads SET generation = generation + %s"
# A thread that only stood here before is a deleted one now.
_BURY = """
INSERT INTO {schema}.threads (thread_id, generation, deleted_at) VALUES (%s, %s, %s)
ON CONFLICT DO NOTHING
"""


class _Before(NamedTuple):
    """A schema before a restore: each thread's id, generation, tombstone, and if it has rows."""

    exists: bool
    threads: list[tuple[str, int, Any, bool]]


class Dumps:
    """Backups of one schema of a database.

    Args:
        url: as `PostgresSaver` takes it.
        folder: the folder of the programs; "" for those of the PATH.

    Raises:
        OpenError: the URL cannot be read.
        InvalidArgumentError: it has a secret that the programs cannot be given, or a parameter
            of ours is invalid.
    """

    def __init__(self, url: str, folder: str = "") -> None:
        self._settings = settings_of(url)
        self._schema = self._settings.quoted_schema
        self._folder = folder
        arguments, self._environment = _without_password(self._settings.conninfo)
        self._at = f"--dbname={arguments}"

    def back_up(self, file: Path) -> None:
        """Write the schema, as it is now, to an archive.

        Raises:
            NotSetUpError: there is no such schema, or no tables of ours in it.
            OpenError: pg_dump is missing, or older than the server.
            BackendError: it failed.
        """
        program = self._program("pg_dump")
        with closing(self._connect()) as db:
            if not self._is_ours(db):
                raise NotSetUpError(
                    f"There are no tables of threadkeep in schema {self._settings.schema!r}.",
                    hint="Name their schema in the URL: ?schema=name.",
                )
            self._check_version(program, db.info.server_version // 10000)
        self._run(
            program, "--format=custom", f"--schema={self._schema}", f"--file={file}", self._at
        )

    def restore(self, file: Path, now: int, *, replace: bool) -> None:
        """Make the schema anew from an archive, in one transaction.

        Args:
            file: the archive.
            now: microseconds since 1970.
            replace: drop a schema that holds threads.

        Raises:
            ThreadExistsError: the schema holds threads, and `replace` is false.
            NotOursError: the archive, or the schema, holds something else.
            OpenError: pg_restore is missing.
            BackendError: it failed; nothing was changed.
        """
        program = self._program("pg_restore")
        contents = self._run(program, "--list", str(file))
        self._check_archive(contents)
        with closing(self._connect()) as db:
            before = self._before(db)
        if any(has_rows for *_, has_rows in before.threads) and not replace:
            raise ThreadExistsError(
                f"The schema {self._settings.schema!r} holds threads already.",
                hint="Restore into a database without this schema, or --replace all it holds.",
            )
        whole = ("--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges")
        if before.exists:
            with _temporary_file(_restore_order(contents, self._settings.schema)) as order:
                clean = ("--clean", "--if-exists", f"--use-list={order}")
                self._run(program, *clean, *whole, self._at, str(file))
        else:
            self._run(program, *whole, self._at, str(file))
        if before.threads:
            with closing(self._connect()) as db:
                self._outdate(db, before, now)

    def _check_archive(self, contents: str) -> None:
        schema = self._settings.schema
        # (a partitioned table is there without data)
        tables = (f" TABLE {schema} checkpoints ", f" TABLE DATA {schema} migrations ")
        if all(table in contents for table in tables):
            return
        others = ", ".join(map(repr, _SCHEMA.findall(contents))) or "none"
        raise NotOursError(
            f"The archive holds no schema {schema!r} of threadkeep; its schemas: {others}.",
            hint="Name the one it was taken of in the URL: ?schema=name.",
        )

    def _is_ours(self, db: psycopg.Connection[Any]) -> bool:
        tables = migrations.tables_in(self._schema)
        return migrations.are_ours(dict(self._rows(db, tables.sql)))

    def _before(self, db: psycopg.Connection[Any]) -> _Before:
        exists = bool(self._rows(db, "SELECT to_regnamespace(%s) IS NOT NULL", self._schema)[0][0])
        if self._is_ours(db):
            return _Before(exists, self._rows(db, self._sql(_THREADS)))
        if exists and self._rows(db, _HOLDS_TABLES, self._schema):
            raise NotOursError(
                f"The schema {self._settings.schema!r} holds tables of another program.",
                hint="It is left as it is: restore into another database.",
            )
        return _Before(exists, [])

    def _outdate(self, db: psycopg.Connection[Any], before: _Before, now: int) -> None:
        """Raise generations, so that no process relies on what it remembers of the schema."""
        beyond = 1 + max(generation for _, generation, *_ in before.threads)
        (end,) = self._rows(db, self._sql("SELECT {schema}.time_of(%s)"), now)[0]
        gone = [
            (thread, generation + 1, end if has_rows else deleted_at)
            for thread, generation, deleted_at, has_rows in before.threads
        ]
        with self._mapped_errors(), db.transaction(), db.cursor() as cursor:
            cursor.execute(self._sql(_RAISE).encode(), (beyond,))
            cursor.executemany(self._sql(_BURY).encode(), gone)

    def _sql(self, text: str) -> str:
        return text.replace("{schema}", self._schema)

    def _rows(self, db: psycopg.Connection[Any], text: str, *values: object) -> list[Any]:
        with self._mapped_errors():
            return db.execute(text.encode(), values).fetchall()

    def _connect(self) -> psycopg.Connection[Any]:
        with self._mapped_errors():
            return psycopg.connect(
                self._settings.conninfo, row_factory=tuple_row, **self._settings.arguments
            )

    @contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        try:
            yield
        except DRIVER_ERRORS as error:
            raise mapped(error, self._settings.server) from error

    # -- programs --------------------------------------------------------------------

    def _program(self, name: str) -> str:
        found = shutil.which(name, path=self._folder or None)
        if found is None:
            raise OpenError(
                f"There is no program {name} in {self._folder or 'the PATH'}.", hint=_INSTALL
            )
        return found

    def _check_version(self, program: str, server: int) -> None:
        found = re.search(r"(\d+)", self._run(program, "--version"))
        if found is None or int(found[1]) < server:
            version = found[1] if found else "unknown"
            raise OpenError(
                f"{program} is of version {version}, and the server of version {server}.",
                hint=f"pg_dump must not be older than the server. {_INSTALL}",
            )

    def _run(self, program: str, *arguments: str) -> str:
        """Return what the program prints."""
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
            raise BackendError(f"{Path(program).name} failed: {reason}")
        return done.stdout


def _without_password(conninfo: str) -> tuple[str, dict[str, str]]:
    """Return the conninfo without its password, and the environment that holds that."""
    parts = conninfo_to_dict(conninfo)
    for name in _SECRETS:
        if name in parts:
            raise InvalidArgumentError(
                f"{name} cannot be given to pg_dump without showing it to others.",
                hint="Put it into a service file of libpq, and write ?service=name in the URL.",
            )
    password = parts.pop("password", None)
    environment = {"LC_MESSAGES": "C"}  # so that errors can be told from warnings
    if password is not None:
        environment["PGPASSWORD"] = str(password)
    return make_conninfo("", **parts), environment


@contextmanager
def _temporary_file(text: str) -> Iterator[str]:
    """Yield the path of a file that holds the text.

    Raises:
        OpenError: it cannot be written.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(NamedTemporaryFile("w", prefix=".threadkeep-"))
            file.write(text)
            file.flush()
        except OSError as error:
            raise OpenError(
                f"A temporary file cannot be written: {error.strerror}.",
                hint="Name a folder that has room for one in TMPDIR.",
            ) from error
        yield file.name


# -- the list of an archive, as `pg_restore --list` prints it --------------------------

_SCHEMA = re.compile(r"^\d+; \d+ \d+ SCHEMA - (.+) \S+$", re.MULTILINE)
_CONSTRAINT = re.compile(r"^\d+; \d+ \d+ CONSTRAINT ")  # a primary key or the like; no foreign key
_TABLES = ("threads", "checkpoints", "writes", "segments", "thread_labels", "heaps")


def _restore_order(contents: str, schema: str) -> str:
    """Sort the list so that tables that are there can be dropped first, partitions too.

    pg_restore drops in the opposite order. The primary key of a partition cannot be dropped
    before that of its table, with which it goes: all keys are put next to each other, those
    of our tables last. A key needs nothing but its table, and tables come before all keys.
    """
    lines = contents.splitlines(keepends=True)
    keys = [line for line in lines if _CONSTRAINT.match(line)]
    if not keys:
        return contents
    first = lines.index(keys[0])
    rest = [line for line in lines[first:] if not _CONSTRAINT.match(line)]
    ours = tuple(f" CONSTRAINT {schema} {table} " for table in _TABLES)
    keys.sort(key=lambda line: any(one in line for one in ours))
    return "".join([*lines[:first], *keys, *rest])
