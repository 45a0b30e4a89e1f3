-- Items of stores (store/postgres.py). Times and lifetimes are microseconds, times since 1970.

CREATE SEQUENCE {schema}.store_counter;

CREATE TABLE {schema}.store_namespaces (
    number bigint NOT NULL,
    path text COLLATE "C" NOT NULL,
    PRIMARY KEY (number),
    UNIQUE (path)
);
COMMENT ON COLUMN {schema}.store_namespaces.path IS 'its labels, each with a period behind it';

-- A value is `json`, not `jsonb`: earlier versions are patches of its very text.
CREATE TABLE {schema}.store_items (
    namespace bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    version bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    ttl bigint,
    expires_at bigint,
    pending text COLLATE "C",
    value json,
    body bytea,
    words tsvector,
    PRIMARY KEY (namespace, key)
);
COMMENT ON COLUMN {schema}.store_items.number IS 'that of its first put; items are listed by it';
COMMENT ON COLUMN {schema}.store_items.pending IS 'the fields to embed later';
COMMENT ON COLUMN {schema}.store_items.body IS 'the value where it is no JSON';
CREATE UNIQUE INDEX store_items_by_place ON {schema}.store_items (namespace, number);
CREATE INDEX store_items_expiring ON {schema}.store_items (expires_at)
    WHERE expires_at IS NOT NULL;
CREATE INDEX store_items_pending ON {schema}.store_items (namespace, number)
    WHERE pending IS NOT NULL;

CREATE TABLE {schema}.store_item_versions (
    namespace bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    updated_at bigint NOT NULL,
    replaced_at bigint NOT NULL,
    deleted boolean NOT NULL,
    patch bytea NOT NULL,
    PRIMARY KEY (namespace, key, version)
);

ALTER TABLE {schema}.store_items ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE {schema}.store_item_versions ALTER COLUMN patch SET STORAGE EXTERNAL;

-- The table of vectors is made where a store has an index: it needs the extension `vector`.
CREATE FUNCTION {schema}.store_has_vectors()
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT to_regclass({literal} || '.store_item_vectors') IS NOT NULL
$$;

