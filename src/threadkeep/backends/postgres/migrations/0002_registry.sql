-- The registry: what is known of a thread as a whole, kept beside its tombstone.
--
-- A thread whose state is NULL is not in it. Labels are JSON texts: a tag, or a piece of metadata
-- as [key, value] (see engine/thread_entry.py); a NUL is none. Of most columns each save sets none
-- anew: they are updated in place (HOT), for which pages keep some room.

ALTER TABLE {schema}.threads
    ADD COLUMN state text COLLATE "C",
    ADD COLUMN updated_at timestamptz,
    ADD COLUMN size bigint NOT NULL DEFAULT 0,
    ADD COLUMN waits_at text COLLATE "C",
    ADD COLUMN revision bigint NOT NULL DEFAULT 0,
    ADD COLUMN pinned boolean NOT NULL DEFAULT false,
    ADD COLUMN ttl bigint,
    ADD COLUMN origin text COLLATE "C",
    ADD COLUMN origin_checkpoint text COLLATE "C";
ALTER TABLE {schema}.threads SET (fillfactor = 80);
COMMENT ON COLUMN {schema}.threads.state IS 'NULL: the thread is not in the registry';
COMMENT ON COLUMN {schema}.threads.size IS 'bytes of rows and segments, about';
COMMENT ON COLUMN {schema}.threads.waits_at IS 'the checkpoint at which an interrupt waits';
COMMENT ON COLUMN {schema}.threads.revision IS 'grows whenever other than times and size change';
COMMENT ON COLUMN {schema}.threads.ttl IS 'microseconds that the thread may rest';
COMMENT ON COLUMN {schema}.threads.origin IS 'the thread that it was forked from';

CREATE TABLE {schema}.thread_labels (
    thread_id text COLLATE "C" NOT NULL,
    beginning text COLLATE "C" NOT NULL,
    label text COLLATE "C" NOT NULL,
    PRIMARY KEY (thread_id, beginning)
);
CREATE INDEX thread_labels_by_label ON {schema}.thread_labels (label, thread_id);

-- For people: SELECT * FROM registry() WHERE ... (no view, which would be in the way of whoever
-- makes other tables of these)
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

-- What can be told of threads from before there was a registry: from their rows.
UPDATE {schema}.threads t SET
    state = 'active', revision = 1,
    created_at = coalesce(f.first, t.created_at), updated_at = coalesce(f.last, t.created_at),
    size = f.bytes
        + (SELECT coalesce(sum(length(s.data)), 0) FROM {schema}.segments s
            WHERE s.thread_id = t.thread_id)
        + (SELECT coalesce(sum(length(w.body)), 0) FROM {schema}.writes w
            WHERE w.thread_id = t.thread_id),
    waits_at = (
        SELECT w.checkpoint_id FROM {schema}.writes w
        WHERE w.thread_id = t.thread_id AND w.checkpoint_ns = ''
            AND w.checkpoint_id = (
                SELECT max(c.checkpoint_id) FROM {schema}.checkpoints c
                WHERE c.thread_id = t.thread_id AND c.checkpoint_ns = '' AND c.flags < 4)
            AND position('__interrupt__'::bytea IN w.body) > 0
            AND NOT EXISTS (
                SELECT FROM {schema}.writes l
                WHERE l.thread_id = w.thread_id AND l.checkpoint_ns = '' AND l.seq > w.seq
                    AND l.checkpoint_id = w.checkpoint_id
                    AND position('__resume__'::bytea IN l.body) > 0)
        LIMIT 1)
FROM (
    SELECT c.thread_id, min(c.ts) AS first, max(c.ts) AS last,
        sum(length(c.manifest) + octet_length(coalesce(c.metadata_text, c.metadata::text))
            + coalesce(length(c.exact), 0)) AS bytes
    FROM {schema}.checkpoints c GROUP BY c.thread_id) f
WHERE f.thread_id = t.thread_id;
UPDATE {schema}.threads SET state = 'suspended' WHERE waits_at IS NOT NULL;
UPDATE {schema}.threads SET state = 'deleted', revision = 1, created_at = deleted_at,
    updated_at = deleted_at
WHERE state IS NULL AND deleted_at > timestamptz 'epoch';

CREATE INDEX threads_by_update ON {schema}.threads (updated_at, thread_id)
    WHERE state <> 'deleted';
CREATE INDEX threads_by_creation ON {schema}.threads (created_at, thread_id)
    WHERE state <> 'deleted';
CREATE INDEX threads_by_state ON {schema}.threads (state, updated_at, thread_id);
CREATE INDEX threads_by_origin ON {schema}.threads (origin) WHERE origin IS NOT NULL;
CREATE INDEX threads_by_ttl ON {schema}.threads (ttl) WHERE ttl IS NOT NULL;

-- What a batch that was not refused means for its thread's entry. The thread is locked.
CREATE FUNCTION {schema}.register(
    the_thread text,
    at_time bigint,
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
        waits_at = its.waits_at, revision = its.revision
    WHERE thread_id = the_thread;
END
$$;

CREATE OR REPLACE FUNCTION {schema}.drop_thread(the_thread text, at_time bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.lock_thread(the_thread);
    PERFORM {schema}.empty_thread(the_thread);
    DELETE FROM {schema}.thread_labels WHERE thread_id = the_thread;
    UPDATE {schema}.threads
    SET deleted_at = {schema}.time_of(at_time),
        generation = generation + 1,
        state = CASE WHEN at_time > 0 THEN 'deleted' END, created_at = {schema}.time_of(at_time),
        updated_at = {schema}.time_of(at_time), size = 0, waits_at = NULL, pinned = false,
        ttl = NULL, origin = NULL, origin_checkpoint = NULL, revision = revision + 1
    WHERE thread_id = the_thread;
END
$$;

-- As without a time, and the copy is registered.
CREATE FUNCTION {schema}.copy_thread(source text, target text, at_time bigint, OUT refusal text)
LANGUAGE plpgsql AS $$
BEGIN
    refusal := {schema}.copy_thread(source, target);
    IF refusal IS NOT NULL OR NOT {schema}.holds_rows(source) THEN
        RETURN;
    END IF;
    UPDATE {schema}.threads t SET
        state = s.state, created_at = {schema}.time_of(at_time),
        updated_at = {schema}.time_of(at_time), size = s.size, waits_at = s.waits_at,
        ttl = coalesce(t.ttl, s.ttl), revision = t.revision + 1
    FROM {schema}.threads s WHERE s.thread_id = source AND t.thread_id = target;
    INSERT INTO {schema}.thread_labels (thread_id, beginning, label)
    SELECT target, l.beginning, l.label FROM {schema}.thread_labels l WHERE l.thread_id = source
    ON CONFLICT (thread_id, beginning) DO NOTHING;
END
$$;
