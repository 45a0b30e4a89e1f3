-- The statements of partitions.py, each after its name. `{a name}` stands for the statement of that
-- name, {schema} for the schema's quoted name, {literal} for the same as a string literal.

-- name: partitions
-- Partitions of threadkeep (see `_described`) that this role may drop, and whose rows it can all
-- see. (With a table's oid, pg_get_expr would lock the table; without columns it needs no oid.)
SELECT p.relname, p.relname || ' ' || pg_get_expr(p.relpartbound, 0) AS described
FROM pg_inherits i
JOIN pg_class c ON c.oid = i.inhparent
JOIN pg_class p ON p.oid = i.inhrelid
WHERE i.inhparent = to_regclass({literal} || '.checkpoints')
    AND p.relnamespace = c.relnamespace AND p.relkind = 'r' AND NOT p.relrowsecurity
    AND pg_has_role(p.relowner, 'USAGE')

-- name: look
-- (pg_get_partkeydef would lock the table)
SELECT coalesce((
        SELECT p.partstrat::text || ' ' || array_to_string(ARRAY(
            SELECT a.attname FROM pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum = ANY (p.partattrs)), ' ')
        FROM pg_partitioned_table p WHERE p.partrelid = c.oid), ''),
    pg_has_role(c.relowner, 'USAGE'),
    ARRAY(
        SELECT p.relname::text FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhrelid
        WHERE i.inhparent = c.oid),
    ARRAY(SELECT described FROM ({partitions}) AS ours)
FROM pg_class c WHERE c.oid = to_regclass({literal} || '.checkpoints')

-- name: prefixes
-- The first digits of the times in ids of UUID version 6: about a thousand for each year.
SELECT DISTINCT left(checkpoint_id, 6) FROM {schema}.checkpoints
WHERE left(checkpoint_id, 6) ~ '^[0-9a-f]+$' AND substr(checkpoint_id, 15, 1) = '6'

-- name: declarations
DECLARE
    old oid;
    its_owner text;
    definitions text[];
    one record;
    definition text;

-- name: is_newest
    -- An older snapshot would not show rows that others added meanwhile.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'changes need the isolation level READ COMMITTED' USING ERRCODE = 'TK001';
    END IF;

-- name: part
-- The table becomes the default partition of a new table with its name and properties.
    old := to_regclass({literal} || '.checkpoints');
    SELECT quote_ident(pg_get_userbyid(relowner)) INTO its_owner FROM pg_class WHERE oid = old;
    IF (SELECT relkind FROM pg_class WHERE oid = old) = 'r' THEN
        LOCK TABLE {schema}.checkpoints IN ACCESS EXCLUSIVE MODE;
        IF (SELECT relrowsecurity FROM pg_class WHERE oid = old)
            OR EXISTS (SELECT FROM pg_policy WHERE polrelid = old)
            OR EXISTS (SELECT FROM pg_trigger WHERE tgrelid = old)
            OR EXISTS (SELECT FROM pg_publication_rel WHERE prrelid = old)
            OR EXISTS (SELECT FROM pg_attribute WHERE attrelid = old AND attacl IS NOT NULL)
            OR EXISTS (
                SELECT FROM pg_depend WHERE refobjid = old AND classid = 'pg_rewrite'::regclass)
        THEN
            RAISE EXCEPTION 'checkpoints has policies, triggers, publications, views or grants on'
                ' columns, which a partitioned table would not have' USING ERRCODE = 'TK002';
        END IF;
        SELECT array_agg(pg_get_indexdef(indexrelid)) INTO definitions
        FROM pg_index WHERE indrelid = old AND NOT indisprimary;
        ALTER TABLE {schema}.checkpoints RENAME TO checkpoints_default;
        FOR one IN
            SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
            WHERE i.indrelid = old
        LOOP
            EXECUTE 'ALTER INDEX ' || {literal} || '.' || quote_ident(one.relname) || ' RENAME TO '
                || quote_ident(regexp_replace(
                    one.relname, '^(checkpoints_)?', 'checkpoints_default_'));
        END LOOP;
        CREATE TABLE {schema}.checkpoints (
            LIKE {schema}.checkpoints_default INCLUDING ALL EXCLUDING INDEXES,
            PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
        ) PARTITION BY RANGE (checkpoint_id);
        FOREACH definition IN ARRAY coalesce(definitions, ARRAY[]::text[]) LOOP
            EXECUTE definition;
        END LOOP;
        EXECUTE 'ALTER TABLE ' || {literal} || '.checkpoints OWNER TO ' || its_owner;
        FOR one IN
            SELECT a.privilege_type AS what, a.is_grantable, CASE a.grantee
                WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS whom
            FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = old AND a.grantee <> c.relowner
        LOOP
            EXECUTE 'GRANT ' || one.what || ' ON ' || {literal} || '.checkpoints TO ' || one.whom
                || CASE WHEN one.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END;
        END LOOP;
    END IF;
    IF to_regclass({literal} || '.checkpoints_default') IS NULL THEN
        CREATE TABLE {schema}.checkpoints_default (
            LIKE {schema}.checkpoints INCLUDING ALL EXCLUDING INDEXES);
        EXECUTE 'ALTER TABLE ' || {literal} || '.checkpoints_default OWNER TO ' || its_owner;
    END IF;
    -- Prevent inserts of rows that belong to a new month's partition.
    LOCK TABLE {schema}.checkpoints_default IN ACCESS EXCLUSIVE MODE;

-- name: is_missing
    IF NOT EXISTS (
        SELECT FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhrelid
        WHERE i.inhparent = to_regclass({literal} || '.checkpoints') AND p.relname = '{table}')
    THEN

-- name: month
{is_missing}
        CREATE TABLE {schema}.{table} (
            LIKE {schema}.checkpoints INCLUDING ALL EXCLUDING INDEXES);
        EXECUTE 'ALTER TABLE ' || {literal} || '.{table} OWNER TO ' || its_owner;
        INSERT INTO {schema}.{table} SELECT * FROM {schema}.checkpoints_default
        WHERE checkpoint_id >= '{start}' AND checkpoint_id < '{stop}';
        DELETE FROM {schema}.checkpoints_default
        WHERE checkpoint_id >= '{start}' AND checkpoint_id < '{stop}';
        ALTER TABLE {schema}.checkpoints ATTACH PARTITION {schema}.{table}
            FOR VALUES FROM ('{start}') TO ('{stop}');
    END IF;

-- name: rest
-- Last: while a default partition is attached, each new partition scans it completely.
{is_missing}
        ALTER TABLE {schema}.checkpoints
            ATTACH PARTITION {schema}.checkpoints_default DEFAULT;
    END IF;

-- name: is_empty
-- By the index: a scan would still read the pages that vacuum has emptied.
'SELECT NOT EXISTS (SELECT FROM (SELECT FROM ' || {literal} || '.' || one.relname ||
    ' ORDER BY thread_id, checkpoint_ns, checkpoint_id LIMIT 1) AS any_row)'

-- name: drop
-- Other sessions can read the table during the search for rows; only the drop takes the exclusive
-- lock. A table that cannot be locked soon is left to the next call: the lock times out before the
-- server looks for deadlocks (deadlock_timeout: a second), so that this fails rather than a save.
DO $threadkeep$
DECLARE
    one record;
    is_empty boolean;
    emptied text;
    all_emptied text[] := ARRAY[]::text[];
BEGIN
    PERFORM set_config('lock_timeout', '{patience}', true);
    FOR one IN SELECT * FROM ({partitions}) AS ours WHERE described = ANY (ARRAY[{months}]) LOOP
        BEGIN
            EXECUTE {is_empty} INTO is_empty;
            CONTINUE WHEN NOT is_empty;
            EXIT WHEN current_setting('transaction_read_only')::boolean
                OR NOT pg_try_advisory_xact_lock({key});
            {is_newest}
            EXECUTE 'LOCK TABLE ' || {literal} || '.' || one.relname || ' IN SHARE MODE';
            EXECUTE {is_empty} INTO is_empty;
            IF is_empty AND one.described IN (SELECT described FROM ({partitions}) AS ours) THEN
                all_emptied := all_emptied || one.relname::text;
            END IF;
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN EXIT;
            WHEN undefined_table THEN NULL;
        END;
    END LOOP;
    FOREACH emptied IN ARRAY all_emptied LOOP
        BEGIN
            EXECUTE 'DROP TABLE ' || {literal} || '.' || emptied;
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN EXIT;
            WHEN dependent_objects_still_exist THEN NULL;
        END;
    END LOOP;
END
$threadkeep$