-- Vectors of items, by the place of each one's item in `namespaces` and `numbers`; `floats` are
-- those of all vectors, one behind the other.
CREATE FUNCTION {schema}.add_vectors(
    namespaces bigint[], numbers bigint[], items bigint[], paths text[], floats real[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    dims integer := cardinality(floats) / greatest(cardinality(items), 1);
BEGIN
    INSERT INTO {schema}.store_item_vectors (namespace, item, path, vector)
    SELECT namespaces[v.item], numbers[v.item], v.path,
        floats[(v.place - 1) * dims + 1 : v.place * dims]
    FROM unnest(items, paths) WITH ORDINALITY v (item, path, place)
    WHERE numbers[v.item] IS NOT NULL
    ORDER BY v.place;
END
$$;

-- Put items, or delete those without a value; false where one has another version than expected.
-- Rows are locked in the order of their keys: so no two calls wait for each other. (Those of
-- namespaces come first, in the order of their paths.)
CREATE FUNCTION {schema}.put_items(
    paths text[], keys text[], jsons text[], bodies bytea[], ttls bigint[], pendings text[],
    texts text[], put_at bigint,
    expected bigint[] DEFAULT NULL,
    earlier_items bigint[] DEFAULT NULL,
    earlier_versions bigint[] DEFAULT NULL,
    earlier_updates bigint[] DEFAULT NULL,
    earlier_times bigint[] DEFAULT NULL,
    earlier_deleted boolean[] DEFAULT NULL,
    earlier_patches bytea[] DEFAULT NULL,
    earlier_most bigint[] DEFAULT NULL,
    vector_items bigint[] DEFAULT NULL,
    vector_paths text[] DEFAULT NULL,
    vector_floats real[] DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    one record;
    found_version bigint;
    its_number bigint;
    numbers bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(keys)]);
    namespaces bigint[] := numbers;
    versions bigint[] := numbers;
    has_vectors boolean := {schema}.store_has_vectors();
BEGIN
    -- With an older snapshot, what others committed while this waited would not be seen.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'changes need the isolation level READ COMMITTED' USING ERRCODE = 'TK001';
    END IF;
    -- So that no namespace is removed whose number was just read.
    LOCK TABLE {schema}.store_items IN ROW EXCLUSIVE MODE;
    FOR i IN 1 .. cardinality(keys) LOOP
        versions[i] := nextval({literal} || '.store_counter');
    END LOOP;
    INSERT INTO {schema}.store_namespaces (number, path)
    SELECT versions[min(p.place)], p.path
    FROM unnest(paths, jsons, bodies) WITH ORDINALITY p (path, json, body, place)
    WHERE (p.json IS NOT NULL OR p.body IS NOT NULL)
        AND NOT EXISTS (SELECT FROM {schema}.store_namespaces n WHERE n.path = p.path)
    GROUP BY p.path ORDER BY p.path
    ON CONFLICT DO NOTHING;
    FOR one IN
        SELECT p.place, p.key, n.number AS namespace
        FROM unnest(paths, keys) WITH ORDINALITY p (path, key, place)
        LEFT JOIN {schema}.store_namespaces n ON n.path = p.path COLLATE "C"
        ORDER BY n.number, p.key COLLATE "C"
    LOOP
        namespaces[one.place] := one.namespace;
        IF expected[one.place] IS NOT NULL THEN
            SELECT version INTO found_version FROM {schema}.store_items
            WHERE namespace = one.namespace AND key = one.key FOR UPDATE;
            IF coalesce(found_version, 0) <> expected[one.place] THEN
                RAISE EXCEPTION 'another version' USING ERRCODE = 'TK003';
            END IF;
        END IF;
        IF jsons[one.place] IS NULL AND bodies[one.place] IS NULL THEN
            DELETE FROM {schema}.store_items WHERE namespace = one.namespace AND key = one.key
            RETURNING number INTO its_number;
        ELSE
            INSERT INTO {schema}.store_items (
                namespace, key, number, version, created_at, updated_at, ttl, expires_at, pending,
                value, body, words)
            VALUES (
                one.namespace, one.key, versions[one.place], versions[one.place],
                put_at, put_at, ttls[one.place], put_at + ttls[one.place], pendings[one.place],
                jsons[one.place]::json, bodies[one.place], texts[one.place]::tsvector)
            ON CONFLICT (namespace, key) DO UPDATE SET
                version = excluded.version, updated_at = excluded.updated_at, ttl = excluded.ttl,
                expires_at = excluded.expires_at, pending = excluded.pending,
                value = excluded.value, body = excluded.body, words = excluded.words
            WHERE expected[one.place] IS DISTINCT FROM 0
            RETURNING number INTO its_number;
            IF NOT FOUND THEN  -- (somebody put it after it was looked for)
                RAISE EXCEPTION 'another version' USING ERRCODE = 'TK003';
            END IF;
        END IF;
        numbers[one.place] := its_number;
        IF has_vectors AND its_number <> versions[one.place] THEN
            DELETE FROM {schema}.store_item_vectors
            WHERE namespace = one.namespace AND item = its_number;
        END IF;
    END LOOP;
    IF earlier_items IS NOT NULL THEN
        INSERT INTO {schema}.store_item_versions
        SELECT namespaces[e.item], keys[e.item], e.version, e.updated, e.replaced, e.deleted, e.patch
        FROM unnest(earlier_items, earlier_versions, earlier_updates, earlier_times,
            earlier_deleted, earlier_patches) e (item, version, updated, replaced, deleted, patch)
        ON CONFLICT DO NOTHING;  -- (it was done, and its answer lost)
        DELETE FROM {schema}.store_item_versions v
        USING unnest(earlier_items, earlier_most) e (item, most)
        WHERE v.namespace = namespaces[e.item] AND v.key = keys[e.item] AND v.version <= (
            SELECT o.version FROM {schema}.store_item_versions o
            WHERE o.namespace = namespaces[e.item] AND o.key = keys[e.item]
            ORDER BY o.version DESC OFFSET e.most LIMIT 1);
    END IF;
    IF vector_items IS NOT NULL THEN
        PERFORM {schema}.add_vectors(
            namespaces, numbers, vector_items, vector_paths, vector_floats);
    END IF;
    RETURN true;
EXCEPTION WHEN SQLSTATE 'TK003' THEN
    RETURN false;
END
$$;

-- Add vectors to items that still have these versions.
CREATE FUNCTION {schema}.embed_items(
    paths text[], keys text[], versions bigint[], vector_items bigint[], vector_paths text[],
    vector_floats real[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    one record;
    numbers bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(keys)]);
    namespaces bigint[] := numbers;
BEGIN
    FOR one IN
        SELECT p.place, i.namespace, i.number
        FROM unnest(paths, keys, versions) WITH ORDINALITY p (path, key, version, place)
        JOIN {schema}.store_namespaces n ON n.path = p.path COLLATE "C"
        JOIN {schema}.store_items i
            ON i.namespace = n.number AND i.key = p.key AND i.version = p.version
        ORDER BY i.namespace, i.key FOR UPDATE OF i
    LOOP
        namespaces[one.place] := one.namespace;
        numbers[one.place] := one.number;
        UPDATE {schema}.store_items SET pending = NULL
        WHERE namespace = one.namespace AND number = one.number;
        DELETE FROM {schema}.store_item_vectors
        WHERE namespace = one.namespace AND item = one.number;
    END LOOP;
    PERFORM {schema}.add_vectors(namespaces, numbers, vector_items, vector_paths, vector_floats);
END
$$;

-- Remove items that have expired, or are in namespaces from one path to another; return how many.
CREATE FUNCTION {schema}.drop_items(
    first text, stop text, expired bigint DEFAULT NULL, most bigint DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    namespaces bigint[];
    dropped_keys text[];
    numbers bigint[];
BEGIN
    IF expired IS NOT NULL THEN
        WITH gone AS (
            DELETE FROM {schema}.store_items i USING (
                SELECT e.namespace, e.key FROM {schema}.store_items e
                WHERE e.expires_at <= expired LIMIT most FOR UPDATE SKIP LOCKED) chosen
            WHERE i.namespace = chosen.namespace AND i.key = chosen.key
            RETURNING i.namespace, i.key, i.number)
        SELECT array_agg(g.namespace), array_agg(g.key), array_agg(g.number)
        INTO namespaces, dropped_keys, numbers FROM gone g;
    ELSE
        WITH gone AS (
            DELETE FROM {schema}.store_items i USING (
                SELECT e.namespace, e.key FROM {schema}.store_items e
                JOIN {schema}.store_namespaces n ON n.number = e.namespace
                WHERE n.path >= first AND n.path < stop
                ORDER BY e.namespace, e.key FOR UPDATE OF e) chosen
            WHERE i.namespace = chosen.namespace AND i.key = chosen.key
            RETURNING i.namespace, i.key, i.number)
        SELECT array_agg(g.namespace), array_agg(g.key), array_agg(g.number)
        INTO namespaces, dropped_keys, numbers FROM gone g;
        DELETE FROM {schema}.store_item_versions v USING {schema}.store_namespaces n
        WHERE n.number = v.namespace AND n.path >= first AND n.path < stop;
    END IF;
    DELETE FROM {schema}.store_item_versions v
    USING unnest(namespaces, dropped_keys) g (namespace, key)
    WHERE v.namespace = g.namespace AND v.key = g.key;
    IF {schema}.store_has_vectors() THEN
        DELETE FROM {schema}.store_item_vectors v
        USING unnest(namespaces, numbers) g (namespace, number)
        WHERE v.namespace = g.namespace AND v.item = g.number;
    END IF;
    RETURN coalesce(cardinality(numbers), 0);
END
$$;

-- Remove the namespaces from one path to another that hold nothing.
CREATE FUNCTION {schema}.drop_namespaces(first text, stop text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE {schema}.store_items IN SHARE ROW EXCLUSIVE MODE;  -- (see put_items)
    DELETE FROM {schema}.store_namespaces n
    WHERE n.path >= first AND n.path < stop
        AND NOT EXISTS (SELECT FROM {schema}.store_items i WHERE i.namespace = n.number);
END
$$;
