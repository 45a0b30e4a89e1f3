-- Tables of threadkeep, and the functions that commit to them.
--
-- {schema} is the schema's name, quoted. Ids are ordered by code point (COLLATE "C"); a NUL,
-- which PostgreSQL's text cannot hold, is written as two characters (see statement.py). Payloads
-- are already compressed if that saves space: STORAGE EXTERNAL keeps PostgreSQL from trying again.

CREATE TABLE {schema}.threads (
    thread_id text COLLATE "C" NOT NULL,
    generation bigint NOT NULL DEFAULT 0,
    deleted_at timestamptz,
    tips bigint[] NOT NULL DEFAULT '{}',
    life bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    state text COLLATE "C",
    updated_at timestamptz,
    size bigint NOT NULL DEFAULT 0,
    waits_at text COLLATE "C",
    revision bigint NOT NULL DEFAULT 0,
    pinned boolean NOT NULL DEFAULT false,
    ttl bigint,
    origin text COLLATE "C",
    origin_checkpoint text COLLATE "C",
    heap text COLLATE "C",
    PRIMARY KEY (thread_id)
) WITH (fillfactor = 80);  -- most saves update columns without an index, in place (HOT)
COMMENT ON COLUMN {schema}.threads.generation IS 'grows whenever segments are removed';
COMMENT ON COLUMN {schema}.threads.deleted_at IS 'the tombstone: writes of older runs are refused';
COMMENT ON COLUMN {schema}.threads.tips IS 'random numbers of the last commits, newest first';
COMMENT ON COLUMN {schema}.threads.life IS 'number of the last deletion: runs from before are refused';
COMMENT ON COLUMN {schema}.threads.state IS 'NULL: the thread is not in the registry';
COMMENT ON COLUMN {schema}.threads.size IS 'bytes of rows and segments, about';
COMMENT ON COLUMN {schema}.threads.waits_at IS 'the checkpoint at which an interrupt waits';
COMMENT ON COLUMN {schema}.threads.revision IS 'grows whenever other than times and size change';
COMMENT ON COLUMN {schema}.threads.ttl IS 'microseconds that the thread may rest';
COMMENT ON COLUMN {schema}.threads.origin IS 'the thread that it was forked from';
COMMENT ON COLUMN {schema}.threads.heap IS 'segments.thread_id of its segments; NULL: its own id';
CREATE INDEX threads_by_update ON {schema}.threads (updated_at, thread_id)
    WHERE state <> 'deleted';
CREATE INDEX threads_by_creation ON {schema}.threads (created_at, thread_id)
    WHERE state <> 'deleted';
CREATE INDEX threads_by_state ON {schema}.threads (state, updated_at, thread_id);
CREATE INDEX threads_by_origin ON {schema}.threads (origin) WHERE origin IS NOT NULL;
CREATE INDEX threads_by_ttl ON {schema}.threads (ttl) WHERE ttl IS NOT NULL;
CREATE INDEX threads_by_heap ON {schema}.threads (heap, thread_id) WHERE heap IS NOT NULL;

CREATE TABLE {schema}.checkpoints (
    thread_id text COLLATE "C" NOT NULL,
    checkpoint_ns text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    parent_checkpoint_id text COLLATE "C",
    run bigint NOT NULL,
    seen bigint NOT NULL,
    flags smallint NOT NULL,
    ts timestamptz,
    ts_text text COLLATE "C",
    metadata jsonb NOT NULL,
    metadata_text text COLLATE "C",
    exact bytea,
    key_log bigint NOT NULL,
    key_pos bigint NOT NULL,
    manifest bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
);
COMMENT ON COLUMN {schema}.checkpoints.flags IS '1 free, 2 nested, 4 hidden';
COMMENT ON COLUMN {schema}.checkpoints.ts_text IS 'the time where it is not a canonical ISO time';
COMMENT ON COLUMN {schema}.checkpoints.metadata_text IS 'the metadata letter by letter, where jsonb would lose its order';
COMMENT ON COLUMN {schema}.checkpoints.exact IS 'the metadata as stored values, where JSON would lose types';
COMMENT ON COLUMN {schema}.checkpoints.manifest IS 'versions and value references, against the keyframe at (key_log, key_pos)';
CREATE INDEX checkpoints_by_parent
    ON {schema}.checkpoints (thread_id, checkpoint_ns, parent_checkpoint_id, checkpoint_id);
CREATE INDEX checkpoints_by_time ON {schema}.checkpoints (thread_id, created_at);
CREATE INDEX checkpoints_by_id
    ON {schema}.checkpoints (checkpoint_id DESC, thread_id, checkpoint_ns);
CREATE INDEX checkpoints_by_metadata ON {schema}.checkpoints USING gin (metadata jsonb_path_ops);
CREATE INDEX checkpoints_with_exact ON {schema}.checkpoints (thread_id) WHERE exact IS NOT NULL;

CREATE TABLE {schema}.writes (
    thread_id text COLLATE "C" NOT NULL,
    checkpoint_ns text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    run bigint NOT NULL,
    seen bigint NOT NULL,
    task_id text COLLATE "C" NOT NULL,
    task_path text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, seq)
);

CREATE TABLE {schema}.segments (
    thread_id text COLLATE "C" NOT NULL,
    log bigint NOT NULL,
    start bigint NOT NULL,
    count bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (thread_id, log, start)
);

ALTER TABLE {schema}.checkpoints
    ALTER COLUMN exact SET STORAGE EXTERNAL,
    ALTER COLUMN manifest SET STORAGE EXTERNAL;
ALTER TABLE {schema}.writes ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE {schema}.segments ALTER COLUMN data SET STORAGE EXTERNAL;

-- Labels of a thread as JSON: a tag, or a piece of metadata as [key, value] (engine/labels.py).
CREATE TABLE {schema}.thread_labels (
    thread_id text COLLATE "C" NOT NULL,
    beginning text COLLATE "C" NOT NULL,
    label text COLLATE "C" NOT NULL,
    PRIMARY KEY (thread_id, beginning)
);
CREATE INDEX thread_labels_by_label ON {schema}.thread_labels (label, thread_id);

