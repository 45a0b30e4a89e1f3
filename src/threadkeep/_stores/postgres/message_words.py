"""The tables of the index of messages in a PostgreSQL schema. See `model.Words`."""

from __future__ import annotations

from threadkeep._stores.postgres import migrations

# (layered memory creates the tables alone. Without the function, this is a `NotSetUpError`)
HAS_BEGUN = "$name${schema}.threadkeep_words_moved$name$::regproc IS NOT NULL"
TABLES = """
CREATE TABLE IF NOT EXISTS {schema}.threadkeep_words (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    thread_id text COLLATE "C" NOT NULL, words tsvector NOT NULL);
CREATE INDEX IF NOT EXISTS threadkeep_words_threads ON {schema}.threadkeep_words (thread_id);
CREATE INDEX IF NOT EXISTS threadkeep_words_words
    ON {schema}.threadkeep_words USING gin (words) WITH (fastupdate = off);
CREATE TABLE IF NOT EXISTS {schema}.threadkeep_unindexed (
    thread_id text COLLATE "C" PRIMARY KEY);
"""
# (a role without rights on these tables could not save any more)
_MOVED = """
SELECT string_agg(DISTINCT grantee, ', ') INTO others
FROM information_schema.table_privileges p
WHERE table_schema = {literal} AND table_name = 'threads' AND privilege_type = 'INSERT'
    AND grantee <> 'PUBLIC' AND NOT has_table_privilege(
        grantee, quote_ident({literal}) || '.threadkeep_unindexed', 'INSERT');
IF others IS NOT NULL THEN
    RAISE EXCEPTION USING MESSAGE = 'Run threadkeep grant again: roles without rights on'
        || ' threadkeep_unindexed: ' || others;
END IF;
CREATE OR REPLACE FUNCTION {schema}.threadkeep_words_moved() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    name text := CASE WHEN TG_OP = 'DELETE' THEN OLD.thread_id ELSE NEW.thread_id END;
    indexed text := current_setting('threadkeep.indexed', true);
    is_same boolean := TG_OP = 'UPDATE' AND OLD.deleted_at IS NOT DISTINCT FROM NEW.deleted_at;
BEGIN
    IF TG_OP <> 'INSERT' AND NOT is_same THEN
        DELETE FROM {schema}.threadkeep_words WHERE thread_id = name;
    END IF;
    IF TG_OP = 'DELETE' OR NEW.newest IS NULL THEN
        DELETE FROM {schema}.threadkeep_unindexed WHERE thread_id = name;
    ELSIF indexed IS DISTINCT FROM name || ' ' || NEW.newest THEN
        INSERT INTO {schema}.threadkeep_unindexed VALUES (name) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
DROP TRIGGER IF EXISTS threadkeep_words_moved ON {schema}.threads;
CREATE TRIGGER threadkeep_words_moved AFTER UPDATE OF newest, deleted_at ON {schema}.threads
    FOR EACH ROW WHEN (OLD.newest IS DISTINCT FROM NEW.newest
        OR OLD.deleted_at IS DISTINCT FROM NEW.deleted_at)
    EXECUTE FUNCTION {schema}.threadkeep_words_moved();
DROP TRIGGER IF EXISTS threadkeep_words_begun ON {schema}.threads;
CREATE TRIGGER threadkeep_words_begun AFTER INSERT OR DELETE ON {schema}.threads
    FOR EACH ROW EXECUTE FUNCTION {schema}.threadkeep_words_moved();
INSERT INTO {schema}.threadkeep_unindexed
    SELECT thread_id FROM {schema}.threads WHERE newest IS NOT NULL
    ON CONFLICT DO NOTHING;
"""
_IS_MOVED = """
SELECT 1 FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = to_regnamespace({literal}) AND t.tgname = 'threadkeep_words_moved'
"""


_DROP = """
DROP TRIGGER IF EXISTS threadkeep_words_moved ON {schema}.threads;
DROP TRIGGER IF EXISTS threadkeep_words_begun ON {schema}.threads;
DROP FUNCTION IF EXISTS {schema}.threadkeep_words_moved();
DROP TABLE IF EXISTS {schema}.threadkeep_words, {schema}.threadkeep_unindexed;
"""


def dropping_words(schema: str) -> migrations.Plan:
    """Remove the index of messages."""
    yield from migrations.locked(schema, _DROP)


def creating_words(schema: str) -> migrations.Plan:
    """Begin the index of messages (see `model.Words`), if it has not begun."""
    if not (yield migrations.said(_IS_MOVED, schema)):
        yield from migrations.locked(schema, TABLES + _MOVED, "DECLARE others text;")
