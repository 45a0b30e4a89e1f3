-- Tables of threadkeep.
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
    seq bigint NOT NULL DEFAULT 0,
    newest text COLLATE "C",
    logs bytea,
    created_at timestamptz,
    state text COLLATE "C",
    updated_at timestamptz,
    size bigint NOT NULL DEFAULT 0,
    revision bigint NOT NULL DEFAULT 0,
    pinned boolean NOT NULL DEFAULT false,
    ttl bigint,
    origin text COLLATE "C",
    origin_checkpoint text COLLATE "C",
    heap text COLLATE "C",
    status text COLLATE "C",
    status_at text COLLATE "C",
    failed_node text COLLATE "C",
    holder text COLLATE "C",
    lease_until bigint,
    attempts bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (thread_id)
) WITH (fillfactor = 80);  -- most saves update columns without an index, in place (HOT)
COMMENT ON COLUMN {schema}.threads.generation IS 'grows whenever segments are removed';
COMMENT ON COLUMN {schema}.threads.deleted_at IS 'the tombstone: writes of older runs are refused';
COMMENT ON COLUMN {schema}.threads.tips IS 'random numbers of the last commits, newest first';
COMMENT ON COLUMN {schema}.threads.life IS 'number of the last deletion: runs from before are refused';
COMMENT ON COLUMN {schema}.threads.seq IS 'of the last write';
COMMENT ON COLUMN {schema}.threads.newest IS 'no checkpoint without a namespace has a greater id';
COMMENT ON COLUMN {schema}.threads.logs IS 'ends of the thread''s logs in its segments, as MessagePack';
COMMENT ON COLUMN {schema}.threads.state IS 'NULL: the thread is not in the registry';
COMMENT ON COLUMN {schema}.threads.size IS 'bytes of rows and segments, about';
COMMENT ON COLUMN {schema}.threads.status IS 'of the newest checkpoint; NULL: done';
COMMENT ON COLUMN {schema}.threads.holder IS 'name and token of the guard that holds it';
COMMENT ON COLUMN {schema}.threads.lease_until IS 'end of its lease, in microseconds since 1970';
COMMENT ON COLUMN {schema}.threads.attempts IS 'deaths and failures since the last checkpoint';
COMMENT ON COLUMN {schema}.threads.status_at IS 'the checkpoint of a failure or a question';
COMMENT ON COLUMN {schema}.threads.revision IS 'grows whenever other than times and size change';
COMMENT ON COLUMN {schema}.threads.ttl IS 'microseconds that the thread may rest';
COMMENT ON COLUMN {schema}.threads.origin IS 'the thread that it was forked from';
COMMENT ON COLUMN {schema}.threads.heap IS 'segments.thread_id of its segments; NULL: its own id';
CREATE INDEX threads_by_update ON {schema}.threads (updated_at, thread_id)
    WHERE state <> 'deleted';
CREATE INDEX threads_by_creation ON {schema}.threads (created_at, thread_id)
    WHERE state <> 'deleted';
CREATE INDEX threads_by_state ON {schema}.threads (state, updated_at, thread_id);
CREATE INDEX threads_by_status ON {schema}.threads (status, updated_at, thread_id)
    WHERE status IS NOT NULL;
CREATE INDEX threads_by_lease ON {schema}.threads (lease_until) WHERE lease_until IS NOT NULL;
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
COMMENT ON COLUMN {schema}.checkpoints.flags IS '1 free, 2 nested, 4 continues, 8 hidden';
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

-- Microseconds since 1970 as a time. (A number times an interval is computed as a double;
-- whole seconds and the rest, multiplied separately, are exact for all times.)
CREATE FUNCTION {schema}.time_of(micros bigint)
RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT timestamptz 'epoch' + micros / 1000000 * interval '1 second'
        + mod(micros, 1000000) * interval '1 microsecond'
$$;

-- For people: SELECT * FROM registry() WHERE ... (a view would block changes of these tables)
CREATE FUNCTION {schema}.registry()
RETURNS TABLE (
    thread_id text, state text, created_at timestamptz, updated_at timestamptz, bytes bigint,
    tags jsonb, metadata jsonb, pinned boolean, ttl interval, forked_from text,
    forked_from_checkpoint text, deleted_at timestamptz, status text,
    status_checkpoint text, failed_node text, holder text, lease_until timestamptz,
    attempts bigint)
LANGUAGE sql STABLE AS $$
    SELECT t.thread_id, t.state, t.created_at, t.updated_at, t.size,
        (SELECT coalesce(jsonb_agg(l.label::jsonb ORDER BY l.label), '[]')
            FROM {schema}.thread_labels l
            WHERE l.thread_id = t.thread_id AND starts_with(l.label, '"')),
        (SELECT coalesce(jsonb_object_agg(l.label::jsonb ->> 0, l.label::jsonb -> 1), '{}')
            FROM {schema}.thread_labels l
            WHERE l.thread_id = t.thread_id AND starts_with(l.label, '[')),
        t.pinned, t.ttl * interval '1 microsecond', t.origin, t.origin_checkpoint,
        t.deleted_at, coalesce(t.status, CASE WHEN t.state IN ('active', 'forked', 'archived')
            THEN 'done' END), t.status_at, t.failed_node, t.holder,
        {schema}.time_of(t.lease_until), t.attempts
    FROM {schema}.threads t WHERE t.state IS NOT NULL
$$;