-- Segments that several threads share: a fork starts with the segments of its origin, uncopied.
--
-- segments.thread_id names a heap: the thread's own id, or the heap in its row, which has a row
-- here as long as several threads share it. A commit to one of these threads
-- locks the thread, then the heap: only one commit at a time adds and removes segments. A removal
-- makes all of these threads stale: a thread's generation is its own plus its heap's.
CREATE TABLE {schema}.heaps (
    heap text COLLATE "C" NOT NULL,
    generation bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (heap)
);
COMMENT ON TABLE {schema}.heaps IS 'segments that several threads share';

-- A refusal is an answer, not an error: it does not affect other batches of the transaction, and an
-- expected conflict adds no line to the server's log (see failures.py).

-- Microseconds since 1970 as a time. (A number times an interval is computed as a double;
-- whole seconds and the rest, multiplied separately, are exact for all times.)
CREATE FUNCTION {schema}.time_of(micros bigint)
RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT timestamptz 'epoch' + micros / 1000000 * interval '1 second'
        + mod(micros, 1000000) * interval '1 microsecond'
$$;

CREATE FUNCTION {schema}.heap_of(the_thread text)
RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT t.heap FROM {schema}.threads t WHERE t.thread_id = the_thread), the_thread)
$$;

CREATE FUNCTION {schema}.generation_of(the_generation bigint, the_heap text)
RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN the_heap IS NULL THEN coalesce(the_generation, 0) ELSE the_generation
        + coalesce((SELECT h.generation FROM {schema}.heaps h WHERE h.heap = the_heap), 0) END
$$;

-- The tips that a thread names after a commit. (Those of `_core.engine.tips`.)
CREATE FUNCTION {schema}.tips_after(named bigint[], tip bigint)
RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN tip IS NULL OR tip = ANY (named) THEN named ELSE (tip || named)[1:16] END
$$;

-- Lock a thread and its heap; `its_heap` is NULL unless several threads share it.
CREATE FUNCTION {schema}.lock_thread(
    the_thread text, OUT its_generation bigint, OUT its_life bigint, OUT its_tips bigint[],
    OUT is_new boolean, OUT its_heap text)
LANGUAGE plpgsql AS $$
DECLARE
    shared bigint;
BEGIN
    -- With an older snapshot, what others committed while this waited would not be seen.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'changes need the isolation level READ COMMITTED' USING ERRCODE = 'TK001';
    END IF;
    is_new := false;
    LOOP
        SELECT generation, life, tips, heap INTO its_generation, its_life, its_tips, its_heap
        FROM {schema}.threads WHERE thread_id = the_thread FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO {schema}.threads (thread_id) VALUES (the_thread) ON CONFLICT DO NOTHING;
        is_new := FOUND;
    END LOOP;
    IF its_heap IS NOT NULL THEN
        SELECT generation INTO shared FROM {schema}.heaps
        WHERE heap = its_heap FOR NO KEY UPDATE;
        its_generation := its_generation + coalesce(shared, 0);
    END IF;
END
$$;

-- 'head' expects no checkpoint newer than id, 'writes' none after number b except those of run a,
-- 'entry' revision a of the thread's entry, 'rows' a checkpoints and b writes in all threads that
-- share the heap.
CREATE FUNCTION {schema}.break_of_fence(
    the_thread text, kind text, ns text, id text, a bigint, b bigint, own_ns text[], own_ids text[],
    OUT is_broken boolean, OUT at_checkpoint text)
LANGUAGE plpgsql AS $$
DECLARE
    family text[];
BEGIN
    at_checkpoint := id;
    IF kind = 'head' THEN
        SELECT c.checkpoint_id INTO at_checkpoint FROM {schema}.checkpoints c
        WHERE c.thread_id = the_thread AND c.checkpoint_ns = ns
            AND (id IS NULL OR c.checkpoint_id > id) AND c.flags & 2 = 0
            AND NOT EXISTS (
                SELECT FROM unnest(own_ns, own_ids) own (ns, id)
                WHERE own.ns = c.checkpoint_ns AND own.id = c.checkpoint_id)
        ORDER BY c.checkpoint_id DESC LIMIT 1;
        is_broken := FOUND;
    ELSIF kind = 'writes' THEN
        is_broken := EXISTS (
            SELECT FROM {schema}.writes w
            WHERE w.thread_id = the_thread AND w.checkpoint_ns = ns AND w.checkpoint_id = id
                AND w.seq > b AND w.run <> a);
    ELSIF kind = 'entry' THEN
        is_broken := a <> (
            SELECT CASE WHEN t.state IS NULL THEN 0 ELSE t.revision END
            FROM {schema}.threads t WHERE t.thread_id = the_thread);
    ELSE
        family := array_append(ARRAY(
            SELECT o.thread_id FROM {schema}.threads t JOIN {schema}.threads o ON o.heap = t.heap
            WHERE t.thread_id = the_thread AND o.thread_id <> the_thread), the_thread);
        is_broken := a <> (
                SELECT count(*) FROM {schema}.checkpoints c WHERE c.thread_id = ANY (family))
            OR b <> (SELECT count(*) FROM {schema}.writes w WHERE w.thread_id = ANY (family));
    END IF;
END
$$;

-- 'free', 'there' (the same segment) or 'taken'. Segments that the batch drops do not count.
CREATE FUNCTION {schema}.state_of_place(
    the_thread text, its_log bigint, its_start bigint, its_count bigint, its_data bytea,
    drop_logs bigint[], drop_starts bigint[], drop_counts bigint[])
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    neighbour record;
BEGIN
    -- Stored segments never overlap: only the last one that starts before our end can reach us.
    SELECT s.start, s.count, s.data = its_data AS is_same INTO neighbour FROM {schema}.segments s
    WHERE s.thread_id = the_thread AND s.log = its_log AND s.start < its_start + its_count
        AND NOT EXISTS (
            SELECT FROM unnest(drop_logs, drop_starts, drop_counts) gone (log, start, count)
            WHERE gone.log = s.log AND gone.start = s.start AND gone.count = s.count)
    ORDER BY s.start DESC LIMIT 1;
    IF NOT FOUND OR neighbour.start + neighbour.count <= its_start THEN
        RETURN 'free';
    ELSIF neighbour.start = its_start AND neighbour.count = its_count AND neighbour.is_same THEN
        RETURN 'there';
    END IF;
    RETURN 'taken';
