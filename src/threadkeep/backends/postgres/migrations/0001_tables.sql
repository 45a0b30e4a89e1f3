-- The tables of threadkeep, and the functions that commit to them.
--
-- {schema} is the schema's name, quoted. Ids are ordered by code point (COLLATE "C"); a NUL,
-- which PostgreSQL's text cannot hold, is written as two characters (see text.py). Payloads
-- are compressed already where that pays: STORAGE EXTERNAL keeps PostgreSQL from trying again.

CREATE TABLE {schema}.threads (
    thread_id text COLLATE "C" NOT NULL,
    generation bigint NOT NULL DEFAULT 0,
    deleted_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (thread_id)
);
COMMENT ON COLUMN {schema}.threads.generation IS 'grows whenever segments are removed';
COMMENT ON COLUMN {schema}.threads.deleted_at IS 'the tombstone: writes of older runs are refused';

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

-- What is refused is an answer, not an error: others in the same transaction are left alone,
-- and a conflict that a program expects is no line in the server's log (see refusals.py).

-- Microseconds since 1970 as a time. (A number times an interval goes by way of a double: whole
-- seconds and the rest apart are exact for all times that there are.)
CREATE FUNCTION {schema}.time_of(micros bigint)
RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT timestamptz 'epoch' + micros / 1000000 * interval '1 second'
        + mod(micros, 1000000) * interval '1 microsecond'
$$;

CREATE FUNCTION {schema}.lock_thread(
    the_thread text, OUT its_generation bigint, OUT its_end timestamptz, OUT is_new boolean)
LANGUAGE plpgsql AS $$
BEGIN
    -- With an older snapshot, what others committed while this waited would not be seen.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'changes need the isolation level READ COMMITTED' USING ERRCODE = 'TK001';
    END IF;
    is_new := false;
    LOOP
        SELECT generation, deleted_at INTO its_generation, its_end
        FROM {schema}.threads WHERE thread_id = the_thread FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO {schema}.threads (thread_id) VALUES (the_thread) ON CONFLICT DO NOTHING;
        is_new := FOUND;
    END LOOP;
END
$$;

CREATE FUNCTION {schema}.break_of_fence(
    the_thread text, kind text, ns text, id text, a bigint, b bigint, own_ns text[], own_ids text[],
    OUT is_broken boolean, OUT at_checkpoint text)
LANGUAGE plpgsql AS $$
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
    ELSE
        is_broken := a <> (SELECT count(*) FROM {schema}.checkpoints c WHERE c.thread_id = the_thread)
            OR b <> (SELECT count(*) FROM {schema}.writes w WHERE w.thread_id = the_thread);
    END IF;
END
$$;

-- 'free', 'there' (the very same segment) or 'taken'. What the batch drops does not count.
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
    born bigint DEFAULT NULL,
    expected_generation bigint DEFAULT NULL,
    bump boolean DEFAULT false,
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
    hide_namespaces text[] DEFAULT NULL,
    hide_ids text[] DEFAULT NULL,
    OUT refusal text,
    OUT at_namespace text,
    OUT at_checkpoint text)
LANGUAGE plpgsql AS $$
DECLARE
    thread record;
    fence record;
    is_retry boolean;
    places text[];
BEGIN
    thread := {schema}.lock_thread(the_thread);
    IF born IS NOT NULL AND thread.its_end >= {schema}.time_of(born) THEN
        refusal := 'deleted';
    ELSIF expected_generation <> thread.its_generation THEN
        refusal := 'stale';
    END IF;
    -- What is stored already is done again only because its answer was lost: then checkpoints
    -- that came after it are no reason to refuse it.
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
            the_thread, segment_logs[i], segment_starts[i], segment_counts[i], segment_datas[i],
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
        WHERE s.thread_id = the_thread
            AND s.log = gone.log AND s.start = gone.start AND s.count = gone.count;
    END IF;
    FOR i IN 1 .. coalesce(cardinality(segment_logs), 0) LOOP
        IF places[i] = 'free' THEN
            INSERT INTO {schema}.segments (thread_id, log, start, count, data) VALUES (
                the_thread, segment_logs[i], segment_starts[i], segment_counts[i], segment_datas[i]);
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
    IF hide_ids IS NOT NULL THEN
        UPDATE {schema}.checkpoints c SET flags = c.flags | 4
        FROM unnest(hide_namespaces, hide_ids) hidden (ns, id)
        WHERE c.thread_id = the_thread AND c.checkpoint_ns = hidden.ns AND c.checkpoint_id = hidden.id;
    END IF;
    IF bump THEN
        UPDATE {schema}.threads SET generation = generation + 1 WHERE thread_id = the_thread;
    END IF;
END
$$;

CREATE FUNCTION {schema}.empty_thread(the_thread text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {schema}.checkpoints WHERE thread_id = the_thread;
    DELETE FROM {schema}.writes WHERE thread_id = the_thread;
    DELETE FROM {schema}.segments WHERE thread_id = the_thread;
END
$$;

CREATE FUNCTION {schema}.drop_thread(the_thread text, at_time bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.lock_thread(the_thread);
    PERFORM {schema}.empty_thread(the_thread);
    UPDATE {schema}.threads
    SET deleted_at = {schema}.time_of(at_time),
        generation = generation + 1
    WHERE thread_id = the_thread;
END
$$;

CREATE FUNCTION {schema}.holds_rows(the_thread text)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM {schema}.checkpoints WHERE thread_id = the_thread)
        OR EXISTS (SELECT FROM {schema}.writes WHERE thread_id = the_thread)
        OR EXISTS (SELECT FROM {schema}.segments WHERE thread_id = the_thread)
$$;

CREATE FUNCTION {schema}.copy_thread(source text, target text, OUT refusal text)
LANGUAGE plpgsql AS $$
DECLARE
    one record;
    other record;
BEGIN
    IF NOT {schema}.holds_rows(source) THEN
        RETURN;
    END IF;
    -- In the order of their names, so that two copies cannot wait for each other.
    one := {schema}.lock_thread(least(source COLLATE "C", target COLLATE "C"));
    other := {schema}.lock_thread(greatest(source COLLATE "C", target COLLATE "C"));
    IF NOT {schema}.holds_rows(source) THEN  -- it was deleted while this waited
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
    SELECT target, log, start, count, data FROM {schema}.segments WHERE thread_id = source;
    UPDATE {schema}.threads SET deleted_at = NULL, generation = generation + 1
    WHERE thread_id = target;
END
$$;
