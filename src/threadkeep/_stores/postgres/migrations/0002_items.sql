-- Items of stores (store/postgres.py). Times and lifetimes are microseconds, times since 1970.

CREATE SEQUENCE {schema}.store_counter;

CREATE TABLE {schema}.store_namespaces (
    number bigint NOT NULL,
    path text COLLATE "C" NOT NULL,
    PRIMARY KEY (number),
    UNIQUE (path)
);
COMMENT ON COLUMN {schema}.store_namespaces.path IS 'its labels, each with a period behind it';

-- A JSON value is stored twice: as its exact text, which jsonb does not keep (floats, the order of
-- keys), and as jsonb, for filters. Earlier versions are patches of the text.
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
    value jsonb,
    body bytea NOT NULL,
    words tsvector,
    PRIMARY KEY (namespace, key)
);
COMMENT ON COLUMN {schema}.store_items.number IS 'that of its first put; items are listed by it';
COMMENT ON COLUMN {schema}.store_items.pending IS 'the fields to embed later';
COMMENT ON COLUMN {schema}.store_items.body IS 'the value: UTF-8 of its JSON, or what the codec made of it';
COMMENT ON COLUMN {schema}.store_items.value IS 'the same for filters, where it is JSON';
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

-- The table of vectors is created if a store has an index: it needs the extension `vector`.
CREATE FUNCTION {schema}.store_has_vectors()
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT to_regclass({literal} || '.store_item_vectors') IS NOT NULL
$$;

-- Vectors of items, by the place of their item in `namespaces` and `numbers`; `floats` has all
-- vectors, one after another.
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

-- Put items with different keys; with `only_new`, existing items are not replaced. Rows are locked
-- in the order of their keys. Their times are those of `put_at`, unless given. Versions grow: if
-- another put with newer versions came first, all rows are locked, and put once more.
CREATE FUNCTION {schema}.write_items(
    new_versions bigint[], namespaces bigint[], keys text[], jsons text[], bodies bytea[],
    ttls bigint[], pendings text[], texts text[], put_at bigint, created bigint[],
    updated bigint[], expires bigint[], only_new boolean,
    OUT numbers bigint[], OUT versions bigint[])
LANGUAGE plpgsql AS $$
DECLARE
    fresh bigint[] := new_versions;
BEGIN
    LOOP
        WITH written AS (
            INSERT INTO {schema}.store_items (
                namespace, key, number, version, created_at, updated_at, ttl, expires_at, pending,
                value, body, words)
            SELECT p.namespace, p.key, p.version, p.version, coalesce(p.created, put_at),
                coalesce(p.updated, put_at), p.ttl,
                CASE WHEN p.updated IS NULL THEN put_at + p.ttl ELSE p.expires END, p.pending, p.json::jsonb, coalesce(p.body, convert_to(p.json, 'UTF8')), p.words::tsvector
            FROM unnest(
                fresh, namespaces, keys, jsons, bodies, ttls, pendings, texts, created, updated,
                expires)
                p (version, namespace, key, json, body, ttl, pending, words, created, updated, expires)
            ORDER BY p.namespace, p.key COLLATE "C"
            ON CONFLICT (namespace, key) DO UPDATE SET
                created_at = CASE excluded.created_at
                    WHEN put_at THEN store_items.created_at ELSE excluded.created_at END,
                version = excluded.version, updated_at = excluded.updated_at, ttl = excluded.ttl,
                expires_at = excluded.expires_at, pending = excluded.pending,
                value = excluded.value, body = excluded.body, words = excluded.words
            WHERE NOT only_new AND store_items.version < excluded.version
            RETURNING store_items.number, store_items.version)
        SELECT array_agg(w.number ORDER BY w.version), array_agg(w.version ORDER BY w.version)
        INTO numbers, versions FROM written w;
        EXIT WHEN only_new OR cardinality(numbers) = cardinality(keys);
        fresh := ARRAY(SELECT nextval({literal} || '.store_counter') FROM unnest(keys));
    END LOOP;
END
$$;