END
$$;

CREATE FUNCTION {schema}.commit_batch(
    the_thread text,
    expected_life bigint DEFAULT NULL,
    expected_generation bigint DEFAULT NULL,
    its_tip bigint DEFAULT NULL,
    bump boolean DEFAULT false,
    expected_tips bigint[] DEFAULT NULL,
    fence_kinds text[] DEFAULT NULL,
    fence_namespaces text[] DEFAULT NULL,
    fence_ids text[] DEFAULT NULL,
    fence_a bigint[] DEFAULT NULL,
    fence_b bigint[] DEFAULT NULL,
    segment_logs bigint[] DEFAULT NULL,
    segment_starts bigint[] DEFAULT NULL,
    segment_counts bigint[] DEFAULT NULL,
    segment_datas bytea[] DEFAULT NULL,
    checkpoint_namespaces text[] DEFAULT NULL,
    checkpoint_ids text[] DEFAULT NULL,
    checkpoint_parents text[] DEFAULT NULL,
    checkpoint_runs bigint[] DEFAULT NULL,
    checkpoint_seens bigint[] DEFAULT NULL,
    checkpoint_flags bigint[] DEFAULT NULL,
    checkpoint_times bigint[] DEFAULT NULL,
    checkpoint_time_texts text[] DEFAULT NULL,
    checkpoint_metadatas text[] DEFAULT NULL,
    checkpoint_metadata_texts text[] DEFAULT NULL,
    checkpoint_exacts bytea[] DEFAULT NULL,
    checkpoint_key_logs bigint[] DEFAULT NULL,
    checkpoint_key_places bigint[] DEFAULT NULL,
    checkpoint_manifests bytea[] DEFAULT NULL,
    write_namespaces text[] DEFAULT NULL,
    write_ids text[] DEFAULT NULL,
    write_runs bigint[] DEFAULT NULL,
    write_seens bigint[] DEFAULT NULL,
    write_tasks text[] DEFAULT NULL,
    write_paths text[] DEFAULT NULL,
    write_bodies bytea[] DEFAULT NULL,
    drop_logs bigint[] DEFAULT NULL,
    drop_starts bigint[] DEFAULT NULL,
    drop_counts bigint[] DEFAULT NULL,
    drop_namespaces text[] DEFAULT NULL,
    drop_ids text[] DEFAULT NULL,
    drop_write_namespaces text[] DEFAULT NULL,
    drop_write_ids text[] DEFAULT NULL,
    drop_write_seqs bigint[] DEFAULT NULL,
    new_namespaces text[] DEFAULT NULL,
    new_ids text[] DEFAULT NULL,
    new_seqs bigint[] DEFAULT NULL,
    new_paths text[] DEFAULT NULL,
    new_bodies bytea[] DEFAULT NULL,
    hide_namespaces text[] DEFAULT NULL,
    hide_ids text[] DEFAULT NULL,
    end_tip bigint DEFAULT NULL,  -- of the deletion that this batch is checked for
    OUT refusal text,
    OUT at_namespace text,
    OUT at_checkpoint text)
LANGUAGE plpgsql AS $$
DECLARE
    thread record;
    fence record;
    is_retry boolean;
    places text[];
    its_heap text;
