"""The tables' versions: each a file of SQL, carried out once, in order.

Only the list of files and the plan of a migration live here. Invariants: a version that
was released never changes; whoever migrates holds an advisory lock, so that any number of
processes may begin at once; a file whose name ends in `_live` is not run in a transaction
(for CREATE INDEX CONCURRENTLY on tables in use) and must bear to be run again.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from importlib import resources
from typing import NamedTuple, TypeAlias

from threadkeep.backends.postgres.statement import Rows, Statement
from threadkeep.errors import NewerDatabaseError

Plan: TypeAlias = Generator[Statement, Rows, None]
"""Statements to be carried out one by one, each answered by its rows."""

_NAME = re.compile(r"(\d{4})_\w+\.sql")
_LOCK = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"
_UNLOCK = "SELECT pg_advisory_unlock(hashtextextended(%s, 0))"
_PAUSE = "SELECT pg_sleep(0.05)"
_HAS_TABLE = "SELECT to_regclass(%s) IS NOT NULL"
_TABLE = """
CREATE TABLE {schema}.migrations (
    version integer PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""


class Migration(NamedTuple):
    """One version of the tables."""

    version: int
    sql: str
    live: bool


def migrations() -> list[Migration]:
    """All versions, in order."""
    return sorted(_files())


def _files() -> Iterator[Migration]:
    for file in resources.files(__name__).iterdir():
        found = _NAME.fullmatch(file.name)
        if found is not None:
            yield Migration(int(found[1]), file.read_text("utf-8"), file.name.endswith("_live.sql"))


def plan(schema: str) -> Plan:
    """Bring the tables to the newest version.

    Args:
        schema: its name, quoted.

    Raises:
        NewerDatabaseError: the tables are of a later version.
    """
    lock = (f"threadkeep {schema}",)
    # Tried again and again, not waited for: a waiting statement would hold up CONCURRENTLY.
    while not (yield Statement(_LOCK, lock))[0][0]:
        yield Statement(_PAUSE)
    try:
        yield from _migrate(schema)
    finally:
        yield Statement(_UNLOCK, lock)


def _migrate(schema: str) -> Plan:
    done = yield from _done(schema)
    known = migrations()
    newest = max(done, default=0)
    if newest > known[-1].version:
        raise NewerDatabaseError(
            f"The tables in {schema} are of version {newest}; this release knows"
            f" version {known[-1].version}.",
            hint="Upgrade threadkeep: pip install --upgrade threadkeep.",
        )
    for migration in known:
        if migration.version not in done:
            yield from _apply(migration)


def _done(schema: str) -> Generator[Statement, Rows, set[int]]:
    if not (yield Statement(_HAS_TABLE, (f"{schema}.migrations",)))[0][0]:
        yield Statement("CREATE SCHEMA IF NOT EXISTS {schema}")
        yield Statement(_TABLE)
        return set()
    return {version for (version,) in (yield Statement("SELECT version FROM {schema}.migrations"))}


def _apply(migration: Migration) -> Plan:
    note = f"INSERT INTO {{schema}}.migrations (version) VALUES ({migration.version})"  # noqa: S608 - a number
    if migration.live:
        yield Statement(migration.sql)
        yield Statement(note)
    else:
        yield Statement(f"BEGIN;\n{migration.sql};\n{note};\nCOMMIT")
