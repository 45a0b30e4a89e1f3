"""Full-text index in a saver's PostgreSQL schema. Needs the extra `threadkeep[postgres]`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import psycopg
import psycopg.errors
from psycopg_pool import ConnectionPool

from threadkeep._core.texts import Messages
from threadkeep._stores.message_index import NO_EDITS, ArchiveIndex, Edits, Hit, indexed, wanted
from threadkeep._stores.postgres.connections import open_pool, settings_of
from threadkeep._stores.postgres.migrations import KEY, said
from threadkeep._stores.postgres.statement import mapped_errors
from threadkeep._stores.process_forks import PerProcess

# Two processes may create them at once, so this takes the lock of migrations. If any program
# deletes a thread of the saver, the trigger removes its messages.
_TABLES = """
SELECT pg_advisory_xact_lock({key});
CREATE TABLE IF NOT EXISTS {schema}.threadkeep_memory_records (
    thread_id text, record text, PRIMARY KEY (thread_id, record));
CREATE TABLE IF NOT EXISTS {schema}.threadkeep_memory_messages (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, thread_id text NOT NULL,
    record text NOT NULL, position bigint NOT NULL, id text, words tsvector NOT NULL);
CREATE INDEX IF NOT EXISTS threadkeep_memory_positions
    ON {schema}.threadkeep_memory_messages (thread_id, position);
CREATE INDEX IF NOT EXISTS threadkeep_memory_ids
    ON {schema}.threadkeep_memory_messages (thread_id, id);
CREATE INDEX IF NOT EXISTS threadkeep_memory_words
    ON {schema}.threadkeep_memory_messages USING gin (words) WITH (fastupdate = off);
CREATE OR REPLACE FUNCTION {schema}.threadkeep_memory_remove() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {schema}.threadkeep_memory_records WHERE thread_id = OLD.thread_id;
    DELETE FROM {schema}.threadkeep_memory_messages WHERE thread_id = OLD.thread_id;
    RETURN NULL;
END
$$;
DROP TRIGGER IF EXISTS threadkeep_memory_deleted ON {schema}.threads;
CREATE TRIGGER threadkeep_memory_deleted AFTER DELETE OR UPDATE OF deleted_at
    ON {schema}.threads FOR EACH ROW EXECUTE FUNCTION {schema}.threadkeep_memory_remove();