BEGIN
    thread := {schema}.lock_thread(the_thread);
    its_heap := coalesce(thread.its_heap, the_thread);
    IF end_tip = thread.its_life THEN
        refusal := 'done';  -- a retry after a lost answer: later saves are not deleted
    ELSIF expected_life <> thread.its_life THEN
        refusal := 'deleted';
    ELSIF expected_generation <> thread.its_generation OR NOT expected_tips <@ thread.its_tips THEN
        refusal := 'stale';
    END IF;
    -- A batch that is stored already is a retry after a lost answer: newer checkpoints are no
    -- reason to refuse it.
    is_retry := fence_kinds IS NOT NULL AND checkpoint_ids IS NOT NULL AND NOT EXISTS (
        SELECT FROM unnest(checkpoint_namespaces, checkpoint_ids, checkpoint_manifests)
            own (ns, id, manifest)
        WHERE NOT EXISTS (
            SELECT FROM {schema}.checkpoints c
            WHERE c.thread_id = the_thread AND c.checkpoint_ns = own.ns
                AND c.checkpoint_id = own.id AND c.manifest = own.manifest));
    FOR i IN 1 .. coalesce(cardinality(fence_kinds), 0) LOOP
        EXIT WHEN refusal IS NOT NULL;
        CONTINUE WHEN is_retry AND fence_kinds[i] = 'head';
        fence := {schema}.break_of_fence(
            the_thread, fence_kinds[i], fence_namespaces[i], fence_ids[i], fence_a[i], fence_b[i],
            checkpoint_namespaces, checkpoint_ids);
        IF fence.is_broken THEN
            refusal := 'conflict';
            at_namespace := fence_namespaces[i];
            at_checkpoint := fence.at_checkpoint;
        END IF;
    END LOOP;
    FOR i IN 1 .. coalesce(cardinality(segment_logs), 0) LOOP
        EXIT WHEN refusal IS NOT NULL;
        places[i] := {schema}.state_of_place(
            its_heap, segment_logs[i], segment_starts[i], segment_counts[i], segment_datas[i],
            drop_logs, drop_starts, drop_counts);
        FOR j IN 1 .. i - 1 LOOP
            IF segment_logs[j] = segment_logs[i]
                AND segment_starts[j] < segment_starts[i] + segment_counts[i]
                AND segment_starts[i] < segment_starts[j] + segment_counts[j]
            THEN
                places[i] := CASE WHEN segment_starts[j] = segment_starts[i]
                    AND segment_counts[j] = segment_counts[i]
                    AND segment_datas[j] = segment_datas[i] THEN 'there' ELSE 'taken' END;
            END IF;
        END LOOP;
        IF places[i] = 'taken' THEN
            refusal := 'taken';
        END IF;
    END LOOP;
    IF refusal IS NOT NULL THEN
        IF thread.is_new THEN
            DELETE FROM {schema}.threads WHERE thread_id = the_thread;
        END IF;
        RETURN;
    END IF;

    IF drop_logs IS NOT NULL THEN
        DELETE FROM {schema}.segments s
        USING unnest(drop_logs, drop_starts, drop_counts) gone (log, start, count)
        WHERE s.thread_id = its_heap
            AND s.log = gone.log AND s.start = gone.start AND s.count = gone.count;
    END IF;
    FOR i IN 1 .. coalesce(cardinality(segment_logs), 0) LOOP
        IF places[i] = 'free' THEN
            INSERT INTO {schema}.segments (thread_id, log, start, count, data) VALUES (
                its_heap, segment_logs[i], segment_starts[i], segment_counts[i], segment_datas[i]);
        END IF;
    END LOOP;
    FOR i IN 1 .. coalesce(cardinality(checkpoint_ids), 0) LOOP
        INSERT INTO {schema}.checkpoints AS c (
            thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run, seen, flags,
            ts, ts_text, metadata, metadata_text, exact, key_log, key_pos, manifest)
        VALUES (
            the_thread, checkpoint_namespaces[i], checkpoint_ids[i], checkpoint_parents[i],
            checkpoint_runs[i], checkpoint_seens[i], checkpoint_flags[i],
            {schema}.time_of(checkpoint_times[i]),
            checkpoint_time_texts[i], checkpoint_metadatas[i]::jsonb, checkpoint_metadata_texts[i],
            checkpoint_exacts[i], checkpoint_key_logs[i], checkpoint_key_places[i],
            checkpoint_manifests[i])
        ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO UPDATE SET
            parent_checkpoint_id = excluded.parent_checkpoint_id, run = excluded.run,
            seen = excluded.seen, flags = excluded.flags, ts = excluded.ts,
            ts_text = excluded.ts_text, metadata = excluded.metadata,
            metadata_text = excluded.metadata_text, exact = excluded.exact,
            key_log = excluded.key_log, key_pos = excluded.key_pos, manifest = excluded.manifest;
    END LOOP;
    FOR i IN 1 .. coalesce(cardinality(write_ids), 0) LOOP
        INSERT INTO {schema}.writes (
            thread_id, checkpoint_ns, checkpoint_id, seq, run, seen, task_id, task_path, body)
        VALUES (
            the_thread, write_namespaces[i], write_ids[i],
            1 + coalesce((
                SELECT max(w.seq) FROM {schema}.writes w
                WHERE w.thread_id = the_thread AND w.checkpoint_ns = write_namespaces[i]
                    AND w.checkpoint_id = write_ids[i]), 0),
            write_runs[i], write_seens[i], write_tasks[i], write_paths[i], write_bodies[i]);
    END LOOP;
    IF drop_ids IS NOT NULL THEN
        DELETE FROM {schema}.checkpoints c USING unnest(drop_namespaces, drop_ids) gone (ns, id)
        WHERE c.thread_id = the_thread AND c.checkpoint_ns = gone.ns AND c.checkpoint_id = gone.id;
    END IF;
    IF drop_write_ids IS NOT NULL THEN
        DELETE FROM {schema}.writes w
        USING unnest(drop_write_namespaces, drop_write_ids, drop_write_seqs) gone (ns, id, seq)
        WHERE w.thread_id = the_thread AND w.checkpoint_ns = gone.ns
            AND w.checkpoint_id = gone.id AND w.seq = gone.seq;
    END IF;
    IF new_ids IS NOT NULL THEN
        UPDATE {schema}.writes w SET task_path = new.path, body = new.body
        FROM unnest(new_namespaces, new_ids, new_seqs, new_paths, new_bodies)
            new (ns, id, seq, path, body)
        WHERE w.thread_id = the_thread AND w.checkpoint_ns = new.ns AND w.checkpoint_id = new.id
            AND w.seq = new.seq;
    END IF;
    IF hide_ids IS NOT NULL THEN
        UPDATE {schema}.checkpoints c SET flags = c.flags | 4
        FROM unnest(hide_namespaces, hide_ids) hidden (ns, id)
        WHERE c.thread_id = the_thread AND c.checkpoint_ns = hidden.ns AND c.checkpoint_id = hidden.id;
    END IF;
    IF its_tip IS NOT NULL THEN
        UPDATE {schema}.threads SET tips = {schema}.tips_after(tips, its_tip)
        WHERE thread_id = the_thread;
    END IF;
    IF coalesce(drop_ids, drop_write_ids, hide_ids) IS NOT NULL THEN
        UPDATE {schema}.threads SET revision = revision + 1
        WHERE thread_id = the_thread AND state IS NOT NULL;
    END IF;
    IF bump THEN
        UPDATE {schema}.heaps SET generation = generation + 1 WHERE heap = thread.its_heap;
        IF NOT FOUND THEN
            UPDATE {schema}.threads SET generation = generation + 1 WHERE thread_id = the_thread;
        END IF;
    END IF;
END
$$;

-- Remove a locked thread's rows. Shared segments stay, and the thread gets its own heap, whose name
-- begins with the thread's id (see roles.py), and is no thread's id (see statement.py).
CREATE FUNCTION {schema}.empty_thread(the_thread text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    its_heap text := {schema}.heap_of(the_thread);
BEGIN
    DELETE FROM {schema}.checkpoints WHERE thread_id = the_thread;
    DELETE FROM {schema}.writes WHERE thread_id = the_thread;
    IF EXISTS (
        SELECT FROM {schema}.threads o WHERE o.heap = its_heap AND o.thread_id <> the_thread)
    THEN
        UPDATE {schema}.threads t
        SET generation = {schema}.generation_of(t.generation, t.heap),
            heap = the_thread || E'\x01\x03' || gen_random_uuid()
        WHERE t.thread_id = the_thread;
        -- The segments that the other threads need must be counted again.
        UPDATE {schema}.heaps SET generation = generation + 1 WHERE heap = its_heap;
    ELSE
        DELETE FROM {schema}.segments WHERE thread_id = its_heap;
    END IF;
END
$$;

CREATE FUNCTION {schema}.drop_thread(
    the_thread text, at_time bigint, its_tip bigint DEFAULT (1 + random() * 2 ^ 52)::bigint,
    is_end boolean DEFAULT true)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF ({schema}.lock_thread(the_thread)).its_life = its_tip AND is_end THEN
        RETURN;  -- (as in commit_batch)
    END IF;
    PERFORM {schema}.empty_thread(the_thread);
    DELETE FROM {schema}.thread_labels WHERE thread_id = the_thread;
    UPDATE {schema}.threads
    SET deleted_at = {schema}.time_of(at_time), tips = ARRAY[its_tip],
        life = CASE WHEN is_end THEN its_tip ELSE life END,
        generation = generation + 1,
        state = CASE WHEN at_time > 0 THEN 'deleted' END, created_at = {schema}.time_of(at_time),
        updated_at = {schema}.time_of(at_time), size = 0, waits_at = NULL, pinned = false,
        ttl = NULL, origin = NULL, origin_checkpoint = NULL, revision = revision + 1
    WHERE thread_id = the_thread;
END
$$;

CREATE FUNCTION {schema}.holds_rows(the_thread text)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM {schema}.checkpoints WHERE thread_id = the_thread)
        OR EXISTS (SELECT FROM {schema}.writes WHERE thread_id = the_thread)
        OR EXISTS (SELECT FROM {schema}.segments WHERE thread_id = {schema}.heap_of(the_thread))
