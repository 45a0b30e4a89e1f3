-- Tables and views. `id_text(...)` and `time_text(...)` are written out by opening.py.
CREATE TABLE tk_threads (
    number INTEGER PRIMARY KEY,
    thread TEXT NOT NULL UNIQUE,
    generation INTEGER,
    deleted_at INTEGER,            -- microseconds since 1970; NULL: never
    state TEXT,                    -- NULL: the thread is not in the registry
    created_at INTEGER,
    updated_at INTEGER,
    size INTEGER,
    waits_at,
    revision INTEGER,
    pinned INTEGER,
    ttl INTEGER,
    origin TEXT,
    origin_checkpoint,
    heap INTEGER                   -- tk_heap_segments.thread of its segments; NULL: its own number
);
CREATE TABLE tk_checkpoints (
    thread INTEGER NOT NULL,       -- tk_threads.number, here and below
    ns TEXT NOT NULL,
    id NOT NULL,                   -- packed, as all ids
    parent,
    run INTEGER,
    seen INTEGER,
    flags INTEGER,                 -- 1 free, 2 nested, 4 hidden
    ts NOT NULL,                   -- microseconds since 1970, or text
    source TEXT,                   -- of plain metadata (see records.py)
    step INTEGER,
    metadata TEXT,                 -- JSON, where it is not plain
    exact BLOB,
    key_log INTEGER,
    key_pos INTEGER,
    manifest BLOB NOT NULL,
    PRIMARY KEY (thread, ns, id)
) WITHOUT ROWID;
CREATE TABLE tk_writes (
    thread INTEGER NOT NULL,
    ns TEXT NOT NULL,
    checkpoint NOT NULL,
    seq INTEGER NOT NULL,
    run INTEGER,
    seen INTEGER,
    task NOT NULL,
    path TEXT,
    body BLOB NOT NULL,
    PRIMARY KEY (thread, ns, checkpoint, seq)
) WITHOUT ROWID;
CREATE TABLE tk_heap_segments (
    thread INTEGER NOT NULL,       -- whose segments these are, see tk_threads.heap
    log INTEGER NOT NULL,
    start INTEGER NOT NULL,
    count INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (thread, log, start)
);
CREATE TABLE tk_labels (
    thread INTEGER NOT NULL,
    beginning TEXT NOT NULL,       -- see engine/thread_entry.py
    label TEXT NOT NULL,           -- JSON: a tag's text, or metadata's key and value
    PRIMARY KEY (thread, beginning)
) WITHOUT ROWID;
CREATE INDEX tk_labels_by_label ON tk_labels (label, thread);
CREATE INDEX tk_threads_by_update ON tk_threads (updated_at, thread)
    WHERE state <> 'deleted';
CREATE INDEX tk_threads_by_creation ON tk_threads (created_at, thread)
    WHERE state <> 'deleted';
CREATE INDEX tk_threads_by_state ON tk_threads (state, updated_at, thread);
CREATE INDEX tk_threads_by_origin ON tk_threads (origin) WHERE origin IS NOT NULL;
CREATE INDEX tk_threads_by_heap ON tk_threads (heap) WHERE heap IS NOT NULL;
CREATE INDEX tk_threads_by_ttl ON tk_threads (ttl) WHERE ttl IS NOT NULL;
-- Views to read in any SQLite tool.
CREATE VIEW threads AS SELECT
    t.thread AS thread_id,
    (SELECT count(*) FROM tk_checkpoints c WHERE c.thread = t.number) AS checkpoints,
    (SELECT count(*) FROM tk_writes w WHERE w.thread = t.number) AS writes,
    (SELECT coalesce(sum(length(s.data)), 0) FROM tk_heap_segments s
        WHERE s.thread = coalesce(t.heap, t.number)) AS segment_bytes,
    time_text(t.deleted_at) AS deleted_at,
    t.state AS state,
    time_text(t.created_at) AS created_at,
    time_text(t.updated_at) AS updated_at,
    coalesce(t.size, 0) AS bytes,
    (SELECT json_group_array(json(l.label)) FROM tk_labels l
        WHERE l.thread = t.number AND substr(l.label, 1, 1) = '"') AS tags,
    -- The value is the label's text between the key and the closing bracket.
    (SELECT json_group_object(json_extract(l.label, '$[0]'), json(substr(
            l.label, length(l.beginning) + 4, length(l.label) - length(l.beginning) - 4)))
        FROM tk_labels l WHERE l.thread = t.number AND substr(l.label, 1, 1) = '[') AS metadata,
    coalesce(t.pinned, 0) AS pinned,
    t.ttl / 1000000 AS ttl_seconds,
    t.origin AS forked_from,
    id_text(t.origin_checkpoint) AS forked_from_checkpoint,
    id_text(t.waits_at) AS waits_at_checkpoint
FROM tk_threads t;
CREATE VIEW checkpoints AS SELECT
    t.thread AS thread_id,
    c.ns AS checkpoint_ns,
    id_text(c.id) AS checkpoint_id,
    id_text(c.parent) AS parent_checkpoint_id,
    time_text(c.ts) AS ts,
    coalesce(c.metadata,
        '{"source":"' || c.source || '","step":' || c.step || ',"parents":{}}') AS metadata,
    coalesce(c.flags & 4, 0) <> 0 AS hidden,
    length(c.manifest) AS manifest_bytes
FROM tk_checkpoints c JOIN tk_threads t ON t.number = c.thread;
CREATE VIEW writes AS SELECT
    t.thread AS thread_id,
    w.ns AS checkpoint_ns,
    id_text(w.checkpoint) AS checkpoint_id,
    w.seq AS seq,
    id_text(w.task) AS task_id,
    coalesce(w.path, '') AS task_path,
    length(w.body) AS bytes
FROM tk_writes w JOIN tk_threads t ON t.number = w.thread;
CREATE VIEW segments AS SELECT
    t.thread AS thread_id,
    s.log AS log,
    s.start AS start,
    s.count AS count,
    length(s.data) AS bytes
FROM tk_heap_segments s JOIN tk_threads t ON coalesce(t.heap, t.number) = s.thread;