-- Put one item: the same as `put_items`, in two thirds of the time.
CREATE FUNCTION {schema}.put_item(
    its_path text, its_key text, its_json text, its_body bytea, lifetime bigint, its_pending text,
    its_words text, put_at bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    its_version bigint;
    its_namespace bigint;
    its_number bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN  -- (see `put_items`)
        RAISE EXCEPTION 'changes need the isolation level READ COMMITTED' USING ERRCODE = 'TK001';
    END IF;
    LOCK TABLE {schema}.store_items IN ROW EXCLUSIVE MODE;
    SELECT n.number INTO its_namespace FROM {schema}.store_namespaces n WHERE n.path = its_path;
    IF its_namespace IS NULL THEN
        INSERT INTO {schema}.store_namespaces (number, path)
        VALUES (nextval({literal} || '.store_counter'), its_path) ON CONFLICT DO NOTHING;
        SELECT n.number INTO its_namespace FROM {schema}.store_namespaces n WHERE n.path = its_path;
    END IF;
    LOOP  -- (twice if another put with a newer version came first)
        its_version := nextval({literal} || '.store_counter');
        INSERT INTO {schema}.store_items (
            namespace, key, number, version, created_at, updated_at, ttl, expires_at, pending,
            value, body, words)
        VALUES (
            its_namespace, its_key, its_version, its_version, put_at, put_at, lifetime,
            put_at + lifetime, its_pending, its_json::jsonb,
            coalesce(its_body, convert_to(its_json, 'UTF8')), its_words::tsvector)
        ON CONFLICT (namespace, key) DO UPDATE SET
            version = excluded.version, updated_at = excluded.updated_at, ttl = excluded.ttl,
            expires_at = excluded.expires_at, pending = excluded.pending,
            value = excluded.value, body = excluded.body, words = excluded.words
        WHERE store_items.version < excluded.version
        RETURNING store_items.number INTO its_number;
        EXIT WHEN FOUND;
    END LOOP;
    IF its_number <> its_version AND {schema}.store_has_vectors() THEN
        DELETE FROM {schema}.store_item_vectors v
        WHERE v.namespace = its_namespace AND v.item = its_number;
    END IF;
    RETURN true;
END
$$;

-- Put items, or delete those without a value; false if an item has another version than expected.
-- With `plain`, nothing is deleted or expected. `spaces` has the place of each item's namespace in
-- `paths`. Rows are locked in the order of their keys, so that two calls cannot deadlock. (Rows of
-- namespaces come first, in the order of their paths.)
CREATE FUNCTION {schema}.put_items(
    paths text[], spaces bigint[], keys text[], jsons text[], bodies bytea[], ttls bigint[],
    pendings text[], texts text[], put_at bigint, plain boolean,
    expected bigint[] DEFAULT NULL,
    created bigint[] DEFAULT NULL,
    updated bigint[] DEFAULT NULL,
    expires bigint[] DEFAULT NULL,
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
RETURNS boolean LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    place integer;
    is_put boolean;
    found_version bigint;
    its_number bigint;
    written record;
    known bigint[];
    namespaces bigint[];
    numbers bigint[];
    new_versions bigint[] := ARRAY(
        SELECT nextval({literal} || '.store_counter') FROM unnest(keys));
    versions bigint[];
BEGIN
    -- With an older snapshot, what others committed while this waited would not be seen.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'changes need the isolation level READ COMMITTED' USING ERRCODE = 'TK001';
    END IF;
    -- Prevents the removal of namespaces whose numbers were just read.
    LOCK TABLE {schema}.store_items IN ROW EXCLUSIVE MODE;
    FOR turn IN 1 .. 2 LOOP
        known := ARRAY(
            SELECT (SELECT n.number FROM {schema}.store_namespaces n WHERE n.path = p.path)
            FROM unnest(paths) p (path));
        EXIT WHEN turn = 2 OR array_position(known, NULL) IS NULL;
        INSERT INTO {schema}.store_namespaces (number, path)
        SELECT made.number, made.path FROM (
            SELECT nextval({literal} || '.store_counter') AS number, new.path FROM (
                SELECT paths[s.space] AS path FROM unnest(spaces, jsons, bodies)
                    WITH ORDINALITY s (space, json, body, place)
                WHERE known[s.space] IS NULL AND (s.json IS NOT NULL OR s.body IS NOT NULL)
                GROUP BY s.space ORDER BY min(s.place)) new) made
        ORDER BY made.path COLLATE "C"
        ON CONFLICT DO NOTHING;
    END LOOP;
    namespaces := ARRAY(SELECT known[s.space] FROM unnest(spaces) s (space));
    IF plain THEN
        written := {schema}.write_items(
            new_versions, namespaces, keys, jsons, bodies, ttls, pendings, texts, put_at,
            created, updated, expires, false);
        numbers := written.numbers;
        versions := written.versions;
    ELSE
        FOR place IN
            SELECT p.place FROM unnest(namespaces, keys) WITH ORDINALITY p (space, key, place)
            ORDER BY p.space, p.key COLLATE "C"
        LOOP
            found_version := NULL;
            IF expected[place] IS NOT NULL THEN
                SELECT i.version INTO found_version FROM {schema}.store_items i
                WHERE i.namespace = namespaces[place] AND i.key = keys[place] FOR UPDATE;
                IF coalesce(found_version, 0) <> expected[place] THEN
                    RAISE EXCEPTION 'another version' USING ERRCODE = 'TK003';
                END IF;
            END IF;
            is_put := jsons[place] IS NOT NULL OR bodies[place] IS NOT NULL;
            IF is_put THEN
                written := {schema}.write_items(
                    new_versions[place:place], namespaces[place:place], keys[place:place],
                    jsons[place:place], bodies[place:place], ttls[place:place],
                    pendings[place:place], texts[place:place], put_at, created[place:place],
                    updated[place:place], expires[place:place],
                    coalesce(expected[place] = 0, false));
                numbers[place] := written.numbers[1];
                versions[place] := written.versions[1];
                IF versions[place] IS NULL THEN  -- (another transaction put it after the lookup)
                    RAISE EXCEPTION 'another version' USING ERRCODE = 'TK003';
                END IF;
            ELSE
                DELETE FROM {schema}.store_items i
                WHERE i.namespace = namespaces[place] AND i.key = keys[place]
                RETURNING i.number INTO its_number;
                numbers[place] := its_number;
                versions[place] := 0;
            END IF;
        END LOOP;
    END IF;
    IF {schema}.store_has_vectors() THEN
        FOR i IN 1 .. cardinality(keys) LOOP
            CONTINUE WHEN numbers[i] IS NULL OR numbers[i] = versions[i];  -- it is new
            DELETE FROM {schema}.store_item_vectors v
            WHERE v.namespace = namespaces[i] AND v.item = numbers[i];
        END LOOP;
    END IF;
    IF earlier_items IS NOT NULL THEN
        INSERT INTO {schema}.store_item_versions
        SELECT namespaces[e.item], keys[e.item], e.version, e.updated, e.replaced, e.deleted, e.patch
        FROM unnest(earlier_items, earlier_versions, earlier_updates, earlier_times,
            earlier_deleted, earlier_patches) e (item, version, updated, replaced, deleted, patch)
        ON CONFLICT DO NOTHING;  -- (a retry after a lost answer)
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

-- Remove items that are in namespaces from one path to another, or those of them that have expired
-- ('' as the first path: of all namespaces). Returns the number of removed items, and the namespaces
-- that may be removed now.
CREATE FUNCTION {schema}.drop_items(
    first text, stop text, expired bigint, most bigint, OUT dropped bigint, OUT emptied bigint[])
LANGUAGE plpgsql AS $$
DECLARE
    namespaces bigint[];
    dropped_keys text[];
    numbers bigint[];
BEGIN
    IF expired IS NOT NULL THEN
        WITH gone AS (
            DELETE FROM {schema}.store_items i USING (
                SELECT e.namespace, e.key FROM {schema}.store_items e
                WHERE e.expires_at <= expired AND (first = '' OR e.namespace IN (
                    SELECT n.number FROM {schema}.store_namespaces n
                    WHERE n.path >= first AND n.path < stop))
                LIMIT most FOR UPDATE OF e SKIP LOCKED) chosen
            WHERE i.namespace = chosen.namespace AND i.key = chosen.key
            RETURNING i.namespace, i.key, i.number)
        SELECT array_agg(g.namespace), array_agg(g.key), array_agg(g.number)
        INTO namespaces, dropped_keys, numbers FROM gone g;
        emptied := ARRAY(
            SELECT DISTINCT g.namespace FROM unnest(namespaces) g (namespace) WHERE NOT EXISTS (
                SELECT FROM {schema}.store_items i WHERE i.namespace = g.namespace));
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
        emptied := ARRAY(
            SELECT n.number FROM {schema}.store_namespaces n
            WHERE n.path >= first AND n.path < stop);
        DELETE FROM {schema}.store_item_versions v WHERE v.namespace = ANY (emptied);
    END IF;
    DELETE FROM {schema}.store_item_versions v
    USING unnest(namespaces, dropped_keys) g (namespace, key)
    WHERE v.namespace = g.namespace AND v.key = g.key;
    IF {schema}.store_has_vectors() THEN
        DELETE FROM {schema}.store_item_vectors v
        USING unnest(namespaces, numbers) g (namespace, number)
        WHERE v.namespace = g.namespace AND v.item = g.number;
    END IF;
    dropped := coalesce(cardinality(numbers), 0);
END
$$;

-- Remove the empty ones of these namespaces.
CREATE FUNCTION {schema}.drop_namespaces(emptied bigint[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE {schema}.store_items IN SHARE ROW EXCLUSIVE MODE;  -- (see put_items)
    DELETE FROM {schema}.store_namespaces n
    WHERE n.number = ANY (emptied)
        AND NOT EXISTS (SELECT FROM {schema}.store_items i WHERE i.namespace = n.number)
        AND NOT EXISTS (SELECT FROM {schema}.store_item_versions v WHERE v.namespace = n.number);
END
$$;