$$;

-- The revision of a thread's entry, 0 without one.
CREATE FUNCTION {schema}.revision_of(the_thread text)
RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce((
        SELECT t.revision FROM {schema}.threads t
        WHERE t.thread_id = the_thread AND t.state IS NOT NULL), 0)
$$;

CREATE FUNCTION {schema}.copy_thread(
    source text, target text, at_time bigint, expected_revision bigint, its_tip bigint,
    OUT refusal text)
LANGUAGE plpgsql AS $$
DECLARE
    one record;
    other record;
BEGIN
    IF NOT {schema}.holds_rows(source) THEN
        RETURN;
    END IF;
    -- Locked in the order of their names, so that two copies cannot deadlock.
    one := {schema}.lock_thread(least(source COLLATE "C", target COLLATE "C"));
    other := {schema}.lock_thread(greatest(source COLLATE "C", target COLLATE "C"));
    IF NOT {schema}.holds_rows(source) THEN  -- it was deleted while this waited
        IF one.is_new OR other.is_new THEN
            DELETE FROM {schema}.threads WHERE thread_id = target;
        END IF;
        RETURN;
    END IF;
    IF {schema}.revision_of(source) <> expected_revision THEN
        refusal := 'conflict';
        IF one.is_new OR other.is_new THEN
            DELETE FROM {schema}.threads WHERE thread_id = target;
        END IF;
        RETURN;
    END IF;
    IF source = target
        OR EXISTS (SELECT FROM {schema}.checkpoints WHERE thread_id = target)
    THEN
        refusal := 'exists';
        RETURN;
    END IF;
    PERFORM {schema}.empty_thread(target);
    INSERT INTO {schema}.checkpoints (
        thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run, seen, flags,
        ts, ts_text, metadata, metadata_text, exact, key_log, key_pos, manifest)
    SELECT target, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run, seen, flags,
        ts, ts_text, metadata, metadata_text, exact, key_log, key_pos, manifest
    FROM {schema}.checkpoints WHERE thread_id = source;
    INSERT INTO {schema}.writes (
        thread_id, checkpoint_ns, checkpoint_id, seq, run, seen, task_id, task_path, body)
    SELECT target, checkpoint_ns, checkpoint_id, seq, run, seen, task_id, task_path, body
    FROM {schema}.writes WHERE thread_id = source;
    INSERT INTO {schema}.segments (thread_id, log, start, count, data)
    SELECT {schema}.heap_of(target), log, start, count, data
    FROM {schema}.segments WHERE thread_id = {schema}.heap_of(source);
    UPDATE {schema}.threads t SET
        deleted_at = NULL, generation = t.generation + 1, tips = ARRAY[its_tip],
        state = s.state, created_at = {schema}.time_of(at_time),
        updated_at = {schema}.time_of(at_time), size = s.size, waits_at = s.waits_at,
        ttl = coalesce(t.ttl, s.ttl), revision = t.revision + 1
    FROM {schema}.threads s WHERE s.thread_id = source AND t.thread_id = target;
    INSERT INTO {schema}.thread_labels (thread_id, beginning, label)
    SELECT target, l.beginning, l.label FROM {schema}.thread_labels l WHERE l.thread_id = source
    ON CONFLICT (thread_id, beginning) DO NOTHING;
END
$$;

CREATE FUNCTION {schema}.fork_thread(
    source text, target text, expected_generation bigint, expected_revision bigint,
    checkpoint_namespaces text[], checkpoint_ids text[],
    write_namespaces text[], write_ids text[], write_seqs bigint[], its_tip bigint,
    OUT refusal text)
LANGUAGE plpgsql AS $$
DECLARE
    one record;
    other record;
    its_heap text;
