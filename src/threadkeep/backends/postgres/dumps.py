"""Backups by PostgreSQL's own programs: pg_dump and pg_restore.

Only how they are found and called lives here, and what has to be seen to before and after.
Invariants: no secret is ever an argument of a program; a restore that fails has changed nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from threadkeep.backends.postgres import archives, migrations
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

_BEFORE = """
SELECT t.thread_id, t.generation, t.deleted_at,
    EXISTS (SELECT FROM {schema}.checkpoints c WHERE c.thread_id = t.thread_id)
        OR EXISTS (SELECT FROM {schema}.writes w WHERE w.thread_id = t.thread_id)
FROM {schema}.threads t
"""
# Positions of logs may hold other elements from now on: see `ThreadState.generation`.
_RAISE = "UPDATE {schema}.threads SET generation = generation + %s"
# A thread that only stood here before is a deleted one now.
_BURY = """
INSERT INTO {schema}.threads (thread_id, generation, deleted_at) VALUES (%s, %s, %s)
ON CONFLICT DO NOTHING
"""


class Before(NamedTuple):
    """What a schema held: each thread's id, generation, tombstone, and whether it had rows."""

    exists: bool
    threads: list[tuple[str, int, Any, bool]]


class Dumps:
    """Backups of one schema of a database.

    Args:
        url: as `PostgresSaver` takes it.
        folder: where the programs are; "" for those of the PATH.

    Raises:
        OpenError: the URL cannot be read.
        InvalidArgumentError: it has a secret that the programs cannot be given, or a parameter
            of ours is invalid.
    """

    def __init__(self, url: str, folder: str = "") -> None:
        self._settings = settings_of(url)
        self._folder = folder
        self._arguments, self._environment = _public(self._settings.conninfo)

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
            _check_version(program, db.info.server_version // 10000)
        schema = self._settings.quoted_schema
        self._run(program, "--format=custom", f"--schema={schema}", f"--file={file}", self._at)

    def restore(self, file: Path, now: int, *, replace: bool) -> None:
        """Make the schema anew from an archive, in one transaction.

        Args:
            file: the archive.
            now: microseconds since 1970.
            replace: whether a schema that holds threads may be dropped for it.

        Raises:
            ThreadExistsError: the schema holds threads, and they are not to be replaced.
            NotOursError: the archive, or the schema, holds something else.
            OpenError: pg_restore is missing.
            BackendError: it failed; nothing was changed.
        """
        program = self._program("pg_restore")
        contents = self._run(program, "--list", str(file))
        self._check_archive(contents)
        with closing(self._connect()) as db:
            before = self._before(db)
        if any(held for *_, held in before.threads) and not replace:
            raise ThreadExistsError(
                f"The schema {self._settings.schema!r} holds threads already.",
                hint="Restore into a database without this schema, or --replace all it holds.",
            )
        whole = ("--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges")
        if before.exists:
            with _written(archives.cleanable(contents, self._settings.schema)) as order:
                clean = ("--clean", "--if-exists", f"--use-list={order}")
                self._run(program, *clean, *whole, self._at, str(file))
        else:
            self._run(program, *whole, self._at, str(file))
        if before.threads:
            with closing(self._connect()) as db:
                self._outdate(db, before, now)

    # -- what has to be seen to ------------------------------------------------------

    def _check_archive(self, contents: str) -> None:
        schema = self._settings.schema
        if archives.holds_tables(contents, schema):
            return
        others = ", ".join(map(repr, archives.schemas(contents))) or "none"
        raise NotOursError(
            f"The archive holds no schema {schema!r} of threadkeep; its schemas: {others}.",
            hint="Name the one it was taken of in the URL: ?schema=name.",
        )

    def _is_ours(self, db: psycopg.Connection[Any]) -> bool:
        asked = migrations.tables_in(self._settings.quoted_schema)
        return migrations.are_ours(dict(self._rows(db, asked.sql)))

    def _before(self, db: psycopg.Connection[Any]) -> Before:
        schema = self._settings.quoted_schema
        exists = bool(self._rows(db, "SELECT to_regnamespace(%s) IS NOT NULL", schema)[0][0])
        if self._is_ours(db):
            return Before(exists, self._rows(db, _BEFORE.replace("{schema}", schema)))
        foreign = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) LIMIT 1"
        if exists and self._rows(db, foreign, schema):
            raise NotOursError(
                f"The schema {self._settings.schema!r} holds tables of another program.",
                hint="It is left as it is: restore into another database.",
            )
        return Before(exists, [])

    def _outdate(self, db: psycopg.Connection[Any], before: Before, now: int) -> None:
        """Let no process rely on what it remembers of the schema that was dropped."""
        schema = self._settings.quoted_schema
        beyond = 1 + max(generation for _, generation, *_ in before.threads)
        (end,) = self._rows(db, f"SELECT {schema}.time_of(%s)", now)[0]
        gone = [
            (thread, generation + 1, end if held else deleted_at)
            for thread, generation, deleted_at, held in before.threads
        ]
        try:
            with db.transaction(), db.cursor() as cursor:
                cursor.execute(_RAISE.replace("{schema}", schema).encode(), (beyond,))
                cursor.executemany(_BURY.replace("{schema}", schema).encode(), gone)
        except DRIVER_ERRORS as error:
            raise mapped(error, self._settings.server) from error

    def _rows(self, db: psycopg.Connection[Any], text: str, *values: object) -> list[Any]:
        try:
            return db.execute(text.encode(), values).fetchall()
        except DRIVER_ERRORS as error:
            raise mapped(error, self._settings.server) from error

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            return psycopg.connect(
                self._settings.conninfo, row_factory=tuple_row, **self._settings.arguments
            )
        except DRIVER_ERRORS as error:
            raise mapped(error, self._settings.server) from error

    # -- programs --------------------------------------------------------------------

    @property
    def _at(self) -> str:
        return f"--dbname={self._arguments}"

    def _program(self, name: str) -> str:
        found = shutil.which(name, path=self._folder or None)
        if found is None:
            where = self._folder or "the PATH"
            raise OpenError(f"There is no program {name} in {where}.", hint=_INSTALL)
        return found

    def _run(self, program: str, *arguments: str) -> str:
        """What the program prints."""
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
            raise BackendError(f"{Path(program).name} failed: {_said(done.stderr.splitlines())}")
        return done.stdout


def _public(conninfo: str) -> tuple[str, dict[str, str]]:
    """The conninfo without its password, and the environment that holds that."""
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
def _written(text: str) -> Iterator[str]:
    """The path of a file that holds the text while the block runs.

    Raises:
        OpenError: there is no place for it.
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


def _check_version(program: str, server: int) -> None:
    done = subprocess.run(  # noqa: S603 - a program of PostgreSQL, without a shell
        [program, "--version"], capture_output=True, text=True, check=False
    )
    found = re.search(r"(\d+)", done.stdout)
    if found is None or int(found[1]) < server:
        version = found[1] if found else "unknown"
        raise OpenError(
            f"{program} is of version {version}, and the server of version {server}.",
            hint=f"pg_dump must not be older than the server. {_INSTALL}",
        )


def _said(lines: Sequence[str]) -> str:
    """The line that tells what was wrong."""
    wrong = [line.partition("error: ")[2] for line in lines if "error: " in line]
    return wrong[0] if wrong else (lines[-1] if lines else "it said nothing")
