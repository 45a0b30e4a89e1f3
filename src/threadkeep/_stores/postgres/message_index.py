"""Full-text index in a saver's PostgreSQL schema, over the connections of its backend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from threadkeep._stores.message_index import ArchiveIndex, Hit, IndexRows, Key, wanted
from threadkeep._stores.postgres import migrations, statement
from threadkeep._stores.postgres.connections import PostgresDatabase
from threadkeep._stores.postgres.message_words import TABLES
from threadkeep._stores.postgres.messages import NEWEST_STATE
from threadkeep._stores.postgres.statement import Statement
from threadkeep._stores.sync_bridge import finish
from threadkeep.errors import ClosedError, NotSetUpError

# If any program deletes a thread of the saver, the trigger removes its messages.
_TABLES = """
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
WHERE relnamespace = to_regnamespace({literal}) AND relname = 'threadkeep_memory_messages'
    AND to_regclass(quote_ident({literal}) || '.threadkeep_words') IS NOT NULL
"""
# A removal of the thread waits for a record that is being added, and removes it too. A record that
# is added during a removal waits for it, and then does not find the record before it.
_LOCK = "SELECT 1 FROM {schema}.threads WHERE thread_id = %s FOR SHARE"
_HAS = "SELECT 1 FROM {schema}.threadkeep_memory_records WHERE thread_id = %s AND record = %s"
_ADD = f"""
WITH added AS (
    INSERT INTO {{schema}}.threadkeep_memory_records
    SELECT %s, %s WHERE %s::text IS NULL OR EXISTS ({_HAS})
    ON CONFLICT DO NOTHING RETURNING thread_id, record)
INSERT INTO {{schema}}.threadkeep_memory_messages (thread_id, record, position, id, words)
SELECT added.*, each.position, each.id, array_to_tsvector(string_to_array(each.words, ' '))
FROM added, unnest(%s::bigint[], %s::text[], %s::text[]) AS each (position, id, words)
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
_THREADS = "SELECT DISTINCT thread_id FROM {schema}.threadkeep_memory_records"
_REMOVE = """
WITH records AS (DELETE FROM {schema}.threadkeep_memory_records WHERE thread_id = ANY(%s))
DELETE FROM {schema}.threadkeep_memory_messages WHERE thread_id = ANY(%s)
"""


class PostgresIndex(ArchiveIndex):
    """Index in tables `threadkeep_memory_*` of a saver's schema, created by the first `add`.

    Args:
        database: the schema, over connections that never suspend.
    """

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._is_closed = False

    def _answered(self, *queries: tuple[str, tuple[Any, ...]]) -> list[statement.Rows]:
        """Return the rows of each query, all of one transaction."""
        if self._is_closed:
            raise ClosedError(hint="Open a new one.")
        # (not prepared: the best plan depends on the words)
        statements = [Statement(text, values, keep=False) for text, values in queries]
        return finish(self._database.answered(statements, NEWEST_STATE))

    def _rows(self, text: str, *values: Any) -> statement.Rows:
        """Return the matches of a query, or none if the tables do not exist."""
        try:
            return self._answered((text, values))[0]
        except NotSetUpError:
            return []

    def _add(
        self, key: Key, start: int, messages: IndexRows, edits: IndexRows, after: str | None
    ) -> bool:
        del start
        columns = [list(column) for column in zip(*messages, *edits, strict=True)] or [[], [], []]
        add = (_ADD, (*key, after, key[0], after, *columns))
        queries = ((_LOCK, key[:1]), add, (_HAS, key))
        try:
            found = self._answered(*queries)
        except NotSetUpError:
            self.create()
            found = self._answered(*queries)
        return bool(found[-1])

    def create(self) -> None:
        """Create the tables if they do not exist."""
        finish(self._database.carry_out(self._creating))

    def _creating(self) -> migrations.Plan:
        schema = self._database.schema
        if not (yield migrations.said(_IS_THERE, schema)):
            yield from migrations.locked(schema, _TABLES + TABLES)

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
        self._is_closed = True