BEGIN
    one := {schema}.lock_thread(least(source COLLATE "C", target COLLATE "C"));
    other := {schema}.lock_thread(greatest(source COLLATE "C", target COLLATE "C"));
    IF (CASE WHEN source COLLATE "C" < target THEN one.its_generation
        ELSE other.its_generation END) <> expected_generation
    THEN
        refusal := 'stale';
    ELSIF {schema}.revision_of(source) <> expected_revision THEN
        refusal := 'conflict';
    ELSIF source = target OR EXISTS (SELECT FROM {schema}.checkpoints WHERE thread_id = target) THEN
        refusal := 'exists';
    END IF;
    IF refusal IS NOT NULL THEN
        IF one.is_new OR other.is_new THEN
            DELETE FROM {schema}.threads t
            WHERE t.thread_id IN (source, target) AND t.state IS NULL AND t.deleted_at IS NULL
                AND NOT {schema}.holds_rows(t.thread_id);
        END IF;
        RETURN;
    END IF;
    PERFORM {schema}.empty_thread(target);
    its_heap := {schema}.heap_of(source);
    INSERT INTO {schema}.heaps (heap) VALUES (its_heap) ON CONFLICT DO NOTHING;
    UPDATE {schema}.heaps SET generation = generation + 1 WHERE heap = its_heap;
    UPDATE {schema}.threads SET heap = its_heap WHERE thread_id = source;
    UPDATE {schema}.threads t
    SET deleted_at = NULL, generation = {schema}.generation_of(t.generation, t.heap) + 1,
        heap = its_heap, state = NULL, tips = ARRAY[its_tip]
    WHERE t.thread_id = target;
    INSERT INTO {schema}.checkpoints (
        thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run, seen, flags,
        ts, ts_text, metadata, metadata_text, exact, key_log, key_pos, manifest)
    SELECT target, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.run, c.seen, c.flags,
        c.ts, c.ts_text, c.metadata, c.metadata_text, c.exact, c.key_log, c.key_pos, c.manifest
    FROM unnest(checkpoint_namespaces, checkpoint_ids) wanted (ns, id)
    JOIN {schema}.checkpoints c ON c.thread_id = source AND c.checkpoint_ns = wanted.ns
        AND c.checkpoint_id = wanted.id;
    INSERT INTO {schema}.writes (
        thread_id, checkpoint_ns, checkpoint_id, seq, run, seen, task_id, task_path, body)
    SELECT target, w.checkpoint_ns, w.checkpoint_id, w.seq, w.run, w.seen, w.task_id, w.task_path,
        w.body
    FROM unnest(write_namespaces, write_ids, write_seqs) wanted (ns, id, seq)
    JOIN {schema}.writes w ON w.thread_id = source AND w.checkpoint_ns = wanted.ns
        AND w.checkpoint_id = wanted.id AND w.seq = wanted.seq;
END
$$;

