"""Migrations of the tables.

A migration is a file of SQL, run once, in order and in one transaction, under an advisory lock. A
released file never changes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Mapping
from importlib import resources
from typing import NamedTuple, TypeAlias
from urllib.parse import quote

import psycopg

from threadkeep._stores.postgres.statement import Rows, Statement
from threadkeep.errors import NewerDatabaseError, NotOursError

Plan: TypeAlias = Generator[Statement, Rows, None]
"""Statements to run one by one. The rows of each are sent in."""

_NAME = re.compile(r"(\d{4})_\w+\.sql")
KEY = "hashtextextended('threadkeep ' || {literal}, 0)"
"""The key of the advisory lock on changes of tables."""

_PAUSE = "SELECT pg_sleep(0.05)"
# The tables of a schema that have our names, and their columns.
_TABLES = """
SELECT c.relname::text, ARRAY(
    SELECT a.attname::text FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM pg_class c
WHERE c.relnamespace = to_regnamespace({literal}) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND c.relname IN (
        'checkpoints', 'migrations', 'segments', 'thread_labels', 'threads', 'writes',
        'store_items', 'store_item_versions', 'store_item_vectors')
"""
_BUSY = "TK007"  # our own error code
# One statement, so that lock, check and change are one transaction, also in a program's pipeline
# and behind a pooler that gives each transaction another session.
_LOCKED = f"""
DO $threadkeep$
{{declarations}}
BEGIN
    IF NOT pg_try_advisory_xact_lock({KEY}) THEN
        RAISE EXCEPTION 'another process migrates' USING ERRCODE = '{_BUSY}';
    END IF;
    -- Opening a table refreshes the cache of names. Otherwise to_regclass() and to_regnamespace()
    -- may miss tables that the last holder of the lock has created.
    PERFORM FROM pg_namespace LIMIT 1;
    {{body}}
END
$threadkeep$
"""
# (CREATE SCHEMA IF NOT EXISTS needs a privilege even if the schema exists)
_APPLY = """
    IF to_regnamespace({literal}) IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
    IF to_regclass({literal} || '.migrations') IS NULL THEN
        CREATE TABLE {schema}.migrations (
            version integer PRIMARY KEY,
            applied_at timestamptz NOT NULL DEFAULT now()
        );
    END IF;
    IF NOT EXISTS (SELECT FROM {schema}.migrations WHERE version = {version}) THEN
        EXECUTE $migration${sql}$migration$;
        INSERT INTO {schema}.migrations (version) VALUES ({version});
    END IF;
"""


class Migration(NamedTuple):
    """One version of the tables."""

    version: int
    sql: str


def _read() -> list[Migration]:
    files = {file.name: file for file in resources.files(__name__).iterdir()}
    names = [found for name in sorted(files) if (found := _NAME.fullmatch(name))]
    return [Migration(int(name[1]), files[name[0]].read_text("utf-8")) for name in names]


_MIGRATIONS = _read()  # (at import: event loops must not open files)


def migrations() -> list[Migration]:
    """Return all migrations in order."""
    return list(_MIGRATIONS)


def plan(schema: str) -> Plan:
    """Migrate the tables to the newest version."""
    done = yield from _done(schema)
    known = migrations()
    newest = max(done, default=0)
    if newest > known[-1].version:
        raise NewerDatabaseError(
            f"The tables in {schema} are of version {newest}; this release knows"
            f" version {known[-1].version}.",
            hint="Upgrade threadkeep.",
        )
    for migration in known:
        if migration.version not in done:
            body = _APPLY.replace("{version}", str(migration.version))
            yield from locked(schema, body.replace("{sql}", migration.sql))


def _done(schema: str) -> Generator[Statement, Rows, set[int]]:
    """Return the applied versions, with no lock and only SELECT."""
    tables: dict[str, list[str]] = dict((yield tables_in(schema)))
    if tables and not are_ours(tables):
        raise _not_ours(schema, tables)
    if not tables:
        return set()
    return {version for (version,) in (yield Statement("SELECT version FROM {schema}.migrations"))}


def tables_in(schema: str) -> Statement:
    """Return the query for a schema's tables with our names, each with its columns."""
    return said(_TABLES, schema)


def are_ours(tables: Mapping[str, Collection[str]]) -> bool:
    """Return True for tables of threadkeep, which one transaction creates together."""
    return "manifest" in tables.get("checkpoints", ()) and "version" in tables.get("migrations", ())


def _not_ours(schema: str, tables: Mapping[str, Collection[str]]) -> NotOursError:
    if {"checkpoint", "checkpoint_ns"} <= set(tables.get("checkpoints", ())):
        name = quote(schema.strip('"'))
        return NotOursError(
            f"The tables in schema {schema} are those of LangGraph's own PostgresSaver.",
            hint="They were not changed. Use another schema for threadkeep, and copy the"
            f" threads: threadkeep adopt 'URL?schema={name}' 'URL?schema=threadkeep'",
        )
    names = ", ".join(sorted(tables))
    return NotOursError(
        f"Schema {schema} has tables of another program with our names: {names}.",
        hint="They were not changed. Use another schema for threadkeep: ?schema=NAME.",
    )


def locked(schema: str, body: str, declarations: str = "") -> Plan:
    """Run a block of PL/pgSQL in one transaction under the advisory lock.

    In `body`, `{literal}` is the schema's name as a literal. `declarations` is the DECLARE part.
    """
    text = _LOCKED.replace("{declarations}", declarations).replace("{body}", body)
    while True:
        try:
            yield said(text, schema)
        except psycopg.Error as error:
            if error.sqlstate != _BUSY:
                raise
        else:
            return
        yield Statement(_PAUSE)


def said(text: str, schema: str) -> Statement:
    """Return the statement with the schema's name as a literal (DO takes no parameters)."""
    return Statement(text.replace("{literal}", "'" + schema.replace("'", "''") + "'"))