"""
_IS_THERE = """
SELECT 1 FROM pg_class
WHERE relnamespace = to_regnamespace(%s) AND relname = 'threadkeep_memory_messages'
"""
# A removal of the thread waits for a record that is being added, and removes it too. A record that
# is added during a removal waits for it, and then does not find the record before it.
_LOCK = "SELECT 1 FROM {schema}.threads WHERE thread_id = %s FOR SHARE"
_ADD_RECORD = """
INSERT INTO {schema}.threadkeep_memory_records VALUES (%s, %s) ON CONFLICT DO NOTHING
RETURNING record
"""
_ADD = """
INSERT INTO {schema}.threadkeep_memory_messages (thread_id, record, position, id, words)
SELECT %s, %s, each.position, each.id, array_to_tsvector(string_to_array(each.words, ' '))
FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS each (position, id, words)
"""
_SEARCH = """
SELECT record, position, id FROM {schema}.threadkeep_memory_messages
WHERE thread_id = %s AND words @@ %s::tsquery AND position < coalesce(%s, 9223372036854775807)
ORDER BY position DESC, number DESC LIMIT %s
"""
_FIND = """
SELECT record, position, id FROM {schema}.threadkeep_memory_messages
WHERE thread_id = %s AND id = ANY(%s) ORDER BY position DESC, number DESC
"""
_HAS = "SELECT 1 FROM {schema}.threadkeep_memory_records WHERE thread_id = %s AND record = %s"
_THREADS = "SELECT DISTINCT thread_id FROM {schema}.threadkeep_memory_records"
_REMOVE = """
WITH records AS (DELETE FROM {schema}.threadkeep_memory_records WHERE thread_id = ANY(%s))
DELETE FROM {schema}.threadkeep_memory_messages WHERE thread_id = ANY(%s)
"""
_CONNECTIONS = 4


class PostgresIndex(ArchiveIndex):
    """Index in tables `threadkeep_memory_*` of a saver's schema, created by the first `add`.

    Args:
        conninfo: a URL, or another conninfo of libpq.
        schema: the schema of the saver's tables.

    Raises:
        OpenError: the URL is invalid.
    """

    def __init__(self, conninfo: str, schema: str = "threadkeep") -> None:
        # Statements are not prepared: the best plan depends on the words.
        settings = settings_of(
            conninfo, schema=schema, prepare_threshold=None, min_size=0, max_size=_CONNECTIONS
        )
        self._schema = settings.quoted_schema
        self._server = settings.server
        check = ConnectionPool.check_connection
        self._pool = PerProcess(partial(open_pool, settings, check=check))

    def _sql(self, text: str) -> str:
        return text.replace("{schema}", self._schema)

    def _rows(self, query: str, *values: Any) -> list[Any]:
        """Return the matches of a query, or none if the tables do not exist."""
        with mapped_errors(self._server), self._pool.get().connection() as db:
            try:
                found = db.execute(self._sql(query), values)
            except psycopg.errors.UndefinedTable:
                return []
            return found.fetchall() if found.description else []

    def add(
        self,
        thread: str,
        record: str,
        start: int,
        messages: Messages,
        *,
        edits: Edits = NO_EDITS,
        after: str | None = None,
    ) -> bool:
        placed = [*enumerate(messages, start), *edits.items()]
        ids = [message.id for _, message in placed]
        words = [indexed(message) for _, message in placed]
        positions = [position for position, _ in placed]
        add = partial(self._add, (thread, record), (positions, ids, words), after)
        with mapped_errors(self._server):
            try:
                return add()
            except psycopg.errors.UndefinedTable:
                self.create()
                return add()

    def create(self) -> None:
        """Create the tables if they do not exist."""
        tables = self._sql(_TABLES).replace("{key}", said(KEY, self._schema).sql)
        with mapped_errors(self._server, migrating=True), self._pool.get().connection() as db:
            if not db.execute(_IS_THERE, (self._schema,)).fetchall():
                db.execute(tables)

    def _add(self, record: tuple[str, str], messages: tuple[Any, ...], after: str | None) -> bool:
        thread = record[0]
        with self._pool.get().connection() as db, db.transaction():
            if after is not None:
                db.execute(self._sql(_LOCK), (thread,))
                if not db.execute(self._sql(_HAS), (thread, after)).fetchall():
                    return False
            if db.execute(self._sql(_ADD_RECORD), record).fetchall():
                db.execute(self._sql(_ADD), (*record, *messages))
        return True

    def has(self, thread: str, record: str) -> bool:
        return bool(self._rows(_HAS, thread, record))

    def search(
        self, thread: str, query: str, *, after: int | None = None, limit: int | None = None
    ) -> list[Hit]:
        words = " & ".join(f"'{word}'" for word in wanted(query))
        rows = self._rows(_SEARCH, thread, words, after, limit) if words else []
        return [Hit(*row) for row in rows]

    def find(self, thread: str, ids: Iterable[str]) -> dict[str, list[Hit]]:
        found: dict[str, list[Hit]] = {}
        for record, position, one in self._rows(_FIND, thread, list(ids)):
            found.setdefault(one, []).append(Hit(record, position, one))
        return found

    def remove(self, *threads: str) -> None:
        self._rows(_REMOVE, list(threads), list(threads))

    def threads(self) -> set[str]:
        return {thread for (thread,) in self._rows(_THREADS)}

    def close(self) -> None:
        self._pool.close()
