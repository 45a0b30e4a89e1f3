-- Threads that share segments: a fork begins with rows of its own, and with the segments of its
-- origin, which neither copies.
--
-- segments.thread_id names a heap: a thread's own, which is its id, or the one that its row names
-- and that lies in `heaps` as long as several share it. Whoever commits to such a thread locks its
-- row first, then the heap's: so segments are added and removed by one at a time. What is removed
-- is stale for all, so a thread's generation is its own and the heap's together.

CREATE TABLE {schema}.heaps (
    heap text COLLATE "C" NOT NULL,
    generation bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (heap)
);
COMMENT ON TABLE {schema}.heaps IS 'segments that several threads share';
ALTER TABLE {schema}.threads ADD COLUMN heap text COLLATE "C";
COMMENT ON COLUMN {schema}.threads.heap IS 'what segments.thread_id is for it; NULL: its own id';
CREATE INDEX threads_by_heap ON {schema}.threads (heap, thread_id) WHERE heap IS NOT NULL;

CREATE FUNCTION {schema}.heap_of(the_thread text)
RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT t.heap FROM {schema}.threads t WHERE t.thread_id = the_thread), the_thread)
$$;

CREATE FUNCTION {schema}.generation_of(the_generation bigint, the_heap text)
RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN the_heap IS NULL THEN coalesce(the_generation, 0) ELSE the_generation
        + coalesce((SELECT h.generation FROM {schema}.heaps h WHERE h.heap = the_heap), 0) END
$$;

-- Locks a thread, and what it shares: `its_heap` is NULL where that is nothing.
CREATE FUNCTION {schema}.lock_family(
    the_thread text, OUT its_generation bigint, OUT its_end timestamptz, OUT is_new boolean,
    OUT its_heap text)
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
        SELECT generation, deleted_at, heap INTO its_generation, its_end, its_heap
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

CREATE OR REPLACE FUNCTION {schema}.lock_thread(
    the_thread text, OUT its_generation bigint, OUT its_end timestamptz, OUT is_new boolean)
LANGUAGE sql AS $$
    SELECT f.its_generation, f.its_end, f.is_new FROM {schema}.lock_family(the_thread) f
$$;

-- As before; the rows of all that share the segments count, and there is one more kind: 'entry'
-- expects revision a of the thread's entry.
CREATE OR REPLACE FUNCTION {schema}.break_of_fence(
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

CREATE OR REPLACE FUNCTION {schema}.commit_batch(
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
    its_heap text;
BEGIN
    thread := {schema}.lock_family(the_thread);
    its_heap := coalesce(thread.its_heap, the_thread);
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
    IF hide_ids IS NOT NULL THEN
        UPDATE {schema}.checkpoints c SET flags = c.flags | 4
        FROM unnest(hide_namespaces, hide_ids) hidden (ns, id)
        WHERE c.thread_id = the_thread AND c.checkpoint_ns = hidden.ns AND c.checkpoint_id = hidden.id;
    END IF;
    IF bump THEN
        UPDATE {schema}.heaps SET generation = generation + 1 WHERE heap = thread.its_heap;
        IF NOT FOUND THEN
            UPDATE {schema}.threads SET generation = generation + 1 WHERE thread_id = the_thread;
        END IF;
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION {schema}.holds_rows(the_thread text)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM {schema}.checkpoints WHERE thread_id = the_thread)
        OR EXISTS (SELECT FROM {schema}.writes WHERE thread_id = the_thread)
        OR EXISTS (SELECT FROM {schema}.segments WHERE thread_id = {schema}.heap_of(the_thread))
$$;

-- As before; what others share stays with them, and the thread goes on with a heap that nobody
-- has: a name that no thread's id can be (see text.py). The thread is locked.
CREATE OR REPLACE FUNCTION {schema}.empty_thread(the_thread text)
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
            heap = E'\x01\x03' || gen_random_uuid()
        WHERE t.thread_id = the_thread;
        -- Whoever counts what the others need has to look again.
        UPDATE {schema}.heaps SET generation = generation + 1 WHERE heap = its_heap;
    ELSE
        DELETE FROM {schema}.segments WHERE thread_id = its_heap;
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION {schema}.copy_thread(source text, target text, OUT refusal text)
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
    SELECT {schema}.heap_of(target), log, start, count, data
    FROM {schema}.segments WHERE thread_id = {schema}.heap_of(source);
    UPDATE {schema}.threads SET deleted_at = NULL, generation = generation + 1
    WHERE thread_id = target;
END
$$;

CREATE FUNCTION {schema}.fork_thread(
    source text, target text, expected_generation bigint,
    checkpoint_namespaces text[], checkpoint_ids text[],
    write_namespaces text[], write_ids text[], write_seqs bigint[], OUT refusal text)
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
        heap = its_heap, state = NULL
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
