-- Many batches in one call, as arrays: rows of all of them are checked and stored by one statement
-- for each table.
--
-- It takes batches that only add: no fences, no entry, no bump, and segments dropped only beside
-- others that are added; no two of a thread put the same checkpoint, or the same place of a log
-- (see groups.py). A row names its batch by number, from 1 on. The answer is whether all of them were
-- stored. Where any would be refused, nothing is: each has to be committed by itself then, by
-- `commit_batch`, which says why.

CREATE FUNCTION {schema}.commit_batches(
    the_threads text[],
    borns bigint[],
    generations bigint[],
    times bigint[],
    touch_sizes bigint[],  -- NULL: nothing is told of the batch
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
-- (Planned anew for the arrays of each call, a small group would cost twice as much. Statements are
-- written so that threads are looked up one by one, whatever the planner thinks of them.)
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
    -- Made first, then locked, each in the order of names, and then what they share: so no two
    -- groups wait for each other.
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
            AND coalesce(t.deleted_at < {schema}.time_of(b.born), true) AS fits
        FROM (
            SELECT * FROM unnest(the_threads, borns, generations) WITH ORDINALITY
                o (thread_id, born, generation, n)
            ORDER BY o.thread_id COLLATE "C") b
        CROSS JOIN LATERAL (
            SELECT * FROM {schema}.threads t WHERE t.thread_id = b.thread_id
            FOR NO KEY UPDATE) t) l;
    IF shared IS NOT NULL THEN
        PERFORM FROM {schema}.heaps h WHERE h.heap = ANY (shared) ORDER BY h.heap FOR NO KEY UPDATE;
        -- (what a group adds to one heap is apart only if it is of one thread)
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

    -- Of nearly all threads only times and sizes change; the others are told one by one.
    SELECT array_agg(DISTINCT the_threads[m.batch]) INTO moving
    FROM (
        SELECT o.batch FROM unnest(move_batches, move_sources) o (batch, sources)
        WHERE strpos(o.sources, '|' || coalesce((
            SELECT t.state FROM {schema}.threads t WHERE t.thread_id = the_threads[o.batch]
            ), '') || '|') > 0
        UNION ALL SELECT unnest(label_batches)) m (batch);
    INSERT INTO {schema}.threads AS t (thread_id, size, updated_at)
    SELECT b.thread_id, sum(b.size), {schema}.time_of(max(b.at))
    FROM unnest(the_threads, touch_sizes, touch_times) b (thread_id, size, at)
    WHERE b.size IS NOT NULL AND (b.thread_id = ANY (moving)) IS NOT true
    GROUP BY b.thread_id
    ON CONFLICT (thread_id) DO UPDATE SET
        size = t.size + excluded.size,
        updated_at = CASE WHEN coalesce(t.state, 'deleted') = 'deleted' THEN t.updated_at
            ELSE greatest(t.updated_at, excluded.updated_at) END;
    FOR i IN 1 .. cardinality(the_threads) LOOP
        EXIT WHEN moving IS NULL;
        CONTINUE WHEN touch_sizes[i] IS NULL OR the_threads[i] <> ALL (moving);
        PERFORM {schema}.register(
            the_threads[i], times[i], touch_size => touch_sizes[i], touch_at => touch_times[i],
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
