"""Leaving nothing of removed rows in the files of a schema's tables.

Only that lives here. A row that is removed stays in its page until VACUUM has found it, and its
bytes stay there until something is written over them. VACUUM FULL writes each table and its
indexes into new files, but takes along what an older transaction may still see. Invariant: tables
are said to be clean only if they were written anew when no such transaction was left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import psycopg.errors

from threadkeep.backends.base import Scrubbed
from threadkeep.backends.postgres.statement import Rows, Statement
from threadkeep.errors import InvalidArgumentError, LockedError, ReadOnlyError

_TABLES = ("threads", "thread_labels", "heaps", "checkpoints", "writes", "segments")
_NAMES = ", ".join([f"{{schema}}.{table}" for table in _TABLES])
# ANALYZE: what the planner notes of columns (in pg_statistic) are values from the rows.
_VACUUM = Statement(f"VACUUM (ANALYZE) {_NAMES}", keep=False)
_REWRITE = Statement(f"VACUUM (FULL, ANALYZE) {_NAMES}", keep=False)
_STATISTICS = Statement("VACUUM (FULL) pg_catalog.pg_statistic", keep=False)
_CHECKPOINT = Statement("CHECKPOINT", keep=False)
_NO_RIGHT = "42501"
_PAUSE = 0.1  # seconds between two looks
_PATIENCE = 10.0  # seconds for others' transactions to end

_NOW = Statement("SELECT mod(txid_current(), 4294967296)::text", keep=False)
# Transactions of this database, but for VACUUMs, whose own rows count for nobody. (What they hold
# of old states is not shown to every role; that they run is.)
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
    "PostgreSQL's write-ahead log (pg_wal), until its files are used anew: pg_switch_wal() and"
    " CHECKPOINT hasten that. Archived WAL, base backups and replicas: let them expire."
)
_PAGES = (
    "PostgreSQL's table files, in space that is free and not used anew yet: erase with rewrite=True"
    " (--rewrite), or VACUUM FULL the schema's tables in a quiet hour."
)
_NOT_VACUUMED = "(VACUUM could not be run, and is left to autovacuum: {})"
_NOT_WRITTEN = "PostgreSQL's old table files are removed by its next checkpoint, in some minutes."
_NOTES = (
    "What PostgreSQL's planner once noted of columns: VACUUM (FULL) pg_catalog.pg_statistic, as the"
    " database's owner."
)


class Server(NamedTuple):
    """How the server is asked: a statement, by itself, with its rows and its warnings."""

    said: Callable[[Statement], Awaitable[tuple[Rows, Sequence[str]]]]
    pause: Callable[[float], Awaitable[None]]


async def scrub(server: Server, *, rewrite: bool) -> Scrubbed:
    """See `Backend.scrub`.

    Raises:
        LockedError: an older transaction is open.
        ReadOnlyError: the role may not do it.
        InvalidArgumentError: a connection that was given is not in autocommit.
        DRIVER_ERRORS: the server failed.
    """
    if rewrite:
        return await _rewritten(server)
    try:
        _, warnings = await server.said(_VACUUM)
    except psycopg.Error as error:
        warnings = (str(error.diag.message_primary or error),)
    told = (_NOT_VACUUMED.format(warnings[0]),) if warnings else ()
    return Scrubbed((), (" ".join((_PAGES, *told)), _NOTES, _LOG))


async def _rewritten(server: Server) -> Scrubbed:
    await _older_ones_to_end(server)
    try:
        _, warnings = await server.said(_REWRITE)
    except psycopg.errors.ActiveSqlTransaction as error:
        raise InvalidArgumentError(
            "The connection that the saver was given begins transactions by itself, and VACUUM"
            " must not be in one.",
            hint="Give it a URL, or connections with autocommit=True.",
        ) from error
    if warnings:
        raise ReadOnlyError(
            f"PostgreSQL has not written all tables anew: {warnings[0]}.",
            hint="Erase as the role that owns the schema's tables.",
        )
    notes = () if await _may(server, _STATISTICS) else (_NOTES,)
    written = () if await _may(server, _CHECKPOINT) else (_NOT_WRITTEN,)
    return Scrubbed(("PostgreSQL's tables and indexes, written anew",), (_LOG, *written, *notes))


async def _may(server: Server, statement: Statement) -> bool:
    """Whether that could be done: the role may lack the right."""
    try:
        _, warnings = await server.said(statement)
    except psycopg.Error as error:
        if error.sqlstate != _NO_RIGHT:
            raise
        return False
    return not warnings


async def _older_ones_to_end(server: Server) -> None:
    """Wait for the transactions that may see what was there before."""
    ((now,),), _ = await server.said(_NOW)
    behind = Statement(_BEHIND, (now, now), keep=False)
    older: dict[str, str] = dict((await server.said(_RUNNING))[0])
    for _ in range(round(_PATIENCE / _PAUSE)):
        still: dict[str, str] = dict((await server.said(_RUNNING))[0])
        names = [name for key, name in older.items() if key in still]
        names += [name for (name,) in (await server.said(behind))[0]]
        if not names:
            return
        await server.pause(_PAUSE)
    raise LockedError(
        f"Rows that were removed may still be seen by an older transaction: {', '.join(names)}.",
        hint="End it.",
    )
