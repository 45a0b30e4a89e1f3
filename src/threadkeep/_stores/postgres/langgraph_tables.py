"""LangGraph's own tables in the same database, after a program has switched to threadkeep."""

from __future__ import annotations

import logging
from collections.abc import Generator

from threadkeep._stores.postgres.statement import Rows, Statement

_SOME = 1000  # threads that `setup()` compares
_SHOWN = 5  # threads of each kind
_log = logging.getLogger("threadkeep")
_WHERE = """
SELECT quote_ident(nspname), current_database(), has_table_privilege(c.oid, 'SELECT')
FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE nspname = ANY(current_schemas(false)) AND relname = 'checkpoints' AND relkind IN ('r', 'p')
    AND 2 = (SELECT count(*) FROM pg_attribute WHERE attrelid = c.oid
        AND attname IN ('checkpoint', 'parent_checkpoint_id') AND NOT attisdropped)
"""
# An archived thread has no rows here. The label is `thread_entry.taken_label`.
_THREADS = """
WITH there AS MATERIALIZED (
    SELECT thread_id COLLATE "C" AS thread, (
        SELECT max(checkpoint_id COLLATE "C") FROM {there}.checkpoints c
        WHERE c.thread_id = t.thread_id AND checkpoint_ns = ''
    ) AS newest
    FROM (SELECT DISTINCT thread_id FROM {there}.checkpoints ORDER BY 1 LIMIT %s) t
), here AS (
    SELECT thread, there.newest, state, (
        SELECT max(checkpoint_id) FROM {schema}.checkpoints
        WHERE thread_id = thread AND checkpoint_ns = ''
    ) AS own
    FROM there LEFT JOIN {schema}.threads o ON o.thread_id = thread
)
SELECT thread, CASE WHEN own IS NULL THEN 'Missing here' ELSE 'Newer there' END
FROM here WHERE (own IS NULL OR own < newest) AND state IS DISTINCT FROM 'archived'
UNION ALL
SELECT thread_id, 'Deleted there after a copy'
FROM {schema}.thread_labels l WHERE starts_with(label, concat('{"taken":["',
        left(encode(sha256(convert_to(thread_id, 'UTF8')), 'hex'), 32), '","',
        left(encode(sha256(convert_to(%s, 'UTF8')), 'hex'), 32), '",'))
    AND NOT EXISTS (SELECT FROM {there}.checkpoints c WHERE c.thread_id = l.thread_id COLLATE "C")
ORDER BY 1
"""


def differences(limit: int | None) -> Generator[Statement, Rows, list[str]]:
    """Compare the threads of LangGraph's tables, up to `limit`, with those here.

    Returns:
        A sentence about each schema of the search_path that holds such tables and differs.
    """
    found = []
    for there, database, is_readable in (yield Statement(_WHERE)):
        if is_readable:
            text = _THREADS.replace("{there}", there.replace("%", "%%"))
            place = f"postgres {database} {there}"
            by_kind: dict[str, list[str]] = {}
            for thread, kind in (yield Statement(text, (limit, place), keep=False)):
                by_kind.setdefault(kind, []).append(thread)
            if by_kind:
                parts = " ".join([_part(*item) for item in sorted(by_kind.items())])
                found.append(
                    f"LangGraph's tables are still in schema {there}, and their threads differ."
                    f" {parts} A deletion on one side deletes nothing on the other."
                )
    return found


def warn() -> Generator[Statement, Rows, None]:
    """Log the differences of some threads."""
    for note in (yield from differences(_SOME)):
        _log.warning("%s", note)


def _part(kind: str, threads: list[str]) -> str:
    names, more = ", ".join(map(repr, threads[:_SHOWN])), len(threads) - _SHOWN
    return f"{kind}: {names}{f' and {more:,} more' if more > 0 else ''}."