-- For people: SELECT * FROM registry() WHERE ... (a view would block changes of these tables)
CREATE FUNCTION {schema}.registry()
RETURNS TABLE (
    thread_id text, state text, created_at timestamptz, updated_at timestamptz, bytes bigint,
    tags jsonb, metadata jsonb, pinned boolean, ttl interval, forked_from text,
    forked_from_checkpoint text, waits_at_checkpoint text, deleted_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT t.thread_id, t.state, t.created_at, t.updated_at, t.size,
        (SELECT coalesce(jsonb_agg(l.label::jsonb ORDER BY l.label), '[]')
            FROM {schema}.thread_labels l
            WHERE l.thread_id = t.thread_id AND starts_with(l.label, '"')),
        (SELECT coalesce(jsonb_object_agg(l.label::jsonb ->> 0, l.label::jsonb -> 1), '{}')
            FROM {schema}.thread_labels l
            WHERE l.thread_id = t.thread_id AND starts_with(l.label, '[')),
        t.pinned, t.ttl * interval '1 microsecond', t.origin, t.origin_checkpoint, t.waits_at,
        t.deleted_at
    FROM {schema}.threads t WHERE t.state IS NOT NULL
$$;

-- Update the entry of a locked thread for a batch that was not refused.
CREATE FUNCTION {schema}.register(
    the_thread text,
    at_time bigint,
    its_tip bigint DEFAULT NULL,
    entry_state text DEFAULT NULL,
    entry_created bigint DEFAULT NULL,
    entry_updated bigint DEFAULT NULL,
    entry_pinned boolean DEFAULT NULL,
    entry_ttl bigint DEFAULT NULL,
    entry_origin text DEFAULT NULL,
    entry_origin_checkpoint text DEFAULT NULL,
    entry_waits_at text DEFAULT NULL,
    entry_beginnings text[] DEFAULT NULL,
    entry_labels text[] DEFAULT NULL,
    touch_size bigint DEFAULT 0,
    touch_whole boolean DEFAULT false,
    touch_at bigint DEFAULT NULL,
    touch_beginnings text[] DEFAULT NULL,
    touch_labels text[] DEFAULT NULL,
    move_sources text[] DEFAULT NULL,  -- '|one|other|'
    move_targets text[] DEFAULT NULL,
    move_checkpoints text[] DEFAULT NULL,
    move_waits boolean[] DEFAULT NULL,
    move_same boolean[] DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    its record;
BEGIN
    SELECT t.state, t.created_at, t.updated_at, t.size, t.waits_at, t.revision INTO its
    FROM {schema}.threads t WHERE t.thread_id = the_thread;
    IF entry_state IS NOT NULL THEN
        IF coalesce(its.state, 'deleted') = 'deleted' THEN
            its.created_at := {schema}.time_of(entry_created);
            its.updated_at := {schema}.time_of(entry_updated);
            its.waits_at := entry_waits_at;
        END IF;
        its.state := entry_state;
        its.revision := its.revision + 1;
        UPDATE {schema}.threads SET pinned = entry_pinned, ttl = entry_ttl, origin = entry_origin,
            origin_checkpoint = entry_origin_checkpoint
        WHERE thread_id = the_thread;
        DELETE FROM {schema}.thread_labels WHERE thread_id = the_thread;
        INSERT INTO {schema}.thread_labels (thread_id, beginning, label)
        SELECT the_thread, l.beginning, l.label
        FROM unnest(entry_beginnings, entry_labels) l (beginning, label);
    END IF;
    FOR i IN 1 .. coalesce(cardinality(move_targets), 0) LOOP
        IF strpos(move_sources[i], '|' || coalesce(its.state, '') || '|') > 0
            AND (its.waits_at IS NULL OR its.waits_at < move_checkpoints[i] COLLATE "C"
                OR (move_same[i] AND its.waits_at = move_checkpoints[i]))
        THEN
            IF coalesce(its.state, 'deleted') = 'deleted' THEN
                its.created_at := {schema}.time_of(coalesce(touch_at, at_time));
                its.updated_at := its.created_at;
            END IF;
            its.state := move_targets[i];
            its.waits_at := CASE WHEN move_waits[i] THEN move_checkpoints[i] END;
            its.revision := its.revision + 1;
        END IF;
    END LOOP;
    IF coalesce(its.state, 'deleted') <> 'deleted' THEN
        its.updated_at := greatest(its.updated_at, {schema}.time_of(touch_at));
        IF touch_labels IS NOT NULL THEN
            INSERT INTO {schema}.thread_labels AS known (thread_id, beginning, label)
            SELECT the_thread, l.beginning, l.label
            FROM unnest(touch_beginnings, touch_labels) l (beginning, label)
            ON CONFLICT (thread_id, beginning) DO UPDATE SET label = excluded.label;
            its.revision := its.revision + 1;
        END IF;
    END IF;
    UPDATE {schema}.threads SET
        state = its.state, created_at = its.created_at, updated_at = its.updated_at,
        size = CASE WHEN touch_whole THEN 0 ELSE its.size END + touch_size,
        waits_at = its.waits_at, revision = its.revision,
        tips = {schema}.tips_after(tips, its_tip)
    WHERE thread_id = the_thread;
END
$$;

-- Many batches in one call, as arrays: rows of all of them are checked and stored by one statement
-- for each table.
--
-- Its batches only add rows: no fences, no entry, no bump, and segments are dropped only if others
-- are added. No two batches of a thread put the same checkpoint, or the same place of a log (see
-- changes.py). A row names its batch by number, from 1 on. Returns true if all batches were stored.
-- If any would be refused, none is stored: commit each by itself with `commit_batch`, which returns
-- the reason.

CREATE FUNCTION {schema}.commit_batches(
    the_threads text[],
    lives bigint[],
    generations bigint[],
    bases text[],  -- '{tip,tip}': the tips that the thread must name
    tips bigint[],  -- of one thread all the same
    times bigint[],
    touch_sizes bigint[],  -- NULL: the batch does not update its entry
    touch_times bigint[],
    label_batches bigint[],
    label_beginnings text[],
    label_texts text[],
    move_batches bigint[],
    move_sources text[],  -- '|one|other|'
    move_targets text[],
    move_checkpoints text[],
    move_waits boolean[],
    move_same boolean[],
    segment_batches bigint[],
    segment_logs bigint[],
    segment_starts bigint[],
    segment_counts bigint[],
    segment_datas bytea[],
    drop_batches bigint[],
    drop_logs bigint[],
    drop_starts bigint[],
    drop_counts bigint[],
    checkpoint_batches bigint[],
    checkpoint_namespaces text[],
    checkpoint_ids text[],
    checkpoint_parents text[],
    checkpoint_runs bigint[],
    checkpoint_seens bigint[],
    checkpoint_flags bigint[],
    checkpoint_times bigint[],
    checkpoint_time_texts text[],
    checkpoint_metadatas text[],
    checkpoint_metadata_texts text[],
    checkpoint_exacts bytea[],
    checkpoint_key_logs bigint[],
    checkpoint_key_places bigint[],
    checkpoint_manifests bytea[],
    write_batches bigint[],
    write_namespaces text[],
    write_ids text[],
    write_runs bigint[],
    write_seens bigint[],
    write_tasks text[],
    write_paths text[],
    write_bodies bytea[])
RETURNS boolean LANGUAGE plpgsql
-- (Planning each call for its arrays would double the cost of a small group. The statements look up
-- threads one by one, whatever the planner estimates.)
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    made text[];
    its_heaps text[];  -- of each batch
    shared text[];
    moving text[];
    fits boolean;
BEGIN
    -- With an older snapshot, what others committed while this waited would not be seen.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'changes need the isolation level READ COMMITTED' USING ERRCODE = 'TK001';
    END IF;
    -- Threads are created, then locked, in the order of their names, then the heaps they share, so
    -- that two groups cannot deadlock.
    WITH missing AS (
        INSERT INTO {schema}.threads (thread_id)
        SELECT DISTINCT b.thread_id COLLATE "C" FROM unnest(the_threads) b (thread_id)
        WHERE (SELECT true FROM {schema}.threads t WHERE t.thread_id = b.thread_id) IS NULL
        ORDER BY 1
        ON CONFLICT DO NOTHING RETURNING thread_id)
    SELECT array_agg(m.thread_id) INTO made FROM missing m;
    SELECT array_agg(coalesce(l.heap, l.thread_id) ORDER BY l.n),
        array_agg(l.heap) FILTER (WHERE l.heap IS NOT NULL), bool_and(l.fits)
    INTO its_heaps, shared, fits
    FROM (
        SELECT b.n, t.thread_id, t.heap,
            coalesce(b.generation = t.generation OR t.heap IS NOT NULL, true)
            AND coalesce(b.life = t.life, true) AND b.base::bigint[] <@ t.tips AS fits
        FROM (
            SELECT * FROM unnest(the_threads, lives, generations, bases) WITH ORDINALITY
                o (thread_id, life, generation, base, n)
            ORDER BY o.thread_id COLLATE "C") b
        CROSS JOIN LATERAL (
            SELECT * FROM {schema}.threads t WHERE t.thread_id = b.thread_id
            FOR NO KEY UPDATE) t) l;
    IF shared IS NOT NULL THEN
        PERFORM FROM {schema}.heaps h WHERE h.heap = ANY (shared) ORDER BY h.heap FOR NO KEY UPDATE;
        -- (segments that a group adds to one heap are disjoint only within one thread)
        SELECT fits AND count(DISTINCT t.heap) = count(DISTINCT t.thread_id) AND bool_and(
            coalesce(b.generation = {schema}.generation_of(t.generation, t.heap), true))
        INTO fits
        FROM unnest(the_threads, generations) b (thread_id, generation)
        JOIN {schema}.threads t ON t.thread_id = b.thread_id
        WHERE t.heap IS NOT NULL;
    END IF;
    -- Stored segments never overlap: only the last one that starts before our end can reach us.
    fits := fits AND NOT EXISTS (
        SELECT FROM unnest(
            segment_batches, segment_logs, segment_starts, segment_counts, segment_datas)
            own (batch, log, start, count, data)
        CROSS JOIN LATERAL (
            SELECT s.start, s.count, s.data FROM {schema}.segments s
            WHERE s.thread_id = its_heaps[own.batch] AND s.log = own.log
                AND s.start < own.start + own.count
                AND NOT (cardinality(drop_batches) > 0 AND EXISTS (
                    SELECT FROM unnest(drop_batches, drop_logs, drop_starts, drop_counts)
                        gone (batch, log, start, count)
                    WHERE gone.batch = own.batch AND gone.log = s.log
                        AND gone.start = s.start AND gone.count = s.count))
            ORDER BY s.start DESC LIMIT 1) neighbour
        WHERE neighbour.start + neighbour.count > own.start
            AND NOT (neighbour.start = own.start AND neighbour.count = own.count
                AND neighbour.data = own.data));
    IF NOT fits THEN
        DELETE FROM {schema}.threads t WHERE t.thread_id = ANY (made);
        RETURN false;
    END IF;

    IF cardinality(drop_batches) > 0 THEN
        DELETE FROM {schema}.segments s
        USING unnest(drop_batches, drop_logs, drop_starts, drop_counts)
            gone (batch, log, start, count)
        WHERE s.thread_id = its_heaps[gone.batch] AND s.log = gone.log
            AND s.start = gone.start AND s.count = gone.count;
    END IF;
    INSERT INTO {schema}.segments (thread_id, log, start, count, data)
    SELECT its_heaps[s.batch], s.log, s.start, s.count, s.data
    FROM unnest(segment_batches, segment_logs, segment_starts, segment_counts, segment_datas)
        s (batch, log, start, count, data)
    ON CONFLICT (thread_id, log, start) DO NOTHING;
    IF cardinality(checkpoint_batches) > 0 THEN
        INSERT INTO {schema}.checkpoints AS c (
            thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run, seen, flags,
            ts, ts_text, metadata, metadata_text, exact, key_log, key_pos, manifest)
        SELECT the_threads[o.batch], o.ns, o.id, o.parent, o.run, o.seen, o.flags,
            {schema}.time_of(o.ts), o.ts_text, o.metadata::jsonb, o.metadata_text, o.exact,
            o.key_log, o.key_pos, o.manifest
        FROM unnest(checkpoint_batches, checkpoint_namespaces, checkpoint_ids, checkpoint_parents,
            checkpoint_runs, checkpoint_seens, checkpoint_flags, checkpoint_times,
            checkpoint_time_texts, checkpoint_metadatas, checkpoint_metadata_texts, checkpoint_exacts,
            checkpoint_key_logs, checkpoint_key_places, checkpoint_manifests)
            o (batch, ns, id, parent, run, seen, flags, ts, ts_text, metadata, metadata_text, exact,
                key_log, key_pos, manifest)
        ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO UPDATE SET
            parent_checkpoint_id = excluded.parent_checkpoint_id, run = excluded.run,
            seen = excluded.seen, flags = excluded.flags, ts = excluded.ts,
            ts_text = excluded.ts_text, metadata = excluded.metadata,
            metadata_text = excluded.metadata_text, exact = excluded.exact,
            key_log = excluded.key_log, key_pos = excluded.key_pos, manifest = excluded.manifest;
    END IF;
    IF cardinality(write_batches) > 0 THEN
        INSERT INTO {schema}.writes (
            thread_id, checkpoint_ns, checkpoint_id, seq, run, seen, task_id, task_path, body)
        SELECT the_threads[o.batch], o.ns, o.id,
            row_number() OVER (PARTITION BY the_threads[o.batch], o.ns, o.id ORDER BY o.n)
                + coalesce((
                    SELECT max(w.seq) FROM {schema}.writes w
                    WHERE w.thread_id = the_threads[o.batch] AND w.checkpoint_ns = o.ns
                        AND w.checkpoint_id = o.id), 0),
            o.run, o.seen, o.task, o.path, o.body
        FROM unnest(write_batches, write_namespaces, write_ids, write_runs, write_seens, write_tasks,
            write_paths, write_bodies) WITH ORDINALITY
            o (batch, ns, id, run, seen, task, path, body, n);
    END IF;

    -- Most threads change only in time and size; handle the others one by one.
    SELECT array_agg(DISTINCT the_threads[m.batch]) INTO moving
    FROM (
        SELECT o.batch FROM unnest(move_batches, move_sources) o (batch, sources)
        WHERE strpos(o.sources, '|' || coalesce((
            SELECT t.state FROM {schema}.threads t WHERE t.thread_id = the_threads[o.batch]
            ), '') || '|') > 0
        UNION ALL SELECT unnest(label_batches)) m (batch);
    INSERT INTO {schema}.threads AS t (thread_id, size, updated_at, tips)
    SELECT b.thread_id, coalesce(sum(b.size), 0), {schema}.time_of(max(b.at)), ARRAY[max(b.tip)]
    FROM unnest(the_threads, touch_sizes, touch_times, commit_batches.tips)
        b (thread_id, size, at, tip)
    WHERE (b.thread_id = ANY (moving)) IS NOT true
    GROUP BY b.thread_id
    ON CONFLICT (thread_id) DO UPDATE SET
        size = t.size + excluded.size, tips = {schema}.tips_after(t.tips, excluded.tips[1]),
        updated_at = CASE WHEN coalesce(t.state, 'deleted') = 'deleted' THEN t.updated_at
            ELSE greatest(t.updated_at, excluded.updated_at) END;
    FOR i IN 1 .. cardinality(the_threads) LOOP
        EXIT WHEN moving IS NULL;
        CONTINUE WHEN touch_sizes[i] IS NULL OR the_threads[i] <> ALL (moving);
        PERFORM {schema}.register(
            the_threads[i], times[i], commit_batches.tips[i], touch_size => touch_sizes[i], touch_at => touch_times[i],
            touch_beginnings => l.beginnings, touch_labels => l.texts,
            move_sources => m.sources, move_targets => m.targets,
            move_checkpoints => m.checkpoints, move_waits => m.waits, move_same => m.same)
        FROM (
            SELECT array_agg(o.beginning ORDER BY o.n), array_agg(o.label ORDER BY o.n)
            FROM unnest(label_batches, label_beginnings, label_texts) WITH ORDINALITY
                o (batch, beginning, label, n)
            WHERE o.batch = i) l (beginnings, texts), (
            SELECT array_agg(o.sources ORDER BY o.n), array_agg(o.target ORDER BY o.n),
                array_agg(o.checkpoint ORDER BY o.n), array_agg(o.waits ORDER BY o.n),
                array_agg(o.same ORDER BY o.n)
            FROM unnest(move_batches, move_sources, move_targets, move_checkpoints, move_waits,
                move_same) WITH ORDINALITY o (batch, sources, target, checkpoint, waits, same, n)
            WHERE o.batch = i) m (sources, targets, checkpoints, waits, same);
    END LOOP;
    RETURN true;
END
$$;
